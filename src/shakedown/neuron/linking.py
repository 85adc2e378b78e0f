"""A program as a callable that is called like a jitted function, and made with as little work as the cache allows.

``jax.jit`` traces a function and lowers it to StableHLO before anybody can know whether its executable is on disk; that takes
longer than reading the executable. So what tracing found out (which inputs are used, what comes out) is kept in an entry of
its own, a *trace*, whose key is made of the program's steps and the device's own source (:mod:`.program_key`). With it, an
executable is linked without tracing; without it, JAX traces as it always does. Calls go through the same C++ path either way.

Reaches into JAX as :mod:`.executables` does, for the same reason; where JAX has changed, ``jax.jit`` itself is used.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from . import cache, config, direct, events, executables
from .cache.entry import Unusable
from .cache.key import Key
from .executables import Aval
from .lowering.checks import Demand

try:
    from jax._src import core, stages, tree_util
    from jax._src.interpreters import pxla
    from jax._src.lib import _jax

    _FASTPATH = pxla.MeshExecutableFastpathData
    _PARTS = (
        pxla.UnloadedMeshExecutable,
        pxla.JitGlobalCppCacheKeys,
        pxla.cc_shard_arg,
        _jax.pjit,
        stages.Compiled.call,
    )
    _KNOWN = _FASTPATH._fields == (
        "xla_executable",
        "out_pytree_def",
        "in_shardings",
        "out_shardings",
        "out_avals",
        "out_committed",
        "kept_var_bitvec",
        "in_device_local_layouts",
        "const_args",
    )
except (ImportError, AttributeError):
    _KNOWN = False

_linking = threading.Lock()


def aval_of(value: Any) -> Aval:
    """What a program is compiled for when it is to take `value` (a Python number counts as JAX takes it)."""
    aval = core.shaped_abstractify(value)
    return tuple(aval.shape), aval.dtype, bool(aval.weak_type)


class Runner:
    """The executables of one program, by signature of inputs. ``jitted`` is the program as JAX traces it."""

    def __init__(self, name: str, program: Any, jitted: Any, key_of: Callable[[Sequence[Aval]], Key | None]) -> None:
        self.name, self.program, self.jitted, self._key_of = name, program, jitted, key_of
        self.known: dict[tuple[Aval, ...], Any] = {}
        self.temp = 0  # the most bytes that one of them needs besides arguments and results

    def callable(self) -> Callable[..., Any]:
        """What to call. Its attribute ``runner`` is this object."""
        if not (_KNOWN and executables.installed()):
            self.jitted.runner = self
            return self.jitted
        jitted = _jax.pjit(
            self.jitted.__name__,
            None,
            self._missed,
            [],
            [],
            pxla.JitGlobalCppCacheKeys(),
            tree_util.dispatch_registry,
            pxla.cc_shard_arg,
        )
        run: Any = direct.past_jit(jitted, self.known.get)
        run.runner = self
        return run

    def _missed(self, *inputs: Any) -> Any:
        """Called by JAX's C++ for inputs that it has not seen: results, and what it needs to do the same without us."""
        if not core.trace_state_clean():
            return self.jitted(*inputs), None, False
        compiled = self.compiled(tuple(map(aval_of, inputs)), inputs)
        parameters, executable = compiled._params, compiled._executable
        outs, out_flat, in_flat = stages.Compiled.call(parameters, *inputs)
        flat, tree = pxla.reflatten_outputs_for_dispatch(parameters.out_tree, out_flat)
        constants = executable.shard_const_args(parameters.const_args)
        fast = None
        if all(isinstance(x, jax.Array) for x in flat) and not executable._mut:
            fast = _FASTPATH(
                executable.xla_executable,
                tree,
                executable._in_shardings,
                executable._out_shardings,
                [x.aval for x in flat],
                [x._committed for x in flat],
                [i in executable._kept_var_idx for i in range(len(constants) + len(in_flat))],
                executable._dispatch_in_layouts,
                constants,
            )
        return outs, fast, False

    def compiled(self, signature: tuple[Aval, ...], inputs: Sequence[Any]) -> Any:
        """The ``jax.stages.Compiled`` for `signature`: known, linked from the cache, or traced and compiled."""
        found = self.known.get(signature)
        if found is None:
            key = self._key_of(signature)
            linked = None if key is None else self._linked(key)
            if linked is None:
                found, made = executables.making(lambda: self.jitted.trace(*inputs).lower().compile(), self.name)
                temp = temp_bytes(found)
                if key is not None and made is not None:
                    keep(key, self.name, describe(found, getattr(self.program, "demands", ()), temp), made.digest)
            else:
                found, temp = linked.compiled, linked.temp
            self.known[signature] = found
            self.temp = max(self.temp, temp)
        return found

    def prepare(self, inputs: Sequence[Any]) -> int:
        """Compile or link for `inputs` and do not run; ``temp``. Where JAX has changed, 0: nothing is known before the run."""
        if _KNOWN and executables.installed() and core.trace_state_clean():
            self.compiled(tuple(map(aval_of, inputs)), inputs)
        return self.temp

    def _linked(self, key: Key) -> Linked | None:
        start_ns = time.perf_counter_ns()
        found = look_up(key, self.name)
        if found is None:
            return None
        if found.demands:
            self.program.demands[:] = found.demands
        duration_ns = time.perf_counter_ns() - start_ns
        events.record("compile", self.name, start_ns=start_ns, duration_ns=duration_ns, detail=found.source)
        return found


