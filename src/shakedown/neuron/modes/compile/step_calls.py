"""Calls of a step: which program serves one, and what is put in place after it.

Each captured loss has a program for every arrangement of parameters, optimizer options, state and gradients that it is called
with. A call that is like the last one is recognised without making a key.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ... import profiles
from ...buffer import is_device_tensor
from ...errors import UnsupportedStep
from ...lowering.checks import Demand
from .. import adaptive
from .step_program import StepGraph
from .step_trace import NeedsTheNumber, Path, Recipe, StateKey, Subject, Traced, number_at, trace

if TYPE_CHECKING:
    from .step import TrainingStep

_numbers = itertools.count()


class _Recent:
    """The program that ran last, and all that it took, so that a call like the last one is known without a key."""

    def __init__(
        self,
        graph: StepGraph,
        traced: Traced,
        subject: Subject,
        tensors: list[Tensor],
        parameters: list[Tensor],
        options: list[list[Any]],
        updates: bool,
        keep_gradients: bool,
    ) -> None:
        self.graph, self.traced, self.subject, self.tensors, self.parameters = (
            graph,
            traced,
            subject,
            tensors,
            parameters,
        )
        self.options, self.kind = options, (updates, keep_gradients)
        self.storages: list[Any] = []
        self.profile = profiles.active
        number = len(subject.inputs) + len(subject.more)
        state = subject.optimizer.state
        # (what the optimizer remembers of a parameter, the name of one tensor of it, the tensor)
        self.states = [(state[parameters[i]], name, tensors[number + k]) for k, (i, name) in enumerate(subject.states)]
        self.remembered = list(state.values())  # held, so that no other dict can have the same id
        self.counts = list(map(len, self.remembered))

    def fits(
        self,
        optimizer: torch.optim.Optimizer,
        inputs: tuple[Tensor, ...],
        parameters: list[Tensor],
        options: list[list[Any]],
        updates: bool,
        keep_gradients: bool,
    ) -> bool:
        """Whether the program serves this call; then its tensors and storages are this call's."""
        subject = self.subject
        if subject.gradients or self.kind != (updates, keep_gradients) or self.profile is not profiles.active:
            return False
        if subject.optimizer is not optimizer:
            return False
        if len(parameters) != len(self.parameters) or options != self.options:
            return False
        for p, known in zip(parameters, self.parameters):
            if p is not known or p.grad is not None:
                return False
        tensors = self.tensors
        for i, (t, number) in enumerate(zip(inputs, subject.of_input)):
            known = tensors[i]
            if t is not known:
                # Sizes, strides and dtype are what Dynamo's guards have checked.
                if number is not None or t.storage_offset() != known.storage_offset() or t.device != known.device:
                    return False
                if t.requires_grad and any(t is p for p in parameters):
                    return False
                tensors[i] = t
        # By what the state holds and not by its keys: hashing a parameter costs more than all the rest of this.
        remembered = list(optimizer.state.values())
        if list(map(id, remembered)) != list(map(id, self.remembered)) or list(map(len, remembered)) != self.counts:
            return False
        for known_of, name, known in self.states:
            if known_of.get(name) is not known:
                return False
        if not self.graph.host.still(tensors):
            return False
        self.storages = self.graph.storages(tensors)
        return self.graph.seats(self.storages)


