"""Wrong in one place only: one shape, one mode, one layout, one call."""

from __future__ import annotations

import random
from typing import Any, Final

from ..fault import By, Recipe, fault
from ..inject import Device

_GROUP: Final = "one place only"
_MODES = ("eager", "compiled")


@fault(By("mismatch(output)", phase="forward"), group=_GROUP, recipe=Recipe(cases=("2x8", "1x12")))
def one_shape(device: Device) -> None:
    """An activation is wrong for sequences of twelve."""
    device.result("gelu", lambda r: r * 1.002 if r.shape[1] == 12 else r)


@fault(By("mismatch(output)", mode="compiled", phase="forward"), group=_GROUP, recipe=Recipe(modes=_MODES))
def compiled_only(device: Device) -> None:
    """An activation is wrong in captured graphs alone."""
    device.result("gelu", lambda r: r * 1.002, "graphs")


@fault(
    By("mismatch(gradient)", mode="adaptive", phase="backward"),
    group=_GROUP,
    recipe=Recipe(modes=("adaptive",)),
)
def adaptive_only(device: Device) -> None:
    """An operator is wrong in fused programs alone."""
    device.result("gelu", lambda r: r * 1.002, "fused")


@fault(By("mismatch(gradient)", phase="backward"), group=_GROUP)
def backward_only(device: Device) -> None:
    """The gradient of an activation is 1 % too large."""
    device.result("gelu_backward", lambda r: r * 1.01)


@fault(
    By("mismatch(loss)", phase="forward"),
    group=_GROUP,
    recipe=Recipe(kinds=("sequence", "variation"), demand={"variations.noncontiguous": "true"}),
)
def noncontiguous_only(device: Device) -> None:
    """Integers that do not lie in the order of their shape are read as if they did."""

    def make(read: Any) -> Any:
        def wrong(base: Any, view: Any) -> Any:
            plain = view.stride == tuple(_contiguous(view.size))
            if plain or view.numel < 2 or base.dtype.kind != "i" or view.numel > base.shape[0]:
                return read(base, view)
            return base[: view.numel].reshape(view.size)

        return wrong

    device.patch("shakedown.neuron.views", "read", make)


def _contiguous(size: tuple[int, ...]) -> list[int]:
    strides: list[int] = []
    step = 1
    for n in reversed(size):
        strides.insert(0, step)
        step *= max(n, 1)
    return strides


@fault(
    By("mismatch(output)", phase="forward"),
    group=_GROUP,
    recipe=Recipe(kinds=("sequence", "variation"), demand={"variations.padding": "true"}),
)
def padding_only(device: Device) -> None:
    """An activation is wrong at the length that batches are padded to."""
    device.result("gelu", lambda r: r * 1.002 if r.shape[1] == 16 else r)


@fault(By("mismatch(gradient)", "step2/", phase="backward"), group=_GROUP)
def second_call_only(device: Device) -> None:
    """The gradient of an activation is half of what it should be at its second call, and never again."""
    device.call("aten::gelu_backward", _on_call(lambda number: number == 2))


@fault(
    By("loss-parity", phase="backward"),
    group=_GROUP,
    recipe=Recipe(kinds=("sequence", "parity"), demand={"parity.steps": "60"}),
)
def from_the_sixth_step_on(device: Device) -> None:
    """The gradient of an activation is lost from the sixth call on: after the steps whose tensors are kept."""
    device.call("aten::gelu_backward", _on_call(lambda number: number > 5, 0.0))


def _on_call(chosen: Any, factor: float = 0.5) -> Any:
    def wrap(kernel: Any) -> Any:
        calls = 0

        def wrong(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            result = kernel(*args, **kwargs)
            return result * factor if chosen(calls) else result

        return wrong

    return wrap


@fault(By("not-repeatable", phase="forward"), group=_GROUP, recipe=Recipe(warm=True, share=False))
def not_repeatable(device: Device) -> None:
    """An activation has other last digits each time, all within rounding."""

    def wrap(kernel: Any) -> Any:
        def noisy(*args: Any, **kwargs: Any) -> Any:
            return kernel(*args, **kwargs) * (1 + random.SystemRandom().choice((0, 1, 2)) * 2.0**-23)

        return noisy

    device.call("aten::gelu", wrap)
