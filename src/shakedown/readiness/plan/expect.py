"""What a forecast holds against the requirements: one function for each kind of reason. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from .. import targets
from ..evidence import Frozen
from ..requirements import CaseDemand, Requirements
from ..scan import Hit
from .buckets import Buckets, choose
from .operators import accepts
from .support import Placed
from .trace import Traced, is_own

Level = Literal["blocks", "revise", "note"]
# Rules of the source scan that say what a rule of the profile is about.
_APIS = {
    "torch.sparse": "sparse",
    "torch.func": "func-transforms",
    "torch.nested": "nested",
    "torch.distributions": "distributions",
    "forward-mode AD": "forward-ad",
}
_COMPILE = {"dynamic": "compile-dynamic", "mode": "compile-mode", "options": "compile-options"}
_OUTSIDE = ("make_batch", "import", "elsewhere")  # parts of the workload's files whose tensors stay on the CPU
_PADDED = "dynamic=False, and lengths padded to a few edges"
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


class Reason(Frozen):
    """Why the workload cannot go as specified, or what to know before it goes.

    ``word`` is a fixed term. ``required`` is the demand, ``found`` what speaks against it, ``source`` where that is said,
    ``change`` what to do about it. ``places`` are lines of the workload.
    """

    level: Level
    word: str
    required: str
    found: str
    source: str
    change: str
    phase: str = ""
    places: tuple[str, ...] = ()


class Programs(Frozen):
    """Programs of forward and loss, for one precision. Predicted from shapes, not promised.

    ``shapes`` are the distinct shapes after padding. ``buckets`` is the plan that pads least with as many programs as there
    are lengths now, ``within`` the one that keeps to the expected number; both for lengths of all batch sizes together.
    ``sequences``: the lengths are of sequences, which a mask can pad, and not sides of images.
    """

    predicted: int
    expected: int
    shapes: tuple[str, ...]
    sequences: bool = True
    buckets: Buckets | None = None
    within: Buckets | None = None
    above: str = ""


@dataclass(frozen=True)
class Known:
    """Everything that a forecast goes by. ``placed`` is by mode (``eager`` stands for adaptive too), then dtype."""

    demand: Requirements
    cases: list[CaseDemand]
    modes: tuple[str, ...]
    target: targets.Target
    profile: str
    rules: list[dict[str, Any]]
    traces: list[Traced]
    placed: dict[str, list[list[Placed]]]
    hits: list[Hit]
    programs: Programs
    recompile_limit: int
    at: Callable[[str], str] = field(default=lambda key: key)  # a key of the requirements, with its line

    @property
    def compiled(self) -> bool:
        return "compiled" in self.modes

    def rule(self, kind: str, **fields: str) -> dict[str, Any] | None:
        """The profile's first rule of that kind with these values."""
        found = (r for r in self.rules if r["kind"] == kind and all(r.get(k) == v for k, v in fields.items()))
        return next(found, None)

    def says(self, rule: dict[str, Any]) -> str:
        return f"profile {self.profile}, rule {rule['id']}: {rule['source']}, {rule['date']}"


def reasons(known: Known) -> list[Reason]:
    """All of them, the gravest first."""
    found = [reason for kind in _KINDS for reason in kind(known)]
    return sorted(found, key=lambda reason: ("blocks", "revise", "note").index(reason.level))


# --- precision and modes ------------------------------------------------------------------------------------------------


