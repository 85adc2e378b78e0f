"""What ends a recording, by name; and the event stream says the same as ``status()``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shakedown.neuron import events

from .running import adaptive, flushes, operators, python

_library = torch.library.Library("shakedown_flush", "FRAGMENT")
_library.define("triple(Tensor x) -> Tensor")
_library.impl("triple", lambda x: x * 3, "CPU")  # the device has no program for it


def _begin() -> torch.Tensor:
    return torch.ones(4, 4, device="neuron") * 2


def _deterministically(x: torch.Tensor) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        x + 1
    finally:
        torch.use_deterministic_algorithms(False)


def _under_a_profile(_: torch.Tensor) -> None:
    with torch.neuron.use_profile("neuron-2.33"):
        pass


FLUSHES: dict[str, Callable[[torch.Tensor], Any]] = {
    "value read": lambda x: x.sum().item(),
    "transfer": lambda x: x.cpu(),
    "synchronize": lambda x: torch.neuron.synchronize(),
    "fallback": lambda x: torch.ops.shakedown_flush.triple(x),
    "deterministic": _deterministically,
    "profile": _under_a_profile,
}


@pytest.mark.parametrize("reason", FLUSHES)
def test_flushes_for_its_reason(reason: str) -> None:
    for _ in range(2):  # the first time, operators may be new, which is a reason of its own
        x = _begin()
        FLUSHES[reason](x)
    torch.neuron.synchronize()
    adaptive.reset()
    events.clear()
    x = _begin()
    assert flushes() == {}
    assert adaptive.status()["operators"]["waiting"] > 0
    FLUSHES[reason](x)
    assert flushes() == {reason: 1}
    assert torch.equal((x + 0).cpu(), torch.full((4, 4), 2.0))


def test_a_truth_value_is_a_value_read() -> None:
    for _ in range(2):
        adaptive.reset()
        x = _begin()
        assert x.sum() > 1
    assert flushes() == {"value read": 1}


def test_an_operator_whose_sizes_depend_on_data_reads_a_value() -> None:
    for _ in range(2):
        adaptive.reset()
        x = _begin()
        assert torch.nonzero(x).shape == (16, 2)
    assert set(flushes()) == {"value read"}


def test_a_compiled_graph_runs_after_what_was_recorded() -> None:
    compiled = torch.compile(lambda y: y * 2 + 1, backend="neuron")
    for _ in range(2):
        x = _begin()
        x.add_(1)
        adaptive.reset()
        x.mul_(2)
        assert torch.equal(compiled(x).cpu(), torch.full((4, 4), 13.0))
    assert flushes() == {"compiled graph": 1}


def test_an_operator_that_was_never_seen_before_runs_at_once_after_what_was_recorded() -> None:
    x = _begin()
    torch.neuron.synchronize()
    adaptive.reset()
    x.add_(1)
    y = x.reshape(2, 8) - torch.arange(8, device="neuron")  # sizes of this test alone
    assert flushes() == {"new operator": 1}
    assert torch.equal(y.cpu(), torch.full((2, 8), 3.0) - torch.arange(8))


def test_content_cuts_a_long_recording() -> None:
    def run() -> torch.Tensor:
        x = _begin()
        for i in range(150):
            x = (x + i, x * 0.5, x - 1, x.abs())[i * i // 5 % 4]
        return x

    run(), run()
    torch.neuron.synchronize()
    adaptive.reset()
    run()
    assert set(flushes()) == {"content"}


def test_a_reset_runs_what_was_recorded_and_forgets() -> None:
    x = _begin()
    torch.neuron.synchronize()
    events.clear()
    x.add_(1)
    adaptive.reset()
    assert events.names("flush") == ["reset"]
    assert flushes() == {}
    assert operators() == (0, 0)
    assert adaptive.groups() == []
    assert torch.equal(x.cpu(), torch.full((4, 4), 3.0))


def test_the_event_stream_agrees_with_the_status() -> None:
    heard: list[events.Event] = []
    with events.subscribe(heard.append):
        for _ in range(5):
            x = _begin()
            (x @ x + 1).sum().item()
            adaptive.wait(60)
    status = adaptive.status()
    rows = [r for r in events.snapshot() if r["kind"] == "flush"]
    assert {r["name"]: r["count"] for r in rows if r["detail"] in ("fused", "each")}.keys() == status["flushes"].keys()
    assert sum(r["count"] for r in rows) == sum(status["flushes"].values())
    assert sum(e.kind == "flush" for e in heard) == sum(status["flushes"].values())
    groups = {f"adaptive::{g['name']}" for g in adaptive.groups()}
    background = [
        e for e in heard if e.kind == "compile" and e.detail in ("background", "persistent-cache") and e.name in groups
    ]
    assert len(background) == status["programs"]["ready"] > 0
    fused = [e for e in heard if e.kind == "execute" and e.name in groups]
    assert len(fused) == sum(g["runs_fused"] for g in adaptive.groups()) > 0
    assert sum(len(g["operators"]) * g["runs_fused"] for g in adaptive.groups()) == status["operators"]["fused"]
    assert events.total("flush", "fused") == len(fused)


def test_a_flush_that_fails_is_in_the_event_stream_too() -> None:
    table, bad = torch.ones(3, 2, device="neuron"), torch.tensor([5], device="neuron")
    torch.nn.functional.embedding(bad * 0, table)  # no longer new
    for _ in range(3):
        adaptive.reset()
        events.clear()
        torch.nn.functional.embedding(bad * 1, table)
        with pytest.raises(IndexError):
            torch.neuron.synchronize()
    assert flushes() == {"synchronize": 1}
    assert [(r["name"], r["detail"]) for r in events.snapshot() if r["kind"] == "flush"] == [("synchronize", "failed")]


def test_listeners_hear_operators_that_run_one_by_one_by_name_and_fused_ones_as_their_group() -> None:
    heard: list[list[str]] = []
    for _ in range(6):
        seen: list[events.Event] = []
        with events.subscribe(seen.append):
            x = _begin()
            (x @ x + 1).cpu()
        heard.append([e.name for e in seen if e.kind == "execute"])
        assert all(e.duration_ns > 0 for e in seen if e.kind == "execute")
        adaptive.wait(60)
    (group,) = {g["name"] for g in adaptive.groups() if g["runs_fused"]}
    assert heard[0] == ["aten::ones", "aten::mul.Tensor", "aten::mm", "aten::add.Tensor"]
    assert heard[-1] == [f"adaptive::{group}"]


def test_operators_are_counted_when_they_are_recorded_however_they_run() -> None:
    counts = []
    for _ in range(6):
        events.clear()
        x = _begin()
        (x @ x + 1).sum().item()
        counts.append({r["name"]: r["count"] for r in events.snapshot() if r["kind"] == "execute"})
        adaptive.wait(60)
    assert adaptive.status()["operators"]["fused"] > 0
    once = ["aten::ones", "aten::mul.Tensor", "aten::mm", "aten::add.Tensor", "aten::sum"]
    assert counts == [dict.fromkeys(once, 1)] * 6


def test_length_memory_and_timeout_bound_what_waits(tmp_path: Path) -> None:
    printed = python(
        """
        import time, torch
        adaptive = torch.neuron.adaptive

        def flushed(fn):
            for _ in range(2):  # the first time, operators are new
                fn()
                torch.neuron.synchronize()
            adaptive.reset()
            kept = fn()
            print(adaptive.status()["flushes"], adaptive.status()["operators"]["waiting"])
            return kept

        x = torch.ones(8, device="neuron")

        def long():
            for i in range(25):
                x.add_(1)

        def large():  # 0.75 MiB each, of 2 MiB
            return [torch.ones(3 << 16, device="neuron") for _ in range(7)]

        def idle():
            x.mul_(2)
            deadline = time.monotonic() + 300
            while adaptive.status()["operators"]["waiting"] and time.monotonic() < deadline:
                time.sleep(0.01)

        flushed(long)
        flushed(large)
        flushed(idle)
        """,
        SHAKEDOWN_ADAPTIVE_LENGTH="10",
        SHAKEDOWN_ADAPTIVE_MEMORY="2",
        SHAKEDOWN_ADAPTIVE_TIMEOUT="5000",
    )
    assert printed.splitlines() == ["{'length': 2} 5", "{'memory': 2} 1", "{'timeout': 1} 0"]
