"""Identity, numbers, paths, graphs, starts and memory of two records, set side by side."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, Literal

from ..errors import EvidenceError
from ..evidence import printable, untrusted
from ..requirements import Numerics
from .results import (
    Difference,
    FallbackChange,
    GraphChange,
    Group,
    MarginChange,
    MemoryChange,
    StartChange,
    TensorChange,
)
from .sides import Opened, flat

_HOST = ("host", "platform", "cpu", "cores", "threads", "machine")
_SETTINGS = ("environment",)
# Of what may differ from process to process; folders, process numbers and how the family was found out are left out.
_BY_CELL: dict[str, Group] = {
    "family": "software",
    "faults": "settings",
    "backend": "software",
    "commits": "software",
    "profile": "settings",
    "deterministic": "settings",
    "matmul_precision": "settings",
}
NOT_RECORDED = "not recorded"
_GREW = 2.0  # times: rounding errors of one tensor differ by less between two correct builds of one library
_LISTED = 40


def identity(before: Opened, after: Opened) -> list[Difference]:
    """Every fact about host, software and settings that differs; those of single processes once for all that share it."""
    made = []
    one, other = (side.record.identity["fixed"] for side in (before, after))
    for key in dict.fromkeys((*one, *other)):
        group: Group = "host" if key in _HOST else "settings" if key in _SETTINGS else "software"
        made += [Difference(group=group, name=n, before=b, after=a) for n, b, a in _different(key, one, other)]
    where: dict[tuple[Group, str, str, str], list[str]] = {}
    # A device that was left alone says nothing of faults.
    first, second = (
        {cell: {"faults": "none"} | own for cell, own in side.record.identity["cells"].items()}
        for side in (before, after)
    )
    common = [cell for cell in first if cell in second]
    for cell in common:
        for key, group in _BY_CELL.items():
            for name, old, new in _different(key, first[cell], second[cell]):
                where.setdefault((group, name, old, new), []).append(cell)
    for (group, name, old, new), found in where.items():
        place = "" if len(found) == len(common) else f" ({found[0]}{_more(found)})"
        made.append(Difference(group=group, name=name + place, before=old, after=new))
    return sorted(made, key=lambda d: ("host", "software", "settings").index(d.group))


def _different(key: str, one: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Name and both values of what differs below `key`. Where one side never asked, that alone is said, and once."""
    old, new = (flat(side[key], key) if key in side else {} for side in (one, other))
    if not old or not new:
        known = f"recorded ({len(old or new)})"
        return [(key, known if old else NOT_RECORDED, known if new else NOT_RECORDED)] if old or new else []
    return [
        (name, old.get(name, ""), new.get(name, ""))
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def _more(found: list[str]) -> str:
    return f" and {len(found) - 1} more" if len(found) > 1 else ""


# --- numbers ------------------------------------------------------------------------------------------------------------


def margins(before: Opened, after: Opened) -> list[MarginChange]:
    """The worst tensor of every mode and precision that either record judged."""
    old, new = (_worst(side) for side in (before, after))
    return [
        MarginChange(
            mode=mode,
            dtype=dtype,
            before=(one := old.get((mode, dtype), (None, "")))[0],
            before_tensor=one[1],
            after=(other := new.get((mode, dtype), (None, "")))[0],
            after_tensor=other[1],
        )
        for mode, dtype in dict.fromkeys((*old, *new))
    ]


def _worst(side: Opened) -> dict[tuple[str, str], tuple[float, str]]:
    found: dict[tuple[str, str], tuple[float, str]] = {}
    for cell, result in side.cells.values():
        for case in result.cases:
            tensors, key = case.tensors, (cell.mode, cell.dtype)
            if tensors is not None and tensors.worst_margin >= found.get(key, (-1.0, ""))[0]:
                found[key] = tensors.worst_margin, f"{case.case} {tensors.worst_name}"
    return found


def tensors(before: Opened, after: Opened, demand: Numerics) -> tuple[list[TensorChange], str]:
    """Tensors that use twice as much of their allowance as before, and more than the share of it that counts for systematic
    errors (``numerics.material_share``): below that, rounding may do as it likes. And why they are not known, if so.
    """
    try:
        old, new = _vectors(before), _vectors(after)
    except EvidenceError as error:
        return [], printable(str(error))
    if old is None or new is None:
        missing = before if old is None else after
        return [], f"there is no vectors.json beside {missing.root / 'record.json'}"
    made = [
        TensorChange(
            cell=printable(cell),
            case=printable(case),
            tensor=printable(name),
            before=old[cell, case, name],
            after=value,
        )
        for (cell, case, name), value in new.items()
        if (cell, case, name) in old and value > demand.material_share and value > _GREW * old[cell, case, name]
    ]
    made.sort(key=lambda one: -one.after)
    return made[:_LISTED], f"{len(made) - _LISTED} more tensors got worse" if len(made) > _LISTED else ""


def _vectors(side: Opened) -> dict[tuple[str, str, str], float] | None:
    """Margin of every judged tensor; None where the file is not there."""
    path = side.path("vectors.json")
    if path is None:
        return None
    try:
        raw: dict[str, dict[str, list[dict[str, Any]]]] = untrusted.read_json(path)
        return {
            (cell, case, one["name"]): max(float(one["margin"]), float(one["row_margin"] or 0.0))
            for cell, cases in raw.items()
            for case, judged in cases.items()
            for one in judged
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvidenceError(f"{path} is not a readable list of tensors: {error}") from None


# --- paths and graphs ---------------------------------------------------------------------------------------------------


def fallbacks(before: Opened, after: Opened) -> tuple[list[FallbackChange], list[str]]:
    """Operators that fell back in one record only, where both could see them; and the modes where one could not."""
    old, new = (_fallbacks(side) for side in (before, after))
    made: dict[tuple[Literal["new", "gone"], str, str, str], list[str]] = {}
    blind = []
    for mode in [mode for mode in old if mode in new]:
        one, other = old[mode], new[mode]
        if one is None or other is None:
            blind.append(mode)
            continue
        for key, cause in other.items():
            if key not in one:
                made.setdefault(("new", *key, cause), []).append(mode)
        for key, cause in one.items():
            if key not in other:
                made.setdefault(("gone", *key, cause), []).append(mode)
    return [
        FallbackChange(change=change, name=name, phase=phase, cause=cause, modes=modes)
        for (change, name, phase, cause), modes in made.items()
    ], blind


def _fallbacks(side: Opened) -> dict[str, dict[tuple[str, str], str] | None]:
    """By mode: operator and phase with their cause; None where they could not be seen in one of its processes."""
    found: dict[str, dict[tuple[str, str], str] | None] = {}
    for cell, result in side.cells.values():
        for case in result.cases if cell.mode != "reference" else ():
            if case.paths is None:
                continue
            known = found.setdefault(cell.mode, {})
            if case.paths.fallbacks is None:
                found[cell.mode] = None
            elif known is not None:
                known |= {(one.name, one.phase): one.cause for one in case.paths.fallbacks}
    return found


def fallbacks_seen(side: Opened) -> int | None:
    """Distinct operators that fell back in any mode; None where they cannot be seen, or nothing ran."""
    seen = _fallbacks(side)
    if not seen or None in seen.values():
        return None
    return len({name for found in seen.values() for name, _ in found or {}})


def graphs(before: Opened, after: Opened) -> list[GraphChange]:
    """Counts that differ, of processes that both records compiled in."""
    old, new = (side.record.judgement.graphs for side in (before, after))
    made = []
    for cell in [cell for cell in old if cell in new]:
        one, other = old[cell], new[cell]
        for what, was, now in (
            ("graphs captured", one.captured, other.captured),
            ("graph breaks", _breaks(one.problems), _breaks(other.problems)),
            ("compiled again", one.compiled_again, other.compiled_again),
            ("calls that ran as written", one.ran_eager, other.ran_eager),
        ):
            if was != now:
                made.append(GraphChange(cell=cell, what=what, before=was, after=now))  # type: ignore[arg-type]
    return made


def _breaks(problems: Iterable[Any]) -> int:
    return sum(one.count for one in problems if one.kind == "capture")


def breaks_seen(side: Opened) -> int | None:
    """Graph breaks of the process that has most of them; None where nothing was compiled."""
    found = side.record.judgement.graphs
    return max((_breaks(one.problems) for one in found.values()), default=None)


# --- starts and memory --------------------------------------------------------------------------------------------------


def starts(before: Opened, after: Opened) -> list[StartChange]:
    """Cold and warm starts, those of both records side by side."""
    old, new = (_starts(side) for side in (before, after))
    return [
        StartChange(
            mode=mode,
            dtype=dtype,
            case=case,
            cache=cache,
            before=median(one) if (one := old.get((mode, dtype, case, cache), [])) else None,
            before_processes=len(one),
            after=median(other) if (other := new.get((mode, dtype, case, cache), [])) else None,
            after_processes=len(other),
        )
        for mode, dtype, case, cache in dict.fromkeys((*old, *new))
    ]


def _starts(side: Opened) -> dict[tuple[str, str, str, Literal["cold", "warm", "none"]], list[float]]:
    return {
        (one.mode, one.dtype, one.case, start.cache): start.setups
        for one in side.record.judgement.timings
        for start in one.starts
    }


def memory(before: Opened, after: Opened) -> list[MemoryChange]:
    """The largest figure of every mode, precision and case, on device and host. No difference where the meters differ."""
    old, new = (_memory(side) for side in (before, after))
    made = []
    for key in dict.fromkeys((*old, *new)):
        (one, meters), (other, theirs) = old.get(key, (None, set())), new.get(key, (None, set()))
        if one is None and other is None:
            continue
        why = ""
        if one is not None and other is not None and meters != theirs:
            why = f"not of one kind: {_named(meters)} before, {_named(theirs)} after"
        mode, dtype, case, what = key
        made.append(MemoryChange(mode=mode, dtype=dtype, case=case, what=what, before=one, after=other, why=why))
    return made


_Span = tuple[str, str, str, Literal["device", "host"]]


def _memory(side: Opened) -> dict[_Span, tuple[int | None, set[str]]]:
    found: dict[_Span, tuple[int | None, set[str]]] = {}
    for one in side.record.judgement.memory:
        if one.cell not in side.cells:
            continue
        cell = side.cells[one.cell][0]
        device = max((v for v in (one.device, one.device_overlapped) if v is not None), default=None)
        for what, value, meter in (("device", device, one.device_meter), ("host", one.host, one.host_meter)):
            key: _Span = (cell.mode, cell.dtype, one.case, what)  # type: ignore[assignment]
            most, meters = found.get(key, (None, set()))
            if value is not None:
                found[key] = max(most or 0, value), meters | {meter.kind}
    return found


def _named(meters: set[str]) -> str:
    return ", ".join(sorted(meters)) or "nothing"
