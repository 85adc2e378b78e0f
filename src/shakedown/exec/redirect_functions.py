"""What names CUDA in PyTorch's Python functions before a tensor is made: autocast, scalers, checkpoints, random state, flags."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from shakedown.neuron.torch_gaps import when_loaded

from . import places
from .redirect import DEVICE, _index, is_cuda, ours
from .redirect_module import refuse


def begin() -> None:
    """Replace these functions and constructors."""
    for owner, name, parameter, call, rule in (
        (torch.amp.autocast_mode.autocast, "__init__", "device_type", "torch.autocast", "autocast-cuda"),
        (torch.amp.grad_scaler.GradScaler, "__init__", "device", "torch.amp.GradScaler", "grad-scaler"),
        (torch.random, "fork_rng", "device_type", "torch.random.fork_rng", "fork-rng"),
        (torch.amp, "custom_fwd", "device_type", "torch.amp.custom_fwd", "autocast-cuda"),
        (torch.amp, "custom_bwd", "device_type", "torch.amp.custom_bwd", "autocast-cuda"),
        (torch.amp, "is_autocast_available", "device_type", "torch.amp.is_autocast_available", "autocast-cuda"),
    ):
        _converting(owner, name, parameter, call, rule)
    for name in ("custom_fwd", "custom_bwd"):
        _bound_to_us(name)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        _autocast_state(name)
    _module_cuda()
    _generator()
    _flags()
    _process_groups()
    _data_parallel()
    _profiler()
    when_loaded("torch._dynamo.variables.tensor", _is_cuda_in_captured_code)
    torch.serialization.register_package(15, lambda storage: None, _restore)  # before CUDA's own, whose place is 20


def _converting(owner: Any, name: str, parameter: str, call: str, rule: str) -> None:
    """`owner.name` with its argument `parameter` moved from CUDA to the device, also where CUDA is only the default."""
    original = getattr(owner, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # says what is wrong
        bound.apply_defaults()
        if is_cuda(bound.arguments[parameter]):
            bound.arguments[parameter] = DEVICE
            if not torch.compiler.is_compiling():
                places.note(f"{call}('cuda')", DEVICE, "redirected", rule)
        return original(*bound.args, **bound.kwargs)

    setattr(owner, name, function)
    for module in (torch.amp.autocast_mode, torch):
        if vars(module).get(name) is original:
            setattr(module, name, function)


def _bound_to_us(name: str) -> None:
    """``torch.cuda.amp.custom_fwd``, which is for CUDA by name."""
    general = getattr(torch.amp, name)

    def function(*args: Any, **kwargs: Any) -> Any:
        places.note(f"torch.cuda.amp.{name}", DEVICE, "redirected", "cuda-amp")
        return general(*args, device_type=DEVICE, **kwargs)

    setattr(torch.cuda.amp, name, function)


def _autocast_state(name: str) -> None:
    """``torch.is_autocast_enabled()`` means CUDA's where no device is named."""
    original = getattr(torch, name)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if places.asked_by_torch():
            return original(*args, **kwargs)
        first = args[0] if args else kwargs.get("device_type")
        if first is None or isinstance(first, bool):
            args, moved = (DEVICE, *args), True
        else:
            moved = is_cuda(first)
            args, kwargs = tuple(map(ours, args)), {k: ours(v) for k, v in kwargs.items()}
        if moved:
            places.note(f"torch.{name}()", DEVICE, "redirected", "autocast-cuda")
        return original(*args, **kwargs)

    setattr(torch, name, function)


