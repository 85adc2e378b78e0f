"""Run stages of the trial inside the test's own process, so that a fault can be put into the device by a patch."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from shakedown.readiness import matrix, trial, worker
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.record import Record
from shakedown.readiness.runner import Launch

TINY = Path(__file__).with_name("tiny.py")
Fault = Callable[[], AbstractContextManager[object]]


class InProcess:
    """An executor without child processes. `faults` maps a cell to the context that its candidate runs in."""

    def __init__(self, faults: dict[str, Fault] | None = None) -> None:
        self.faults = faults or {}

    def run(self, launch: Launch) -> Outcome:
        launch.logs.mkdir(parents=True, exist_ok=True)
        try:
            with self.faults.get(launch.job.cell, nullcontext)():
                worker.perform(launch.job)
        except Exception as error:
            return Outcome(status="crashed", exit_code=1, reason=str(error), stderr_tail=traceback.format_exc())
        return Outcome(status="finished", exit_code=0)


torch.set_num_threads(1)  # tests share the machine: two threads that spin for each other make small steps very slow


def quick(folder: Path) -> Path:
    """Requirements for tests that are about neither timing nor variations."""
    file = folder / "quick.toml"
    off = "".join(f"{name} = false\n" for name in ("padding", "noncontiguous", "hard_inputs", "neighbours", "restart"))
    file.write_text(
        "[timing]\nsteps = 5\nprocesses = 1\nscaling_tolerance = 1e9\n[run]\nthreads = 1\n"
        f"[parity]\nsteps = 0\n[variations]\nlogging_every = 0\n{off}"
    )
    return file


def run_faults(out: Path, faults: dict[str, Fault], dtypes: tuple[str, ...], workload: Path = TINY) -> Record:
    """One trial in which each fault is a cell of its own, called ``<fault>-<dtype>``."""
    named = {f"{name}-{dtype}": fault for name, fault in faults.items() for dtype in dtypes}
    request = trial.Request(str(workload), out, target="cpu", dtypes=dtypes, requirements=quick(out.parent))
    running = trial.Trial(trial.check(request), lambda what, share: None, InProcess(named))
    running.prepare()
    references = [cell for cell in running.cells if cell.mode == "reference"]
    running.cells = references + [
        Cell(
            id=f"{name}-{dtype}",
            kind="single",
            mode="eager",
            dtype=dtype,
            cache="none",
            target="cpu",
            cases=references[0].cases,
            outcome=matrix.WAITING,
        )
        for name in faults
        for dtype in dtypes
    ]
    running.references()
    running.candidates()
    running.truth()
    return running.finish()
