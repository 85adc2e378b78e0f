"""A program's key without tracing it: its steps written out, the source of everything that tracing runs, and JAX's settings.

It must be the same only where tracing gives the same computation. So a program has no such key (and is traced) when it holds
something whose meaning is not plain to see, such as a function that is neither an operator's registered lowering nor one of
this package's own; and no program of a process has one in which functions of this package have been replaced, as tests and
the trial's self-test do, or whose source has changed since it started.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import is_, itemgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.fx.immutable_collections import immutable_list

from . import config, executables
from .cache.key import Key, digest_of
from .executables import Aval
from .kernels.lowered import BodyLowering, KernelLowering
from .lowering import registry
from .program import Program, Ref, Step
from .views import View

_PACKAGE = Path(__file__).resolve().parent
_PLAIN = (torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size, np.dtype, type(Ellipsis))


class _Obscure(Exception):
    """A value whose meaning cannot be written down."""


def key_of(program: Any, signature: Sequence[Aval], settings: str) -> Key | None:
    """The key of `program`, traced for inputs of `signature` and compiled by `settings`; None: it has to be traced."""
    if not isinstance(program, Program):
        return None
    return key_of_parts(programs([program]), signature, settings)


def key_of_parts(what: Any, signature: Sequence[Aval], settings: str) -> Key | None:
    """The same of a tree of plain values and :func:`programs`."""
    try:
        sources = _sources()
        if sources is None or _places.patched():
            return None
        given = [(tuple(shape), str(dtype), weak) for shape, dtype, weak in signature]
        text = _text((what, given))
    except _Obscure:
        return None
    device = executables.device()
    return Key(
        {
            "program": digest_of(text.encode()),
            "options": settings,
            "sources": sources,
            "tracing": f"torch={torch.__version__} default={torch.get_default_dtype()} jax={_jax_settings()}"
            + (" unchecked" if config.SKIP_PRECONDITIONS() else ""),
            "device": f"{device.device_kind} x1",
            **executables.surroundings(device.client),
        }
    )


# --- values -------------------------------------------------------------------------------------------------------------


class _Text:
    """Text that says what a program is, made once for it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _program(program: Program) -> _Text:
    if type(program) is not Program:
        raise _Obscure
    # All fields, whatever they will be one day, but those that say nothing of the computation.
    rest = {f.name: getattr(program, f.name) for f in fields(program) if f.name not in ("name", "demands", "steps")}
    return _Text("\n".join([f"program {_text(rest)}", *map(_step, program.steps)]))


def programs(members: Iterable[Program]) -> list[Any]:
    """Each member written out, for :func:`key_of_parts`.

    One that cannot be written out makes the whole have no key.
    """
    known: dict[int, Any] = {}
    found = []
    for member in members:
        if id(member) not in known:
            try:
                known[id(member)] = _program(member)
            except _Obscure:
                known[id(member)] = object()
        found.append(known[id(member)])
    return found


def _step(step: Step) -> str:
    lowering = "" if step.lowering is None else _function(step.lowering, step.name)
    rest = {f.name: getattr(step, f.name) for f in fields(step) if f.name != "lowering"}
    return f"{lowering} {_text(rest)}"


def _text(value: Any) -> str:
    kind = type(value)
    if kind is Ref:
        return f"v{value.index}"
    if value is None or kind in (bool, int, str):
        return repr(value)
    if kind is float:
        return f"f{value.hex()}"
    if kind is complex:
        return f"c({value.real.hex()},{value.imag.hex()})"
    if kind is _Text:
        return value.text
    if kind is View:
        return f"view({value.dtype},{value.size},{value.stride},{value.offset})"
    if kind is immutable_list:  # how a captured graph holds a list
        kind = list
    if kind in (tuple, list):
        return f"{kind.__name__}({','.join(map(_text, value))})"
    if kind is dict:
        return f"dict({','.join(f'{_text(k)}:{_text(v)}' for k, v in value.items())})"
    if isinstance(value, _PLAIN):
        return f"{kind.__name__}:{value}"
    if kind is slice:
        return f"slice({_text(value.start)},{_text(value.stop)},{_text(value.step)})"
    if isinstance(value, torch._ops.OpOverload):
        return f"op:{value}"
    if kind is np.ndarray and value.dtype.kind in "biufc":
        return f"array({value.dtype},{value.shape},{digest_of(value.tobytes())})"
    if callable(value):
        return _function(value, "")
    raise _Obscure


def _function(function: Any, name: str) -> str:
    """A function by name, when the name leads back to it and its source is ours."""
    if isinstance(function, functools.partial):
        return f"partial({_function(function.func, name)},{_text(function.args)},{_text(function.keywords)})"
    if isinstance(function, (KernelLowering, BodyLowering)):
        return function.text() or _obscure()
    if _is_lowering(function, name):
        return f"lowering:{name}" if _is_ours(function) else _obscure()
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    owner: Any = sys.modules.get(module or "")
    if owner is None or not (module or "").startswith(__package__ + "."):
        raise _Obscure
    for part in path.split("."):
        owner = getattr(owner, part, None)
    if owner is not function or not _is_ours(function):
        raise _Obscure
    return f"{module}.{path}"


