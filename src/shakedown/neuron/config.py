"""The only reader of the environment in the device half: each variable once, with type, default and meaning."""

from __future__ import annotations

import os
import time
from pathlib import Path

from .core_memory import memory_of
from .setting import Setting, choice, cores, count, flag, level, some_of
from .setting import text_of as text_of

STARTED = time.time()  # seconds since the epoch: this module is the first of the device's that a process loads

DEVICE = Setting(
    "SHAKEDOWN_DEVICE",
    "auto",
    choice("auto", "rehearsal", "off"),
    "auto: provide the `neuron` device unless torch-neuronx is installed; rehearsal: provide it even then; off: never",
)
CACHE_DIR = Setting(
    "SHAKEDOWN_CACHE_DIR",
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shakedown",
    Path,
    "directory of the caches: compiled executables in executables/, captured graphs in precompile/",
    alias="TORCH_NEURONX_NEFF_CACHE_DIR",
    source="docs Aug, snapshot",
    differs="the default is a directory of the user, where TorchNeuron has /tmp/neff_cache: executables are code, and in /tmp "
    "anybody may have put them",
)
CACHE = Setting(
    "SHAKEDOWN_CACHE",
    True,
    flag,
    "keep compiled executables on disk between processes",
    opposite="TORCH_NEURONX_NEFF_DISABLE_CACHE",
    source="snapshot",
)
CACHE_LOCK_TIMEOUT = Setting(
    "SHAKEDOWN_CACHE_LOCK_TIMEOUT",
    1200,
    count,
    "seconds to wait for another process that compiles the same program, before it is compiled here as well",
    alias="TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT",
    source="snapshot",
)
CACHE_MAX_SIZE = Setting(
    "SHAKEDOWN_CACHE_MAX_SIZE_MB",
    2048,
    count,
    "MiB of executables on disk at most; the least recently used are removed above it",
    alias="NEURON_COMPILATION_CACHE_MAX_SIZE_MB",
    source="snapshot",
    differs="the default is a limit, where TorchNeuron has none",
)
CACHE_MAX_ENTRIES = Setting(
    "SHAKEDOWN_CACHE_MAX_ENTRIES",
    50_000,
    count,
    "files of executables on disk at most; the least recently used are removed above it",
    alias="NEURON_COMPILATION_CACHE_MAX_ENTRIES",
    source="snapshot",
    differs="the default is a limit, where TorchNeuron has none",
)
PRECOMPILE = Setting(
    "SHAKEDOWN_PRECOMPILE",
    False,
    flag,
    "torch.compile keeps what it has traced, so that a new process runs it without tracing (docs/caches.md: what it costs)",
)
COMPILE_ONLY = Setting(
    "SHAKEDOWN_COMPILE_ONLY",
    False,
    flag,
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
    count,
    "operator programs kept in memory (about 1.2 MiB and four memory mappings each, of which Linux allows a process 65,530); "
    "the oldest half is dropped above it",
)
MAX_PIECES = Setting(
    "SHAKEDOWN_MAX_PIECES",
    64,
    count,
    "programs at most that a graph of torch.compile is split into around operators that no program can hold; above it the "
    "graph runs operator by operator",
)
PRESERVE_ARTIFACTS = Setting(
    "SHAKEDOWN_PRESERVE_ARTIFACTS",
    False,
    flag,
    "torch.compile keeps files of every stage of every graph: captured graph, program, StableHLO, XLA's result, timings",
    alias="TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS",
    source="docs",
)
DEBUG_DIR = Setting(
    "SHAKEDOWN_DEBUG_DIR",
    Path("/tmp/neuron_backend"),
    Path,
    "directory of these files",
    alias="TORCH_NEURONX_DEBUG_DIR",
    source="docs",
)
STRICT_FALLBACK = Setting(
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
    False,
    flag,
    "an operator that has a lowering must not retreat to the CPU after an error; it raises instead (docs/errors.md)",
    source="article, snapshot",
)
FALLBACK_ENABLED = Setting(
    "NEURON_FALLBACK_ENABLED",
    True,
    flag,
    "an operator whose program could not be compiled or run is computed on the CPU; off: it raises",
    source="snapshot",
)
LAUNCH_BLOCKING = Setting(
    "NEURON_LAUNCH_BLOCKING",
    False,
    flag,
    "an operator is complete when its call returns, and its errors come there; adaptive eager records nothing. Read at first use",
    source="docs, snapshot",
)
ASYNC_DISPATCH = Setting(
    "SHAKEDOWN_ASYNC_DISPATCH",
    False,
    flag,
    "calls return before their program has run, as on an accelerator; small operators are slower for it. Read at first use",
    alias="TORCH_NEURONX_ENABLE_ASYNC_NRT",
    source="docs Aug, snapshot",
)
STACK_TRACE = Setting(
    "SHAKEDOWN_STACK_TRACE",
    False,
    flag,
    "errors of operators name the Python lines that called them; adaptive eager keeps the line of every recorded operator",
    alias="TORCH_NEURONX_ENABLE_STACK_TRACE",
    source="snapshot",
)
LOG_LEVEL = Setting(
    "TORCH_NEURONX_LOG_LEVEL",
    1,
    level,
    "what is logged: 0 errors, 1 warnings too (TorchNeuron's code has this default, its table 0), 2 also notices (each "
    "operator that falls back, once), 3 everything",
    source="snapshot",
)
LOG_FILE: Setting[Path | None] = Setting(
    "TORCH_NEURONX_LOG_FILE",
    None,
    Path,
    "file that log lines are appended to, instead of standard error",
    source="snapshot",
)
ADAPTIVE = Setting(
    "SHAKEDOWN_ADAPTIVE",
    False,
    flag,
    "adaptive eager: record operators and run them in fused programs; read when Python starts",
    alias="TORCH_NEURONX_ENABLE_CONCATENATION",
    source="snapshot",
)
ADAPTIVE_LENGTH = Setting(
    "SHAKEDOWN_ADAPTIVE_LENGTH",
    1024,
    count,
    "operators that adaptive eager records at most before it runs them",
    alias="TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT",
    source="snapshot",
    lenient=("TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT",),
)
ADAPTIVE_MEMORY = Setting(
    "SHAKEDOWN_ADAPTIVE_MEMORY",
    256,
    count,
    "MiB of results that adaptive eager records at most before it runs them",
)
MEMORY_LIMIT: Setting[int | None] = Setting(
    "SHAKEDOWN_MEMORY_LIMIT",
    None,
    memory_of,
    "what the device may hold at most: bytes (24GiB), or the published memory of a core (trn2, trn2:lnc1, trn3, ...); a request "
    "above it raises torch.OutOfMemoryError. Read at first use; torch.neuron.set_memory_limit changes it",
)
ADAPTIVE_TIMEOUT = Setting(
    "SHAKEDOWN_ADAPTIVE_TIMEOUT",
    20,
    count,
    "milliseconds without a new operator after which adaptive eager runs what it has recorded",
)
ADAPTIVE_SKIP = Setting(
    "SHAKEDOWN_ADAPTIVE_SKIP_INTERMEDIATES",
    True,
    flag,
    "fused programs do not return results that nothing refers to any more",
    alias="TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE",
    source="snapshot",
)
DEFAULT_BACKEND = Setting(
    "SHAKEDOWN_DEFAULT_BACKEND",
    "auto",
    choice("auto", "inductor", "neuron"),
    "the backend of torch.compile where none is named: auto compiles graphs with tensors of the device for it, and leaves others "
    "to Inductor; neuron takes all of them; inductor none. Read when Python starts",
)
DISABLE_FALLBACK_EXECUTION = Setting(
    "SHAKEDOWN_DISABLE_FALLBACK_EXECUTION",
    True,
    flag,
    "torch.compile: a graph that the compiler refuses, or whose program breaks, is an error; off: it runs operator by operator. "
    "The option fallback_execution overrides it",
    alias="TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
    source="docs",
)
RETAIN_DEVICE = Setting(
    "SHAKEDOWN_RETAIN_DEVICE",
    False,
    flag,
    "torch.compile: results go back to the device of the inputs; the option retain_device overrides it",
    alias="TORCH_NEURONX_RETAIN_DEVICE_MODE",
    source="snapshot",
)
DISABLE_CPU_AUTOCOPY = Setting(
    "SHAKEDOWN_DISABLE_CPU_AUTOCOPY",
    False,
    flag,
    "torch.compile: a CPU tensor given to a compiled graph is an error instead of being copied to the device",
    alias="TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY",
    source="docs, snapshot",
)


