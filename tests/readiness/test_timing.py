"""Clocks: a wait that does not wait is found out, steps end when their work does, and what disturbs a series is an event."""

from __future__ import annotations

import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from shakedown.readiness import targets
from shakedown.readiness.errors import TimerError
from shakedown.readiness.evidence import Evidence, StepSeries, Timings
from shakedown.readiness.judge import timing as judged
from shakedown.readiness.judge.series import change_points, steady
from shakedown.readiness.observe import paths
from shakedown.readiness.observe import timing as observe
from shakedown.readiness.observe.timing import ForeignLoad, completion, quietest_series, self_test, step_series
from shakedown.readiness.requirements import Timing

WORK_SECONDS = 0.02
LASTING, LEAST = Timing().lasting_change, Timing().least_steps


class LateDevice:
    """A device whose calls return at once while their work goes on in a queue, like any accelerator's."""

    def __init__(self, work: float = WORK_SECONDS, call: float = 0.0) -> None:
        self.work, self.returns_after = work, call
        self._queue: queue.Queue[float] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(self._queue.get())
            self._queue.task_done()

    def call(self) -> None:
        self._queue.put(self.work)
        time.sleep(self.returns_after)

    def wait(self) -> None:
        self._queue.join()

    @property
    def unfinished(self) -> int:
        return self._queue.unfinished_tasks

    def read(self) -> float:
        self._queue.join()
        return 0.0


@pytest.fixture
def device() -> Iterator[LateDevice]:
    found = LateDevice()
    yield found
    found.wait()


def test_a_wait_that_waits_passes(device: LateDevice) -> None:
    for _ in range(10):  # other processes may spoil every try of one test
        result = self_test(device.call, device.wait, device.read, calls=4, tolerance=0.25)
        if result.passed:
            break
    assert result.passed, result
    assert result.ratio == pytest.approx(1, abs=0.25)
    assert result.dispatch_seconds < WORK_SECONDS / 5
    assert result.call_seconds >= WORK_SECONDS


def test_a_wait_that_does_not_wait_is_found_out(device: LateDevice) -> None:
    result = self_test(device.call, lambda: None, device.read, calls=4, tolerance=0.25)
    assert not result.passed
    assert "the wait does not wait" in result.reason
    assert result.call_seconds >= WORK_SECONDS  # the read-back waited, so this one is right all the same


def test_time_that_does_not_grow_with_work_is_found_out() -> None:
    result = self_test(lambda: None, lambda: time.sleep(WORK_SECONDS), lambda: 0, calls=4, tolerance=0.25)
    assert not result.passed
    assert "not 2 within" in result.reason


def timed(series: StepSeries) -> Evidence:
    """Evidence of which only the timed steps are looked at."""
    return Evidence.model_construct(timings=Timings.model_construct(later=series))


def no_programs() -> None:
    """Compilations are not seen."""


def test_c12_a_step_ends_when_its_work_does_and_dispatch_is_another_number() -> None:
    """Calls return after 0.1 ms, the work ends 50 ms later: 30 timed calls, then a read-back."""
    device = LateDevice(work=0.050, call=0.0001)
    series = step_series(lambda number: device.call(), device.wait, no_programs, Timing(steps=30))
    assert device.unfinished == 0, "nothing is left for the read-back to wait for"
    device.read()
    assert len(series.seconds) == len(series.dispatched or []) == 30
    assert min(series.seconds) >= 0.050
    assert 0.0001 <= float(np.median(series.dispatched or [])) < 0.025
    assert series.compiles is None
    assert series.compiles_during is None
    assert series.started == pytest.approx(time.time(), abs=60)


def test_c12_a_wait_that_cannot_be_proved_is_untested(device: LateDevice) -> None:
    """The same clock with a synchronise that does nothing reads far too fast; the self-test says so beforehand."""
    series = step_series(lambda number: device.call(), lambda: None, no_programs, Timing(steps=10))
    assert float(np.median(series.seconds)) < WORK_SECONDS / 5
    device.wait()
    test = self_test(device.call, lambda: None, device.read, calls=4, tolerance=0.1)
    assert judged.untrusted(timed(series), test, Timing()).startswith("untested(timing): reading a result")


