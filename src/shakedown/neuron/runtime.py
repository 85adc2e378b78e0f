"""The only importer of the PJRT client (through JAX): compile, move, wait.

XLA options, each with its reason:

- ``xla_allow_excess_precision=False``: a chain of bfloat16 operators in one program rounds after each of them, as
  eager execution does.
- ``xla_cpu_use_fusion_emitters=False`` for one arithmetic operator: halves the compile time of a tiny kernel at the same
  speed. Everything else keeps the emitters, which make graphs faster, and decide in which order a sum is taken and which
  polynomial stands for a function.
- ``xla_disable_hlo_passes=cse_barrier_expander`` for segments: XLA for CPUs removes optimisation barriers before it fuses
  operators; with barriers in place an operator of a segment is compiled as it is alone.
- ``jax_cpu_enable_async_dispatch=False``: on the CPU plugin a small call costs a third when it completes on return
  (``SHAKEDOWN_ASYNC_DISPATCH`` switches it on).
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch

from . import compile_only, config, events, executables, linking, program_key
from .cache.key import Key
from .dtypes import CARRIER, in_buffers, to_torch
from .errors import ShakedownError, said_by
from .executables import Aval

Array: TypeAlias = jax.Array

_SHARED_ZEROS_LIMIT = 1 << 20  # bytes: zero buffers up to this size are made once per length and dtype, and shared

_device: Any = None
_forked = False
asynchronous = False  # whether calls return before their program has run
_blocking = False  # they would, and are to be waited for


def mark_forked() -> None:
    """Called in a child process: the client's threads did not come along, so nothing may be run or moved here."""
    global _forked
    _forked = True
    _zeros.clear()
    for known in _numbers.values():
        known.clear()


def check_process() -> None:
    """Raise in a forked child instead of waiting for ever. The hot path need not ask: a child has no plans.

    Raises:
        ShakedownError: the device was in use when this process was forked.
    """
    if _forked:
        raise ShakedownError(
            "Cannot re-initialize the neuron device in a forked subprocess. "
            "To use it with multiprocessing, use the 'spawn' start method."
        )


def _client_is_there() -> bool:
    """Whether other code of this process has made JAX's clients: what they read of the configuration holds for good."""
    from jax._src import xla_bridge  # there is no public way to ask

    return getattr(xla_bridge, "backends_are_initialized", bool)()


def start() -> None:
    """Configure JAX and take its default device. Called before the first program; once it has worked, it does nothing."""
    global _device, asynchronous, _blocking
    if _device is not None:
        return
    jax.config.update("jax_enable_x64", True)
    deferred = jax.config.read("jax_cpu_enable_async_dispatch") if _client_is_there() else config.ASYNC_DISPATCH()
    jax.config.update("jax_cpu_enable_async_dispatch", deferred)
    jax.monitoring.register_event_duration_secs_listener(_on_duration)
    _device = jax.devices()[0]
    asynchronous = _device.platform != "cpu" or deferred
    _blocking = asynchronous and config.LAUNCH_BLOCKING()
    compile_only.start()
    executables.use(_device)
    executables.install()


# --- compiling ----------------------------------------------------------------------------------------------------------


def _on_duration(event: str, seconds: float, *, fun_name: str = "", **_: Any) -> None:
    if event != "/jax/core/compile/backend_compile_duration":
        return
    obtained = executables.last()
    if executables.installed() and (obtained is None or obtained.name is None):
        return  # a computation of somebody else's, or a transfer of ours; or the compiler refused
    name, source = (fun_name, "compiled") if obtained is None else (obtained.name or fun_name, obtained.source)
    duration = int(seconds * 1e9)
    events.record("compile", name, start_ns=time.perf_counter_ns() - duration, duration_ns=duration, detail=source)


