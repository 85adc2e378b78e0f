"""The distinct operator calls of one training step, recorded on the CPU below autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ..observe.lines_of_user import Lines, kept_with_graph

# What PyTorch's CPU dispatch chooses inside an operator that every device has. None: no portable form of one call.
_CPU_ONLY: dict[str, Callable[..., tuple[Any, tuple[Any, ...], dict[str, Any]]] | None] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": lambda q, k, v, dropout_p=0.0, is_causal=False, **more: (
        torch.ops.aten.scaled_dot_product_attention.default,
        (q, k, v, more.get("attn_mask"), dropout_p, is_causal),
        {"scale": more.get("scale")},
    ),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": None,
}


@dataclass(frozen=True)
class Call:
    """One distinct call with its arguments as they were. ``line`` is the user's, or empty where none can be told."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: str
    phase: str
    line: str
    calls: int
    size: int

    @property
    def name(self) -> str:
        return str(self.operator)

    @property
    def tags(self) -> list[str]:
        return sorted(str(tag).removeprefix("Tag.").removeprefix("torch.Tag.") for tag in self.operator.tags)


@dataclass
class Recorded:
    """What one step held. ``unprobed`` are calls without a portable form, with the reason."""

    chosen: list[Call]
    distinct: int
    unprobed: dict[str, str] = field(default_factory=dict)
    float64_lines: dict[str, str] = field(default_factory=dict)
    largest_int64: int = 0


Step = Callable[[Callable[[str], Any]], None]  # runs one step from the snapshot; opens its argument for each phase


class _Recorder(TorchDispatchMode):
    """Counts distinct calls; in a second run over the same step keeps the arguments of those wanted."""

    def __init__(self, lines: Lines, wanted: set[str] | None = None) -> None:
        super().__init__()
        self.lines, self.wanted = lines, wanted
        self.phase = ""
        self.seen: dict[str, dict[str, Any]] = {}
        self.float64_lines: dict[str, str] = {}
        self.largest_int64 = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "profiler":  # marks a region, computes nothing
            return func(*args, **kwargs)
        key = f"{func}({describe(args, kwargs)})"
        known = self.seen.get(key)
        if known is None:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            known = self.seen[key] = {
                "operator": func,
                "arguments": describe(args, kwargs),
                "phase": self.phase,
                "line": self.lines.now(self.phase),
                "calls": 0,
                "size": sum(t.numel() for t in tensors),
            }
            if self.wanted is not None and key in self.wanted:
                known["args"], known["kwargs"] = tree_map(kept, (args, kwargs))
        known["calls"] += 1
        result = func(*args, **kwargs)
        if self.wanted is None:
            for leaf in tree_leaves((args, kwargs, result)):
                if isinstance(leaf, Tensor) and leaf.dtype == torch.float64:
                    self.float64_lines.setdefault(str(func), known["line"] or f"in the {self.phase} pass")
                elif isinstance(leaf, Tensor) and leaf.dtype == torch.int64 and leaf.numel():
                    self.largest_int64 = max(self.largest_int64, int(leaf.max()), -int(leaf.min()))
        return result


def record(step: Step, most: int, lines: Lines) -> Recorded:
    """Run `step` twice: to see which calls there are, and to keep the arguments of `most` of them.

    One call of every operator comes first, then the largest others: a second size of an operator tells less than a
    first of another one.
    """
    first = _Recorder(lines)
    _run(step, first)
    unprobed: dict[str, str] = {}
    able: dict[str, dict[str, Any]] = {}
    for key, known in first.seen.items():
        reason = _unprobeable(known["operator"])
        if reason:
            unprobed[str(known["operator"])] = reason
        else:
            able[key] = known
    largest = sorted(able, key=lambda key: -able[key]["size"])
    one_each: dict[str, str] = {}
    for key in largest:
        one_each.setdefault(str(able[key]["operator"]), key)
    wanted = set(list(dict.fromkeys([*one_each.values(), *largest]))[:most])
    second = _Recorder(lines, wanted)
    _run(step, second)
    chosen = [_call(known) for key, known in second.seen.items() if key in wanted and "args" in known]
    return Recorded(chosen, len(first.seen), unprobed, first.float64_lines, first.largest_int64)


def _run(step: Step, recorder: _Recorder) -> None:
    @contextmanager
    def phase(name: str) -> Iterator[None]:
        recorder.phase = name
        yield

    with kept_with_graph(), recorder:
        step(phase)


def _call(known: dict[str, Any]) -> Call:
    portable = _CPU_ONLY.get(str(known["operator"]))
    if portable is not None:
        operator, args, kwargs = portable(*known["args"], **known["kwargs"])
        known = known | {"operator": operator, "args": args, "kwargs": kwargs, "arguments": describe(args, kwargs)}
    return Call(**known)


def _unprobeable(operator: Any) -> str:
    name = str(operator)
    if _CPU_ONLY.get(name, "") is None or (name not in _CPU_ONLY and ("_for_cpu" in name or "mkldnn" in name)):
        return "only PyTorch's CPU dispatch chooses it, and it has no portable form of one call"
    return ""


def kept(value: Any) -> Any:
    """A copy of a tensor with the same strides, overlapping ones included; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    if value.layout != torch.strided or value.is_contiguous():
        return value.clone(memory_format=torch.preserve_format)
    return stretch(value).clone().as_strided(value.shape, value.stride())


def stretch(value: Tensor) -> Tensor:
    """The piece of storage that `value` looks at, as one dimension."""
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    return value.as_strided((extent,), (1,), value.storage_offset())


def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Arguments in a line: dtype and shape of tensors, strides where they are not the usual, other values as they are."""
    return ", ".join([*map(_said, args), *(f"{name}={_said(value)}" for name, value in kwargs.items())])


def _said(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        strides = "" if value.is_contiguous() else f" strides {list(value.stride())}"
        return f"{dtype}{list(value.shape)}{strides}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_said, value)) + "]"
    if type(value).__module__ not in ("builtins", "torch"):
        return type(value).__name__
    return repr(value)
