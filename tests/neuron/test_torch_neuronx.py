"""``import torch_neuronx``: ours where AWS's package is not, AWS's wherever it is, and what other packages make of it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SHIM = ROOT / "src" / "torch_neuronx.py"


def run(code: str, cwd: Path, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`code` in a process whose path begins with `paths`."""
    kept = {k: v for k, v in os.environ.items() if k not in ("SHAKEDOWN_DEVICE", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": os.pathsep.join(map(str, paths)), **environment},
        cwd=cwd,
        timeout=1200,
    )


def vendor(site: Path, *, metadata: bool = True, package: bool = True) -> Path:
    """A folder with something like AWS's package: a directory of this name, which registers nothing."""
    if package:
        (site / "torch_neuronx" / "metrics").mkdir(parents=True)
        (site / "torch_neuronx" / "__init__.py").write_text(
            "__version__ = '2.13.3.0.1'\nREAL = True\nfrom . import metrics\n"
        )
        (site / "torch_neuronx" / "metrics" / "__init__.py").write_text("REAL = True\n")
    if metadata:
        info = site / "torch_neuronx-2.13.3.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-neuronx\nVersion: 2.13.3.0\n")
    return site


# No torch is imported: what is chosen is chosen by the path alone, which keeps these processes short.
_WHICH = "import torch_neuronx, sys; print(getattr(torch_neuronx, 'REAL', False), 'torch' in sys.modules)"
_AND_MORE = (
    "import torch_neuronx, importlib, sys; from torch_neuronx import metrics\n"
    "print(torch_neuronx.REAL, metrics.REAL, torch_neuronx.__version__, sys.modules['torch_neuronx'] is torch_neuronx)"
)


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.rotating(2, group="a process that starts torch")
def test_aws_package_is_the_one_that_is_imported_on_whichever_side_of_ours_it_lies(tmp_path, first):
    theirs = vendor(tmp_path / "site")
    order = (theirs, ROOT / "src") if first == "theirs" else (ROOT / "src", theirs)
    found = run(_AND_MORE, tmp_path, *order)
    assert found.stdout.split() == ["True", "True", "2.13.3.0.1", "True"], found.stderr


@pytest.mark.rotating(2, group="a process that starts torch")
def test_in_one_folder_pythons_own_rule_prefers_the_directory(tmp_path):
    site = vendor(tmp_path / "site")
    (site / "torch_neuronx.py").write_text(_SHIM.read_text())
    assert run(_WHICH, tmp_path, site).stdout.split() == ["True", "False"]
    # AWS's is uninstalled, and leaves a folder with what is not its own: ours is there again.
    for file in sorted((site / "torch_neuronx").rglob("*.py")):
        file.unlink()
    (site / "torch_neuronx-2.13.3.0.dist-info" / "METADATA").unlink()
    (site / "torch_neuronx-2.13.3.0.dist-info").rmdir()
    found = run("import torch_neuronx", tmp_path, site, SHAKEDOWN_DEVICE="off")
    assert f"{site / 'torch_neuronx.py'}" in found.stderr
    assert "SHAKEDOWN_DEVICE=off switches its rehearsal off" in found.stderr


@pytest.mark.rotating(2, group="a process that starts torch")
def test_switched_off_it_is_not_there_and_says_why(tmp_path):
    code = (
        "try:\n    import torch_neuronx\nexcept ModuleNotFoundError as error:\n    print(error.name, '|', error)\n"
        "import sys; print('torch_neuronx' in sys.modules)"
    )
    said = run(code, tmp_path, SHAKEDOWN_DEVICE="off").stdout
    assert said.startswith("torch_neuronx | No module named 'torch_neuronx': torch-neuronx is not installed")
    assert "SHAKEDOWN_DEVICE=off" in said
    assert said.split()[-1] == "False"
    theirs = vendor(tmp_path / "site")
    assert run(_WHICH, tmp_path, ROOT / "src", theirs, SHAKEDOWN_DEVICE="off").stdout.split()[0] == "True"


@pytest.mark.rotating(2, group="a process that starts torch")
def test_metadata_without_a_module_is_a_broken_installation_and_not_a_rehearsal(tmp_path):
    site = vendor(tmp_path / "site", package=False)
    found = run(_WHICH, tmp_path, site)
    assert found.returncode != 0
    assert "torch-neuronx 2.13.3.0 is registered as installed, but its module is nowhere on the path" in found.stderr