SKIP_PRECONDITIONS = Setting(
    "TORCH_NEURONX_SKIP_OP_PRECONDITIONS",
    False,
    flag,
    "programs do not check what depends on data, such as that indices are inside their dimension, and need not be waited for; "
    "read when a program is made. An index outside is then clamped or dropped",
    source="snapshot",
)
DISABLE_MEMORY_CACHE = Setting(
    "TORCH_NEURONX_DISABLE_NEFF_CACHE",
    False,
    flag,
    "eager operators' programs are not kept in memory: each call makes its own, from the cache on disk or by compiling",
    source="snapshot",
)
COMPILER_FLAGS = Setting(
    "NEURON_CC_FLAGS",
    "",
    str,
    "part of every executable's key; a flag that begins with --invalid makes compiling fail, to see what a failure does",
    source="snapshot",
    differs="no flag changes the code: there is no neuronx-cc here",
)
COMPILER_LEVEL = Setting(
    "NEURON_COMPILER_OPT_LEVEL",
    "",
    str,
    "part of every executable's key",
    source="snapshot",
    differs="the level changes no code: there is no neuronx-cc here",
)
LOGICAL_CORES = Setting(
    "NEURON_LOGICAL_NC_CONFIG",
    2,
    count,
    "physical cores that make a logical one: part of every executable's key, told by utils.get_logical_neuron_cores()",
    source="snapshot",
    differs="the host's processor has no such cores",
)
PLATFORM = Setting(
    "SHAKEDOWN_PLATFORM_TARGET",
    "trn2",
    choice("trn2", "trn3"),
    "the platform that torch_neuronx.utils.get_platform_target() names",
)
NUM_CORES = Setting(
    "NEURON_RT_NUM_CORES",
    1,
    count,
    "cores asked for; this process has one device whatever it says, and warns once about more",
    source="snapshot",
    differs="one device a process: more is a warning",
)
VISIBLE_CORES: Setting[tuple[int, ...]] = Setting(
    "NEURON_RT_VISIBLE_CORES",
    (0,),
    cores,
    "cores asked for, by number; whichever they are, the device is neuron:0, and more than one is a warning",
    source="snapshot",
    differs="one device a process: more is a warning",
)
DUMP = Setting(
    "TORCH_NEURONX_DUMP_HLO_PB",
    False,
    flag,
    "each program's StableHLO is written under tn_op_dumps/ as it is compiled or loaded, which is then traced first",
    source="snapshot",
    differs="StableHLO as text, where the name speaks of HLO protocol buffers",
)
DUMP_DIR = Setting(
    "TORCH_NEURONX_DUMP",
    Path("/tmp"),
    Path,
    "directory that tn_op_dumps/ is made in",
    source="snapshot",
)
METRICS = Setting(
    "TORCH_NEURONX_METRICS_ENABLED",
    False,
    flag,
    "torch_neuronx.metrics collects from the device's start on",
    source="snapshot",
)
METRIC_TABLES: Setting[tuple[str, ...]] = Setting(
    "TORCH_NEURONX_ENABLED_METRIC_TABLES",
    (),
    some_of("graph_stats"),
    "tables that are written when the process ends; graph_stats: what get_dynamo_metrics() returns",
    source="snapshot",
)
METRICS_DIR = Setting(
    "TORCH_NEURONX_METRICS_DIR",
    Path("/tmp"),
    Path,
    "directory of metric_table_graph_stats_rank{rank}.csv",
    source="snapshot",
)
EXEC: Setting[Path | None] = Setting(
    "SHAKEDOWN_EXEC",
    None,
    Path,
    "directory that `shakedown exec` sets for its processes: what they are asked for, and where they leave their reports",
)


def environment_of_compiler() -> dict[str, str]:
    """What the process that compiles for this one starts with: the same, but it records nothing itself."""
    off = {name: "0" for name in (ADAPTIVE.name, ADAPTIVE.alias) if name is not None}
    said = (EXEC.name, NUM_CORES.name, VISIBLE_CORES.name)  # what is to be said of the others, this process says
    rest = {name: text for name, text in os.environ.items() if name not in said}
    return {**rest, **off, DEVICE.name: "rehearsal"}


OF_XLA = ("XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS")  # read by XLA and its plugins themselves, once
OF_NEURONX_CC = (COMPILER_FLAGS.name, COMPILER_LEVEL.name, LOGICAL_CORES.name)  # no compiler reads them here


def compiler_variables(*names: str) -> list[str]:
    """What the variables `names` say to a compiler, as they are set: words of the executables' keys.

    What only makes XLA write files for people to read (``--xla_dump_*``) is left out.
    """
    words = []
    for name in names:
        for word in sorted(os.environ.get(name, "").split()):
            if not word.startswith("--xla_dump_"):
                words.append(f"{name}:{word}")
    return words
