"""What adaptive eager fused, in a process of its own: the mode is decided before Python starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shakedown.readiness import evidence, targets
from shakedown.readiness.evidence.fusion import Fusion, FusionGroup, SteadyStep
from shakedown.readiness.judge import fusion as judge
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.observe import fusion, paths
from shakedown.readiness.requirements import Requirements

PROGRAM = """
import itertools, sys
import torch
from torch import nn
from shakedown.readiness import evidence, targets
from shakedown.readiness.observe import fusion, paths
from pathlib import Path

target = targets.get("neuron")
targets.open_device(target)
recorder = paths.recorder(target)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to("neuron")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
rows = itertools.count(3)

def train(batch):
    loss = model(batch.to("neuron")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    targets.wait(target)

def same():
    train(torch.ones(4, 8))

def another():
    train(torch.ones(next(rows), 8))

evidence.write(fusion.observe(target, recorder, same), Path("same.json"))
evidence.write(fusion.observe(target, recorder, another, most_steps=2), Path("another.json"))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fusion]:
    folder = tmp_path_factory.mktemp("fusion")
    environment = os.environ | targets.get("neuron").environment("adaptive") | {"OMP_NUM_THREADS": "1"}
    # A busy machine must not cut the recording where the program does not.
    environment["SHAKEDOWN_ADAPTIVE_TIMEOUT"] = "60000"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    return {name: evidence.read(Fusion, folder / f"{name}.json") for name in ("same", "another")}


def test_a_loop_that_repeats_is_fused(found: dict[str, Fusion]) -> None:
    same = found["same"]
    assert same.settled
    assert same.programs == {"ready": len(same.step.groups), "compiling": 0, "failed": 0}  # type: ignore[union-attr]
    summary = judge.summarise(same)
    assert summary is not None
    assert summary.share == summary.share_of_recorded == 1.0
    assert summary.not_fused == []
    assert summary.fused == summary.total > 40
    assert summary.operators_per_run is not None
    assert summary.operators_per_run > 16
    groups = same.step.groups  # type: ignore[union-attr]
    assert all(group.runs_fused == 1 and group.compile_seconds for group in groups)
    assert {"aten::linear", "aten::gelu_backward", "aten::addcdiv_"} <= {n for g in groups for n in g.operators}


def test_shapes_that_change_are_named_as_what_keeps_operators_apart(found: dict[str, Fusion]) -> None:
    summary = judge.summarise(found["another"])
    assert summary is not None
    assert summary.share is not None
    assert summary.share < 1
    reasons = {one.reason for one in summary.not_fused}
    assert any("for the first time" in reason or "new operator" in reason for reason in reasons)
    assert sum(one.count for one in summary.not_fused) == summary.total - summary.fused
    assert "aten::linear" in {name for one in summary.not_fused for name in one.operators}
    assert summary.flushes["new operator"] > 0


def write(root: Path, document: Fusion) -> list[str]:
    cell = Cell(
        id="a",
        mode="adaptive",
        dtype="float32",
        cache="none",
        target="neuron",
        cases=["2x8"],
        outcome=Outcome(status="finished"),
    )
    evidence.write(document, root / "evidence" / "a" / "2x8.fusion.json")
    found = judge.findings(root, [cell], Requirements())
    assert not any(one.fails for one in found)
    return [f"{one.word}: {one.text}" for one in found]


def group(name: str, length: int, **fields: object) -> FusionGroup:
    plain = {"runs_fused": 0, "runs_one_by_one": 1, "runs_before": 3, "compile_seconds": [], "errors": []}
    return FusionGroup.model_validate(
        {"name": name, "operators": {"aten::add": length}, "length": length} | plain | fields
    )


def test_each_reason_has_its_words(tmp_path: Path) -> None:
    step = SteadyStep(
        operators={"aten::add": 100, "aten::sum": 2},
        fused=20,
        one_by_one=72,
        fallbacks={"aten::histc": 1},
        flushes={"value read": 2},
        groups=[
            group("a", 20, runs_fused=1, runs_one_by_one=0),
            group("b", 30, errors=["XlaRuntimeError: out of memory\nmore"]),
            group("c", 18, runs_before=0),
            group("d", 15),
            group("e", 7, compile_seconds=[1.0]),
        ],
    )
    (text,) = write(tmp_path, Fusion(source="s", step=step, settled=True))
    assert text.startswith(
        "not-fused: 20 of 103 operators of a step ran in fused programs: 30 the fused program of group b"
    )
    assert "out of memory; 18 group c came for the first time" in text
    summary = judge.summarise(Fusion(source="s", step=step))
    assert summary is not None
    assert [one.count for one in summary.not_fused] == [30, 18, 15, 12, 7, 1]
    assert "value read 2" in summary.not_fused[3].reason
    assert "histc" in json.dumps(summary.not_fused[-1].operators)


def test_fusing_is_unobservable_elsewhere_and_off_where_it_is_off(tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError("no step is needed to know that nothing can be seen")

    for name, words in (("cpu", "has no adaptive mode"), ("neuron", "off in this process")):
        target = targets.get(name)
        targets.open_device(target)
        document = fusion.observe(target, paths.recorder(target), never)
        assert document.step is None
        assert words in document.reason
        assert judge.summarise(document) is None
        assert write(tmp_path, document) == [f"unobservable(fusion): {document.reason}"]
