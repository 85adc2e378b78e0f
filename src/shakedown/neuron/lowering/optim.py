"""Fused optimizers: one program for one step over all parameters.

The formulas are those of ATen/native/cpu/Fused{Adam,SGD,Adagrad}Kernel.cpp. Hyperparameters are inputs of the
program; only a weight decay or momentum of exactly zero is specialised, since it removes a term. Bias corrections are
computed in float64, as the CPU kernels do on the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from .common import Array, number_as, opmath
from .elementwise import lerp
from .metas import meta
from .registry import lower

Arrays = Sequence[Array]


def _is_zero(value: Any) -> bool:
    return value == 0


def _absent(value: Any) -> bool:
    """Whether a number was specialised to zero."""
    return isinstance(value, (int, float)) and value == 0


def _double(value: Any) -> Array:
    return number_as(value, jnp.float64).reshape(())


def _wide(x: Array) -> Array:
    return x.astype(opmath(x.dtype))


def _unscaled(grad: Array, grad_scale: Array | None) -> Array:
    g = _wide(grad)
    return g if grad_scale is None else g / grad_scale.reshape(()).astype(g.dtype)


def _unless_overflowed(found_inf: Array | None, new: Sequence[Array], old: Sequence[Array]) -> list[Array]:
    """`new`, or `old` where the gradient scaler has seen an infinity."""
    if found_inf is None:
        return list(new)
    skip = found_inf.reshape(()) == 1
    return [jnp.where(skip, before, after.astype(before.dtype)) for after, before in zip(new, old)]


def _adam(decoupled: bool) -> Callable[..., Any]:
    def lowering(
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> tuple[list[Array], ...]:
        lr, beta1, beta2, eps = _double(lr), _double(beta1), _double(beta2), _double(eps)
        decay = None if _absent(weight_decay) else _double(weight_decay)

        def updated(p: Array, g: Array, m: Array, v: Array, largest: Array | None, count: Array) -> list[Array]:
            """New (parameter, first moment, second moment, largest second moment if any) at step `count`."""

            def of(value: Array) -> Array:
                return value.astype(p.dtype)

            if decay is not None and decoupled:
                p = p - of(lr * decay) * p
            elif decay is not None:
                g = g + p * of(decay)
            m = lerp(m, g, of(1 - beta1))
            v = of(beta2) * v + of(1 - beta2) * g * g
            largest = None if largest is None else jnp.maximum(largest, v)
            spread = jnp.sqrt(v if largest is None else largest) / of(jnp.sqrt(1 - beta2**count)) + of(eps)
            p = p - of(lr / (1 - beta1**count)) * m / spread
            return [p, m, v] if largest is None else [p, m, v, largest]

        columns: tuple[list[Array], ...] = ([], [], [], [], [])
        for i, (p, grad, m, v, step) in enumerate(zip(self, grads, exp_avgs, exp_avg_sqs, state_steps)):
            unscaled = _unscaled(grad, grad_scale)
            largest = max_exp_avg_sqs[i] if amsgrad else None
            g = -unscaled if maximize else unscaled
            largest_wide = None if largest is None else _wide(largest)
            new = updated(_wide(p), g, _wide(m), _wide(v), largest_wide, _double(step))
            old = [p, m, v] if largest is None else [p, m, v, largest]
            new.insert(1, grad if grad_scale is None else unscaled)  # the kernel stores what it unscaled
            old.insert(1, grad)
            for column, value in zip(columns, _unless_overflowed(found_inf, new, old)):
                column.append(value)
        if not amsgrad:
            columns[4].extend(max_exp_avg_sqs)
        return columns

    return lowering


_ADAM_STATIC: dict[str, Callable[[Any], bool]] = {"weight_decay": _is_zero}
lower("_fused_adam", "_fused_adam.tensor_lr", static=_ADAM_STATIC)(_adam(decoupled=False))
lower("_fused_adamw", "_fused_adamw.tensor_lr", static=_ADAM_STATIC)(_adam(decoupled=True))


@lower("_fused_sgd", "_fused_sgd.tensor_lr", static={"weight_decay": _is_zero, "momentum": _is_zero})
def fused_sgd(
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[list[Array], list[Array], list[Array]]:
    columns: tuple[list[Array], list[Array], list[Array]] = ([], [], [])
    for i, (param, grad) in enumerate(zip(self, grads)):
        p, unscaled = _wide(param), _unscaled(grad, grad_scale)
        g = -unscaled if maximize else unscaled

        def of(value: Any, p: Array = p) -> Array:
            return _double(value).astype(p.dtype)

        if not _absent(weight_decay):
            g = g + p * of(weight_decay)
        new, old = [unscaled if grad_scale is not None else grad], [grad]
        if not _absent(momentum):
            buffer = momentum_buffer_list[i]
            b = g if is_first_step else of(momentum) * _wide(buffer) + of(1 - _double(dampening)) * g
            g = g + of(momentum) * b if nesterov else b
            new.append(b)
            old.append(buffer)
        new, old = [p - of(lr) * g, *new], [param, *old]
        for column, value in zip(columns, _unless_overflowed(found_inf, new, old)):
            column.append(value)
    if _absent(momentum):
        columns[2].extend(momentum_buffer_list)
    return columns


def _adagrad(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[list[Array], list[Array], list[Array]]:
    columns: tuple[list[Array], list[Array], list[Array]] = ([], [], [])
    for param, grad, total, step in zip(self, grads, state_sums, state_steps):
        p, unscaled = _wide(param), _unscaled(grad, grad_scale)
        g = -unscaled if maximize else unscaled
        if not _absent(weight_decay):
            g = g + p * _double(weight_decay).astype(p.dtype)
        s = _wide(total) + g * g
        rate = _double(lr) / (1 + (_double(step) - 1) * _double(lr_decay))
        new_p = p - rate.astype(p.dtype) * g / (jnp.sqrt(s) + _double(eps).astype(p.dtype))
        kept = grad if grad_scale is None else unscaled
        for column, value in zip(columns, _unless_overflowed(found_inf, (new_p, kept, s), (param, grad, total))):
            column.append(value)
    return columns


@lower("_fused_adagrad", static={"weight_decay": _is_zero})
def fused_adagrad(self: Arrays, grads: Arrays, state_sums: Arrays, state_steps: Arrays, **hyper: Any) -> Any:
    # The schema lists the steps as written; the kernel leaves them alone.
    return *_adagrad(self, grads, state_sums, state_steps, **hyper), list(state_steps)


lower("_fused_adagrad.tensor_lr", static={"weight_decay": _is_zero})(_adagrad)


# --- gradient scaling -------------------------------------------------------------------------------------------------


@lower("_amp_foreach_non_finite_check_and_unscale")
def unscale(self: Arrays, found_inf: Array, inv_scale: Array) -> tuple[list[Array], Array]:
    scaled = [_wide(g) * inv_scale.reshape(()).astype(opmath(g.dtype)) for g in self]
    broken = [jnp.any(~jnp.isfinite(g)) for g in self]
    seen = functools.reduce(jnp.logical_or, broken, jnp.zeros((), bool))
    return scaled, jnp.where(seen, 1, found_inf)


@lower("_amp_update_scale")
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: Any,
    scale_backoff_factor: Any,
    growth_interval: int,
) -> tuple[Array, Array]:
    """Back off after an infinity; grow after `growth_interval` steps without one, while the scale stays finite."""
    failed = found_inf.reshape(()) != 0
    successes = growth_tracker + 1
    due = ~failed & (successes == growth_interval)
    grown = self * number_as(scale_growth_factor, self.dtype)
    grown = jnp.where(jnp.isfinite(grown), grown, self)
    scale = jnp.where(failed, self * number_as(scale_backoff_factor, self.dtype), jnp.where(due, grown, self))
    return scale, jnp.where(failed | due, 0, successes)


# --- meta kernels -----------------------------------------------------------------------------------------------------


@meta(*(f"_fused_{name}_{which}" for name in ("adam", "adamw", "sgd", "adagrad") for which in ("", ".tensor_lr")))
def _changes_no_size(*_: Any, **__: Any) -> None:
    """These operators write their arguments and return nothing."""