def test_c12_no_usable_synchronise_is_a_hard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.get("neuron")
    completion(target)()
    monkeypatch.delattr(torch.neuron, "synchronize")
    with pytest.raises(TimerError, match=r"^untested\(timing\): the target neuron has no usable way to wait"):
        completion(target)
    completion(targets.get("cpu"))()  # calls there return when their work is complete
    with pytest.raises(TimerError):
        completion(replace(targets.get("cuda"), name="no such device", device="xla"))


def test_a_series_counts_the_programs_of_each_step_and_stops_at_its_time() -> None:
    made = 0

    def step(number: int) -> None:
        nonlocal made
        made += 3 if number == 2 else 0
        time.sleep(0.01)

    series = step_series(step, lambda: None, lambda: made, Timing(steps=100, least_steps=5, seconds_per_case=0.03))
    assert series.compiles == [0, 0, 3, 0, 0]
    assert series.compiles_during == 3


def test_a_series_beside_strangers_is_taken_again_and_the_load_alone_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([2.0, 0.9, 1.5])
    monkeypatch.setattr(ForeignLoad, "cores", lambda self: next(loads))
    slept = iter([0.001] * 5 + [0.003] * 5 + [0.001] * 5)  # the least disturbed series is the slowest one
    series = quietest_series(lambda number: time.sleep(next(slept)), lambda: None, no_programs, Timing(steps=5))
    assert (series.attempts, series.foreign_cores) == (3, 0.9)
    assert min(series.seconds) >= 0.003


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "lognormal": lambda random, n: random.lognormal(0, 0.5, n),
    "Cauchy": lambda random, n: 1 + np.abs(random.standard_cauchy(n)),
    "Pareto": lambda random, n: 1 + random.pareto(1.1, n),
    "stalls": lambda random, n: 1 + 0.02 * random.standard_normal(n) + (random.random(n) < 0.05) * 50,
    "a coarse clock": lambda random, n: np.round(1 + 0.05 * random.standard_normal(n), 2),
}


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_series_without_a_change_seldom_shows_one(name: str, n: int) -> None:
    """The aim is at most 1 %; that many alarms in 1500 series would be 15, and chance adds less than 10 to them."""
    random = np.random.default_rng(n)
    alarms = 0
    for _ in range(1500):
        found = steady(list(DISTRIBUTIONS[name](random, n)), None, LASTING, LEAST)
        alarms += bool(found.reason) or any(event.kind == "lasting change" for event in found.events)
    assert alarms <= 25


def around(level: float, n: int = 30, seed: int = 1) -> np.ndarray:
    """Step times with the small noise of a quiet machine."""
    return level * (1 + 0.03 * np.random.default_rng(seed).standard_normal(n))


def test_a_late_compile_at_step_17_is_an_event_and_not_an_average() -> None:
    seconds = around(0.010)
    seconds[16] = 4.0
    compiles = [0] * 30
    compiles[16] = 2
    found = steady(list(seconds), compiles, LASTING, LEAST)
    (event,) = found.events
    assert (event.kind, event.step) == ("late compile", 17)
    assert event.seconds == pytest.approx(3.99, abs=0.01)
    assert event.cause == "2 programs were compiled or loaded in it"
    assert 17 not in found.steps
    assert len(found.steps) == 29
    (unseen,) = steady(list(seconds), None, LASTING, LEAST).events
    assert (unseen.kind, unseen.step) == ("stall", 17)
    assert unseen.cause == "not known: this target does not tell of compilations"


