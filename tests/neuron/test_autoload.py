"""The entry point: what ``import torch`` brings, when it stands aside, and what it says when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run(code: str, tmp_path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {k: v for k, v in os.environ.items() if k != "SHAKEDOWN_DEVICE"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**settings, **environment},
        cwd=tmp_path,
        timeout=1200,
    )


def vendor_package(tmp_path) -> str:
    """Metadata of an installed torch-neuronx, on a path of its own."""
    info = tmp_path / "site" / "torch_neuronx-2.13.3.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-neuronx\nVersion: 2.13.3.0\n")
    return str(info.parent)


def test_import_torch_is_enough_and_brings_no_jax(tmp_path):
    code = "import torch, sys; print('jax' in sys.modules, torch.ones(2, device='neuron').add(1).tolist(), 'jax' in sys.modules)"
    assert run(code, tmp_path).stdout.split() == ["False", "[2.0,", "2.0]", "True"]


HAS_DEVICE = "import torch; print(hasattr(torch, 'neuron'))"


@pytest.mark.parametrize(
    ("vendor", "setting", "present"),
    [(False, None, True), (False, "off", False), (True, None, False), (True, "rehearsal", True), (True, "off", False)],
)
@pytest.mark.rotating(2, group="a process that starts torch")
def test_it_stands_aside_for_the_vendors_package(tmp_path, vendor, setting, present):
    environment = {"PYTHONPATH": vendor_package(tmp_path)} if vendor else {}
    if setting:
        environment["SHAKEDOWN_DEVICE"] = setting
    found = run(HAS_DEVICE, tmp_path, **environment)
    assert found.stdout.strip() == str(present), found.stderr


@pytest.mark.rotating(2, group="a process that starts torch")
def test_a_setting_that_cannot_be_read_names_the_variable(tmp_path):
    found = run(HAS_DEVICE, tmp_path, SHAKEDOWN_DEVICE="maybe")
    assert found.returncode != 0
    assert "SHAKEDOWN_DEVICE='maybe' cannot be used: it must be one of 'auto', 'rehearsal', 'off'" in found.stderr


@pytest.mark.rotating(2, group="a process that starts torch")
def test_a_conflict_gives_one_clear_message(tmp_path):
    code = (
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"
        "import torch; torch.utils.rename_privateuse1_backend('other')\n"
        "from shakedown.neuron.autoload import autoload; autoload()"
    )
    found = run(code, tmp_path)
    assert found.returncode != 0
    assert "DeviceConflict: shakedown cannot provide the 'neuron' device" in found.stderr
    assert "already registered as 'other'" in found.stderr


@pytest.mark.rotating(2, group="a process that starts torch")
def test_a_forked_child_gets_an_error_not_a_hang(tmp_path):
    code = """
import os, torch
torch.ones(2, device="neuron")
pid = os.fork()
if pid == 0:
    try:
        torch.empty(2, device="neuron").add(1)
    except RuntimeError as error:
        os._exit(7 if "spawn" in str(error) else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), torch.neuron._is_in_bad_fork())
"""
    assert run(code, tmp_path).stdout.split() == ["7", "False"]


@pytest.mark.rotating(2, group="a process that starts torch")
def test_executables_persist_between_processes(tmp_path):
    code = """
import torch
from shakedown.neuron import events
(torch.arange(5.0).to("neuron") * 3).sum().item()
print(events.total("compile", "compiled"), events.total("compile", "persistent-cache"))
"""
    cache = str(tmp_path / "cache")
    first = [int(n) for n in run(code, tmp_path, SHAKEDOWN_CACHE_DIR=cache).stdout.split()]
    second = [int(n) for n in run(code, tmp_path, SHAKEDOWN_CACHE_DIR=cache).stdout.split()]
    without = [int(n) for n in run(code, tmp_path, SHAKEDOWN_CACHE_DIR=cache, SHAKEDOWN_CACHE="0").stdout.split()]
    assert first[0] >= 2
    assert first[1] == 0
    assert second == [0, first[0]]
    assert without == first
