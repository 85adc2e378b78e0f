"""``nki_op``: an operator with a schema out of a typed function that calls kernels. PyTorch's ``custom_op`` does the rest."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..autoload import DEVICE_NAME
from ..errors import KernelError
from ..lowering import registry
from .body import leaves
from .lowered import BodyLowering

_bodies: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()  # of operators made here
_libraries: dict[str, torch.library.Library] = {}
# What PyTorch says on tensors without values of ``.item()`` and of all that calls it: ``if x.sum() > 0``, ``float(x)``.
_READS = ("cannot be called on meta tensors", "data-dependent")


def body_of(definition: Any) -> Callable[..., Any] | None:
    """The function that the operator `definition` was made of; None: it was not made here."""
    return _bodies.get(definition)


def define(name: str, fn: Callable[..., Any], mutates_args: str | Iterable[str]) -> Any:
    namespace, separator, base = name.partition("::") if isinstance(name, str) else ("", "", "")
    if not (separator and namespace.isidentifier() and base.isidentifier()):
        raise ValueError(f'nki_op takes a name of the form "namespace::name", not {name!r}')
    if not callable(fn):
        raise TypeError(f"nki_op({name!r}) takes a function, not a {type(fn).__name__}")
    definition = torch.library.custom_op(name, fn, mutates_args=mutates_args, device_types="cpu")
    op = definition._opoverload
    arguments = op._schema.arguments
    written = tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    lowering = BodyLowering(fn, name, tuple(a.name for a in arguments), written)
    registry.lower_kernel(op, lowering, static=_numbers(op), takes_outputs=True)
    definition.register_fake(_fake(name, fn))
    _bodies[definition] = fn
    if written:
        _write_in_place(name, definition, fn, written)
    return definition


def _numbers(op: Any) -> tuple[str, ...]:
    """Arguments that hold numbers: constants of the program, as everything that is no tensor."""
    return tuple(a.name for a in op._schema.arguments if "float" in str(a.real_type) or "number" in str(a.real_type))


def _fake(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function on tensors without values. What it returns must be new, as of every custom operator.

    The check is PyTorch's own, private, and the one that its kernels of custom operators pass; without it a returned argument
    is copied.
    """
    check = getattr(torch._library.utils, "_c_check_aliasing_constraint", None)

    def fake(*args: Any, **kwargs: Any) -> Any:
        try:
            result = fn(*args, **kwargs)
        except RuntimeError as error:
            if not any(m in str(error) for m in _READS):
                raise
            raise KernelError(
                f"{name} cannot be a program of the device: it decides by, or computes with, a number that it reads from a "
                "tensor; use tensors (torch.where) instead"
            ) from error
        if check is not None:
            check(name, args, kwargs, result, lambda: inspect.getmodule(fn))
        return result

    return fake


def _write_in_place(name: str, definition: Any, fn: Callable[..., Any], written: tuple[str, ...]) -> None:
    """An operator that writes: graphs take it apart, since functionalization knows what to do with the parts."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    op = definition._opoverload
    names = [a.name for a in op._schema.arguments]

    def apart(mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        with mode:
            return fn(*args, **kwargs)

    definition.register_torch_dispatch(FunctionalTensorMode, apart)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        from ..device import _start

        _refuse_overlap(name, {**dict(zip(names, args)), **kwargs}, written)
        return _start().call(op, args, kwargs)

    library = _libraries[name] = torch.library.Library(name.partition("::")[0], "FRAGMENT")
    library.impl(op, kernel, "PrivateUse1")


def _refuse_overlap(name: str, given: dict[str, Any], written: tuple[str, ...]) -> None:
    """The program reads all that it takes before it writes, so what it writes must not be what it reads by another name.

    Raises:
        RuntimeError: it is.
    """
    owners: dict[int, str] = {}
    for argument, value in given.items():
        for tensor in leaves(value):
            if tensor.device.type != DEVICE_NAME:
                continue
            other = owners.setdefault(id(tensor.untyped_storage()), argument)
            if other != argument and (argument in written or other in written):
                raise RuntimeError(
                    f"{name}: arguments {other!r} and {argument!r} share memory, and it writes to one of them; pass a clone"
                )
