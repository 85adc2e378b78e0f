"""Sections about the least that a step can take on a published instance. Every figure here is a projection or documented."""

from __future__ import annotations

from ..judge.projected import BatchLimit, Bound, CaseProjection, Projection, Transfer
from ..record import Record
from .words import Section, Table, seconds, share, side_of, size

_LABEL = "PROJECTION, not a measurement"


def brief(record: Record) -> Section:
    """One row for each mode and precision, on one logical core, for the first case."""
    found = record.judgement.projection
    if found is None:
        return Section("Projection")
    first = record.trial["cases"][0]
    rows = []
    for case in found.cases:
        bound = next(b for b in case.bounds if b.unit == "logical core")
        if case.case == first:
            rows.append(
                (side_of(case.mode, case.dtype), _time(bound.seconds), bound.roof or "–", _needs(case), _fits(bound))
            )
    said = [
        f"{_LABEL}: case {first} on one logical core of {found.instance} ({found.chip}), from counted work and figures "
        f"published up to {found.dated}. A real step takes longer."
    ]
    header = ("mode", "a step, at least", "bound by", "memory, at least", "fits")
    return Section("Projection", said if rows else [], [Table(header, rows)])


def section(record: Record) -> Section:
    """All of it."""
    found = record.judgement.projection
    return Section("Projection in full") if found is None else of(found)


def of(found: Projection) -> Section:
    """The bounds of every case, what they rest on, and what is not projected."""
    said = [
        f"{_LABEL}: the least that a step can take on {found.instance} ({found.chips} x {found.chip}, {found.logical_cores} "
        f"logical cores), from counted work and figures published up to {found.dated}. Nothing was measured there.",
        *(f"Not published: {text}." for text in found.missing),
        *(f"Not projected: {text}." for text in found.not_projected),
        *(f"Assumed: {text}" for text in found.assumptions),
        *_figures(found),
    ]
    return Section(
        f"Projection on {found.instance}",
        said,
        [
            _bounds(found),
            _roofs(found),
            _memory(found),
            _limits(found.batch_limits),
            _transfers(found),
            _work(found),
            _unseen(found),
        ],
    )


def _bounds(found: Projection) -> Table:
    rows = [
        (
            side_of(case.mode, case.dtype),
            case.case,
            bound.unit,
            _time(bound.seconds) if bound.seconds is not None else f"none: {bound.reason}",
            _time(bound.whole_step_seconds),
            _time(bound.as_fused_seconds),
            bound.roof or "–",
        )
        for case in found.cases
        for bound in case.bounds
    ]
    header = ("mode", "case", "on one", "a step, at least", "whole step, at least", "as fused here", "bound by")
    return Table(header, rows)


def _roofs(found: Projection) -> Table:
    rows = [
        (
            side_of(case.mode, case.dtype),
            case.case,
            bound.unit,
            "–" if bound.share_bound_by_memory is None else share(bound.share_bound_by_memory),
            "–" if bound.intensity is None else f"{bound.intensity:.3g}",
            "–" if bound.ridge is None else f"{bound.ridge:.3g}",
            ", ".join(f"{phase or 'no phase'} {_time(value)}" for phase, value in bound.by_phase.items()) or "–",
        )
        for case in found.cases
        for bound in case.bounds
    ]
    header = ("mode", "case", "on one", "of it bound by memory", "operations a byte", "ridge", "by phase, at least")
    return Table(header, rows)


def _memory(found: Projection) -> Table:
    rows = []
    for case in found.cases:
        need = case.memory
        if need is not None:
            parts = [
                (name, getattr(need, name)) for name in ("parameters", "gradients", "optimizer", "buffers", "batch")
            ]
            rows.append(
                (
                    side_of(case.mode, case.dtype),
                    case.case,
                    ", ".join(f"{name} {size(value)}" for name, value in parts if value),
                    f"{size(need.peak_live)} ({need.meter.partition(':')[0]})",
                    size(need.largest_temporaries),
                    size(need.needed),
                    *(f"{_fits(bound)}" for bound in case.bounds),
                )
            )
    units = [f"fits in one {unit.name}" for unit in found.units]
    return Table(("mode", "case", "kept", "alive", "temporaries here", "needed, at least", *units), rows)


