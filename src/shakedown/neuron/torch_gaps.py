"""Patches of torch, here and (while precompile is on) in :mod:`.torch_precompile`: gaps of a device without C++, with reasons.

Nothing registers a C++ allocator for the device, so whatever allocates a storage natively, or follows its address, would
crash the interpreter. Those entry points are replaced for storages of this device; for all others the original runs.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .autoload import DEVICE_NAME

_originals: dict[str, Any] = {}


def is_ours(device: Any) -> bool:
    if isinstance(device, str):
        return device.partition(":")[0] == DEVICE_NAME
    return isinstance(device, torch.device) and device.type == DEVICE_NAME


def _flat(storage: torch.UntypedStorage) -> torch.Tensor:
    """The bytes of a device storage as a uint8 tensor on it."""
    from .transfer import empty, set_storage

    return set_storage(empty((0,), (1,), torch.uint8), storage, 0, (storage.nbytes(),), (1,))


def _new_storage(nbytes: int) -> torch.UntypedStorage:
    from .device import _start
    from .transfer import empty

    _start()
    return empty((nbytes,), (1,), torch.uint8).untyped_storage()


def _for_our_storages(name: str, replacement: Callable[..., Any]) -> None:
    """Make ``storage.<name>`` call `replacement` for storages of this device."""
    original = getattr(torch.UntypedStorage, name)
    _originals[f"UntypedStorage.{name}"] = original

    @functools.wraps(original)
    def method(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        return replacement(self, *args, **kwargs) if is_ours(self.device) else original(self, *args, **kwargs)

    setattr(torch.UntypedStorage, name, method)


def _refuse(what: str, instead: str) -> Callable[..., Any]:
    def raise_error(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{what} is not available for storages on device {DEVICE_NAME!r}: {instead}")

    return raise_error


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """While open, ``owner.<name>`` is what `make` gives for the original: for limits that a support profile imitates."""
    original = vars(owner)[name]
    function = original.__func__ if isinstance(original, staticmethod) else original
    setattr(owner, name, functools.wraps(function)(make(function)))
    try:
        yield
    finally:
        setattr(owner, name, original)


def close() -> None:
    """Apply every patch, once per process."""
    if _originals:
        return
    _close_storages()
    _close_constructor()
    _close_module_apply()
    _close_printing()
    _close_forward_mode()
    when_loaded("torch.nn.attention.flex_attention", _admit_to_flex_attention)
    _close_cache_artefacts()
    from . import torch_gaps_memory, torch_gaps_profiler, torch_gaps_random, torch_gaps_streams  # one uses this module

    torch_gaps_memory.close()
    torch_gaps_profiler.close()
    torch_gaps_random.close()
    torch_gaps_streams.close()


def _close_storages() -> None:
    """Methods that allocate through the missing allocator, or dereference the address."""
    move = "call .cpu() on it first"
    _for_our_storages("clone", lambda s: _flat(s).clone().untyped_storage())
    _for_our_storages("cpu", lambda s: _flat(s).cpu().untyped_storage())
    _for_our_storages("new", lambda s, *args: _new_storage(0))
    # The size of a storage is fixed in C++ when it is made without an allocator; `Tensor.resize_` moves to a larger one.
    _for_our_storages("resize_", _refuse("resize_()", "resize a tensor instead, which gives it a larger storage"))
    for name in ("_byteswap", "byteswap"):
        _for_our_storages(name, _refuse("byteswap()", move))
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):  # what queues and arguments of other processes go through
        _for_our_storages(name, _refuse("memory that processes share", "send tensor.cpu() to another process"))
    # What `pickle` and the older file format go through (`torch.save(..., _use_new_zipfile_serialization=False)`).
    _for_our_storages("_write_file", _write_to_file)
    _for_our_storages("_set_from_file", _read_from_file)


def _write_to_file(storage: torch.UntypedStorage, file: Any, is_real: bool, save_size: bool, item: int) -> None:
    """As PyTorch's, by way of the host. (PyTorch's own reads arguments that are not there.)"""
    _flat(storage).cpu().untyped_storage()._write_file(file, is_real, save_size, item)


def _read_from_file(
    storage: torch.UntypedStorage, file: Any, offset: Any, is_real: bool, item: int
) -> torch.UntypedStorage:
    """Fill `storage` from a file, by way of the host: one of another size than the file says is an error, and left alone."""
    host = torch.UntypedStorage(storage.nbytes())
    host._set_from_file(file, offset, is_real, item)
    _flat(storage).copy_(torch.empty(0, dtype=torch.uint8).set_(host))
    return storage


def _close_constructor() -> None:
    """``torch.UntypedStorage(n, device="neuron")`` allocates natively."""
    storage = torch.UntypedStorage
    original = storage.__new__
    _originals["UntypedStorage.__new__"] = original

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(kwargs.get("device")):
            return original(cls, *args, **kwargs)
        rest = {k: v for k, v in kwargs.items() if k not in ("device", "allocator")}
        size = args[0] if args else rest.pop("size", 0)
        if rest or len(args) > 1:
            raise TypeError(f"UntypedStorage(size, *, device): unexpected arguments {args[1:]!r} {rest!r}")
        from .transfer import check_device

        check_device(torch.device(kwargs["device"]))
        if isinstance(size, int):
            return _new_storage(size)
        return original(cls, size).to(device=torch.device(DEVICE_NAME))

    storage.__new__ = new


def _close_module_apply() -> None:
    """``Module.to`` makes new Parameters on this device, whose tensors count as incompatible with CPU ones for a shallow copy.

    That would untie tied weights and strand an optimizer built before the move, so conversions that involve this device swap
    the tensors inside the Parameters instead. Scripted modules hold theirs in C++, where they cannot be swapped. Parameters
    of lazy modules that have no sizes yet cannot be wrapped anew, which swapping does, and are moved one by one.
    """
    original = torch.nn.Module._apply
    _originals["Module._apply"] = original
    future = torch.__future__

    def involves_us(module: torch.nn.Module, fn: Callable[..., Any]) -> bool:
        if any(is_ours(p.device) for p in (*module.parameters(), *module.buffers())):
            return True
        try:
            return is_ours(fn(torch.empty(0, device="cpu")).device)
        except Exception:  # `fn` is the caller's: whatever it raises, it raises again on the real parameters
            return False

    @functools.wraps(original)
    def apply(self: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> torch.nn.Module:
        if future.get_swap_module_params_on_conversion() or isinstance(self, torch.jit.ScriptModule):
            return original(self, fn, recurse)
        if not involves_us(self, fn):
            return original(self, fn, recurse)
        unsized = [
            (owner, name, p)
            for owner in (self.modules() if recurse else [self])
            for name, p in owner._parameters.items()
            if p is not None and torch.nn.parameter.is_lazy(p)
        ]
        for owner, name, _ in unsized:
            owner._parameters[name] = None
        future.set_swap_module_params_on_conversion(True)
        try:
            original(self, fn, recurse)
        finally:
            future.set_swap_module_params_on_conversion(False)
            for owner, name, p in unsized:
                owner._parameters[name] = p
        for p in {id(p): p for _, _, p in unsized}.values():
            with torch.no_grad():
                moved = fn(p)
            if moved is not p:
                kind, state = type(p), dict(p.__dict__)
                with torch._C.DisableTorchFunctionSubclass():
                    torch.utils.swap_tensors(p, moved.requires_grad_(p.requires_grad))
                p.__class__ = kind
                p.__dict__.update(state)
        return self

    torch.nn.Module._apply = apply


def _close_printing() -> None:
    """Printing picks its number format with a dozen small operators; on the host they need no compilation."""
    original = torch._tensor_str._tensor_str
    _originals["_tensor_str"] = original

    @functools.wraps(original)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return original(self.detach().cpu() if is_ours(self.device) else self, indent)

    torch._tensor_str._tensor_str = tensor_str


_WITHOUT_FORWARD_FORMULA = ("linear",)


def _close_forward_mode() -> None:
    """Operators that are one kernel here, but several on the CPU, have no forward-mode formula of their own.

    While a forward-mode level is open they are taken apart above autograd, which differentiates the parts. A kernel that
    asked on every call would cost every call.
    """
    forward = torch.autograd.forward_ad
    enter, leave = forward.enter_dual_level, forward.exit_dual_level
    _originals["enter_dual_level"], _originals["exit_dual_level"] = enter, leave
    opened: list[torch.library.Library] = []

    def open_level() -> int:
        level = enter()
        if not opened:
            library = torch.library.Library("aten", "IMPL")
            for name in _WITHOUT_FORWARD_FORMULA:
                op = getattr(torch.ops.aten, name).default
                library.impl(op, op.decompose, "AutogradPrivateUse1", allow_override=True)
            opened.append(library)
        return level

    def close_level(*, level: int | None = None) -> None:
        leave(level=level)
        if forward._current_level < 0 and opened:
            opened.pop()._destroy()

    forward.enter_dual_level, forward.exit_dual_level = open_level, close_level


def _close_cache_artefacts() -> None:
    """``torch.compiler.save_cache_artifacts`` asks no backend what it would add, and ``load_cache_artifacts`` knows only the
    sorts of artefacts that PyTorch names in its own code: a process that has not used the device yet could load nothing."""
    from torch.compiler._cache import CacheArtifactManager as Manager

    serialize, register = Manager.serialize, Manager._ensure_cache_artifacts_registered
    _originals["CacheArtifactManager.serialize"] = serialize

    @functools.wraps(serialize)
    def collect_and_serialize() -> Any:
        from .cache import artefacts

        artefacts.collect()
        return serialize()

    @functools.wraps(register)
    def register_all() -> None:
        from .cache import artefacts

        artefacts.prepare()
        register()

    for name, function in (("serialize", collect_and_serialize), ("_ensure_cache_artifacts_registered", register_all)):
        setattr(Manager, name, staticmethod(function))


def when_loaded(name: str, patch: Callable[[Any], None]) -> None:
    """Call `patch` with the module `name` once it is there: ``import torch`` need not import it for that."""
    if name in sys.modules:
        patch(sys.modules[name])
        return

    class Watcher(importlib.abc.MetaPathFinder):
        asking = False

        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            if fullname != name or self.asking:
                return None
            self.asking = True  # the other finders, while this one is passed by
            try:
                spec = importlib.util.find_spec(name)
            finally:
                self.asking = False
            loader: Any = None if spec is None else spec.loader
            if loader is not None:
                run = loader.exec_module

                def exec_module(module: Any) -> None:
                    run(module)
                    if self in sys.meta_path:
                        sys.meta_path.remove(self)
                        patch(module)

                loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Watcher())


def compile_with_us_by_default() -> None:
    """Make the device's backend the one that ``torch.compile`` takes where none is named; Dynamo is not imported for it."""
    when_loaded("torch._dynamo.backends.registry", lambda module: module.set_default_backend(DEVICE_NAME))


