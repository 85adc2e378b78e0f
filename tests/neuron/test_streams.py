"""Streams and events: names, order, contexts, completion and time; PyTorch's general classes among them."""

from __future__ import annotations

import inspect
import threading
import time
import warnings
from typing import Any

import pytest
import torch

neuron = torch.neuron


# --- streams ------------------------------------------------------------------------------------------------------------


def test_a_stream_has_a_number_a_device_and_a_hash():
    one, other = neuron.Stream(), neuron.Stream("neuron:0", priority=-1)
    assert one != other
    assert len({one, other, neuron.Stream(stream_id=one.stream_id, device_index=0, device_type=one.device_type)}) == 2
    assert one.device == torch.device("neuron", 0)
    assert (one.device_index, one.priority, other.priority) == (0, 0, -1)
    assert 0 not in (one.stream_id, other.stream_id)
    assert neuron.default_stream().stream_id == 0
    assert neuron.default_stream() == neuron.default_stream("neuron") != one
    assert isinstance(one, torch.Stream)
    assert isinstance(one, neuron.Stream)
    assert f"stream_id={one.stream_id}" in repr(one)
    with pytest.raises(ValueError, match="expected device type"):
        neuron.Stream(stream_id=1, device_index=0, device_type=1)


def test_contexts_nest_and_end_with_errors():
    default, one, other = neuron.current_stream(), neuron.Stream(), neuron.Stream()
    seen = []

    def note():
        seen.append(neuron.current_stream())

    def fail():
        with neuron.stream(other):
            note()
            with neuron.stream(None):
                note()
            raise KeyError

    with neuron.stream(one):
        note()
        with pytest.raises(KeyError):
            fail()
        note()
        with one, other:
            note()
        note()
    assert neuron.current_stream() == default
    assert seen == [one, other, other, one, other, one]
    again = neuron.StreamContext(one)
    with again, neuron.stream(other), again:
        assert neuron.current_stream() == one
    assert neuron.current_stream() == default


def test_each_thread_has_a_current_stream_of_its_own():
    one, seen = neuron.Stream(), []

    def run():
        seen.append(neuron.current_stream())
        neuron.set_stream(neuron.Stream())

    with neuron.stream(one):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert neuron.current_stream() == one
    assert seen == [neuron.default_stream()]
    neuron.set_stream(None)
    assert neuron.current_stream() == neuron.default_stream()


def test_what_is_no_stream_or_no_event_is_refused():
    for wrong in (3, "neuron", object()):
        for function in (neuron.set_stream, neuron.stream, neuron.wait_stream, neuron.wait_event):
            with pytest.raises(TypeError, match="expected a"):
                function(wrong)
        with pytest.raises(TypeError, match="expected a stream"):
            neuron.Event().record(wrong)


def test_work_of_all_streams_is_in_the_order_in_which_it_was_asked():
    """A producer and a consumer on two streams, with the waits that a script has, and then without any."""
    producer, consumer = neuron.Stream(), neuron.Stream()
    for wait in (True, False):
        x, results = torch.zeros(64, device="neuron"), []
        for _ in range(5):
            with neuron.stream(producer):
                x += 1
                done = producer.record_event()
            with neuron.stream(consumer):
                if wait:
                    neuron.wait_event(done)
                    consumer.wait_stream(producer)
                results.append(x * 2)
                x.record_stream(consumer)
            if wait:
                neuron.wait_stream(consumer)
        assert [r[0].item() for r in results] == [2, 4, 6, 8, 10]


def test_streams_say_whether_their_work_is_done():
    stream = neuron.Stream()
    with neuron.stream(stream):
        torch.ones(8, device="neuron") * 2
        neuron.synchronize()
        assert neuron.query()
    stream.synchronize()
    assert stream.query()


# --- events -------------------------------------------------------------------------------------------------------------


def test_an_event_that_was_not_recorded():
    event = neuron.Event()
    assert event.query()
    event.synchronize()
    event.wait()
    neuron.current_stream().wait_event(event)
    assert "recorded=False" in repr(event)


