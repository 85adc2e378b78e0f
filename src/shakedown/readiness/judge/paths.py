"""Where a step ran, what left the device and whether that was accepted, and whether the cache was in the claimed state."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Evidence, PathRow
from ..requirements import AcceptedFallback, Requirements
from .path_results import Acceptance, Cause, Fallback, HostShare, OperatorPath, PathSummary, PhaseSummary
from .results import Cell, Finding

_ORDER = ("data", "forward", "backward", "optimizer", "logging", "")
COMPOSITE = "composite"  # detail of an operator whose parts are counted as well
_NAMED_ONLY = "named by"
_ERROR = re.compile(r"^\w*(Error|Exception|Warning)\b")
_DATA = re.compile(r"depends? on (its |the )?(data|values)|only the device knows|depend on data|data.dependent")


def _place(phase: str) -> tuple[int, str]:
    return (_ORDER.index(phase) if phase in _ORDER else len(_ORDER), phase)


def cause(reason: str) -> Cause:
    """The class of cause that a fallback's reason belongs to."""
    if reason.startswith(_NAMED_ONLY):
        return "not told"
    if reason.startswith("profile "):
        return "profile rule"
    if reason == "no lowering" or reason.endswith(": no lowering"):
        return "lowering missing"
    if _DATA.search(reason):
        return "data-dependent"
    return "error" if _ERROR.match(reason) else "lowering incomplete"


def summarise(evidence: Evidence, requirements: Requirements | None = None) -> PathSummary:
    """Phases of the observed later step, its operators and fallbacks, and what the first step compiled or loaded.

    With `requirements`, each fallback is compared with those that are accepted.
    """
    found, first = evidence.paths, evidence.paths.first_step
    rows, attributed = found.later_step or [], found.attributed
    named = _observed(evidence, "fallbacks")
    counts = named and all(row.count is not None for row in rows if row.kind == "fallback")
    compiles = [row for row in first or [] if row.kind == "compile"]
    fresh = [row for row in compiles if row.detail != "persistent-cache"]
    loaded = [row for row in compiles if row.detail == "persistent-cache"]
    sees = first is not None
    return PathSummary(
        source=found.source,
        phases=_phases(rows, attributed, counts, _observed(evidence, "bytes moved")),
        fallbacks=_fallbacks(rows, attributed, requirements) if named else None,
        compiled=_total(fresh) if sees else None,
        compile_seconds=_seconds(fresh) if sees else None,
        loaded=_total(loaded) if sees else None,
        load_seconds=_seconds(loaded) if sees else None,
        operators=None if attributed is None else _operators(attributed),
        on_host=_share(evidence, named),
        unobservable=found.unobservable,
    )


def _observed(evidence: Evidence, kind: str) -> bool:
    """Whether the target let it be seen. An account that says neither yes nor no has seen nothing."""
    paths = evidence.paths
    return kind not in paths.unobservable and (paths.first_step is not None or bool(paths.unobservable))


def _total(rows: Iterable[PathRow]) -> int:
    return sum(row.count for row in rows if row.count is not None)


def _seconds(rows: Iterable[PathRow]) -> float:
    return sum(row.seconds for row in rows if row.seconds is not None)


def _phases(
    rows: list[PathRow], attributed: list[PathRow] | None, counts: bool, sees_bytes: bool
) -> list[PhaseSummary]:
    shown = {row.phase for row in rows if row.kind in ("execute", "fallback", "transfer")}
    result = []
    for phase in sorted(shown, key=_place):
        here = [row for row in rows if row.phase == phase]
        ran = [row for row in here if row.kind == "execute" and row.where == "device" and row.detail != COMPOSITE]
        host = None if attributed is None else [row for row in attributed if row.phase == phase and _on_host(row)]
        result.append(
            PhaseSummary(
                phase=phase or "outside",
                executed=_total(ran),
                distinct=len({row.name for row in ran}),
                fallbacks=_total(row for row in here if row.kind == "fallback") if counts else None,
                # What a fallback moves is among the transfers: counting both would count it twice.
                moved_bytes=sum(row.nbytes for row in here if row.kind == "transfer") if sees_bytes else None,
                host=None if host is None else _total(host),
            )
        )
    return result


def _on_host(row: PathRow) -> bool:
    """An operator on tensors of the CPU: it did not leave the device, it never was there."""
    return row.kind == "execute" and row.where == "host"


