"""Executables as the PJRT client knows them: found in the cache or compiled, as bytes, and linked from bytes.

JAX has no public way to say where executables are kept under a key of one's own, or to call one without tracing. So this file
reaches into JAX, and is the only one that does: :func:`install` takes the place of ``jax._src.compiler.compile_or_get_cached``,
through which every compilation goes; :func:`link` puts JAX's own call around an executable. Where JAX has changed,
:func:`install` says so once, and nothing is kept on disk.
"""

from __future__ import annotations

import functools
import inspect
import io
import os
import platform
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax._src import compilation_cache

from . import cache, config, dump, events
from .cache.entry import Unusable
from .cache.key import Key, digest_of
from .cache.store import CacheWarning, Store
from .errors import CompilationFailed, said_by

# (sizes, dtype, whether it is weakly typed) of one input
Aval: TypeAlias = tuple[tuple[int, ...], np.dtype[Any], bool]

_T = TypeVar("_T")

_HOOKED = ["backend", "computation", "devices", "compile_options", "host_callbacks", "executable_devices"]
_original: Callable[..., Any] | None = None
_here = threading.local()
_names: dict[str, str] = {}  # of our programs, by their modules' names
_made_here: set[str] = set()  # keys that this process compiled: to find one of them is no sign that the cache was warm
_device: Any = None


@dataclass(frozen=True)
class Obtained:
    """How an executable came about: ``source`` is a cache's name or "compiled"; ``name`` None: it is not a program's of ours."""

    name: str | None
    source: str
    digest: str
    payload: bytes
    seconds: float  # that compiling took, now or when it was stored


def installed() -> bool:
    return _original is not None


def use(device: Any) -> None:
    """Take `device` as the one that executables are linked for."""
    global _device
    _device = device


def device() -> Any:
    return _device


def source_of(digest: str) -> str:
    """Where an executable on disk comes from: an earlier process, or this one, which compiled it under another name."""
    return "same-computation" if digest in _made_here else "persistent-cache"


def making(make: Callable[[], _T], name: str, *, payload: bool = False) -> tuple[_T, Obtained | None]:
    """What `make` returns, which compiles the program `name` on this thread, and how its executable came about.

    None where the client was not asked for one, or for another program's: JAX keeps executables in memory too, and what
    was obtained last need not be this one. `payload`: the bytes are wanted even where nothing is kept on disk.
    """
    wanted = getattr(_here, "wants_payload", False)
    _here.of_program, _here.wants_payload = None, payload
    try:
        made = make()
    finally:
        found, _here.of_program, _here.wants_payload = _here.of_program, None, wanted
    return made, found if found is not None and found.name == name else None


def last() -> Obtained | None:
    """The executable that was compiled or loaded last on this thread, once; None when the client was not asked for one."""
    found, _here.obtained = getattr(_here, "obtained", None), None
    if found is not None and found.name is not None:
        _here.of_program = found
    return found


def install() -> bool:
    """Send JAX's compilations through our cache; whether that worked. Done once in a process."""
    global _original
    if _original is not None:
        return True
    try:
        from jax._src import compiler

        given = list(inspect.signature(compiler.compile_or_get_cached).parameters)
    except (ImportError, AttributeError, ValueError):
        given = []
    if given[: len(_HOOKED)] != _HOOKED:
        warnings.warn(
            f"jax {jax.__version__} compiles in another way than this version of shakedown knows: no executable is kept on "
            "disk. Install the version of jax that shakedown asks for.",
            CacheWarning,
            stacklevel=2,
        )
        return False
    _original = compiler.compile_or_get_cached
    compiler.compile_or_get_cached = _obtain
    return True


