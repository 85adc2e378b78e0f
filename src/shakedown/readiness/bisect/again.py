"""Running an operator again on the CPU and in float64, and the operators that have no single right answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import trees

_UNSET = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "empty_permuted", "set_"}
# Moves, compares and selections: a result has the bits of an input, so anything but equality is wrong.
_MOVES = {
    "clone", "copy_", "cat", "stack", "index_select", "gather", "index", "where", "embedding", "flip", "roll", "repeat",
    "constant_pad_nd", "tril", "triu", "masked_fill", "masked_fill_", "select_scatter", "slice_scatter", "_foreach_copy_",
    "zero_", "fill_", "zeros_like", "ones_like", "full_like", "masked_select", "maximum", "minimum", "relu",
}  # fmt: skip
# Operators whose second result, or only result, is a position: equal values may be found at several.
_POSITIONS = {
    "argmax": (None, 0), "argmin": (None, 0), "max.dim": (0, 1), "min.dim": (0, 1), "topk": (0, 1), "sort": (0, 1),
    "sort.stable": (0, 1), "kthvalue": (0, 1), "median.dim": (0, 1), "mode": (0, 1),
}  # fmt: skip
_STATISTICS = ("running_mean", "running_var")  # written by batch_norm kernels without a word in their schema


def base_name(func: Any) -> str:
    """``add_`` of ``aten.add_.Tensor``."""
    return str(func._schema.name).split("::")[1]


def short_name(func: Any) -> str:
    """``max.dim`` of ``aten.max.dim``; without the overload where it is the default one."""
    return base_name(func) + (f".{func._overloadname}" if func._overloadname != "default" else "")


def full_name(func: Any) -> str:
    """``aten::gelu`` or ``aten::add.Tensor``, as PyTorch's schemas have it."""
    return f"{func.namespace}::{short_name(func)}"


def by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call under the names of its schema."""
    return dict(zip((a.name for a in func._schema.arguments), args)) | kwargs


def why_not(func: Any, args: Any, kwargs: Any) -> str | None:
    """Why an operator is not judged at all: None for most of them, empty where there is nothing to judge."""
    if func.namespace in ("profiler", "prim", "prims") or func.is_view or base_name(func) in ("detach", "lift_fresh"):
        return ""  # a view touches metadata only
    named = by_name(func, args, kwargs)
    off = named.get("dropout_p", named.get("p")) == 0.0
    if torch.Tag.nondeterministic_seeded in func.tags and not off:
        return "random: every device draws numbers of its own"
    if base_name(func) in _UNSET:
        return ""  # memory that nobody has written yet
    return None


def moves(func: Any) -> bool:
    """Whether results must have the bits of the inputs."""
    return base_name(func) in _MOVES


def rounds(func: Any) -> bool:
    """Whether the operator is a cast, whose rounding is what it is for: float64 rounds there too."""
    return base_name(func) == "_to_copy"


def written(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments that the operator writes, by name."""
    named = by_name(func, args, kwargs)
    marked = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    if "batch_norm" in base_name(func) and not base_name(func).endswith("backward") and named.get("training", True):
        marked |= set(_STATISTICS)
    return {name: value for name, value in named.items() if name in marked and value is not None}


def outputs(func: Any, args: Any, kwargs: Any, result: Any) -> dict[str, Tensor]:
    """All that a call made, by name: what it wrote, then what it returned and had not written."""
    named = dict(trees.leaves(written(func, args, kwargs)))
    known = {id(value) for value in named.values()}
    names = [
        r.name or f"output{i}" if len(func._schema.returns) > 1 else "output"
        for i, r in enumerate(func._schema.returns)
    ]
    items = list(result) if isinstance(result, (tuple, list)) and len(names) > 1 else [result]
    for name, item in zip(names, items):
        named |= {path: value for path, value in trees.leaves({name: item}) if id(value) not in known}
    return named


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Any = None, dropout: float = 0.0, causal: bool = False,
               *rest: Any, scale: float | None = None) -> Tensor:  # fmt: skip
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, bias, dropout, causal, scale=scale)


def _attention_forward(q: Tensor, *args: Any, return_debug_mask: bool = False, **kwargs: Any) -> tuple[Tensor, ...]:
    """The result; what a kernel keeps for its gradient is its own business, and NaN here (:func:`unknown`)."""
    return (_attention(q, *args, **kwargs), *(q.new_full((1,), math.nan) for _ in range(8)))


def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Any, wanted: Any, out: Any, lse: Any,
                        cum_q: Any, cum_k: Any, max_q: Any, max_k: Any, dropout: float, causal: bool, *rest: Any,
                        scale: float | None = None) -> tuple[Any, ...]:  # fmt: skip
    inputs = [t.detach().requires_grad_() if t is not None and want else t for t, want in zip((q, k, v, bias), wanted)]
    with torch.enable_grad():
        result = _attention(*inputs, dropout, causal, scale=scale)
        asked = [t for t in inputs if t is not None and t.requires_grad]
        made = iter(torch.autograd.grad(result, asked, grad))
    return tuple(next(made) if t is not None and t.requires_grad else None for t in inputs)


