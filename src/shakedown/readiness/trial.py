"""The whole path, once: lock, snapshot, run every cell, recompute truth, judge, seal the record, write the report."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import record, report, requirements, targets, workload
from .errors import BadInput, EvidenceError, Interrupted, OutputExists, TrialError, WorkloadError
from .evidence import Evidence, read, sha256, write_atomic
from .judge.results import Cell, Outcome
from .judge.verdict import expand
from .runner import Executor, Launch, LocalProcesses, available_threads, frozen_environment
from .worker import WORKLOAD_AT_FAULT, Job

Progress = Callable[[str, float], None]  # (what runs now, share done so far)


@dataclass(frozen=True)
class Request:
    """What was asked for. Empty tuples take the workload's own cases and precisions."""

    workload: str
    out: Path
    target: str = "neuron"
    modes: tuple[str, ...] = ("eager", "compiled")
    dtypes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    requirements: Path | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True)
class Checked:
    """A request whose every part was found to exist, before anything is written."""

    request: Request
    source: workload.Source
    target: targets.Target
    modes: tuple[str, ...]
    dtypes: tuple[str, ...]
    cases: tuple[str, ...]
    requirements: requirements.Requirements


def check(request: Request) -> Checked:
    """Refuse bad input with one message. Nothing is written, no code of the workload runs."""
    source = workload.resolve(request.workload)
    target = targets.get(request.target)
    unknown = [mode for mode in request.modes if mode not in targets.MODES]
    if unknown:
        raise BadInput(f"unknown mode {', '.join(unknown)}; choose among {', '.join(targets.MODES)}")
    demand = requirements.load(request.requirements)
    if request.timeout_seconds is not None:
        if request.timeout_seconds <= 0:
            raise BadInput(f"a timeout of {request.timeout_seconds} s leaves no time to run; give seconds above zero")
        run = demand.run.model_copy(update={"timeout_seconds": request.timeout_seconds})
        demand = demand.model_copy(update={"run": run})
    if request.out.exists():
        raise OutputExists(f"{request.out} exists and is left as it is; give another --out")
    return Checked(
        request=request,
        source=source,
        target=target,
        modes=tuple(dict.fromkeys(request.modes)),
        dtypes=tuple(dict.fromkeys(workload.parse_dtype(name) for name in request.dtypes)),
        cases=tuple(str(workload.Case.parse(case)) for case in request.cases),
        requirements=demand,
    )


def plan(checked: Checked, dtypes: tuple[str, ...], cases: list[str]) -> list[Cell]:
    """The processes of the trial, in the order they run: the CPU first, then the target, cold before warm."""
    waiting = Outcome(status="untested", reason="the trial stopped before it")
    cells: list[Cell] = []

    def add(name: str, mode: Any, dtype: str, cache: Any, target: str, outcome: Outcome = waiting) -> None:
        cells.append(
            Cell(id=name, mode=mode, dtype=dtype, cache=cache, target=target, cases=expand(cases), outcome=outcome)
        )

    for dtype in dtypes:
        add(f"reference-{dtype}", "reference", dtype, "none", "cpu")
    for mode in (*checked.modes, *(m for m in targets.NOT_BUILT if m not in checked.modes)):
        for dtype in dtypes:
            if mode in targets.NOT_BUILT:
                reason = Outcome(status="untested", reason=targets.NOT_BUILT[mode])
                add(f"{mode}-{dtype}", mode, dtype, "none", checked.target.name, reason)
            elif checked.target.persistent_cache:
                for cache in ("cold", "warm"):
                    add(f"{mode}-{dtype}-{cache}", mode, dtype, cache, checked.target.name)
            else:
                add(f"{mode}-{dtype}", mode, dtype, "none", checked.target.name)
    return cells