def test_single_stalls_do_not_split_a_series() -> None:
    for stalled in ([9], [3, 11, 25], [0, 29], [14, 15]):
        seconds = around(0.010)
        seconds[stalled] = 0.5
        found = steady(list(seconds), [0] * 30, LASTING, LEAST)
        assert [event.step for event in found.events] == [i + 1 for i in stalled]
        assert {event.kind for event in found.events} == {"stall"}
        assert len(found.steps) == 30, "a stall is part of what a step costs"
        assert float(np.median([seconds[i - 1] for i in found.steps])) == pytest.approx(0.010, rel=0.02)


def test_steps_that_get_faster_for_good_begin_a_steady_state() -> None:
    seconds = around(0.010)
    seconds[:16] *= 1.5
    compiles = [0] * 30
    found = steady(list(seconds), compiles, LASTING, LEAST)
    (event,) = found.events
    assert (event.kind, event.step) == ("lasting change", 17)
    assert event.ratio == pytest.approx(1 / 1.5, rel=0.05)
    assert found.steps == list(range(17, 31))
    compiles[15] = 4  # the program that made them faster
    assert "4 programs" in next(e.cause for e in steady(list(seconds), compiles, LASTING, LEAST).events if e.step == 17)


def test_a_drift_has_no_steady_state() -> None:
    for slope in (0.3, -0.3):
        found = steady(list(around(0.010) * np.linspace(1, 1 + slope, 30)), [0] * 30, LASTING, LEAST)
        assert f"drifts by {slope:+.0%}"[:10] in found.reason
        (event,) = found.events
        assert event.kind == "drift"
        assert event.ratio == pytest.approx(1 + slope, abs=0.06)


def test_a_small_change_is_no_event_and_a_short_series_shows_none() -> None:
    small = around(0.010, 200)
    small[100:] *= 1.03
    assert change_points(small)
    assert steady(list(small), None, LASTING, LEAST).events == []
    assert change_points(np.asarray([1.0] * 4 + [2.0] * 5)) == []


def test_steps_that_all_compile_are_never_steady() -> None:
    found = steady(list(around(0.5)), [1] * 28 + [0, 0], LASTING, LEAST)
    assert "28 of 30 steps compiled or loaded a program" in found.reason


def test_a_real_late_compile_on_the_device_is_named_by_its_step() -> None:
    """Step 17 brings an operator call that was never seen before; the device's own counter says so."""
    target = targets.get("neuron")
    recorder, x = paths.recorder(target), torch.ones(61, 67, device="neuron")

    def step(number: int) -> None:
        nonlocal x
        for _ in range(20):
            x = x * 0.5
        if number == 16:
            x.cosh().erfinv()

    for number in range(3):
        step(number)
    series = step_series(step, completion(target), recorder.compiles, Timing(steps=30))
    late = [
        event
        for event in steady(series.seconds, series.compiles, LASTING, LEAST).events
        if event.kind == "late compile"
    ]
    assert [event.step for event in late] == [17]
    assert late[0].ratio > 1


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
    """Processes that burn processor time show as more load than any time may be claimed beside. They are started by a
    shell that ends at once: strangers are nobody's children here.
    """
    code = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass"
    one = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} &"
    subprocess.run(["sh", "-c", one * 4], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    load = ForeignLoad()
    time.sleep(1.0)
    cores = load.cores()
    time.sleep(0.7)
    assert cores is not None
    assert cores > Timing().refuse_foreign_load


@pytest.mark.skipif(sys.platform != "linux", reason="the load of other processes is read from /proc/stat")
def test_a_child_of_this_process_is_no_stranger() -> None:
    """Adaptive eager's process that compiles is the device's own work, and is not held against the machine."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        before, end = observe._processor_seconds_of_own(), time.monotonic() + 60
        while observe._processor_seconds_of_own() - before < 0.2 and time.monotonic() < end:
            time.sleep(0.05)  # which costs this process next to nothing, so that it is the child's time that adds up
        used = observe._processor_seconds_of_own() - before
        child.kill()
    assert used >= 0.2
