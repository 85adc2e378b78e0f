"""Arguments and results taken apart into named tensors, and put together again with others in their place."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch

Path = tuple[str, ...]
_PLAIN = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.layout,
    torch.memory_format,
)  # fmt: skip


def label(path: Path) -> str:
    """``batch.input_ids``; "the result" where the tree is one tensor."""
    return ".".join(path) or "the result"


def mapped(
    tree: Any,
    visit: Callable[[Path, torch.Tensor], torch.Tensor],
    other: Callable[[Path, Any], None] = lambda path, value: None,
    path: Path = (),
) -> Any:
    """`tree` with each tensor replaced by what `visit` makes of it; the same object where nothing changes.

    Lists, tuples, mappings and dataclasses are looked into (Transformers' outputs are mappings). `other` is called with
    every other object that is not a plain value.
    """
    if isinstance(tree, torch.Tensor):
        return visit(path, tree)
    if isinstance(tree, _PLAIN):
        return tree
    if isinstance(tree, (list, tuple)):
        items = [mapped(value, visit, other, (*path, str(i))) for i, value in enumerate(tree)]
        if all(new is old for new, old in zip(items, tree)):
            return tree
        return type(tree)._make(items) if hasattr(tree, "_make") else type(tree)(items)  # a named tuple, or any other
    if isinstance(tree, Mapping):
        found = {key: mapped(value, visit, other, (*path, str(key))) for key, value in tree.items()}
        if all(found[key] is tree[key] for key in found):
            return tree
        if not isinstance(tree, MutableMapping):
            return type(tree)(found)  # type: ignore[call-arg]
        made = copy.copy(tree)
        for key, value in found.items():
            if value is not tree[key]:
                made[key] = value
        return made
    if dataclasses.is_dataclass(tree) and not isinstance(tree, (type, torch.nn.Module)):
        same: Any = copy.copy(tree)
        for one in dataclasses.fields(tree):
            old = getattr(tree, one.name)
            new = mapped(old, visit, other, (*path, one.name))
            if new is not old:
                object.__setattr__(same, one.name, new)  # also of a frozen one, which nobody else has seen yet
        return same
    other(path, tree)
    return tree


def tensors(tree: Any) -> dict[Path, torch.Tensor]:
    """Every tensor of `tree` by its path, in order."""
    found: dict[Path, torch.Tensor] = {}

    def visit(path: Path, tensor: torch.Tensor) -> torch.Tensor:
        found[path] = tensor
        return tensor

    mapped(tree, visit)
    return found


def matches(path: Path, position: int | None, name: str | int) -> bool:
    """Whether a user's `name` means the tensor at `path`: its full path, its argument (by name or position), its own name."""
    if isinstance(name, int):
        return position == name
    return name in (".".join(path), path[0], path[-1]) if path else name == ""


class Signature:
    """How the arguments of a function are called. Where Python cannot tell, they are called by their position."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        self.positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.keywords = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument by its name, in the order of the call."""
        names = [*self.positional[: len(args)], *map(str, range(len(self.positional), len(args)))]
        return {**dict(zip(names, args)), **kwargs}

    def position(self, path: Path, count: int) -> int | None:
        """Position of the argument that holds `path` in a call with `count` positional ones."""
        name = path[0]
        if name in self.positional:
            return self.positional.index(name)
        return int(name) if name.isdigit() and int(name) < count else None

    def back(self, named: Mapping[str, Any], count: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The opposite of :meth:`named`; what was not in the call is given by keyword."""
        values = list(named.items())
        return tuple(value for _, value in values[:count]), dict(values[count:])
