"""``bucketed``: what a user calls, and what they get: a function that can be called as before, or a module that is one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from ...buckets import BucketPlan
from ..errors import ConfigError
from . import stats as counts
from .axis import Axis, Dims
from .calls import Settings
from .core import Bucketer
from .edges import Fixed, Online
from .padding import Fill
from .plan import plan_buckets
from .trees import Signature


class _Bucketed:
    """What a bucketed function and a bucketed module have beside the call."""

    bucketer: Bucketer

    @property
    def buckets(self) -> tuple[int, ...]:
        """Edges of the length, ascending; where they are opened as lengths come, those that are there now."""
        return self.bucketer.axes[0].edges.known

    @property
    def batch_buckets(self) -> tuple[int, ...]:
        """Edges of the batch, ascending; () where batches are not padded."""
        return self.bucketer.axes[1].edges.known if len(self.bucketer.axes) > 1 else ()

    def stats(self) -> counts.BucketStats:
        """Requests, programs and padding, in sum and by bucket."""
        return counts.stats(self.bucketer.name, len(self.bucketer.programs))


class BucketedFunction(_Bucketed):
    """A function whose calls are padded; :func:`bucketed` makes it."""

    def __init__(self, function: Callable[..., Any], bucketer: Bucketer) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function, self.bucketer = function, bucketer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.bucketer(self.function, args, kwargs)

    def __repr__(self) -> str:
        return f"bucketed({self.function!r}, buckets={list(self.buckets)})"


# What a module keeps its parts and the hooks of its state in. They are shared, so that whatever PyTorch does to the bucketed
# module (state_dict, parameters, to, a parent that loads a checkpoint) is done to the module itself, under the same names.
_SHARED = (
    "_parameters", "_buffers", "_non_persistent_buffers_set", "_modules", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


class BucketedModule(_Bucketed, nn.Module):
    """A module whose calls are padded; :func:`bucketed` makes it.

    Parameters, buffers, submodules, modes and names are those of the module, ``wrapped``; so are attributes that are not
    found here. A method other than the call (``generate``) is the module's own and pads nothing.
    """

    wrapped: nn.Module

    def __init__(self, module: nn.Module, bucketer: Bucketer) -> None:
        super().__init__()
        self.__dict__.update({name: module.__dict__[name] for name in _SHARED if name in module.__dict__})
        self.__dict__["wrapped"] = module  # not a submodule: its parts are this module's parts already
        self.bucketer = bucketer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.bucketer(self.wrapped, args, kwargs)

    @property
    def training(self) -> bool:
        return self.wrapped.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "wrapped" in self.__dict__:  # nn.Module sets it before there is one
            self.wrapped.training = mode

    def train(self, mode: bool = True) -> BucketedModule:
        self.wrapped.train(mode)
        return self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> BucketedModule:
        self.wrapped._apply(fn, recurse)
        return self

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "wrapped" not in self.__dict__:
                raise
            return getattr(self.wrapped, name)

    def extra_repr(self) -> str:
        return f"{type(self.wrapped).__name__}, buckets={list(self.buckets)}"


def bucketed(
    fn_or_model: Callable[..., Any],
    *,
    dim: int | Mapping[str | int, Dims] = 1,
    buckets: Sequence[int] | BucketPlan | None = None,
    max_programs: int | None = None,
    lengths: Iterable[int] | Mapping[int, float] | str | os.PathLike[str] | None = None,
    longest: int = 0,
    pad: Fill | Mapping[str | int, Fill] = 0,
    mask: str | None = None,
    mask_dtype: torch.dtype = torch.int64,
    outputs: Mapping[str | int, Dims | None] | None = None,
    batch: Sequence[int] | None = None,
    batch_dim: int | Mapping[str | int, Dims] = 0,
    length_as: str | None = None,
    longer: Literal["error", "exact"] = "error",
    device: torch.device | str | None = None,
    check: bool | float = False,
    name: str | None = None,
) -> BucketedFunction | BucketedModule:
    """`fn_or_model` with every call padded along `dim` to the edge of a bucket, and its results cut back.

    A target that compiles each shape then compiles a few. Give a compiled function (or a plain one: eager operators are
    compiled by shape too); results are the unpadded ones where the function masks what is padded, see ``docs/bucketing.md``.

    Args:
        dim: the dimension of the length: of every tensor that has the first one's size there, or ``{name: dimension}`` of
            those to be padded. A name is an argument's name or position, the key of a mapping among the arguments, or both
            with a dot (``batch.input_ids``). A tuple of dimensions for a square mask.
        buckets: the edges, or a plan of :func:`plan_buckets`.
        max_programs: the most shapes that the function may ever be called with. Without `buckets` and `lengths`, edges are
            opened as lengths come, that many in all.
        lengths: lengths that are expected, from which `max_programs` (8) edges are planned.
        longest: the longest length that must be served.
        pad: what is added: one value, or ``{name: value}`` (0 for those not named). ``"edge"`` repeats the last element.
        mask: the argument (or ``argument.key``) that says which positions are real. It is padded with 0 (False), and made
            where a call has none: 1 at the real positions, of the shape of the first padded tensor up to `dim`.
        mask_dtype: dtype of a mask that is made.
        outputs: where to cut the results, ``{name: dimension}`` by position, key or field (``""`` for a result that is one
            tensor); None as the dimension, or leaving it out, leaves it whole. By default those that have the edge's size
            at `dim`.
        batch: edges of the batch, which is padded too, along `batch_dim`: labels and masks as along the length, others by
            repeating the last row.
        batch_dim: as `dim`, of the batch.
        length_as: keyword of the function that is given the real length, as an integer tensor without dimensions.
        longer: what becomes of a call above the largest bucket: an error, or ``"exact"``, which runs it as it is, as one of
            `max_programs`.
        device: where the tensors of a call go after they are padded; None: they stay where they are. Padding is done on the
            host, so tensors that are there already cost one copy.
        check: run the first padded call of each shape unpadded too, compare results and gradients, and raise when they differ
            by more than rounding, or by more than this share of the largest element.
        name: its name in the event stream, by default the function's.

    Raises:
        ConfigError: arguments that do not go together. Calls raise :class:`~shakedown.neuron.errors.BucketingError`.
    """
    if not callable(fn_or_model):
        raise ConfigError(f"bucketed: {type(fn_or_model).__name__} is neither a function nor a module")
    if longer not in ("error", "exact"):
        raise ConfigError(f'bucketed: longer={longer!r} must be "error" or "exact"')
    if max_programs is not None and max_programs < 1:
        raise ConfigError(f"bucketed: max_programs={max_programs} must be at least 1")
    batches = _ascending("batch", batch) if batch is not None else ()
    edges = _edges(buckets, max_programs, lengths, longest, max(1, len(batches)))
    if isinstance(edges, Fixed):
        planned = len(edges.known) * max(1, len(batches))
        if max_programs is not None and planned > max_programs:
            raise ConfigError(
                f"bucketed: {planned} shapes are {len(edges.known)} buckets"
                + (f" of {len(batches)} batch sizes" if batches else "")
                + f", and max_programs is {max_programs}"
            )
        if longer == "exact" and max_programs is None:
            raise ConfigError(
                'bucketed: longer="exact" compiles a program for each longer length; say how many there may be in all, '
                "max_programs="
            )
    if isinstance(dim, Mapping) and mask is not None and mask not in dim and dim:
        first = next(iter(dim.values()))
        dim = {**dim, mask: first[0] if isinstance(first, tuple) else first}
    axes = [Axis("length", dim, edges)]
    if batches:
        axes.append(Axis("batch", batch_dim, Fixed(batches)))
    inner = getattr(fn_or_model, "_orig_mod", fn_or_model)  # what torch.compile has wrapped: its call has the names
    signature = Signature(inner.forward if isinstance(inner, nn.Module) else inner)
    where = None if device is None else torch.device(device)
    tolerance = None if check is False else 0.0 if check is True else float(check)
    settings = Settings(pad, mask, mask_dtype, length_as, outputs, longer, where, max_programs, tolerance)
    called = name or getattr(inner, "__name__", None) or type(inner).__name__
    bucketer = Bucketer(str(called), signature, axes, settings)
    if isinstance(fn_or_model, nn.Module):
        return BucketedModule(fn_or_model, bucketer)
    return BucketedFunction(fn_or_model, bucketer)


def _edges(
    buckets: Sequence[int] | BucketPlan | None,
    max_programs: int | None,
    lengths: Any,
    longest: int,
    batches: int,
) -> Fixed | Online:
    if (buckets is not None) + (lengths is not None) > 1:
        raise ConfigError("bucketed: give either buckets or the lengths to plan them from")
    each = None if max_programs is None else max_programs // batches
    if each == 0:
        raise ConfigError(f"bucketed: {batches} batch sizes need as many programs, and max_programs is {max_programs}")
    if isinstance(buckets, BucketPlan):
        return Fixed(buckets.best.edges)
    if buckets is not None:
        edges = _ascending("buckets", buckets)
        if longest > edges[-1]:
            raise ConfigError(f"bucketed: longest={longest} is above the largest bucket, {edges[-1]}")
        return Fixed(edges)
    if lengths is not None:
        return Fixed(plan_buckets(lengths, max_programs=each or 8, longest=longest).best.edges)
    if each is None:
        raise ConfigError("bucketed: give buckets=[...], or max_programs=N with lengths=... or without")
    return Online(each, longest)


def _ascending(name: str, edges: Sequence[int]) -> tuple[int, ...]:
    made = tuple(edges)
    if not made or not all(isinstance(e, int) and not isinstance(e, bool) and e > 0 for e in made):
        raise ConfigError(f"bucketed: {name}={list(made)} must be whole numbers above 0")
    return tuple(sorted(set(made)))
