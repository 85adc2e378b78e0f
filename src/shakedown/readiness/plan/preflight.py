"""May this workload be tried on this machine at all? One document that can be attached to a review, and a code per reason.

It asks two child processes, one that opens the device and says who it is, one that follows a training step without
running it, and compares what they say with the documented baseline and with the requirements. It measures nothing.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from .. import requirements, targets, workload
from ..errors import BadInput
from ..evidence.files import Frozen
from ..evidence.identity import Identity, Probe
from ..scan import Scan
from ..scan import scan as scan_source
from . import baseline as documented_baseline
from . import child
from .baseline import Deviation, Disagreement, RouteReport, Source
from .operators import Operators
from .stops import StopCondition, conditions

SCHEMA = "shakedown.preflight/1"
FAMILIES = ("native", "rehearsal", "legacy")
TIMEOUT_SECONDS = 180.0  # a first program of a compiler for accelerators takes up to minutes


class Code(IntEnum):
    """Exit codes. Reasons to stop are numbered by severity: of several, the lowest number decides."""

    READY = 0
    BAD_INPUT = 2
    DEVICE = 10
    FAMILY = 11
    UNSUPPORTED = 12
    MISSING = 13
    ROLLBACK = 14
    STOP_CONDITION = 15


MEANING = {
    Code.READY: "ready",
    Code.BAD_INPUT: "bad input: nothing was checked",
    Code.DEVICE: "the device is not visible",
    Code.FAMILY: "another package family than the one asked for",
    Code.UNSUPPORTED: "unsupported combination",
    Code.MISSING: "operators are missing (with --exit-on-missing), or their list could not be made",
    Code.ROLLBACK: "no rollback command",
    Code.STOP_CONDITION: "a stop condition is unanswered or triggered",
}


class Reason(Frozen):
    """One reason to stop."""

    code: int
    name: str
    text: str


class DeviceReport(Frozen):
    """Whether the device was opened by a fresh process and ran one operation; ``seconds`` include starting it."""

    visible: bool
    reason: str
    operation: str
    seconds: float | None


class Rollback(Frozen):
    """The one command that puts the service back. ``note`` is what is odd about it; nothing is run."""

    command: str
    note: str


class Preflight(Frozen):
    """The whole document. ``identity`` is None only where no process could say anything at all."""

    schema_version: str = SCHEMA
    created: str
    workload: str
    workload_sha256: str
    target: str
    family_asked: str
    rehearsal: bool
    baseline: str
    baseline_applies: bool
    identity: Identity | None
    deviations: list[Deviation]
    disagreements: list[Disagreement]
    sources: list[Source]
    route: RouteReport | None
    device: DeviceReport
    operators: Operators
    scan: Scan
    rollback: Rollback
    stop_conditions: list[StopCondition]
    reasons: list[Reason]
    exit_code: int

    @property
    def ready(self) -> bool:
        return self.exit_code == Code.READY


@dataclass(frozen=True)
class Request:
    """What was asked on the command line."""

    workload: str
    target: str = "neuron"
    requirements: Path | None = None
    family: str = ""
    profile: str | None = None
    exit_on_missing: bool = False
    ec2: bool = False
    timeout_seconds: float = TIMEOUT_SECONDS


def run(request: Request, progress: Callable[[str], None] = lambda what: None) -> Preflight:
    """Ask everything and judge it.

    Raises:
        BadInput: unknown workload, target, family or profile, wrong requirements, or a workload that cannot be loaded.
    """
    if request.family and request.family not in FAMILIES:
        raise BadInput(f"unknown package family {request.family!r}; choose among {', '.join(FAMILIES)}")
    target = targets.get(request.target)
    if request.family and target.name != "neuron":
        raise BadInput(f"--family tells apart what answers for the target neuron, not {target.name}")
    if not request.timeout_seconds > 0:
        raise BadInput(f"--timeout {request.timeout_seconds:g} leaves no time to ask")
    source = workload.resolve(request.workload)
    demand = requirements.load(request.requirements)
    progress("opening the device in a process of its own")
    probe, device = ask_device(request, source)
    progress("following one training step without running it")
    found = ask_operators(request, demand, source, probe)
    progress("reading the workload's own source")
    own = scan_source(source)
    progress("comparing with the documented baseline")
    return judge(request, source, demand, probe, device, found, own)


def ask_device(request: Request, source: workload.Source) -> tuple[Probe | None, DeviceReport]:
    """What a fresh process says of the target's device and of itself; None where it could not say anything."""
    job = {"target": request.target, "workload": str(source.path), "ec2": request.ec2}
    ended = child.ask("shakedown.readiness.observe.probe", job, request.timeout_seconds)
    probe = Probe.model_validate_json(ended.answer) if ended.answer else None
    if probe is None:
        reason = ended.reason or "the process ended well and left no answer"
        return None, DeviceReport(visible=False, reason=reason, operation="", seconds=None)
    # A process that died after its first answer has not opened the device; one that died while ending has.
    visible = bool(probe.opened)
    reason = probe.reason if probe.opened is not None else ended.reason or probe.reason
    return probe, DeviceReport(visible=visible, reason=reason, operation=probe.operation, seconds=probe.seconds)


