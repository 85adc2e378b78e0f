"""The precompile cache: a new process runs compiled graphs without tracing them, neither with Dynamo nor with AOTAutograd.

PyTorch has the mechanism (``torch._dynamo.config.caching_precompile``): Dynamo packs guards and bytecode of a frame, AOTAutograd
packs its wrappers around what a backend compiled. This file says what a graph of ours is packed as (:class:`GraphCode`), where
entries lie and which of them may be read (:class:`Frames`), and when they are written. :mod:`...torch_precompile` makes
PyTorch's part hold where it would fail.

An entry is PyTorch's pickle. Nothing is unpickled but files of our own directory that belong to the user, that nobody else may
write, whose checksum is right, and that these versions of everything have written (:mod:`...cache.store`).
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import inspect
import pickle
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from torch._dynamo import package
from torch._dynamo.utils import counters
from torch._inductor.output_code import OutputCode
from torch.compiler._cache import CacheArtifactRecorder
from torch.fx.graph_module import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

import shakedown

from ... import cache, config, events, log, profiles, program_key
from ...cache.key import Key, differences, digest_of
from ...cache.store import CacheWarning, Store
from .precompile_sources import NotHere, check_sources, code_text, with_digests

__all__ = ["NotHere", "check_sources"]  # of the other file, for :mod:`...torch_precompile`

_PREFIX = "neuron-"  # of the ids of our entries, in PyTorch's tables and artefacts
ASIDE = "aside"  # in the place of an id: of another backend's function, when our variable has switched precompile on
_local = threading.local()


@contextmanager
def _on_this_thread(name: str, value: Any) -> Iterator[None]:
    before = getattr(_local, name, None)
    setattr(_local, name, value)
    try:
        yield
    finally:
        setattr(_local, name, before)


# --- what must be the same for an entry to be read -----------------------------------------------------------------------


@functools.cache
def _software() -> dict[str, str]:
    """Versions, and the device half's own source: an entry holds graphs that this source has made."""
    names = [f"{name}={version(name)}" for name in ("torch", "jax", "jaxlib")]
    python = f"{platform.python_implementation()}-{platform.python_version()}"
    return {
        "versions": " ".join([f"shakedown={shakedown.__version__}", *names, f"python={python}"]),
        "sources": program_key.source_digest(),
    }


def surroundings() -> dict[str, str]:
    """The parts of a key that are no property of the function: versions, source, support profile."""
    profile = "none" if profiles.active is None else profiles.active.sha256[:40]
    return {**_software(), "profile": profile}


def store() -> Store | None:
    """The directory of entries, ``precompile/`` under the caches' root; None when caches are off."""
    return cache.current("precompile")


# --- graphs --------------------------------------------------------------------------------------------------------------


class _Numbers:
    """Numbers of graphs. Those of graphs that come from the cache are taken."""

    def __init__(self) -> None:
        self._next = 0
        self._lock = threading.Lock()

    def __next__(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1

    def take(self, name: str) -> None:
        number = name.rsplit("_", 2)[-2]
        with self._lock:
            self._next = max(self._next, int(number) + 1 if number.isdigit() else 0)


numbers = _Numbers()


class GraphCode(OutputCode):
    """A compiled graph as AOTAutograd may pack it: its operators, from which the graph is made again at its first call.

    `make` makes the graph from its module; `arguments` are what it is made with, in a form that can be pickled.
    """

    def __init__(self, make: Callable[..., Any], arguments: dict[str, Any], packed: bytes, graph: Any = None) -> None:
        self._make, self._arguments, self._packed, self._graph = make, arguments, packed, graph
        self._lock = threading.Lock()
        self._boxed_call = True  # AOTAutograd's convention: the list of inputs is the callee's

    def __call__(self, inputs: Any) -> Any:
        arguments = list(inputs)
        inputs.clear()  # the caller gave its references away, so that memory can be freed on the way
        if self._graph is None:
            self._restore()
        return self._graph(arguments)

    def _restore(self) -> None:
        with self._lock, _disable_current_modes():
            if self._graph is None:
                self._graph = self._make(module=_unpacked(self._packed), **self._arguments)

    def prepare_for_serialization(self) -> None:
        """Nothing to do: what is packed is kept apart from the graph."""

    def post_compile(self, *_: Any) -> None:
        """Nothing to do."""

    set_triton_bundle = post_compile

    def __copy__(self) -> GraphCode:
        return self

    def __deepcopy__(self, memo: Any) -> GraphCode:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._packed:
            raise pickle.PicklingError("a graph that cannot be packed")
        return _graph_code, (surroundings(), self._make, self._arguments, self._packed)


def _graph_code(
    made_by: dict[str, str], make: Callable[..., Any], arguments: dict[str, Any], packed: bytes
) -> GraphCode:
    if made_by != surroundings():
        raise NotHere("; ".join(differences(surroundings(), made_by)))
    numbers.take(arguments["name"])
    return GraphCode(make, arguments, packed)


def _packed_module(module: GraphModule) -> bytes:
    """The graph with the metadata of its values; b"" when PyTorch cannot pack it. (No public way keeps the metadata.)"""
    try:
        from torch.fx._graph_pickler import GraphPickler, Options

        return GraphPickler.dumps(module, Options(ops_filter=None))
    except Exception as error:  # whatever it meets: the graph runs, and is traced again by the next process
        events.record("precompile", "not packed", detail=type(error).__name__)
        return b""


def _unpacked(data: bytes) -> GraphModule:
    from torch._subclasses import FakeTensorMode
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    module = GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv()))
    assert isinstance(module, GraphModule)
    module.recompile()
    return module