_Holds: TypeAlias = Literal["arithmetic", "graph", "segment"]
_OPTIONS: dict[_Holds, dict[str, Any]] = {
    "arithmetic": {"xla_allow_excess_precision": False, "xla_cpu_use_fusion_emitters": False},
    "graph": {"xla_allow_excess_precision": False},
    "segment": {"xla_allow_excess_precision": False, "xla_disable_hlo_passes": "cse_barrier_expander"},
}


def compile(run: Callable[..., Any], name: str, *, holds: _Holds, donate: Sequence[int] = ()) -> Callable[..., Any]:
    """A callable on ``jax.Array``s that compiles `run` on its first call for each signature of inputs.

    `holds`: one arithmetic operator, any other operator or a captured graph, or a segment of adaptive eager. Inputs
    numbered in `donate` are consumed.
    """
    settings = _settings(holds, donate)
    jitted = _jitted(run, name, holds, donate)
    made = linking.Runner(name, run, jitted, lambda given: program_key.key_of(run, given, settings)).callable()
    if compile_only.on:
        return compile_only.hollow(made, _shaped)
    return _awaited(made) if _blocking else made


def _awaited(run: Any) -> Callable[..., Any]:
    """`run`, which returns when its results are there, and raises where computing them fails."""

    @functools.wraps(run)
    def call(*inputs: Array) -> Any:
        return jax.block_until_ready(run(*inputs))

    call.runner = run.runner  # type: ignore[attr-defined]
    return call


def _jitted(run: Callable[..., Any], name: str, holds: _Holds, donate: Sequence[int]) -> Any:
    def program(*inputs: Array) -> Any:
        return run(*inputs)

    program.__name__ = program.__qualname__ = executables.module_name(name)
    return jax.jit(program, donate_argnums=tuple(donate), compiler_options=_OPTIONS[holds])


def _settings(holds: _Holds, donate: Sequence[int]) -> str:
    """How :func:`_jitted` compiles, in words."""
    options = " ".join(f"{name}={value}" for name, value in _OPTIONS[holds].items())
    return f"{options} donated={','.join(map(str, donate)) or 'none'}"


_LINKED_BY_A_CALL = 64 << 20  # bytes of inputs


def aval_of(value: Any) -> Aval:
    """What a program is compiled for when it is to take `value` (a Python number counts as :func:`number` makes it)."""
    if isinstance(value, (bool, int, float, complex)):
        value = jnp.asarray(value)
    return tuple(value.shape), np.dtype(value.dtype), bool(getattr(value, "weak_type", False))


def _shaped(signature: Sequence[Aval]) -> list[Any]:
    return [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in signature]


def segment_key(members: Any, donate: Sequence[int], signature: Sequence[Aval]) -> Key | None:
    """The key of a segment that consists of `members` (:func:`program_key.programs` and plain values); None: it has none."""
    return program_key.key_of_parts(members, signature, _settings("segment", donate))


@dataclass(frozen=True)
class Linkable:
    """An executable as it goes from one process to another: PJRT's bytes, :func:`linking.describe`'s note, in plain JSON,
    and the digest of the key under which it is on disk (empty: it is not).
    """

    payload: bytes
    note: dict[str, Any]
    digest: str = ""


def compiled_segment(run: Callable[..., Any], name: str, signature: Sequence[Aval], donate: Sequence[int]) -> Linkable:
    """`run`, a segment, compiled for inputs of `signature`, for :func:`link_segment` in another process.

    Raises:
        ShakedownError: the client cannot make bytes of it.
    """
    jitted = _jitted(run, name, "segment", donate)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")  # some only free memory
        compiled, made = executables.making(
            lambda: jitted.trace(*_shaped(signature)).lower().compile(), name, payload=True
        )
    note = linking.describe(compiled, getattr(run, "demands", ()), linking.temp_bytes(compiled))
    if made is None or not made.payload or note is None:
        raise ShakedownError("the PJRT client gives no bytes of this executable")
    return Linkable(made.payload, note, made.digest)


def find_segment(key: Key | None, name: str, signature: Sequence[Aval]) -> linking.Linked | None:
    """The segment of `key` from the cache, as :func:`link_segment` gives it."""
    found = None if key is None else linking.look_up(key, name)
    return None if found is None else _run_once(found, signature)