def temp_bytes(compiled: Any) -> int:
    """The bytes that a ``jax.stages.Compiled`` needs besides arguments and results: XLA's plan of it. 0: it does not say."""
    try:
        return int(compiled.memory_analysis().temp_size_in_bytes)
    except Exception:  # a plugin without the analysis: what it raises, or gives instead, is its own
        return 0


# --- traces -------------------------------------------------------------------------------------------------------------


class Linked(NamedTuple):
    """``compiled``, a ``jax.stages.Compiled``, with the demands of its data, its working memory, and the cache it came from."""

    compiled: Any
    demands: list[Demand]
    temp: int
    source: str


def look_up(key: Key, name: str) -> Linked | None:
    """The executable that tracing the program of `key` once led to."""
    store = cache.current()
    if store is None or config.DUMP():  # what is linked without tracing has no StableHLO to show
        return None
    start_ns = time.perf_counter_ns()
    entry = store.get(key.digest)
    if entry is None or entry[0].kind != "trace":
        return None
    note = entry[0].note
    executable = store.get(str(note.get("executable")))
    if executable is None:
        return None
    header, payload = executable
    try:
        found = link(payload, note, name)
    except Unusable as error:
        store.refuse(key.digest, error)
        return None
    duration_ns = time.perf_counter_ns() - start_ns
    nbytes = header.stored_bytes
    events.record("cache", "hit", duration_ns=duration_ns, nbytes=nbytes, detail=header.kind)
    events.record("cache", "hit", detail="trace")
    return found._replace(source=executables.source_of(header.digest))


def keep(key: Key | None, name: str, note: dict[str, Any] | None, digest: str) -> None:
    """Store what tracing found out (:func:`describe`), beside the executable `digest` that it led to ("": not on disk)."""
    store = cache.current()
    if store is not None and key is not None and note is not None and digest:
        store.put(key, b"", kind="trace", name=name, note={**note, "executable": digest})