@pytest.mark.rotating(2, group="a process that starts torch")
def test_a_rehearsal_beside_aws_package_has_the_module_too(tmp_path):
    theirs = vendor(tmp_path / "site")
    code = (
        "import torch, torch_neuronx; print('rehearsal' in torch_neuronx.__version__, torch_neuronx.neuron is torch.neuron)\n"
        "import torch_neuronx.metrics as m; print(m.is_enabled())"
    )
    found = run(code, tmp_path, theirs, SHAKEDOWN_DEVICE="rehearsal")
    assert found.stdout.split() == ["True", "True", "False"], found.stderr


@pytest.mark.rotating(2, group="a process that starts torch")
def test_importing_it_first_brings_the_device_and_neither_jax_nor_dynamo(tmp_path):
    code = """
import torch_neuronx, sys, torch
from torch_neuronx.profiling import NeuronConfig, ProfileMode
import torch_neuronx.utils, torch_neuronx.neuron_dynamo_backend
print(*(name in sys.modules for name in ("jax", "torch._dynamo")))
try:
    from torch_neuronx import distributed
except ImportError as error:
    print("part of the rehearsal" in str(error))
from torch_neuronx import *
print(set(torch_neuronx.__all__) <= set(globals()), "__version__" in dir(torch_neuronx))
from accelerate.utils.imports import is_neuron_available
from transformers.utils.import_utils import is_torch_neuron_available, is_torch_neuroncore_available
print(is_neuron_available(True), is_torch_neuron_available(True), is_torch_neuroncore_available())
print(torch.ones(1, device="neuron").device)
"""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    found = run(code, tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert found.stdout.split() == ["False", "False", "True", "True", "True", "True", "True", "False", "neuron:0"], (
        found.stderr
    )


def test_the_product_is_told_from_what_is_installed_and_ours_is_no_sign():
    from shakedown.readiness.observe import family

    assert family.by_metadata()[0] == "rehearsal"
    assert not family._findable("torch_neuronx")


def test_the_wheel_has_the_module_beside_the_package(tmp_path):
    pytest.importorskip("hatchling", reason="the build backend is not installed here")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=600,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"torch_neuronx.py", "shakedown/neuron/torchneuron/modules/metrics.py"} <= set(names)
    assert {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")} == {
        "shakedown",
        "torch_neuronx.py",
    }


def test_a_package_that_only_a_finder_of_its_own_knows_is_found(monkeypatch, tmp_path):
    """As an editable installation of AWS's would be."""
    from importlib.machinery import ModuleSpec, SourceFileLoader

    from shakedown.neuron.torchneuron import standing

    monkeypatch.delenv("SHAKEDOWN_DEVICE", raising=False)
    assert standing.elsewhere(str(_SHIM)) is None
    file = tmp_path / "elsewhere.py"
    file.write_text("REAL = True\n")

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == standing.NAME:
                return ModuleSpec(name, SourceFileLoader(name, str(file)), origin=str(file))
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, object(), Finder()])
    found = standing.elsewhere(str(_SHIM))
    assert found is not None
    assert found.origin == str(file)
    monkeypatch.setenv("SHAKEDOWN_DEVICE", "rehearsal")
    assert standing.elsewhere(str(_SHIM)) is None


def test_import_torch_finds_aws_entry_point_though_our_module_comes_first_on_the_path(tmp_path):
    theirs = vendor(tmp_path / "site")
    (theirs / "torch_neuronx-2.13.3.0.dist-info" / "entry_points.txt").write_text(
        "[torch.backends]\ntorch_neuronx = torch_neuronx:_autoload\n"
    )
    with open(theirs / "torch_neuronx" / "__init__.py", "a") as file:
        file.write("def _autoload():\n    print('registered by AWS')\n")
    code = "import torch, sys; print(hasattr(torch, 'neuron'), sys.modules['torch_neuronx'].REAL)"
    found = run(code, tmp_path, ROOT / "src", theirs)
    assert found.stdout.split() == ["registered", "by", "AWS", "False", "True"], found.stderr
