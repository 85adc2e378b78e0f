"""How whole APIs are refused for tensors of the device while a profile says so: one narrow place in each API.

Kernels registered here, and functions replaced through :mod:`..torch_gaps`, are gone when the context closes. Tensors of
other devices are let through.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NoReturn, TypeAlias

import torch

from ..autoload import DEVICE_NAME
from ..errors import UnsupportedByProfile
from ..torch_gaps import is_ours, replaced

_Refuse: TypeAlias = Callable[..., NoReturn]


def _on_device(values: Any) -> bool:
    return any(isinstance(v, torch.Tensor) and v.device.type == DEVICE_NAME for v in values)


def _refusing(refuse: _Refuse) -> Callable[..., Any]:
    return lambda *args, **kwargs: refuse()


@contextmanager
def _kernels(put: Callable[[torch.library.Library], None]) -> Iterator[None]:
    """Kernels of ATen operators that `put` registers, in front of those there are."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():  # that a kernel is overridden, once for all operators: it is meant here
            warnings.filterwarnings("ignore", "(?s).*[Oo]verrid", UserWarning)
            put(library)
        yield
    finally:
        library._destroy()


def _guarding(refuse: _Refuse) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes of a function one that refuses tensors of the device among its arguments."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            if _on_device((*args, *kwargs.values())):
                refuse()
            return original(*args, **kwargs)

        return function

    return make


@contextmanager
def _sparse(refuse: _Refuse) -> Iterator[None]:
    """What makes a sparse tensor of the device: construction, conversion, and operators that mix CPU ones in."""
    from .. import sparse

    places = {
        "SparsePrivateUse1": ("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"),
        "SparseCsrPrivateUse1": ("_sparse_compressed_tensor_unsafe",),
        "PrivateUse1": ("_to_sparse", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"),
    }

    def put(library: torch.library.Library) -> None:
        for key, bases in places.items():
            for packet in (getattr(torch.ops.aten, base) for base in bases):
                for overload in packet.overloads():
                    library.impl(getattr(packet, overload), _refusing(refuse), key)

    # Operators on sparse tensors without a kernel come by `sparse.call`, which would register the rest of them.
    with _kernels(put), replaced(sparse, "call", lambda original: _refusing(refuse)):
        yield


@contextmanager
def _func(refuse: _Refuse) -> Iterator[None]:
    """Where vmap makes a tensor batched, and where grad, vjp, jvp and the rest wrap one."""
    import torch._functorch.eager_transforms as transforms
    import torch._functorch.vmap as vmap

    guarding = _guarding(refuse)
    with replaced(vmap, "_add_batch_dim", guarding), replaced(transforms, "_wrap_for_grad", guarding):
        yield


@contextmanager
def _nested(refuse: _Refuse) -> Iterator[None]:
    """Strided nested tensors are made of a list or a buffer; jagged ones are a Python class around their values."""
    from torch.nested._internal.nested_tensor import NestedTensor

    from .. import nested

    def put(library: torch.library.Library) -> None:
        for name in ("_nested_tensor_from_tensor_list", "_nested_view_from_buffer"):
            library.impl(name, _refusing(refuse), "PrivateUse1")

    def on_asked_device(original: Callable[..., Any]) -> Callable[..., Any]:
        def nested_tensor(*args: Any, **kwargs: Any) -> Any:
            if is_ours(kwargs.get("device")):
                refuse()
            return original(*args, **kwargs)

        return nested_tensor

    with (
        _kernels(put),
        replaced(nested, "call", lambda original: _refusing(refuse)),
        replaced(torch._C._nested, "nested_tensor", on_asked_device),
        replaced(NestedTensor, "__new__", _guarding(refuse)),
    ):
        yield


@contextmanager
def _distributions(refuse: _Refuse) -> Iterator[None]:
    """Every distribution ends its construction in the base class, with its parameters in place."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            if _on_device(vars(self).values()):
                refuse()
            original(self, *args, **kwargs)

        return __init__

    with replaced(torch.distributions.Distribution, "__init__", make):
        yield


@contextmanager
def _forward_ad(refuse: _Refuse) -> Iterator[None]:
    """A dual tensor is made by an operator of its own."""

    def put(library: torch.library.Library) -> None:
        library.impl("_make_dual", _refusing(refuse), "AutogradPrivateUse1")

    with _kernels(put):
        yield


_GUARDS: dict[str, Callable[[_Refuse], AbstractContextManager[None]]] = {
    "torch.sparse": _sparse,
    "torch.func": _func,
    "torch.nested": _nested,
    "torch.distributions": _distributions,
    "forward-mode AD": _forward_ad,
}


@contextmanager
def refusing(messages: dict[str, str]) -> Iterator[None]:
    """While open, each API among the keys raises :class:`UnsupportedByProfile` with its message."""
    with ExitStack() as stack:
        for api, message in messages.items():

            def refuse(*_: Any, message: str = message) -> NoReturn:
                raise UnsupportedByProfile(message)

            stack.enter_context(_GUARDS[api](refuse))
        yield
