"""A whole training step as one functional graph: loss, gradients and the optimizer's update, traced on fake tensors.

The loss was captured by Dynamo. It runs here under autograd, then the user's optimizer runs its own Python on fake copies of its
parameters and state, all of it functional, so that whatever the step writes comes out as a result. A number that changes
from step to step (a learning rate) is an input: the optimizer computes with a ``torch.SymFloat``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize  # as AOTAutograd makes its graphs functional
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ... import profiles
from ...errors import UnsupportedStep, said_by
from ...lowering import registry

_INSTEAD = 'torch.compile(model, backend="neuron") with the optimizer outside does not need it'

Path = tuple[int, str, int | None]  # a number of an optimizer: group, option, and its place where the option is a tuple
StateKey = tuple[int, str]  # a tensor of an optimizer's state: number of its parameter, name


class NeedsTheNumber(Exception):
    """The optimizer decides by the value of a number that was to be an input."""


@dataclass
class Subject:
    """What a step is made of: everything that its graph may read and write, in the order of the graph's inputs.

    ``inputs`` are those of the captured loss; ``of_input`` says which parameter each of them is, if any; ``more`` lists
    parameters that the loss does not take and that have a gradient. Numbers count ``parameters``.
    """

    optimizer: torch.optim.Optimizer
    parameters: list[Tensor]
    inputs: list[Tensor]
    of_input: list[int | None]
    more: list[int]
    states: list[StateKey]
    gradients: list[int]  # parameters that have one already, to which this step's is added
    numbers: list[Path]

    def state(self, key: StateKey) -> Tensor:
        return self.optimizer.state[self.parameters[key[0]]][key[1]]

    def tensors(self) -> list[Tensor]:
        """All tensors, without the numbers."""
        return [
            *self.inputs,
            *(self.parameters[i] for i in self.more),
            *map(self.state, self.states),
            *(self.parameters[i].grad for i in self.gradients),
        ]


@dataclass(frozen=True)
class Recipe:
    """What a step does beside the loss: ``accumulate`` steps share one update, which this step makes if ``updates``."""

    updates: bool
    accumulate: int
    keep_gradients: bool
    max_norm: float | None
    before_update: Callable[[list[Tensor]], Any] | None


@dataclass
class Traced:
    """A functional graph. Its placeholders are the subject's tensors, then its numbers (float64[] each).

    Its outputs, in order: those of the loss's graph; the value after the step of each tensor of the subject (the placeholder
    itself where it stays); new state tensors of the optimizer (``fresh``); gradients (of the parameters ``gradients``).
    """

    module: torch.fx.GraphModule
    outputs: int
    fresh: list[StateKey]
    gradients: list[int]
    without_gradient: list[int] = field(default_factory=list)  # parameters that the step cannot train


def number_at(groups: Sequence[dict[str, Any]], path: Path) -> Any:
    value = groups[path[0]][path[1]]
    return value if path[2] is None else value[path[2]]


def trace(loss: torch.fx.GraphModule, subject: Subject, recipe: Recipe) -> Traced:
    """The graph of one step. Model and optimizer are as they were afterwards, whatever happens.

    Raises:
        UnsupportedStep: the step cannot be one graph.
        NeedsTheNumber: one of ``subject.numbers`` has to be a constant.
    """
    counts = (len(subject.inputs), len(subject.more), len(subject.states), len(subject.gradients))
    found = Traced(loss, 0, [], [])

    def step(*flat: Any) -> list[Any]:
        supply = iter(flat)
        inputs, more, states, gradients = ([next(supply) for _ in range(n)] for n in counts)
        leaves: dict[int, Any] = {}
        given = list(inputs)
        for i, number in enumerate(subject.of_input):
            if number is not None:
                given[i] = leaves[number] = inputs[i].detach().requires_grad_()
        for number, value in zip(subject.more, more):
            leaves[number] = value.detach().requires_grad_()
        results = _forward(loss, given, leaves)
        before = dict(zip(subject.gradients, gradients))
        for number, grad in _gradients(results[0], leaves, recipe.accumulate, subject):
            old = before.get(number)
            if grad is None and old is None:
                found.without_gradient.append(number)
            leaves[number].grad = old if grad is None else grad if old is None else old + grad
        fresh: list[Any] = []
        with torch.no_grad():
            if recipe.updates:
                parameters = [leaves[i] for i in sorted(leaves)]
                if recipe.max_norm is not None:
                    torch.nn.utils.clip_grad_norm_(parameters, recipe.max_norm, foreach=False)
                if recipe.before_update is not None:
                    recipe.before_update(parameters)
                numbers = dict(zip(subject.numbers, supply))
                fresh = _update(subject, leaves, dict(zip(subject.states, states)), numbers, found.fresh)
        if recipe.keep_gradients or not recipe.updates:
            found.gradients.extend(i for i, leaf in sorted(leaves.items()) if leaf.grad is not None)
        found.outputs = len(results)
        kept = [leaves[i].grad for i in found.gradients]
        return [*(r.detach() for r in results), *inputs, *more, *states, *gradients, *fresh, *kept]

    with _disable_current_modes():
        mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
        fakes = [mode.from_tensor(t.detach(), static_shapes=True) for t in subject.tensors()]
        fakes += [mode.from_tensor(torch.zeros((), dtype=torch.float64)) for _ in subject.numbers]
        decompositions = registry.decomposition_table()
        if profiles.active is not None:
            decompositions = profiles.active.kept_whole(decompositions)
        functional = dispatch_functionalize(step)
        try:
            with mode:
                found.module = make_fx(
                    lambda *flat: functional(*flat),
                    decomposition_table=decompositions,
                    tracing_mode="real",
                    _allow_non_fake_inputs=True,
                )(*fakes)
        except GuardOnDataDependentSymNode as error:
            raise NeedsTheNumber(said_by(error)) from error
    found.module.graph.eliminate_dead_code()
    return found


def _forward(loss: torch.fx.GraphModule, given: list[Any], leaves: dict[int, Any]) -> list[Any]:
    with torch.enable_grad():
        results = list(loss(*given))
    first = results[0] if results else None
    if not isinstance(first, Tensor) or first.dim() != 0 or not first.requires_grad:
        what = f"a tensor of sizes {list(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
        if isinstance(first, Tensor) and first.dim() == 0:
            what = "one that no parameter of the optimizer takes part in"
        raise UnsupportedStep(
            f"compile_step needs a loss of one element that depends on the parameters, and got {what}"
        )
    return results


def _gradients(
    loss: Any, leaves: dict[int, Any], accumulate: int, subject: Subject
) -> Iterator[tuple[int, Tensor | None]]:
    with torch.enable_grad():
        scaled = loss if accumulate == 1 else loss / accumulate
        numbers = sorted(leaves)
        found = torch.autograd.grad(scaled, [leaves[i] for i in numbers], allow_unused=True)
    for number, grad in zip(numbers, found):
        if grad is not None and grad.layout is not torch.strided:
            raise UnsupportedStep(
                f"compile_step cannot take sparse gradients (of parameter {number} of the optimizer, sizes "
                f"{list(subject.parameters[number].shape)}): make the embedding with sparse=False, or {_INSTEAD}"
            )
        yield number, grad


@contextmanager
def _standing_in(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: Any) -> Iterator[None]:
    """`optimizer` over other parameters. Whatever it does to itself meanwhile is undone, or refused if it is no tensor's."""
    before = dict(vars(optimizer))
    own = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    optimizer.param_groups, optimizer.state = groups, state
    try:
        yield
        changed = [
            k for k, v in vars(optimizer).items() if k not in ("param_groups", "state") and before.get(k) is not v
        ]
        changed += [k for group, old in zip(groups, own) for k, v in old.items() if group.get(k) is not v]
        if changed:
            raise UnsupportedStep(
                f"{type(optimizer).__name__} changes {changed[0]!r} in each step, which is no tensor, so a compiled step "
                f"would repeat one value for ever: keep it in a 0-d tensor of the state, or {_INSTEAD}"
            )
    finally:
        for name in set(vars(optimizer)) - set(before):
            delattr(optimizer, name)
        vars(optimizer).update(before)