class Trial:
    """One run in its own directory. Every finished process leaves its evidence there, whatever happens next."""

    def __init__(self, checked: Checked, progress: Progress, executor: Executor | None = None) -> None:
        self.checked = checked
        self.progress = progress
        self.executor = executor or LocalProcesses()
        self.root = checked.request.out.absolute()
        self.snapshot_sha256 = ""
        self.cells: list[Cell] = []

    def run(self) -> record.Record:
        """Run everything; return the sealed record. Raises :class:`BadInput` when the workload itself is at fault."""
        try:
            self.prepare()
            self.references()
        except WorkloadError:
            shutil.rmtree(self.root)  # nothing was measured, and this directory is ours: it did not exist before
            raise
        except (Interrupted, KeyboardInterrupt) as error:
            raise Interrupted(f"{_said(error)}; what was written so far is in {self.root}") from None
        try:
            self.candidates()
            self.truth()
        except (Interrupted, KeyboardInterrupt) as error:
            raise Interrupted(f"{_said(error)}; evidence of the finished cells is in {self.root}/evidence") from None
        return self.finish()

    def prepare(self) -> None:
        """Make the directory, lock the requirements, make the snapshot; learn what the workload says about itself."""
        try:
            self.root.mkdir(parents=True)
        except OSError as error:
            raise BadInput(f"cannot make the output directory {self.root}: {error.strerror}") from None
        self.requirements_sha256 = requirements.lock(self.checked.requirements, self.root / "requirements.json")
        shutil.copyfile(self.checked.source.path, self.root / "workload.py")
        self.progress("snapshot", 0.0)
        ended = self._launch("snapshot", "snapshot", cases=self.checked.cases)
        if ended.status != "finished":
            raise WorkloadError(self._blame("the workload could not be built", ended))
        declared = json.loads((self.root / "logs" / "declared.json").read_text())
        self.snapshot_sha256 = sha256(self.root / "snapshot" / "snapshot.json")
        self.dtypes = self.checked.dtypes or tuple(declared["dtypes"])
        self.shapes = tuple(declared["cases"])
        self.cells = plan(self.checked, self.dtypes, list(self.shapes))

    def references(self) -> None:
        """The CPU in each precision. A workload that fails there in every one of them is bad input, not a result."""
        for index, cell in enumerate(self.cells):
            if cell.mode == "reference":
                self._run_cell(index)
        references = [cell for cell in self.cells if cell.mode == "reference"]
        if all(cell.outcome.status == "crashed" for cell in references):
            raise WorkloadError(self._blame("the workload does not run on the CPU", references[0].outcome))

    def candidates(self) -> None:
        for index, cell in enumerate(self.cells):
            if cell.mode != "reference" and cell.outcome.reason not in targets.NOT_BUILT.values():
                self._run_cell(index)

    def finish(self) -> record.Record:
        """Judge, seal the record, write the report."""
        self.progress("judging", 0.98)
        shutil.rmtree(self.root / "cache", ignore_errors=True)  # compiled programs are not evidence
        sealed = record.seal(self.root, self._description(), self.cells)
        write_atomic(self.root / "report.md", report.markdown(sealed).encode())
        return sealed

    def _run_cell(self, index: int) -> None:
        cell = self.cells[index]
        self.progress(cell.id, (1 + index) / (2 + len(self.cells)))
        cache = None
        if cell.cache != "none":
            cache = self.root / "cache" / cell.id.rsplit("-", 1)[0]
            cache.mkdir(parents=True, exist_ok=True)
        ended = self._launch(
            "candidate",
            cell.id,
            cases=self.shapes,
            cache_folder=cache,
            target=cell.target,
            mode="eager" if cell.mode == "reference" else cell.mode,
            dtype=cell.dtype,
            cache=cell.cache,
        )
        self.cells[index] = cell.model_copy(update={"outcome": ended})
        self._share_equal_tensors(cell)

    def _share_equal_tensors(self, cell: Cell) -> None:
        """A warm process that repeats the cold one bit by bit need not fill the disk twice: one file, two names."""
        for case in cell.cases if cell.cache == "warm" else ():
            mine = self.root / "evidence" / cell.id / f"{case}.safetensors"
            other = self.root / "evidence" / cell.id.replace("-warm", "-cold") / f"{case}.safetensors"
            if mine.exists() and other.exists() and sha256(mine) == sha256(other):
                link = mine.with_suffix(".link")
                try:
                    os.link(other, link)
                    os.replace(link, mine)
                except OSError:
                    continue  # a file system without hard links keeps both copies

    def truth(self) -> None:
        """Recompute in float64 what each process saw, once for processes that saw the same bits."""
        self.progress("float64 truth", (1 + len(self.cells)) / (2 + len(self.cells)))
        subjects: dict[str, str] = {}
        for cell in self.cells:
            for case in cell.cases:
                path = self.root / "evidence" / cell.id / f"{case}.json"
                if path.exists():
                    try:
                        found = read(Evidence, path)
                    except EvidenceError:
                        continue  # judgement names it, and calls its case untested
                    subjects.setdefault(found.tensors_sha256, path.relative_to(self.root).as_posix())
        self.truth_outcome = self._launch("truth", "truth", subjects=tuple(subjects.values()))

    def _launch(self, role: str, name: str, cache_folder: Path | None = None, **fields: Any) -> Outcome:
        source = self.checked.source
        job = Job(
            role=role,
            root=str(self.root),
            workload={"name": source.name, "path": str(source.path), "sha256": source.sha256},
            cell=name,
            requirements_sha256=self.requirements_sha256,
            snapshot_sha256=self.snapshot_sha256,
            **fields,
        )
        run = self.checked.requirements.run
        environment = frozen_environment(available_threads(run.threads), cache_folder)
        return self.executor.run(Launch(job, environment, self.root / "logs", run.timeout_seconds))

    def _blame(self, what: str, ended: Outcome) -> str:
        if ended.status == "crashed" and ended.exit_code == WORKLOAD_AT_FAULT:
            return ended.stderr_tail.strip().splitlines()[-1].removeprefix("WorkloadError: ")
        return f"{what} ({ended.reason})\n{ended.stderr_tail}".rstrip()

    def _description(self) -> dict[str, Any]:
        """What the record says about the trial as a whole."""
        target = self.checked.target
        return {
            "workload": self.checked.source.name,
            "workload_sha256": self.checked.source.sha256,
            "target": target.name,
            "modes": list(self.checked.modes),
            "dtypes": list(self.dtypes),
            "cases": expand(list(self.shapes)),
            "compiled_means": f"torch.compile(forward and loss, backend={target.backend!r}, dynamic=False): "
            f"{target.backend_note}; the backward pass belongs to it, the optimizer stays outside",
            "step_means": "batch to the device, forward, loss, backward, optimizer step; " + targets.completion(target),
            "truth": self.truth_outcome.model_dump(),
        }


def _said(error: BaseException) -> str:
    return str(error) or "stopped between two processes"


def run(
    request: Request, progress: Progress = lambda what, share: None, executor: Executor | None = None
) -> record.Record:
    """Check `request`, run it, return the record."""
    return Trial(check(request), progress, executor).run()


__all__ = ["Checked", "Request", "Trial", "TrialError", "check", "plan", "run"]