def link_segment(made: Linkable, name: str, signature: Sequence[Aval], key: Key | None) -> linking.Linked:
    """What :func:`compiled_segment` made, as a callable on ``jax.Array``s; kept for :func:`find_segment`.

    The callable raises TypeError for inputs of another signature.

    Raises:
        Unusable: the bytes are no executable.
    """
    found = linking.link(made.payload, made.note, name)
    linking.keep(key, name, made.note, made.digest)
    return _run_once(found, signature)


def _run_once(found: linking.Linked, signature: Sequence[Aval]) -> linking.Linked:
    """`found`, called once on zeros, because the first call links its code, which takes far longer than a step may wait.

    Large inputs are not made up for that: what computes on them takes long enough to hide it.
    """
    if sum(math.prod(shape) * dtype.itemsize for shape, dtype, _ in signature) <= _LINKED_BY_A_CALL:
        blanks = [np.zeros(shape, dtype) for shape, dtype, _ in signature]
        given = [blank.item() if weak else jnp.asarray(blank) for blank, (_, _, weak) in zip(blanks, signature)]
        found.compiled(*given)
    return found


def host_function(run: Callable[..., Sequence[Array]]) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """`run`, a function on arrays, for tensors of the CPU: compiled by XLA for the CPU, whatever the device is."""
    jitted = jax.jit(run, compiler_options=_OPTIONS["graph"])

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        arrays = [_array_of(t.detach().resolve_conj().resolve_neg().contiguous()) for t in tensors]
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            made = [np.asarray(a) for a in jitted(*arrays)]
        found = [torch.empty(a.shape, dtype=to_torch(a.dtype)) for a in made]
        for tensor, array in zip(found, made):
            ctypes.memmove(tensor.data_ptr(), np.ascontiguousarray(array).ctypes.data, array.nbytes)
        return found

    return call


# --- counting -----------------------------------------------------------------------------------------------------------


def costs(run: Callable[..., Any], signature: Sequence[Aval]) -> dict[str, float | int | None]:
    """What XLA knows of the executable that `run` uses for `signature`, of one call: ``flops``, ``transcendentals``,
    ``bytes_accessed``, and ``argument_bytes``, ``output_bytes``, ``temp_bytes``. None: it does not say.

    `run` comes from :func:`compile` or :func:`link_segment`. What has been compiled already is not compiled again.
    """
    runner: linking.Runner | None = getattr(run, "runner", None)
    compiled: Any = getattr(run, "compiled", run)
    if runner is not None:
        compiled = runner.compiled(tuple(signature), _shaped(signature))
    counted, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    known = bool(counted)
    return {
        # A figure that is 0 is left out of the analysis; an analysis that is empty says nothing.
        "flops": counted.get("flops", 0.0) if known else None,
        "transcendentals": counted.get("transcendentals", 0.0) if known else None,
        "bytes_accessed": counted.get("bytes accessed", 0.0) if known else None,
        "argument_bytes": getattr(memory, "argument_size_in_bytes", None),
        "output_bytes": getattr(memory, "output_size_in_bytes", None),
        "temp_bytes": getattr(memory, "temp_size_in_bytes", None),
    }


def prepare(run: Any, inputs: Sequence[Any]) -> int:
    """Compile or link `run`, from :func:`compile`, for `inputs`, and do not run it.

    Returns the bytes that it needs besides arguments and results, by XLA's plan of it: of several executables the most; 0 where
    the client does not say.
    """
    runner: linking.Runner | None = getattr(run, "runner", None)
    return 0 if runner is None or compile_only.on else runner.prepare(inputs)


def traced(run: Any, signature: Sequence[Aval]) -> Any:
    """The jaxpr that `run`, from :func:`compile`, is for `signature`."""
    return run.runner.jitted.trace(*_shaped(signature)).jaxpr


