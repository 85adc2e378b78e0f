"""Check the request, look in as many processes as it takes, and write ``bisect.json``."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import evidence, record, targets, workload
from ..errors import BadInput, EvidenceError, OutputExists, RecordError
from ..judge.results import FAILED, Cell, CellResult, Outcome
from ..record import Record
from ..runner import Executor, Launch, LocalProcesses, available_threads, frozen_environment
from ..worker import WORKLOAD_AT_FAULT
from .job import BisectJob
from .result import Bisect, Stage, Verdict

Say = Callable[[str], None]
CHILD = (sys.executable, "-m", "shakedown.readiness.bisect.child")
_SECONDS_BETWEEN_LOOKS = 0.5
_LARGEST_VECTORS = 512 << 20  # bytes
_PATIENCE = 10  # localisation runs a step some dozen times; a trial's process has its limit for one cell


@dataclass(frozen=True)
class Request:
    """What is to be localised. No case: the cell's first failed one; no step: the first one that the trial found wrong."""

    record: Path
    cell: str
    out: Path
    case: str = ""
    step: int | None = None
    timeout_seconds: float | None = None


@dataclass(frozen=True)
class Checked:
    """A request whose every part was found to exist."""

    request: Request
    record: Record
    cell: Cell
    case: str
    step: int
    failed: bool
    source: workload.Source


def check(request: Request) -> Checked:
    """Refuse bad input with one message; nothing is written.

    Raises:
        BadInput: no finished record, no such cell, case or step, a workload that is not the record's, an existing output
            directory.
    """
    try:
        sealed = record.load(request.record)
    except RecordError as error:
        raise BadInput(f"{error}; only a finished trial can be localised (`shakedown resume` finishes one)") from None
    cells = {cell.id: cell for cell in sealed.cells}
    judged = {result.cell: result for result in sealed.judgement.cells}
    if request.cell not in cells:
        raise BadInput(f"there is no cell {request.cell!r} in {request.record}; choose among {', '.join(judged)}")
    cell, result = cells[request.cell], judged.get(request.cell)
    if cell.outcome.status == "untested":
        raise BadInput(f"cell {cell.id} was not run: {cell.outcome.reason}")
    if not cell.cases or result is None:
        raise BadInput(f"cell {cell.id} has no training step to look into; choose among {', '.join(judged)}")
    case, failed = _case(request.case, cell, result)
    steps = int(sealed.snapshot["steps"])
    step = request.step if request.step is not None else _step(request.record, cell.id, case)
    if not 1 <= step <= steps:
        raise BadInput(f"step {step} is not in the record; it has batches for steps 1 to {steps}")
    if request.out.exists():
        raise OutputExists(f"{request.out} exists and is left as it is; give another --out")
    return Checked(request, sealed, cell, case, step, failed, _source(request.record, sealed))


def _case(asked: str, cell: Cell, result: CellResult) -> tuple[str, bool]:
    if asked and asked not in cell.cases:
        raise BadInput(f"cell {cell.id} has no case {asked!r}; choose among {', '.join(cell.cases)}")
    failed = [c.case for c in result.cases if c.verdict in FAILED]
    case = asked or next(iter(failed), cell.cases[0])
    return case, case in failed


def _step(root: Path, cell: str, case: str) -> int:
    """The first step of which a tensor was found wrong; 1 where nothing was."""
    try:
        vectors = evidence.untrusted.read_json(root / "vectors.json", _LARGEST_VECTORS).get(cell, {}).get(case, [])
        steps = [int(v["name"].split("/")[0].removeprefix("step")) for v in vectors if v["findings"]]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return 1
    return min(steps, default=1)


def _source(root: Path, sealed: Record) -> workload.Source:
    """The workload's file: where the trial ran it if it still lies there unchanged (its own imports are found beside it),
    else the record's copy.
    """
    wanted = sealed.trial["workload_sha256"]
    kept = root / "workload.py"
    candidates = []
    try:
        named = evidence.untrusted.read_json(root / "trial.json")["workload"]["path"]
        candidates.append(Path(named))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a record that was moved without it still has its copy
    for path in [*candidates, kept]:
        if path.is_file() and evidence.sha256(path) == wanted:
            return workload.Source(sealed.trial["workload"], path.absolute(), wanted)
    raise BadInput(
        f"the workload changed: {kept} is not the file that the record was made with (SHA-256 {wanted[:16]}...)"
    )