def _float64(known: Known) -> Iterator[Reason]:
    rule = known.rule("dtype", dtype="float64")
    if rule is None:
        return
    places = {
        line
        for traced in known.traces
        for call in traced.calls
        if "float64" in (*call.input_dtypes, *call.output_dtypes)
        for line in call.lines
    }
    if known.demand.workload.float64:
        yield Reason(
            level="blocks",
            word="precision-blocked(float64)",
            required=f"float64 arithmetic ({known.at('workload.float64')} = true)",
            found=f"float64 is computed as {rule['to']} there; results only keep the name of the dtype",
            source=known.says(rule),
            change="keep these computations on the CPU, or the service where float64 is; the demand is not relaxed, and no "
            "tolerance stands in its place",
            places=tuple(sorted(places)),
        )
    elif places or any("float64" in call.input_dtypes for traced in known.traces for call in traced.calls):
        yield Reason(
            level="revise",
            word="precision-narrowed(float64)",
            required="no float64 arithmetic is asked for, and the step does some",
            found=f"it is computed as {rule['to']} there",
            source=known.says(rule),
            change="cast to float32 where the tensor is made, or set workload.float64 = true if the result needs it",
            places=tuple(sorted(places)),
        )


def _modes(known: Known) -> Iterator[Reason]:
    lacking = {mode: why for mode in known.modes if (why := targets.lacks(known.target, mode))}
    for mode, why in lacking.items():
        yield Reason(
            level="blocks" if len(lacking) == len(known.modes) else "revise",
            word="mode-missing",
            required=f"the mode {mode} ({known.at('workload.modes')})",
            found=why,
            source=f"the trial's table of targets: {known.target.name} has {', '.join(known.target.modes)}",
            change=f"leave {mode} out of workload.modes for this target; it stays untested",
        )


# --- shapes and compilation ---------------------------------------------------------------------------------------------


