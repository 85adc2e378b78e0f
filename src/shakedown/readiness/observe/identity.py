"""Who measured: host, versions, threads and every environment variable that can change a result.

``fixed`` must be equal in all evidence that is put together; ``also`` is recorded for the reader. :func:`facts` is the same
in full, each fact with its source or the reason why it is not known; :func:`identify` adds the product that answers for the
device. Machine, commits and family have files of their own.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import shakedown

from .. import targets
from ..evidence.identity import Fact, Family, Identity
from ..selftest import inject
from . import commits, family, installation, machine

_PREFIXES = (
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "TORCH",
    "PYTORCH_",
    "JAX_",
    "XLA_",
    "PJRT_",
    "NEURON_",
    "NEURONX_",
    "NKI_",
    "SHAKEDOWN_",
    "CUDA_",
    "NCCL_",
    "FI_",  # libfabric: the network between instances
    "OFI_",
    "MALLOC_",
)
_ALSO = (
    "COLLECTIVE_BUCKETSIZE_IN_MB",
    "COLLECTIVE_MIN_BUCKETS",
    "CUBLAS_WORKSPACE_CONFIG",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONHASHSEED",
    "PYTHONPATH",
)
# What differs between the processes of one trial on purpose: the cache of each experiment, the switch of each mode, faults.
_PER_PROCESS = (
    "SHAKEDOWN_CACHE_DIR",
    "SHAKEDOWN_FAULT",
    "SHAKEDOWN_SPAWNED_AT",
    "TORCHINDUCTOR_CACHE_DIR",
    *targets.MODE_VARIABLES,
)
_SECRET_WORDS = frozenset(
    {"APIKEY", "AUTH", "COOKIE", "CREDENTIAL", "CREDENTIALS", "KEY", "PASS", "PASSWD", "PASSWORD", "SECRET", "TOKEN"}
)
_SECRET_VALUES = (
    (re.compile(r"(?<=://)[^/\s@]+(?=@)"), "masked"),  # user and password of an address
    (re.compile(r"(?i)\b((?:api_?key|token|secret|password|passwd|signature)\s*[=:]\s*)[^\s,;&]+"), r"\1masked"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "masked"),  # AWS access keys
    (re.compile(r"\b(?:hf|ghp|gho|glpat|sk)[_-][A-Za-z0-9_-]{16,}"), "masked"),  # tokens of well-known services
)
_DISTRIBUTIONS = (
    "shakedown",
    "torch",
    "jax",
    "jaxlib",
    "numpy",
    "safetensors",
    "torch-neuronx",
    "torch-xla",
    "libneuronxla",
    "neuronx-cc",
    "nki",
)


def versions() -> dict[str, str]:
    """Installed versions of the distributions that matter; those not installed are left out."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def source_sha256() -> str:
    """Hash of this package's source: a device that was edited between two processes is two devices."""
    folder = Path(shakedown.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")) + sorted(folder.rglob("*.toml")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def environment(per_process: bool = False) -> dict[str, str]:
    """Environment variables that can change a result, secrets masked; those that differ by process on purpose are left
    out, unless `per_process` asks for them alone.
    """
    return {
        name: masked(name, value)
        for name, value in sorted(os.environ.items())
        if (name.startswith(_PREFIXES) or name in _ALSO) and (name in _PER_PROCESS) == per_process
    }


def masked(name: str, value: str) -> str:
    """`value`, without what looks like a secret: all of it where the variable's name says so, else the part that does."""
    if _SECRET_WORDS & set(re.split(r"[^A-Z0-9]+", name.upper())):
        return "masked"
    for pattern, instead in _SECRET_VALUES:
        value = pattern.sub(instead, value)
    return value


def support_profile(target: targets.Target) -> dict[str, str] | None:
    """Name of the support profile that the embedded device imitated, and the hash of its text; None on other targets."""
    if product(target).word != "rehearsal":
        return None
    import torch

    return dict(torch.neuron.profile_identity())


def product(target: targets.Target) -> Family:
    """Which product answers for the target's device, with the signs of it. Raises nothing; needs no device."""
    if target.name != "neuron":
        text = f"the target {target.name} is PyTorch's own"
        return Family(word="none", by_metadata=text, by_behaviour=text, signs=[])
    return family.tell({**environment(), **environment(per_process=True)})


def facts(target: targets.Target, workload: Path | None = None, ec2: bool = False) -> list[Fact]:
    """Everything that is known about this process and the machine under it.

    `workload` is the file whose repository's commit is recorded. With `ec2`, EC2's metadata service is asked for the
    instance type and the image, for at most a second; without, nothing leaves the machine. ``torch`` is asked where it is
    imported.
    """
    settings = environment()
    found = machine.facts(settings, ec2)
    found += _software(target)
    found += [commits.package(), *([commits.workload(workload)] if workload is not None else [])]
    found += _process()
    found += [
        Fact(group="environment", name=name, value=value or '""', source="environment")
        for name, value in (settings | environment(per_process=True)).items()
    ]
    return found


def identify(target: targets.Target, workload: Path | None = None, ec2: bool = False) -> Identity:
    """The identity of this process as one document. See :func:`facts`."""
    answering = product(target)
    distribution = {
        "rehearsal": "shakedown",
        "native": family.DISTRIBUTION,
        "legacy": family.DISTRIBUTION,
        "none": "torch",
    }
    return Identity(
        target=target.name,
        family=answering,
        installation=installation.of_vendor() if answering.word in ("native", "legacy") else None,
        unmet=installation.unmet(distribution[answering.word]),
        faults=list(inject.active()),
        facts=facts(target, workload, ec2),
    )


def _software(target: targets.Target) -> list[Fact]:
    """Versions, by the part that each plays: which one is backend, compiler and runtime depends on who answers."""
    installed, word = versions(), product(target).word
    of = {name: f"{name} {version}" for name, version in installed.items()}
    if word == "rehearsal":
        xla = of.get("jaxlib", "")
        parts = {"backend package": of.get("shakedown", ""), "compiler": xla and f"XLA of {xla}"}
        parts["runtime"] = xla and f"PJRT client of {xla}"
    elif target.name == "neuron":
        library = machine.system_packages().get("aws-neuronx-runtime-lib", "")
        parts = {"backend package": of.get("torch-neuronx", ""), "compiler": of.get("neuronx-cc", "")}
        parts["runtime"] = library and f"aws-neuronx-runtime-lib {library}"
    else:
        parts = dict.fromkeys(("backend package", "compiler", "runtime"), of.get("torch", ""))
    python = f"{platform.python_version()} ({sys.implementation.name})"
    others = ", ".join(text for name, text in of.items() if name != "torch")
    return [
        Fact(group="software", name="Python", value=python, source=sys.executable),
        machine.known("software", "torch", installed.get("torch", ""), "metadata", "torch is not installed"),
        *(
            machine.known("software", part, text, "metadata", "nothing that could be it is installed")
            for part, text in parts.items()
        ),
        machine.known("software", "other distributions", others, "metadata", "none of those asked for is installed"),
    ]


def _process() -> list[Fact]:
    found = [Fact(group="source", name="shakedown source", value=source_sha256(), source="SHA-256 of its files")]
    torch = sys.modules.get("torch")
    if torch is None:
        found.append(Fact(group="process", name="threads", unknown="torch is not imported in this process"))
        return found
    settings = {
        "threads": torch.get_num_threads(),
        "threads between operators": torch.get_num_interop_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "default dtype": torch.get_default_dtype(),
    }
    return found + [Fact(group="process", name=n, value=str(v), source="torch") for n, v in settings.items()]


_FIXED = (  # facts that every piece of evidence of one trial must share
    "instance type",
    "operating system",
    "OS image",
    "container",
    "cores allocated",
    "memory",
    "memory limit",
    "Neuron devices",
    "NeuronCores allocated",
    "logical-core configuration",
    "driver",
    "runtime library",
    "collectives",
)


def capture(target: targets.Target, workload: Path | None = None) -> dict[str, Any]:
    """The identity of this process, after the device is open; `workload` is the file whose commit is recorded."""
    import torch

    asked = product(target)
    said = {fact.name: fact.said for fact in machine.facts(environment())}
    return {
        "fixed": {
            "host": platform.node(),
            "platform": platform.platform(),
            "cpu": machine.cpu_model(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "shakedown": shakedown.__version__,
            "shakedown_source": source_sha256(),
            "versions": versions(),
            "machine": {name: said[name] for name in _FIXED},
            "environment": environment(),
        },
        "also": {
            "device": target.device,
            "family": asked.word,
            "family_signs": asked.model_dump(),
            "backend": {fact.name: fact.said for fact in _software(target)},
            "faults": list(inject.active()),
            "profile": support_profile(target),
            "commits": {
                fact.name: fact.said
                for fact in [commits.package(), *([commits.workload(workload)] if workload is not None else [])]
            },
            "environment": environment(per_process=True),
            "executable": sys.implementation.name,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "matmul_precision": torch.get_float32_matmul_precision(),
        },
    }
