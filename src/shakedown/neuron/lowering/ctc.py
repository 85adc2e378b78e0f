"""Connectionist temporal classification: the loss and its gradient.

Graves, Fernández, Gomez and Schmidhuber, "Connectionist temporal classification: labelling unsegmented sequence data with
recurrent neural networks", 2006: sums over alignments by the forward variable alpha (their equations 6 to 8) and the backward
variable beta, in logarithms. A label sequence of length S is extended by blanks to L = 2 * S + 1 states.

Lengths arrive as lists of numbers, which would make a program for each of them; eager calls turn them into tensors first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..errors import LoweringError
from ..views import View
from .common import Array
from .metas import meta
from .registry import composite, lower, overload

Tensor: TypeAlias = torch.Tensor


# --- on arrays: T steps, B sequences, C classes, L states -------------------------------------------------------------


def _padded(targets: Array, lengths: Array, room: int) -> Array:
    """Labels as (B, room), of rows or of one row after the other; what is past a sequence's end is some label."""
    if targets.ndim == 2:
        return targets[:, :room]
    start = jnp.cumsum(lengths) - lengths
    place = start[:, None] + jnp.arange(room)
    return jnp.take(targets, jnp.minimum(place, targets.shape[0] - 1), axis=0) if room else targets[:0].reshape(-1, 0)


def _states(targets: Array, blank: int, classes: int) -> tuple[Array, Array]:
    """(class of each state, whether it can be entered past the blank before it), both (B, L)."""
    batch, room = targets.shape
    state = jnp.full((batch, 2 * room + 1), blank, jnp.int32)
    state = state.at[:, 1::2].set(jnp.clip(targets, 0, classes - 1).astype(jnp.int32))
    skips = jnp.zeros(state.shape, bool).at[:, 2:].set(state[:, 2:] != state[:, :-2])
    return state, skips


def _shifted(x: Array, by: int) -> Array:
    """`x` moved along its last dimension, -inf coming in."""
    if abs(by) >= x.shape[-1]:
        return jnp.full_like(x, -jnp.inf)
    fill = jnp.full((*x.shape[:-1], abs(by)), -jnp.inf, x.dtype)
    return jnp.concatenate([fill, x[..., :-by]] if by > 0 else [x[..., -by:], fill], axis=-1)


def _log_sum(*terms: Array) -> Array:
    largest = terms[0]
    for t in terms[1:]:
        largest = jnp.maximum(largest, t)
    largest = jnp.where(jnp.isneginf(largest), 0, largest)
    total = sum(jnp.exp(t - largest) for t in terms)
    return jnp.log(total) + largest


def _emissions(log_probs: Array, state: Array) -> Array:
    """Log probability of each state's class, (T, B, L)."""
    index = jnp.broadcast_to(state, (log_probs.shape[0], *state.shape))
    return jnp.take_along_axis(log_probs, index, axis=2)


def _forward(
    log_probs: Array, targets: Array, steps: Array, lengths: Array, blank: int, room: int
) -> tuple[Array, Array]:
    """(negative log likelihood (B,), alpha (B, T, L))."""
    if log_probs.shape[0] == 0:
        raise LoweringError("no time steps")
    steps, lengths = steps.astype(jnp.int64), lengths.astype(jnp.int64)
    state, skips = _states(_padded(targets, lengths, room), blank, log_probs.shape[2])
    emission = _emissions(log_probs, state)
    number = jnp.arange(state.shape[1])
    used = number <= 2 * lengths[:, None]
    first = jnp.where(used & (number < 2), emission[0], -jnp.inf)

    def step(alpha: Array, here: Array) -> tuple[Array, Array]:
        two_back = jnp.where(skips, _shifted(alpha, 2), -jnp.inf)
        alpha = jnp.where(used, _log_sum(alpha, _shifted(alpha, 1), two_back) + here, -jnp.inf)
        return alpha, alpha

    _, rest = lax.scan(step, first, emission[1:])
    alpha = jnp.concatenate([first[None], rest])
    row = jnp.arange(state.shape[0])
    last = alpha[jnp.maximum(steps - 1, 0), row]
    label = jnp.where(lengths > 0, last[row, jnp.maximum(2 * lengths - 1, 0)], -jnp.inf)
    likelihood = _log_sum(last[row, 2 * lengths], label)
    likelihood = jnp.where(steps == 0, jnp.where(lengths == 0, 0, -jnp.inf), likelihood)
    return -likelihood, jnp.swapaxes(alpha, 0, 1)