def programs(demand: Requirements, cases: list[CaseDemand], sequences: bool = True) -> Programs:
    """How many programs these cases need, and buckets for them."""
    shapes = list(dict.fromkeys((case.size, case.padded_to or case.length) for case in cases))
    expected = demand.workload.expected_programs
    made = Programs(
        predicted=len(shapes),
        expected=expected,
        sequences=sequences,
        shapes=tuple(f"{size}x{length}" for size, length in shapes),
    )
    shares: dict[int, float] = {}
    for case in cases:
        shares[case.length] = shares.get(case.length, 0.0) + case.share
    sizes = len({case.size for case in cases})
    if len(shares) < 2:
        return made
    longest = max(shares)
    found = choose(shares, len(shares))
    return made.model_copy(
        update={
            "buckets": found,
            "within": choose(shares, max(1, expected // sizes)) if 0 < expected < len(shapes) else None,
            "above": f"the rule above {found.edges[-1]}: refuse such a request with an error (the next power of two, "
            f"{1 << found.edges[-1].bit_length()}, would be a program that nobody has measured, and splitting a sequence "
            f"changes what attention sees); the longest length of the plan is {longest}",
        }
    )


def _static(known: Known) -> tuple[str, str]:
    """Why each shape is a program of its own, and where that is said."""
    rule = known.rule("compile", what="dynamic")
    if rule is not None:
        return "shapes are static there", known.says(rule)
    return "the embedded device compiles one program per shape", f"the neuron backend of torch.compile, {known.profile}"


def _programs(known: Known) -> Iterator[Reason]:
    made = known.programs
    if not known.compiled:
        return
    why, source = _static(known)
    kind = "sequence " if made.sequences and len({shape.split("x")[1] for shape in made.shapes}) > 1 else ""
    many = f"{spelt(made.predicted)} {kind}program{'s' * (made.predicted != 1)} predicted, not promised"
    found = f"{many}: {', '.join(made.shapes)} are distinct shapes, and {why}"
    if made.expected and made.predicted > made.expected:
        yield Reason(
            level="revise",
            word="more-programs-than-planned",
            required=f"{spelt(made.expected)} compilation{'s' * (made.expected != 1)} of forward and loss "
            f"({known.at('workload.expected_programs')} = {made.expected})",
            found=found,
            source=source,
            change=bucket_plan(made),
        )
    elif made.predicted > 1:
        yield Reason(
            level="note",
            word="programs",
            required=f"{spelt(made.predicted)} shapes",
            found=found,
            source=source,
            change="nothing: the plan allows for them" if made.expected else "state workload.expected_programs",
        )
    if made.predicted > known.recompile_limit:
        yield Reason(
            level="revise",
            word="recompile-bound",
            required=f"{made.predicted} compiled shapes",
            found=f"Dynamo's limit of {known.recompile_limit} recompilations is reached: later shapes run eagerly, and "
            "neither a compile counter nor fail_on_recompile says so",
            source="torch._dynamo.config.recompile_limit of this PyTorch",
            change=bucket_plan(made) if made.buckets else "fewer batch sizes",
        )
    if known.demand.workload.dynamic_shapes:
        yield Reason(
            level="revise",
            word="dynamic-shapes",
            required=f"one program for every shape ({known.at('workload.dynamic_shapes')} = true)",
            found=why,
            source=source,
            change=bucket_plan(made) if made.buckets else _PADDED,
        )


def bucket_plan(made: Programs) -> str:
    """The proposal in words."""
    if made.buckets is None:
        return "one batch size and one length, or a program for each pair in the plan"
    edges, waste = made.buckets.edges, made.buckets.waste
    how = (
        "pad lengths to buckets of {} with a mask that keeps the padding out of attention, loss and statistics"
        if made.sequences
        else "bring the inputs to sides of {} before the model (what is padded is seen by it: prove that on the CPU)"
    ).format("/".join(map(str, edges)))
    text = (
        f"{how} ({waste:.1%} of the computed elements are padding), and plan for {spelt(len(edges))} programs for each "
        f"batch size; {made.above}"
    )
    if made.within is not None and made.within.edges != edges:
        text += (
            f". Or keep to the expected number: buckets of {'/'.join(map(str, made.within.edges))}, with "
            f"{made.within.waste:.1%} padding"
        )
    return text


def _compile_parameters(known: Known) -> Iterator[Reason]:
    """What the source hands to torch.compile itself."""
    changes = {what: f"leave {what} out on this target" for what in _COMPILE}
    changes["dynamic"] = bucket_plan(known.programs) if known.programs.buckets else _PADDED
    for what, scan_rule in _COMPILE.items():
        rule = known.rule("compile", what=what)
        found = [hit for hit in known.hits if hit.rule == scan_rule]
        if rule is None or not found:
            continue
        refused = rule["action"] == "refuse"
        yield Reason(
            level="revise" if refused else "note",
            word="dynamic-shapes" if what == "dynamic" else "compile-parameter",
            required=f"torch.compile with {what}: {found[0].text.strip():.80}",
            found="refused there" if refused else "ignored there, with a warning",
            source=known.says(rule),
            change=changes[what],
            places=_places(found),
        )


def _strided_inputs(known: Known) -> Iterator[Reason]:
    rule = known.rule("compile", what="strided inputs")
    if rule is None or not known.compiled:
        return
    names = list(dict.fromkeys(name for traced in known.traces for name in traced.noncontiguous))
    if names:
        yield Reason(
            level="revise",
            word="contiguous-copies",
            required=f"compiled calls with inputs that are not contiguous: {', '.join(names)}",
            found="each of them is copied on every call there",
            source=known.says(rule),
            change="make them contiguous once, in make_batch or in the data loader; or plan with the copies in the step time",
        )
    elif known.demand.variations.noncontiguous:
        yield Reason(
            level="note",
            word="contiguous-copies",
            required=f"the variation with strided inputs ({known.at('variations.noncontiguous')} = true)",
            found="its inputs are copied on every compiled call there; the workload's own are contiguous",
            source=known.says(rule),
            change="nothing",
        )


def _graph_breaks(known: Known) -> Iterator[Reason]:
    """Data-dependent sizes and host reads inside what torch.compile is given."""
    for by_size in (True, False):
        seen: dict[str, list[Any]] = {}
        for traced in known.traces:
            for call in traced.calls:
                if (call.data_dependent if by_size else call.host_read) and call.phase == "forward":
                    seen.setdefault(call.operator, []).append(call)
        for operator, calls in seen.items():
            what = "the sizes of its result depend on values" if by_size else "the host waits for a value of the device"
            breaks = "; inside the compiled part that breaks the graph" if known.compiled else ""
            again = ", and every new size is a new program" if by_size and known.compiled else ""
            yield Reason(
                level="revise" if known.compiled else "note",
                word="data-dependent-shape" if by_size else "host-read",
                required=f"{operator} in forward and loss",
                found=what + breaks + again,
                source="PyTorch's tags on the operator, and the trace of this workload",
                change="a mask or torch.where of fixed size, nonzero_static, or the call outside the compiled part"
                if by_size
                else "read it outside the compiled part, and every so many steps (variations.logging_every)",
                phase="forward",
                places=_lines(calls),
            )


def _printed(known: Known) -> Iterator[Reason]:
    """Tensors that are printed or logged: no operator tells of it, the source does."""
    found = [hit for hit in known.hits if hit.rule in ("host-print", "host-log") and hit.phase == "forward"]
    if found:
        yield Reason(
            level="revise" if known.compiled else "note",
            word="host-read",
            required=f"printing in forward and loss: {found[0].text.strip():.80}",
            found="the host waits for the values"
            + ("; inside the compiled part that breaks the graph" if known.compiled else ""),
            source="the workload's source",
            change="print outside the compiled part, and every so many steps (variations.logging_every)",
            phase="forward",
            places=_places(found),
        )


# --- operators and kernels ----------------------------------------------------------------------------------------------


def _operators(known: Known) -> Iterator[Reason]:
    """Operators that fall back, or that nobody has, by phase."""
    seen: dict[tuple[str, str, str], dict[str, Any]] = {}
    for mode, by_trace in known.placed.items():
        for placed in by_trace:
            calls: dict[tuple[str, str, str], int] = {}
            for one in placed:
                if one.support.verdict == "native" or is_own(one.support.operator):
                    continue
                key = (one.support.verdict, one.phase, one.support.operator)
                calls[key] = calls.get(key, 0) + one.calls
                entry = seen.setdefault(key, {"calls": 0, "modes": {}, "lines": {}, "support": one.support})
                entry["modes"][mode] = None
                entry["lines"] |= dict.fromkeys(one.lines)
                entry["calls"] = max(entry["calls"], calls[key])
    for (verdict, phase, operator), entry in seen.items():
        support, modes = entry["support"], " and ".join(entry["modes"])
        required = f"{operator} in {phase}, {entry['calls']} call{'s' * (entry['calls'] != 1)} a step"
        if verdict == "missing":
            yield Reason(
                level="blocks",
                word="missing-operator",
                required=required,
                found=f"{support.reason} ({modes})",
                source=support.source,
                change="another operator in its place, or that part on the CPU as a decision of the design",
                phase=phase,
                places=tuple(entry["lines"]),
            )
            continue
        accepted = accepts(known.demand.fallbacks, operator, phase, entry["calls"])
        breaks = (
            "; in a compiled graph it breaks the graph" if "compiled" in entry["modes"] and phase != "optimizer" else ""
        )
        yield Reason(
            level="note" if accepted else "revise",
            word="accepted-fallback" if accepted else "fallback",
            required=required,
            found=f"{support.reason} ({modes}): a round trip through host memory{breaks}",
            source=support.source,
            change="nothing: the requirements accept it"
            if accepted
            else f'replace it, or accept it: [[fallbacks]] operator = "{operator}", phase = "{phase}", '
            f"calls = {entry['calls']}, with a reason",
            phase=phase,
            places=tuple(entry["lines"]),
        )


def _apis(known: Known) -> Iterator[Reason]:
    """Whole APIs that the profile refuses and the step uses."""
    for api, scan_rule in _APIS.items():
        rule = known.rule("api", api=api)
        found = [hit for hit in known.hits if hit.rule == scan_rule and hit.phase not in _OUTSIDE]
        if rule is not None and found:
            yield Reason(
                level="blocks",
                word="refused-api",
                required=f"{api} in {found[0].phase}",
                found="refused there for tensors of the device",
                source=known.says(rule),
                change="write it with operators that are supported, or keep it on CPU tensors",
                phase=found[0].phase,
                places=_places(found),
            )


def _kernels(known: Known) -> Iterator[Reason]:
    declared = {kernel.name for kernel in known.demand.kernels}
    for kernel in known.demand.kernels:
        if not kernel.fallback:
            yield Reason(
                level="blocks",
                word="kernel-without-fallback",
                required=f"the kernel {kernel.name} of {kernel.owner} ({known.at('kernels')})",
                found="a hand-written kernel does not come along to another device, and nothing is named to run instead",
                source="the requirements",
                change=f"{kernel.owner} ports it, with its backward pass and tests, or names a fallback",
            )
        else:
            yield Reason(
                level="note",
                word="kernel",
                required=f"the kernel {kernel.name} of {kernel.owner}",
                found=f"{kernel.fallback} runs in its place",
                source="the requirements",
                change="compare both on the CPU or on the present device before the trial",
            )
    used: dict[str, set[str]] = {}
    for hit in known.hits:
        if hit.kind == "kernel" and hit.severity in ("blocks", "changes needed") and hit.kernel:
            used.setdefault(hit.kernel, set()).add(f"{hit.path}:{hit.line}")
    for traced in known.traces:
        for call in traced.calls:
            if call.own:
                used.setdefault(call.operator, set()).update(call.lines)
    for name, places in used.items():
        if any(other.startswith(f"{name}::") for other in used):
            continue  # the definition of a library, one of whose operators the trace has met
        if not any(name == known_name or name.startswith(f"{known_name}::") for known_name in declared):
            yield Reason(
                level="revise",
                word="undeclared-kernel",
                required=f"{name}, which is not PyTorch's",
                found="nobody is named who owns it, and nothing to run instead",
                source="the workload's source and its trace",
                change=f'declare it: [[kernels]] name = "{name}", with owner and fallback',
                places=tuple(sorted(places)),
            )


def _stops(known: Known) -> Iterator[Reason]:
    """Where the trace ended early, what follows is not known: such a forecast cannot say compatible."""
    found = {(s.phase, s.kind, s.why): s for traced in known.traces for s in traced.stops}
    for stop in found.values():
        yield Reason(
            level="revise",
            word={"data-dependent": "control-flow", "no shape function": "unknown-shapes"}.get(stop.kind, "not-traced"),
            required=f"the whole {stop.phase} phase",
            found=f"the forecast ends {f'at {stop.line}, ' if stop.line else ''}"
            f"{f'in {stop.operator}' if stop.operator else f'in {stop.phase}'}: {stop.why}",
            source="the trace of this workload",
            change={
                "data-dependent": "torch.where instead of a branch on values; inside a compiled part it breaks the graph",
                "no shape function": "torch.library.register_fake for the operator: torch.compile needs it too",
            }.get(stop.kind, "see whether the workload runs on the CPU (shakedown run --target cpu)"),
            phase=stop.phase,
            places=(stop.line,) if stop.line else (),
        )


_KINDS: tuple[Callable[[Known], Iterator[Reason]], ...] = (
    _float64,
    _operators,
    _apis,
    _kernels,
    _modes,
    _programs,
    _compile_parameters,
    _graph_breaks,
    _printed,
    _stops,
    _strided_inputs,
)


def spelt(number: int) -> str:
    """``three``; figures above twelve."""
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)


def _lines(calls: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for call in calls for line in call.lines))


def _places(hits: Iterable[Hit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{hit.path}:{hit.line}" for hit in hits))
