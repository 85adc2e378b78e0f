"""The whole path, once: lock, snapshot, run every cell, recompute truth, judge, seal the record, write the report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import clock, matrix, record, report, requirements, scan, state, targets, workload
from .clock import Progress
from .errors import BadInput, EvidenceError, Interrupted, OutputExists, TrialError, WorkloadError
from .evidence import Evidence, read, sha256, write, write_atomic
from .judge.results import Cell, Outcome
from .runner import Executor, Launch, LocalProcesses, available_threads, frozen_environment
from .worker import RESTART_ROLES, WORKLOAD_AT_FAULT, Job


@dataclass(frozen=True)
class Request:
    """What was asked for. Empty tuples take what the requirements, or else the workload, say."""

    workload: str
    out: Path
    target: str = "neuron"
    modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    requirements: Path | None = None
    timeout_seconds: float | None = None
    quick: bool = False
    trace: bool = False


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
    demand = adjusted(requirements.load(request.requirements), request.quick, request.timeout_seconds)
    modes = request.modes or tuple(demand.workload.modes)
    unknown = [mode for mode in modes if mode not in targets.MODES]
    if unknown:
        raise BadInput(f"unknown mode {', '.join(unknown)}; choose among {', '.join(targets.MODES)}")
    if request.out.exists():
        if (request.out / "trial.json").exists() and not (request.out / "record.json").exists():
            raise OutputExists(
                f"{request.out} holds an unfinished trial and is left as it is; go on with `shakedown resume "
                f"{request.out}`, or give another --out"
            )
        raise OutputExists(f"{request.out} exists and is left as it is; give another --out")
    return Checked(
        request=request,
        source=source,
        target=target,
        modes=tuple(dict.fromkeys(modes)),
        dtypes=tuple(dict.fromkeys(workload.parse_dtype(name) for name in request.dtypes or demand.workload.dtypes)),
        cases=tuple(str(workload.Case.parse(case)) for case in request.cases),
        requirements=demand,
    )


def adjusted(demand: requirements.Requirements, quick: bool, timeout: float | None) -> requirements.Requirements:
    """The requirements with what the command line changes of them: a quick trial looks at numbers and paths of the plain
    cases and makes no claim about speed.
    """
    if timeout is not None:
        if timeout <= 0:
            raise BadInput(f"a timeout of {timeout} s leaves no time to run; give seconds above zero")
        demand = demand.model_copy(update={"run": demand.run.model_copy(update={"timeout_seconds": timeout})})
    if quick:
        timing = demand.timing.model_copy(update={"steps": min(demand.timing.steps, 10), "processes": 1, "attempts": 1})
        none = requirements.Variations(
            padding=False, noncontiguous=False, logging_every=0, hard_inputs=False, neighbours=False, restart=False
        )
        parity = demand.parity.model_copy(update={"steps": 0, "at": [], "tolerance": 0.0})
        demand = demand.model_copy(update={"timing": timing, "variations": none, "parity": parity})
    return demand


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
            raise Interrupted(f"{_said(error)}; {self._how_to_go_on()}") from None
        return self.go_on()

    def go_on(self) -> record.Record:
        """Run what has not run yet, recompute truth, judge."""
        with self.interruptible():
            self.candidates()
            self.truth()
        return self.finish()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Ctrl-C inside keeps what was measured, and says where it is and how to go on."""
        try:
            yield
        except (Interrupted, KeyboardInterrupt) as error:
            kept = f"evidence of the finished cells is in {self.root}/evidence"
            raise Interrupted(f"{_said(error)}; {kept}; {self._how_to_go_on()}") from None

    def _how_to_go_on(self) -> str:
        if (self.root / "trial.json").exists():
            return f"`shakedown resume {self.root}` goes on from there"
        return f"nothing was measured yet; what was written is in {self.root}"

    def prepare(self) -> None:
        """Make the directory, lock the requirements, make the snapshot; learn what the workload says about itself."""
        try:
            self.root.mkdir(parents=True)
        except OSError as error:
            raise BadInput(f"cannot make the output directory {self.root}: {error.strerror}") from None
        self.requirements_sha256 = requirements.lock(
            self.checked.requirements, self.root / "requirements.json", self.checked.request.requirements
        )
        shutil.copyfile(self.checked.source.path, self.root / "workload.py")
        write(scan.scan(self.checked.source), self.root / "scan.json")
        self.progress("snapshot", 0.0)
        ended = self._launch(
            "snapshot",
            "snapshot",
            cases=self.checked.cases,
            dtypes=self.checked.dtypes,
            target=self.checked.target.name,
        )
        if ended.status != "finished":
            raise WorkloadError(self._blame("the workload could not be built", ended))
        declared = state.declared(self.root)
        self.snapshot_sha256 = sha256(self.root / "snapshot" / "snapshot.json")
        source, quick = self.checked.source, self.checked.request.quick
        plain, dtypes = declared["plain"], list(self.checked.dtypes or declared["dtypes"])
        if (
            quick
        ):  # one shape, twice, so that re-use within a process is seen, and one precision, unless others were named
            plain = plain if self.checked.cases else plain[:1] * 2
            dtypes = dtypes if self.checked.dtypes else dtypes[:1]
        self.begin(
            state.new(
                workload={"name": source.name, "path": str(source.path), "sha256": source.sha256},
                target=self.checked.target.name,
                modes=list(self.checked.modes),
                dtypes=dtypes,
                plain=plain,
                varied=declared["varied"],
                quick=quick,
                trace=self.checked.request.trace,
                timeout_seconds=self.checked.request.timeout_seconds,
                requirements_sha256=self.requirements_sha256,
                snapshot_sha256=self.snapshot_sha256,
            )
        )
        write(self.state, self.root / "trial.json")

    def begin(self, known: state.State) -> None:
        """Plan the processes of `known`."""
        self.state = known
        self.requirements_sha256, self.snapshot_sha256 = known.requirements_sha256, known.snapshot_sha256
        self.cells = matrix.plan(
            self.checked.target,
            tuple(known.modes),
            tuple(known.dtypes),
            matrix.Shapes(tuple(known.plain), known.varied),
            self.checked.requirements,
            quick=known.quick,
            trace=known.trace,
        )

    def references(self) -> None:
        """The CPU in each precision. A workload that fails there in every one of them is bad input, not a result."""
        references = [cell for cell in self.cells if cell.mode == "reference" and cell.kind == "sequence"]
        self._run_cells([cell for cell in references if cell.outcome == matrix.WAITING])
        references = [cell for cell in self.cells if cell.mode == "reference" and cell.kind == "sequence"]
        nothing = not any(
            (self.root / "evidence" / c.id / f"{case}.json").exists() for c in references for case in c.cases
        )
        if nothing and all(cell.outcome.status == "crashed" for cell in references):
            raise WorkloadError(self._blame("the workload does not run on the CPU", references[0].outcome))

    def candidates(self) -> None:
        """Every process that has not run yet."""
        self._run_cells([cell for cell in self.cells if cell.outcome == matrix.WAITING])

    def finish(self) -> record.Record:
        """Judge, seal the record, write the report."""
        self.progress("judging", 0.98)
        for scratch in ("cache", "scratch"):  # compiled programs and checkpoints are not evidence
            shutil.rmtree(self.root / scratch, ignore_errors=True)
        sealed = record.seal(self.root, self._description(), self.cells)
        write_atomic(self.root / "report.md", report.markdown(sealed).encode())
        write_atomic(self.root / "report.html", report.html(sealed, self.root).encode(errors="backslashreplace"))
        return sealed

    def _run_cells(self, cells: list[Cell]) -> None:
        for cell in cells:
            index = self.cells.index(cell)
            ended = [c for c in self.cells if c.outcome.seconds]
            waiting = [c for c in self.cells if c.outcome == matrix.WAITING]
            done = len(self.cells) - len(waiting)
            left = clock.in_words(clock.remaining(waiting, ended))
            self.progress(f"{cell.id} ({done + 1} of {len(self.cells)}{left})", (1 + done) / (2 + len(self.cells)))
            self.cells[index] = cell.model_copy(update={"outcome": self._run_cell(cell)})
            state.keep(self.root, self.cells[index])

    def _run_cell(self, cell: Cell) -> Outcome:
        cache = None
        if cell.cache != "none":
            cache = self.root / "cache" / matrix.cache_of(cell)
            if cell.cache == "cold":
                shutil.rmtree(cache, ignore_errors=True)  # left by a process that was interrupted
            cache.mkdir(parents=True, exist_ok=True)
        roles = {"probe": ("probe",), "restart": RESTART_ROLES, "parity": ("parity",)}.get(cell.kind, ("candidate",))
        seconds = 0.0
        for role in roles:
            ended = self._launch_cell(cell, role, cache)
            seconds += ended.seconds
            if ended.status != "finished":
                break
        return ended.model_copy(update={"seconds": seconds})

    def _launch_cell(self, cell: Cell, role: str, cache: Path | None) -> Outcome:
        return self._launch(
            role,
            cell.id,
            cases=tuple(case.split("#")[0] for case in cell.cases),
            cache_folder=cache,
            target=cell.target,
            mode="eager" if cell.mode == "reference" else cell.mode,
            dtype=cell.dtype,
            cache=cell.cache,
            kind=cell.kind,
            reference=cell.mode == "reference",
        )

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
        mode = self.checked.target.environment(job.mode) if job.target == self.checked.target.name else {}
        environment = frozen_environment(available_threads(run.threads), cache_folder) | mode
        return self.executor.run(Launch(job, environment, self.root / "logs", run.timeout_seconds))

    def _blame(self, what: str, ended: Outcome) -> str:
        if ended.status == "crashed" and ended.exit_code == WORKLOAD_AT_FAULT:
            return ended.stderr_tail.strip().splitlines()[-1].partition(": ")[2]
        return f"{what} ({ended.reason})\n{ended.stderr_tail}".rstrip()

    def _description(self) -> dict[str, Any]:
        """What the record says about the trial as a whole."""
        target = self.checked.target
        return {
            "workload": self.checked.source.name,
            "workload_sha256": self.checked.source.sha256,
            "target": target.name,
            "modes": self.state.modes,
            "dtypes": self.state.dtypes,
            "cases": next(cell.cases for cell in self.cells if cell.mode == "reference")[: len(self.state.plain)],
            "varied": self.state.varied,
            "quick": self.state.quick,
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


def resume(
    root: Path,
    requirements_file: Path | None = None,
    progress: Progress = lambda what, share: None,
    executor: Executor | None = None,
) -> record.Record:
    """Go on with the unfinished trial in `root`: cells that have ended are not run again.

    Raises:
        BadInput: there is nothing to go on with, or the workload, the versions or `requirements_file` differ from those
            that the trial began with.
    """
    root = root.absolute()
    known = state.load(root)
    demand = requirements.unlock(root / "requirements.json")
    if requirements_file is not None:
        asked = adjusted(requirements.load(requirements_file), known.quick, known.timeout_seconds)
        if refused := requirements.changed(asked, root / "requirements.json"):
            raise BadInput(refused)
    source = workload.Source(known.workload["name"], Path(known.workload["path"]), known.workload["sha256"])
    request = Request(workload=str(source.path), out=root, target=known.target, quick=known.quick, trace=known.trace)
    going = Trial(
        Checked(request, source, targets.get(known.target), tuple(known.modes), tuple(known.dtypes), (), demand),
        progress,
        executor,
    )
    going.begin(known)
    going.cells = state.restored(root, going.cells)
    with going.interruptible():
        going.references()
    return going.go_on()


__all__ = ["Checked", "Progress", "Request", "Trial", "TrialError", "check", "resume", "run"]
