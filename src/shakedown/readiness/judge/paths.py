"""Where a step ran, summed by phase, and whether the cache was in the state that was claimed."""

from __future__ import annotations

from ..evidence import Evidence, PathRow
from .results import Fallback, PathSummary, PhaseSummary

_ORDER = ("data", "forward", "backward", "optimizer", "")


def _place(phase: str) -> tuple[int, str]:
    return (_ORDER.index(phase) if phase in _ORDER else len(_ORDER), phase)


def summarise(evidence: Evidence) -> PathSummary:
    """Phases of the observed later step, its fallbacks, and what the first step compiled or loaded."""
    rows, first = evidence.paths.later_step or [], evidence.paths.first_step
    sees = first is not None
    phases = [
        PhaseSummary(
            phase=phase or "outside",
            executed=_count(rows, "execute", phase),
            distinct=len({row.name for row in rows if row.kind == "execute" and row.phase == phase}),
            fallbacks=_count(rows, "fallback", phase) if sees else None,
            moved_bytes=sum(row.nbytes for row in rows if row.kind in ("transfer", "fallback") and row.phase == phase)
            if sees
            else None,
        )
        for phase in sorted({row.phase for row in rows if row.kind in ("execute", "fallback", "transfer")}, key=_place)
    ]
    fallbacks = [
        Fallback(
            name=row.name, phase=row.phase, reason=row.detail, count=row.count, seconds=row.seconds, nbytes=row.nbytes
        )
        for row in sorted(rows, key=lambda row: (_place(row.phase), row.name))
        if row.kind == "fallback"
    ]
    compiles = [row for row in first or [] if row.kind == "compile"]
    fresh = [row for row in compiles if row.detail != "persistent-cache"]
    loaded = [row for row in compiles if row.detail == "persistent-cache"]
    return PathSummary(
        source=evidence.paths.source,
        phases=phases,
        fallbacks=fallbacks if sees else None,
        compiled=sum(row.count for row in fresh) if sees else None,
        compile_seconds=sum(row.seconds for row in fresh) if sees else None,
        loaded=sum(row.count for row in loaded) if sees else None,
        load_seconds=sum(row.seconds for row in loaded) if sees else None,
    )


def _count(rows: list[PathRow], kind: str, phase: str) -> int:
    return sum(row.count for row in rows if row.kind == kind and row.phase == phase)


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