def compile_with_us_what_is_ours() -> None:
    """Hand graphs with tensors of the device, which Inductor does not know, to the device's backend instead.

    ``torch.compile`` without a backend means Inductor whatever the tensors are, and which they are is known when a graph is
    there. A graph of other tensors goes on to Inductor, as do all where a PyTorch has no such class.
    """
    wrapper: Any = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is None:
        return
    original = wrapper.__call__

    @functools.wraps(original)
    def compile_graph(self: Any, model_: Any, inputs_: Any, **kwargs: Any) -> Any:
        if not any(is_ours(getattr(value, "device", None)) for value in _values_of(model_, inputs_)):
            return original(self, model_, inputs_, **kwargs)
        from .modes.compile import neuron

        _attribute_to_us()
        return neuron(model_, inputs_, options=dict(self.config) or None)

    wrapper.__call__ = compile_graph


def keep_breaks_for_us() -> None:
    """Keep what Dynamo says of a function from now on, until it is known whose tensors its first graph has.

    Whoever names no backend means Inductor as far as Dynamo knows, and the first graph of the process that is ours brings the
    report of graph breaks with it, when that of the same function is over. Before the device is used, Dynamo is as it was.
    """
    from .. import dynamo

    class Waiting(dynamo.Listener):
        def wants(self, backend: str) -> bool:
            return False

    def listen(module: Any) -> None:
        dynamo.observer.listen(Waiting())

    when_loaded("torch._dynamo", listen)


