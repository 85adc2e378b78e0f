"""Sparse tensors: PyTorch's own structures around indices and values that live on the device.

A COO or compressed tensor is PyTorch's C++ object; its members are device tensors, so an operator on it is made of operators on
them. Three kinds of kernel serve the two dispatch keys: PyTorch's CPU kernels where they are written in terms of other
operators and follow no address (:data:`STRUCTURAL_COO`, :data:`STRUCTURAL_COMPRESSED`), functions on tensors
(:func:`coo`, :func:`compressed`), and the CPU with a record of it. Loaded with the first sparse tensor.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from . import events
from .buffer import is_device_tensor
from .lowering import registry
from .operators import qualified_name

OpOverload: TypeAlias = torch._ops.OpOverload
Tensor: TypeAlias = torch.Tensor
aten = torch.ops.aten
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

_COO, _COMPRESSED = "SparsePrivateUse1", "SparseCsrPrivateUse1"
_CPU_KEYS = {_COO: torch._C.DispatchKey.SparseCPU, _COMPRESSED: torch._C.DispatchKey.SparseCsrCPU}
_functions: dict[str, dict[OpOverload, Callable[..., Any]]] = {_COO: {}, _COMPRESSED: {}}
_kernels: dict[str, dict[OpOverload, Callable[..., Any]]] = {_COO: {}, _COMPRESSED: {}}
_library: torch.library.Library | None = None

# CPU kernels that apply one operator to the values. In-place and `out=` forms are written the same way.
_ELEMENTWISE = (
    *("abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor", "frac", "isinf"),
    *(
        "isnan",
        "isneginf",
        "isposinf",
        "log1p",
        "neg",
        "rad2deg",
        "relu",
        "round",
        "sgn",
        "sign",
        "signbit",
        "sin",
        "sinh",
    ),
    *("sqrt", "tan", "tanh", "trunc", "threshold_backward", "conj_physical"),
)
STRUCTURAL_COO = {
    *_ELEMENTWISE,
    *("_coalesced_", "_indices", "_nnz", "_values", "indices", "values", "is_coalesced", "sparse_dim", "dense_dim"),
    *("_dimI", "_dimV", "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_with_dims", "empty"),
    *("empty_like", "clone", "copy_sparse_to_sparse_", "copy_", "resize_as_sparse_", "sparse_resize_", "is_pinned"),
    *("sparse_resize_and_clear_", "zero_", "zeros", "unsqueeze", "permute", "_sparse_broadcast_to", "cat", "any"),
    *("narrow_copy", "nan_to_num", "pow", "div", "floor_divide", "sum", "norm", "native_norm", "mv"),
    *("view_as_real", "view_as_complex", "_to_sparse", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr"),
    "_to_sparse_bsc",
}
STRUCTURAL_COMPRESSED = {
    *_ELEMENTWISE,
    *("_nnz", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices", "sparse_dim", "dense_dim"),
    *("empty_like", "clone", "copy_", "empty", "resize_as_sparse_", "resize_", "is_pinned", "angle", "_conj_physical"),
    *("zero_", "fill_", "normal_", "select", "select_copy", "sum", "_to_dense", "_to_sparse", "_to_sparse_csr"),
    *("_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc", "sparse_mask"),
}


def _registration(key: str, names: tuple[str, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def put(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            op = registry.overload(name)
            if op in _functions[key]:
                raise ValueError(f"aten.{name} has two kernels for {key}")
            _functions[key][op] = fn
        return fn

    return put


def coo(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function on tensors as the kernel of the overloads `names` when an argument is a COO tensor.

    It runs below autograd. In-place and ``out=`` forms follow from a functional one. Returning ``NotImplemented`` leaves the
    call to the CPU, which is recorded.
    """
    return _registration(_COO, names)