def packable(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """`compiler`, whose results are :class:`GraphCode`, as AOTAutograd knows that it may pack them."""
    from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler

    return SerializableAOTDispatchCompiler(OutputCode, compiler)


def packing(make: Callable[..., Any], module: GraphModule, arguments: dict[str, Any]) -> GraphCode:
    """`make` called for `module`, in a form that AOTAutograd can pack."""
    packed = _packed_module(module)
    # AOTAutograd strips the metadata from a backward graph once it has packed it, so ours is made of a copy.
    graph = torch.fx.Graph()
    result = graph.graph_copy(module.graph, {}, return_output_node=True)
    assert result is not None
    value, old = result
    output = graph.output(value, getattr(old, "type", None))
    output.meta = dict(old.meta)
    copied = GraphModule(module, graph)
    return GraphCode(make, arguments, packed, make(module=copied, **arguments))


# --- AOTAutograd's own cache, which is left out ----------------------------------------------------------------------------


@contextmanager
def graph_cache(ours: bool) -> Iterator[None]:
    """While open, AOTAutograd does not look into its own cache, if the graph is `ours`.

    Its keys hold a number that each process draws anew while precompile is on, so nothing would be found; and what it
    found, it would unpickle unchecked.
    """
    with _on_this_thread("graphs", ours):
        yield


def keeps_graphs() -> bool:
    """Whether AOTAutograd is at work on a graph of ours, on this thread."""
    return bool(getattr(_local, "graphs", False))


def holds_our_graphs(content: bytes) -> bool:
    """Whether AOTAutograd's pickle is of a graph of ours: it may be written long after, and comes from artefacts too."""
    return __name__.encode() in content


# --- Dynamo's entries: a function with its guards and all its graphs ------------------------------------------------------


@contextmanager
def wrapping(context: Any) -> Iterator[None]:
    """While open, Dynamo wraps a function for `context`, in which backend and options are to be found."""
    with _on_this_thread("context", context):
        yield


def _asked_for() -> str | None:
    """Backend options of the function that is being wrapped; None where another backend was asked for."""
    from torch._dynamo.eval_frame import innermost_backend

    from .backend import neuron

    context = getattr(_local, "context", None)
    backend = innermost_backend(context.callback) if context is not None else None
    asked = getattr(backend, "kwargs", {})
    inner = innermost_backend(getattr(backend, "compiler_fn", backend)) if backend is not None else None
    if inner is not neuron:
        return None
    variables = (config.DISABLE_FALLBACK_EXECUTION(), config.RETAIN_DEVICE(), config.DISABLE_CPU_AUTOCOPY())
    plain = (bool, int, float, str, type(None))  # others have no text that is the same in every process
    settings = sorted((n, v) for n, v in torch._dynamo.config.get_config_copy().items() if isinstance(v, plain))
    flags = (getattr(context, "fullgraph", None), getattr(context, "_dynamic", None))
    return repr((sorted(asked.items(), key=str), variables, settings, flags))


def _id_of(fn: Callable[..., Any]) -> str | None:
    """Of a function to be compiled by us, the same in every process that runs the same code; None: not by us."""
    asked = _asked_for()
    if asked is None:
        return None
    inner = _innermost(fn)
    functions = (inner, inspect.unwrap(inner))
    if not all(
        hasattr(f, "__code__") for f in functions
    ):  # an object that can be called, whose code PyTorch would not find
        return ASIDE
    text = "\0".join(
        [
            package.CompilePackage.source_id_from_fn(fn),
            str(getattr(inner, "__module__", "")),
            asked,
            *(code_text(f.__code__) for f in functions),
        ]
    )
    return _PREFIX + digest_of(text.encode())


def _innermost(fn: Callable[..., Any]) -> Any:
    from torch._dynamo.eval_frame import innermost_fn

    return innermost_fn(fn)


class Frames(package.DiskDynamoCache):
    """Dynamo's store of functions.

    Those compiled for other backends are not packed, or go where PyTorch puts them if its own setting is on.
    """

    def record_package(self, package: Any) -> None:
        global _unsaved
        if getattr(package, "aside", False):
            return
        try:
            super().record_package(package)
            _unsaved = True
        except Exception as error:  # in the middle of compiling the user's function, which must go on
            left_out(_why(error))

    def load(self, fn: Callable[..., Any]) -> Any:
        """The entry of `fn`, or None. What is found is checked against this process before it is unpickled."""
        ident = _id_of(fn)
        _local.found = ident or (ASIDE if _by_our_variable else None)
        if _local.found == ASIDE:
            return None
        if ident is None:
            return super().load(fn)
        name = getattr(_innermost(fn), "__qualname__", "?")
        found = None if (at := store()) is None else at.get(_frame_key(ident, surroundings()).digest)
        try:
            if found is None:
                counters["dynamo_cache"]["dynamo_cache_miss"] += 1
                events.record("precompile", "miss", detail=name)
                if at is not None:
                    _say_if_foreign(at, ident, name)
                return None
            entry = pickle.loads(found[1].partition(b"\n")[2])
            for backend in entry.backends.values():
                _context().record_artifact(backend)
        except Exception as error:
            counters["dynamo_cache"]["dynamo_cache_error"] += 1
            unusable(name, error)
            return None
        counters["dynamo_cache"]["dynamo_cache_hit"] += 1
        events.record("precompile", "hit", detail=name)
        return entry

    def write(self, cache_entry: Any, path: str) -> None:
        if not path.startswith(_PREFIX):
            return super().write(cache_entry, path)
        try:
            slim = dataclasses.replace(cache_entry, dynamo=with_digests(cache_entry.dynamo))
            content = _head(surroundings()) + pickle.dumps(slim)
        except Exception as error:  # whatever cannot be pickled: other functions are still written
            left_out(_why(error))
            return
        CacheArtifactRecorder(package.PrecompileCacheArtifact.type(), path).record(content)
        self._write_to_local_cache(content, path)

    def _write_to_local_cache(self, pickled_content: bytes, path: str) -> None:
        if not path.startswith(_PREFIX):
            return super()._write_to_local_cache(pickled_content, path)
        at = store()
        if at is None:
            return
        try:  # an artefact may come from elsewhere: it is kept as what it is, and is not looked up here
            made_by = _surroundings_in(pickled_content)
        except ValueError:
            _warn_once("artefact", "an artefact is damaged, and is left out")
            return
        if at.put(_frame_key(path, made_by), pickled_content, kind="frame", name=path):
            events.record("precompile", "stored", nbytes=len(pickled_content))


def _context() -> Any:
    from torch._dynamo.precompile_context import PrecompileContext

    return PrecompileContext


def _head(parts: dict[str, str]) -> bytes:
    return "\t".join(f"{name}={value}" for name, value in sorted(parts.items())).encode() + b"\n"


def _surroundings_in(content: bytes) -> dict[str, str]:
    return dict(field.split("=", 1) for field in content.partition(b"\n")[0].decode().split("\t"))


def _frame_key(ident: str, parts: dict[str, str]) -> Key:
    return Key({"function": ident, **parts})


def _say_if_foreign(at: Store, ident: str, name: str) -> None:
    """Warn when the function is there, made by other versions."""
    for entry in at.entries():
        parts = dict(entry.header.parts)
        if parts.pop("function", None) == ident:
            unusable(name, NotHere("; ".join(differences(surroundings(), parts))))
            return


def unusable(name: str, error: Exception) -> None:
    """Note that the entry of the function `name` is not used. One warning in a process."""
    events.record("precompile", "unusable", detail=name)
    _warn_once("frame", f"{name} is traced again: {_why(error)}")


def left_out(reason: str) -> None:
    """Note that something was compiled and cannot be packed; it is traced again by the next process."""
    events.record("precompile", "left out", detail=reason)


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, (NotHere, RuntimeError)) else f"{type(error).__name__}: {error}"


