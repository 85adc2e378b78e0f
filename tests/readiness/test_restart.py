"""A restart must not lose anything, and a trial says what was lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from shakedown.readiness import trial
from shakedown.readiness.judge.results import Finding

from .faults import patched
from .support import TINY, InProcess

# The case of three linear weights and AdamW whose losses are known: with the optimizer state dropped, the first loss after
# the restart is still right and only the second differs.
KNOWN = """
import torch
from torch import nn

CASES = ("4x3",)

def build_model():
    torch.manual_seed(1)
    return nn.Linear(3, 2)

def make_batch(size, length):
    return {"x": torch.arange(12.0).view(4, 3) / 10, "y": torch.ones(4, 2)}

def forward(model, batch):
    out = model(batch["x"])
    return out, nn.functional.mse_loss(out, batch["y"])

def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.1)
"""


def restarted(
    folder: Path,
    workload: Path,
    target: str = "cpu",
    mode: str = "eager",
    fault: Callable[[], AbstractContextManager[object]] | None = None,
) -> Finding:
    """The finding of the restart cell, whose two processes run under `fault`."""
    demand = folder / "requirements.toml"
    off = "".join(f"{name} = false\n" for name in ("padding", "noncontiguous", "hard_inputs", "neighbours"))
    demand.write_text(
        "[timing]\nsteps = 5\nprocesses = 1\nscaling_tolerance = 1e9\n[parity]\nsteps = 0\n[variations]\nlogging_every = 0\n"
        + off
    )
    request = trial.Request(
        str(workload), folder / "run", target=target, modes=(mode,), dtypes=("float32",), requirements=demand
    )
    faults = {f"{mode}-float32-restart": fault} if fault else {}
    done = trial.run(request, executor=InProcess(faults))
    (found,) = [f for f in done.judgement.findings if f.cell == f"{mode}-float32-restart"]
    result = next(cell for cell in done.judgement.cells if cell.cell == found.cell)
    assert result.verdict == ("mismatch" if found.fails else "match")
    return found


@pytest.mark.parametrize("target", ["cpu", "neuron"])
def test_training_goes_on_as_if_there_had_been_no_restart(tmp_path: Path, target: str) -> None:
    found = restarted(tmp_path, TINY, target)
    assert (found.word, found.fails) == ("resumed", False)
    assert "bit-equal" in found.text


def dropped_state() -> Any:
    return patched(torch.optim.Optimizer, "load_state_dict", lambda original: lambda self, state: None)


def test_a_dropped_optimizer_state_is_named_though_the_first_loss_is_right(tmp_path: Path) -> None:
    workload = tmp_path / "known.py"
    workload.write_text(KNOWN)
    found = restarted(tmp_path, workload, fault=dropped_state)
    assert (found.word, found.fails) == ("resume-broken(optimizer)", True)
    assert "0.2759557" in found.text
    assert "0.2725737" not in found.text.split("without and")[0]
    assert "the first loss does not show it" in found.text


def test_the_known_losses(tmp_path: Path) -> None:
    """One step, save, two more: 0.5231798 and 0.2759557 on the CPU and on the device, before and after a restart."""
    for device in ("cpu", "neuron"):
        space: dict[str, Any] = {}
        exec(KNOWN, space)
        batch = {name: value.to(device) for name, value in space["make_batch"](4, 3).items()}
        model = space["build_model"]().to(device)
        optimizer = space["build_optimizer"](model.parameters())

        def step(model: Any = model, optimizer: Any = optimizer, space: Any = space, batch: Any = batch) -> float:
            optimizer.zero_grad()
            _, loss = space["forward"](model, batch)
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "kept.pt")
        straight = [step(), step()]
        assert straight == pytest.approx([0.5231798, 0.2759557], abs=1e-6)
        kept = torch.load(tmp_path / "kept.pt", map_location="cpu", weights_only=True)
        again = torch.nn.Linear(3, 2)
        again.load_state_dict(kept["model"])
        again.to(device)
        resumed = torch.optim.AdamW(again.parameters(), lr=0.1)
        resumed.load_state_dict(kept["optimizer"])
        state = [v for held in resumed.state.values() for k, v in held.items() if k != "step"]
        assert {v.device.type for v in state} == {device}
        assert [step(again, resumed), step(again, resumed)] == pytest.approx(straight, abs=1e-6)


def wrong_weights() -> Any:
    def make(original: Any) -> Any:
        def load(path: Any, **options: Any) -> Any:
            kept = original(path, **options)
            next(iter(kept["model"].values())).mul_(1.5)
            return kept

        return load

    return patched(torch, "load", make)


def lost_generator() -> Any:
    return patched(torch, "set_rng_state", lambda original: lambda state: None)


def slower_after() -> Any:
    """All state comes back, but the settings of the optimizer do not."""

    def make(original: Any) -> Any:
        def load(self: Any, state: Any) -> None:
            original(self, state)
            for group in self.param_groups:
                group["lr"] /= 2

        return load

    return patched(torch.optim.Optimizer, "load_state_dict", make)


@pytest.mark.parametrize(
    ("fault", "word", "words"),
    [
        (wrong_weights, "resume-broken(weights)", "are not those that were saved"),
        (slower_after, "resume-broken(optimizer)", "settings differ"),
        (lost_generator, "resume-broken(rng)", "random generators"),
    ],
)
def test_what_was_lost_is_named(tmp_path: Path, fault: Any, word: str, words: str) -> None:
    workload = tmp_path / "known.py"
    workload.write_text(KNOWN)
    found = restarted(tmp_path, workload, fault=fault)
    assert (found.word, found.fails) == (word, True)
    assert words in found.text


def test_a_compiled_run_resumes(tmp_path: Path) -> None:
    assert restarted(tmp_path, TINY, mode="compiled").word == "resumed"
