"""The rows of the table: what is compared with what, and the ratio we aim at."""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import torch

from . import adaptive, compiled, evidence, memory, profiler, starting
from .compiled import hand_written
from .decoder import COMPILED, MEDIUM, SMALL, Size
from .measure import compare
from .rows import Row, compared
from .works import Training, decoder


def chain_of_adds() -> Iterator[Row]:
    device, host = torch.ones(64, 64, device="neuron"), jnp.ones((64, 64), jnp.float32)
    add = jax.jit(lambda a, b: a + b)

    def ours() -> None:
        x = device
        for _ in range(100):
            x = x + device

    def peer() -> None:
        x = host
        for _ in range(100):
            x = add(x, host)
        x.block_until_ready()

    yield compared(
        "eager, chain of 100 adds on 64x64",
        "the same adds by a bare jax.jit call",
        2.8,
        compare(ours, peer, repeats=20),
    )


def views() -> Iterator[Row]:
    def work(base: torch.Tensor) -> None:
        torch.empty(64, 64, device=base.device)
        base.t()
        base[1:3]
        base.view(4096)

    device, host = torch.ones(64, 64, device="neuron"), torch.ones(64, 64)
    found = compare(functools.partial(work, device), functools.partial(work, host), repeats=500)
    yield compared("eager, new tensor + t, slice, view", "CPU PyTorch", 8.0, found)


def eager_decoder(size: Size, label: str, limit: float, repeats: int, blocks: int) -> Iterator[Row]:
    module, data = decoder(size)
    ours, peer = Training(module, data, "neuron"), Training(module, data, "cpu")
    found = compare(ours.step, peer.step, repeats=repeats, blocks=blocks)
    yield compared(f"eager step of the {label} decoder ({size})", "CPU PyTorch eager", limit, found)


def small_decoder() -> Iterator[Row]:
    return eager_decoder(SMALL, "small", 3.0, repeats=20, blocks=11)


def medium_decoder() -> Iterator[Row]:
    yield from eager_decoder(MEDIUM, "medium", 1.0, repeats=1, blocks=7)
    # What XLA itself makes of forward and backward here, against CPU PyTorch: no eager execution over XLA can beat it by much.
    module, data = decoder(MEDIUM)
    host, both = Training(module, data, "cpu"), hand_written(module, data, MEDIUM)
    found = compare(both, host.gradients, repeats=1, blocks=7)
    name = f"for scale: jitted JAX by hand, forward and backward ({MEDIUM})"
    yield compared(name, "CPU PyTorch eager, forward and backward", None, found)


def compiled_decoder() -> Iterator[Row]:
    size = COMPILED
    module, data = decoder(size)
    ours, host = Training(module, data, "neuron", compiled=True), Training(module, data, "cpu")
    found = compare(ours.step, host.step, repeats=3, blocks=9)
    yield compared(f"compiled step, AdamW eager ({size})", "CPU PyTorch eager step", 1.0, found)


_AUTOLOAD = """
import torch, importlib.metadata, time
list(importlib.metadata.entry_points(group="torch.backends"))
start = time.perf_counter()
from shakedown.neuron.autoload import autoload
autoload()
print(time.perf_counter() - start)
"""


def import_time() -> Iterator[Row]:
    """What loading and calling the autoload entry point adds to ``import torch``, in fresh processes.

    The search for entry points is PyTorch's own, and paid for with any backend or none: it is done before the clock starts.
    """
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", _AUTOLOAD]
    runs = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(12)]
    seconds = [float(run.stdout) for run in runs[1:]]
    added = statistics.median(seconds) * 1e3
    detail = {"added_ms": added, "seconds": seconds}
    yield Row(
        "import torch with autoload", "import torch without", "<= +30 ms", f"+{added:.1f} ms", added <= 30, detail
    )


CASES: dict[str, Callable[[], Iterator[Row]]] = {
    "adds": chain_of_adds,
    "views": views,
    "import": import_time,
    "small": small_decoder,
    "compiled": compiled_decoder,
    "medium": medium_decoder,
    "evidence": evidence.overhead,
    **compiled.CASES,
    **starting.CASES,
    **profiler.CASES,
    **memory.CASES,
    **adaptive.CASES,
}


def run(names: list[str]) -> Iterator[tuple[Row, float]]:
    """Each row with the seconds it took to measure."""
    for name in names:
        start = time.perf_counter()
        for row in CASES[name]():
            yield row, time.perf_counter() - start
