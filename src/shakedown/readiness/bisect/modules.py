"""Which module: its inputs agree with the truth's, and its output, or the gradient that it passes on, does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..judge import bisect as judge
from ..judge.bisect import Triple
from ..requirements import Numerics
from . import trees
from .lab import Lab, Side
from .result import Module, Numbers

Arrays = dict[str, tuple[str, np.ndarray]]  # name -> dtype, values


def _arrays(value: Any) -> Arrays:
    return {path: (trees.dtype_name(t), trees.array(trees.host(t))) for path, t in trees.leaves(value)}


@dataclass
class ModuleCall:
    """One call of one module, in copies on the host."""

    path: str
    number: int
    kind: str
    inputs: Arrays
    outputs: Arrays = field(default_factory=dict)


@dataclass
class Seen:
    """What one side did: calls in the order in which they ended, gradients in the order in which they were made."""

    calls: dict[tuple[str, int], ModuleCall]
    results: Arrays
    gradients: Arrays


class Watch:
    """Hooks on every module. Shared modules have the name that PyTorch lists first."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: dict[tuple[str, int], ModuleCall] = {}
        self.gradients: Arrays = {}
        self._open: list[ModuleCall] = []
        self._count: Counter[str] = Counter()
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            self._handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._gradient(f"parameter {name}")))

    def _before(self, name: str) -> Any:
        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._open.append(ModuleCall(name, self._count[name], type(module).__name__, _arrays([*args, kwargs])))
            self._count[name] += 1

        return before

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self._open.pop()
        call.outputs = _arrays(output)
        self.calls[call.path, call.number] = call  # an inner call ends before the one around it
        for path, value in trees.leaves(output):
            if value.requires_grad:
                value.register_hook(self._gradient(f"module {call.path}|{call.number}|{path}"))

    def _gradient(self, name: str) -> Any:
        def hook(gradient: Tensor) -> None:
            self.gradients[name] = trees.dtype_name(gradient), trees.array(trees.host(gradient))

        return hook

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


def look(lab: Lab, side: Side) -> Seen:
    """One forward and backward pass under hooks; weights and gradients are left as the pass left them."""
    side.reset()
    watch = Watch(side.model)
    try:
        outputs, loss = lab.run(side)
        results = _arrays({**outputs, "loss": loss})
        if lab.trains and loss is not None:
            loss.backward()
    finally:
        watch.close()
    return Seen(watch.calls, results, watch.gradients)


def ends(lab: Lab, side: Side, forward: Any = None) -> Arrays:
    """Outputs, loss and the gradients of all parameters, without hooks, which would break graphs."""
    side.reset()
    outputs, loss = lab.run(side, forward)
    results = _arrays({**outputs, "loss": loss})
    if lab.trains and loss is not None:
        loss.backward()
    gradients = {f"gradient of {n}": p.grad for n, p in side.model.named_parameters() if p.grad is not None}
    return results | _arrays(gradients)


def compared(device: Arrays, cpu: Arrays, truth: Arrays, limit: int, demand: Numerics, dtype: str, role: str = "output") -> (
        list[Numbers]):  # fmt: skip
    """Numbers of every tensor that all sides have; names that only the device lacks are left to the caller."""
    triples = [
        Triple(name, kind, values, truth[name][1], cpu[name][1] if name in cpu else None, role=role)
        for name, (kind, values) in device.items()
        if name in truth
    ]
    return judge.judge(triples, limit, demand, decided_in=dtype)


def first_wrong_forward(lab: Lab, device: Seen, cpu: Seen, truth: Seen) -> Module | None:
    """The first call, in the order in which calls end, whose inputs agree and whose output does not.

    Where a function between modules is at fault, the module after it was given wrong inputs; the module whose code calls
    that function is then the first whose inputs agree.
    """
    dtype = lab.job.dtype
    for key, call in device.calls.items():
        if key not in truth.calls:
            continue
        mine, exact = cpu.calls.get(key), truth.calls[key]
        limit, demand = lab.limit, lab.demand
        numbers = compared(call.outputs, mine.outputs if mine else {}, exact.outputs, limit, demand, dtype)
        if not judge.wrong(numbers):
            continue
        inputs = compared(call.inputs, mine.inputs if mine else {}, exact.inputs, limit, demand, dtype)
        if not judge.wrong(inputs):
            return Module(path=call.path, kind=call.kind, call=call.number, numbers=judge.wrong(numbers))
    numbers = judge.wrong(compared(device.results, cpu.results, truth.results, lab.limit, lab.demand, dtype))
    return Module(path=None, kind="forward", call=0, numbers=numbers) if numbers else None


def first_wrong_gradient(lab: Lab, device: Seen, cpu: Seen, truth: Seen) -> Module | None:
    """The first gradient that is wrong, in the order in which the device's backward pass makes them."""
    found: dict[str, Numbers] = {}
    for kind in ("parameter ", "module "):  # gradients of one kind are of one scale, and peers of each other
        mine = {name: value for name, value in device.gradients.items() if name.startswith(kind)}
        some = compared(mine, cpu.gradients, truth.gradients, lab.limit, lab.demand, lab.job.dtype, "gradient")
        found |= {n.tensor: n for n in some}
    numbers = [found[name] for name in device.gradients if name in found]
    owners = {name: path for path, module in lab.target_side.model.named_modules() for name in (
        f"parameter {path}.{n}" if path else f"parameter {n}" for n, _ in module.named_parameters(recurse=False))}  # fmt: skip
    for n in numbers:
        if not n.findings:
            continue
        if n.tensor.startswith("parameter "):
            path, call = owners.get(n.tensor, ""), 0
        else:
            path, number, _ = n.tensor.removeprefix("module ").split("|")
            call = int(number)
        kind = type(lab.target_side.model.get_submodule(path)).__name__
        return Module(path=path, kind=kind, call=call, numbers=[n])
    missing = sorted(truth.gradients.keys() - device.gradients.keys())
    if missing:
        name = missing[0].removeprefix("parameter ")
        numbers = [judge.absent(f"gradient of {name}")]
        return Module(path=owners.get(missing[0], ""), kind="", call=0, numbers=numbers)
    return None


def updated_weights(lab: Lab) -> list[Numbers]:
    """One optimizer step on every side, with the target's gradients and the target's state; weights that came out wrong.

    The target's side must hold the gradients of its own backward pass.
    """
    if not lab.trains:
        return []
    device = lab.target_side
    gradients = {n: None if p.grad is None else trees.host(p.grad) for n, p in device.model.named_parameters()}
    before = {n: trees.array(trees.host(p)) for n, p in device.model.named_parameters()}
    after: list[Arrays] = []
    for side in lab.sides:
        if side is not device:
            side.reset()
            for name, parameter in side.model.named_parameters():
                gradient = gradients[name]
                parameter.grad = None if gradient is None else gradient.to(parameter.dtype)
        assert side.optimizer is not None
        side.optimizer.step()
        after.append(_arrays(dict(side.model.named_parameters())))
    triples = [
        Triple(name, kind, values, after[2][name][1], after[1][name][1], start=before[name], role="weight")
        for name, (kind, values) in after[0].items()
    ]
    return judge.wrong(judge.judge(triples, lab.limit, lab.demand))
