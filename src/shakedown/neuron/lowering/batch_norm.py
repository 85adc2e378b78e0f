"""Batch normalisation in the forms that eager code, functionalised graphs and their gradients use.

Gradients: Ioffe and Szegedy 2015, arXiv:1502.03167, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import torch
from jax import lax

from ..errors import LoweringError
from ..views import View
from .common import Array, number_as, opmath
from .metas import meta
from .norm import standardise, standardise_grad, statistics_dtype, wide
from .registry import lower


def _axes(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _channels(v: Array, like: Array) -> Array:
    return v.reshape(1, -1, *([1] * (like.ndim - 2)))


def _moved(old: Array | None, new: Array, momentum: Any) -> Array | None:
    """A running statistic after one step."""
    if old is None:
        return None
    kept, taken = wide(old), new.astype(opmath(old.dtype))
    rate = number_as(momentum, kept.dtype)
    return kept * (1 - rate) + taken * rate


def _forward(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: Any,
    eps: Any,
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """(output, mean, 1/std, new running mean, new running variance)."""
    x = wide(input)
    if training:
        y, mean, invstd = standardise(x, _axes(x), eps)
        count = input.size // input.shape[1] if input.shape[1] else 0
        mean, invstd = mean.reshape(-1), invstd.reshape(-1)
        if running_var is not None:
            variance = jnp.square(x - _channels(mean, x)).sum(axis=_axes(x)) / max(count - 1, 0)
            running_var = _moved(running_var, variance, momentum)
        running_mean = _moved(running_mean, mean, momentum)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = wide(running_mean, x.dtype)
        invstd = lax.rsqrt(wide(running_var, x.dtype) + number_as(eps, x.dtype))
        y = (x - _channels(mean, x)) * _channels(invstd, x)
    if weight is not None:
        y = y * _channels(wide(weight, x.dtype), x)
    if bias is not None:
        y = y + _channels(wide(bias, x.dtype), x)
    return y, mean, invstd, running_mean, running_var


def _saved_like_the_cpu(given: dict[str, Any], outs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """CPU kernels round the saved statistics to the parameters' dtype, and save none where none are taken."""
    parameters = (given.get(n) for n in ("weight", "bias", "running_mean", "running_var"))
    dtype = statistics_dtype(given["input"], *parameters)
    training = given.get("training", False)
    mean, invstd = (t.to(dtype) if training else t.new_empty((0,), dtype=dtype) for t in outs[1:3])
    return outs[0], mean, invstd, *outs[3:]


