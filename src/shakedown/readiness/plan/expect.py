"""What a forecast holds against the requirements: one function for each kind of reason. Nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .. import targets
from . import programs
from .known import Known, Reason, places_of
from .operators import accepts
from .trace import is_own

# Rules of the source scan that say what a rule of the profile is about.
_APIS = {
    "torch.sparse": "sparse",
    "torch.func": "func-transforms",
    "torch.nested": "nested",
    "torch.distributions": "distributions",
    "forward-mode AD": "forward-ad",
}
_OUTSIDE = ("make_batch", "import", "elsewhere")  # parts of the workload's files whose tensors stay on the CPU


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
                places=places_of(found),
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
    programs.too_many_programs,
    programs.compile_parameters,
    programs.graph_breaks,
    programs.printed,
    _stops,
    programs.strided_inputs,
)