def _obtain(
    backend: Any,
    computation: Any,
    devices: Any,
    compile_options: Any,
    host_callbacks: Sequence[Any],
    executable_devices: Any,
    *rest: Any,
    **more: Any,
) -> Any:
    """In the place of JAX's function: the loaded executable of `computation`."""
    assert _original is not None
    module = str(computation.operation.attributes["sym_name"]).strip('"')
    if module in _names:
        dump.stablehlo(_names[module], computation)
        _refuse_invalid_flags(_names[module])
    store = cache.current()
    # What several devices run, or what calls back into Python, cannot be kept. Other people's computations go to the cache
    # that they have chosen, or into ours.
    theirs = module not in _names and compilation_cache.is_persistent_cache_enabled()
    if theirs or host_callbacks or devices.size != 1 or backend.process_index() != 0:
        return _original(
            backend, computation, devices, compile_options, host_callbacks, executable_devices, *rest, **more
        )
    made = _Request(backend, computation, compile_options, executable_devices, module)
    if store is None:
        return made.compiled(None)
    key = _key_of(backend, computation, devices, compile_options)
    found = made.found(store, key)
    if found is not None:
        return found
    events.record("cache", "miss", detail="executable")
    store.note_miss(key, made.name, "executable")
    with store.lock(key.digest, made.name):
        found = made.found(store, key)  # whoever held the lock, or had it just before, may have compiled it
        return made.compiled(store, key) if found is None else found


def _refuse_invalid_flags(name: str) -> None:
    """What TorchNeuron's own tests do to see a compilation fail: a flag that no compiler knows.

    Raises:
        CompilationFailed: ``NEURON_CC_FLAGS`` has a flag that begins with ``--invalid``.
    """
    flag = next((f for f in config.COMPILER_FLAGS().split() if f.startswith("--invalid")), None)
    if flag is not None:
        raise CompilationFailed(f"COMPILATION FAILED: {name}: {config.COMPILER_FLAGS.name} has the flag {flag}")


@dataclass(frozen=True)
class _Request:
    backend: Any
    computation: Any
    options: Any
    devices: Any
    module: str

    @property
    def name(self) -> str:
        return _names.get(self.module, f"jax.{self.module}")

    def found(self, store: Store, key: Key) -> Any:
        """The executable from the cache, or None."""
        start_ns = time.perf_counter_ns()
        entry = store.get(key.digest)
        if entry is None:
            return None
        header, payload = entry
        try:
            executable = self.backend.deserialize_executable(payload, self.devices, self.options)
        except jax.errors.JaxRuntimeError as error:
            store.refuse(key.digest, Unusable("damaged", f"PJRT does not take it ({str(error)[:200]})"))
            return None
        source = source_of(key.digest)
        _here.obtained = Obtained(_names.get(self.module), source, key.digest, payload, header.seconds)
        duration_ns = time.perf_counter_ns() - start_ns
        events.record("cache", "hit", duration_ns=duration_ns, nbytes=header.stored_bytes, detail=header.kind)
        return executable

    def compiled(self, store: Store | None, key: Key | None = None) -> Any:
        start = time.perf_counter()
        try:
            executable = self.backend.compile_and_load(
                self.computation, executable_devices=self.devices, compile_options=self.options
            )
        except jax.errors.JaxRuntimeError as error:
            if self.module in _names:
                raise CompilationFailed(f"COMPILATION FAILED: {self.name}: {said_by(error)}") from error
            raise
        seconds = time.perf_counter() - start
        events.record("cache", "compiled", duration_ns=int(seconds * 1e9))
        wanted = getattr(_here, "wants_payload", False)
        payload = _serialised(executable) if wanted or (store is not None and store.writable) else b""
        digest = ""
        if store is not None and key is not None:
            digest = key.digest
            _made_here.add(digest)
            if payload:
                store.put(key, payload, kind="executable", name=self.name, seconds=seconds)
        _here.obtained = Obtained(_names.get(self.module), "compiled", digest, payload, seconds)
        return executable


def _serialised(executable: Any) -> bytes:
    """PJRT's own bytes of an executable that was compiled (one that was loaded has lost its functions); b"" if it has none."""
    try:
        return executable.serialize()
    except (jax.errors.JaxRuntimeError, NotImplementedError):
        return b""


