"""What becomes of a call that the device cannot compute: the CPU instead, the user's own error, or a refusal.

A *failure* is a call of an operator that has a lowering, or a decomposition into such, and that nevertheless could not be
lowered, compiled or run. Normally it retreats to the CPU. ``TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS`` forbids that,
and ``NEURON_FALLBACK_ENABLED=0`` forbids it where compiling or running failed. Before a call is refused, PyTorch's CPU kernel is
asked: what it raises is the user's mistake, and is raised as it is. Operators without a lowering, and those that a support
profile sends to the CPU, are no failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NoReturn, TypeAlias

import torch

from . import config, fallback, places, refusals
from .errors import (
    CompilationFailed,
    FallbackRefused,
    KernelError,
    LoweringError,
    NEFFExecutionError,
    ProgramFailed,
    ShakedownError,
    said_by,
)
from .operators import Operator, qualified_name
from .plan import FallbackPlan

Stage: TypeAlias = Literal["LOWERING", "COMPILATION", "EXECUTION"]
# Whatever the CPU would make of the call, these are to be seen.
PASSED_ON = (KernelError, FallbackRefused, torch.OutOfMemoryError)


def stage_of(error: Exception, ran: bool) -> Stage:
    """How far the call had come; `ran`: it had a program, which was called."""
    if isinstance(error, CompilationFailed):
        return "COMPILATION"
    # A program is traced when it is called first, so what a lowering raises comes from there, and has a note of its step.
    traced = isinstance(error, LoweringError) or hasattr(error, "failing_step")
    return "EXECUTION" if ran and not traced else "LOWERING"


def reason_of(error: Exception) -> str:
    """Why a call retreats, for the record of fallbacks."""
    return error.reason if isinstance(error, LoweringError) else said_by(error)


def plan_of(operator: Operator, error: Exception, ran: bool) -> FallbackPlan:
    """The decision that calls of a key whose first one failed with `error` run on the CPU."""
    return FallbackPlan(reason_of(error), stage_of(error, ran) if _is_implemented(operator, error) else "")


def retreat(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, ran: bool) -> Any:
    """Run a call that failed with `error` on the CPU; `ran` as for :func:`stage_of`.

    Raises:
        FallbackRefused: a setting forbids it.
        Exception: the CPU kernel's own, or one of :data:`PASSED_ON`.
    """
    check(operator, args, kwargs, error, ran)
    return fallback.run(operator, args, kwargs, reason_of(error))


def again(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], plan: FallbackPlan) -> Any:
    """Run a call on the CPU because one of the same key did: :func:`retreat`, if that one had failed."""
    if plan.stage:
        _refuse_if_forbidden(operator, args, kwargs, plan.stage, plan.reason, None)
    return fallback.run(operator, args, kwargs, plan.reason)


def unmet(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> Any:
    """Put a call whose data do not meet a demand of its lowering to the CPU, which raises PyTorch's error for them."""
    _refuse_if_forbidden(operator, args, kwargs, "LOWERING", message, None)
    return fallback.run(operator, args, kwargs, message)


def check(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
    ran: bool,
    stack: str | None = None,
) -> None:
    """Raise unless a call that failed with `error` may run on the CPU. `stack`: where it was called, if not here.

    Raises:
        FallbackRefused: a setting forbids it.
        Exception: the CPU kernel's own for these arguments, or `error`, if it is one of :data:`PASSED_ON`.
    """
    if isinstance(error, PASSED_ON):
        raise error
    if operator.lowering is not None and operator.lowering.of_user:  # the CPU has the same kernel; it is for the device
        if isinstance(error, LoweringError):
            raise KernelError(f"{operator.name} cannot be a program of the device: {error.reason}")
        raise error
    if _is_implemented(operator, error):
        _refuse_if_forbidden(operator, args, kwargs, stage_of(error, ran), reason_of(error), error, stack)


def _is_implemented(operator: Operator, error: Exception) -> bool:
    if operator.lowering is not None:
        return True
    # A decomposition that ends in an operator without a lowering is none of ours.
    return operator.decomposition is not None and not isinstance(error, LoweringError)


def _forbidden_by(stage: str) -> str | None:
    """The setting that forbids a retreat, as it is written."""
    if config.STRICT_FALLBACK():
        return f"{config.STRICT_FALLBACK.name}=1"
    if stage != "LOWERING" and not config.FALLBACK_ENABLED():
        return f"{config.FALLBACK_ENABLED.name}=0"
    return None