def results_of(run: Any, signature: Sequence[Aval]) -> list[Aval]:
    """What `run`, from :func:`compile`, returns for `signature`."""
    closed = traced(run, signature)
    return [(tuple(a.shape), np.dtype(a.dtype), bool(a.weak_type)) for a in closed.out_avals]


# --- moving -------------------------------------------------------------------------------------------------------------


def _array_of(host: torch.Tensor) -> np.ndarray:
    """The elements of a contiguous CPU tensor as a numpy array of its own memory, of the dtype that JAX knows them by.

    Not by way of ``numpy()``, which forbids ever after that the tensor's storage be resized.
    """
    dtype = in_buffers(host.dtype)
    array = np.empty(host.shape, CARRIER[host.dtype.itemsize][0])
    ctypes.memmove(array.ctypes.data, host.data_ptr(), array.nbytes)
    return array.view(dtype)


def _record_transfer(direction: str, start_ns: int, nbytes: int) -> None:
    events.record(
        "transfer", direction, start_ns=start_ns, duration_ns=time.perf_counter_ns() - start_ns, nbytes=nbytes
    )


def upload(host: torch.Tensor) -> Array:
    """A device buffer with the elements of the one-dimensional, contiguous CPU tensor `host`; never shares its memory."""
    check_process()
    start_ns = time.perf_counter_ns()
    array = _array_of(host.resolve_conj().resolve_neg())
    made = compile_only.of_host(array) if compile_only.on else jnp.asarray(array)
    _record_transfer("host-to-device", start_ns, array.nbytes)
    return made


