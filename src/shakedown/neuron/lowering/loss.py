"""Loss functions and their gradients. ``reduction`` is ATen's number: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..errors import LoweringError
from .checks import require, require_index
from .common import Array, computation, number_as
from .metas import meta
from .registry import lower

_NONE, _MEAN, _SUM = 0, 1, 2


def _reduced(loss: Array, reduction: int) -> Array:
    if reduction == _NONE:
        return loss
    return jnp.mean(loss) if reduction == _MEAN else jnp.sum(loss)


def _share(grad: Array, count: int, reduction: int) -> Array:
    """The gradient of one element of `count` that were averaged, summed or kept."""
    return grad / count if reduction == _MEAN else grad


# --- distances --------------------------------------------------------------------------------------------------------


@lower("mse_loss")
def mse_loss(self: Array, target: Array, reduction: int = 1) -> Array:
    _, (x, t) = computation(self, target)
    return _reduced((x - t) * (x - t), reduction)


@lower("mse_loss_backward")
def mse_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Array:
    _, (g, x, t) = computation(grad_output, self, target)
    gap = x - t
    return _share(2 * gap * g, gap.size, reduction)


@lower("smooth_l1_loss", refuses={"beta": lambda v: v < 0})
def smooth_l1_loss(self: Array, target: Array, reduction: int = 1, beta: Any = 1.0) -> Array:
    _, (x, t) = computation(self, target)
    b, z = number_as(beta, x.dtype), jnp.abs(x - t)
    return _reduced(jnp.where(z < b, 0.5 * z * z / b, z - 0.5 * b), reduction)


@lower("smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int, beta: Any) -> Array:
    _, (g, x, t) = computation(grad_output, self, target)
    b, gap = number_as(beta, x.dtype), x - t
    slope = jnp.where(gap <= -b, -1, jnp.where(gap >= b, 1, gap / b))
    return _share(slope * g, gap.size, reduction)


@lower("huber_loss", refuses={"delta": lambda v: v <= 0})
def huber_loss(self: Array, target: Array, reduction: int = 1, delta: Any = 1.0) -> Array:
    _, (x, t) = computation(self, target)
    d, z = number_as(delta, x.dtype), jnp.abs(x - t)
    return _reduced(jnp.where(z <= d, 0.5 * z * z, d * (z - 0.5 * d)), reduction)


@lower("huber_loss_backward")
def huber_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int, delta: Any) -> Array:
    _, (g, x, t) = computation(grad_output, self, target)
    d, gap = number_as(delta, x.dtype), x - t
    return _share(jnp.where(gap <= -d, -d, jnp.where(gap >= d, d, gap)) * g, gap.size, reduction)


# --- binary labels ----------------------------------------------------------------------------------------------------


@lower("binary_cross_entropy")
def binary_cross_entropy(self: Array, target: Array, weight: Array | None = None, reduction: int = 1) -> Array:
    """Logarithms are held above -100, as in ATen/native/Loss.cpp."""
    if target.dtype != self.dtype:
        raise LoweringError(f"probabilities of {target.dtype} for {self.dtype}")  # the CPU kernel says so
    _, (x, t, w) = computation(self, target, weight)
    require((x >= 0) & (x <= 1), RuntimeError, "all elements of input should be between 0 and 1")
    require((t >= 0) & (t <= 1), RuntimeError, "all elements of target should be between 0 and 1")
    loss = (t - 1) * jnp.maximum(jnp.log1p(-x), -100) - t * jnp.maximum(jnp.log(x), -100)
    return _reduced(loss if w is None else loss * w, reduction)


@lower("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: Array, self: Array, target: Array, weight: Array | None = None, reduction: int = 1
) -> Array:
    _, (g, x, t, w) = computation(grad_output, self, target, weight)
    slope = g * (x - t) / jnp.maximum((1 - x) * x, 1e-12)
    return _share(slope if w is None else slope * w, x.size, reduction)


@lower("binary_cross_entropy_with_logits")
def bce_with_logits(
    self: Array, target: Array, weight: Array | None = None, pos_weight: Array | None = None, reduction: int = 1
) -> Array:
    _, (x, t, w, p) = computation(self, target, weight, pos_weight)
    log_sigmoid = jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))
    loss = (1 - t) * x - (log_sigmoid if p is None else ((p - 1) * t + 1) * log_sigmoid)
    return _reduced(loss if w is None else loss * w, reduction)


@lower("soft_margin_loss")
def soft_margin_loss(self: Array, target: Array, reduction: int = 1) -> Array:
    _, (x, t) = computation(self, target)
    return _reduced(jnp.log1p(jnp.exp(-t * x)), reduction)


@lower("soft_margin_loss_backward")
def soft_margin_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Array:
    _, (g, x, t) = computation(grad_output, self, target)
    z = jnp.exp(-t * x)
    return _share(-t * z / (1 + z) * g, x.size, reduction)


# --- classes ----------------------------------------------------------------------------------------------------------


def _weights_of(
    target: Array, weight: Array | None, ignore_index: int, classes: int, dtype: Any
) -> tuple[Array, Array]:
    """(target made safe to index with, weight of each target, which is 0 where the target is ignored)."""
    ignored = target == ignore_index
    safe = jnp.where(ignored, 0, target).astype(jnp.int64)
    require(ignored | (target >= 0) & (target < classes), IndexError, f"a target out of bounds for {classes} classes")
    each = jnp.ones(target.shape, dtype) if weight is None else weight[jnp.clip(safe, 0, classes - 1)]
    return safe, jnp.where(ignored, 0, each)


def _check_weight(self: Array, weight: Array | None) -> None:
    if weight is not None and weight.dtype != self.dtype:
        raise LoweringError(f"a weight of {weight.dtype} for scores of {self.dtype}")  # the CPU kernel says so


def _nll(self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int) -> tuple[Array, Array]:
    """Classes in dimension 1 of `self`, one target for each other position."""
    _check_weight(self, weight)
    _, (x, w) = computation(self, weight)
    safe, each = _weights_of(target, w, ignore_index, x.shape[1], x.dtype)
    chosen = jnp.take_along_axis(x, jnp.expand_dims(safe, 1), axis=1, mode="clip").squeeze(1)
    # A weight of zero keeps even an infinite score out of the sum, but only where the target is ignored.
    loss = jnp.where(target == ignore_index, 0, -each * chosen)
    if reduction == _NONE:
        return loss, jnp.zeros((), x.dtype)
    total = jnp.sum(each)
    return (jnp.sum(loss) / total if reduction == _MEAN else jnp.sum(loss)), total


def _nll_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    _check_weight(self, weight)
    _, (g, w, total) = computation(grad_output, weight, total_weight)
    safe, each = _weights_of(target, w, ignore_index, self.shape[1], g.dtype)
    slope = -each * (g / total if reduction == _MEAN else g)
    slope = jnp.where(target == ignore_index, 0, slope)
    classes = jax.lax.broadcasted_iota(safe.dtype, self.shape, 1)
    return jnp.where(classes == jnp.expand_dims(safe, 1), jnp.expand_dims(slope, 1), 0)


@lower("nll_loss_forward")
def nll_loss(
    self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    if self.ndim == 2:
        return _nll(self, target, weight, reduction, ignore_index)
    # A single sample has no batch to reduce over: "none" is then a sum, and the weight is reported.
    loss, total = _nll(self[None], target.reshape(1), weight, _SUM if reduction == _NONE else reduction, ignore_index)
    return loss, total


@lower("nll_loss_backward")
def nll_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    if self.ndim == 2:
        return _nll_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight)
    single = _nll_backward(grad_output, self[None], target.reshape(1), weight, reduction, ignore_index, total_weight)
    return single[0]


def _check_pixels(self: Array, target: Array, weight: Array | None) -> None:
    """What meta tensors do not ask of images and their targets. The CPU kernel says what is wrong."""
    pixels = (self.shape[0], *self.shape[2:]) if self.ndim == 4 else None
    if target.shape != pixels or not (weight is None or weight.shape == self.shape[1:2]):
        raise LoweringError(f"sizes {self.shape} with targets {target.shape}")


@lower("nll_loss2d_forward")
def nll_loss2d(
    self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    _check_pixels(self, target, weight)
    return _nll(self, target, weight, reduction, ignore_index)


@lower("nll_loss2d_backward")
def nll_loss2d_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    _check_pixels(self, target, weight)
    return _nll_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight)


# --- margins ----------------------------------------------------------------------------------------------------------


def _margins(x: Array, target: Array, margin: Any) -> tuple[Array, Array]:
    """(``margin - x[target] + x`` for each class, 0 where the class is the target or the hinge is closed; one-hot)."""
    classes = jax.lax.broadcasted_iota(target.dtype, x.shape, 1)
    own = classes == target[:, None]
    z = number_as(margin, x.dtype) - jnp.sum(jnp.where(own, x, 0), axis=1, keepdims=True) + x
    return jnp.where(own | (z <= 0), 0, z), own


def _as_batch(x: Array) -> Array:
    return x if x.ndim == 2 else x.reshape(1, -1)


@lower("multi_margin_loss", static=("p",))
def multi_margin_loss(
    self: Array, target: Array, p: Any = 1, margin: Any = 1, weight: Array | None = None, reduction: int = 1
) -> Array:
    _, (x, w) = computation(_as_batch(self), weight)
    target = target.reshape(-1)
    require_index(target, x.shape[1], error=RuntimeError)
    z, _ = _margins(x, target, margin)
    z = z if p == 1 else z * z
    loss = jnp.sum(z if w is None else z * w[target][:, None], axis=1) / x.shape[1]
    return _reduced(loss.reshape(self.shape[:-1]), reduction)


@lower("multi_margin_loss_backward", static=("p",))
def multi_margin_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    p: Any,
    margin: Any,
    weight: Array | None = None,
    reduction: int = 1,
) -> Array:
    _, (g, x, w) = computation(grad_output, _as_batch(self), weight)
    target = target.reshape(-1)
    require_index(target, x.shape[1], error=RuntimeError)
    z, own = _margins(x, target, margin)
    slope = jnp.where(z > 0, 1.0, 0.0).astype(x.dtype) if p == 1 else 2 * z
    if w is not None:
        slope = slope * w[target][:, None]
    slope = jnp.where(own, -jnp.sum(slope, axis=1, keepdims=True), slope) / x.shape[1]
    each = g.reshape(-1, 1) if reduction == _NONE else g
    return (_share(slope, x.shape[0], reduction) * each).reshape(self.shape)


def _listed(target: Array) -> tuple[Array, Array]:
    """(targets before the first -1, made safe; which of them count; each class: whether it is a target)."""
    counts = jnp.cumprod((target >= 0).astype(jnp.int32), axis=1) > 0
    return jnp.where(counts, target, 0), counts


def _is_target(safe: Array, counts: Array, classes: int) -> Array:
    numbers = jnp.arange(classes, dtype=safe.dtype)
    return jnp.any((safe[:, :, None] == numbers) & counts[:, :, None], axis=1)


def _pair_hinges(x: Array, target: Array) -> tuple[Array, Array, Array]:
    """(hinge of each listed target against each class, 0 where it does not count; safe targets; is-target mask)."""
    safe, counts = _listed(target)
    listed = _is_target(safe, counts, x.shape[1])
    own = jnp.take_along_axis(x, safe, axis=1)
    z = 1 - own[:, :, None] + x[:, None, :]
    open_ = counts[:, :, None] & ~listed[:, None, :] & (z > 0)
    return jnp.where(open_, z, 0), safe, listed


def _loss_of_one_sample(given: dict[str, Any], outs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The meta kernel gives a sample without a batch dimension a loss with one."""
    unbatched = given["self"].dim() < 2 and given["reduction"] == _NONE
    return (outs[0].new_empty(()) if unbatched else outs[0], *outs[1:])


