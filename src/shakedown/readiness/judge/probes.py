"""What probes and canaries say: operators that differ, neighbours that will, precisions that are not there."""

from __future__ import annotations

from pathlib import Path

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence.files import Frozen
from ..evidence.probes import CallProbe, Canary, Probes
from ..requirements import Requirements
from .contracts import base_name
from .results import Cell, Finding

UNCHANGED = "same"
LARGEST_INT32 = 2**31 - 1


class CanaryResult(Frozen):
    """The word on one canary: match, wrong, refused, precision-blocked(...), or flushes-denormals."""

    name: str
    operation: str
    word: str
    text: str


class VariationResult(Frozen):
    """How many probes of one variation came out how. ``refused`` counts errors that the CPU raises as well."""

    variation: str
    matches: int
    differs: int
    refused: int
    refused_only_here: int
    accepted_only_here: int
    ended_process: int
    untested: int


class ProbeSummary(Frozen):
    """One probe process for the report."""

    cell: str
    mode: str
    dtype: str
    case: str
    distinct: int
    chosen: int
    processes: int
    reason: str
    variations: list[VariationResult]
    canaries: list[CanaryResult]
    not_tested: dict[str, str]


def verdict(canary: Canary) -> tuple[str, str]:
    """The fixed word for a canary's answer, and a sentence."""
    judges = {"int64": _int64, "float64": _float64, "denormals": _denormals}
    if canary.found == canary.expected and not canary.error:
        return "match", "every value is right"
    return judges.get(canary.name, _exact)(canary)


def _exact(canary: Canary) -> tuple[str, str]:
    if canary.error:
        return "refused", canary.error
    if canary.name.startswith("narrowing") and canary.found == canary.without:
        return "wrong", "output equals the un-rounded input: narrowing cast removed"
    return "wrong", f"{_first_difference(canary)}"


def _int64(canary: Canary) -> tuple[str, str]:
    if canary.error:
        return "precision-blocked(int64)", f"refused: {canary.error}"
    if len(canary.found) == len(canary.expected) == len(canary.without):
        triples = zip(canary.found, canary.expected, canary.without, strict=True)
        if all(found in (right, narrow) or _low(found) == _low(right) for found, right, narrow in triples):
            return "precision-blocked(int64)", f"high half lost: {_first_difference(canary)}"
    return "wrong", _first_difference(canary)


def _low(text: str) -> int | None:
    """The low 32 bits of an integer that was written out; None where it is not one."""
    try:
        return int(text) & 0xFFFFFFFF
    except ValueError:
        return None


def _float64(canary: Canary) -> tuple[str, str]:
    if canary.error:
        return "precision-blocked(float64)", f"refused with an error: {canary.error}"
    if canary.found == canary.without:
        said = f"with a warning: {canary.warnings[0]}" if canary.warnings else "silently: no error and no warning"
        return "precision-blocked(float64)", f"computed as float32, {said}; {_first_difference(canary)}"
    return "wrong", _first_difference(canary)


def _denormals(canary: Canary) -> tuple[str, str]:
    if canary.error:
        return "refused", canary.error
    if all(found in (right, "0.0") for found, right in zip(canary.found, canary.expected, strict=False)):
        return "flushes-denormals", "numbers below the least normal one are taken for zero"
    return "wrong", _first_difference(canary)


def _first_difference(canary: Canary) -> str:
    if len(canary.found) != len(canary.expected):
        return f"{len(canary.found)} values, not {len(canary.expected)}"
    number, (found, right) = next(
        (i, pair) for i, pair in enumerate(zip(canary.found, canary.expected, strict=True)) if pair[0] != pair[1]
    )
    return f"value {number} is {found}, not {right}"


def differs(probe: CallProbe) -> str:
    """What is different on the device, in words; empty where nothing is, or where it is not known."""
    if probe.outcome in ("crashed", "hung"):
        return f"{probe.outcome}: {probe.reason}"
    if probe.outcome == "device-raised":
        return f"raises only on the device: {probe.device_error}"
    return "; ".join(f"output {c.output}: {c.text}" for c in probe.comparisons if c.margin > 1)


def read(root: Path, cell: Cell) -> Probes | None:
    """The probes of `cell`, None where its process left none. Raises :class:`EvidenceError` on a damaged file."""
    path = root / "evidence" / cell.id / "probes.json"
    return ev.read(Probes, path) if path.exists() else None


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """Findings of every probe process, the ones that fail first in each."""
    found: list[Finding] = []
    for cell in cells:
        if cell.kind != "probe":
            continue
        try:
            document = read(root, cell)
        except EvidenceError as error:
            found.append(Finding(word="untested(probes)", cell=cell.id, text=str(error), fails=False))
            continue
        if document is None:
            reason = cell.outcome.reason or "the process left no probes"
            found.append(Finding(word="untested(probes)", cell=cell.id, text=reason, fails=False))
            continue
        if document.reason:
            found.append(Finding(word="untested(probes)", cell=cell.id, text=document.reason, fails=False))
        mine = [*_operators(document), *_canaries(document, requirements), *_orders(document)]
        found += sorted(mine, key=lambda finding: not finding.fails)
    return found