def _obscure() -> str:
    raise _Obscure


def _is_lowering(function: Any, name: str) -> bool:
    """Whether `function` is what the registry has for the operator called `name` (``aten.add.Tensor``)."""
    owner: Any = torch.ops
    for part in name.split("."):
        owner = getattr(owner, part, None)
    if not isinstance(owner, torch._ops.OpOverload):
        return False
    found = registry.lowering_of(owner)
    return found is not None and found.fn is function


def _is_ours(function: Any) -> bool:
    """Whether the code of `function`, and of the functions that it closes over, is this package's."""
    if not isinstance(function, FunctionType):
        return False
    if not Path(function.__code__.co_filename).is_relative_to(_PACKAGE):
        return False
    cells = [c.cell_contents for c in function.__closure__ or () if _filled(c)]
    return all(
        _is_known(v) for v in (*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    )


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_known(value: Any) -> bool:
    """Whether a value that a function closes over is decided by the source: functions of ours, of libraries, plain values."""
    if isinstance(value, FunctionType):
        return _is_ours(value) or _is_library(value)
    return True


# --- surroundings -------------------------------------------------------------------------------------------------------

_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def _is_library(function: FunctionType) -> bool:
    """Whether a function belongs to Python or an installed package (other than the half of this one that is not here)."""
    file = function.__code__.co_filename
    inside = file.startswith(_LIBRARIES) or file.startswith("<")
    return inside and not file.startswith(str(_PACKAGE.parent))


class _Places:
    """The names of this package's modules and classes that functions are bound to, and what is bound to them.

    Looking at where each function's code comes from takes milliseconds, so it is done again only after a name was bound anew.
    """

    def __init__(self) -> None:
        self._modules = 0  # in sys.modules when the places were listed
        self._functions: list[tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], tuple[Any, ...]]]] = []
        self._sound: list[tuple[Any, ...]] | None = None  # what was bound when every function was found in its place

    def patched(self) -> bool:
        if self._modules != len(sys.modules):
            self._list()
        try:
            bound = [values(space) for space, values in self._functions]
        except KeyError:
            return True  # a name is gone
        sound = self._sound
        if sound is not None and len(sound) == len(bound) and all(map(_same, bound, sound)):
            return False
        if not all(type(f) is FunctionType and _is_in_place(f) for functions in bound for f in functions):
            return True
        self._sound = bound
        return False

    def _list(self) -> None:
        count = len(sys.modules)
        owners: list[Any] = []
        for name, module in list(sys.modules.items()):
            if name.startswith(_PREFIX) and isinstance(module, ModuleType):
                owners.append(module)
                owners += [c for c in list(vars(module).values()) if isinstance(c, type) and c.__module__ == name]
        found: list[tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], tuple[Any, ...]]]] = []
        for space in map(vars, owners):
            names = [n for n, value in list(space.items()) if type(value) is FunctionType]
            if names:  # two at least, so that a tuple comes out
                found.append((space, itemgetter(*names, names[0])))
        self._functions, self._sound, self._modules = found, None, count


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _is_in_place(function: FunctionType) -> bool:
    file = function.__code__.co_filename
    return file.startswith(_ROOT) or file in _BESIDE or _is_library(function)


_places = _Places()
_PREFIX = f"{__package__}."
_ROOT = str(Path(__file__).parent)
_BESIDE = {
    str(Path(__file__).parent.with_name(n)) for n in ("devices.py", "nki.py")
}  # parts of the device that lie beside it


@functools.cache
def source_digest() -> str:
    """The digest of this package's source and of the support profiles that it brings."""
    digest = hashlib.blake2b(digest_size=20)
    for path in _source_files():
        digest.update(f"{path.relative_to(_PACKAGE.parent)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _source_files() -> list[Path]:
    inside = sorted(path for path in _PACKAGE.rglob("*") if path.suffix in (".py", ".toml"))
    return [*inside, *map(Path, sorted(_BESIDE))]


@functools.cache
def _sources() -> str | None:
    """:func:`source_digest`; None when a file is younger than this process, and may not be what it runs."""
    young = any(path.stat().st_mtime > config.STARTED for path in _source_files())
    return None if young else source_digest()


def _jax_settings() -> str:
    """What JAX makes its own caches of traces depend on."""
    try:
        from jax._src.config import trace_context

        plain = [s for s in trace_context() if s is None or isinstance(s, (bool, int, float, str, enum.Enum))]
    except (ImportError, AttributeError):
        raise _Obscure from None
    return digest_of(repr(plain).encode())[:12]
