"""One thing that a package does with a model, done on the device and held to the same on the CPU."""

from __future__ import annotations

import contextlib
import copy
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from shakedown.conformance.compare import TOLERANCE
from shakedown.neuron import events

from .comparing import Results, errors_of

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class Way:
    """Where and how a row is done. `narrow` is False for the float32 that a row in bfloat16 is measured against."""

    device: str
    compiled: bool
    narrow: bool
    folder: Path  # empty, of its own

    def compile(self, module: Any) -> Any:
        return torch.compile(module, backend="neuron", dynamic=False) if self.compiled else module


@dataclass(frozen=True)
class Row:
    """`recipe` returns what is compared, on the CPU. `falls_back` are the operators that are expected to run on the CPU:
    those that a package brings without a kernel for this device. `how` is what a user writes that CUDA would not need."""

    package: str
    what: str
    recipe: Callable[[Way], Results]
    modes: tuple[str, ...] = ("eager", "adaptive", "compile")
    dtype: torch.dtype = torch.float32
    falls_back: tuple[str, ...] = ()
    how: str = ""

    def name(self, mode: str) -> str:
        words = "".join(c if c.isalnum() else " " for c in self.what).split()
        return "-".join([self.package, *words, NAMES[self.dtype], mode])


def run(row: Row, mode: str) -> dict[str, Any]:
    """Do `row` on the CPU and on the device: a row of the table. What it raises is the caller's to report."""
    assert torch.neuron.adaptive.enabled() == (mode == "adaptive"), "adaptive eager is decided when Python starts"
    compiled = mode == "compile"
    expected = _done(row, "cpu", False, True)
    events.clear()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*operator by operator.*")
        found = _done(row, "neuron", compiled, True)
    seconds = time.process_time() - started
    seen = events.snapshot()
    executed = {r["name"] for r in seen if r["kind"] == "execute"}
    wider = None if row.dtype is torch.float32 else (lambda: _done(row, "cpu", False, False))
    errors = errors_of(found, expected, TOLERANCE[row.dtype][0], wider, floor=0.01)
    worst, error = max(errors.items(), key=lambda item: item[1])
    return {
        "package": row.package,
        "what": row.what,
        "mode": mode,
        "dtype": NAMES[row.dtype],
        "error": error,
        "worst": worst,
        "executed": len(executed),
        "graphs": sum(n.startswith("graph::") for n in executed),
        "breaks": sum(torch._dynamo.utils.counters["graph_break"].values()) if compiled else 0,
        "fallbacks": sorted({r["name"] for r in seen if r["kind"] == "fallback"}),
        "expected_fallbacks": list(row.falls_back),
        "compiles": sum(r["count"] for r in seen if r["kind"] == "compile"),
        "how": row.how,
        "seconds": seconds,
    }


def _done(row: Row, device: str, compiled: bool, narrow: bool) -> Results:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return row.recipe(Way(device, compiled, narrow, Path(folder)))


def trained(
    model: torch.nn.Module,
    way: Way,
    batches: Iterable[Any],
    loss_of: Callable[[Any, Any], torch.Tensor],
    optimizer_of: Callable[[Any], Any] = lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-5),
    each: Callable[[Any, Any], None] = lambda model, optimizer: None,
) -> Results:
    """A step for each batch: losses, the first step's gradients, and by how much weights and buffers changed.

    `model` is on the CPU and left as it is; `each` is called after each step.
    """
    start = {n: t.detach().clone() for n, t in model.state_dict().items()}
    there = copy.deepcopy(model).to(way.device)
    call = way.compile(there)
    optimizer = optimizer_of(there.parameters())
    found: Results = {}
    for step, batch in enumerate(batches):
        given = {n: t.to(way.device) for n, t in batch.items()} if isinstance(batch, dict) else batch.to(way.device)
        optimizer.zero_grad()
        loss = loss_of(call, given)
        loss.backward()
        if step == 0:
            found |= {f"gradient of {n}": p.grad.cpu() for n, p in there.named_parameters() if p.grad is not None}
        optimizer.step()
        each(there, optimizer)
        found[f"loss of step {step}"] = loss.detach().cpu()
    return found | changes(there, start)


def changes(model: torch.nn.Module, start: dict[str, torch.Tensor]) -> Results:
    """By how much the state differs from `start`, in float64 on the CPU; integers as they are."""
    state = {n: t.detach().cpu() for n, t in model.state_dict().items()}
    return {f"change of {n}": t.double() - start[n].double() if t.is_floating_point() else t for n, t in state.items()}