def test_elapsed_time_is_what_a_clock_says():
    x = torch.ones(500, 500, device="neuron")
    (x @ x).sum()
    start, middle, end = (neuron.Event(enable_timing=True) for _ in range(3))
    neuron.synchronize()
    before = time.perf_counter()
    start.record()
    y = x @ x
    middle.record(neuron.Stream())
    for _ in range(4):
        y = x @ y
    neuron.current_stream().record_event(end)
    end.synchronize()
    took = (time.perf_counter() - before) * 1e3
    assert start.query()
    assert end.query()
    assert 0 < start.elapsed_time(middle) < start.elapsed_time(end) <= took
    assert start.elapsed_time(end) > took / 2
    assert start.elapsed_time(middle) + middle.elapsed_time(end) == pytest.approx(start.elapsed_time(end))
    assert end.elapsed_time(start) == pytest.approx(-start.elapsed_time(end))


def test_elapsed_time_that_is_not_known():
    timed, untimed = neuron.Event(enable_timing=True), neuron.Event()
    untimed.record()
    with pytest.raises(RuntimeError, match="must be recorded"):
        timed.elapsed_time(timed)
    timed.record()
    assert timed.elapsed_time(timed) == 0
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        timed.elapsed_time(untimed)
    with pytest.raises(RuntimeError, match="must be recorded"):
        timed.elapsed_time(neuron.Event(enable_timing=True))
    with pytest.raises(RuntimeError, match="on the same device"):
        timed.elapsed_time(torch.Event("cpu", enable_timing=True))
    with pytest.raises(TypeError):
        timed.elapsed_time(3)


def test_an_event_is_recorded_anew():
    start, end = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True)
    start.record()
    end.record()
    first = start.elapsed_time(end)
    time.sleep(0.02)
    assert neuron.record_event(end) is end
    assert start.elapsed_time(end) >= first + 20


def test_events_are_of_this_process():
    with pytest.raises(ValueError, match="cannot be shared between processes"):
        neuron.Event(interprocess=True)


# --- PyTorch's general classes ------------------------------------------------------------------------------------------


def test_general_streams_and_events_of_this_device_are_its_own():
    stream, event = torch.Stream(device="neuron"), torch.Event(device="neuron", enable_timing=True)
    assert type(stream) is type(torch.Stream()) is type(torch.Stream(0)) is neuron.Stream
    assert type(event) is type(torch.Event()) is neuron.Event
    assert isinstance(stream, torch.Stream)
    assert isinstance(event, torch.Event)
    assert issubclass(neuron.Stream, torch.Stream)
    assert issubclass(neuron.Event, torch.Event)
    with stream:
        stream.record_event(event)
        assert torch.accelerator.current_stream() == stream
    assert event.elapsed_time(event) == 0
    with pytest.raises(ValueError, match="out of range"):
        torch.Stream("neuron:1")


def test_general_classes_are_still_classes():
    assert inspect.isclass(torch.Stream)
    assert torch.Stream.__module__ == "torch"
    assert (torch.Stream | None).__args__ == (torch.Stream, type(None))
    assert issubclass(type("OfC", (torch._C.Stream,), {}), torch.Stream)  # as torch.cuda.Stream is where there is CUDA
    assert isinstance(torch._C.Event("cpu"), torch.Event)
    assert not isinstance(3, torch.Stream)
    assert not issubclass(int, torch.Event)

    class Mine(torch.Event):
        pass

    assert isinstance(Mine("cpu"), torch.Event)
    assert not isinstance(neuron.Event(), Mine)
    general: Any = torch.Stream
    with pytest.raises(RuntimeError, match="device"):
        general(device="nothing")


def test_streams_in_compiled_functions(fresh_dynamo):
    stream = neuron.Stream()

    @torch.compile(backend="neuron")
    def function(x):
        y = x * 2
        with neuron.stream(stream):
            y = y + 1
        stream.synchronize()
        return y - neuron.current_stream().stream_id

    assert function(torch.ones(3, device="neuron")).tolist() == [3, 3, 3]


def test_events_in_compiled_functions_are_around_what_they_stand_around(fresh_dynamo):
    start, end, stream = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True), neuron.Stream()

    @torch.compile(backend="neuron")
    def function(x):
        start.record()
        y = (x @ x) @ x
        end.record(stream)
        return y + 1

    x = torch.rand(500, 500)
    there = x.to("neuron")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an event is between two programs
        function(there)
        before = time.perf_counter()
        result = function(there)
        neuron.synchronize()
        took = (time.perf_counter() - before) * 1e3
    torch.testing.assert_close(result.cpu(), x @ x @ x + 1, rtol=1e-4, atol=1e-3)
    assert took / 10 < start.elapsed_time(end) <= took
