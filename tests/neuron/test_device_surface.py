"""Devices as scripts see them: numbers, properties, what ``torch.accelerator`` says, and a fork."""

from __future__ import annotations

import os
import threading

import pytest
import torch

NOT_THERE = (1, -1, "neuron:1", torch.device("neuron", 3))
OF_OTHERS = ("cpu", torch.device("cpu"), "cuda:0", "no such device")


def test_there_is_one_device_and_every_thread_is_on_it():
    assert torch.neuron.is_available()
    assert torch.neuron.device_count() == 1
    torch.neuron.set_device(0)
    torch.neuron.set_device("neuron")
    torch.neuron.set_device(torch.device("neuron:0"))
    torch.neuron.set_device(None)
    seen = [torch.neuron.current_device()]
    thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_device()))
    thread.start()
    thread.join()
    assert seen == [0, 0]


@pytest.mark.parametrize("device", NOT_THERE)
def test_a_number_that_is_not_there(device):
    functions = (
        torch.neuron.set_device,
        torch.neuron.device,
        torch.neuron.get_device_properties,
        torch.neuron.get_device_name,
        torch.neuron.synchronize,
        torch.neuron.Stream,
        torch.neuron.current_stream,
    )
    for function in functions:
        with pytest.raises(ValueError, match=r"Device index -?\d is out of range: this process has 1 neuron device"):
            function(device)


@pytest.mark.parametrize("device", OF_OTHERS)
def test_a_device_of_another_type(device):
    for function in (
        torch.neuron.set_device,
        torch.neuron.device,
        torch.neuron.get_device_properties,
        torch.neuron.Stream,
    ):
        with pytest.raises(ValueError, match="expected a neuron device, got"):
            function(device)


def test_the_context_of_a_device_ends_with_an_error():
    with pytest.raises(KeyError), torch.neuron.device(0), torch.neuron.device("neuron:0"):
        raise KeyError
    assert torch.neuron.current_device() == 0
    assert torch.ones(1, device="neuron").device.index == 0


def test_properties_say_that_it_is_a_rehearsal():
    found = torch.neuron.get_device_properties()
    assert found == torch.neuron.get_device_properties(0) == torch.neuron.get_device_properties("neuron:0")
    assert found.name == "neuron:0" == torch.neuron.get_device_name() == torch.neuron.get_device_name(0)
    assert found.total_memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert "rehearsal" in repr(found)


def test_tensors_cannot_be_made_on_a_device_that_is_not_there():
    x = torch.ones(2, device="neuron")
    made = (
        lambda d: torch.empty(2, device=d),
        lambda d: torch.empty_strided((2,), (1,), device=d),
        lambda d: torch.ones(2, device=d),
        lambda d: torch.arange(4, device=d),
        lambda d: torch.randn(2, device=d),
        lambda d: torch.zeros_like(x, device=d),
        lambda d: torch.tensor([1.0], device=d),
        lambda d: x.to(d),
        lambda d: torch.ones(2).to(d),
        lambda d: torch.nn.Linear(2, 2, device=d),
        lambda d: torch.UntypedStorage(4, device=d),
        lambda d: x.new_zeros(3, device=d),
    )
    for make in made:
        make("neuron:0")
        with pytest.raises(RuntimeError, match="Device index 2 is out of range"):
            make("neuron:2")


def test_the_accelerator_is_this_device():
    accelerator = torch.accelerator
    assert accelerator.current_accelerator() == torch.device("neuron")
    assert accelerator.is_available()
    assert accelerator.device_count() == 1
    assert accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    accelerator.set_device_index("neuron:0")
    accelerator.set_device_index(-1)  # PyTorch's: changes nothing
    with pytest.raises(ValueError, match="out of range"):
        accelerator.set_device_index(1)
    with accelerator.device_index(0):
        assert accelerator.current_device_index() == 0
    with accelerator.device_index(None):
        pass
    with pytest.raises(ValueError, match="out of range"), accelerator.device_index(4):
        pass
    accelerator.synchronize()
    accelerator.synchronize("neuron:0")
    assert {torch.float32, torch.bfloat16, torch.int64} <= accelerator.get_device_capability()["supported_dtypes"]


def test_streams_of_the_accelerator_are_the_devices():
    default = torch.accelerator.current_stream()
    assert default == torch.neuron.default_stream() == torch.neuron.current_stream()
    stream = torch.Stream(device="neuron")
    torch.accelerator.set_stream(stream)
    try:
        assert torch.accelerator.current_stream() == stream == torch.neuron.current_stream()
    finally:
        torch.accelerator.set_stream(default)
    with torch.Stream():
        assert torch.accelerator.current_stream() != default
    assert torch.accelerator.current_stream() == default


def test_copies_that_do_not_block_have_the_values_of_when_they_were_asked():
    host = torch.arange(5000.0)
    there = host.to("neuron", non_blocking=True)
    host.zero_()
    back = (there * 2).to("cpu", non_blocking=True)
    there.zero_()
    assert torch.equal(back, torch.arange(5000.0) * 2)
    there.copy_(torch.ones(5000), non_blocking=True)
    host.copy_(there, non_blocking=True)
    assert host.sum() == 5000
    there.record_stream(torch.neuron.Stream())
    with pytest.raises(RuntimeError, match="expected a stream of device 'neuron'"):
        there.record_stream(torch._C.Stream(stream_id=0, device_index=0, device_type=1))


def test_helpers_that_do_little():
    torch.neuron.init()
    torch.neuron._lazy_init()
    assert torch.neuron.is_initialized()
    assert not torch.neuron._is_in_bad_fork()
    assert torch.neuron._sleep(1000) is None
    assert torch.ones(1).neuron().is_neuron


def test_a_forked_child_is_told_to_spawn():
    from shakedown.neuron.modes.compile import neuron

    x = torch.ones(1, device="neuron")
    ways = (
        torch.neuron.init,
        torch.neuron.synchronize,
        torch.accelerator.synchronize,
        lambda: x + 1,
        x.cpu,
        lambda: neuron(torch.fx.symbolic_trace(torch.nn.Identity()), [x]),
    )
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = [f"{torch.neuron._is_in_bad_fork()} {torch.neuron.is_initialized()}"]
        for way in ways:
            try:
                said.append(f"no error: {way()}")
            except RuntimeError as error:
                said.append(str(error).replace("\n", " "))
            except BaseException as error:  # the child must not go on with the tests
                said.append(repr(error))
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    first, *errors = os.read(read, 10_000).decode().split("\n")
    os.close(read)
    os.close(write)
    assert first == "True False"
    assert len(errors) == len(ways)
    for text in errors:
        assert text.startswith("Cannot re-initialize the neuron device in a forked subprocess")
        assert "spawn" in text