def _linear_backward(x: Tensor, grad: Tensor, weight: Tensor, wanted: Any) -> tuple[Any, ...]:
    rows, given = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    made = (lambda: (rows @ weight).reshape(x.shape), lambda: rows.T @ given, lambda: rows.sum(0))
    return tuple(make() if want else None for make, want in zip(made, wanted))


# Operators that only devices have, in operators that the CPU has.
_DEVICE_ONLY: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_fused_attention_overrideable": _attention_forward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "linear_backward": _linear_backward,
}


def unknown(value: Tensor) -> bool:
    """Whether a stand-in's result says nothing: all of it is NaN."""
    return value.is_floating_point() and value.numel() > 0 and bool(value.isnan().all())


def stands_in(func: Any) -> bool:
    """Whether only devices have the operator, so that some of its results are :func:`unknown` on the CPU."""
    return base_name(func) in _DEVICE_ONLY


def function(func: Any) -> Callable[..., Any]:
    """What computes `func` on the CPU: its kernel, or the same mathematics where only devices have a kernel."""
    if stands_in(func):
        return _DEVICE_ONLY[base_name(func)]
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    if any(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key) for key in keys):
        return func
    from torch._decomp import decomposition_table

    found: Callable[..., Any] = decomposition_table.get(func, func)
    return found


def _widened(value: Any) -> Any:
    """Arguments that ask for floating results of some dtype ask for float64."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, list):
        return [_widened(item) for item in value]
    return {key: _widened(item) for key, item in value.items()} if isinstance(value, dict) else value


def run(func: Any, args: Any, kwargs: Any, wide: bool) -> dict[str, Tensor]:
    """Run `func` on copies of host arguments, in float64 if `wide`; everything that it made, by name.

    Raises whatever the CPU raises.
    """
    copy = trees.wide if wide else torch.clone
    given = trees.mapped([args, kwargs], copy)
    if "device" in given[1] and given[1]["device"] is not None:
        given[1]["device"] = torch.device("cpu")
    if given[1].get("pin_memory"):
        given[1]["pin_memory"] = False
    if wide and not rounds(func):
        given = _widened(given)
    if wide and base_name(func) in ("_softmax", "_log_softmax") and len(given[0]) > 2:
        given[0][2] = False  # "half to float" is a rounding that float64 does not have
    result = function(func)(*given[0], **given[1])
    if stands_in(func):
        result = tuple(None if isinstance(v, Tensor) and unknown(v) else v for v in result)
    made = {name: value.detach() for name, value in outputs(func, given[0], given[1], result).items()}
    return {name: trees.wide(value) for name, value in made.items()} if wide and rounds(func) else made


def legal_positions(func: Any, args: Any, device: dict[str, Tensor], cpu: dict[str, Tensor], kwargs: Any) -> set[str]:
    """Names of outputs that hold other positions than the CPU's, of the same values: ties, which anyone may break."""
    rule = _POSITIONS.get(short_name(func))
    if rule is None or not isinstance(args[0], Tensor):
        return set()
    names = list(cpu)
    name = names[rule[1]]
    if name not in device or torch.equal(device[name], cpu[name]) or device[name].shape != cpu[name].shape:
        return set()
    named = by_name(func, args, kwargs)
    dim, source = named.get("dim"), args[0]
    if dim is None and short_name(func) in ("argmax", "argmin"):
        source, dim, shape = source.flatten(), 0, (1,)
        ours, theirs = device[name].reshape(shape), cpu[name].reshape(shape)
    else:
        dim = -1 if dim is None else dim
        ours, theirs = device[name], cpu[name]
        if ours.dim() < source.dim():
            ours, theirs = ours.unsqueeze(dim), theirs.unsqueeze(dim)
    length = source.shape[dim]
    if bool((ours < 0).any()) or bool((ours >= length).any()):
        return set()
    found = torch.equal(source.gather(dim, ours.long()), source.gather(dim, theirs.long()))
    return {name} if found else set()


def repeated_places(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a writing operator was given one place twice, so that the last writer wins: any order is legal."""
    named = by_name(func, args, kwargs)
    base = base_name(func).rstrip("_")
    if base in ("scatter", "scatter_reduce") and isinstance(named.get("index"), Tensor):
        index, dim = named["index"], named["dim"]
        ordered = index.sort(dim).values
        return bool((ordered.diff(dim=dim) == 0).any())
    if base == "index_copy":
        return bool(named["index"].unique().numel() < named["index"].numel())
    if base in ("index_put", "_index_put_impl", "_unsafe_index_put") and not named.get("accumulate", False):
        places = [i for i in named["indices"] if isinstance(i, Tensor)]
        if any(i.dtype in (torch.bool, torch.uint8) for i in places):
            return False
        rows = torch.stack([i.flatten() for i in torch.broadcast_tensors(*places)], 1)
        return bool(len(rows.unique(dim=0)) < len(rows))
    return False
