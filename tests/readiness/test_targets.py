"""Targets: which modes they have, what each lets itself be asked, and what happens where there is no such device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import targets
from shakedown.readiness.errors import BadInput
from shakedown.readiness.observe import identity, paths
from shakedown.readiness.targets import OBSERVABLES, Family

from .support import TINY

OTHERS = ("cuda", "xpu", "mps", "cpu")
ABSENT = [
    name
    for name, there in (
        ("cuda", torch.cuda.is_available()),
        ("xpu", torch.xpu.is_available()),
        ("mps", torch.backends.mps.is_available()),
    )
    if not there
]


def test_a_mode_that_a_target_lacks_is_untested_for_a_reason() -> None:
    neuron = targets.get("neuron")
    assert [targets.lacks(neuron, mode) for mode in targets.MODES] == ["", "", ""]
    for name in OTHERS:
        target = targets.get(name)
        assert targets.lacks(target, "adaptive") == f"the target {name} has no adaptive mode"
        assert not targets.lacks(target, "eager")
        assert not targets.lacks(target, "compiled")


def test_modes_are_switched_by_the_process_and_not_by_the_callers_shell() -> None:
    neuron, cpu = targets.get("neuron"), targets.get("cpu")
    assert set(neuron.environment("adaptive").values()) == {"1"}
    for target, mode in ((neuron, "eager"), (neuron, "compiled"), (cpu, "adaptive")):
        assert target.environment(mode) == dict.fromkeys(targets.MODE_VARIABLES, "0")
    told = "import torch; print(torch.neuron.adaptive.status()['enabled'])"
    for mode, enabled in (("adaptive", "True"), ("eager", "False")):
        environment = os.environ | {"SHAKEDOWN_ADAPTIVE": "1"} | neuron.environment(mode)
        done = subprocess.run(
            [sys.executable, "-c", told], env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.stdout.strip() == enabled, done.stderr
    # What differs between modes on purpose must not keep their evidence apart.
    assert not set(targets.MODE_VARIABLES) & set(identity.environment())


@pytest.mark.parametrize("product", get_args(Family))
@pytest.mark.parametrize("name", targets.names())
def test_each_target_says_what_can_be_observed_and_why_the_rest_cannot(name: str, product: Family) -> None:
    target = targets.get(name)
    seen = targets.observes(target, product)
    assert tuple(seen) == OBSERVABLES
    assert all(why == "" or len(why) > 20 for why in seen.values())
    unobservable = targets.unobservable(target, product)
    assert unobservable == {kind: why for kind, why in seen.items() if why}
    if product == "rehearsal":
        assert unobservable == {}
    elif product == "legacy":
        assert len(unobservable) == len(OBSERVABLES)
    else:
        assert not seen["operators"]
        assert seen["fusion groups"]
        assert seen["cache state"]


def test_a_fallback_that_cannot_be_seen_is_unobservable_and_not_zero() -> None:
    for name in ("cuda", "xpu", "mps"):
        assert "cannot be seen" in targets.observes(targets.get(name), "none")["fallbacks"]
    assert targets.observes(targets.get("neuron"), "native")["fallbacks"] == ""
    assert "nothing" not in targets.observes(targets.get("cpu"), "none")["operators"]


def test_the_recorder_is_the_best_that_the_product_offers() -> None:
    embedded = paths.recorder(targets.get("neuron"))
    assert isinstance(embedded, paths.DeviceEvents)
    assert (embedded.free, embedded.unobservable) == (True, {})
    cpu = paths.recorder(targets.get("cpu"))
    assert type(cpu) is paths.DispatchCounts
    assert not cpu.free
    assert cpu.unobservable == targets.unobservable(targets.get("cpu"), "none")
    assert targets.family(targets.get("neuron")) == "rehearsal"


@pytest.mark.parametrize("name", ABSENT)
def test_a_device_that_is_not_there_is_said_in_one_line(name: str) -> None:
    target = targets.get(name)
    for ask in (targets.require, targets.open_device):
        with pytest.raises(BadInput, match=f"^no {name} device can be used here: .*--target") as caught:
            ask(target)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["words", "json"])
def test_asking_for_it_is_bad_input_and_leaves_nothing(options: list[str], tmp_path: Path) -> None:
    name, out = ABSENT[0], tmp_path / "run"
    done = CliRunner().invoke(cli.app, ["run", str(TINY), "--target", name, "--out", str(out), *options])
    assert done.exit_code == 2
    assert not out.exists()
    if options:
        assert json.loads(done.stdout)["error"].startswith(f"no {name} device")
    else:
        said = [text for text in done.stderr.splitlines() if "shakedown:" in text]
        assert len(said) == 1
        assert f"no {name} device can be used here" in said[0]


def test_without_the_embedded_device_there_is_no_neuron() -> None:
    tried = "from shakedown.readiness import targets; targets.open_device(targets.get('neuron'))"
    environment = os.environ | {"SHAKEDOWN_DEVICE": "off"}
    done = subprocess.run([sys.executable, "-c", tried], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "no neuron device can be used here: no package has registered one" in done.stderr


def test_a_device_that_answers_with_an_error_gives_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    if "cuda" not in ABSENT:
        pytest.skip("this machine has a CUDA device that works")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # a driver that is there and a device that is not
    with pytest.raises(
        BadInput, match="^no cuda device can be used here: (AssertionError|RuntimeError): .*(CUDA|NVIDIA)"
    ):
        targets.open_device(targets.get("cuda"))


def test_each_target_is_waited_for_by_its_own_module() -> None:
    """``torch.accelerator`` knows one accelerator per process: beside the embedded device it would not wait for a GPU."""
    neuron = targets.get("neuron")
    targets.open_device(neuron)
    recorder = paths.recorder(neuron)
    with recorder.step() as rows:
        targets.wait(neuron)
        targets.wait(targets.get("cpu"))
    assert [(row.kind, row.count) for row in rows] == [("synchronize", 1)]
    for name in targets.names():
        target = targets.get(name)
        assert hasattr(torch.get_device_module(target.device), "synchronize")
        assert (f"torch.{name}.synchronize()" in targets.completion(target)) == target.asynchronous