def _warn_once(sort: str, text: str) -> None:
    text = f"precompile cache {config.CACHE_DIR() / 'precompile'}: {text}"
    log.warn_once(text, CacheWarning, key=f"precompile {sort}", stacklevel=3)


def found_id() -> str | None:
    """The id under which the function that is being wrapped was looked for, once."""
    ident, _local.found = getattr(_local, "found", None), None
    return ident


# --- on and off -----------------------------------------------------------------------------------------------------------

_unsaved = False
_installed = False
_by_our_variable = False


def is_on() -> bool:
    """Whether graphs are packed: by our variable, or because PyTorch's own setting is on."""
    return torch._dynamo.config.caching_precompile


def switch_on() -> None:
    """Follow ``SHAKEDOWN_PRECOMPILE``; called with the backend, and whenever a graph is compiled."""
    global _installed, _by_our_variable
    if config.PRECOMPILE() and not is_on():
        _by_our_variable = True
        torch._dynamo.config.caching_precompile = True
    if is_on() and not _installed:
        from ...torch_precompile import install

        _installed = True
        install()
        atexit.register(save)


def save() -> None:
    """Write what this process has traced. Called when it ends; ``torch.compiler.save_cache_artifacts`` does it too."""
    global _unsaved
    if _unsaved and is_on():
        _unsaved = False
        _context().save_to_dynamo_cache()
