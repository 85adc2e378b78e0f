"""What ran somewhere else than it says, and graphs that are not what they seem."""

from __future__ import annotations

import sys
from typing import Any, Final

from ..fault import By, Recipe, fault
from ..inject import Device

_GROUP: Final = "paths and graphs"
_COMPILED = Recipe(modes=("compiled",))


def _refuse(fn: Any, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("no program for this operator")


@fault(By("fallback", "gelu", phase="forward"), group=_GROUP)
def unaccepted_fallback(device: Device) -> None:
    """An activation has no program and runs on the CPU, reported as it should be."""
    device.lowering("gelu", _refuse)


@fault(By("fallback-bound", phase="forward"), group=_GROUP, recipe=Recipe(demand={"budgets.fallback_share": "0.0001"}))
def slow_fallbacks(device: Device) -> None:
    """Most of a step goes into operators that run on the CPU, over the budget of its requirements."""
    for name in ("gelu", "linear", "native_layer_norm"):
        device.lowering(name, _refuse)


def _on_the_host(kernel: Any) -> Any:
    """A kernel that moves its arguments to the host past the device's own counters, and computes there."""

    def hidden(x: Any, *rest: Any, **more: Any) -> Any:
        import torch

        pending, transfer = (sys.modules[f"shakedown.neuron.{name}"] for name in ("pending", "transfer"))
        numpy = sys.modules["numpy"]
        flat = numpy.array(pending.value_of(x.untyped_storage(), "transfer"))[: x.numel()]
        result = torch.ops.aten.gelu.default(torch.from_numpy(flat).reshape(x.shape), *rest, **more)
        made = transfer.empty(tuple(result.shape), tuple(result.stride()), result.dtype)
        made.untyped_storage().buffer = sys.modules["jax.numpy"].asarray(result.numpy().reshape(-1))
        return made

    return hidden


@fault(By("hidden-fallback", "gelu", phase="forward"), group=_GROUP)
def hidden_fallback(device: Device) -> None:
    """An activation runs on the CPU, and neither the device's list of fallbacks nor its counter of bytes says so."""
    device.call("aten::gelu", _on_the_host)


@fault(
    By("recompile-bound", "ran eager", mode="compiled"),
    group=_GROUP,
    recipe=Recipe("plain", modes=("compiled",), cases=("4x6",)),
)
def recompile_storm(device: Device) -> None:
    """Every call of the compiled function has a new number among its arguments, so that every call compiles again."""

    def make(compile: Any) -> Any:
        def storm(function: Any = None, **options: Any) -> Any:
            calls = 0

            def numbered(number: int, *args: Any, **kwargs: Any) -> Any:
                result = function(*args, **kwargs)
                return result if number >= 0 else None

            compiled = compile(numbered, **options)

            def counted(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                return compiled(calls, *args, **kwargs)

            return counted

        return storm

    device.patch("torch", "compile", make)


@fault(By("partly-compiled", mode="compiled"), group=_GROUP, recipe=_COMPILED)
def graph_breaks(device: Device) -> None:
    """Capture stops before and after every activation."""

    def make(gelu: Any) -> Any:
        def broken(*args: Any, **kwargs: Any) -> Any:
            import torch

            torch._dynamo.graph_break()
            result = gelu(*args, **kwargs)
            torch._dynamo.graph_break()
            return result

        return broken

    device.patch("torch.nn.functional", "gelu", make)


@fault(By("graph-by-operator", "gelu", mode="compiled"), group=_GROUP, recipe=_COMPILED)
def graph_by_operator(device: Device) -> None:
    """The backend takes a graph and runs it operator by operator."""

    def hook(graph: Any) -> None:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise sys.modules["shakedown.neuron.errors"].LoweringError("aten.gelu.default: no lowering")

        graph.GraphLowering.run = run

    device.after("shakedown.neuron.graph", hook)


@fault(By("not-captured", mode="compiled"), group=_GROUP, recipe=_COMPILED)
def nothing_compiled(device: Device) -> None:
    """torch.compile gives back the function that it was given."""

    device.patch("torch", "compile", lambda compile: lambda function=None, **options: function)


@fault(By("not-fused", mode="adaptive"), group=_GROUP, recipe=Recipe(modes=("adaptive",)))
def nothing_fused(device: Device) -> None:
    """Adaptive eager records operators and runs every one of them by itself."""

    def make(submit: Any) -> Any:
        return lambda self, job: False

    device.patch("shakedown.neuron.modes.adaptive.compiler", "Compiler.submit", make)