def describe(compiled: Any, demands: Sequence[Demand], temp: int) -> dict[str, Any] | None:
    """What :func:`link` needs besides an executable's bytes, in plain JSON; None for what cannot be linked.

    ``inputs`` and ``outputs`` are [sizes, dtype, weakly typed]; ``kept`` numbers the inputs that the executable takes;
    ``single``: it returns its one output, not a list; ``demands`` are [operator, error, message]; `temp` is its working memory.
    """
    executable, parameters = compiled._executable, compiled._params
    tree = parameters.out_tree
    single = tree == tree_util.tree_structure(0)
    listed = tree == tree_util.tree_structure([0] * tree.num_leaves)
    errors = [getattr(builtins, d.error.__name__, None) is d.error for d in demands]
    if parameters.const_args or executable._mut or not (single or listed) or not all(errors):
        return None
    return {
        "inputs": [_plain(a) for a in executable._all_args_info.in_avals],
        "outputs": [_plain(a) for a in executable.out_avals],
        "kept": sorted(executable._kept_var_idx),
        "single": single,
        "demands": [[d.operator, d.error.__name__, d.message] for d in demands],
        "temp": temp,
    }


def _plain(aval: Any) -> list[Any]:
    return [list(aval.shape), np.dtype(aval.dtype).name, bool(aval.weak_type)]


def link(payload: bytes, note: dict[str, Any], name: str) -> Linked:
    """A ``jax.stages.Compiled`` out of an executable's bytes and :func:`describe`'s note.

    Raises:
        Unusable: the note is no such note, or PJRT does not take the bytes.
    """
    device = executables.device()
    client = device.client
    try:
        inputs, outputs = [_aval(a) for a in note["inputs"]], [_aval(a) for a in note["outputs"]]
        kept = {int(i) for i in note["kept"]}
        used = [a for i, a in enumerate(inputs) if i in kept]
        demands = [Demand(str(o), _error(str(e)), str(m)) for o, e, m in note["demands"]]
        single, temp = note["single"] is True, int(note["temp"])
        if (single and len(outputs) != 1) or not kept <= set(range(len(inputs))):
            raise ValueError("numbers that do not fit")
    except (KeyError, TypeError, ValueError) as error:
        raise Unusable("damaged", f"its note is no note ({error})") from None
    devices = _jax.DeviceList((device,))
    try:
        with _linking:  # a moment for each; nothing is known of how well LLVM links on several threads at once
            executable = client.deserialize_executable(payload, devices)
    except jax.errors.JaxRuntimeError as error:
        raise Unusable("damaged", f"PJRT does not take it ({str(error)[:200]})") from None
    if len(executable.get_parameter_layouts()) != len(used) or len(executable.get_output_layouts()) != len(outputs):
        raise Unusable("damaged", "its note is that of another executable")
    sharding = jax.sharding.SingleDeviceSharding(device, memory_kind=device.default_memory().kind)
    no_layouts = (None,) * len(used), (None,) * len(outputs)
    in_layouts, out_layouts = pxla._get_layouts_from_executable(executable, *no_layouts, 0, used, outputs)
    in_shardings = [sharding] * len(used)
    mesh = pxla.UnloadedMeshExecutable(
        xla_executable=executable,
        device_list=devices,
        backend=client,
        input_avals=used,
        input_shardings=in_shardings,
        output_avals=outputs,
        output_shardings=[sharding] * len(outputs),
        committed=False,
        name=f"jit({executables.module_name(name)})",
        unordered_effects=[],
        ordered_effects=[],
        keepalive=[],
        host_callbacks=[],
        kept_var_idx=kept,
        mut=None,
        xla_in_layouts=in_layouts,
        dispatch_in_layouts=pxla.get_dispatch_layouts(in_layouts, in_shardings, used),
        xla_out_layouts=out_layouts,
        all_args_info=None,
        pgle_profiler=None,
    ).load()
    given: Any = (tuple(jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in inputs), {})
    returned = tree_util.tree_structure(0 if single else [0] * len(outputs))
    return Linked(stages.Compiled(mesh, [], given, returned), demands, temp, "")


def _aval(plain: Any) -> Any:
    shape, dtype, weak = plain
    return core.ShapedArray(tuple(int(n) for n in shape), jax.numpy.dtype(dtype), weak_type=weak is True)


def _error(name: str) -> type[Exception]:
    found = getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise ValueError(f"{name} is no exception")
    return found
