"""Recurrent networks: one step of a cell, and a whole layer over its sequence as one program.

Gates of an LSTM are ordered input, forget, cell, output; those of a GRU reset, update, new (torch.nn.LSTM, torch.nn.GRU).
PyTorch runs a layer step by step on devices like this one. Here it becomes ``aten::_cudnn_rnn``, whose schema and derivative
formula describe any layer; the name is all that it has of cuDNN. As there, a layer's gradient has no gradient; inside
``torch.backends.cudnn.flags(enabled=False)`` PyTorch's own composite runs, which has. So it does for packed sequences, whose
lengths would otherwise make a program for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..errors import LoweringError
from .common import Array, computation, opmath
from .dynamic import kernel_of_lowering
from .metas import meta
from .registry import composite, lower, overload

Tensor: TypeAlias = torch.Tensor
_RELU, _TANH, _LSTM, _GRU = range(4)  # cuDNN's numbers of the modes


# --- steps: gates of the input and of the state, both (B, G * H) ------------------------------------------------------


def _lstm_step(from_input: Array, from_state: Array, c: Array) -> tuple[Array, Array, Array]:
    """(h, c, activated gates)."""
    i, f, g, o = jnp.split(from_input + from_state, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * c + i * g
    return o * jnp.tanh(c), c, jnp.concatenate([i, f, g, o], axis=-1)


def _gru_step(from_input: Array, from_state: Array, h: Array) -> tuple[Array, tuple[Array, ...]]:
    """(h, (reset, update, new, the old h, what the state gives to new))."""
    (ir, iz, new), (hr, hz, hn) = jnp.split(from_input, 3, axis=-1), jnp.split(from_state, 3, axis=-1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    n = jnp.tanh(new + r * hn)
    return n + z * (h - n), (r, z, n, h, hn)


# --- cells ------------------------------------------------------------------------------------------------------------


def _biased(gates: Array, bias: Array | None) -> Array:
    return gates if bias is None else gates + bias


@lower("_thnn_fused_lstm_cell", graph_only=True)
def _thnn_fused_lstm_cell(
    input_gates: Array,
    hidden_gates: Array,
    cx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    """(h (B, H), c (B, H), activated gates (B, 4 * H))."""
    _, (x, h, c, bx, bh) = computation(input_gates, hidden_gates, cx, input_bias, hidden_bias)
    return _lstm_step(_biased(x, bx), _biased(h, bh), c)


@composite("_thnn_fused_lstm_cell")
def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    if input_bias is None:  # which PyTorch's meta kernel does not expect
        input_bias = hidden_bias = input_gates.new_zeros(input_gates.shape[1])
    return kernel_of_lowering("_thnn_fused_lstm_cell")(input_gates, hidden_gates, cx, input_bias, hidden_bias)


@lower("_thnn_fused_lstm_cell_backward_impl")
def _thnn_fused_lstm_cell_backward(
    grad_hy: Array | None, grad_cy: Array | None, cx: Array, cy: Array, workspace: Array, has_bias: bool
) -> tuple[Array, Array, Array | None]:
    """Gradients of the gates before activation, of the old c and of a bias; `workspace` holds the activated gates."""
    _, (gh, gc, c, new_c, gates) = computation(grad_hy, grad_cy, cx, cy, workspace)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    tanh = jnp.tanh(new_c)
    inner = jnp.zeros_like(c) if gc is None else gc
    outer = jnp.zeros_like(c) if gh is None else gh
    inner = inner + outer * o * (1 - tanh * tanh)
    parts = [inner * g * i * (1 - i), inner * c * f * (1 - f), inner * i * (1 - g * g), outer * tanh * o * (1 - o)]
    grad = jnp.concatenate(parts, axis=-1)
    return grad, inner * f, grad.sum(axis=0) if has_bias else None


@meta("_thnn_fused_gru_cell")
def _gru_cell_meta(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Tensor, Tensor]:
    return hx.new_empty(hx.shape), hx.new_empty(hx.shape[0], 5 * hx.shape[1])


@lower("_thnn_fused_gru_cell")
def _thnn_fused_gru_cell(
    input_gates: Array,
    hidden_gates: Array,
    hx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:
    """(h (B, H), what the gradient needs (B, 5 * H))."""
    _, (x, h, old, bx, bh) = computation(input_gates, hidden_gates, hx, input_bias, hidden_bias)
    new, saved = _gru_step(_biased(x, bx), _biased(h, bh), old)
    return new, jnp.concatenate(saved, axis=-1)


@meta("_thnn_fused_gru_cell_backward")
def _gru_cell_backward_meta(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    batch, width = grad_hy.shape
    gates = [grad_hy.new_empty(batch, 3 * width) for _ in range(2)]
    biases = [grad_hy.new_empty(3 * width) if has_bias else None for _ in range(2)]
    return (*gates, grad_hy.new_empty(batch, width), *biases)


@lower("_thnn_fused_gru_cell_backward")
def _thnn_fused_gru_cell_backward(grad_hy: Array, workspace: Array, has_bias: bool) -> tuple[Array | None, ...]:
    """Gradients of the gates of input and state, of the old h, and of both biases."""
    _, (grad, saved) = computation(grad_hy, workspace)
    r, z, n, old, hn = jnp.split(saved, 5, axis=-1)
    new = grad * (1 - z) * (1 - n * n)
    reset = new * hn * r * (1 - r)
    update = grad * (old - n) * z * (1 - z)
    from_input = jnp.concatenate([reset, update, new], axis=-1)
    from_state = jnp.concatenate([reset, update, new * r], axis=-1)
    biases = (from_input.sum(axis=0), from_state.sum(axis=0)) if has_bias else (None, None)
    return (from_input, from_state, grad * z, *biases)


# --- layers -----------------------------------------------------------------------------------------------------------


def _times(x: Array, w: Array) -> Array:
    return jnp.matmul(x, w.T, precision=lax.Precision.HIGHEST)


def _direction(
    mode: int, biased: bool, x: Array, h: Array, c: Array | None, weights: Sequence[Array], reverse: bool
) -> tuple[Array, Array, Array | None]:
    """(outputs (T, B, H), last h, last c) of `x` (T, B, F) from the state `h` (B, H) and `c`, in one direction."""
    w_input, w_state, *rest = weights
    b_input, b_state = (rest.pop(0), rest.pop(0)) if biased else (None, None)
    projection = rest[0] if rest else None
    gates = _biased(_times(x, w_input), b_input)  # of all steps at once

    def step(state: tuple[Array, Array | None], from_input: Array) -> tuple[tuple[Array, Array | None], Array]:
        h, c = state
        from_state = _biased(_times(h, w_state), b_state)
        if mode == _LSTM:
            assert c is not None
            h, c, _ = _lstm_step(from_input, from_state, c)
            h = h if projection is None else _times(h, projection)
        elif mode == _GRU:
            h, _ = _gru_step(from_input, from_state, h)
        else:
            total = from_input + from_state
            h = jnp.tanh(total) if mode == _TANH else jnp.maximum(total, 0)
        return (h, c), h

    (h, c), outputs = lax.scan(step, (h, c), gates, reverse=reverse)
    return outputs, h, c


def _layer(
    mode: int,
    directions: int,
    biased: bool,
    batch_first: bool,
    x: Array,
    h: Array,
    c: Array | None,
    weights: Sequence[Array],
) -> tuple[Array, Array, Array | None]:
    """(outputs (T, B, D * H), last h (D, B, H), last c) of one layer of D directions."""
    each = len(weights) // directions
    x = jnp.swapaxes(x, 0, 1) if batch_first else x
    made = [
        _direction(mode, biased, x, h[d], None if c is None else c[d], weights[each * d : each * (d + 1)], d == 1)
        for d in range(directions)
    ]
    outputs = jnp.concatenate([m[0] for m in made], axis=-1)
    outputs = jnp.swapaxes(outputs, 0, 1) if batch_first else outputs
    return outputs, jnp.stack([m[1] for m in made]), None if c is None else jnp.stack([m[2] for m in made])


def _of_schema(
    weight: Sequence[Array],
    mode: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    bidirectional: bool,
    packed: Any,
) -> Callable[..., tuple[Array, Array, Array | None]]:
    if num_layers != 1 or packed:
        raise LoweringError("several layers, or a packed sequence, in one operator")
    directions = 2 if bidirectional else 1
    biased = len(weight) // directions - (proj_size > 0) == 4
    return partial(_layer, mode, directions, biased, batch_first)


def _wide(x: Array | None) -> Array | None:
    return None if x is None else x.astype(opmath(x.dtype))


@lower("_cudnn_rnn")
def _rnn_layer(
    input: Array,
    weight: Sequence[Array],
    weight_stride0: int,
    weight_buf: Array | None,
    hx: Array,
    cx: Array | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: Any,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Array | None,
) -> tuple[Array | None, ...]:
    """(outputs, last h, last c (empty but for LSTMs), nothing, weight_buf) of one layer.

    Nothing is kept for the gradient, which computes what it needs again.
    """
    run = _of_schema(weight, mode, proj_size, num_layers, batch_first, bidirectional, batch_sizes)
    outputs, h, c = run(_wide(input), _wide(hx), _wide(cx), [_wide(w) for w in weight])
    return outputs, h, jnp.zeros(0, jnp.float32) if c is None else c, jnp.zeros(0, jnp.uint8), weight_buf


@meta("_cudnn_rnn_backward")
def _rnn_layer_backward_meta(
    input: Tensor, weight: Sequence[Tensor], weight_stride0: int, weight_buf: Any, hx: Tensor, cx: Any, *rest: Any
) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    state = None if cx is None else cx.new_empty(cx.shape)
    return input.new_empty(input.shape), hx.new_empty(hx.shape), state, [w.new_empty(w.shape) for w in weight]


@lower("_cudnn_rnn_backward")
def _rnn_layer_backward(
    input: Array,
    weight: Sequence[Array],
    weight_stride0: int,
    weight_buf: Array | None,
    hx: Array,
    cx: Array | None,
    output: Array,
    grad_output: Array | None,
    grad_hy: Array | None,
    grad_cy: Array | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: Any,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Array | None,
    reserve: Array,
    output_mask: Sequence[bool],
) -> tuple[Array, Array, Array | None, list[Array]]:
    """Gradients of the input, of both states and of the weights."""
    run = _of_schema(weight, mode, proj_size, num_layers, batch_first, bidirectional, batch_sizes)
    values, back = jax.vjp(run, _wide(input), _wide(hx), _wide(cx), [_wide(w) for w in weight])
    given = (grad_output, grad_hy, grad_cy)
    seeds = tuple(
        None if v is None else jnp.zeros_like(v) if g is None else g.astype(v.dtype) for v, g in zip(values, given)
    )
    grad_input, grad_h, grad_c, grad_weights = back(seeds)
    return grad_input, grad_h, grad_c, list(grad_weights)


# --- networks, above autograd -----------------------------------------------------------------------------------------


def _fits(input: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], each: int, layers: int, ways: int) -> bool:
    """Whether the layers' operator takes these; what it does not, PyTorch's composite runs or refuses."""
    tensors = (*states, *params)
    return (
        torch.backends.cudnn.enabled
        and input.dim() == 3
        and 0 not in input.shape
        and len(params) == each * layers * ways
        and all(s.dim() == 3 and s.shape[0] == layers * ways for s in states)
        and all(t.dtype == input.dtype and t.device == input.device for t in tensors)
        and input.is_floating_point()
    )


def _network(
    mode: int,
    input: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    each: int,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """(outputs, last states ...) of layers on top of each other, dropout between them."""
    ways = 2 if bidirectional else 1
    hidden = params[1].shape[0] // {_LSTM: 4, _GRU: 3}.get(mode, 1)
    projected = states[0].shape[2] if states[0].shape[2] != hidden else 0
    x, last = input, []
    nothing = torch.empty(0, dtype=input.dtype, device=input.device)  # in the place of cuDNN's copy of the weights
    for layer in range(num_layers):
        weights = list(params[layer * ways * each : (layer + 1) * ways * each])
        here = [s[layer * ways : (layer + 1) * ways] for s in states]
        h, c = here[0], here[1] if mode == _LSTM else None
        settings: tuple[Any, ...] = (mode, hidden, projected, 1, batch_first, 0.0, train, bidirectional, [], None)
        x, *after = torch.ops.aten._cudnn_rnn(x, weights, each, nothing, h, c, *settings)[:3]
        last.append(after)
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, True)
    return (x, *(torch.cat([after[n] for after in last]) for n in range(len(states))))


@composite("lstm.input")
def lstm(
    input: Tensor,
    hx: list[Tensor],
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    ways = 2 if bidirectional else 1
    projects = len(hx) == 2 and len(params) == num_layers * ways * (5 if has_biases else 3)
    each = 2 + 2 * has_biases + projects
    if len(hx) != 2 or not _fits(input, hx, params, each, num_layers, ways):
        return overload("lstm.input").decompose(
            input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )
    return _network(_LSTM, input, hx, params, each, num_layers, dropout, train, bidirectional, batch_first)


def _register(name: str, mode: int) -> None:
    @composite(name)
    def network(
        input: Tensor,
        hx: Tensor,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        each, ways = 2 + 2 * has_biases, 2 if bidirectional else 1
        if not _fits(input, [hx], params, each, num_layers, ways):
            return overload(name).decompose(
                input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
            )
        return _network(mode, input, [hx], params, each, num_layers, dropout, train, bidirectional, batch_first)


_register("gru.input", _GRU)
_register("rnn_tanh.input", _TANH)
_register("rnn_relu.input", _RELU)
