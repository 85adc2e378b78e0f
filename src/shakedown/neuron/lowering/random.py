"""Random tensors. Values come from the device's own stream (:mod:`.threefry`), never from the CPU generator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..errors import LoweringError
from ..views import View
from .checks import require, require_fits
from .common import Array, is_complex, is_float, number_as, opmath, to_numpy
from .registry import lower
from .threefry import bits64, digits, integers, jax_key, normal, open_uniform, uniform


def _real(dtype: Any) -> np.dtype[Any]:
    """The type to draw in for results of `dtype`."""
    return np.dtype(np.float64) if np.dtype(dtype) in (np.float64, np.complex128) else np.dtype(np.float32)


# --- uniform ----------------------------------------------------------------------------------------------------------


@lower("rand", "rand.generator", "rand_like", "rand_like.generator", random=True, takes_outputs=True)
def rand(*_: Any, key: Array, outputs: Sequence[View], **__: Any) -> Array:
    (out,) = outputs
    dtype = to_numpy(out.dtype)
    if is_complex(dtype):
        return lax.complex(uniform(key, out.size, _real(dtype)), uniform(key, out.size, _real(dtype), lane=1))
    return uniform(key, out.size, dtype)


def _bounded(u: Array, low: Any, high: Any, dtype: np.dtype[Any]) -> Array:
    """``low + u * (high - low)`` as `dtype`, kept below `high` where rounding would reach it."""
    low, high = number_as(low, u.dtype), number_as(high, u.dtype)
    value = (u * (high - low) + low).astype(dtype)
    return jnp.where((value >= high.astype(dtype)) & (high > low), low.astype(dtype), value)


@lower("uniform", random=True)
def uniform_(self: Array, from_: Any = 0.0, to: Any = 1.0, *, key: Array, **named: Any) -> Array:
    low = named.pop("from", from_)  # the schema's name is a Python keyword
    span, limit = number_as(to, np.float64) - number_as(low, np.float64), float(jnp.finfo(self.dtype).max)
    require((span >= 0) & (span <= limit), RuntimeError, "uniform_ with from above to, or too far apart")
    return _bounded(uniform(key, self.shape, self.dtype), low, to, self.dtype)


# --- normal -----------------------------------------------------------------------------------------------------------


def _normal(key: Array, shape: Sequence[int], dtype: Any) -> Array:
    if is_complex(dtype):  # unit variance altogether
        parts = [normal(key, shape, _real(dtype), lane) * math.sqrt(0.5) for lane in (0, 1)]
        return lax.complex(*parts)
    return normal(key, shape, dtype)


@lower("randn", "randn.generator", "randn_like", "randn_like.generator", random=True, takes_outputs=True)
def randn(*_: Any, key: Array, outputs: Sequence[View], **__: Any) -> Array:
    (out,) = outputs
    return _normal(key, out.size, to_numpy(out.dtype))


_NEGATIVE = {"std": lambda v: not v >= 0}  # goes into the key, so that the check on meta tensors sees each of them


def _affine(key: Array, mean: Any, std: Any, out: View) -> Array:
    z = _normal(key, out.size, to_numpy(out.dtype))
    return z * number_as(std, _real(z.dtype)) + number_as(mean, z.dtype)


@lower("normal_functional", static=_NEGATIVE, random=True, takes_outputs=True)
def normal_functional(self: Array, mean: Any = 0.0, std: Any = 1.0, *, key: Array, outputs: Sequence[View]) -> Array:
    return _affine(key, mean, std, outputs[0])


@lower("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", random=True, takes_outputs=True)
def normal_tensors(mean: Any, std: Any = 1.0, *, key: Array, outputs: Sequence[View]) -> Array:
    require(jnp.asarray(std) >= 0, RuntimeError, "normal expects all elements of std >= 0.0")
    return _affine(key, mean, std, outputs[0])


@lower("normal.float_float", static=_NEGATIVE, random=True, takes_outputs=True)
def normal_sized(mean: Any, std: Any, size: Sequence[int], *, key: Array, outputs: Sequence[View], **_: Any) -> Array:
    return _affine(key, mean, std, outputs[0])


@lower("log_normal", static={"std": lambda v: not v > 0}, random=True)
def log_normal(self: Array, mean: Any = 1.0, std: Any = 2.0, *, key: Array) -> Array:
    z = normal(key, self.shape, self.dtype)
    return jnp.exp(z * number_as(std, z.dtype) + number_as(mean, z.dtype))


# --- integers ---------------------------------------------------------------------------------------------------------


def _check_range(low: int, high: int, dtype: Any) -> None:
    """``[low, high)`` must lie within `dtype` (ATen/native/DistributionTemplates.h, ``check_from_to_in_range``).

    Raises:
        LoweringError: it does not; the CPU kernel says it in its own words.
    """
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        least, most = 0, 1
    else:
        limits = jnp.finfo(dtype) if is_float(dtype) else jnp.iinfo(dtype)
        least, most = (int(float(v)) if is_float(dtype) else int(v) for v in (limits.min, limits.max))
    if not (least <= low <= most and least <= high - 1 <= most):
        raise LoweringError(f"integers from {low} to {high} do not fit into {dtype}")


@lower("randint", "randint.generator", random=True, takes_outputs=True)
def randint(high: int, size: Sequence[int], *, key: Array, outputs: Sequence[View], **_: Any) -> Array:
    _check_range(0, high, to_numpy(outputs[0].dtype))
    return integers(key, outputs[0].size, 0, high)


@lower("randint.low", "randint.low_generator", random=True, takes_outputs=True)
def randint_low(low: int, high: int, size: Sequence[int], *, key: Array, outputs: Sequence[View], **_: Any) -> Array:
    _check_range(low, high, to_numpy(outputs[0].dtype))
    return integers(key, outputs[0].size, low, high - low)


@lower("randint_like", "randint_like.generator", random=True, takes_outputs=True)
def randint_like(self: Array, high: int, *, key: Array, outputs: Sequence[View], **_: Any) -> Array:
    _check_range(0, high, to_numpy(outputs[0].dtype))
    return integers(key, self.shape, 0, high)


@lower("randint_like.low_dtype", "randint_like.low_generator_dtype", random=True, takes_outputs=True)
def randint_like_low(self: Array, low: int, high: int, *, key: Array, outputs: Sequence[View], **_: Any) -> Array:
    _check_range(low, high, to_numpy(outputs[0].dtype))
    return integers(key, self.shape, low, high - low)


@lower("randint_like.Tensor", "randint_like.Tensor_generator", random=True)
def randint_like_tensor(self: Array, high: Array, *, key: Array, **_: Any) -> Array:
    require(high > 0, RuntimeError, "random_ expects 'from' to be less than 'to'")
    return (bits64(key, self.shape) % high.reshape(()).astype(jnp.uint64)).astype(jnp.int64)


def _largest(dtype: Any) -> int:
    """The end of ``random_()``'s range: the largest integer up to which `dtype` holds all of them."""
    if np.dtype(dtype) == np.bool_:
        return 1
    return 1 << digits(dtype) if is_float(dtype) else int(jnp.iinfo(dtype).max)


