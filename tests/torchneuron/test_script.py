"""A script that was written for TorchNeuron, as it stands in examples/."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch

import torch_neuronx

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_script_runs_and_learns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    torch_neuronx.reset_dynamo_metrics()
    losses = runpy.run_path(str(EXAMPLES / "written_for_torchneuron.py"))["train"]()
    assert losses[-1] < losses[0] * 0.8
    said = capsys.readouterr().out
    assert "fallbacks []" in said
    assert "1 graph of " in said
    assert "aten::addmm" in said or "aten::linear" in said
