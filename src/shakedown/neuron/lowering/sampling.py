"""Distributions that are drawn by rejection, and the gradients that flow through such draws.

A sample ``x`` of a distribution with parameter ``a`` has the reparameterised gradient ``-(d/da cdf(x; a)) / pdf(x; a)``. It
has no closed form, and a draw must have the same gradient wherever it was made, so the approximations and their
coefficients are PyTorch's (ATen/native/Distributions.h): Taylor series near 0, Rice's saddle point expansion for large
parameters, fitted rational functions in between. They are evaluated in float64, as CPU kernels do.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .common import Array
from .metas import meta
from .random import _real
from .registry import lower
from .special import _digamma
from .threefry import jax_key

# --- draws ------------------------------------------------------------------------------------------------------------


@meta("binomial")
def _binomial_meta(count: torch.Tensor, prob: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return torch.empty_like(count, memory_format=torch.contiguous_format)


@lower("binomial", random=True)
def binomial(count: Array, prob: Array, *, key: Array) -> Array:
    """Numbers of successes, float, of the sizes of `count`; `prob` must broadcast to them."""
    dtype = _real(count.dtype)
    n, p = count.astype(dtype), jnp.broadcast_to(prob.astype(dtype), count.shape)
    drawable = (n > 0) & (p > 0) & (p < 1)
    value = jax.random.binomial(jax_key(key), jnp.where(drawable, n, 1), jnp.where(drawable, p, 0.5), dtype=dtype)
    edge = jnp.where((n <= 0) | (p <= 0), 0, jnp.where(p >= 1, n, jnp.nan))
    return jnp.where(drawable, value, edge)


@meta("_sample_dirichlet")
def _sample_dirichlet_meta(self: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return torch.empty_like(self, memory_format=torch.contiguous_format)


@lower("_sample_dirichlet", random=True)
def _sample_dirichlet(self: Array, *, key: Array) -> Array:
    """Gamma samples along the last dimension divided by their sum, in logarithms so that small ones survive."""
    dtype = _real(self.dtype)
    value = jax.nn.softmax(jax.random.loggamma(jax_key(key), self.astype(dtype)), axis=-1)
    info = jnp.finfo(self.dtype)
    return jnp.clip(value, float(info.tiny), 1 - float(info.epsneg))


# --- the gamma distribution -------------------------------------------------------------------------------------------

# Coefficients of u**0, u**1, u**2 (rows) of the four terms of a numerator and of a denominator in v.
_GAMMA_FIT = np.array(
    [
        [0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1, 0.32668115, 0.10406089, 0.0014179084],
        [0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915, -0.00058392623],
        [0.040121004, -0.0065914022, -0.0026286047, -0.0013441777, 0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07],
    ]
)  # fmt: skip


def _cubic(v: Array, terms: Any) -> Array:
    return terms[0] + v * (terms[1] + v * (terms[2] + v * terms[3]))


def _nan_as_zero(x: Array) -> Array:
    return jnp.where(jnp.isnan(x), 0, x)


def _gamma_near_zero(alpha: Array, x: Array) -> Array:
    term, at = jnp.ones_like(x), alpha
    plain, squared = term / at, term / (at * at)
    for i in range(1, 6):
        term, at = term * (-x / i), at + 1
        plain, squared = plain + term / at, squared + term / (at * at)
    power = jnp.power(x, alpha)
    slope = (jnp.log(x) - _digamma(alpha)) * (power * plain) - power * squared
    return _nan_as_zero(-slope / (jnp.power(x, alpha - 1) * jnp.exp(-x)))


def _gamma_at_mode(alpha: Array, x: Array) -> Array:
    first = 1 + 24 * alpha * (1 + 12 * alpha)
    second = 1440 * alpha**2 + 6 * x * (53 - 120 * x) - 65 * x * x / alpha + alpha * (107 + 3600 * x)
    return first * second / (1244160 * alpha**4)


def _gamma_saddle_point(alpha: Array, x: Array) -> Array:
    root = jnp.sqrt(8 * alpha)
    away = jnp.power(x - alpha - alpha * jnp.log(x / alpha), -1.5)
    tilt = root / (alpha - x) + jnp.where(x < alpha, -away, away)
    inner = jnp.log(x / alpha) * tilt - jnp.sqrt(2 / alpha) * (alpha + x) / (alpha - x) ** 2
    stirling = 1 + 1 / (12 * alpha) * (1 + 1 / (24 * alpha))
    return -stirling * x * inner / root


def _gamma_fitted(alpha: Array, x: Array) -> Array:
    u, v = jnp.log(x / alpha), jnp.log(alpha)
    terms = [_GAMMA_FIT[0, i] + u * (_GAMMA_FIT[1, i] + u * _GAMMA_FIT[2, i]) for i in range(8)]
    return jnp.exp(_cubic(v, terms[:4]) / _cubic(v, terms[4:]))


@meta("_standard_gamma_grad")
def _standard_gamma_grad_meta(self: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(self + output)


@lower("_standard_gamma_grad")
def _standard_gamma_grad(self: Array, output: Array) -> Array:
    """d sample / d alpha, of a standard gamma `output` drawn with shape parameter `self`."""
    alpha, x = (a.astype(jnp.float64) for a in jnp.broadcast_arrays(self, output))
    near_mode = (0.9 * alpha <= x) & (x <= 1.1 * alpha)
    large = jnp.where(near_mode, _gamma_at_mode(alpha, x), _gamma_saddle_point(alpha, x))
    middle = jnp.where(alpha > 8, large, _gamma_fitted(alpha, x))
    return jnp.where(x < 0.8, _gamma_near_zero(alpha, x), middle)


# --- the beta distribution, of which a Dirichlet is made --------------------------------------------------------------

# [numerator or denominator][power of u][power of a][term of a cubic in b]
_BETA_FIT = np.array(
    [
        [
            [
                [1.003668233, -0.01061107488, -0.0657888334, 0.01201642863],
                [0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033],
                [-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013],
            ],
            [
                [0.221950385, -0.3187676331, 0.01799915743, 0.01074823814],
                [-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057],
                [0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05],
            ],
            [
                [-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565],
                [0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181],
                [0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05],
            ],
        ],
        [
            [
                [1, -0.02924021934, -0.04438342661, 0.007285809825],
                [0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521],
                [-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149],
            ],
            [
                [0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273],
                [0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956],
                [-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05],
            ],
            [
                [0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05],
                [0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05],
                [-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06],
            ],
        ],
    ]
)


def _beta_alpha_near_zero(x: Array, alpha: Array, beta: Array) -> Array:
    """With respect to the first parameter, for x near 0."""
    factor = _digamma(alpha) - _digamma(alpha + beta) - jnp.log(x)
    term = jnp.ones_like(x)
    series = term / alpha * (factor + 1 / alpha)
    for i in range(1, 11):
        term = term * (i - beta) * x / i
        series = series + term / (alpha + i) * (factor + 1 / (alpha + i))
    return _nan_as_zero(x * jnp.power(1 - x, -beta) * series)


def _beta_beta_near_zero(x: Array, alpha: Array, beta: Array) -> Array:
    """With respect to the second parameter, for x near 0."""
    factor = _digamma(alpha + beta) - _digamma(beta)
    term, product, slope = jnp.ones_like(x), jnp.ones_like(x), jnp.zeros_like(x)
    series = factor / alpha
    for i in range(1, 9):
        term = term * (-x / i)
        slope = slope * (beta - i) + product
        product = product * (beta - i)
        series = series + term / (alpha + i) * (slope + factor * product)
    return _nan_as_zero(-jnp.power(1 - x, 1 - beta) * series)


def _beta_saddle_point(x: Array, alpha: Array, beta: Array) -> Array:
    """With respect to the first parameter, where both are large."""
    total = alpha + beta
    mean = alpha / total
    deviation = jnp.sqrt(alpha * beta / (total + 1)) / total
    at_mean = (mean - 0.1 * deviation <= x) & (x <= mean + 0.1 * deviation)

    poly = (453 + 1620 * beta * (1 - x) - 455 * x) * beta + alpha * (8 * (1 - x) * (135 * beta - 11))
    poly = 3 * (59 + 180 * beta - 90 * x) * beta**2 + alpha * poly
    poly = (43 + 20 * (16 + 27 * beta) * x) * beta**3 + alpha * poly
    poly = 47 * x * beta**4 + alpha * poly
    scale = (1 + 12 * alpha) * (1 + 12 * beta) / total**2
    smooth = scale / (1 - x) * poly / (12960 * alpha**3 * beta**2 * (1 + 12 * total))

    def stirling(n: Array) -> Array:
        return 1 + 1 / (12 * n) + 1 / (288 * n * n)

    gap = alpha * (x - 1) + beta * x
    first = 2 * alpha**2 * (x - 1) + alpha * beta * (x - 1) - x * beta**2
    first = first / (jnp.sqrt(2 * alpha / beta) * jnp.power(total, 1.5) * gap * gap)
    second = 0.5 * jnp.log(alpha / (total * x))
    third = jnp.sqrt(8 * alpha * beta / total) / gap
    distance = beta * jnp.log(beta / (total * (1 - x))) + alpha * jnp.log(alpha / (total * x))
    fourth = jnp.power(distance, -1.5)
    general = stirling(alpha) * stirling(beta) / stirling(total) * (-x / jnp.sqrt(2 * alpha * beta / total))
    general = general * (first + second * (third + jnp.where(x < mean, fourth, -fourth)))
    return jnp.where(at_mean, smooth, general)


def _beta_fitted(x: Array, alpha: Array, total: Array) -> Array:
    u = jnp.log(x)
    a = jnp.log(alpha) - u
    b = jnp.log(total) - a
    p = q = jnp.zeros_like(x)
    for i in range(3):
        for j in range(3):
            power = u**i * a**j
            p = p + power * _cubic(b, _BETA_FIT[0, i, j])
            q = q + power * _cubic(b, _BETA_FIT[1, i, j])
    return p / q * (x * (_digamma(total) - _digamma(alpha)) / (total - alpha))


@meta("_dirichlet_grad")
def _dirichlet_grad_meta(x: torch.Tensor, alpha: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x + alpha + total)


@lower("_dirichlet_grad")
def _dirichlet_grad(x: Array, alpha: Array, total: Array) -> Array:
    """``d x / d alpha / (1 - x)`` of one component `x` of a Dirichlet sample, whose parameters sum to `total`."""
    x, alpha, total = (a.astype(jnp.float64) for a in jnp.broadcast_arrays(x, alpha, total))
    beta = total - alpha
    boundary = total * x * (1 - x)
    value = jnp.where((alpha > 6) & (beta > 6), _beta_saddle_point(x, alpha, beta), _beta_fitted(x, alpha, total))
    value = jnp.where((x >= 0.5) & (boundary < 0.75), -_beta_beta_near_zero(1 - x, beta, alpha), value)
    return jnp.where((x <= 0.5) & (boundary < 2.5), _beta_alpha_near_zero(x, alpha, beta), value)
