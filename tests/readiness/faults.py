"""Named ways for a device to be wrong, and some to be right in another manner, as patches of torch in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace ``owner.name`` by ``make(original)`` for a while."""
    original = getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def zeroed_row() -> Any:
    """One position of a normalisation comes out as zeros."""

    def make(original: Any) -> Any:
        def layer_norm(x: Any, *args: Any, **kwargs: Any) -> Any:
            mask = torch.ones(x.shape[:-1] + (1,), dtype=x.dtype)
            mask[0, 3] = 0
            return original(x, *args, **kwargs) * mask

        return layer_norm

    return patched(F, "layer_norm", make)


def scaled() -> Any:
    """An activation comes out 0.2 % too large."""
    return patched(F, "gelu", lambda original: lambda x: original(x) * 1.002)


def zeroed_norm_gradient() -> Any:
    """The gradient of normalisation weights is zero."""

    def make(original: Any) -> Any:
        def layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
            return original(x, shape, weight.detach() + 0 * weight, bias, eps)

        return layer_norm

    return patched(F, "layer_norm", make)


def no_decay() -> Any:
    """AdamW forgets its weight decay."""

    def make(original: Any) -> Any:
        def init(self: Any, parameters: Any, lr: float, weight_decay: float) -> None:
            original(self, parameters, lr=lr, weight_decay=0.0)

        return init

    return patched(torch.optim.AdamW, "__init__", make)


def half_rate() -> Any:
    """AdamW moves half as far as asked."""

    def make(original: Any) -> Any:
        def init(self: Any, parameters: Any, lr: float, weight_decay: float) -> None:
            original(self, parameters, lr=lr / 2, weight_decay=weight_decay)

        return init

    return patched(torch.optim.AdamW, "__init__", make)


def lost_state() -> Any:
    """The optimizer's state vanishes after every step."""

    def make(original: Any) -> Any:
        def step(self: Any) -> None:
            original(self)
            self.state.clear()

        return step

    return patched(torch.optim.AdamW, "step", make)


def no_step() -> Any:
    """The optimizer does nothing."""
    return patched(torch.optim.AdamW, "step", lambda original: lambda self: None)


def narrow() -> Any:
    """Linear layers silently multiply in bfloat16."""

    def make(original: Any) -> Any:
        def linear(x: Any, weight: Any, bias: Any = None) -> Any:
            out = original(x.bfloat16(), weight.bfloat16()).to(x.dtype)
            return out if bias is None else out + bias

        return linear

    return patched(F, "linear", make)


def not_a_number() -> Any:
    """One activation is NaN."""

    def make(original: Any) -> Any:
        def gelu(x: Any) -> Any:
            mask = torch.ones_like(x)
            mask[0, 2, 5] = float("nan")
            return original(x) * mask

        return gelu

    return patched(F, "gelu", make)


def moved_wrongly() -> Any:
    """A weight changes while it is moved to the device."""

    def make(original: Any) -> Any:
        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            moved = original(self, *args, **kwargs)
            if args and isinstance(args[0], torch.device):
                with torch.no_grad():
                    next(moved.parameters())[0, 0] += 1e-3
            return moved

        return to

    return patched(torch.nn.Module, "to", make)


def uncaused_attention() -> Any:
    """Attention sees the future."""
    return patched(F, "scaled_dot_product_attention", lambda original: lambda q, k, v, is_causal: original(q, k, v))


# Correct in another manner: these must pass.


def sequential_sums() -> Any:
    """Linear layers add their products one after the other, the least accurate correct order."""

    def make(original: Any) -> Any:
        def linear(x: Any, weight: Any, bias: Any = None) -> Any:
            wide = torch.float32 if x.dtype is torch.bfloat16 else x.dtype
            a, w = x.to(wide), weight.to(wide)
            total = a[..., :1] * w[:, 0]
            for k in range(1, w.shape[1]):
                total = total + a[..., k : k + 1] * w[:, k]
            out = total.to(x.dtype)
            return out if bias is None else out + bias

        return linear

    return patched(F, "linear", make)


def plain_attention() -> Any:
    """Attention written out."""

    def make(original: Any) -> Any:
        def attention(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v

        return attention

    return patched(F, "scaled_dot_product_attention", make)


def wider_sums() -> Any:
    """Everything linear is computed in float64 and rounded once."""

    def make(original: Any) -> Any:
        def linear(x: Any, weight: Any, bias: Any = None) -> Any:
            return original(x.double(), weight.double(), None if bias is None else bias.double()).to(x.dtype)

        return linear

    return patched(F, "linear", make)


WRONG = {
    f.__name__: f
    for f in (
        zeroed_row, scaled, zeroed_norm_gradient, no_decay, half_rate, lost_state, no_step, narrow, not_a_number,
        moved_wrongly, uncaused_attention,
    )
}  # fmt: skip
RIGHT = {f.__name__: f for f in (sequential_sums, plain_attention, wider_sums)}
