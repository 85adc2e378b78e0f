"""Real distributions on disk, written as pip would write them, and the file tree of a Trainium instance."""

from __future__ import annotations

import json
from pathlib import Path

from shakedown.readiness.evidence import Fact, Family, Identity, Installation
from shakedown.readiness.observe import machine

# A package that registers a working device under AWS's module name, by the embedded one's means.
ACTING = """
def _autoload():
    import types
    import torch
    from shakedown.neuron import device
    device.register()
    module = types.ModuleType("torch_neuronx.neuron")
    module.__dict__.update({k: v for k, v in vars(device).items() if not k.startswith("__")})
    torch.neuron = module
"""
NATIVE_POINTS = (
    "[torch.backends]\ntorch_neuronx = torch_neuronx:_autoload\n"
    "[torch_dynamo_backends]\nneuron = torch_neuronx.neuron_dynamo_backend.backend:neuron_backend\n"
)


def distribution(
    site: Path,
    name: str,
    version: str,
    *,
    requires: tuple[str, ...] = (),
    entry_points: str = "",
    files: dict[str, str] | None = None,
    tag: str = "py3-none-any",
    url: str = "",
) -> Path:
    """Write a distribution with its metadata and `files` into `site`; returns `site`."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
    (info / "INSTALLER").write_text("pip\n")
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)
    if url:
        (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {}}))
    for place, content in (files or {}).items():
        path = site / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    record = [str(p.relative_to(site)) for p in site.rglob("*") if p.is_file()]
    (info / "RECORD").write_text("".join(f"{entry},,\n" for entry in record))
    return site


def native(site: Path, version: str = "2.13.3.0.511", acting: str = ACTING, **more: object) -> Path:
    """AWS's native package, as its metadata is public, around a device that works."""
    files = {"torch_neuronx/__init__.py": acting}
    return distribution(site, "torch-neuronx", version, entry_points=NATIVE_POINTS, files=files, **more)  # type: ignore[arg-type]


def legacy(site: Path) -> Path:
    """AWS's package on PyTorch/XLA, and PyTorch/XLA beside it."""
    distribution(site, "torch-xla", "2.9.0", files={"torch_xla/__init__.py": ""})
    return distribution(
        site,
        "torch-neuronx",
        "2.9.0.2.15.32035",
        requires=("torch-xla==2.9.*", "libneuronxla"),
        files={"torch_neuronx/__init__.py": "", "torch_neuronx/xla_impl/__init__.py": ""},
    )


def trainium(root: Path, instance: str = "trn2.48xlarge", system: str = "Ubuntu 26.04 LTS") -> Path:
    """The files of an EC2 instance that an identity is read from."""
    for place, content in {
        "sys/devices/virtual/dmi/id/sys_vendor": "Amazon EC2\n",
        "sys/devices/virtual/dmi/id/product_name": f"{instance}\n",
        "etc/os-release": f'PRETTY_NAME="{system}"\nNAME="Ubuntu"\n',
        "run/cloud-init/instance-data.json": json.dumps({"ds": {"meta_data": {"ami-id": "ami-0abc", "tags": {}}}}),
        "proc/meminfo": "MemTotal:       2097152 kB\nMemFree:  1 kB\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/memory.max": f"{2**30}\n",
        "sys/module/neuron/version": "2.31.7.0\n",
        "dev/neuron0": "",
        "dev/neuron1": "",
        "dev/neuron_other": "",
        "var/lib/dpkg/status": (
            "Package: bash\nStatus: install ok installed\nVersion: 5.2\n\n"
            "Package: aws-neuronx-runtime-lib\nStatus: install ok installed\nVersion: 2.35.30.0-abc\n\n"
            "Package: aws-neuronx-collectives\nStatus: deinstall ok config-files\nVersion: 2.35.43.0\n"
        ),
    }.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def documented(
    root: Path, system: str = "Ubuntu 26.04.1 LTS", instance: str = "trn2.48xlarge", **software: str
) -> Identity:
    """An identity with the facts of a Trainium instance, and the software of the documented combination."""
    facts = machine.facts({}, root=trainium(root, instance, system))
    chosen = {
        "Python": "3.13.1 (cpython)",
        "torch": "2.14.0+cpu",
        "backend package": "torch-neuronx 2.14.3.0.77",
        "compiler": "neuronx-cc 2.28.7631.0",
        **software,
    }
    facts = [f for f in facts if f.name not in ("kernel", "architecture", "collectives")]
    chosen |= {"kernel": "Linux 6.14", "architecture": "x86_64", "collectives": "2.35.43.0"}
    facts += [Fact(group="software", name=name, value=value, source="test") for name, value in chosen.items()]
    family = Family(word="native", by_metadata="native", by_behaviour="native", signs=[])
    how = Installation(route="wheel", how="installed from an index by pip")
    return Identity(target="neuron", family=family, installation=how, unmet=[], facts=facts)