@lower("random", random=True)
def random_(self: Array, *, key: Array) -> Array:
    return integers(key, self.shape, 0, _largest(self.dtype) + 1)


@lower("random.to", random=True)
def random_to(self: Array, to: int, *, key: Array) -> Array:
    _check_range(0, to, self.dtype)
    return integers(key, self.shape, 0, to)


@lower("random.from", random=True)
def random_from(self: Array, *bounds: Any, key: Array, **named: Any) -> Array:
    low, to = (*bounds, *(named[n] for n in ("from", "to") if n in named))
    high = _largest(self.dtype) + 1 if to is None else to
    _check_range(low, high, self.dtype)
    return integers(key, self.shape, low, high - low)


@lower("randperm", "randperm.generator", random=True, takes_outputs=True)
def randperm(n: int, *, key: Array, outputs: Sequence[View], **_: Any) -> Array:
    dtype = to_numpy(outputs[0].dtype)
    require_fits(max(n - 1, 0), dtype)
    if dtype == np.float16 and n > (1 << digits(dtype)) + 1:  # bfloat16 is not checked there
        raise LoweringError(f"{dtype} does not hold the integers up to {n}")
    return jnp.argsort(bits64(key, (n,)), stable=False)


# --- coin flips -------------------------------------------------------------------------------------------------------

_NO_PROBABILITY = {"p": lambda v: not 0 <= v <= 1}


@lower("bernoulli", random=True)
def bernoulli(self: Array, *, key: Array) -> Array:
    require((self >= 0) & (self <= 1), RuntimeError, "a probability outside [0, 1]")
    return uniform(key, self.shape, _real(self.dtype)) < self


@lower("bernoulli.p", static=_NO_PROBABILITY, random=True)
def bernoulli_p(self: Array, p: Any = 0.5, *, key: Array) -> Array:
    if isinstance(p, (int, float)) and not 0 <= p <= 1:
        raise LoweringError(f"p={p}")  # the CPU kernel says what is wrong with it
    return uniform(key, self.shape) < number_as(p, np.float32)


@lower("bernoulli.Tensor", random=True)
def bernoulli_tensor(self: Array, p: Array, *, key: Array) -> Array:
    if self.size:
        require((p >= 0) & (p <= 1), RuntimeError, "a probability outside [0, 1]")
    return uniform(key, self.shape, _real(p.dtype)) < p


