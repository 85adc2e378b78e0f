"""An interruption (Ctrl-C) while recorded work runs leaves every tensor with the value from before or after an operator."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from .running import adaptive, operators

_SIZE, _STEPS = 900, 15  # fewer operators than a cut by content needs


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _synchronize_and_idle(timer: threading.Timer | None = None) -> None:
    if timer is not None:
        timer.start()
    torch.neuron.synchronize()
    time.sleep(60)


def _record(w: torch.Tensor, m: torch.Tensor, counter: torch.Tensor) -> None:
    for _ in range(_STEPS):
        w.copy_(w @ m)
        counter.add_(1)


def test_interrupted_between_two_operators_what_ran_counts_and_the_rest_has_not_happened() -> None:
    m = torch.eye(_SIZE).roll(1, 0).to("neuron")  # each product turns the rows by one
    first = torch.arange(float(_SIZE)).reshape(-1, 1).expand(_SIZE, _SIZE).t().contiguous()
    w, counter = first.to("neuron"), torch.zeros(3, device="neuron")
    adaptive.reset()
    _record(w, m, counter)
    start = time.perf_counter()
    torch.neuron.synchronize()
    whole = time.perf_counter() - start
    adaptive.reset()  # one by one again
    w.copy_(first)
    counter.zero_()
    torch.neuron.synchronize()
    _record(w, m, counter)
    with pytest.raises(KeyboardInterrupt), _interrupted_after(whole / 2):
        _synchronize_and_idle()
    done = int(counter[0].item())
    assert counter.tolist() == [float(done)] * 3
    turned = w.cpu()
    assert torch.equal(turned, first.roll(-done, 1)) or torch.equal(turned, first.roll(-done - 1, 1))
    if operators()[1] < 3 * _STEPS:  # it came while they ran, as planned
        assert done < _STEPS
    counter.add_(1)
    assert counter.tolist() == [done + 1.0] * 3


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background of a shell, which ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_interrupted_within_a_fused_program_all_of_it_has_happened_or_nothing() -> None:
    m = torch.eye(_SIZE).roll(1, 0).to("neuron")
    first = torch.arange(float(_SIZE)).reshape(-1, 1).expand(_SIZE, _SIZE).t().contiguous()
    w, counter = first.to("neuron"), torch.zeros(3, device="neuron")
    rounds = 0
    for rounds in range(1, 8):  # noqa: B007
        fused, each = operators()
        _record(w, m, counter)
        start = time.perf_counter()
        torch.neuron.synchronize()
        whole = time.perf_counter() - start
        if operators() == (fused + 3 * _STEPS, each):
            break
        adaptive.wait(60)
    else:
        pytest.fail("never fused")
    _record(w, m, counter)
    timer = threading.Timer(whole / 2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        _synchronize_and_idle(timer)
    timer.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    turns = int(counter[0].item())
    assert turns in (rounds * _STEPS, (rounds + 1) * _STEPS)
    assert torch.equal(w.cpu(), first.roll(-turns, 1))
    counter.add_(1)
    assert counter.tolist() == [turns + 1.0] * 3
