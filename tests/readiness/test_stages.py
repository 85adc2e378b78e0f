"""Workload, requirements, snapshot, evidence: each stage on its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import BaseModel

from shakedown.readiness import evidence, requirements, snapshot, targets, workload
from shakedown.readiness.errors import BadInput, EvidenceError, WorkloadError

from .support import TINY


@pytest.fixture
def tiny() -> workload.Workload:
    return workload.load(workload.resolve(str(TINY)))


def test_built_in_workloads_follow_the_protocol() -> None:
    assert workload.built_in() == ["cnn", "decoder"]
    for name in workload.built_in():
        loaded = workload.load(workload.resolve(name))
        assert loaded.cases
        assert loaded.dimensions
        assert set(loaded.dtypes) <= set(workload.DTYPES)


def test_a_file_that_changes_during_the_trial_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(TINY.read_bytes())
    source = workload.resolve(str(file))
    file.write_text(file.read_text() + "\n# edited\n")
    with pytest.raises(WorkloadError, match="changed during the trial"):
        workload.load(source)


@pytest.mark.parametrize("text", ["2", "x8", "0x4", "2x", "2x-1", "axb"])
def test_cases_are_checked(text: str) -> None:
    with pytest.raises(BadInput, match="BATCHxLENGTH"):
        workload.Case.parse(text)


def test_dtypes_have_short_names() -> None:
    assert workload.parse_dtype("bf16") == workload.parse_dtype("bfloat16") == "bfloat16"
    with pytest.raises(BadInput, match="int8"):
        workload.parse_dtype("int8")


def test_requirements_are_read_checked_and_locked(tmp_path: Path) -> None:
    file = tmp_path / "requirements.toml"
    file.write_text("[numerics]\nsteps = 2\n[timing]\nsteps = 7\n")
    loaded = requirements.load(file)
    assert (loaded.numerics.steps, loaded.timing.steps, loaded.numerics.rounding_factor) == (2, 7, 4.0)
    first = requirements.lock(loaded, tmp_path / "a.json")
    assert requirements.unlock(tmp_path / "a.json") == loaded
    assert first == requirements.lock(loaded, tmp_path / "b.json")
    assert first != requirements.lock(requirements.Requirements(), tmp_path / "c.json")
    for wrong, where in (("[numerics]\nstepz = 2\n", "numerics.stepz"), ("[timing]\nsteps = 0\n", "timing.steps")):
        file.write_text(wrong)
        with pytest.raises(BadInput, match=where):
            requirements.load(file)
    file.write_text("[numerics\n")
    with pytest.raises(BadInput, match="not TOML"):
        requirements.load(file)


def test_every_number_in_the_requirements_has_a_reason() -> None:
    def keys(model: BaseModel, prefix: str = "") -> Iterator[str]:
        for name, value in model:
            yield from keys(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else [prefix + name]

    said = requirements.reasons(requirements.Requirements)
    assert set(keys(requirements.Requirements())) <= said.keys()
    assert all(len(text) > 20 for text in said.values())


def test_snapshot_restores_the_same_bits_each_time(tmp_path: Path, tiny: workload.Workload) -> None:
    info = snapshot.create(tiny, tiny.cases, 2, tmp_path / "snapshot")
    assert info.dropout_switched_off == ["drop"]
    torch.manual_seed(99)
    one = snapshot.restore(tiny, tmp_path / "snapshot", torch.float32)
    other = snapshot.restore(tiny, tmp_path / "snapshot", torch.float32)
    half = snapshot.restore(tiny, tmp_path / "snapshot", torch.bfloat16)
    assert one.sha256 == other.sha256 != half.sha256
    assert half.batches["2x8"][0]["ids"].dtype is torch.int64
    assert torch.equal(half.weights["up.weight"], one.weights["up.weight"].bfloat16())
    assert not torch.equal(one.batches["2x8"][0]["ids"], one.batches["2x8"][1]["ids"])
    assert one.model.head.weight is one.model.tokens.weight
    assert all(p == 0 for p in (one.model.drop.p, half.model.drop.p))


def test_a_damaged_snapshot_is_refused(tmp_path: Path, tiny: workload.Workload) -> None:
    snapshot.create(tiny, tiny.cases, 1, tmp_path / "snapshot")
    file = tmp_path / "snapshot" / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(EvidenceError, match=r"weights\.safetensors"):
        snapshot.restore(tiny, tmp_path / "snapshot", torch.float32)


def test_optimizer_state_is_part_of_the_snapshot(tmp_path: Path) -> None:
    """A workload may hand over an optimizer that has already made steps; each restored one continues alike."""
    file = tmp_path / "warm.py"
    file.write_text(
        TINY.read_text()
        + """
def build_optimizer(parameters):
    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.5)
    with torch.no_grad():
        kept = [p.clone() for p in parameters]
        optimizer.step()
        for p, old in zip(parameters, kept):
            p.copy_(old)
    optimizer.zero_grad()
    if len(MADE) > 0:
        optimizer.state.clear()
    MADE.append(1)
    return optimizer
MADE = []
"""
    )
    loaded = workload.load(workload.resolve(str(file)))
    snapshot.create(loaded, loaded.cases, 1, tmp_path / "snapshot")
    restored = snapshot.restore(loaded, tmp_path / "snapshot", torch.float32)
    empty = loaded.build_optimizer(restored.model.parameters())
    assert not empty.state
    full = snapshot.restore_optimizer(empty, tmp_path / "snapshot")
    states = list(full.state.values())
    assert len(states) == len(list(restored.model.parameters()))
    assert all(float(state["step"]) == 1 for state in states)
    assert all(bool((state["exp_avg"] != 0).all()) for state in states)


def test_evidence_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_text('{"schema_version": "shakedown.evidence/0"}')
    with pytest.raises(EvidenceError, match="evidence/0"):
        evidence.read(evidence.Evidence, path)
    path.write_text("{")
    with pytest.raises(EvidenceError, match="not a readable"):
        evidence.read(evidence.Evidence, path)


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    evidence.write_atomic(path, b"first")
    with pytest.raises(TypeError):
        evidence.write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"first"


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(BadInput, match="neuron, cuda"):
        targets.get("abacus")


def test_judging_needs_neither_torch_nor_jax() -> None:
    code = (
        "import sys, shakedown.readiness.record, shakedown.readiness.report, shakedown.readiness.trial, shakedown.cli;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'jax')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
