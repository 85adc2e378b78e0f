"""How one output of a compiled graph is made: out of the inputs of a call and the fresh buffers that its program gave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from ... import lazy
from ...buffer import Template, template
from ...transfer import empty, set_storage, to_host, view_on
from ...views import View

# Makes one output of the graph from the call's inputs and the program's fresh buffers.
Output: TypeAlias = Callable[[list[Any], list[Any]], Any]


def constant(value: Any) -> Output:
    return lambda arguments, fresh: value


def on_host(make: Output) -> Output:
    return lambda arguments, fresh: to_host(make(arguments, fresh))


def marked(make: Output, example: torch.Tensor) -> Output:
    """What `make` gives, with the marks of `example`: its storage has not the conjugates or negatives that it stands for."""
    conjugate, negative = example.is_conj(), example.is_neg()
    return lambda arguments, fresh: lazy.remarked(make(arguments, fresh), conjugate, negative)


def argument(number: int) -> Output:
    return lambda arguments, fresh: arguments[number]


def fresh(number: int, layout: Template) -> Output:
    return lambda arguments, fresh: layout.new(fresh[number])


def kept(number: int, layout: Template) -> Output:
    """Like :func:`fresh`, for a tensor that :func:`again` gives once more."""

    def make(arguments: list[Any], fresh: list[Any]) -> torch.Tensor:
        made = fresh[number] = layout.new(fresh[number])
        return made

    return make


def detached(number: int, view: View | None) -> Output:
    """The tensor that :func:`kept` made, detached, so that both have one version counter; `view` is another layout on it."""

    def make(arguments: list[Any], fresh: list[Any]) -> torch.Tensor:
        made = fresh[number].detach()
        if view is None:
            return made
        if view.dtype is not made.dtype:  # parts of complex numbers, say; strides are in elements of the view's
            made = made.as_strided((made.untyped_storage().nbytes() // made.itemsize,), (1,), 0).view(view.dtype)
        return made.as_strided(view.size, view.stride, view.offset)

    return make


def again(number: int) -> Output:
    return lambda arguments, fresh: fresh[number]


def view_of_fresh(number: int, whole: View, view: View) -> Output:
    """A view of fresh buffer `number`, whose storage several results share: the first of them to be made makes it."""
    layout, plain = template(whole.dtype, whole.size, whole.stride), view == whole

    def make(arguments: list[Any], fresh: list[Any]) -> torch.Tensor:
        owner = fresh[number]
        if not isinstance(owner, torch.Tensor):
            owner = fresh[number] = layout.new(owner)
            if plain:
                return owner
        made = empty((0,), (1,), view.dtype)
        return set_storage(made, owner.untyped_storage(), view.offset, view.size, view.stride)

    return make


def view_of_argument(number: int, view: View, captured_offset: int) -> Output:
    """`view` was taken when the argument had `captured_offset`; today's argument may start elsewhere in its storage."""

    def make(arguments: list[Any], fresh: list[Any]) -> torch.Tensor:
        owner = arguments[number]
        storage, offset = owner.untyped_storage(), owner.storage_offset() + view.offset - captured_offset
        return set_storage(view_on(storage, owner), storage, offset, view.size, view.stride)

    return make