def _updated_like_the_cpu(given: dict[str, Any], outs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return _saved_like_the_cpu({**given, "training": True}, outs)


def _saved(statistic: Array, output: View) -> Array:
    """`statistic`, or nothing where eager execution saves nothing (graphs are captured with other sizes)."""
    return statistic if output.size == statistic.shape else jnp.zeros(output.size, statistic.dtype)


def _given(*values: Array | None) -> tuple[Array, ...]:
    return tuple(v for v in values if v is not None)


@lower(
    "native_batch_norm",
    mutates=("running_mean", "running_var"),
    takes_outputs=True,
    corrects=_saved_like_the_cpu,
)
def native_batch_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: Any,
    eps: Any,
    *,
    outputs: Sequence[View],
) -> tuple[Array, ...]:
    y, mean, invstd, *running = _forward(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return (y, _saved(mean, outputs[1]), _saved(invstd, outputs[2]), *_given(*running))


@lower(
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    takes_outputs=True,
    corrects=_saved_like_the_cpu,
)
def _native_batch_norm_legit(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: Any,
    eps: Any,
    *,
    outputs: Sequence[View],
) -> tuple[Array, ...]:
    y, mean, invstd, *running = _forward(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return (y, _saved(mean, outputs[1]), _saved(invstd, outputs[2]), *_given(*running))


def _native_batch_norm_out(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: Any,
    eps: Any,
) -> tuple[Array, ...]:
    """The new values of what is written, in the schema's order. Without training the statistics stay as they are."""
    if not training:
        raise LoweringError("batch normalisation with out= and without training")
    y, mean, invstd, *running = _forward(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return (*_given(*running), y, mean, invstd)


@meta("_native_batch_norm_legit.out")
def _sizes_of_native_batch_norm_out(
    input: torch.Tensor, *_: Any, out: torch.Tensor, save_mean: torch.Tensor, save_invstd: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    channels = input.shape[1:2]
    for given, size in ((out, input.shape), (save_mean, channels), (save_invstd, channels)):
        if given.shape != size:
            given.resize_(size)
    return out, save_mean, save_invstd


lower("native_batch_norm.out", mutates=("running_mean", "running_var"))(_native_batch_norm_out)
lower("_native_batch_norm_legit.out")(_native_batch_norm_out)


@lower("_native_batch_norm_legit_no_training", takes_outputs=True, corrects=_saved_like_the_cpu)
def _native_batch_norm_legit_no_training(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: Any,
    *,
    outputs: Sequence[View],
) -> tuple[Array, ...]:
    y, mean, invstd, *_ = _forward(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return y, _saved(mean, outputs[1]), _saved(invstd, outputs[2])


@lower("_native_batch_norm_legit.no_stats", corrects=_saved_like_the_cpu)
def _native_batch_norm_legit_no_stats(
    input: Array, weight: Array | None, bias: Array | None, training: bool, momentum: Any, eps: Any
) -> tuple[Array, ...]:
    return _forward(input, weight, bias, None, None, training, momentum, eps)[:3]


def _reserve() -> Array:
    """The workspace that cuDNN would ask for: nothing here."""
    return jnp.zeros((0,), jnp.uint8)


@lower("_batch_norm_with_update", "_batch_norm_with_update_functional", corrects=_updated_like_the_cpu)
def _batch_norm_with_update(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Any,
    eps: Any,
) -> tuple[Array, ...]:
    y, mean, invstd, *running = _forward(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return (y, mean, invstd, _reserve(), *_given(*running))


@lower("_batch_norm_no_update", takes_outputs=True, corrects=_saved_like_the_cpu)
def _batch_norm_no_update(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: Any,
    eps: Any,
    *,
    outputs: Sequence[View],
) -> tuple[Array, ...]:
    training = running_mean is None or running_var is None
    y, mean, invstd, *_ = _forward(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return (y, _saved(mean, outputs[1]), _saved(invstd, outputs[2]), _reserve())


@lower("batch_norm_update_stats")
def batch_norm_update_stats(
    input: Array, running_mean: Array | None, running_var: Array | None, momentum: Any
) -> tuple[Array, Array]:
    """Mean and biased variance of each channel."""
    x = wide(input)
    mean = x.mean(axis=_axes(x))
    return mean, jnp.square(x - _channels(mean, x)).mean(axis=_axes(x))


def _masked(arguments: dict[str, Any], outs: Any) -> Any:
    """The CPU kernel gives nothing for what ``output_mask`` does not ask for; the meta kernel gives a tensor."""
    return tuple(out if wanted else None for out, wanted in zip(outs, arguments["output_mask"]))


@lower("native_batch_norm_backward", corrects=_masked)
def native_batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: Any,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    x, grad = wide(input), wide(grad_out)
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, invstd = wide(save_mean, x.dtype), wide(save_invstd, x.dtype)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = wide(running_mean, x.dtype)
        invstd = lax.rsqrt(wide(running_var, x.dtype) + number_as(eps, x.dtype))
    scale = _channels(invstd, x)
    y = (x - _channels(mean, x)) * scale
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        dy = grad if weight is None else grad * _channels(wide(weight, x.dtype), x)
        grad_input = standardise_grad(dy, y, scale, _axes(x)) if train else dy * scale
    if output_mask[1]:
        grad_weight = (grad * y).sum(axis=_axes(x))
    if output_mask[2]:
        grad_bias = grad.sum(axis=_axes(x))
    return grad_input, grad_weight, grad_bias


@lower("batch_norm_backward")
def batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_var: Array | None,
    update: bool,
    eps: Any,
    output_mask: Sequence[bool],
    reserve: Array,
) -> tuple[Array | None, Array | None, Array | None]:
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )
