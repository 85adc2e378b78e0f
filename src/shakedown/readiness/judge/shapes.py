"""The shapes that a service meets: how much of the traffic each is, what it compiles, re-uses, costs and pads.

The distribution is the user's: a file of lengths, or the shares of the cases. What the trial did not run is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ... import buckets, lengths
from ...buckets import BadLengths, BucketPlan, PlanPoint
from ..errors import BadInput, EvidenceError
from ..evidence import Frozen
from ..requirements import Requirements, copied
from .results import Cell, Finding
from .shape_rows import Distribution, Rows, ShapeFamily, Tried
from .step_cost import CompileCost, Costs, StepModel, costs, shape_of

MODES = (
    "compiled",
    "adaptive",
    "eager",
)  # the first that was timed is taken: shapes matter most where they are compiled
ROWS = 100
WORD = "bucket-plan-needed"
Kind = Literal["measured", "rehearsal", "none"]


class ShapeLedger(Frozen):
    """The traffic by shape, as it is now (``rows``, and ``now`` in sum) and with the recommended ``buckets`` of the ``plan``.

    ``kind`` says what the costs are: measured, rehearsal (the embedded device), or none (padding only). ``source`` says where
    the distribution is from, ``sha256`` is that of its file. ``quantiles`` are of the lengths, by request. ``limits`` are what
    the trial saw of limits on compilation. ``rows`` hold the most frequent shapes, the rest is ``rows_left_out`` with
    ``share_left_out``.
    """

    kind: Kind
    source: str
    sha256: str
    mode: str
    dtype: str
    requests: int | None
    distinct: int
    quantiles: dict[str, int]
    now: PlanPoint
    rows: list[ShapeFamily]
    rows_left_out: int
    share_left_out: float
    limits: list[str]
    step_model: StepModel | None
    compile_cost: CompileCost | None
    plan: BucketPlan | None
    buckets: list[ShapeFamily]
    notes: list[str]


def from_lengths(found: lengths.Lengths, batch: int) -> Distribution:
    """Lengths that come in batches of one size, unpadded."""
    weights = {(batch, length, length): weight for length, weight in found.weights.items()}
    return Distribution(found.name, weights, found.requests, found.sha256)


def from_cases(requirements: Requirements) -> Distribution | None:
    """The shares of the requirements' cases; None where they give none."""
    weights: dict[tuple[int, int, int], float] = {}
    for case in requirements.cases:
        if case.share:
            shape = (case.size, case.length, max(case.length, case.padded_to))
            weights[shape] = weights.get(shape, 0.0) + case.share
    said = "a request is a step of the case's shape"
    return Distribution("shares of the cases", weights, note=said) if weights else None


def distribution(root: Path, cells: Sequence[Cell], requirements: Requirements) -> Distribution | None:
    """What the requirements of the run in `root` say about its traffic, None where they say nothing.

    Raises:
        EvidenceError: the copy of the file of lengths is missing or damaged.
    """
    found = copied(requirements.traffic, root)
    if found is None:
        return from_cases(requirements)
    made = from_lengths(found, requirements.traffic.batch or first_size(cells))
    if any(case.share for case in requirements.cases):
        return replace(made, note="the requirements give shares of the cases, too, which are not used here")
    return made


def first_size(cells: Sequence[Cell]) -> int:
    """Batch size of the first case of a trial; 1 where there is none."""
    return next((shape[0] for cell in cells for case in cell.cases if (shape := shape_of(case))), 1)


def judge(root: Path, tried: Tried, requirements: Requirements) -> tuple[ShapeLedger | None, list[Finding]]:
    """The ledger of the run in `root`, None where its traffic is not known; and what is to be found in it."""
    try:
        known = distribution(root, tried.cells, requirements)
    except EvidenceError as error:
        return None, [Finding(word="untested(shapes)", cell="", text=str(error), fails=False)]
    if known is None:
        return None, []
    made = ledger(known, tried, requirements)
    return made, findings(made)


def findings(made: ShapeLedger) -> list[Finding]:
    """``bucket-plan-needed`` where the traffic has more shapes than programs may be compiled. It informs: what fails is the
    compiled process that reached the limit (``recompile-bound``), which is named here too.
    """
    plan = made.plan
    if plan is None or made.now.programs <= plan.max_programs:
        return []
    edges = "/".join(map(str, plan.best.edges))
    text = (
        f"{made.now.programs} shapes in the traffic ({made.source}), and {plan.max_programs} programs at most: pad lengths to "
        f"{edges}, which is {plan.best.programs} programs and {plan.best.waste:.1%} padding; {plan.reason}; {plan.longer.text}"
    )
    if made.limits:
        text += f". The trial met the limit: {made.limits[0]}"
    cell = f"{made.mode}-{made.dtype}" if made.mode else ""
    return [Finding(word=WORD, cell=cell, text=text, fails=False)]


