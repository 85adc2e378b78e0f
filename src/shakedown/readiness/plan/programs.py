"""Shapes and compilation in a forecast: how many programs, what breaks a graph, what torch.compile is given."""

from __future__ import annotations

from collections.abc import Iterator

from ...buckets import choose
from ..requirements import CaseDemand, Requirements
from .known import Known, Programs, Reason, lines_of, places_of, spelt
from .trace import Call

# Rules of the source scan that say what a rule of the profile is about.
_COMPILE = {"dynamic": "compile-dynamic", "mode": "compile-mode", "options": "compile-options"}
_PADDED = "dynamic=False, and lengths padded to a few edges"


def programs(demand: Requirements, cases: list[CaseDemand], *, sequences: bool, limit: int) -> Programs:
    """How many programs these cases need, and buckets that need at most `limit` of them."""
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
    found = choose(shares, max(1, limit // sizes))
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


def too_many_programs(known: Known) -> Iterator[Reason]:
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


def compile_parameters(known: Known) -> Iterator[Reason]:
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
            places=places_of(found),
        )


def strided_inputs(known: Known) -> Iterator[Reason]:
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


def graph_breaks(known: Known) -> Iterator[Reason]:
    """Data-dependent sizes and host reads inside what torch.compile is given."""
    for by_size in (True, False):
        seen: dict[str, list[Call]] = {}
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
                places=lines_of(calls),
            )


def printed(known: Known) -> Iterator[Reason]:
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
            places=places_of(found),
        )
