"""The door for every operator: build the key, find the plan, run it. The first call of a key goes to :mod:`.plan`.

The hot path is :func:`kernel_of`'s closure. What it does per call is bounded: read each tensor's view and buffer, one
dictionary look-up, one call of a compiled program, one C call per output.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import config, events, failures, fallback, lazy, profiles, rng, runtime, transfer
from .buffer import DEVICE
from .call_key import TENSOR_TYPES, HostTensor, input_of, key_of, storage_pattern
from .errors import KernelError, LoweringError
from .ledger import ledger
from .lowering import registry
from .memory_limit import make_room_for, prepare
from .modes.adaptive.cuts import mark_of
from .operators import Operator, Role, qualified_name
from .pending import settled
from .plan import FallbackPlan, Plan, build

if TYPE_CHECKING:
    from .modes.adaptive.recorder import Recorder

OpOverload: TypeAlias = torch._ops.OpOverload
Tensor: TypeAlias = torch.Tensor
_default_dtype = torch.get_default_dtype

_operators: dict[OpOverload, Operator] = {}
_kernels: dict[OpOverload, Callable[..., Any]] = {}
_plan_count = 0
_recorder: Recorder | None = None  # of adaptive eager; decided once, before the first kernel is made


def kernel_of(operator: Operator) -> Callable[..., Any]:
    """The kernel of one overload."""
    plans, roles, kwarg_roles = operator.plans, operator.roles, operator.kwarg_roles
    random, draws, writes = operator.random, operator.draws, bool(operator.written)
    tally, name = operator.tally, operator.name
    tensor_role, types = Role.TENSOR, TENSOR_TYPES
    numbers = any(role is Role.NUMBERS for role, _ in roles)
    recorder = _recorder
    join, ordered = None if recorder is None else recorder.join, torch._C._get_deterministic_algorithms

    def kernel(*args: Any, **kwargs: Any) -> Any:
        key: list[Any] = [_default_dtype()]
        inputs: list[Any] = []
        try:
            for a, (role, specialise) in zip(args, roles):
                if role is tensor_role:
                    if type(a) in types:
                        inputs.append(a.untyped_storage().buffer)
                        key += (a.dtype, a.shape, a.stride(), a.storage_offset())
                    elif a is None:
                        key.append(None)
                    else:
                        input_of(a, key, inputs)
                else:
                    key_of(a, role, specialise, key, inputs)
            for n, a in kwargs.items():
                key.append(n)
                role, specialise = kwarg_roles[n]
                if role is tensor_role and a is not None:
                    input_of(a, key, inputs)
                else:
                    key_of(a, role, specialise, key, inputs)
            if writes:
                # Tensors that share a storage share its buffer, so distinct buffers settle it (equal ones need not share, and
                # equal numbers are one value).
                distinct = not numbers and len(set(map(id, inputs))) == len(inputs)
                key.append(distinct or storage_pattern(operator, args, kwargs))
            if random and (draws is None or draws(args, kwargs)):
                inputs.append(_random_key(args, kwargs))
        except AttributeError:  # a plain tensor without a buffer: of another device, or a CPU scalar
            return _careful(operator, args, kwargs)
        except (HostTensor, LoweringError) as problem:
            return _irregular(operator, args, kwargs, problem)
        found = tuple(key)
        try:
            plan = plans[found]
        except KeyError:
            plan = None  # the first call is not made here, or each of its errors would come "during" this one
        if plan is None:
            return _first_call(operator, found, args, kwargs, inputs)
        if ledger.limit is not None:
            make_room_for(operator, plan, args, kwargs)
        if join is not None:
            if type(plan) is Plan and not ordered():
                return join(plan, inputs, args, kwargs)
            inputs = _let_alone(plan, inputs)
        if type(plan) is FallbackPlan:
            return failures.again(operator, args, kwargs, plan)
        start_ns = time.perf_counter_ns() if events.listening else 0
        try:  # which costs nothing
            buffers = plan.run(*inputs)
        except Exception as error:
            return failures.retreat(operator, args, kwargs, error, ran=True)
        tally.runs += 1
        if start_ns:
            events.emit_execute(name, start_ns)
        single = plan.single
        if single is not None:
            return single.new(buffers)
        return plan.finish(args, kwargs, buffers if type(buffers) is list else [buffers])

    return kernel


def _let_alone(plan: Plan | FallbackPlan | None, inputs: list[Any]) -> list[Any]:
    """Before a call that adaptive eager does not record: run what it has recorded. Returns the values of `inputs`."""
    assert _recorder is not None
    reason = "new operator" if plan is None else "fallback" if type(plan) is FallbackPlan else "deterministic"
    _recorder.flush(reason)
    return [settled(b, reason) for b in inputs]


def _random_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The few schemas that take a generator by position have it last, and C++ hands over its own class of generators.
    generator = args[-1] if args and type(args[-1]) is torch._C.Generator else kwargs.get("generator")
    return rng.next_key() if generator is None else rng.key_from_generator(generator)


def _finish(
    operator: Operator, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], buffers: Any, start_ns: int
) -> Any:
    """Count a run that began at `start_ns` and put its buffers in place: what the hot path does in line."""
    operator.tally.runs += 1
    if events.listening:
        events.emit_execute(operator.name, start_ns)
    return plan.finish(args, kwargs, buffers if type(buffers) is list else [buffers])


def _first_call(
    operator: Operator, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Any]
) -> Any:
    """Build the plan of a new key and run it; or decide on the CPU, remember that, and run there."""
    runtime.check_process()
    transfer.check_device(kwargs.get("device"))
    if _recorder is not None:
        inputs = _let_alone(None, inputs)
    profile = profiles.active
    with _disable_current_modes(), torch.no_grad():
        reason = None if profile is None else profile.eager_reason(operator, args, kwargs)
        if reason is not None:
            return _fall_back(operator, key, args, kwargs, FallbackPlan(reason))
        plan = None
        try:
            plan = build(operator, args, kwargs)
            prepare(operator, plan, inputs, args, kwargs)
            start_ns = time.perf_counter_ns()
            buffers = plan.run(*inputs)
            plan.guard()
        except Exception as error:
            # No lowering, wrong arguments, or a meta kernel or lowering with a gap. The CPU kernel knows: it raises what the
            # user would see there, or proves that the gap is ours, and then the call is recorded as a fallback.
            problem = error
        else:
            if profile is not None:
                profile.announce()
            _remember(operator, key, plan)
            return _finish(operator, plan, args, kwargs, buffers, start_ns)
        failures.check(operator, args, kwargs, problem, plan is not None)
        decision = failures.plan_of(operator, problem, plan is not None)
        del problem  # its traceback holds this frame, and with it the tensors
        return _fall_back(operator, key, args, kwargs, decision)


def _fall_back(
    operator: Operator, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], plan: FallbackPlan
) -> Any:
    """Run a new key on the CPU, and remember to do so once that has worked.

    Raises:
        KernelError: it is a custom kernel's.
    """
    if operator.lowering is not None and operator.lowering.of_user:
        raise KernelError(f"{operator.name} cannot be a program of the device: {plan.reason}")
    result = fallback.run(operator, args, kwargs, plan.reason)
    _remember(operator, key, plan)
    return result


def _remember(operator: Operator, key: tuple[Any, ...], plan: Plan | FallbackPlan) -> None:
    global _plan_count
    if config.DISABLE_MEMORY_CACHE():
        return
    if _recorder is not None and type(plan) is Plan:
        plan.mark = mark_of(operator.name, key)
    operator.plans[key] = plan
    _plan_count += 1
    if _plan_count > config.MAX_PLANS():
        for other in _operators.values():
            for old in list(other.plans)[: (len(other.plans) + 1) // 2]:
                if old is not key:
                    other.plans.pop(old, None)
        _plan_count = sum(len(other.plans) for other in _operators.values())


def known_operators() -> list[Operator]:
    """Every operator that was called in this process."""
    return list(_operators.values())


_aside: dict[Any, dict[Operator, dict[Any, Any]]] = {}  # profile -> the plans made under it, while another is active


def set_plans_aside(old: Any, new: Any) -> None:
    """Put away the plans made under the support profile `old` and bring back those of `new` (None: native).

    So the active profile belongs to every key, and the hot path does not have to ask for it.
    """
    global _plan_count
    if _recorder is not None:
        _recorder.flush("profile")
    _aside[old] = {operator: dict(operator.plans) for operator in _operators.values() if operator.plans}
    back = _aside.pop(new, {})
    for operator in _operators.values():
        operator.plans.clear()  # the dictionary itself is held by the operator's kernel
        operator.plans.update(back.get(operator, {}))
    _plan_count = sum(len(operator.plans) for operator in _operators.values())


_TAKES_HOST_INDICES = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
}


def _irregular(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], problem: Exception) -> Any:
    """A call that cannot be keyed. CPU tensors may index a device tensor; any other mix of devices is the user's error."""
    if isinstance(problem, LoweringError):
        return failures.retreat(operator, args, kwargs, problem, ran=False)
    assert isinstance(problem, HostTensor)
    if operator.op._schema.name in _TAKES_HOST_INDICES and problem.tensor.device.type == "cpu":
        indices = [transfer.to_device(i) if i is not None and i.device.type == "cpu" else i for i in args[1]]
        if all(isinstance(a, (int, float, bool)) or not _is_host(a) for a in (args[0], *args[2:])):
            return call(operator.op, (args[0], indices, *args[2:]), kwargs)
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"neuron:0 and {problem.tensor.device}! (when checking an argument of {operator.name})"
    ) from None