def module_name(name: str) -> str:
    """What a jitted function for the program `name` must be called, so that its compilations are known to be the program's."""
    plain = "".join(c if c.isalnum() else "_" for c in name)
    if plain.endswith("_"):  # JAX cuts those off, and an in-place operator is not the other one
        plain += "inplace"
    _names[f"jit_{plain}"] = name
    return plain


# --- keys ---------------------------------------------------------------------------------------------------------------


def _key_of(backend: Any, computation: Any, devices: Any, options: Any) -> Key:
    """The key of a module: what is computed, and everything that takes part in making native code of it."""
    chosen = " ".join(f"{name}={value}" for name, value in sorted(options.env_option_overrides))
    return Key(
        {
            "computation": _digest_of_module(computation),
            "signature": _signature(computation),
            "options": f"{chosen} all={digest_of(_without_dumps(options))[:12]}".strip(),
            "device": f"{devices.flat[0].device_kind} x{devices.size}",
            **surroundings(backend),
        }
    )


def _digest_of_module(computation: Any) -> str:
    """Of the module's bytecode, without locations and without its name: a graph's number is no part of what it computes."""
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir import passmanager as pm

    with computation.context:
        copy = computation.operation.clone()
        pm.PassManager.parse("builtin.module(strip-debuginfo)").run(copy.operation)
        copy.operation.attributes["sym_name"] = ir.StringAttr.get("program")
        out = io.BytesIO()
        copy.operation.write_bytecode(file=out)
    return digest_of(out.getvalue())


_SIGNATURE_LIMIT = 400  # characters


def _signature(computation: Any) -> str:
    """Inputs and results of a module, for people: it follows from the computation. What is long is cut."""
    for operation in computation.body.operations:
        if str(operation.operation.attributes["sym_name"]) == '"main"':
            text = str(operation.operation.attributes["function_type"]).replace("tensor", "")
            return text if len(text) <= _SIGNATURE_LIMIT else f"{text[:_SIGNATURE_LIMIT]}..."
    return "unknown"


def _without_dumps(options: Any) -> bytes:
    """The options' bytes. What XLA only writes for people to read (``xla_dump_*``) changes no code."""
    debug = options.executable_build_options.debug_options
    dumps = [n for n in ("xla_dump_to", "xla_dump_hlo_module_re", "xla_dump_hlo_pass_re") if getattr(debug, n, "")]
    if not dumps:
        return options.SerializeAsString()
    import copy

    options = copy.deepcopy(options)
    debug = options.executable_build_options.debug_options
    for name in dir(debug):
        if name.startswith("xla_dump_") and isinstance(value := getattr(debug, name), (bool, str, int)):
            setattr(debug, name, type(value)())
    return options.SerializeAsString()


def surroundings(client: Any) -> dict[str, str]:
    """The parts of a key that do not depend on the program."""
    own = config.compiler_variables(*config.OF_NEURONX_CC)
    fixed = surroundings_of_process(client)
    return {**fixed, "flags": " ".join(own) if own and fixed["flags"] == "none" else " ".join([fixed["flags"], *own])}


@functools.cache
def surroundings_of_process(client: Any) -> dict[str, str]:
    """Those that are the same as long as the process lives: XLA reads its flags once."""
    import jaxlib

    return {
        "versions": f"jax={jax.__version__} jaxlib={jaxlib.__version__} pjrt={'_'.join(client.platform_version.split())}",
        "flags": " ".join(config.compiler_variables(*config.OF_XLA)) or "none",
        "host": host(),
    }


@functools.cache
def host() -> str:
    """The processor that native code is made for: instructions that another one lacks would end the process."""
    words = [platform.machine()]
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    for name in ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part"):
        if name in fields:
            words.append(f"{name.replace(' ', '_')}={fields[name]}")
    features = fields.get("flags") or fields.get("Features") or platform.processor()
    words.append(f"features={digest_of(' '.join(sorted(features.split())).encode())[:12]}")
    # XLA divides loops among as many threads as there are.
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    words.append(f"cores={count}")
    return " ".join(words)
