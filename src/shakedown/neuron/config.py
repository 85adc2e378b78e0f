"""The only reader of the environment in the device half: each variable once, with type, default and meaning."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .errors import ConfigError

T = TypeVar("T")
STARTED = time.time()  # seconds since the epoch: this module is the first of the device's that a process loads


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("one of 1, true, yes, on, 0, false, no, off")


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise ValueError("a whole number above zero")
    return value


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(repr(a) for a in allowed)}")
        return text

    return parse


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable. ``setting()`` gives its value now; nothing is cached.

    ``alias`` is TorchNeuron's variable of the same meaning, which counts where ours is not set; ``opposite`` one that switches
    off what ours switches on.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    help: str
    alias: str | None = None
    opposite: str | None = None

    def __call__(self) -> T:
        for name in (self.name, self.alias, self.opposite):
            text = None if name is None else os.environ.get(name)
            if text is None:
                continue
            try:
                value = self.parse(text)
                return not value if name == self.opposite else value  # type: ignore[return-value]  # only flags have one
            except ValueError as allowed:
                raise ConfigError(f"{name}={text!r} cannot be used: it must be {allowed}") from None
        return self.default


DEVICE = Setting(
    "SHAKEDOWN_DEVICE",
    "auto",
    _choice("auto", "rehearsal", "off"),
    "auto: provide the `neuron` device unless torch-neuronx is installed; rehearsal: provide it even then; off: never",
)
CACHE_DIR = Setting(
    "SHAKEDOWN_CACHE_DIR",
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shakedown",
    Path,
    "directory of the caches: compiled executables in executables/, captured graphs in precompile/",
    alias="TORCH_NEURONX_NEFF_CACHE_DIR",
)
CACHE = Setting(
    "SHAKEDOWN_CACHE",
    True,
    _flag,
    "keep compiled executables on disk between processes",
    opposite="TORCH_NEURONX_NEFF_DISABLE_CACHE",
)
CACHE_LOCK_TIMEOUT = Setting(
    "SHAKEDOWN_CACHE_LOCK_TIMEOUT",
    1200,
    _count,
    "seconds to wait for another process that compiles the same program, before it is compiled here as well",
    alias="TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT",
)
CACHE_MAX_SIZE = Setting(
    "SHAKEDOWN_CACHE_MAX_SIZE_MB",
    2048,
    _count,
    "MiB of executables on disk at most; the least recently used are removed above it",
    alias="NEURON_COMPILATION_CACHE_MAX_SIZE_MB",
)
CACHE_MAX_ENTRIES = Setting(
    "SHAKEDOWN_CACHE_MAX_ENTRIES",
    50_000,
    _count,
    "files of executables on disk at most; the least recently used are removed above it",
    alias="NEURON_COMPILATION_CACHE_MAX_ENTRIES",
)
PRECOMPILE = Setting(
    "SHAKEDOWN_PRECOMPILE",
    False,
    _flag,
    "torch.compile keeps what it has traced, so that a new process runs it without tracing (docs/caches.md: what it costs)",
)
COMPILE_ONLY = Setting(
    "SHAKEDOWN_COMPILE_ONLY",
    False,
    _flag,
    "programs are compiled and stored, and not run: values are unknown (`shakedown compile` sets it for its processes)",
)
PROFILE = Setting(
    "SHAKEDOWN_PROFILE",
    "native",
    str,
    "support profile: the name of a release whose documented limits are imitated, or the path of a TOML file",
)
MAX_PLANS = Setting(
    "SHAKEDOWN_MAX_PLANS",
    4_000,
    _count,
    "operator programs kept in memory (about 1.2 MiB and four memory mappings each, of which Linux allows a process 65,530); "
    "the oldest half is dropped above it",
)
MAX_PIECES = Setting(
    "SHAKEDOWN_MAX_PIECES",
    64,
    _count,
    "programs at most that a graph of torch.compile is split into around operators that no program can hold; above it the "
    "graph runs operator by operator",
)
PRESERVE_ARTIFACTS = Setting(
    "SHAKEDOWN_PRESERVE_ARTIFACTS",
    False,
    _flag,
    "torch.compile keeps files of every stage of every graph: captured graph, program, StableHLO, XLA's result, timings",
    alias="TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS",
)
DEBUG_DIR = Setting(
    "SHAKEDOWN_DEBUG_DIR",
    Path("neuron_artifacts"),
    Path,
    "directory of these files",
    alias="TORCH_NEURONX_DEBUG_DIR",
)
STRICT_FALLBACK = Setting(
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
    False,
    _flag,
    "an operator that has a lowering must not retreat to the CPU after an error; it raises instead",
)
ADAPTIVE = Setting(
    "SHAKEDOWN_ADAPTIVE",
    False,
    _flag,
    "adaptive eager: record operators and run them in fused programs; read when Python starts",
    alias="TORCH_NEURONX_ENABLE_CONCATENATION",
)
ADAPTIVE_LENGTH = Setting(
    "SHAKEDOWN_ADAPTIVE_LENGTH",
    1024,
    _count,
    "operators that adaptive eager records at most before it runs them",
    alias="TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT",
)
ADAPTIVE_MEMORY = Setting(
    "SHAKEDOWN_ADAPTIVE_MEMORY",
    256,
    _count,
    "MiB of results that adaptive eager records at most before it runs them",
)
ADAPTIVE_TIMEOUT = Setting(
    "SHAKEDOWN_ADAPTIVE_TIMEOUT",
    20,
    _count,
    "milliseconds without a new operator after which adaptive eager runs what it has recorded",
)
ADAPTIVE_STACKS = Setting(
    "SHAKEDOWN_ADAPTIVE_STACKS",
    False,
    _flag,
    "adaptive eager keeps the Python line of every recorded operator, for errors and torch.neuron.adaptive.groups()",
    alias="TORCH_NEURONX_ENABLE_STACK_TRACE",
)
ADAPTIVE_SKIP = Setting(
    "SHAKEDOWN_ADAPTIVE_SKIP_INTERMEDIATES",
    True,
    _flag,
    "fused programs do not return results that nothing refers to any more",
    alias="TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE",
)
DEFAULT_BACKEND = Setting(
    "SHAKEDOWN_DEFAULT_BACKEND",
    "inductor",
    _choice("inductor", "neuron"),
    "the backend of torch.compile where none is named; read when Python starts",
)
DISABLE_FALLBACK_EXECUTION = Setting(
    "SHAKEDOWN_DISABLE_FALLBACK_EXECUTION",
    False,
    _flag,
    "torch.compile: a graph that cannot be compiled in full is an error; the option fallback_execution overrides it",
    alias="TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
)
RETAIN_DEVICE = Setting(
    "SHAKEDOWN_RETAIN_DEVICE",
    False,
    _flag,
    "torch.compile: results go back to the device of the inputs; the option retain_device overrides it",
    alias="TORCH_NEURONX_RETAIN_DEVICE_MODE",
)
DISABLE_CPU_AUTOCOPY = Setting(
    "SHAKEDOWN_DISABLE_CPU_AUTOCOPY",
    False,
    _flag,
    "torch.compile: a CPU tensor given to a compiled graph is an error instead of being copied to the device",
    alias="TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY",
)


def environment_of_compiler() -> dict[str, str]:
    """What the process that compiles for this one starts with: the same, but it records nothing itself."""
    off = {name: "0" for name in (ADAPTIVE.name, ADAPTIVE.alias) if name is not None}
    return {**os.environ, **off, DEVICE.name: "rehearsal"}


def compiler_variables() -> list[str]:
    """The variables that XLA and its plugins read by themselves, as they are set: words of the executables' keys.

    What only makes XLA write files for people to read (``--xla_dump_*``) is left out.
    """
    words = []
    for name in ("XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS", "NEURON_CC_FLAGS"):
        for flag in sorted(os.environ.get(name, "").split()):
            if not flag.startswith("--xla_dump_"):
                words.append(f"{name}:{flag}")
    return words