def ledger(
    known: Distribution, tried: Tried, requirements: Requirements, mode: str = "", dtype: str = ""
) -> ShapeLedger:
    """The traffic `known` with what was `tried`: in `mode` and `dtype`, or in those that :meth:`Tried.side` takes.

    Raises:
        BadInput: `mode` or `dtype` were asked for, and the trial has not run them.
    """
    asked, (mode, dtype) = (mode, dtype), tried.side(mode, dtype)
    if tried.cells and any(asked) and not any((c.mode, c.dtype) == (mode, dtype) for c in tried.cells):
        ran = dict.fromkeys(f"{c.mode} {c.dtype}" for c in tried.cells if c.mode != "reference")
        raise BadInput(f"the trial did not run {' '.join(filter(None, asked))}; it has {', '.join(ran)}")
    total = sum(known.weights.values())
    shares = {shape: weight / total for shape, weight in known.weights.items()}
    sizes = sorted({size for size, _, _ in shares})
    paid = costs(
        tried.cells, tried.results, tried.timings, mode, dtype, sizes, most_wrong=requirements.timing.refuse_spread
    )
    families = _families(shares, lambda size, length, padded: padded)
    make = Rows(known, tried, mode, dtype, paid)
    rows = [make.row(shape, own) for shape, own in sorted(families.items(), key=lambda one: -sum(one[1].values()))]
    steps = requirements.traffic.steps_per_start or requirements.workload.training_steps
    notes = [known.note] if known.note else []
    if not tried.cells:
        notes.append("no trial is given, so costs are not measured: padding only")
    notes += _withheld(tried, mode, dtype) + ([paid.doubt] if paid.doubt else [])
    plan = _plan(shares, known, requirements, steps, paid, notes)
    by_length: dict[int, float] = {}
    for (_, length, _), share in shares.items():
        by_length[length] = by_length.get(length, 0.0) + share
    kinds: list[Kind] = [one.kind for one in tried.timings if (one.mode, one.dtype) == (mode, dtype)]
    now = _now(shares, families, steps, paid)
    bucket_rows: list[ShapeFamily] = []
    if plan is not None:
        held = _held(shares, plan, requirements.traffic.maximum)
        bucket_rows = [make.row(shape, own) for shape, own in sorted(held.items())]
        notes += _beyond(plan, tried, bucket_rows) + _choice(now, plan)
    left = rows[ROWS:]
    return ShapeLedger(
        kind=kinds[0] if paid.measured else "none",
        source=known.source,
        sha256=known.sha256,
        mode=mode,
        dtype=dtype,
        requests=known.requests,
        distinct=len(by_length),
        quantiles={name: lengths.quantile(by_length, q) for name, q in _QUANTILES},
        now=now,
        rows=rows[:ROWS],
        rows_left_out=len(left),
        share_left_out=sum(row.share for row in left),
        limits=_limits(tried, mode, dtype),
        step_model=paid.model,
        compile_cost=paid.compiling,
        plan=plan,
        buckets=bucket_rows,
        notes=notes,
    )


_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0))
Shares = Mapping[tuple[int, int, int], float]


def _families(shares: Shares, padded: Callable[[int, int, int], int]) -> dict[tuple[int, int], dict[int, float]]:
    """Share of each length, by the shape that it is computed as."""
    found: dict[tuple[int, int], dict[int, float]] = {}
    for (size, length, today), share in shares.items():
        own = found.setdefault((size, padded(size, length, today)), {})
        own[length] = own.get(length, 0.0) + share
    return found


def _held(shares: Shares, plan: BucketPlan, maximum: int) -> dict[tuple[int, int], dict[int, float]]:
    """:func:`_families` of the recommended buckets: without longer requests, or with those cut to the maximum."""
    found: dict[tuple[int, int, int], float] = {}
    for (size, length, today), share in shares.items():
        if maximum and length > maximum:
            if plan.longer.rule != "truncate":
                continue
            length = maximum
        found[size, length, today] = found.get((size, length, today), 0.0) + share
    return _families(found, lambda size, length, today: next(edge for edge in plan.best.edges if edge >= length))


