"""Who measured: host, versions, threads and every environment variable that can change a result.

``fixed`` must be equal in all evidence that is put together; ``also`` is recorded for the reader.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import shakedown

from .. import targets

_PREFIXES = ("OMP_", "MKL_", "OPENBLAS_", "KMP_", "TORCH", "PYTORCH_", "JAX_", "XLA_", "NEURON_", "SHAKEDOWN_", "CUDA_")
_ALSO = ("PYTHONHASHSEED", "LD_PRELOAD", "CUBLAS_WORKSPACE_CONFIG")
_PER_PROCESS = ("SHAKEDOWN_CACHE_DIR", "SHAKEDOWN_SPAWNED_AT", "TORCHINDUCTOR_CACHE_DIR", *targets.MODE_VARIABLES)
_DISTRIBUTIONS = (
    "shakedown",
    "torch",
    "jax",
    "jaxlib",
    "numpy",
    "safetensors",
    "torch-neuronx",
    "torch-xla",
    "neuronx-cc",
)


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


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


def environment() -> dict[str, str]:
    """Environment variables that can change a result, apart from those that differ by process on purpose."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name.startswith(_PREFIXES) or name in _ALSO) and name not in _PER_PROCESS
    }


def support_profile(target: targets.Target) -> dict[str, str] | None:
    """Name of the support profile that the embedded device imitated, and the hash of its text; None on other targets."""
    if targets.family(target) != "rehearsal":
        return None
    import torch

    return dict(torch.neuron.profile_identity())


def capture(target: targets.Target) -> dict[str, Any]:
    """The identity of this process, after the device is open."""
    import torch

    return {
        "fixed": {
            "host": platform.node(),
            "platform": platform.platform(),
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "shakedown": shakedown.__version__,
            "shakedown_source": source_sha256(),
            "versions": versions(),
            "environment": environment(),
        },
        "also": {
            "device": target.device,
            "family": targets.family(target),
            "profile": support_profile(target),
            "executable": sys.implementation.name,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "matmul_precision": torch.get_float32_matmul_precision(),
        },
    }
