"""``shakedown parity``: a training script on the CPU, its twins, and the target; then the judgement.

Each run is a fresh process in the trial's frozen environment and leaves ``runs/<name>.json``; one that is there already is
not run again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import shakedown

from .. import evidence, targets
from ..errors import BadInput, EvidenceError, Interrupted, OutputExists
from ..evidence.losses import Losses, LossRole
from ..judge.formats import BITS, roundoff
from ..judge.parity import LEAST_TWINS, WINDOW, Rule, compare
from ..judge.parity_results import ParityResult
from ..judge.results import Outcome, Statement
from ..observe import identity
from ..record import FileEntry
from ..record.document import LABELS, Label
from ..runner import Executor, Launch, LocalProcesses, available_threads, frozen_environment
from ..worker import WORKLOAD_AT_FAULT
from . import contract
from .document import ALONE, NAME, Asked, ParityDocument, sealed
from .job import ScriptJob, Seen

COMMAND = (sys.executable, "-m", "shakedown.readiness.parity.launch")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    script: Path
    out: Path
    steps: int
    arguments: tuple[str, ...] = ()
    target: str = "neuron"
    twins: int = LEAST_TWINS
    dtype: str = "float32"
    limit: float | None = 0.02
    tolerance: float | None = None
    at: tuple[int, ...] = ()
    threads: int = 0
    timeout_seconds: float = 3600.0


@dataclass(frozen=True)
class _Part:
    """One run: its name, what it is for, where it runs, and what it is told to compute in."""

    name: str
    role: LossRole
    target: str
    compute: str
    twin: int = 0


def check(request: Request) -> Asked:
    """Refuse what cannot be run, in one line each; nothing is written."""
    script = request.script
    if not script.is_file():
        raise BadInput(f"there is no script {script}; give the path of a Python file")
    targets.get(request.target)
    if request.dtype not in BITS:
        raise BadInput(f"unknown precision {request.dtype!r}; choose among {', '.join(BITS)}")
    if request.steps < WINDOW:
        raise BadInput(
            f"--steps {request.steps} is less than one window of {WINDOW} steps, the least that can be judged"
        )
    if request.twins < LEAST_TWINS:
        raise BadInput(f"--twins {request.twins} is no envelope; give {LEAST_TWINS} or more")
    for name, value in (("--tolerance", request.tolerance), ("--limit", request.limit)):
        if value is not None and not value > 0:
            raise BadInput(f"{name} {value:g} allows nothing; give a share above zero, such as 0.02")
    if (request.tolerance is None) != (not request.at):
        raise BadInput("the plain rule is a tolerance at some steps: give both --tolerance and --at")
    return Asked(
        script=str(script.absolute()),
        script_sha256=evidence.sha256(script),
        arguments=list(request.arguments),
        target=request.target,
        dtype=request.dtype,
        steps=request.steps,
        twins=request.twins,
        threads=available_threads(request.threads),
        versions=identity.versions(),
        source_sha256=identity.source_sha256(),
        environment=identity.environment(),
    )


def run(request: Request, say: Say = lambda text: None, executor: Executor | None = None) -> ParityDocument:
    """All runs that are not there yet, judged; ``request.out`` holds ``parity.json`` afterwards.

    Raises:
        BadInput: the request, the script, or what it wrote cannot be used.
        Interrupted: stopped by the user; finished runs are kept, and the same command goes on.
    """
    asked = check(request)
    out = request.out.absolute()
    _claim(out, asked)
    runner = executor or LocalProcesses(COMMAND)
    finished: dict[LossRole, list[Losses]] = {}
    parts = list(_parts(request))
    died = ""
    for number, part in enumerate(parts, start=1):
        there = out / "runs" / f"{part.name}.json"
        if there.exists():
            say(f"{part.name} ({number} of {len(parts)}): was run before")
        else:
            say(f"{part.name} ({number} of {len(parts)})")
            try:
                died = _launch(request, asked, part, out, runner)
            except (Interrupted, KeyboardInterrupt):
                raise Interrupted(f"stopped during {part.name}; give the same command again to go on") from None
            if died:
                break
        finished.setdefault(part.role, []).append(_read(there))
    return _judged(request, asked, finished, died, out)


def _claim(out: Path, asked: Asked) -> None:
    """Take `out` for this request, or go on with it. Refused: somebody else's folder, or runs of another request."""
    there = out / "request.json"
    if not there.exists():
        if out.exists() and any(out.iterdir()):
            raise OutputExists(f"{out} exists and is left as it is; give another --out")
        try:
            evidence.write(asked, there)
        except OSError as error:
            raise BadInput(f"cannot write {there}: {error.strerror}") from None
        return
    try:
        before = evidence.read(Asked, there)
    except EvidenceError as error:
        raise BadInput(f"{error}; give another --out") from None
    differs = [name for name in Asked.model_fields if getattr(before, name) != getattr(asked, name)]
    if differs:
        raise OutputExists(
            f"{out} holds runs made under another {', '.join(differs).replace('_', ' ')}, which must not be mixed with these; "
            "give another --out"
        )