def _choice(now: PlanPoint, plan: BucketPlan) -> list[str]:
    """That the traffic could also be left as it is, and whether that would cost less."""
    if now.programs > plan.max_programs:
        return []
    said = (
        f"the shapes as they are need {now.programs} programs, which is within the {plan.max_programs} allowed: buckets are a "
        "choice here, not a need"
    )
    if now.total_seconds is not None and plan.best.total_seconds is not None:
        said += f"; they cost {now.total_seconds:.4g} s in all, with the buckets {plan.best.total_seconds:.4g} s"
    return [said]


def _now(shares: Shares, families: Iterable[tuple[int, int]], steps: int, paid: Costs) -> PlanPoint:
    """Cost of the traffic as it is computed today, in the terms of a plan."""
    programs = len(list(families))
    needed = sum(share * size * length for (size, length, _), share in shares.items())
    computed = sum(share * size * padded for (size, _, padded), share in shares.items())
    each = [(share, paid.of(size, padded).seconds) for (size, _, padded), share in shares.items()]
    step = None
    if all(seconds is not None for _, seconds in each):
        step = sum(share * (seconds or 0.0) for share, seconds in each)
    compiling = None if paid.compiling is None else programs * paid.compiling.seconds
    return PlanPoint(
        programs=programs,
        edges=tuple(sorted({padded for _, _, padded in shares})) if programs <= ROWS else (),
        waste=max(0.0, 1 - needed / computed),
        compile_seconds=compiling,
        step_seconds=step,
        total_seconds=None if compiling is None or step is None else compiling + steps * step,
    )


def _plan(
    shares: Shares, known: Distribution, requirements: Requirements, steps: int, paid: Costs, notes: list[str]
) -> BucketPlan | None:
    traffic: dict[tuple[int, int], float] = {}
    for (size, length, _), share in shares.items():
        traffic[size, length] = traffic.get((size, length), 0.0) + share
    wanted = requirements.traffic
    served = {length for _, length in traffic if not wanted.maximum or length <= wanted.maximum}
    edges = buckets.candidates(served, wanted.maximum)
    sizes = {size for size, _ in traffic}
    unknown = [edge for edge in edges if any(paid.of(size, edge).seconds is None for size in sizes)]
    if unknown and paid.model is not None:
        notes.append(
            f"costs are not weighed: lengths of {unknown[0]} are more than twice the longest that was timed; time a case near "
            f"{max(served)} for a plan with costs"
        )
    try:
        return buckets.plan(
            traffic,
            max_programs=max(wanted.max_programs, requirements.workload.expected_programs),
            steps=steps,
            expected=requirements.workload.expected_programs,
            maximum=wanted.maximum,
            rule=wanted.longer,
            requests=known.requests,
            cost=(lambda size, edge: paid.of(size, edge).seconds or 0.0) if not unknown else None,
            compile_seconds=paid.compiling.seconds if paid.compiling else None,
        )
    except BadLengths as error:
        notes.append(f"no plan: {error}")
        return None


def _withheld(tried: Tried, mode: str, dtype: str) -> list[str]:
    """Why shapes that were run have no time."""
    found: dict[str, list[str]] = {}
    for one in tried.timings:
        if (one.mode, one.dtype) == (mode, dtype) and one.withheld and shape_of(one.case):
            found.setdefault(one.withheld, []).append(one.case)
    return [f"no step time of {', '.join(cases)}: {why}" for why, cases in found.items()]


def _beyond(plan: BucketPlan, tried: Tried, rows: Sequence[ShapeFamily]) -> list[str]:
    """Buckets that nobody has tried: longer than any shape of the trial, or costed beyond what was timed."""
    said = []
    ran = [shape for cell in tried.cells for case in cell.cases if (shape := shape_of(case))]
    longest = max((length for _, length in ran), default=0)
    if above := [str(edge) for edge in plan.best.edges if longest and edge > longest]:
        said.append(
            f"buckets of {', '.join(above)} are above the longest length that the trial ran, {longest}: their numbers, memory "
            "and time are not known"
        )
    if guessed := sum(row.step.basis == "extrapolated" for row in rows):
        said.append(f"the cost of {guessed} of {len(rows)} buckets is extrapolated beyond the shapes that were timed")
    return said


def _limits(tried: Tried, mode: str, dtype: str) -> list[str]:
    """Limits on compilation that a sequence of the trial reached."""
    own = {cell.id for cell in tried.cells if (cell.mode, cell.dtype, cell.kind) == (mode, dtype, "sequence")}
    return list(
        dict.fromkeys(
            f"{problem.place}: {problem.text}; {problem.count} calls ran eager"
            for cell, summary in tried.graphs.items()
            for problem in summary.problems
            if cell in own and problem.cause == "limit reached"
        )
    )