def _values_of(module: torch.fx.GraphModule, inputs: Iterable[Any]) -> Iterator[Any]:
    """What goes into a graph that Dynamo captured, and what its operators give (some have no inputs)."""
    yield from inputs
    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        yield from value if isinstance(value, (list, tuple)) else (value,)


def _attribute_to_us() -> None:
    """Let Dynamo call the backend of the function that it captures by our name from now on, for reports and for floats."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    from ..dynamo import observer

    observer.compiled_by(DEVICE_NAME)
    try:
        InstructionTranslator.current_tx().output.compiler_fn._compiler_name = DEVICE_NAME
    except AttributeError:  # outside of a capture, or another PyTorch: reports lack the function's later breaks
        return


def _admit_to_flex_attention(module: Any) -> None:
    """``flex_attention`` refuses devices that are not in a set within one of its functions; the device is added to that set.

    The function's code stays PyTorch's, so that Dynamo traces it. Where the set is not found, the device is refused as before.
    """
    check = getattr(module, "_validate_device", None)
    code = getattr(check, "__code__", None)
    if check is None or code is None:
        return
    admitted = tuple(c | {DEVICE_NAME} if isinstance(c, frozenset) and "cpu" in c else c for c in code.co_consts)
    _originals["_validate_device"] = code
    check.__code__ = code.replace(co_consts=admitted)


def let_floats_vary() -> None:
    """A float argument of a function compiled for the device becomes an input of its graph once it has changed.

    Dynamo ties this to its automatic dynamic shapes, which are off for the device: with them, a size that has changed once
    would become symbolic. The switch is on while it decides about a float, for graphs of the device alone. Where a PyTorch
    has no such place, floats stay constants, and a graph is compiled for each value.
    """
    from torch._dynamo import config
    from torch._dynamo.variables import builder

    original = getattr(builder, "process_automatic_dynamic", None)
    if original is None or "process_automatic_dynamic" in _originals:
        return
    _originals["process_automatic_dynamic"] = original

    @functools.wraps(original)
    def process(tx: Any, name: str, entry: Any, **kwargs: Any) -> Any:
        if type(entry.scalar) is float and getattr(tx.output.compiler_fn, "_compiler_name", None) == DEVICE_NAME:
            with config.patch(automatic_dynamic_shapes=True):
                return original(tx, name, entry, **kwargs)
        return original(tx, name, entry, **kwargs)

    builder.process_automatic_dynamic = process