def _parts(request: Request) -> Iterator[_Part]:
    narrow = roundoff(request.dtype) > roundoff("float32")
    wide = "float32" if narrow else request.dtype
    yield _Part("reference", "reference", "cpu", wide)
    yield _Part("repeat", "repeat", "cpu", wide)
    for number in range(1, request.twins + 1):
        yield _Part(f"twin-{number}", "twin", "cpu", wide, number)
    if narrow:
        yield _Part("low", "low", "cpu", request.dtype)
    yield _Part("candidate", "candidate", request.target, request.dtype)


def _launch(request: Request, asked: Asked, part: _Part, out: Path, runner: Executor) -> str:
    """One run, to its document. Returns what became of the script where it failed on the target: that is a result."""
    written = out / "runs" / f"{part.name}.losses"
    written.parent.mkdir(parents=True, exist_ok=True)
    written.unlink(missing_ok=True)  # left by a run that was interrupted
    target = targets.get(part.target)
    device = target.device
    job = ScriptJob(
        role="parity_script",
        root=str(out),
        workload={"name": request.script.stem, "path": asked.script, "sha256": asked.script_sha256},
        cell=part.name,
        requirements_sha256="",
        target=part.target,
        dtype=request.dtype,
        reference=part.role != "candidate",
        arguments=request.arguments,
        part=part.role,
        twin=part.twin,
        compute=part.compute,
    )
    told = {contract.DEVICE: device, contract.LOSSES: str(written), contract.DTYPE: part.compute}
    environment = frozen_environment(asked.threads, None) | target.environment("eager") | told
    ended = runner.run(Launch(job, environment, out / "logs", request.timeout_seconds))
    if ended.status != "finished":
        if part.role == "candidate" and ended.exit_code != WORKLOAD_AT_FAULT:
            return f"the script {ended.status} on {part.target}: {ended.reason}; see {out}/logs/{part.name}.stderr"
        raise BadInput(_blame(part, ended, out))
    evidence.write(_losses(request, part, out), out / "runs" / f"{part.name}.json")
    return ""


def _blame(part: _Part, ended: Outcome, out: Path) -> str:
    if ended.exit_code == WORKLOAD_AT_FAULT and part.role == "candidate":
        return (ended.stderr_tail.strip().splitlines() or [ended.reason])[-1].partition(": ")[2]
    printed = f"what it printed is in {out}/logs/{part.name}.stderr"
    return f"the script does not run on the CPU ({part.name}: {ended.reason}); {printed}"


