"""Devices, streams and events."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

import torch_neuronx

from .contract import entry


def same(name: str) -> None:
    """The name is the same thing in both modules."""
    assert getattr(torch_neuronx, name) is getattr(torch.neuron, name)


def both(name: str, **more: str):
    """An entry for a name that `torch_neuronx` and `torch.neuron` both have."""

    def register(check):
        def checked() -> None:
            same(name)
            check()

        checked.__doc__, checked.__name__ = check.__doc__, name
        entry("torch_neuronx", name, **more)(checked)
        entry("torch.neuron", name, **more)(checked)
        return check

    return register


@both("device_count")
def device_count():
    """An int: 1, the device of this process"""
    assert torch_neuronx.device_count() == 1
    assert type(torch_neuronx.device_count()) is int


@both("current_device")
def current_device():
    """An int, 0 in every thread"""
    seen = [torch_neuronx.current_device()]
    thread = threading.Thread(target=lambda: seen.append(torch_neuronx.current_device()))
    thread.start()
    thread.join()
    assert seen == [0, 0]


@both("set_device")
def set_device():
    """An int, a torch.device, or None, which keeps the current one; ValueError outside 0..count-1"""
    for right in (0, torch.device("neuron:0"), None):
        torch_neuronx.set_device(right)
        assert torch_neuronx.current_device() == 0
    for wrong in (1, -2, 128):
        with pytest.raises(ValueError):
            torch_neuronx.set_device(wrong)


@both("get_device_properties")
def get_device_properties():
    """`name` and `total_memory`, from an int, a string or nothing; ValueError for another index or type"""
    for which in (0, "neuron:0", None):
        found = torch_neuronx.get_device_properties(which)
        assert isinstance(found.name, str)
        assert isinstance(found.total_memory, int)
        assert found.total_memory > 0
    for wrong in (7, "neuron:7", "cpu"):
        with pytest.raises(ValueError):
            torch_neuronx.get_device_properties(wrong)


@both("device")
def device():
    """A context manager that restores the previous device; ValueError for another type"""
    with torch_neuronx.device(0):
        assert torch.ones(1, device="neuron").device.index == 0
    with torch_neuronx.device("neuron:0"):
        assert torch_neuronx.current_device() == 0
    assert torch_neuronx.current_device() == 0
    with pytest.raises(ValueError):
        torch_neuronx.device("cpu")


@both("synchronize")
def synchronize():
    """Waits, with a device or without; ValueError for another device"""
    torch.ones(3, device="neuron").add(1)
    for which in (None, 0, "neuron:0"):
        assert torch_neuronx.synchronize(which) is None
    with pytest.raises(ValueError):
        torch_neuronx.synchronize(3)


@both("default_stream")
def default_stream():
    """Its id is 0"""
    assert torch_neuronx.default_stream().stream_id == 0
    assert torch_neuronx.default_stream(0) == torch_neuronx.default_stream()


@both("current_stream")
def current_stream():
    """The default stream where none was set, in another thread too"""
    seen = []
    with torch_neuronx.stream(torch_neuronx.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch_neuronx.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch_neuronx.default_stream()]
    assert torch_neuronx.current_stream() == torch_neuronx.default_stream()


@both("set_stream")
def set_stream():
    """Makes a stream current"""
    other = torch_neuronx.Stream()
    torch_neuronx.set_stream(other)
    try:
        assert torch_neuronx.current_stream() == other
    finally:
        torch_neuronx.set_stream(torch_neuronx.default_stream())
    assert torch_neuronx.current_stream() == torch_neuronx.default_stream()


@both("stream")
def stream():
    """Nested, exception-safe, and nothing at all for None"""
    one, two = torch_neuronx.Stream(), torch_neuronx.Stream()
    with torch_neuronx.stream(one):
        with contextlib.suppress(KeyError), torch_neuronx.stream(two):
            assert torch_neuronx.current_stream() == two
            raise KeyError
        assert torch_neuronx.current_stream() == one
        with torch_neuronx.stream(None):
            assert torch_neuronx.current_stream() == one
    assert torch_neuronx.current_stream() == torch_neuronx.default_stream()


@both("StreamContext")
def stream_context():
    """What `stream` returns"""
    other = torch_neuronx.Stream()
    assert isinstance(torch_neuronx.stream(other), torch_neuronx.StreamContext)
    with torch_neuronx.StreamContext(other):
        assert torch_neuronx.current_stream() == other


@both("Stream")
def stream_class():
    """Device and priority, or an id; a bad index and another type of device raise"""
    assert torch_neuronx.Stream(0, priority=0).device_index == 0
    default = torch_neuronx.default_stream()
    again = torch_neuronx.Stream(
        stream_id=default.stream_id, device_index=default.device_index, device_type=default.device_type
    )
    assert again == default
    for wrong in (5, "cpu"):
        with pytest.raises((ValueError, RuntimeError)):
            torch_neuronx.Stream(wrong)


@both("Event")
def event_class():
    """Made without arguments, or with timing and blocking"""
    torch_neuronx.Event()
    torch_neuronx.Event(enable_timing=True, blocking=True)


@entry("stream", "stream_id", "device_index", "device", "priority")
def attributes():
    """Of the current device; ids differ between streams"""
    one, two = torch_neuronx.Stream(), torch_neuronx.Stream(priority=0)
    assert one.device_index == 0
    assert one.device == torch.device("neuron:0")
    assert two.priority == 0
    assert isinstance(one.stream_id, int)
    assert one.stream_id != two.stream_id != torch_neuronx.default_stream().stream_id


@entry("stream", "hash and comparison")
def hashed():
    """Equal streams are one key"""
    one, two = torch_neuronx.Stream(), torch_neuronx.Stream()
    assert one == one
    assert one != two
    assert len({one, two, one, torch_neuronx.default_stream(), torch_neuronx.default_stream()}) == 3


@entry("stream", "record_event")
def record_event():
    """Returns the event that it was given, or a new one"""
    one = torch_neuronx.Stream()
    event = torch_neuronx.Event()
    assert one.record_event(event) is event
    assert isinstance(one.record_event(), torch_neuronx.Event)


@entry("stream", "wait_event", "wait_stream")
def waits():
    """What is called on the waiting stream afterwards sees the results of the other"""
    one, two = torch_neuronx.Stream(), torch_neuronx.Stream()
    with torch_neuronx.stream(one):
        x = torch.ones(4, device="neuron") * 2
        event = one.record_event()
    two.wait_event(event)
    two.wait_stream(one)
    with torch_neuronx.stream(two):
        assert (x + 1).tolist() == [3] * 4


@entry("stream", "query", "synchronize")
def finished():
    """After synchronize, query is True"""
    one = torch_neuronx.Stream()
    with torch_neuronx.stream(one):
        torch.ones(4, device="neuron") * 2
    one.synchronize()
    assert one.query() is True


@entry("event", "record", "synchronize")
def recorded():
    """On a stream or the current one; an event that was not recorded returns at once"""
    event = torch_neuronx.Event()
    event.synchronize()
    event.record()
    event.record(torch_neuronx.Stream())
    event.synchronize()
    assert event.query() is True


@entry("event", "query")
def unrecorded():
    """True for an event that was not recorded"""
    assert torch_neuronx.Event().query() is True


@entry("event", "wait")
def event_wait():
    """On a stream or the current one"""
    event = torch_neuronx.Event()
    event.record()
    event.wait()
    event.wait(torch_neuronx.Stream())


@entry("event", "elapsed_time")
def elapsed_time():
    """Milliseconds as a float; RuntimeError without timing or without a record"""
    first, last = (torch_neuronx.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError):
        first.elapsed_time(last)
    first.record()
    torch.ones(64, 64, device="neuron") @ torch.ones(64, 64, device="neuron")
    last.record()
    last.synchronize()
    took = first.elapsed_time(last)
    assert isinstance(took, float)
    assert 0 <= took < 60_000
    plain = torch_neuronx.Event()
    plain.record()
    with pytest.raises(RuntimeError):
        first.elapsed_time(plain)


# --- torch.neuron alone -------------------------------------------------------------------------------------------------


@entry("torch.neuron", "wait_stream", "wait_event", "record_event", "query")
def of_the_module():
    """The methods of the current stream as functions"""
    other = torch.neuron.Stream()
    with torch.neuron.stream(other):
        x = torch.ones(4, device="neuron") * 2
        event = torch.neuron.record_event()
    assert isinstance(event, torch.neuron.Event)
    torch.neuron.wait_event(event)
    torch.neuron.wait_stream(other)
    assert (x + 1).tolist() == [3] * 4
    torch.neuron.synchronize()
    assert torch.neuron.query() is True


@entry("torch.neuron", "is_available")
def is_available():
    """True"""
    assert torch.neuron.is_available() is True


@entry("torch.neuron", "is_initialized", "init")
@entry("torch_neuronx", "is_neuron_runtime_initialized")
def initialised():
    """True once the runtime runs, which `init` starts"""
    torch.neuron.init()
    assert torch.neuron.is_initialized() is True
    assert torch_neuronx.is_neuron_runtime_initialized() is True


@entry("torch.neuron", "_is_in_bad_fork")
def bad_fork():
    """False in a process that was not forked from one that uses the device (tests/neuron/test_autoload.py forks)"""
    assert torch.neuron._is_in_bad_fork() is False


@entry("torch.neuron", "_sleep")
def sleep():
    """Takes a number of cycles and does nothing"""
    assert torch.neuron._sleep(1000) is None


@entry(
    "torch.neuron",
    "get_device_name",
    differs="a string is accepted too, where the snapshot raises: scripts for CUDA give one",
)
def get_device_name():
    """`neuron:0`"""
    assert torch.neuron.get_device_name() == torch.neuron.get_device_name(0) == "neuron:0"


@entry("torch.neuron", "get_amp_supported_dtype")
def amp():
    """float32, float16, bfloat16"""
    assert set(torch.neuron.get_amp_supported_dtype()) == {torch.float32, torch.float16, torch.bfloat16}


@entry("torch.neuron", "is_bf16_supported")
def bf16():
    """True"""
    assert torch.neuron.is_bf16_supported() is True


@entry("package", "torch.accelerator", source="article, docs")
def accelerator():
    """Names this device, counts it and waits for it"""
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 1
    torch.accelerator.synchronize()