def _operators(document: Probes) -> list[Finding]:
    """One finding for each unchanged call that differs, and one for each operator whose neighbours do."""
    found = []
    neighbours: dict[str, list[CallProbe]] = {}
    already = set()
    for probe in document.probes:
        text = differs(probe)
        if not text:
            continue
        if probe.variation == UNCHANGED:
            already.add(probe.operator)
            found.append(_finding(document, "operator-differs", f"{_called(probe)}: {text}", fails=True))
        else:
            neighbours.setdefault(probe.operator, []).append(probe)
    for operator, probes in neighbours.items():
        if operator in already:
            continue  # what differs as it is, differs in every variation
        names = ", ".join(dict.fromkeys(p.variation for p in probes))
        first = f"{_called(probes[0])} with {probes[0].variation}: {differs(probes[0])}"
        found.append(_finding(document, "neighbour-differs", f"{base_name(operator)} differs with {names}; {first}"))
    return found


def _canaries(document: Probes, requirements: Requirements) -> list[Finding]:
    found = []
    for canary in document.canaries:
        word, text = verdict(canary)
        if word == "match":
            continue
        fails = word == "wrong"
        if word == "precision-blocked(float64)":
            used = document.float64_tensors
            fails = requirements.workload.float64 or bool(used)
            text = f"{text}; {_uses_of_float64(document)}"
            if requirements.workload.float64:
                text += "; the requirements demand float64"
        elif word == "precision-blocked(int64)":
            fails = document.largest_int64 > LARGEST_INT32
            text = f"{text}; the largest integer of the workload's step is {document.largest_int64}"
        found.append(_finding(document, word, f"{canary.operation}: {text}", fails=fails))
    return found


def _uses_of_float64(document: Probes) -> str:
    """Which tensors of the workload are float64, and why."""
    if not document.float64_tensors:
        return "no tensor of the workload is float64"
    listed = [f"{t.name} ({t.origin}{', ' + t.line if t.line else ''})" for t in document.float64_tensors]
    return f"float64 in the workload: {', '.join(listed)}"


def _orders(document: Probes) -> list[Finding]:
    return [
        _finding(
            document,
            "order-dependent",
            f"{site.operator} {f'at {site.line}' if site.line else f'in the {site.phase} pass'}: {site.why}; any legal answer "
            "passes here, so the workload's result may change from device to device",
        )
        for site in document.order_dependent
    ]


def _called(probe: CallProbe) -> str:
    where = f" at {probe.line}" if probe.line else f" in the {probe.phase} pass" if probe.phase else ""
    return f"{probe.operator}({probe.arguments}){where}"


def _finding(document: Probes, word: str, text: str, fails: bool = False) -> Finding:
    return Finding(word=word, cell=document.cell, case=document.case, text=text, fails=fails)


def summary(root: Path, cells: list[Cell]) -> list[ProbeSummary]:
    """Counts for the report, one for each probe process that left evidence. Damaged evidence is a finding, not a row."""
    found = []
    for cell in cells:
        try:
            document = read(root, cell) if cell.kind == "probe" else None
        except EvidenceError:
            continue
        if document is not None:
            found.append(summarise(document))
    return found


def summarise(document: Probes) -> ProbeSummary:
    """Counts of one process's probes by variation, and the word on each canary."""
    rows = []
    for variation in dict.fromkeys(probe.variation for probe in document.probes):
        mine = [probe for probe in document.probes if probe.variation == variation]
        returned = [probe for probe in mine if probe.outcome == "returned"]
        outcomes = [probe.outcome for probe in mine]
        rows.append(
            VariationResult(
                variation=variation,
                matches=sum(not differs(probe) for probe in returned),
                differs=sum(bool(differs(probe)) for probe in returned),
                refused=outcomes.count("both-raised"),
                refused_only_here=outcomes.count("device-raised"),
                accepted_only_here=outcomes.count("cpu-raised"),
                ended_process=outcomes.count("crashed") + outcomes.count("hung"),
                untested=outcomes.count("untested"),
            )
        )
    canaries = []
    for canary in document.canaries:
        word, text = verdict(canary)
        canaries.append(CanaryResult(name=canary.name, operation=canary.operation, word=word, text=text))
    untested = [probe for probe in document.probes if probe.outcome == "untested"]
    return ProbeSummary(
        cell=document.cell,
        mode=document.mode,
        dtype=document.dtype,
        case=document.case,
        distinct=document.distinct,
        chosen=document.chosen,
        processes=document.processes,
        reason=document.reason,
        variations=rows,
        canaries=canaries,
        not_tested={f"{p.operator} ({p.variation})": p.reason for p in untested if p.reason != document.reason},
    )
