"""Requirements that contradict themselves: each value is allowed, and together they cannot be meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from .. import projection
from ..cost import payback
from ..errors import BadInput
from ..targets import MODES
from ..workload import DTYPES, Case
from .model import Requirements
from .positions import Place

PHASES = ("data", "forward", "backward", "optimizer", "step", "logging")
ROLES = ("output", "loss", "gradient", "weight", "buffer", "state")


def contradictions(demand: Requirements) -> Iterator[tuple[Place, str]]:
    """Each contradiction: the key at fault, and what is wrong with it."""
    yield from _workload(demand)
    yield from _cases(demand)
    yield from _traffic(demand)
    yield from _lists(demand)
    yield from _numbers(demand)
    if payback.given(demand.costs) and (missing := payback.needed(demand.costs)):
        yield ("costs",), f"a payback needs these too: {', '.join(missing)}"
    known = tuple(projection.load().instances)
    if demand.projection.instance and demand.projection.instance not in known:
        wrong = demand.projection.instance
        yield ("projection", "instance"), f"no figures of an instance {wrong!r} are known; {_choose(wrong, known)}"


def _workload(demand: Requirements) -> Iterator[tuple[Place, str]]:
    asked = demand.workload
    for key, values, allowed in (("dtypes", asked.dtypes, DTYPES), ("modes", asked.modes, MODES)):
        for number, value in enumerate(values):
            if value not in allowed:
                yield (
                    ("workload", key, number),
                    f"{key.removesuffix('s')} {value!r} is unknown; {_choose(value, allowed)}",
                )
            elif value in values[:number]:
                yield ("workload", key, number), f"{value!r} is there twice"
    if not asked.modes:
        yield ("workload", "modes"), f"no mode is left to try; choose among {', '.join(MODES)}"
    if "compiled" not in asked.modes:
        for key, given in (
            ("expected_programs", asked.expected_programs > 0),
            ("dynamic_shapes", asked.dynamic_shapes),
            ("boundary", asked.boundary == "step"),
        ):
            if given:
                yield ("workload", key), "it is about torch.compile, and workload.modes has no `compiled`"


def _cases(demand: Requirements) -> Iterator[tuple[Place, str]]:
    largest: Case | None = None
    if demand.variations.maximum:
        try:
            largest = Case.parse(demand.variations.maximum)
        except BadInput:
            largest = None
        if largest is None or largest.variation:
            yield (
                ("variations", "maximum"),
                f"{demand.variations.maximum!r} is not BATCHxLENGTH; write for example 8x512",
            )
            largest = None
    known = sum(case.share > 0 for case in demand.cases)
    for number, case in enumerate(demand.cases):
        if 0 < case.padded_to < case.length:
            yield (
                ("cases", number, "padded_to"),
                f"a length of {case.length} cannot be padded to {case.padded_to}: give {case.length} or more, or 0",
            )
        length = max(case.length, case.padded_to)
        if largest is not None and case.size * length > largest.size * largest.length:
            yield (
                ("cases", number),
                f"{case.size}x{length} is larger than variations.maximum = {largest}: the maximum is the largest shape "
                "of the real service",
            )
        if known and not case.share:
            yield ("cases", number), "it has no share of the traffic, and others do: give all of them or none"


def _traffic(demand: Requirements) -> Iterator[tuple[Place, str]]:
    asked = demand.traffic
    for key, given in (("sha256", asked.sha256), ("batch", asked.batch)):
        if given and not asked.lengths:
            yield ("traffic", key), "it is about a file of lengths, and traffic.lengths names none"
    longest = max((case.length for case in demand.cases), default=0)
    if 0 < asked.maximum < longest:
        yield ("traffic", "maximum"), f"{asked.maximum} is the longest length that is served, and a case has {longest}"
    planned = demand.workload.expected_programs
    if "max_programs" in asked.model_fields_set and asked.max_programs < planned:
        yield (
            ("traffic", "max_programs"),
            f"{asked.max_programs} programs at most, and the service is planned with workload.expected_programs = {planned}",
        )


def _lists(demand: Requirements) -> Iterator[tuple[Place, str]]:
    seen: set[tuple[str, str]] = set()
    for number, fallback in enumerate(demand.fallbacks):
        here: Place = ("fallbacks", number)
        if "::" not in fallback.operator:
            yield (
                (*here, "operator"),
                f"{fallback.operator!r} is no full name; write for example aten::{fallback.operator.removeprefix('aten.')}",
            )
        if fallback.phase and fallback.phase not in PHASES:
            yield (*here, "phase"), f"phase {fallback.phase!r} is unknown; {_choose(fallback.phase, PHASES)}"
        if (fallback.operator, fallback.phase) in seen:
            yield here, f"{fallback.operator} is accepted twice{f' in {fallback.phase}' if fallback.phase else ''}"
        seen.add((fallback.operator, fallback.phase))
    if demand.fallbacks and not demand.budgets.fallback_share:
        yield (
            ("budgets", "fallback_share"),
            "no part of a step may be spent on the CPU, and `fallbacks` accepts operators there",
        )
    names = [kernel.name for kernel in demand.kernels]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield ("kernels", number, "name"), f"{name!r} is declared twice"


def _numbers(demand: Requirements) -> Iterator[tuple[Place, str]]:
    for key in demand.numerics.criteria:
        dtype, slash, role = key.partition("/")
        here: Place = ("numerics", "criteria", key)
        if dtype == "float64":
            yield (
                here,
                "float64 has no tolerance: results that need it set workload.float64 = true, which is not relaxed",
            )
        elif dtype not in DTYPES:
            yield here, f"precision {dtype!r} is unknown; {_choose(dtype, DTYPES)}"
        if slash and role not in ROLES:
            yield here, f"class of tensor {role!r} is unknown; {_choose(role, ROLES)}"
    if demand.task.limit and not demand.task.function:
        yield ("task", "limit"), "a limit without task.function: name the function in the workload that it is for"
    parity = demand.parity
    if bool(parity.tolerance) != bool(parity.at):
        given = "tolerance" if parity.tolerance else "at"
        yield ("parity", given), "the plain rule is a tolerance at some steps: give both parity.tolerance and parity.at"
    for number, step in enumerate(parity.at):
        if not 1 <= step <= parity.steps:
            yield ("parity", "at", number), f"step {step} is not among the {parity.steps} steps that are trained"
    timing, budgets = demand.timing, demand.budgets
    if timing.least_steps > timing.steps and "least_steps" in timing.model_fields_set:
        yield ("timing", "least_steps"), f"{timing.least_steps} is more than timing.steps = {timing.steps}"
    for low, high in (("warn_spread", "refuse_spread"), ("foreign_load", "refuse_foreign_load")):
        if getattr(timing, low) > getattr(timing, high):
            given = low if low in timing.model_fields_set else high
            yield ("timing", given), f"timing.{low} would warn above timing.{high}, where the time is refused already"
    if budgets.cold_start and budgets.warm_start > budgets.cold_start:
        yield ("budgets", "warm_start"), f"a warm start may take longer than a cold one ({budgets.cold_start} s)"


def _choose(value: str, allowed: Iterable[str]) -> str:
    close = difflib.get_close_matches(value, list(allowed), 1, 0.5)
    return (f"did you mean {close[0]}; " if close else "") + f"choose among {', '.join(allowed)}"