def ask_operators(
    request: Request, demand: requirements.Requirements, source: workload.Source, probe: Probe | None
) -> Operators:
    """The operators of a step and where each would run. Raises :class:`BadInput` where the workload cannot be loaded."""
    if request.target != "neuron":
        return Operators(unknown=f"support is only documented for the target neuron, not for {request.target}")
    # Beside AWS's package the embedded device's own table says nothing; the release's documented limits do.
    vendor = probe is not None and probe.identity.family.word in ("native", "legacy")
    job: dict[str, Any] = {
        "name": source.name,
        "path": str(source.path),
        "sha256": source.sha256,
        "case": f"{demand.cases[0].size}x{demand.cases[0].length}" if demand.cases else "",
        "dtypes": [workload.parse_dtype(name) for name in demand.workload.dtypes],
        "accepted": [entry.model_dump() for entry in demand.fallbacks],
        "profile": request.profile or ("neuron-2.33" if vendor else None),
    }
    ended = child.ask("shakedown.readiness.plan.operators", job, request.timeout_seconds)
    if ended.answer is None:
        return Operators(unknown=ended.reason or "the process ended well and left no answer")
    found = Operators.model_validate_json(ended.answer)
    if found.bad_input:
        raise BadInput(found.unknown)
    return found


def judge(
    request: Request,
    source: workload.Source,
    demand: requirements.Requirements,
    probe: Probe | None,
    device: DeviceReport,
    found: Operators,
    own: Scan,
) -> Preflight:
    """Everything that follows from the answers; asks nothing."""
    matrix = documented_baseline.matrix()
    applies = request.target == "neuron"
    identity = probe.identity if probe is not None else None
    compared = applies and identity is not None
    documented = sorted({package.torch for package in matrix.package}) if applies else []
    # A note of the scan (an autograd function of plain PyTorch) is for the reviewer and nothing that stops.
    seen = [hit.kernel for hit in own.hits if hit.kernel and hit.severity != "note"]
    kernels = dict.fromkeys([*found.own, *seen])
    answers = conditions(demand.operation, demand.kernels, tuple(kernels), documented)
    rollback = _rollback(demand.operation.rollback)
    deviations = documented_baseline.deviations(identity, matrix) if compared and identity is not None else []
    route = documented_baseline.route(identity, matrix) if compared and identity is not None else None
    reasons = [
        *_device_reasons(request, device),
        *_family_reasons(request, identity),
        *_combination_reasons(identity, deviations, route),
        *_missing_reasons(request, found),
        *_rollback_reasons(rollback),
        *(_reason(Code.STOP_CONDITION, f"{c.name}: {c.text}") for c in answers if c.stops),
    ]
    return Preflight(
        created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        workload=source.name,
        workload_sha256=source.sha256,
        target=request.target,
        family_asked=request.family,
        rehearsal=identity is not None and identity.family.word == "rehearsal",
        baseline=f"{matrix.release}, {matrix.dated:%d %B %Y}",
        baseline_applies=applies,
        identity=identity,
        deviations=deviations,
        disagreements=matrix.disagreement if applies else [],
        sources=matrix.source if applies else [],
        route=route,
        device=device,
        operators=found,
        scan=own,
        rollback=rollback,
        stop_conditions=answers,
        reasons=sorted(reasons, key=lambda reason: reason.code),
        exit_code=min((reason.code for reason in reasons), default=int(Code.READY)),
    )