def _module_cuda() -> None:
    """One note for a module, and not one for each of its tensors."""

    def cuda(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        where = _index(device)
        if not torch.compiler.is_compiling():
            places.note(".cuda()" if device is None else f".cuda({device!s})", where, "redirected", "cuda-method")
        return self._apply(lambda tensor: tensor.to(where))

    torch.nn.Module.cuda = cuda


def _generator() -> None:
    """``torch.Generator(device="cuda")``: the constructor is C++'s and asks no mode, but its metaclass is Python's."""
    kind = torch._C.Generator
    metaclass: Any = type(kind)
    if metaclass is type:
        return
    original = metaclass.__call__

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is kind and any(is_cuda(value) for value in (*args, *kwargs.values())):
            places.note("torch.Generator('cuda')", DEVICE, "redirected", "device-generator")
            args, kwargs = tuple(map(ours, args)), {k: ours(v) for k, v in kwargs.items()}
        return original(cls, *args, **kwargs)

    metaclass.__call__ = call


def _restore(storage: Any, location: str) -> Any:
    """Storages of a checkpoint that lay on CUDA, or are to be loaded there."""
    if not is_cuda(location):
        return None
    places.note(f"torch.load: storages of {location!r}", ours(location), rule="cuda-device")
    return torch.serialization.default_restore_location(storage, ours(location))


def _flags() -> None:
    """Settings of CUDA's libraries are kept as they are set, and change nothing."""
    from torch.backends import cuda, cudnn

    for owner, prefix in (
        (type(cudnn), "torch.backends.cudnn"),
        (type(cuda.matmul), "torch.backends.cuda.matmul"),
    ):
        _noting_assignments(owner, prefix)


def _noting_assignments(owner: Any, prefix: str) -> None:
    original: Callable[[Any, str, Any], None] = owner.__setattr__

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if not name.startswith("__") and not places.asked_by_torch():
            places.note(f"{prefix}.{name} = {value!r}", "nothing", "ignored", "cuda-backend-flags")
        original(self, name, value)

    owner.__setattr__ = set_attribute


def _process_groups() -> None:
    """NCCL moves data between GPUs; there is no counterpart behind another name that a script could be given silently."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    original = distributed_c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(backend, str) and "nccl" in backend.lower():
            raise refuse(
                f"torch.distributed.init_process_group({backend!r})", "cuda-api", 'use backend="gloo" with CPU tensors'
            )
        return original(backend, *args, **kwargs)

    for module in (distributed_c10d, torch.distributed):
        module.init_process_group = init_process_group


def _data_parallel() -> None:
    """``DataParallel`` hands batches out with functions of CUDA's. On one device that is moving them there."""
    from torch.nn.parallel import DataParallel

    def scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> tuple[Any, Any]:
        if len(device_ids) != 1:
            raise refuse("torch.nn.DataParallel on several devices", "cuda-api", "this process has one device")

        def moved(value: Any) -> Any:
            return value.to(torch.device(DEVICE, device_ids[0])) if isinstance(value, torch.Tensor) else value

        return (tree_map(moved, inputs),), (tree_map(moved, kwargs),)

    DataParallel.scatter = scatter


def _profiler() -> None:
    """``ProfilerActivity.CUDA`` is the accelerator's side of a trace."""
    from torch.profiler import ProfilerActivity, profiler

    original = profiler._KinetoProfile.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, activities: Any = None, **kwargs: Any) -> None:
        if activities is not None and ProfilerActivity.CUDA in activities:
            places.note("ProfilerActivity.CUDA", "ProfilerActivity.PrivateUse1", rule="cuda-profiling")
            activities = [ProfilerActivity.PrivateUse1 if a == ProfilerActivity.CUDA else a for a in activities]
        original(self, *args, activities=activities, **kwargs)

    profiler._KinetoProfile.__init__ = init


def _is_cuda_in_captured_code(module: Any) -> None:
    """``x.is_cuda`` while Dynamo reads the script's code: what it is told in eager mode.

    Dynamo answers attributes itself, in one method for each. Where there is no such method, captured code gets the truth.
    """
    kind = module.TensorVariable
    original = getattr(kind, "method_attr_is_cuda", None)
    if original is None:
        return

    @functools.wraps(original)
    def method_attr_is_cuda(self: Any, tx: Any) -> Any:
        device = getattr(self, "device", None)
        if device is not None and device.type == DEVICE and places.is_script(tx.f_code.co_filename):
            places.note(".is_cuda", "True", "answered", "cuda-attribute")
            return module.VariableTracker.build(tx, True)
        return original(self, tx)

    kind.method_attr_is_cuda = method_attr_is_cuda
