"""One bucketed call: sizes, edges, padded arguments, the function itself, results cut back."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..errors import BucketingError, TooLong, TooManyPrograms
from . import check, hazards, stats
from .axis import Axis, Dims, Found, Named
from .calls import Call, Settings
from .padding import Fill, ones_then_zeros, padded
from .trees import Path, Signature, label, mapped, matches

_numbers = itertools.count(2)
_names: set[str] = set()
_MODES = 8  # specialisations of one shape: training or not, gradients or not, autocast or not


class Bucketer:
    """Pads the calls of one function. Its state is the edges, and the shapes that have a program."""

    def __init__(self, name: str, signature: Signature, axes: list[Axis], settings: Settings) -> None:
        self.asked_name, self.signature, self.axes, self.settings = name, signature, axes, settings
        self.name = _unique(name)
        self.programs: dict[Any, None] = {}  # padded shapes and dtypes, in the order in which they came
        self._specialised: set[Any] = set()
        self._warned = False
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has programs of its own to compile, and counts of its own."""
        self.__dict__.update(state)
        self._lock = threading.RLock()
        self.name = _unique(self.asked_name)
        self.programs, self._specialised = {}, set()

    def __call__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start_ns = time.perf_counter_ns()
        call = self._taken_apart(args, kwargs)
        with self._lock:
            for axis in self.axes:
                call.sizes[axis.kind] = self._fitted(axis, call.tensors)
            padded_args, padded_kwargs, copies = self._padded(call, len(args))
            program, fresh = self._counted(call, padded_args, padded_kwargs)
            added = any(found.size != found.edge for found in call.sizes.values())
            if added and not self._warned:
                self._warned = True
                hazards.warn(_modules(function, call), call, self.settings.pad)
            room = self._room(program, _modules(function, call), call.device.type)
        length, batch = call.sizes["length"], call.sizes.get("batch")
        stats.record(
            self.name,
            (length.size, length.edge),
            (batch.size, batch.edge) if batch else None,
            call.first,
            any(found.longer for found in call.sizes.values()),
            start_ns,
            time.perf_counter_ns() - start_ns,
        )
        with room:
            if fresh and added and self.settings.check is not None:
                check.compare(
                    lambda: self._cut(function(*padded_args, **padded_kwargs), call),
                    lambda: self._plain(function, call, len(args)),
                    _modules(function, call),
                    call,
                    self.settings,
                    self.axes[0].main,
                )
            result = function(*padded_args, **padded_kwargs)
        for path, tensor, version in copies:
            if not tensor.is_inference() and tensor._version != version:
                raise BucketingError(
                    f"{label(path)} is written to in place, and it was padded or moved: the copy has changed, and the "
                    "caller's tensor has not; return the new value instead"
                )
        return self._cut(result, call)

    # --- arguments ------------------------------------------------------------------------------------------------------

    def _taken_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        named = self.signature.named(args, kwargs)
        tensors: list[Named] = []

        def visit(path: Path, tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout is not torch.strided or tensor.is_nested:
                raise BucketingError(f"{label(path)} is no strided tensor, so it cannot be padded")
            tensors.append(Named(path, self.signature.position(path, len(args)), tensor))
            return tensor

        for name, value in named.items():
            mapped(value, visit, path=(name,))
        return Call(named, tensors)

    def _fitted(self, axis: Axis, tensors: list[Named]) -> Found:
        size, dims = axis.sizes(tensors)
        edge = axis.edges.edge_of(size)
        if edge is not None:
            return Found(size, edge, dims)
        if self.settings.longer == "exact":
            return Found(size, size, dims, longer=True)
        raise TooLong(
            f'a {axis.kind} of {size} is not served: {axis.edges.limit}. longer="exact" runs such a call as it is'
        )

    def _fill(self, one: Named, kind: str) -> Fill:
        pad = self.settings.pad
        if isinstance(pad, Mapping):
            for name, fill in pad.items():
                if one.is_named(name):
                    return fill
        if self._is_mask(one.path):
            return 0
        if kind == "batch":
            return "edge"  # a row that is there already is one that the function can compute
        return 0 if isinstance(pad, Mapping) else pad

    def _is_mask(self, path: Path) -> bool:
        return self.settings.mask is not None and matches(path, None, self.settings.mask)

    def _padded(
        self, call: Call, count: int
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[tuple[Path, torch.Tensor, int]]]:
        """The arguments of the padded call, and the copies among them."""
        new: dict[Path, torch.Tensor] = {}
        copies: list[tuple[Path, torch.Tensor, int]] = []
        length = call.sizes["length"]
        carrier = next(path for path in length.dims if not self._is_mask(path) or len(length.dims) == 1)
        for one in call.tensors:
            ends = [
                (dim, found.edge, self._fill(one, axis))
                for axis, found in call.sizes.items()
                for dim in found.dims.get(one.path, ())
            ]
            made = one.tensor
            if ends:
                made = padded(made, ends, label(one.path), self.settings.device or made.device)
            elif self.settings.device is not None:
                made = made.to(self.settings.device)
            if one.path == carrier:
                call.first = one.tensor.numel(), made.numel()
            if made is not one.tensor:
                new[one.path] = made
                if not made.is_inference():
                    copies.append((one.path, made, made._version))
        named = {
            name: mapped(value, lambda path, tensor: new.get(path, tensor), path=(name,))
            for name, value in call.named.items()
        }
        source = next(one.tensor for one in call.tensors if one.path == carrier)
        call.device = self.settings.device or source.device
        call.real = tuple(source.shape[: length.dims[carrier][0] + 1])
        self._put_made(named, call, new.get(carrier, source).shape)
        made_args, made_kwargs = self.signature.back(named, count)
        return made_args, made_kwargs, copies

    def _put_made(self, named: dict[str, Any], call: Call, sizes: Sequence[int]) -> None:
        """Add the mask that a call has not got, for a first padded tensor of `sizes`, and the length that is asked for."""
        if self.settings.mask is not None and not any(self._is_mask(one.path) for one in call.tensors):
            mask = ones_then_zeros(sizes[: len(call.real)], call.real, self.settings.mask_dtype, call.device)
            self._put(named, self.settings.mask, mask)
        if self.settings.length_as is not None:
            self._put(named, self.settings.length_as, torch.tensor(call.sizes["length"].size).to(call.device))

    def _put(self, named: dict[str, Any], name: str, value: torch.Tensor) -> None:
        """Add `value` to the arguments, or to the mapping among them that ``argument.key`` means."""
        argument, _, key = name.partition(".")
        if key:
            if not isinstance(named.get(argument), Mapping):
                raise BucketingError(f"{name}: this call has no mapping {argument!r} to put {key!r} into")
            named[argument] = {**named[argument], key: value}
        elif argument in self.signature.keywords or self.signature.takes_any or argument in named:
            named[argument] = value
        else:
            raise BucketingError(
                f"{name} is to be given to the function, which takes {', '.join(sorted(self.signature.keywords)) or 'nothing'}; "
                f"where it is a key of a mapping, write argument.{name}"
            )

    def _plain(self, function: Callable[..., Any], call: Call, count: int) -> Any:
        """The function on its arguments as they were given, with a mask of ones where it has none."""
        named = {
            name: mapped(value, lambda _, tensor: tensor.to(self.settings.device or tensor.device), path=(name,))
            for name, value in call.named.items()
        }
        self._put_made(named, call, call.real)
        plain_args, plain_kwargs = self.signature.back(named, count)
        return function(*plain_args, **plain_kwargs)

    # --- programs -------------------------------------------------------------------------------------------------------

    def _counted(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """Take note of the shapes of this call; return what stands for them, and whether they are new.

        Raises:
            TooManyPrograms: they are one more than ``max_programs``.
        """
        shapes: dict[Path, Any] = {}

        def visit(path: Path, tensor: torch.Tensor) -> torch.Tensor:
            shapes[path] = (tuple(tensor.shape), tensor.dtype)
            return tensor

        for name, value in self.signature.named(args, kwargs).items():
            mapped(value, visit, path=(name,))
        key = tuple(shapes.items())
        if key in self.programs:
            return key, False
        most = self.settings.max_programs
        if most is not None and len(self.programs) >= most:
            raise TooManyPrograms(
                f"this call would be program {most + 1} of at most {most}: {self._difference(shapes, call)}"
            )
        self.programs[key] = None
        return key, True

    def _difference(self, shapes: dict[Path, Any], call: Call) -> str:
        """Why a call has shapes of its own, in spite of padding."""
        if any(found.longer for found in call.sizes.values()):
            return "it is longer than the largest bucket, and all are in use"
        follows = {path for found in call.sizes.values() for path in found.dims}
        for path, (shape, dtype) in shapes.items():
            others = {dict(key).get(path) for key in self.programs} - {None}
            if others and not any((shape, dtype) == other for other in others):
                what = "it is padded, but in another dimension it" if path in follows else "it"
                if all(dtype is not other[1] for other in others if other):
                    what, shape = "its dtype", dtype
                hint = "" if len(self.axes) > 1 else "; where that is the batch, pad it too: batch=[...]"
                return f"{label(path)} is {shape}, and {what} differs from every call before{hint}"
        return "its arguments are a new combination of shapes"

    def _room(self, program: Any, modules: list[torch.nn.Module], device: str) -> AbstractContextManager[Any]:
        """Room for these programs within Dynamo's limit on recompilation, which is 8 for one function.

        The limit is there for what recompiles without an end; here the end is known. It is raised only for a call that may
        compile: of new shapes, or in another mode (gradients, training, autocast).
        """
        modes = (
            program,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(module.training for module in modules),
            torch.is_autocast_enabled(device),
        )
        if modes in self._specialised or "torch._dynamo" not in sys.modules:
            return nullcontext()
        self._specialised.add(modes)
        import torch.compiler.config as limits

        most = limits.recompile_limit + _MODES * len(self.programs)
        return limits.patch(
            recompile_limit=most, accumulated_recompile_limit=max(limits.accumulated_recompile_limit, 4 * most)
        )

    # --- results --------------------------------------------------------------------------------------------------------

    def _cut(self, result: Any, call: Call) -> Any:
        """`result` without what was added."""
        outputs = self.settings.outputs

        def visit(path: Path, tensor: torch.Tensor) -> torch.Tensor:
            for axis in self.axes:
                found = call.sizes[axis.kind]
                if outputs is not None and axis.kind == "length":
                    dims = _named_dims(outputs, path, tensor, found.edge)
                else:
                    dims = axis.cuts(path, tensor, found.edge)
                for dim in dims if found.size != found.edge else ():
                    tensor = tensor.narrow(dim, 0, found.size)
            return tensor

        def other(path: Path, value: Any) -> None:
            if not any(matches(path, _index(path), name) for name in outputs or {}):
                raise BucketingError(
                    f"{label(path)} is a {type(value).__name__}, which cannot be looked into, so what was added to it cannot be "
                    "cut off; do not return it (use_cache=False for a cache of keys and values), or let it pass with "
                    f"outputs={{'{label(path)}': None, ...}}"
                )

        return mapped(result, visit, other)


def _named_dims(
    outputs: Mapping[str | int, Dims | None], path: Path, tensor: torch.Tensor, edge: int
) -> tuple[int, ...]:
    for name, dims in outputs.items():
        if matches(path, _index(path), name) and dims is not None:
            several = dims if isinstance(dims, tuple) else (dims,)
            for dim in several:
                if not -tensor.ndim <= dim < tensor.ndim or tensor.shape[dim] != edge:
                    raise BucketingError(
                        f"{label(path)} of shape {tuple(tensor.shape)} is to be cut at dimension {dim}, which is not {edge} long"
                    )
            return several
    return ()


def _modules(function: Callable[..., Any], call: Call) -> list[torch.nn.Module]:
    """The modules that a call is known to use: the function itself, and those among its arguments."""
    return [one for one in (function, *call.named.values()) if isinstance(one, torch.nn.Module)]


def _index(path: Path) -> int | None:
    return int(path[0]) if path and path[0].isdigit() else None


def _unique(name: str) -> str:
    """`name`, or with a number where another has it: each has rows of its own in the event stream."""
    while name in _names:
        name = f"{name.partition('#')[0]}#{next(_numbers)}"
    _names.add(name)
    return name
