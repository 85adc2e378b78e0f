"""Sampling of images at given places (``grid_sample``).

Gradients of the sampling are JAX's derivatives of the forward computation below: the places enter through weights and
through clipping or reflection, and ``floor`` has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..errors import LoweringError
from .common import Array, opmath
from .registry import lower

_NEAREST, _CUBIC = 1, 2  # interpolation modes; 0 is linear
_BORDER, _REFLECTION = 1, 2  # padding modes; 0 reads zeros outside


def _unnormalised(place: Array, size: int, align_corners: bool) -> Array:
    """From [-1, 1] to element numbers."""
    return (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2


def _reflected(place: Array, low2: int, high2: int) -> Array:
    """`place` reflected at low2 / 2 and high2 / 2."""
    if low2 == high2:
        return jnp.zeros_like(place)
    low, span = low2 / 2, (high2 - low2) / 2
    distance = jnp.abs(place - low)
    turns = jnp.floor(distance / span)
    rest = distance - turns * span
    return jnp.where(turns % 2 == 0, rest + low, span - rest + low)


def _confined(place: Array, size: int, padding_mode: int, align_corners: bool) -> Array:
    """Places inside the image, as the padding mode wants; unchanged where zeros surround it."""
    if padding_mode == _REFLECTION:
        place = _reflected(place, 0, 2 * (size - 1)) if align_corners else _reflected(place, -1, 2 * size - 1)
    if padding_mode in (_BORDER, _REFLECTION):
        # Nothing flows back from the edge itself: the comparison is strict where jnp.clip would share.
        place = jnp.where(place > 0, jnp.where(place < size - 1, place, size - 1), 0)
    return place


def _look_up(image: Array, places: Sequence[Array]) -> Array:
    """image (C, *space) at integer places (*out) each, zeros outside: (C, *out)."""
    size = image.shape[1:]
    inside = jnp.ones((), bool)
    index = jnp.zeros((), jnp.int32)
    for place, n in zip(places, size):
        inside = inside & (place >= 0) & (place < n)
        index = index * n + jnp.clip(place, 0, n - 1).astype(jnp.int32)
    return jnp.where(inside, image.reshape(image.shape[0], -1)[:, index], 0)


def _cubic_weights(t: Array) -> list[Array]:
    a = -0.75

    def near(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _sample(image: Array, grid: Array, mode: int, padding_mode: int, align_corners: bool) -> Array:
    """One image (C, *space) at grid (*out, rank), which names the innermost space dimension first."""
    size = image.shape[1:]
    rank = len(size)
    places = [_unnormalised(grid[..., rank - 1 - d], size[d], align_corners) for d in range(rank)]

    def confined(place: Array, d: int) -> Array:
        return _confined(place, size[d], padding_mode, align_corners)

    if mode == _CUBIC:
        bases = [jnp.floor(p) for p in places]
        taps = [[jnp.floor(confined(b + o, d)) for o in (-1, 0, 1, 2)] for d, b in enumerate(bases)]
        return _weighted(image, taps, [_cubic_weights(p - b) for p, b in zip(places, bases)])
    places = [confined(p, d) for d, p in enumerate(places)]
    if mode == _NEAREST:
        return _look_up(image, [jnp.round(p) for p in places])
    bases = [jnp.floor(p) for p in places]
    return _weighted(image, [[b, b + 1] for b in bases], [[b + 1 - p, p - b] for p, b in zip(places, bases)])


def _weighted(image: Array, taps: Sequence[Sequence[Array]], weights: Sequence[Sequence[Array]]) -> Array:
    """The sum over all combinations of one tap a dimension, as one look-up: unrolled, it would be slow to compile."""
    rank = len(taps)

    def along(values: Sequence[Array], d: int) -> Array:
        """Stacked in dimension `d` of `rank` leading ones."""
        stacked = jnp.stack(values)
        return stacked.reshape(*(len(values) if e == d else 1 for e in range(rank)), *stacked.shape[1:])

    values = _look_up(image, [along(t, d) for d, t in enumerate(taps)])
    for d, w in enumerate(weights):
        values = values * along(w, d)
    return values.sum(axis=tuple(range(1, rank + 1)))


def _samples(input: Array, grid: Array, mode: int, padding_mode: int, align_corners: bool) -> Array:
    def one(image: Array, places: Array) -> Array:
        return _sample(image, places, mode, padding_mode, align_corners)

    return jax.vmap(one)(input, grid)


def _check_dtypes(input: Array, grid: Array) -> None:
    if input.dtype != grid.dtype:
        raise LoweringError(f"a grid of {grid.dtype} for {input.dtype}")  # the CPU kernel says so


@lower("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback")
def grid_sampler(input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Array:
    _check_dtypes(input, grid)
    wide = opmath(input.dtype)
    return _samples(input.astype(wide), grid.astype(wide), interpolation_mode, padding_mode, align_corners)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: Array,
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Array | None, Array]:
    wide = opmath(input.dtype)
    image, places, grad = (x.astype(wide) for x in (input, grid, grad_output))

    def forward(i: Array, g: Array) -> Array:
        return _samples(i, g, interpolation_mode, padding_mode, align_corners)

    grad_input = None
    if output_mask[0]:
        (grad_input,) = jax.vjp(lambda i: forward(i, places), image)[1](grad)
    (grad_grid,) = jax.vjp(lambda g: forward(image, g), places)[1](grad)
    return grad_input, grad_grid