def _losses(request: Request, part: _Part, out: Path) -> Losses:
    """What the script wrote, checked against what was asked.

    Raises:
        BadInput: too few steps, another device, a twin that could not be nudged, or a reference that diverges.
    """
    found = contract.parse(out / "runs" / f"{part.name}.losses", part.name)
    seen = evidence.read(Seen, out / "runs" / f"{part.name}.seen.json")
    steps = sorted(found.losses)[: request.steps]
    if len(steps) < request.steps:
        raise BadInput(
            f"{part.name}: the script wrote {len(steps)} losses and --steps asks for {request.steps}; let it train longer "
            f"(its own arguments go after --), or ask for fewer"
        )
    own = targets.get(part.target).device
    devices = found.devices | set(seen.devices)
    if devices and own not in devices:
        raise BadInput(
            f"{part.name}: the script trained on {', '.join(sorted(devices))}, and {contract.DEVICE} said {own}: it must "
            "take its device from that variable"
        )
    if seen.nudge is not None and not seen.nudge.changed:
        raise BadInput(
            f"{part.name}: no weight was met that could be nudged; weights must belong to a torch.nn.Module that is called, or "
            "to a torch.optim.Optimizer, in the process of the script itself"
        )
    values = [found.losses[step] for step in steps]
    words = {step: str(value) for step, value in zip(steps, values) if evidence.finite(value) is None}
    if words and part.role == "reference":
        step, word = next(iter(words.items()))
        raise BadInput(
            f"{part.name}: the loss is {word} at step {step} on the CPU: there is nothing to compare with after it; mend the "
            f"script, or ask for --steps {step - 1} or fewer"
        )
    return Losses(
        name=part.name,
        role=part.role,
        device=part.target,
        dtype=request.dtype,
        steps=steps,
        losses=[evidence.finite(value) for value in values],
        not_finite=words,  # type: ignore[arg-type]
        events=[event for event in found.events if event.step <= steps[-1]],
        resolution=found.resolution,
        nudge=seen.nudge,
        devices=sorted(devices),
    )


def _read(path: Path) -> Losses:
    try:
        return evidence.read(Losses, path)
    except EvidenceError as error:
        raise BadInput(f"{error}; remove it to have it run again") from None


def _judged(
    request: Request, asked: Asked, finished: dict[LossRole, list[Losses]], died: str, out: Path
) -> ParityDocument:
    """The result, the documents it rests on, and the page about it."""
    (reference,), (repeat,) = finished["reference"], finished["repeat"]
    notes: list[str] = []
    low = next(iter(finished.get("low", [])), None)
    if low is not None and low.losses == reference.losses:
        notes.append(
            f"the script does not follow {contract.DTYPE}: its run in {request.dtype} has the losses of the reference, so what "
            "the CPU does in the declared precision is not known"
        )
        low = None
    rule = Rule(limit=request.limit, tolerance=request.tolerance, at=request.at)
    if died:
        result = ParityResult(
            dtype=request.dtype, device=request.target, parity="untested", passed=False, text=died, steps=0, twins=0
        )
    else:
        (candidate,) = finished["candidate"]
        if not candidate.devices:
            notes.append("where the script trained on the target could not be seen")
        result = compare(reference, finished["twin"], candidate, rule, low=low, repeat=repeat)
    result = result.model_copy(update={"mode": "script", "notes": [*notes, *result.notes]})
    label, text = _label(out, request.target)
    kinds: dict[Label, Any] = {"rehearsal": "rehearsal", "measurement": "measured", "self-check": "measured"}
    statements = [
        Statement(kind=kinds[label], text=f"loss parity over {result.steps} steps: {result.parity}: {result.text}"),
        Statement(kind="open", text=ALONE),
    ]
    document = sealed(
        ParityDocument(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            shakedown_version=shakedown.__version__,
            label=label,
            label_text=text,
            asked=asked,
            result=result,
            statements=statements,
            files={
                path.relative_to(out).as_posix(): FileEntry(nbytes=path.stat().st_size, sha256=evidence.sha256(path))
                for path in [out / "request.json", *sorted((out / "runs").glob("*"))]
            },
        )
    )
    evidence.write(document, out / NAME)
    return document


def _label(out: Path, target: str) -> tuple[Label, str]:
    """Rehearsal unless the process on `neuron` said that another product answered."""
    if target == "cpu":
        return "self-check", LABELS["self-check"]
    try:
        seen = evidence.read(Seen, out / "runs" / "candidate.seen.json")
    except EvidenceError:
        seen = None
    rehearsal = target == "neuron" and (seen is None or seen.family not in ("native", "legacy"))
    label: Label = "rehearsal" if rehearsal else "measurement"
    faults = "" if seen is None or not seen.faults else f"WRONG ON PURPOSE: the device had {', '.join(seen.faults)}. "
    return label, faults + LABELS[label]