@lower("multilabel_margin_loss_forward", corrects=_loss_of_one_sample)
def multilabel_margin_loss(self: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    _, (x,) = computation(_as_batch(self))
    require_index(target + 1, x.shape[1] + 1, error=RuntimeError)  # -1 ends a list
    z, _, listed = _pair_hinges(x, _as_batch(target))
    loss = jnp.sum(z, axis=(1, 2)) / x.shape[1]
    return _reduced(loss.reshape(self.shape[:-1]), reduction), listed.reshape(target.shape)


@lower("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    _, (g, x) = computation(grad_output, _as_batch(self))
    require_index(target + 1, x.shape[1] + 1, error=RuntimeError)
    z, safe, _ = _pair_hinges(x, _as_batch(target))
    pairs = (z > 0).astype(x.dtype)
    classes = jnp.arange(x.shape[1], dtype=safe.dtype)
    pull = jnp.sum(pairs, axis=2)  # of each listed target
    pulled = jnp.sum(jnp.where(safe[:, :, None] == classes, pull[:, :, None], 0), axis=1)
    slope = (jnp.sum(pairs, axis=1) - pulled) / x.shape[1]
    each = g.reshape(-1, 1) if reduction == _NONE else g
    return (_share(slope, x.shape[0], reduction) * each).reshape(self.shape)


@meta("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def _like_input(grad_output: torch.Tensor, self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)