def download(buffer: Array, dtype: torch.dtype) -> torch.Tensor:
    """A one-dimensional CPU tensor of `dtype` with the bytes of `buffer`; waits for its value and owns its memory.

    Where the buffer's length in bytes is no multiple of the item size, the surplus bytes are dropped.
    """
    check_process()
    start_ns = time.perf_counter_ns()
    array = compile_only.read(buffer) if compile_only.on else np.asarray(buffer)
    raw = torch.empty(array.nbytes, dtype=torch.uint8)  # PyTorch's own memory, which it can resize
    ctypes.memmove(raw.data_ptr(), array.ctypes.data, array.nbytes)
    host = raw[: raw.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    _record_transfer("device-to-host", start_ns, array.nbytes)
    return host


_zeros: dict[tuple[int, torch.dtype], Array] = {}


def zeros(length: int, dtype: torch.dtype) -> Array:
    """A buffer of zeros. Small ones are shared: a buffer is a value, and nobody writes into one."""
    found = _zeros.get((length, dtype))
    if found is None:
        check_process()
        item = in_buffers(dtype)
        items = length * (dtype.itemsize // item.itemsize)
        found = compile_only.of_zeros(items, item) if compile_only.on else jnp.asarray(np.zeros(items, item))
        if found.nbytes <= _SHARED_ZEROS_LIMIT:
            _zeros[length, dtype] = found
    return found


_NUMBER_LIMIT = 4096
_OFTEN = 2  # times
_numbers: dict[type, dict[Any, Array | int]] = {bool: {}, int: {}, float: {}, complex: {}}


def number(value: Any) -> Any:
    """A Python number as a program takes it: a 0-d, weakly typed device value, or the number itself while it is rare.

    A program converts a number as it is called, which takes some microseconds each time; making a value of it takes a
    few times as long, once. So a number that keeps coming is made a value. (0.0 and -0.0 are equal as keys.)
    """
    if compile_only.on:
        return value
    known = _numbers[type(value)]
    found = known.get(value, 0)
    if type(found) is not int:
        return found
    if value == 0 and type(value) is float:
        return value
    if found >= _OFTEN:
        made = known[value] = jnp.asarray(value)
        return made
    if len(known) >= _NUMBER_LIMIT:
        known.clear()
    known[value] = found + 1
    return value


def private_copy(buffer: Array) -> Array:
    """A buffer of the same elements that nobody else refers to, so that a program may consume it."""
    if compile_only.on:
        return compile_only.Hollow(buffer.shape, buffer.dtype)
    return jnp.array(buffer, copy=True)


def reinterpreted(buffer: Array, dtype: torch.dtype) -> Array:
    """The bytes of `buffer` as elements of `dtype`, by way of the host."""
    if compile_only.on:
        return compile_only.of_host(compile_only.read(buffer).view(in_buffers(dtype)))
    return jnp.asarray(np.array(buffer).view(in_buffers(dtype)))


def host_scalar(tensor: torch.Tensor) -> Array:
    """A 0-d CPU tensor as a 0-d device value of the same dtype (not weakly typed: it takes part in promotion)."""
    array = _array_of(tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor)
    return compile_only.of_host(array) if compile_only.on else jnp.asarray(array)


def read_int(scalar: Array) -> int:
    """The value of an int32[]; waits for it. Through the buffer protocol where the memory is the host's: 1 us, not 10."""
    if compile_only.on:
        return 0  # whether a demand is met depends on data: it counts as met
    try:
        return int.from_bytes(memoryview(scalar), sys.byteorder)
    except (BufferError, TypeError):
        return int(scalar)


# --- waiting ------------------------------------------------------------------------------------------------------------


def synchronize(reason: str) -> None:
    """Return when everything dispatched so far has finished. `reason` is kept in the event stream."""
    check_process()
    if compile_only.on:
        return
    start_ns = time.perf_counter_ns()
    if asynchronous:
        jax.block_until_ready(_last())
    else:
        jax.effects_barrier()  # every call has returned with its program done
    events.record("synchronize", reason, start_ns=start_ns, duration_ns=time.perf_counter_ns() - start_ns)
    if asynchronous:
        _raise_first_failure()


def _last() -> Array:
    """A value that is there once everything dispatched so far has finished: one device executes in order."""
    return jax.device_put(np.zeros((), np.int32), _device) + 0


def token() -> Array | None:
    """What :func:`finished` and :func:`wait_for` ask of what is dispatched so far; None where all of it has finished."""
    return _last() if asynchronous and not (_blocking or compile_only.on) else None


def finished(token: Array) -> bool:
    return token.is_ready()


def wait_for(token: Array) -> None:
    jax.block_until_ready(token)


_known_to_fail: dict[int, weakref.ref[Array]] = {}  # arrays by id(), which have no hash


def _raise_first_failure() -> None:
    """Raise for a computation that failed, once; others are dropped. Whoever reads a result of theirs gets the error again.

    What the client has in flight is asked of the arrays that live; of failures whose results nobody has, only effects tell.
    """
    first: Exception | None = None
    try:
        jax.effects_barrier()
    except Exception as error:
        first = error
        from jax._src import (
            dispatch,  # it would be raised by every barrier from now on: there is no public way to drop it
        )

        dispatch.runtime_tokens.clear()
    for known in [n for n, array in _known_to_fail.items() if array() is None]:
        del _known_to_fail[known]
    for array in jax.live_arrays():
        if array.is_deleted() or id(array) in _known_to_fail:
            continue
        try:
            array.block_until_ready()
        except Exception as error:
            _known_to_fail[id(array)] = weakref.ref(array)
            first = first or error
    if first is not None:
        raise ShakedownError(
            f"EXECUTION FAILED: {said_by(first)}\nIt was found when the device was synchronised; with "
            f"{config.LAUNCH_BLOCKING.name}=1 the call of the operator itself raises."
        ) from first


# --- memory -------------------------------------------------------------------------------------------------------------


def live_bytes() -> int:
    """Bytes of the buffers that the client holds on the device, other JAX code's in this process included."""
    held: dict[int, int] = {}
    for array in jax.live_arrays():
        if not array.is_deleted():
            for shard in array.addressable_shards:
                if shard.device == _device:
                    held[shard.data.unsafe_buffer_pointer()] = shard.data.nbytes  # two arrays may be one buffer
    return sum(held.values())
