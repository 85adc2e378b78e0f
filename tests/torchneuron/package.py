"""The package itself: how it is imported, and what it says it is."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

import torch_neuronx

from .contract import entry


@entry(
    "package",
    "import torch_neuronx",
    source="docs, snapshot",
    differs="a rehearsal: `repr` and `__version__` say so, and AWS's package is loaded in its place wherever it is installed",
)
def imported():
    """It is this package's, and says rehearsal"""
    assert "rehearsal" in repr(torch_neuronx)
    assert sys.modules["torch_neuronx"] is torch_neuronx


@entry(
    "package",
    "__version__",
    source="docs",
    differs="`<torch>.3.0+rehearsal...`: TorchNeuron 2.33's family for the installed PyTorch, and a part that says what it is",
)
def version():
    """A version by PEP 440, of PyTorch's family"""
    from packaging.version import Version

    found = Version(torch_neuronx.__version__)
    assert found.release[:2] == Version(torch.__version__).release[:2]
    assert "rehearsal" in str(found.local)


@entry("package", "_autoload")
def autoload():
    """What `import torch` calls; a second call does nothing"""
    module = torch.neuron
    torch_neuronx._autoload()
    assert torch.neuron is module


@entry("package", "device type `neuron`", source="snapshot, docs")
def device_type():
    """PrivateUse1 is called neuron; tensors, modules and storages have the helper methods"""
    x = torch.ones(2, 3, device="neuron")
    assert torch._C._get_privateuse1_backend_name() == "neuron"
    assert x.is_neuron
    assert torch.ones(2).neuron().device == x.device == torch.device("neuron:0")
    assert next(torch.nn.Linear(1, 1).neuron().parameters()).is_neuron
    assert torch.device("neuron").index is None


@entry("package", "torch.compile backend `neuron`", source="docs, snapshot")
def backend():
    """It is listed among Dynamo's backends without an import"""
    assert "neuron" in torch._dynamo.list_backends()


@entry("package", "torch.compile without a backend", source="docs")
def default_backend():
    """`neuron` is selected where a graph has tensors of the device; other graphs stay Inductor's"""
    torch._dynamo.reset()
    before = len(torch.neuron.compile_report()["graphs"])
    assert torch.compile(lambda x: x - 1)(torch.ones(3, device="neuron")).tolist() == [0, 0, 0]
    assert len(torch.neuron.compile_report()["graphs"]) == before + 1


@entry(
    "package",
    "torch_neuronx.distributed",
    absent="one device in a process, and no process-group backend yet: a later part of the rehearsal",
)
def distributed():
    """Attribute and import raise, and say why"""
    for get in (lambda: torch_neuronx.distributed, lambda: importlib.import_module("torch_neuronx.distributed")):
        with pytest.raises((AttributeError, ImportError), match="not part of the rehearsal"):
            get()


@entry(
    "package",
    "torch_neuronx.python_ops",
    differs="it can be imported and has no names: operators are this package's own lowerings",
)
def python_ops():
    """It imports; a name of it raises with the reason"""
    with pytest.raises(AttributeError, match="get_neuron_registered_ops"):
        torch_neuronx.python_ops.anything


@entry("package", "torch_neuronx.neuron")
def neuron():
    """It is `torch.neuron`, imported either way"""
    import torch_neuronx.neuron as by_import

    assert torch_neuronx.neuron is torch.neuron is by_import