def _is_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() > 0


def _careful(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel's work with every tensor's device checked: for calls that mix in CPU scalars."""
    key: list[Any] = [_default_dtype()]
    inputs: list[Any] = []
    named: list[tuple[str | None, Any, Role, Any]] = [(None, a, *r) for a, r in zip(args, operator.roles)]
    named += [(n, a, *operator.kwarg_roles[n]) for n, a in kwargs.items()]
    try:
        for name, value, role, specialise in named:
            if name is not None:
                key.append(name)
            if role is Role.TENSOR and value is not None:
                input_of(value, key, inputs)
            elif role is Role.TENSORS and value is not None:
                key.append(len(value))
                for v in value:
                    key.append(None) if v is None else input_of(v, key, inputs)
            else:
                key_of(value, role, specialise, key, inputs)
    except (HostTensor, LoweringError) as problem:
        return _irregular(operator, args, kwargs, problem)
    if operator.written:
        key.append(storage_pattern(operator, args, kwargs))
    if operator.random and (operator.draws is None or operator.draws(args, kwargs)):
        inputs.append(_random_key(args, kwargs))
    found = tuple(key)
    plan = operator.plans.get(found)
    if plan is None:
        return _first_call(operator, found, args, kwargs, inputs)
    make_room_for(operator, plan, args, kwargs)
    if _recorder is not None:
        if isinstance(plan, Plan) and not torch._C._get_deterministic_algorithms():
            return _recorder.join(plan, inputs, args, kwargs)
        inputs = _let_alone(plan, inputs)
    if isinstance(plan, FallbackPlan):
        return failures.again(operator, args, kwargs, plan)
    start_ns = time.perf_counter_ns()
    try:
        buffers = plan.run(*inputs)
    except Exception as error:
        return failures.retreat(operator, args, kwargs, error, ran=True)
    return _finish(operator, plan, args, kwargs, buffers, start_ns)


def operator_of(op: OpOverload) -> Operator:
    found = _operators.get(op)
    if found is None:
        found = _operators[op] = Operator(op)
    return found


def call(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `op` through its kernel, which is made on first sight. The boxed door of the device ends here."""
    kernel = _kernels.get(op)
    if kernel is None:
        kernel = _kernels[op] = _view_door(op) or _kernel_for(op)
    return kernel(*args, **kwargs)


def _view_door(op: OpOverload) -> Callable[..., Any] | None:
    """For a view that reached the boxed door: the fallback keeps the aliasing that its graph-only lowering would break."""
    lowering = registry.lowering_of(op)
    if lowering is None or not lowering.graph_only or registry.composite_of(op) is not None:
        return None
    operator = operator_of(op)
    return lambda *args, **kwargs: fallback.run(operator, args, kwargs, "a view without a kernel for this device")


@functools.cache
def program_kernel(op: OpOverload) -> Callable[..., Any]:
    """The kernel that runs the lowering of `op`, past a hand-written kernel or composite of the same overload."""
    return kernel_of(operator_of(op))


_STARTS_WITH_VALUES = {"aten::linspace", "aten::logspace"}  # where a tensor is a bound, not an example of sizes


def _on_the_asked_device(operator: Operator, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """For ``rand_like(x, device="cpu")``: the dispatcher chose us for `x`, but the result belongs elsewhere."""

    takes_values = operator.op._schema.name in _STARTS_WITH_VALUES

    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or device.type == DEVICE.type:
            if device is None or takes_values or hasattr(self.untyped_storage(), "buffer"):
                return kernel(self, *args, **kwargs)
            device = DEVICE  # an example of sizes without values here: a fake tensor, or one of another device
        elif takes_values:
            there = [a.to(device) if isinstance(a, torch.Tensor) else a for a in (self, *args)]
            return operator.op(*there, **kwargs)
        like = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=device)
        return operator.op(like, *args, **kwargs)

    return call


def _kernel_for(op: OpOverload) -> Callable[..., Any]:
    composite = registry.composite_of(op)
    if composite is not None:
        return _composite_kernel(op, composite)
    operator = operator_of(op)
    kernel = kernel_of(operator)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(op.name(), "Conjugate") or has(op.name(), "Negative"):
        kernel = lazy.guarded(operator, kernel)
    if "device" in operator.kwarg_roles and operator.roles[0][0] is Role.TENSOR:
        kernel = _on_the_asked_device(operator, kernel)
    return kernel


def _composite_kernel(op: OpOverload, composite: Callable[..., Any]) -> Callable[..., Any]:
    # A composite that ends in a lowering of the same overload is counted there.
    counted = registry.lowering_of(op) is None
    tally = events.tally(qualified_name(op), events.COMPOSITE if counted else "")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if profiles.active is not None:
            operator = operator_of(op)
            reason = profiles.active.eager_reason(operator, args, kwargs)
            if reason is not None:
                return fallback.run(operator, args, kwargs, reason)
        # Not while a graph is being traced.
        if counted and (type(args[0]) in TENSOR_TYPES or isinstance(args[0], list)):
            tally.runs += 1
        return composite(*args, **kwargs)

    return kernel


# --- beginning and end --------------------------------------------------------------------------------------------------


def record_with(recorder: Recorder) -> None:
    """Have calls recorded by adaptive eager: before the first kernel is made, for good."""
    global _recorder
    assert not _kernels
    _recorder = recorder


def forget_in_child() -> None:
    """After a fork: without plans, every call reaches a place that refuses (see :func:`.runtime.check_process`)."""
    runtime.mark_forked()
    if _recorder is not None:
        _recorder.forget_all()
    _aside.clear()
    for operator in _operators.values():
        operator.plans.clear()


def make_kernel(op: OpOverload) -> Callable[..., Any]:
    """The kernel of `op`, made anew and kept for :func:`call`."""
    kernel = _kernels[op] = _kernel_for(op)
    return kernel


def put_kernel(op: OpOverload, kernel: Callable[..., Any]) -> None:
    """Keep a kernel that was written by hand for :func:`call`."""
    _kernels[op] = kernel