def _fallbacks(
    rows: list[PathRow], attributed: list[PathRow] | None, requirements: Requirements | None
) -> list[Fallback]:
    lines: dict[tuple[str, str], list[str]] = {}
    for row in attributed or []:
        if row.kind == "fallback" and row.line:
            known = lines.setdefault((row.name, row.phase), [])
            if row.line not in known:
                known.append(row.line)
    left = [row for row in rows if row.kind == "fallback"]
    accepted = _Accepted(requirements.fallbacks if requirements else [], left)
    result = []
    for row in sorted(left, key=lambda row: (_place(row.phase), row.name)):
        acceptance, because = accepted.of(row)
        result.append(
            Fallback(
                name=row.name,
                phase=row.phase,
                reason=row.detail,
                count=row.count,
                seconds=row.seconds,
                nbytes=None if row.count is None else row.nbytes,
                cause=cause(row.detail),
                lines=lines.get((row.name, row.phase), []),
                acceptance=acceptance,
                accepted_because=because,
            )
        )
    return result


class _Accepted:
    """The accepted fallbacks, with what one step made of each budget."""

    def __init__(self, entries: list[AcceptedFallback], rows: list[PathRow]) -> None:
        self._entries = entries
        self._rows = rows

    @staticmethod
    def _covers(entry: AcceptedFallback, row: PathRow) -> bool:
        bare = row.name if "::" in row.name else f"aten::{row.name}"
        return entry.operator in (bare, bare.partition(".")[0]) and entry.phase in ("", row.phase)

    def of(self, row: PathRow) -> tuple[Acceptance, str]:
        """Is this row accepted, and why; the budget is that of all rows that its entry covers."""
        entry = next((e for e in self._entries if self._covers(e, row)), None)
        if entry is None:
            return "not accepted", ""
        together = [other for other in self._rows if self._covers(entry, other)]
        if any(other.count is None for other in together):
            return "unchecked", f"{entry.reason} (calls cannot be counted here; {entry.calls} are accepted)"
        calls, nbytes = _total(together), sum(other.nbytes for other in together)
        over = []
        if calls > entry.calls:
            over.append(f"{_calls(calls)} a step, {entry.calls} accepted")
        if entry.nbytes and nbytes > entry.nbytes:
            over.append(f"{nbytes} bytes a step, {entry.nbytes} accepted")
        return ("over budget", "; ".join(over)) if over else ("accepted", entry.reason)


def _operators(rows: list[PathRow]) -> list[OperatorPath]:
    """Operators of the attributed step by phase, the slowest first. Composites are left out: their parts are there."""
    groups: dict[tuple[str, str, str, bool], list[PathRow]] = {}
    for row in rows:
        if row.kind in ("execute", "fallback") and row.detail != COMPOSITE:
            groups.setdefault((row.phase, row.name, row.where, row.kind == "fallback"), []).append(row)
    found = [
        OperatorPath(
            name=name,
            phase=phase,
            where=where,  # type: ignore[arg-type]
            fell_back=fell,
            count=None if any(row.count is None for row in of) else _total(of),
            seconds=None if all(row.seconds is None for row in of) else _seconds(of),
            nbytes=sum(row.nbytes for row in of),
            lines=list(dict.fromkeys(row.line for row in of if row.line)),
        )
        for (phase, name, where, fell), of in groups.items()
    ]
    return sorted(found, key=lambda one: (_place(one.phase), -(one.seconds or 0.0), one.name))


def _share(evidence: Evidence, sees_fallbacks: bool) -> HostShare:
    """How much of a step went into operators on the CPU.

    Fallbacks have their time in the step that was counted for free; operators on CPU tensors in the attributed one, where
    each is timed by itself. The step they are a share of is the counted one, or else the median of the timed steps.
    """
    paths = evidence.paths
    timed = evidence.timings.later.seconds
    whole = paths.later_seconds if paths.later_seconds else (median(timed) if timed else None)
    left = [row for row in paths.later_step or [] if row.kind == "fallback"]
    known = sees_fallbacks and all(row.seconds is not None for row in left)
    fallback_seconds = _seconds(left) if known else None
    on_host = [row for row in paths.attributed or [] if _on_host(row)]
    host_seconds = None if paths.attributed is None else _seconds(on_host)
    reason = ""
    if whole is None:
        reason = "no step was timed"
    elif host_seconds is None:
        reason = "no step was attributed to lines, so operators on CPU tensors are not known"
    elif not known:
        reason = paths.unobservable.get("fallbacks", "what fell back has no time on this target")
    nothing = not known and not _observed(evidence, "bytes moved")  # the target is the CPU
    share = certain = None
    if whole and not nothing and (known or host_seconds is not None):
        longer = max(0.0, whole - median(timed)) if timed else 0.0
        share = min(1.0, ((fallback_seconds or 0.0) + (host_seconds or 0.0)) / whole)
        undisturbed = max(0.0, (fallback_seconds or 0.0) - longer)
        certain = min(1.0, (undisturbed + (host_seconds or 0.0)) / (whole - longer))
    return HostShare(
        step_seconds=whole,
        fallback_seconds=fallback_seconds,
        host_seconds=host_seconds,
        share=share,
        certain=certain,
        at_least=bool(reason),
        reason=reason,
    )


