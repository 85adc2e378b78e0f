"""What there is to run: the entries of ``op_db`` and ``module_db``, their sample inputs, and copies on the device."""

from __future__ import annotations

import collections
import importlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch

Suite = Literal["op_db", "module_db"]

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
DTYPE_NAMES = tuple(str(d).removeprefix("torch.") for d in DTYPES)

# Arguments that PyTorch requires on the CPU whatever device the rest is on: (entry, position among `args`).
_STAYS_ON_THE_CPU = {("tensor_split", 0)}


class DatabaseUnavailable(Exception):
    """PyTorch's databases cannot be imported."""


@dataclass(frozen=True)
class Entry:
    """One entry of a database. `name` holds the variant after a dot, as in ``nn.functional.pad.reflect``."""

    suite: Suite
    name: str
    info: Any

    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes among :data:`DTYPES` that the entry claims for the CPU."""
        claimed = self.info.supported_dtypes("cpu") if self.suite == "op_db" else self.info.dtypes
        return tuple(d for d in DTYPES if d in claimed)

    def differentiable(self, dtype: torch.dtype) -> bool:
        if self.suite == "module_db":
            return dtype.is_floating_point or dtype.is_complex
        return bool(self.info.supports_autograd and dtype in self.info.supported_backward_dtypes("cpu"))


def _database(module: str, name: str) -> list[Any]:
    try:
        return list(getattr(importlib.import_module(f"torch.testing._internal.{module}"), name))
    except ImportError as error:
        raise DatabaseUnavailable(
            f"PyTorch's {name} needs a package that is missing ({error}): pip install 'shakedown[conformance]'"
        ) from error


@lru_cache(maxsize=2)
def entries(suite: Suite) -> tuple[Entry, ...]:
    """All entries of a database, in PyTorch's order; names are made unique with ``#2`` where PyTorch repeats one.

    Raises:
        DatabaseUnavailable: a package that the database imports is missing.
    """
    infos = (
        _database("common_methods_invocations", "op_db")
        if suite == "op_db"
        else _database("common_modules", "module_db")
    )
    seen: dict[str, int] = {}
    made = []
    for info in infos:
        variant = getattr(info, "variant_test_name", "")
        name = f"{info.name}.{variant}" if variant else info.name
        seen[name] = seen.get(name, 0) + 1
        made.append(Entry(suite, name if seen[name] == 1 else f"{name}#{seen[name]}", info))
    return tuple(made)


def entry(suite: Suite, name: str) -> Entry:
    return next(e for e in entries(suite) if e.name == name)


def seed() -> None:
    """Reset every generator that the databases draw from, so that sample `n` is the same in every process."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def samples(found: Entry, dtype: torch.dtype, *, gradients: bool) -> list[Any]:
    """The entry's ``SampleInput``s on the CPU."""
    seed()
    return list(found.info.sample_inputs("cpu", dtype, requires_grad=gradients))


def mistakes(found: Entry) -> Iterator[Any]:
    """The entry's ``ErrorInput``s on the CPU, one by one: some are large.

    ``OpInfo.error_inputs`` gives the same, and inspects the whole stack for each: with all modules loaded that takes longer
    than the calls themselves.
    """
    seed()
    yield from found.info.error_inputs_func(found.info, "cpu")


def spread(count: int, limit: int | None) -> Sequence[int]:
    """Up to `limit` of the numbers below `count`, evenly spread; all of them without a limit."""
    if limit is None or count <= limit:
        return range(count)
    return sorted({i * count // limit for i in range(limit)})


def arguments(
    found: Entry, call: tuple[Any, tuple[Any, ...], dict[str, Any]]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(input, args, kwargs) of a call of the entry, on the device."""
    fixed = {place for name, place in _STAYS_ON_THE_CPU if name == found.info.name}
    given, args, kwargs = moved(call)
    return given, tuple(h if i in fixed else a for i, (a, h) in enumerate(zip(args, call[1]))), kwargs


def moved(value: Any) -> Any:
    """`value` with every tensor on the device: leaves of the same sizes, strides and requires_grad.

    Tensors that are the same object, or share a storage, are and do so on the device too.
    """
    return _Move(value).of(value)


class _Move:
    def __init__(self, value: Any) -> None:
        found = {id(t): t for t in tensors(value) if _is_plain(t)}
        users = collections.Counter(t.untyped_storage()._cdata for t in found.values())
        self._shared = {storage for storage, count in users.items() if count > 1}
        self._storages: dict[int, torch.Tensor] = {}  # shared host storage -> its bytes on the device
        self._tensors: dict[int, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._tensors[id(value)] = self._tensor(value)
            return self._tensors[id(value)]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.of(v) for v in value))
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(v) for v in value)
        if isinstance(value, dict):
            return {k: self.of(v) for k, v in value.items()}
        if isinstance(value, torch.device):
            return torch.device("neuron") if value.type == "cpu" else value
        if isinstance(value, str) and value == "cpu":
            return "neuron"
        return value

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if value.device.type != "cpu":
            return value  # some error inputs are of another device on purpose
        if not _is_plain(value):
            return value.detach().to("neuron").requires_grad_(value.requires_grad)
        storage = value.untyped_storage()
        count = storage.nbytes() // value.dtype.itemsize
        plain = value.detach().resolve_conj().resolve_neg()
        shared = storage._cdata in self._shared
        if shared or count != value.numel() or plain.stride() != value.stride():  # views may reach all of the storage
            flat = value.detach().as_strided((count,), (1,), 0)
            if shared:
                flat = self._storages.setdefault(storage._cdata, flat.to("neuron")).view(value.dtype)
            else:
                flat = flat.to("neuron")
            made = flat.as_strided(value.shape, value.stride(), value.storage_offset())
        else:
            made = value.detach().to("neuron")
        return made.requires_grad_(value.requires_grad)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and tensor.device.type == "cpu"


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor inside lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def mapped(value: Any, fn: Any) -> Any:
    """`value` with `fn` applied to every tensor inside lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(v, fn) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(v, fn) for v in value)
    if isinstance(value, dict):
        return {k: mapped(v, fn) for k, v in value.items()}
    return value


def set_aside(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a view at an offset into a larger storage, its last two dimensions stored transposed."""
    if tensor.layout is not torch.strided:
        return tensor
    grad = tensor.requires_grad
    flat = tensor.detach().resolve_conj().resolve_neg()
    turned = flat.dim() > 1
    source = flat.transpose(-1, -2) if turned else flat
    room = torch.cat([source.new_zeros(3), source.reshape(-1), source.new_zeros(2)])
    view = room[3 : 3 + source.numel()].view(source.shape)
    return (view.transpose(-1, -2) if turned else view).requires_grad_(grad)
