"""What PyTorch's CPU kernels refuse although its meta kernels do not: asked of the CPU kernel itself, on stand-in values.

Meta kernels know sizes and promotion. Three kinds of mistakes they let through, because only the kernels look:

- dtypes that an operator does not exist for (``softmax`` of integers, ``floor`` of booleans, ``clamp`` of complex numbers);
- an ``out=`` of a dtype that the operator does not convert to;
- a written tensor that is also read (``torch.take(x, index, out=x)``), which some operators allow and others do not.

Half types are not asked about: an accelerator may well compute what the CPU kernels lack. A question costs about as much
as one call on the CPU. It is put while a plan is built, so once for each key; about dtypes, once for an operator's
dtypes and numbers of dimensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from . import runtime
from .buffer import is_device_tensor
from .operators import Operator
from .pending import value_of

Tensor: TypeAlias = torch.Tensor

_CPU = torch.device("cpu")
_KERNELS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")
_HALF = (torch.float16, torch.bfloat16, torch.complex32)
# Of integers, which the kernels of other accelerators take and models count with: tokens for each expert, for instance.
_OF_INTEGERS_TOO = {"aten::histc"}
_accepted: set[tuple[Any, ...]] = set()


def check(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], alias: bool
) -> None:
    """Raise what the CPU kernel raises for this call of `tensors`, where meta kernels are known not to.

    `alias`: a written tensor is an input as well.

    Raises:
        Exception: the CPU kernel's own, for the call's real values.
    """
    signature: tuple[Any, ...] | None = None
    if not alias and not _other_dtypes(operator, args, kwargs):
        kinds = {_kind(t.dtype) for t in tensors}
        if any(isinstance(a, complex) for a in (*args, *kwargs.values())):
            kinds.add("complex")
        if not tensors or ("float" in kinds and "complex" not in kinds):
            return  # kernels dispatch on the float among them
        if operator.op._schema.name in _OF_INTEGERS_TOO and all(t.dtype is not torch.bool for t in tensors):
            return
        signature = (operator.op, tuple(map(_structure, args)), *((n, _structure(v)) for n, v in kwargs.items()))
        if signature in _accepted:
            return
    if not _has_cpu_kernel(operator.op):
        return
    only_integers = signature is not None and kinds == {"integer"}
    # A call that fails may have failed for its stand-in values: ones are for divisors, and the real values decide.
    for real, fill in ((_nothing if only_integers else _integers, 0), (_nothing, 1), (_everything, 0)):
        if fill and not only_integers:
            continue
        try:
            _ask(operator, args, kwargs, real, fill)
        except Exception as error:
            if isinstance(error, NotImplementedError) and any(t.dtype in _HALF for t in tensors):
                return
            if real is _everything:
                raise
        else:
            break
    if signature is not None:
        _accepted.add(signature)


def _has_cpu_kernel(op: Any) -> bool:
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in _KERNELS)


def _kind(dtype: torch.dtype) -> str:
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"


def _nothing(tensor: Tensor) -> bool:
    return False


def _integers(tensor: Tensor) -> bool:
    return _kind(tensor.dtype) == "integer"


def _everything(tensor: Tensor) -> bool:
    return True


def _structure(value: Any) -> Any:
    """What dtype support can depend on."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.numel() == 0
    if isinstance(value, (list, tuple)):
        return tuple(map(_structure, value)) if value and isinstance(value[0], torch.Tensor) else len(value)
    return value if value is None or isinstance(value, (bool, str, torch.dtype)) else type(value)


def _other_dtypes(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a written tensor has another dtype than the operator gives by itself, or that cannot be known."""
    if not operator.written:
        return False
    outs = [a.name for a in operator.op._schema.arguments if a.is_out]
    given = dict(zip((a.name for a in operator.op._schema.arguments), args)) | kwargs
    found = [given[n] for n in operator.written if isinstance(given.get(n), torch.Tensor)]
    if operator.functional is None or len(found) != len(operator.written):
        return bool(outs)
    there = _mapped(lambda t: torch.empty_like(t, device="meta") if is_device_tensor(t) else t)
    free = {n: there(v) for n, v in kwargs.items() if n not in outs}
    if "device" in free:
        free["device"] = torch.device("meta")
    elif not any(isinstance(a, torch.Tensor) for a in (*args, *free.values())) and any(
        a.name == "dtype" for a in operator.functional._schema.arguments
    ):
        return False  # of sizes and numbers alone: the `out` says which dtype is wanted
    try:
        made = operator.functional(*map(there, args), **free)
    except Exception:
        return True
    plain = [made] if isinstance(made, torch.Tensor) else list(made)
    return [t.dtype for t in plain] != [t.dtype for t in found]


def _mapped(fn: Callable[[Tensor], Any]) -> Callable[[Any], Any]:
    def visit(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return fn(value)
        if isinstance(value, (list, tuple)):
            return type(value)(map(visit, value))
        return None if isinstance(value, torch.Generator) else value  # ours is of another device

    return visit


def ask(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what the CPU kernel raises for this call and its values, of which nothing is changed."""
    _ask(operator, args, kwargs, _everything, 0)


def _ask(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], real: Callable[[Tensor], bool], fill: int
) -> None:
    """Call the CPU kernel on twins of the tensors: their values where `real` says so, else bytes of `fill`.

    (Integers among floats are often positions, which kernels may trust.)
    """
    storages: dict[int, Tensor] = {}

    def storage_of(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in storages:
            if real(tensor):
                storages[id(storage)] = runtime.download(value_of(storage, "new operator"), torch.uint8)
            else:
                storages[id(storage)] = (torch.ones if fill else torch.zeros)(storage.nbytes(), dtype=torch.uint8)
        return storages[id(storage)]

    def twin(tensor: Tensor) -> Tensor:
        if not is_device_tensor(tensor):
            return tensor
        if tensor.numel() == 0:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_CPU)
        raw = storage_of(tensor).untyped_storage()
        return torch.empty(0, dtype=tensor.dtype).set_(raw, tensor.storage_offset(), tensor.shape, tensor.stride())

    twins: dict[int, Tensor] = {}  # one for each tensor, wherever it is given: kernels ask whether two are the same

    def known_twin(tensor: Tensor) -> Tensor:
        if id(tensor) not in twins:
            twins[id(tensor)] = twin(tensor)
        return twins[id(tensor)]

    there = _mapped(known_twin)
    host_args, host_kwargs = there(args), {n: there(v) for n, v in kwargs.items()}
    if "device" in operator.kwarg_roles and host_kwargs.get("device") is not None:
        host_kwargs["device"] = _CPU
    random = torch.random.get_rng_state() if operator.random else None  # the CPU's generator is not ours to disturb
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the call itself warns
            operator.op(*host_args, **host_kwargs)
    finally:
        if random is not None:
            torch.random.set_rng_state(random)
