"""Fused programs on disk: what one process compiled, the next one links, with the same bits and without compiling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shakedown.neuron.cache as cache
from shakedown.neuron import config, events, executables, program_key
from shakedown.neuron.modes import adaptive as mode

from .running import adaptive


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The compiler, whose process starts with a cache of this test's own."""
    assert mode._recorder is not None
    compiler = mode._recorder.compiler
    monkeypatch.setenv("SHAKEDOWN_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.setattr(config, "STARTED", time.time() + 1e6)  # sources that others edit meanwhile do not matter
    monkeypatch.setattr(compiler, "starts", 0)
    monkeypatch.setattr(compiler, "trouble", None)
    program_key._sources.cache_clear()
    compiler._end_process(wait=True)
    yield compiler
    compiler._end_process(wait=True)


def _step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product, arithmetic that a compiler would like to contract, a sum in an order of its own, an index that is checked."""
    y = torch.tanh(x @ w) * 1.7 + x * 0.3
    y = y[:, torch.arange(5, device="neuron")] - y.mean()
    torch.neuron.synchronize()
    return y


def _until(source: str, x: torch.Tensor, w: torch.Tensor, each: torch.Tensor) -> dict[str, int]:
    """Run until the segment is fused; where its program came from."""
    events.clear()
    for _ in range(6):
        assert torch.equal(_step(x, w).cpu(), each)  # bit for bit, fused or not
        assert adaptive.wait(120)
    assert adaptive.status()["operators"]["fused"] > 0
    rows = [r for r in events.snapshot() if r["kind"] == "compile" and r["name"].startswith("adaptive::")]
    found = {r["detail"]: r["count"] for r in rows}
    assert source in found, found
    return found


def test_a_known_segment_is_linked_and_not_compiled(compiler: Any) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(8, 16).to("neuron"), torch.randn(16, 16).to("neuron")
    torch.use_deterministic_algorithms(True)
    try:
        each = _step(x, w).cpu()  # as plain eager execution computes it
    finally:
        torch.use_deterministic_algorithms(False)
    _step(x, w)  # builds the plans
    adaptive.reset()
    made = _until("background", x, w, each)
    assert set(made) == {"background"}
    assert compiler.starts == 1
    store = cache.current()
    assert store is not None
    names = [e.header.name for e in store.entries() if e.header.name.startswith("adaptive_")]
    assert {e.header.kind for e in store.entries()} == {"executable", "trace"}
    assert len(names) == 2 * sum(made.values())

    compiler._end_process(wait=True)
    executables._made_here.clear()
    adaptive.reset()  # forgets segments and programs, as a new process has none
    found = _until("persistent-cache", x, w, each)
    assert found == {"persistent-cache": sum(made.values())}
    assert compiler.starts == 1  # the compiling process was not asked
    assert cache.stats()["traces_saved"] >= 1

    # A damaged entry is compiled again.
    for entry in store.entries():
        if entry.header.kind == "executable" and entry.header.name.startswith("adaptive_"):
            entry.path.write_bytes(entry.path.read_bytes()[:-1])
    adaptive.reset()
    with pytest.warns(cache.store.CacheWarning, match="truncated"):
        assert set(_until("background", x, w, each)) == {"background"}