def _backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    steps: Array,
    lengths: Array,
    loss: Array,
    alpha: Array,
    blank: int,
    zero_infinity: bool,
) -> Array:
    """Gradient with respect to `log_probs`, which are taken to be normalised: (T, B, C)."""
    count, batch, classes = log_probs.shape
    steps, lengths = steps.astype(jnp.int64), lengths.astype(jnp.int64)
    state, skips = _states(_padded(targets, lengths, (alpha.shape[2] - 1) // 2), blank, classes)
    emission = _emissions(log_probs, state)
    number = jnp.arange(state.shape[1])
    end = 2 * lengths[:, None]
    used = number <= end
    leaves = _shifted(jnp.where(skips, 0.0, -jnp.inf), -2) == 0  # whether the state after the next can follow
    final = (number == end) | ((number == end - 1) & (end > 0))

    def step(beta: Array, here: tuple[Array, Array]) -> tuple[Array, Array]:
        t, emitted = here
        two_on = jnp.where(leaves, _shifted(beta, -2), -jnp.inf)
        onwards = _log_sum(beta, _shifted(beta, -1), two_on) + emitted
        last = (t == steps - 1)[:, None]
        beta = jnp.where(last, jnp.where(final, emitted, -jnp.inf), jnp.where((t < steps)[:, None], onwards, -jnp.inf))
        beta = jnp.where(used, beta, -jnp.inf)
        return beta, beta

    start = jnp.full(state.shape, -jnp.inf, log_probs.dtype)
    _, beta = lax.scan(step, start, (jnp.arange(count), emission), reverse=True)
    # Both variables hold the emission; without one of them they are the posterior of the state.
    joint = jnp.where(used, jnp.swapaxes(alpha, 0, 1) + beta, -jnp.inf)
    posterior = jnp.where(jnp.isneginf(joint), 0, jnp.exp(joint + loss[:, None] - emission))
    occupied = jnp.zeros_like(log_probs).at[:, jnp.arange(batch)[:, None], state].add(posterior)
    value = jnp.exp(log_probs) - occupied
    # What the CPU kernel's logarithms give: infinities without a difference.
    value = jnp.where(jnp.isneginf(log_probs) | jnp.isposinf(loss)[:, None], jnp.nan, value) * grad[:, None]
    if zero_infinity:
        value = jnp.where(jnp.isposinf(loss)[:, None], 0, value)
    return jnp.where((jnp.arange(count)[:, None] < steps)[..., None], value, 0)


# --- the overload whose lengths are tensors: one program for all lengths ----------------------------------------------


@meta("_ctc_loss.Tensor")
def _ctc_loss_meta(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    steps, batch = log_probs.shape[:2]
    states = 2 * targets.shape[-1] + 1  # enough for any lengths, which only the device knows
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, states)


@lower("_ctc_loss.Tensor")
def _ctc_loss_of_tensors(
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    """(negative log likelihood (B,), log alpha (B, T, L)) of `log_probs` (T, B, C)."""
    return _forward(log_probs, targets, input_lengths, target_lengths, blank, targets.shape[-1])


@meta("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward_meta(grad: Tensor, log_probs: Tensor, *rest: Any, **named: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


@lower("_ctc_loss_backward.Tensor")
def _ctc_loss_backward_of_tensors(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    neg_log_likelihood: Array,
    log_alpha: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Array:
    return _backward(
        grad,
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        neg_log_likelihood,
        log_alpha,
        blank,
        zero_infinity,
    )


# --- the overload whose lengths are numbers ---------------------------------------------------------------------------


@lower("_ctc_loss", graph_only=True, takes_outputs=True)
def _ctc_loss_of_lists(
    log_probs: Array,
    targets: Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
    *,
    outputs: Sequence[View],
) -> tuple[Array, Array]:
    room = (outputs[1].size[2] - 1) // 2
    return _forward(log_probs, targets, jnp.asarray(input_lengths), jnp.asarray(target_lengths), blank, room)


@lower("_ctc_loss_backward", graph_only=True)
def _ctc_loss_backward_of_lists(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *rest: Any,
) -> Array:
    return _backward(grad, log_probs, targets, jnp.asarray(input_lengths), jnp.asarray(target_lengths), *rest)


def _are_plausible(log_probs: Tensor, targets: Tensor, steps: list[int], lengths: list[int], blank: int) -> bool:
    if log_probs.dim() != 3 or targets.dim() not in (1, 2) or 0 in log_probs.shape:
        return False
    count, batch, classes = log_probs.shape
    if len(steps) != batch or len(lengths) != batch or not 0 <= blank < classes:
        return False
    room = targets.shape[1] if targets.dim() == 2 else max(lengths)
    enough = targets.shape[0] == (batch if targets.dim() == 2 else sum(lengths))
    return enough and all(0 <= s <= count for s in steps) and all(0 <= n <= room for n in lengths)


def _rows(targets: Tensor, lengths: list[int], device: torch.device) -> Tensor:
    """Labels as a matrix, one sequence a row."""
    targets = targets.to(device)
    if targets.dim() == 2:
        return targets
    room, ends = max(lengths), np.cumsum(lengths)
    if room == 0:
        return targets.new_zeros(len(lengths), 0)
    place = np.minimum((ends - lengths)[:, None] + np.arange(room), targets.shape[0] - 1)
    return targets[torch.from_numpy(place).to(device)]


def _lengths(values: list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device)


@composite("_ctc_loss")
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: list[int],
    target_lengths: list[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """As :func:`_ctc_loss_of_tensors`, with the number of states that the longest target needs."""
    if not _are_plausible(log_probs, targets, input_lengths, target_lengths, blank):
        return _as_the_cpu("_ctc_loss", (log_probs, targets, input_lengths, target_lengths, blank, zero_infinity))
    device = log_probs.device
    loss, alpha = torch.ops.aten._ctc_loss.Tensor(
        log_probs,
        _rows(targets, target_lengths, device),
        _lengths(input_lengths, device),
        _lengths(target_lengths, device),
        blank,
        zero_infinity,
    )
    return loss, alpha[:, :, : 2 * max(target_lengths) + 1]


@composite("_ctc_loss_backward")
def _ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: list[int],
    target_lengths: list[int],
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    device = log_probs.device
    labels = _rows(targets, target_lengths, device)
    # As wide as the forward pass made it: the costly program is then one for all lengths.
    alpha = torch.nn.functional.pad(log_alpha, (0, 2 * labels.shape[1] + 1 - log_alpha.shape[2]))
    return torch.ops.aten._ctc_loss_backward.Tensor(
        grad,
        log_probs,
        labels,
        _lengths(input_lengths, device),
        _lengths(target_lengths, device),
        neg_log_likelihood,
        alpha,
        blank,
        zero_infinity,
    )


def _as_the_cpu(name: str, args: tuple[Any, ...]) -> Any:
    """Arguments that make no sense: the CPU kernel says why."""
    from .. import fallback
    from ..dispatch import operator_of  # loaded after the lowerings

    return fallback.run(operator_of(overload(name)), args, {}, "lengths or sizes that do not fit")
