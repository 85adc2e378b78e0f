"""What tests of graphs share: a watch on Dynamo, compiled functions under it, and findings from its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from shakedown.readiness import evidence
from shakedown.readiness.judge import graphs as judge
from shakedown.readiness.judge.results import Cell, Finding, Outcome
from shakedown.readiness.observe import graphs
from shakedown.readiness.requirements import Requirements

BACKENDS = {"cpu": "aot_eager", "neuron": "neuron"}
both = pytest.mark.parametrize("device", BACKENDS)


@contextmanager
def watching() -> Iterator[graphs.Watch]:
    """A watch over functions that nothing has compiled before."""
    torch._dynamo.reset()
    with graphs.Watch((Path(__file__).parent,)) as started:
        yield started
    torch._dynamo.reset()


def compiled(watch: graphs.Watch, function: Callable[..., object], device: str) -> Callable[..., object]:
    return watch.calls(torch.compile(function, backend=watch.backend(BACKENDS[device]), dynamic=False))


def judged(
    root: Path, records: dict[str, evidence.GraphRecord], requirements: Requirements | None = None
) -> list[Finding]:
    """Findings of one compiled process that left these records."""
    finished = Outcome(status="finished", exit_code=0)
    cell = Cell(
        id="c", mode="compiled", dtype="float32", cache="none", target="cpu", cases=list(records), outcome=finished
    )
    for case, record in records.items():
        evidence.write(record, root / "evidence" / "c" / f"{case}.graphs.json")
    return judge.findings(root, [cell], requirements or Requirements())


def body(x: Tensor) -> Tensor:
    return (x * 2 + 1).sum(-1)