def _found_in(evidence: Evidence, cell: Cell, case: str, requirements: Requirements) -> list[Finding]:
    summary = summarise(evidence, requirements)
    said = []
    for one in summary.fallbacks or []:
        if one.acceptance == "accepted":
            continue
        where = f"{one.name} ran on the CPU in phase {one.phase or 'outside'}"
        times = "an unknown number of calls" if one.count is None else f"{_calls(one.count)}, {one.nbytes} bytes a step"
        lines = f", called at {', '.join(one.lines)}" if one.lines else ""
        status = {
            "not accepted": "the requirements do not accept it",
            "over budget": f"over its budget: {one.accepted_because}",
            "unchecked": f"accepted, with a budget that cannot be checked: {one.accepted_because}",
        }[one.acceptance]
        text = f"{where}: {times}{lines}; {one.cause}: {one.reason}; {status}"
        said.append(Finding(word="fallback", cell=cell.id, case=case, text=text, fails=False))
    if hidden := evidence.paths.unreported:
        names = ", ".join(f"{name} ({_calls(n)})" for name, n in sorted(hidden.items()))
        text = (
            f"{names} in one step: called on tensors of the device, whose own account says neither that they ran there nor "
            "that they fell back"
        )
        said.append(Finding(word="hidden-fallback", cell=cell.id, case=case, text=text, fails=True))
    share, limit = summary.on_host, requirements.budgets.fallback_share
    if share is not None and share.share is not None and share.share > limit:
        fails = share.certain is not None and share.certain > limit
        doubt = "" if fails else "; the step took longer than the timed ones, and a busy machine may be to blame"
        text = f"{_in_words(share)}; {limit:.0%} is the budget{doubt}"
        said.append(Finding(word="fallback-bound", cell=cell.id, case=case, text=text, fails=fails))
    return said


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _in_words(share: HostShare) -> str:
    parts = [
        f"{name} {seconds * 1e3:.3g} ms"
        for name, seconds in (("fallbacks", share.fallback_seconds), ("CPU tensors", share.host_seconds))
        if seconds is not None
    ]
    return (
        f"{'at least ' if share.at_least else ''}{share.share or 0:.0%} of a step of {(share.step_seconds or 0) * 1e3:.3g} ms "
        f"went into operators on the CPU ({', '.join(parts)})"
    )


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """``fallback``: what left the device and is not accepted, or is over its budget. ``fallback-bound``: operators on the
    CPU take more of a step than the budget allows. ``hidden-fallback``: operators of which the device says nothing.
    """
    said: list[Finding] = []
    for cell in cells:
        if cell.mode == "reference" or cell.target == "cpu":
            continue
        for case in cell.cases:
            path = root / "evidence" / cell.id / f"{case}.json"
            if not path.exists():
                continue
            try:
                evidence = ev.read(Evidence, path)
            except EvidenceError:
                continue  # judging the numbers names it
            said += _found_in(evidence, cell, case, requirements)
    return said


def cache_proof(cases: list[Evidence]) -> tuple[bool, str]:
    """Was the cache cold, or warm, as claimed? What the directory held before, and what was compiled or loaded."""
    if not cases:
        return False, "no evidence"
    cache = cases[0].cache
    if cache.state == "none":
        return False, cache.note or "no cache state claimed"
    summaries = [summarise(case) for case in cases]
    if any(s.compiled is None for s in summaries):
        return False, f"{cache.files_before} files before the process; the target does not tell hits from compilations"
    fresh, loaded = sum(s.compiled or 0 for s in summaries), sum(s.loaded or 0 for s in summaries)
    words = (
        f"{cache.files_before} files ({cache.bytes_before / 1e6:.1f} MB) before the process; "
        f"first steps compiled {fresh} programs and loaded {loaded}"
    )
    if cache.state == "cold":
        return cache.files_before == 0 and loaded == 0 and fresh > 0, words
    return cache.files_before > 0 and loaded > 0 and fresh == 0, words