def compressed(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like :func:`coo`, for calls with a CSR, CSC, BSR or BSC tensor."""
    return _registration(_COMPRESSED, names)


def coo_tensor(indices: Tensor, values: Tensor, size: Any, coalesced: bool = False) -> Tensor:
    """A COO tensor around `indices` (int64 [sparse_dim, nnz]) and `values` ([nnz, *dense sizes]), without any check.

    Fewer than two entries count as coalesced, as in PyTorch.
    """
    return aten._sparse_coo_tensor_with_dims_and_tensors(
        indices.shape[0],
        values.dim() - 1,
        list(size),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        is_coalesced=coalesced or None,
    )


def compressed_tensor(like: Tensor, values: Tensor) -> Tensor:
    """A tensor with the layout, sizes and indices of the compressed tensor `like` and other `values`."""
    return aten._sparse_compressed_tensor_unsafe(
        *members(like)[:2], values, like.shape, dtype=values.dtype, layout=like.layout, device=values.device
    )


def members(self: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compressed indices, plain indices and values of a compressed tensor."""
    if self.layout in (torch.sparse_csr, torch.sparse_bsr):
        return self.crow_indices(), self.col_indices(), self.values()
    return self.ccol_indices(), self.row_indices(), self.values()


def is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


# --- kernels --------------------------------------------------------------------------------------------------------------


def _counted(op: OpOverload, fn: Callable[..., Any]) -> Callable[..., Any]:
    tally = events.tally(qualified_name(op))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        if result is NotImplemented:
            return on_the_cpu(op, args, kwargs, "a sparse combination without a kernel")
        tally.runs += 1
        return result

    return kernel


def _writing(op: OpOverload, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place or ``out=`` form `op` of the functional kernel `fn`."""
    target_name = next(a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    in_place = not any(a.is_out for a in op._schema.arguments)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        target = args[0] if in_place else kwargs[target_name]
        given = kwargs if in_place else {n: v for n, v in kwargs.items() if n != target_name}
        made = fn(*args, **given)
        if made is NotImplemented:
            return NotImplemented
        if in_place and not torch.can_cast(made.dtype, target.dtype):
            raise RuntimeError(f"result type {made.dtype} can't be cast to the desired output type {target.dtype}")
        return store(target, made)

    return kernel


def store(target: Tensor, made: Tensor) -> Tensor:
    """Put the value `made` into `target`, a tensor of the same layout."""
    made = made.to(target.dtype)
    if target.layout is not made.layout:
        raise RuntimeError(f"expected a result with layout {made.layout}, but got {target.layout}")
    if target.layout is torch.strided:
        return (target if target.shape == made.shape else target.resize_(made.shape)).copy_(made)
    if target.layout is torch.sparse_coo:
        return aten.copy_sparse_to_sparse_(target, made)
    aten.resize_as_sparse_(target, made)
    for mine, new in zip(members(target), members(made)):
        mine.copy_(new)
    return target


def _kernel_of(op: OpOverload, key: str) -> Callable[..., Any]:
    name = op._schema.name.split("::")[1]
    found = _functions[key].get(op)
    if found is not None:
        return _counted(op, found)
    functional = registry.functional_of(op)
    if functional is not None and functional is not op and functional in _functions[key]:
        return _counted(op, _writing(op, _functions[key][functional]))
    structural = STRUCTURAL_COO if key == _COO else STRUCTURAL_COMPRESSED
    cpu_key = _CPU_KEYS[key]
    # Redispatching to a key without a kernel crashes the interpreter instead of raising, so ask first.
    if _has_kernel(op.name(), cpu_key.name) and (name in structural or name.removesuffix("_") in structural):
        return functools.partial(op._op_dk, cpu_key)
    return lambda *args, **kwargs: on_the_cpu(op, args, kwargs, "no sparse kernel for this device")


def call(key: str, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run `op`, which the dispatcher sent to `key`."""
    install()
    kernel = _kernels[key].get(op)
    if kernel is None:
        kernel = _kernels[key][op] = _kernel_of(op, key)
    return kernel(*args, **kwargs)


@functools.cache
def install() -> None:
    """Give each operator that has a sparse kernel on the CPU, or here, one for this device.

    The boxed door alone would not do: PyTorch prefers a default kernel, which knows nothing of sparse tensors, to a boxed one.
    (Operators on compressed tensors have had doors since the device started.)
    """
    global _library
    from . import sparse_compressed, sparse_coo, sparse_products  # noqa: F401  (they register their functions)

    _library = torch.library.Library("aten", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace != "aten":
            continue
        for key, cpu_key in _CPU_KEYS.items():
            if _has_kernel(name, cpu_key.name):
                op = registry.overload(rest)
                kernel = _kernels[key][op] = _kernel_of(op, key)
                if key == _COO and not _has_kernel(name, key):  # the first of them have doors of their own
                    _library.impl(op, kernel, key)


# --- the CPU instead --------------------------------------------------------------------------------------------------------


def to_host(tensor: Tensor) -> Tensor:
    """A CPU tensor with the values, layout and indices of the sparse device tensor `tensor`."""
    if tensor.layout is torch.sparse_coo:
        made = aten._sparse_coo_tensor_with_dims_and_tensors(
            tensor.sparse_dim(),
            tensor.dense_dim(),
            tensor.shape,
            tensor._indices().cpu(),
            tensor._values().cpu(),
            dtype=tensor.dtype,
            layout=tensor.layout,
            device=torch.device("cpu"),
            is_coalesced=tensor.is_coalesced(),
        )
        return made
    compressed_indices, plain_indices, values = (m.cpu() for m in members(tensor))
    return aten._sparse_compressed_tensor_unsafe(
        compressed_indices, plain_indices, values, tensor.shape, dtype=tensor.dtype, layout=tensor.layout, device="cpu"
    )


def to_device(tensor: Tensor) -> Tensor:
    """The sparse CPU tensor `tensor` with its members on the device."""
    if tensor.layout is torch.sparse_coo:
        indices, values = tensor._indices().to("neuron"), tensor._values().to("neuron")
        return coo_tensor(indices, values, tensor.shape, tensor.is_coalesced())
    compressed_indices, plain_indices, values = (m.to("neuron") for m in members(tensor))
    return aten._sparse_compressed_tensor_unsafe(
        compressed_indices,
        plain_indices,
        values,
        tensor.shape,
        dtype=values.dtype,
        layout=tensor.layout,
        device=values.device,
    )


def on_the_cpu(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """Run the call on CPU copies, bring back what it returns and writes, and record that.

    Raises:
        Exception: whatever the CPU raises for these arguments.
    """
    start_ns = time.perf_counter_ns()
    twins: list[tuple[Tensor, Tensor]] = []
    nbytes = 0

    def count(tensor: Tensor) -> None:
        nonlocal nbytes
        parts = (
            (tensor,)
            if tensor.layout is torch.strided
            else (tensor._values(),)
            if tensor.is_sparse
            else members(tensor)
        )
        nbytes += sum(p.numel() * p.dtype.itemsize for p in parts)

    def away(value: Any) -> Any:
        if is_device_tensor(value):
            for mine, host in twins:
                if mine is value:
                    return host
            host = to_host(value) if is_sparse(value) else value.cpu()
            count(host)
            twins.append((value, host))
            return host
        if isinstance(value, (list, tuple)):
            return type(value)(away(v) for v in value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value

    def back(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            for mine, host in twins:
                if host is value:
                    return mine
            count(value)
            return to_device(value) if is_sparse(value) else value.to("neuron")
        if isinstance(value, (list, tuple)):
            return type(value)(back(v) for v in value)
        return value

    result = op(*away(args), **{n: away(v) for n, v in kwargs.items()})
    named = [*zip((a.name for a in op._schema.arguments), args), *kwargs.items()]
    written = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    for name, value in named:
        if name in written and is_device_tensor(value):
            host = away(value)
            store(value, to_device(host) if is_sparse(host) else host.to("neuron"))
    answer = back(result)
    events.record(
        "fallback",
        qualified_name(op),
        start_ns=start_ns,
        duration_ns=time.perf_counter_ns() - start_ns,
        nbytes=nbytes,
        detail=reason,
    )
    return answer