def keep_scale(key: Array, shape: Sequence[int], p: Any) -> tuple[Array, Array]:
    """Dropout with probability `p`: which elements stay (bool), and by how much they grow (0-d float32)."""
    p = number_as(p, np.float32)
    return uniform(key, shape) >= p, jnp.where(p == 1, np.float32(0), 1 / (1 - p))


@lower("native_dropout", static={"p": lambda v: v == 0}, refuses={"p": lambda v: not 0 <= v <= 1}, random=True)
def native_dropout(input: Array, p: Any, train: bool | None, *, key: Array) -> tuple[Array, Array]:
    if train is False or (isinstance(p, (int, float)) and p == 0):
        return input, jnp.ones(input.shape, bool)
    keep, scale = keep_scale(key, input.shape, p)
    x = input.astype(opmath(input.dtype))
    # A product rather than a choice: a NaN that is dropped stays NaN, as on the CPU.
    return x * jnp.where(keep, scale, 0).astype(x.real.dtype), keep


@lower("native_dropout_backward")
def native_dropout_backward(grad_output: Array, mask: Array, scale: Any) -> Array:
    grad = grad_output.astype(opmath(grad_output.dtype))
    if not jnp.issubdtype(grad.dtype, jnp.inexact):
        grad = grad.astype(jnp.float32)  # the scale is a fraction
    return grad * jnp.where(mask, number_as(scale, grad.real.dtype), 0)


# --- other distributions ----------------------------------------------------------------------------------------------


@lower("exponential", static={"lambd": lambda v: not v > 0}, random=True)
def exponential(self: Array, lambd: Any = 1.0, *, key: Array) -> Array:
    u = open_uniform(key, self.shape, self.dtype)
    # Half types would round the smallest values to 0, which the distribution excludes.
    least = jnp.finfo(self.dtype).tiny
    return jnp.maximum(-jnp.log(u) / number_as(lambd, u.dtype), u.dtype.type(least))


@lower("geometric", static={"p": lambda v: not 0 < v < 1}, random=True)
def geometric(self: Array, p: Any, *, key: Array) -> Array:
    u = open_uniform(key, self.shape, _real(self.dtype))
    return jnp.maximum(jnp.ceil(jnp.log(u) / jnp.log1p(-number_as(p, u.dtype))), 1)


@lower("cauchy", static={"sigma": lambda v: not v > 0}, random=True)
def cauchy(self: Array, median: Any = 0.0, sigma: Any = 1.0, *, key: Array) -> Array:
    u = open_uniform(key, self.shape, self.dtype)
    return number_as(median, u.dtype) + number_as(sigma, u.dtype) * jnp.tan(math.pi * (u - 0.5))


@lower("multinomial", random=True, refuses={"num_samples": lambda n: n <= 0})
def multinomial(self: Array, num_samples: int, replacement: bool = False, *, key: Array) -> Array:
    """Draws by inversion with replacement, as the largest ``p / e`` without, ``e`` exponential.

    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006.)
    """
    weights = self.astype(_real(self.dtype))
    require((weights >= 0) & jnp.isfinite(weights), RuntimeError, "a probability that is negative, infinite or NaN")
    require(jnp.sum(weights, axis=-1) > 0, RuntimeError, "invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement or num_samples == 1:
        race = weights / -jnp.log(open_uniform(key, weights.shape, weights.dtype))
        if num_samples == 1:
            return jnp.argmax(race, axis=-1, keepdims=True)
        return lax.top_k(race, num_samples)[1]
    total = jnp.cumsum(weights, axis=-1)
    points = uniform(key, (*weights.shape[:-1], num_samples), weights.dtype) * total[..., -1:]

    def find(row: Array, at: Array) -> Array:
        return jnp.searchsorted(row, at, side="right")

    found = find(total, points) if weights.ndim == 1 else jax.vmap(find)(total, points)
    # Rounding may put a point at the total itself: take the last item that can be drawn.
    last = weights.shape[-1] - 1 - jnp.argmax((weights > 0)[..., ::-1], axis=-1, keepdims=True)
    return jnp.minimum(found, last)


@lower("poisson", random=True)
def poisson(self: Array, *, key: Array) -> Array:
    require(self >= 0, RuntimeError, "invalid Poisson rate, expected rate to be non-negative")
    return jax.random.poisson(jax_key(key), self.astype(_real(self.dtype)))


@lower("_standard_gamma", random=True)
def _standard_gamma(self: Array, *, key: Array) -> Array:
    dtype = _real(self.dtype)
    return jnp.maximum(jax.random.gamma(jax_key(key), self.astype(dtype)), jnp.finfo(dtype).tiny)