class Captured:
    """A captured loss, and the programs of the steps that are made with it."""

    def __init__(self, owner: TrainingStep, module: torch.fx.GraphModule) -> None:
        self._owner, self.module = weakref.ref(owner), module
        self.programs: dict[Any, tuple[StepGraph, Any]] = {}

    # Dynamo keeps what it has compiled as long as the loss's code lives, which may be as long as the process: neither the step
    # nor its tensors may live as long for that.

    @property
    def owner(self) -> TrainingStep:
        found = self._owner()
        assert found is not None, "called by its step"
        return found

    @property
    def recent(self) -> _Recent | None:
        return self.owner.recent.get(self)

    @recent.setter
    def recent(self, found: _Recent | None) -> None:
        self.owner.recent[self] = found

    def __call__(self, *inputs: Any) -> list[Tensor]:
        owner = self.owner
        optimizer = owner.optimizer
        parameters = owner.parameters()
        if owner.placed:
            for p in parameters:
                if p.grad is not None and owner.placed.get(id(p)) is p.grad:
                    p.grad = None
            owner.placed = {}
        options = owner.options()
        updates = owner.calls + 1 >= owner.accumulate
        recent = self.recent
        if recent is None or not recent.fits(optimizer, inputs, parameters, options, updates, owner.keep_gradients):
            recent = self._recent(inputs, parameters, options, updates)
        graph, traced, subject = recent.graph, recent.traced, recent.subject
        try:
            results, broken = graph(recent.tensors, recent.storages, self._values(subject))
        except torch.OutOfMemoryError:
            if not graph.ran:  # nothing has been done yet, and the optimizer keeps no state for it
                self.recent = None
                self._forget(graph.begun)
            raise
        recent.storages = []
        if broken is not None:
            self._refuse(inputs, broken)
        outputs, rest = results[: traced.outputs], results[traced.outputs :]
        for (number, option), value in zip(traced.fresh, rest):
            optimizer.state[parameters[number]][option] = value
        if traced.gradients or subject.gradients:
            kept = dict(zip(traced.gradients, rest[len(traced.fresh) :]))
            for number, p in enumerate(parameters):
                if updates or number in kept:
                    p.grad = kept.get(number)
                    if updates and p.grad is not None:
                        owner.placed[id(p)] = p.grad
        owner.calls = 0 if updates else owner.calls + 1
        if updates:
            optimizer._opt_called = True  # what schedulers ask before they warn
        return outputs

    def _recent(self, inputs: tuple[Any, ...], parameters: list[Tensor], options: Any, updates: bool) -> _Recent:
        owner = self.owner
        owner.watch(options)
        found = self._find(list(inputs), parameters, updates) or self._make(list(inputs), parameters, updates)
        graph, traced, subject = found
        tensors = subject.tensors()
        graph.straighten(tensors)
        made = _Recent(graph, traced, subject, tensors, parameters, owner.options(), updates, owner.keep_gradients)
        made.storages = graph.storages(tensors)
        self.recent = made
        return made

    # --- finding the program --------------------------------------------------------------------------------------------

    def _subject(self, inputs: list[Tensor], parameters: list[Tensor]) -> Subject:
        optimizer = self.owner.optimizer
        number_of = {id(p): i for i, p in enumerate(parameters) if p.requires_grad}
        of_input = [number_of.get(id(t)) for t in inputs]
        gradients = [i for i, p in enumerate(parameters) if p.grad is not None]
        taken = {i for i in of_input if i is not None}
        more = [i for i in gradients if i not in taken]
        taken.update(more)
        states: list[StateKey] = []
        known = optimizer.state
        for i in sorted(taken):
            if parameters[i] in known:
                states += [(i, k) for k, v in known[parameters[i]].items() if isinstance(v, Tensor)]
        return Subject(optimizer, parameters, inputs, of_input, more, states, gradients, self.owner.number_paths())

    def _key(self, subject: Subject, updates: bool) -> tuple[Any, list[int], list[int]]:
        """(what the program is specialised on; 0-d state tensors; which of those are equal)."""
        tensors = subject.tensors()
        first = len(subject.inputs) + len(subject.more)
        counters, same = [], []
        classes: dict[Any, int] = {}
        for i in range(first, first + len(subject.states)):
            t = tensors[i]
            if t.dim() == 0:
                counters.append(i)
                value = (t.dtype, t.item()) if t.device.type == "cpu" else i
                same.append(classes.setdefault(value, len(classes)))
        options = tuple(
            (option, value if _hashable(value) else repr(value))
            for g, group in enumerate(subject.optimizer.param_groups)
            for option, value in group.items()
            if option != "params"
            for value in [_without_numbers(g, option, value, subject.numbers)]
        )
        seats: dict[Any, int] = {}
        layouts = tuple(
            (t.dtype, t.storage_offset(), t.stride(), t.shape, seats.setdefault(t.untyped_storage()._cdata, len(seats)))
            for t in tensors
        )
        marks = tuple(
            (t.is_conj(), t.is_neg()) for t in (*subject.inputs, *tensors[len(tensors) - len(subject.gradients) :])
        )
        key = (
            *(tuple(subject.of_input), tuple(subject.more), tuple(subject.states), tuple(subject.gradients)),
            *(tuple(subject.numbers), options, layouts, marks, tuple(same), updates, self.owner.keep_gradients),
            id(profiles.active),
            tuple(len(g["params"]) for g in subject.optimizer.param_groups),
        )
        return key, counters, same

    def _find(self, inputs: list[Tensor], parameters: list[Tensor], updates: bool) -> Any:
        subject = self._subject(inputs, parameters)
        key, _, _ = self._key(subject, updates)
        found = self.programs.get(key)
        return None if found is None else (*found, subject)

    def _values(self, subject: Subject) -> list[float]:
        groups = subject.optimizer.param_groups
        values = [number_at(groups, path) for path in subject.numbers]
        return [float(v.item() if isinstance(v, Tensor) else v) for v in values]

    def _make(self, inputs: list[Tensor], parameters: list[Tensor], updates: bool) -> Any:
        """A new program for these inputs."""
        owner = self.owner
        self._check(inputs, parameters)
        recipe = Recipe(updates, owner.accumulate, owner.keep_gradients, owner.clip_grad_norm, owner.before_update)
        begun: list[Tensor] = []
        try:
            if updates:
                begun = self._begin_state(inputs, parameters)
            while True:
                subject = self._subject(inputs, parameters)
                try:
                    traced = trace(self.module, subject, recipe)
                except NeedsTheNumber:
                    spots = {path[1:] for path in subject.numbers}
                    if spots <= {("lr", None)}:
                        raise
                    owner.constant |= spots - {("lr", None)}
                    continue
                idle = [i for i in traced.without_gradient if any(p is parameters[i] for p in begun)]
                if not idle:
                    break
                for i in idle:  # the loss does not depend on it, so its optimizer has nothing to keep
                    del owner.optimizer.state[parameters[i]]
                    begun = [p for p in begun if p is not parameters[i]]
            key, counters, same = self._key(subject, updates)
            graph = StepGraph(f"{owner.name}_{next(_numbers)}_step".lower(), traced, subject, same, counters)
            graph.begun = begun
        except NeedsTheNumber as error:
            self._forget(begun)
            raise UnsupportedStep(
                f"{type(owner.optimizer).__name__} decides by a number that is computed in the step ({error}): make the "
                "optimizer with capturable=True where it has that, or leave it outside of the compiled part"
            ) from error
        except BaseException:
            self._forget(begun)
            raise
        while len(self.programs) >= owner.max_programs:
            self.programs.pop(next(iter(self.programs)))
        self.programs[key] = graph, traced
        return graph, traced, subject

    def _forget(self, begun: list[Tensor]) -> None:
        for p in begun:
            self.owner.optimizer.state.pop(p, None)

    def _begin_state(self, inputs: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
        """Have the optimizer make its state before the first step, so that this step's program serves all that follow.

        PyTorch's optimizers do it in a method of their own, which takes a group and lists to fill. Where there is none, the
        first step has a program to itself. Returns the parameters that have state now.
        """
        optimizer = self.owner.optimizer
        begin = getattr(optimizer, "_init_group", None)
        taken = {id(t) for t in inputs} | {id(p) for p in parameters if p.grad is not None}
        new = [p for p in parameters if id(p) in taken and p.requires_grad and not optimizer.state.get(p)]
        if begin is None or not new:
            return []
        lists = list(inspect.signature(begin).parameters)[1:]
        held = [(p, p.grad) for p in parameters]
        try:
            for p in parameters:
                p.grad = None
            for p in new:
                p.grad = torch.zeros_like(p)
            with torch.no_grad():
                for group in optimizer.param_groups:
                    begin(group, *([] for _ in lists))
                    if type(optimizer) is torch.optim.SGD and group["momentum"] and not group["dampening"]:
                        # Its first step stores the gradient itself, which is what a buffer of zeros becomes.
                        for p in group["params"]:
                            if p.grad is not None:
                                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        except BaseException:  # too little memory for all of it: half a state would be taken for a whole one
            self._forget(new)
            raise
        finally:
            for p, grad in held:
                p.grad = grad
        return [p for p in new if optimizer.state.get(p)]

    # --- refusing -------------------------------------------------------------------------------------------------------

    def _check(self, inputs: list[Tensor], parameters: list[Tensor]) -> None:
        optimizer = self.owner.optimizer
        for i, p in enumerate(parameters):
            if not is_device_tensor(p):
                raise UnsupportedStep(
                    f"parameter {i} of the optimizer is on {p.device}: move the model to the device before the optimizer "
                    "is made"
                )
            if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
                raise UnsupportedStep(
                    f"parameter {i} of the optimizer has a hook on its gradient, which a compiled step would not call: "
                    "use before_update"
                )
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            raise UnsupportedStep(
                f"{type(optimizer).__name__} has hooks around its step, which a compiled step would not call: use "
                "before_update, or call them yourself"
            )
        for t in inputs:
            if not isinstance(t, Tensor):
                raise UnsupportedStep(f"the captured loss takes a {type(t).__name__}: pass tensors")

    def _refuse(self, inputs: Any, broken: Demand) -> NoReturn:
        """Raise what the loss raises for these data in eager execution; nothing has been put in place."""
        where = f"(in {broken.operator} of a compiled step)"
        adaptive.flush("compiled step")
        try:
            with torch.no_grad():
                self.module(*(t.clone() for t in inputs))
            adaptive.flush("compiled step")
        except (IndexError, ValueError, RuntimeError) as error:
            raise type(error)(f"{error} {where}") from None
        raise broken.error(f"{broken.message} {where}")


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _without_numbers(group: int, option: str, value: Any, numbers: list[Path]) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(None if (group, option, i) in numbers else part for i, part in enumerate(value))
    return None if (group, option, None) in numbers else value