def _refuse_if_forbidden(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    stage: str,
    reason: str,
    cause: Exception | None,
    stack: str | None = None,
) -> None:
    setting = _forbidden_by(stage)
    if setting is None:
        return
    host = "accepts the call"
    try:
        refusals.ask(operator, args, kwargs)
    except NotImplementedError as error:
        if not any(t.dtype in _HALF for t in tensors_in((args, kwargs))):
            raise  # no kernel of the CPU's takes such dtypes
        host = f"cannot compute it either ({said_by(error)})"
    given = [*zip((a.name for a in operator.op._schema.arguments), args), *kwargs.items()]
    if stack is None and config.STACK_TRACE():
        stack = places.stack_of_caller()
    raise FallbackRefused(
        _text(stage, operator.name, reason, _tried(operator), ", ".join(f"{n}: {described(v)}" for n, v in given))
        + f"\n  {setting} keeps it from running on the CPU instead, which {host}"
        + (f"\n  called at {stack}" if stack else "")
    ) from cause


def refuse_node(node: torch.fx.Node, error: Exception) -> NoReturn:
    """Raise for a node of a captured graph whose lowering failed with `error`, under strict fallback."""
    values = [(a, n.meta.get("val") if isinstance(n, torch.fx.Node) else n) for a, n in _arguments(node)]
    where = places.line_of_node(node)
    name = qualified_name(node.target) if isinstance(node.target, torch._ops.OpOverload) else str(node.target)
    raise FallbackRefused(
        _text("LOWERING", name, said_by(error), "its lowering", ", ".join(f"{n}: {described(v)}" for n, v in values))
        + f"\n  {config.STRICT_FALLBACK.name}=1 keeps it from running outside of the compiled graph instead"
        + (f"\n  called at {where}" if where else "")
    ) from error


def of_graph(name: str, error: Exception, consuming: bool) -> NoReturn:
    """Raise for a graph whose program failed with `error` when it was run, though it had run before.

    Raises:
        ProgramFailed: it may run operator by operator; nothing has been consumed or written.
        NEFFExecutionError: it may not, or its inputs are gone (`consuming`).
        Exception: `error`, if it is one of the device's own.
    """
    if isinstance(error, (ShakedownError, *PASSED_ON)) or hasattr(error, "failing_step"):
        raise error
    text = f"EXECUTION FAILED: {name}: {said_by(error)}"
    if consuming or _forbidden_by("EXECUTION"):
        raise NEFFExecutionError(text) from error
    raise ProgramFailed(text, ran=True) from error


def called_at(graph: torch.fx.Graph, operator: str) -> str:
    """`` called at LINE``, or several, for the calls of an operator in a graph; "" unless stack traces are on."""
    if not config.STACK_TRACE():
        return ""
    found = [places.line_of_node(n) for n in graph.nodes if str(n.target) == operator]
    lines = list(dict.fromkeys(filter(None, found)))
    return f" called at {' or '.join(lines)}" if lines else ""


def _arguments(node: torch.fx.Node) -> list[tuple[str, Any]]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return [(str(i), a) for i, a in enumerate(node.args)]
    return [*zip((a.name for a in node.target._schema.arguments), node.args), *node.kwargs.items()]


def _text(stage: str, name: str, reason: str, tried: str, arguments: str) -> str:
    reason = reason.removeprefix("CompilationFailed: ").removeprefix(f"{stage} FAILED: ").removeprefix(f"{name}: ")
    return f"{stage} FAILED: {name}: {reason}\n  tried last: {tried}\n  arguments: {arguments or 'none'}"


def _tried(operator: Operator) -> str:
    if operator.lowering is None:
        return "PyTorch's decomposition of it"
    fn = operator.lowering.fn
    return f"its lowering {getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', fn)}"


# An accelerator may well compute with these what the CPU's kernels lack: that they refuse is no mistake of the user's.
_HALF = (torch.float16, torch.bfloat16, torch.complex32)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a call's arguments or results, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


_MOST = 80  # characters


def described(value: Any) -> str:
    """An argument in words: ``float32[2, 3] on neuron:0`` for a tensor, long ones cut."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        shown = [described(v) for v in value[:4]] + ([f"{len(value) - 4} more"] if len(value) > 4 else [])
        return f"[{', '.join(shown)}]"
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."
