"""In which phase of the trial a function runs: what can be reached from ``forward``, from a training loop, from the data."""

from __future__ import annotations

from collections.abc import Iterable

from .project import Project
from .results import Phase

ORDER: tuple[Phase, ...] = (
    "forward",
    "backward",
    "optimizer",
    "training loop",
    "make_batch",
    "build_model",
    "build_optimizer",
)
IN_STEP: tuple[Phase, ...] = ("forward", "backward", "optimizer")
ON_HOST: tuple[Phase, ...] = ("make_batch", "build_model", "build_optimizer", "import")
_LOOP_METHODS = {"training_step", "train_step", "compute_loss"}  # what trainers call once per step


def roots(project: Project) -> dict[Phase, set[str]]:
    """Where each phase begins: the protocol's functions, ``forward`` of every module, ``backward`` of every operator,
    ``step`` of every optimizer, and whatever a loop with a ``backward()`` in it calls.
    """
    found: dict[Phase, set[str]] = {phase: set() for phase in ORDER}
    for module in project.modules.values():
        for name in module.functions:
            key = f"{module.name}::{name}"
            if project.is_protocol(key):
                found[name].add(key)  # type: ignore[index]  # PROTOCOL's names are phases
            elif name.rpartition(".")[2] in _LOOP_METHODS:
                found["training loop"].add(key)
        for klass in module.classes.values():
            if project.is_module(klass.key) and "forward" in klass.methods:
                found["forward"].add(f"{klass.key}.forward")
            if project.is_function(klass):
                found["forward"] |= {f"{klass.key}.forward"} & _keys(klass.key, klass.methods)
                found["backward"] |= {f"{klass.key}.backward"} & _keys(klass.key, klass.methods)
            if any(base.startswith("torch.optim.") for base in project.bases(klass)):
                found["optimizer"] |= {f"{klass.key}.step"} & _keys(klass.key, klass.methods)
    found["training loop"] |= project.in_loops
    return found


def _keys(key: str, methods: Iterable[str]) -> set[str]:
    return {f"{key}.{method}" for method in methods}


def phases(project: Project) -> dict[str, Phase]:
    """The first phase, in the order of :data:`ORDER`, from which each function can be reached."""
    result: dict[str, Phase] = {}
    started = roots(project)
    for phase in ORDER:
        waiting = [key for key in started[phase] if key not in result]
        while waiting:
            key = waiting.pop()
            if key in result:
                continue
            result[key] = phase
            waiting += [called for called in project.calls.get(key, ()) if called not in result]
    return result


def phase_of(key: str, known: dict[str, Phase], in_loop: bool) -> Phase:
    """The phase of code in the function `key`; a function inside another belongs to it."""
    inner = key
    while inner.partition("::")[2]:
        if inner in known:
            return known[inner]
        outer = inner.rpartition(".")[0]
        inner = outer if "::" in outer else ""
    if in_loop:
        return "training loop"
    return "import" if key.endswith("::") else "elsewhere"
