"""Clocks: a wait that does not wait is found out, and summaries say what they rest on."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from shakedown.readiness.judge import timing as judged
from shakedown.readiness.observe.timing import ForeignLoad, self_test
from shakedown.readiness.requirements import Timing

WORK_SECONDS = 0.005


class LateDevice:
    """A device whose calls return at once while their work goes on in a queue, like any accelerator's."""

    def __init__(self) -> None:
        self._queue: queue.Queue[float] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            time.sleep(self._queue.get())
            self._queue.task_done()

    def call(self) -> None:
        self._queue.put(WORK_SECONDS)

    def wait(self) -> None:
        self._queue.join()

    def read(self) -> float:
        self._queue.join()
        return 0.0


@pytest.fixture
def device() -> Iterator[LateDevice]:
    found = LateDevice()
    yield found
    found.wait()


def test_a_wait_that_waits_passes(device: LateDevice) -> None:
    result = self_test(device.call, device.wait, device.read, calls=4, tolerance=0.25)
    assert result.passed, result
    assert result.ratio == pytest.approx(1, abs=0.25)


def test_a_wait_that_does_not_wait_is_found_out(device: LateDevice) -> None:
    result = self_test(device.call, lambda: None, device.read, calls=4, tolerance=0.25)
    assert not result.passed
    assert "the wait does not wait" in result.reason


def test_time_that_does_not_grow_with_work_is_found_out() -> None:
    result = self_test(lambda: None, lambda: time.sleep(WORK_SECONDS), lambda: 0, calls=4, tolerance=0.25)
    assert not result.passed
    assert "not 2 within" in result.reason


def test_summaries_are_medians_and_say_their_doubts() -> None:
    demand = Timing()
    steady = judged.series([1.0, 1.01, 0.99, 1.0, 50.0, 1.0, 1.0, 1.02], demand)
    assert steady.median == pytest.approx(1.0)
    assert steady.withheld == ""
    assert steady.p90 is None
    loose = judged.series([1.0, 1.15, 1.0, 1.15, 1.0, 1.15], demand)
    assert loose.warnings
    assert not loose.withheld
    wild = judged.series([1.0, 2.0, 1.0, 2.0, 1.0, 2.0], demand)
    assert wild.withheld.startswith("untested(timing)")
    assert judged.series([1.0, 1.1] * 32, demand).p90 is not None
    assert judged.series([1.0], demand).warnings == ["only 1 steps"]


@pytest.mark.skipif(sys.platform != "linux", reason="the load of other processes is read from /proc/stat")
def test_a_busy_stranger_is_seen() -> None:
    """Processes that burn processor time show as more load than any time may be claimed beside."""
    code = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass"
    strangers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    load = ForeignLoad()
    time.sleep(1.0)
    cores = load.cores()
    for stranger in strangers:
        stranger.wait()
    assert cores is not None
    assert cores > Timing().refuse_foreign_load
