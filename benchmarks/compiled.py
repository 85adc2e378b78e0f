"""The rows of compiled graphs and of whole steps that are one program."""

from __future__ import annotations

import functools
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

from .decoder import COMPILED, MEDIUM, SMALL, Decoder, Size, jax_loss, jax_parameters
from .measure import compare, quietest
from .rows import Row, compared
from .works import InductorTraining, Training, WholeStep, decoder

# Size; calls in a block; blocks; the limits against hand-written JAX (forward and backward), Inductor and the separate form.
_SIZES: dict[str, tuple[Size, int, int, float | None, float, float]] = {
    "small": (SMALL, 20, 11, None, 0.85, 0.90),
    "medium": (COMPILED, 3, 9, 1.08, 0.85, 0.90),
    "large": (MEDIUM, 1, 7, 1.08, 0.80, 0.90),
}
_PARAMETERS, _OVERHEAD_LIMIT = 100, 150  # of a function; microseconds


def hand_written(module: Decoder, data: tuple[torch.Tensor, torch.Tensor], size: Size) -> Callable[[], Any]:
    """Loss and gradients by the hand-written JAX decoder, awaited."""
    parameters, arrays = jax_parameters(module), [jnp.asarray(t.numpy()) for t in data]
    both = jax.jit(jax.value_and_grad(functools.partial(jax_loss, size=size)))
    return lambda: jax.block_until_ready(both(parameters, *arrays))


def gradients(label: str) -> Iterator[Row]:
    """Forward and backward by ``torch.compile`` against the same decoder in jitted JAX, its linear layers as 2-D dots."""
    size, repeats, blocks, limit, _, _ = _SIZES[label]
    module, data = decoder(size)
    ours, both = Training(module, data, "neuron", compiled=True), hand_written(module, data, size)
    agree = abs(float(both()[0]) - ours.gradients().item())
    assert agree < 1e-4, f"the two decoders differ by {agree}"
    found = compare(ours.gradients, both, repeats=repeats, blocks=blocks)
    yield compared(f"compiled forward and backward ({size})", "the same by hand in jitted JAX", limit, found)


def steps(label: str) -> Iterator[Row]:
    """A step that is one program, against the separate form and against Inductor with the optimizer compiled."""
    size, repeats, blocks, _, inductor, separate = _SIZES[label]
    module, data = decoder(size)
    whole, apart = WholeStep(module, data), Training(module, data, "neuron", compiled=True)
    name = f"whole step as one program, AdamW ({size})"
    agree = abs(whole.step().item() - apart.step().item())
    assert agree < 1e-4, f"the two forms differ by {agree}"
    found = compare(whole.step, apart.step, repeats=repeats, blocks=blocks)
    yield compared(name, "the same compiled, AdamW eager", separate, found)
    peer = "torch.compile with Inductor on the CPU, AdamW compiled"
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        yield Row(name, peer, f"<= {inductor:.2f}x", "not measured: Inductor needs a C++ compiler", None, {})
        return
    theirs = InductorTraining(module, data)
    found = compare(whole.step, theirs.step, repeats=repeats, blocks=blocks)
    yield compared(name, peer, inductor, found)


class _Chain(nn.Module):
    """The cheapest function of many parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(_PARAMETERS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = x * factor
        return x


def overhead() -> Iterator[Row]:
    """What a call of a compiled function with many parameters costs, its work being next to nothing."""
    model = _Chain().to("neuron")
    x = torch.ones(4, device="neuron")
    run = torch.compile(model, backend="neuron", dynamic=False, fullgraph=True)

    def median() -> float:
        times = []
        for _ in range(30):
            start = time.perf_counter()
            for _ in range(50):
                run(x)
            times.append((time.perf_counter() - start) / 50)
        return statistics.median(times)

    with torch.no_grad():
        run(x)
        seconds, foreign = quietest(median)
        buffers = [jnp.ones(4, jnp.float32) for _ in range(_PARAMETERS + 1)]
        bare = jax.jit(lambda *given: functools.reduce(jnp.multiply, given))
        bare(*buffers)
        found = compare(lambda: run(x), lambda: bare(*buffers), repeats=50, blocks=11)
    micro = seconds * 1e6
    yield Row(
        f"compiled function with {_PARAMETERS} parameters, one call",
        "none",
        f"<= {_OVERHEAD_LIMIT} us",
        f"{micro:.0f} us",
        micro <= _OVERHEAD_LIMIT,
        {"microseconds": micro, "foreign": foreign, "noisy": foreign > 0.1},
    )
    yield compared(f"compiled function with {_PARAMETERS} parameters, one call", "a bare jax.jit call", None, found)


CASES: dict[str, Callable[[], Iterator[Row]]] = {
    **{f"compiled-{label}": functools.partial(gradients, label) for label in _SIZES},
    **{f"step-{label}": functools.partial(steps, label) for label in _SIZES},
    "compiled-overhead": overhead,
}