def _work(found: Projection) -> Table:
    rows = [
        (
            side_of(case.mode, case.dtype),
            case.case,
            f"{case.programs} in {case.calls} calls",
            ", ".join(f"{dtype} {_amount(count)}" for dtype, count in case.matrix_flops.items()) or "none",
            "–" if case.flops is None else _amount(case.flops),
            "–" if case.transcendentals is None else _amount(case.transcendentals),
            _amount(case.least_bytes),
            "–" if case.bytes_accessed is None else _amount(case.bytes_accessed),
            ", ".join(f"{name} ({count})" for name, count in case.unanalysed.items()) or "–",
        )
        for case in found.cases
    ]
    header = (
        "mode", "case", "programs", "matrix operations", "operations (XLA)", "transcendental", "bytes, at least",
        "bytes as fused here", "not counted",
    )  # fmt: skip
    return Table(header, rows)


def _transfers(found: Projection) -> Table:
    rows = []
    for case in found.cases:
        moved: list[Transfer] = case.bounds[0].transfers if case.bounds else []
        for one in moved:
            rows.append(
                (
                    side_of(case.mode, case.dtype),
                    case.case,
                    one.operator,
                    one.phase or "–",
                    f"{one.calls}",
                    size(one.nbytes),
                    _time(one.seconds) if one.seconds is not None else "no rate published",
                )
            )
    return Table(("mode", "case", "fell back", "phase", "calls", "moved", "transfer, at least"), rows)


def _limits(limits: list[BatchLimit]) -> Table:
    rows = [
        (
            side_of(one.mode, one.dtype),
            f"{one.length}",
            one.unit,
            ", ".join(f"{batch}: {size(needed)}" for batch, needed in one.points),
            "–" if one.slope is None or one.fixed is None else f"{_amount(one.fixed)} + {_amount(one.slope)} a sample",
            "–" if one.residual is None or len(one.points) < 3 else share(one.residual),
            one.reason if one.largest is None else _beyond(one),
        )
        for one in limits
        if one.largest is not None or one.unit == "logical core"  # a reason is the same for both
    ]
    header = ("mode", "length", "on one", "needed at batch", "line", "off the line", "stops fitting")
    return Table(header, rows)


def _beyond(limit: BatchLimit) -> str:
    measured = max(batch for batch, _ in limit.points)
    return f"beyond {limit.largest:,}" + (", extrapolated" if (limit.largest or 0) > measured else "")


def _unseen(found: Projection) -> Table:
    rows = [
        (side_of(case.mode, case.dtype), case.case, one.what, f"{one.count}", ", ".join(one.phases) or "–")
        for case in found.cases
        for one in case.unseen
    ]
    return Table(("mode", "case", "in no bound", "in a step", "phases"), rows)


def _figures(found: Projection) -> list[str]:
    return [
        f"Documented: {key}, {figure.value:.6g} {figure.unit} of one {figure.per} ({figure.source}; read {figure.date})."
        for key, figure in found.figures.items()
    ]


def _time(value: float | None) -> str:
    """A bound, down to nanoseconds: small steps on fast chips are below a microsecond."""
    if value is None:
        return "–"
    return f"{value * 1e6:.2f} µs" if value < 1e-4 else seconds(value)


def _needs(case: CaseProjection) -> str:
    return "–" if case.memory is None else size(case.memory.needed)


def _fits(bound: Bound) -> str:
    said = {True: "yes, as far as seen", False: "no", None: "not known"}[bound.fits]
    if bound.memory_share is None:
        return said
    return f"{said} ({'under 0.1%' if bound.memory_share < 0.001 else f'{bound.memory_share:.1%}'} of it)"


def _amount(value: float) -> str:
    """A count with a power of ten in words of three."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g}"