def _reason(code: Code, text: str) -> Reason:
    return Reason(code=int(code), name=MEANING[code].split(" (")[0], text=text)


def _device_reasons(request: Request, device: DeviceReport) -> list[Reason]:
    return [] if device.visible else [_reason(Code.DEVICE, f"{request.target}: {device.reason}")]


def _family_reasons(request: Request, identity: Identity | None) -> list[Reason]:
    """Without a family asked for, the native device and the rehearsal will do, where both witnesses say the same."""
    if request.target != "neuron" or identity is None:
        return []
    family = identity.family
    if request.family and family.word != request.family:
        return [_reason(Code.FAMILY, f"{request.family} was asked for, and this is {family.word}")]
    if not request.family and family.word == "legacy":
        text = "the device neuron belongs to AWS's native package, and the legacy one on PyTorch/XLA is installed"
        return [_reason(Code.FAMILY, text)]
    # Who asks for a family by name has decided between the two witnesses.
    if family.disagreement and not request.family:
        return [_reason(Code.FAMILY, f"{family.disagreement}; say with --family which one is meant")]
    return []


def _combination_reasons(
    identity: Identity | None, deviations: list[Deviation], route: RouteReport | None
) -> list[Reason]:
    """A rehearsal stands on other ground by intention, so for it deviations are named and stop nothing."""
    if identity is None:
        return []
    reasons = [_reason(Code.UNSUPPORTED, text) for text in identity.unmet]
    if identity.family.word not in ("native", "legacy"):
        return reasons
    for deviation in deviations:
        if deviation.grade == "unsupported":
            text = f"{deviation.what}: {deviation.here}, documented is {deviation.documented}"
            reasons.append(_reason(Code.UNSUPPORTED, text))
    if route is not None and route.documented is False:
        reasons.append(_reason(Code.UNSUPPORTED, f"way of installing: {route.in_use}: {route.reason}"))
    return reasons


def _missing_reasons(request: Request, found: Operators) -> list[Reason]:
    """A list that could not be made stops always, operators on it only where that was asked for."""
    if found.unknown and request.target == "neuron":
        return [_reason(Code.MISSING, f"the operators are not known: {found.unknown}")]
    if not request.exit_on_missing:
        return []
    reasons = []
    for row in found.unaccepted():
        where = f" at {row.lines[0]}" if row.lines else ""
        what = "runs nowhere" if row.verdict == "missing" else "runs on the CPU, which the requirements do not accept"
        reasons.append(_reason(Code.MISSING, f"{row.operator} in {row.phase}{where} {what}: {row.reason}"))
    # What was not seen cannot be called there.
    reasons += [_reason(Code.MISSING, f"the list of operators is incomplete: {stop}") for stop in found.stops]
    return reasons


def _rollback(command: str) -> Rollback:
    command = command.strip()
    if not command or "\n" in command:
        return Rollback(command=command, note="")
    try:
        first = (shlex.split(command) or [""])[0]
    except ValueError as error:
        return Rollback(command=command, note=f"a shell would not read it: {error}")
    there = shutil.which(first) is not None
    return Rollback(command=command, note="" if there else f"{first} is not a program of this machine")


def _rollback_reasons(rollback: Rollback) -> list[Reason]:
    if not rollback.command:
        return [_reason(Code.ROLLBACK, "operation.rollback is empty in the requirements")]
    if "\n" in rollback.command:
        lines = len(rollback.command.splitlines())
        return [_reason(Code.ROLLBACK, f"operation.rollback has {lines} lines; put them into a script: one command")]
    return []