class _FusedAsFunctional(TorchFunctionMode):
    """Fused optimizers by their functional forms: functionalization refuses a list that is empty, and they take one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not (name.startswith("_fused_") and name.endswith("_")):
            return func(*args, **kwargs)
        packet = getattr(torch.ops.aten, name.removesuffix("_"))
        operator = packet.tensor_lr if isinstance(kwargs.get("lr"), Tensor) else packet.default
        new = operator(*args, **kwargs)
        lists = [given for given in args if isinstance(given, (list, tuple))]
        # What a form returns comes in the order of its arguments; those after it are only read.
        for olds, news in zip(lists, new):
            for old, value in zip(olds, news):
                old.copy_(value)
        return None


def _update(
    subject: Subject,
    leaves: dict[int, Any],
    states: dict[StateKey, Any],
    numbers: dict[Path, Any],
    fresh: list[StateKey],
) -> list[Any]:
    """Run the optimizer's own step. Returns new state tensors, whose keys go to `fresh`."""
    optimizer = subject.optimizer
    number_of = {id(p): i for i, p in enumerate(subject.parameters)}
    groups: list[dict[str, Any]] = []
    for g, group in enumerate(optimizer.param_groups):
        twin = dict(group)
        twin["params"] = [leaves[number_of[id(p)]] for p in group["params"] if number_of[id(p)] in leaves]
        if twin.get("foreach"):
            twin["foreach"] = False  # the same arithmetic, and one program has no launches to save
        for path, value in numbers.items():
            if path[0] == g:
                # A fused operator's learning rate may be a tensor; as a number it would become a constant.
                value = value if group.get("fused") and path[1] == "lr" else value.item()
                if path[2] is not None:
                    parts = list(twin[path[1]])
                    parts[path[2]] = value
                    value = tuple(parts)
                twin[path[1]] = value
        groups.append(twin)
    state: Any = defaultdict(dict)
    for number, leaf in leaves.items():
        known = optimizer.state.get(subject.parameters[number])
        if known:
            state[leaf] = dict(known)
    for (number, name), value in states.items():
        if number in leaves:
            state[leaves[number]][name] = value
    before = {leaf: dict(known) for leaf, known in state.items()}
    step = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__  # without the profiler's span; hooks were refused before
    with _standing_in(optimizer, groups, state), _FusedAsFunctional():
        step(optimizer)
    made: list[Any] = []
    for number, leaf in sorted(leaves.items()):
        for name, value in state.get(leaf, {}).items():
            old = before.get(leaf, {}).get(name)
            if value is old:
                continue
            if isinstance(value, Tensor):
                fresh.append((number, name))
                made.append(value)
            elif value != old:
                raise UnsupportedStep(
                    f"{type(optimizer).__name__} keeps the {type(value).__name__} {name!r} in its state, and a compiled step "
                    f"would repeat one value for ever: keep it in a 0-d tensor, or {_INSTEAD}"
                )
    return made