def run(request: Request, say: Say = lambda text: None, executor: Executor | None = None) -> Bisect:
    """Localise; the directory ``request.out`` holds ``bisect.json``, and the runnable case where there is one."""
    checked = check(request)
    out = request.out.absolute()
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"cannot make the output directory {out}: {error.strerror}") from None
    runner = executor or LocalProcesses(CHILD)
    stages: list[Stage] = []
    mode = "eager" if checked.cell.mode == "reference" else checked.cell.mode
    for stage in dict.fromkeys(("eager", mode)):
        say(f"looking for it in {stage} mode on {checked.cell.target} ({checked.case}, step {checked.step})")
        stages.append(_look(checked, stage, out, runner, say))
        if stages[-1].verdict not in ("nothing",):
            break
    shutil.rmtree(out / "cache", ignore_errors=True)
    answer = _answer(checked, mode, stages)
    evidence.write(answer, out / "bisect.json")
    return answer


def _look(checked: Checked, stage: str, out: Path, executor: Executor, say: Say) -> Stage:
    """One process; what it left, or what became of it."""
    source, cell = checked.source, checked.cell
    job = BisectJob(
        role="bisect",
        root=str(checked.request.record.absolute()),
        workload={"name": source.name, "path": str(source.path), "sha256": source.sha256},
        cell=f"{cell.id}-{stage}" if stage != cell.mode else cell.id,
        requirements_sha256=checked.record.requirements_sha256,
        snapshot_sha256=checked.record.snapshot_sha256,
        target=cell.target,
        mode=stage,
        dtype=cell.dtype,
        stage=stage,
        case=checked.case,
        step=checked.step,
        out=str(out),
        suspected=checked.failed,
    )
    limits = checked.record.requirements.run
    cache = out / "cache"
    cache.mkdir(exist_ok=True)
    environment = frozen_environment(available_threads(limits.threads), cache) | targets.get(cell.target).environment(
        stage
    )
    seconds = checked.request.timeout_seconds or _PATIENCE * limits.timeout_seconds
    with _repeating(out / "logs" / f"{job.cell}.stdout", say):
        ended = executor.run(Launch(job, environment, out / "logs", seconds))
    if ended.status != "finished":
        return _ended(ended, stage)
    try:
        return evidence.read(Stage, out / f"{stage}.json")
    except EvidenceError as error:
        return Stage(mode=stage, verdict="died", text=str(error))


@contextmanager
def _repeating(log: Path, say: Say) -> Iterator[None]:
    """Say every line that a process writes to `log`, about when it writes it."""
    over = threading.Event()

    def follow() -> None:
        said = 0
        while True:
            last = over.wait(_SECONDS_BETWEEN_LOOKS)
            lines = log.read_text(errors="replace").splitlines(keepends=True) if log.exists() else []
            whole = [line.rstrip() for line in lines if line.endswith("\n")]
            for line in whole[said:]:
                say(line)
            said = max(said, len(whole))
            if last:
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _ended(ended: Outcome, stage: str) -> Stage:
    if ended.exit_code == WORKLOAD_AT_FAULT:
        raise BadInput(ended.stderr_tail.strip().splitlines()[-1].removeprefix("WorkloadError: "))
    return Stage(mode=stage, verdict="died", text=f"the process that looked {ended.status}: {ended.reason}")


def _answer(checked: Checked, mode: str, stages: list[Stage]) -> Bisect:
    last = stages[-1]
    verdict: Verdict = last.verdict
    text = last.text
    if verdict == "nothing":
        text = f"nothing to localise: {last.text}"
        if checked.failed:
            verdict = "not reproduced"
            text = f"the trial found this case wrong, and it is right here: {last.text}"
    elif last.mode != mode and verdict in ("located", "module"):
        text += f"; found in {last.mode} mode, which must be right before {mode} mode can be"
    if len(stages) > 1:
        text += "; eager mode on the same target is right"
    sealed, cell = checked.record, checked.cell
    return Bisect(
        record=str(checked.request.record),
        record_seal=sealed.seal,
        label=sealed.label,
        cell=cell.id,
        case=checked.case,
        step=checked.step,
        mode=cell.mode,
        dtype=cell.dtype,
        target=cell.target,
        workload_sha256=checked.source.sha256,
        verdict=verdict,
        text=text,
        stages=stages,
    )
