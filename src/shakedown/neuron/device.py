"""What ``torch.neuron`` offers, and the registration of the device type with PyTorch.

This module is imported by ``import torch``: it must stay light. Everything that computes is reached through
:func:`_start`, which loads JAX and the lowerings on first use.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ..devices import (  # torch.neuron.is_available, ...: beside the device, so that they can be captured
    current_device as current_device,
)
from ..devices import (
    device as device,
)
from ..devices import (
    device_count as device_count,
)
from ..devices import (
    get_amp_supported_dtype as get_amp_supported_dtype,
)
from ..devices import (
    get_device_name as get_device_name,
)
from ..devices import (
    index_of as _index,
)
from ..devices import (
    is_available as is_available,
)
from ..devices import (
    is_bf16_supported as is_bf16_supported,
)
from ..devices import (
    set_device as set_device,
)
from ..devices import (
    synchronize as synchronize,
)
from ..nki import nki_op as nki_op
from ..nki import wrap_nki as wrap_nki
from . import cache as cache  # torch.neuron.cache
from . import config
from . import memory as memory  # torch.neuron.memory
from . import profiling as profiling  # torch.neuron.profiling
from .autoload import DEVICE_NAME
from .inspection import (  # torch.neuron.get_fallback_ops, ...
    clear_op_tracking as clear_op_tracking,
)
from .inspection import (
    compile_report as compile_report,
)
from .inspection import (
    count_programs as count_programs,
)
from .inspection import (
    get_dynamo_metrics as get_dynamo_metrics,
)
from .inspection import (
    get_executed_ops as get_executed_ops,
)
from .inspection import (
    get_fallback_ops as get_fallback_ops,
)
from .inspection import (
    operators_between_graphs as operators_between_graphs,
)
from .inspection import (
    profile as profile,
)
from .inspection import (
    profile_identity as profile_identity,
)
from .inspection import (
    profile_rules as profile_rules,
)
from .inspection import (
    reset_compile_report as reset_compile_report,
)
from .inspection import (
    reset_dynamo_metrics as reset_dynamo_metrics,
)
from .inspection import (
    support_of as support_of,
)
from .inspection import (
    use_profile as use_profile,
)
from .memory import *  # noqa: F403  # torch.neuron.memory_allocated, ...: the names in its __all__
from .modes import adaptive
from .random import (
    default_generators as _default_generators,
)
from .random import (
    get_rng_state as get_rng_state,
)
from .random import (
    get_rng_state_all as get_rng_state_all,
)
from .random import (
    initial_seed as initial_seed,
)
from .random import (
    manual_seed as manual_seed,
)
from .random import (
    manual_seed_all as manual_seed_all,
)
from .random import (
    seed as seed,
)
from .random import (
    seed_all as seed_all,
)
from .random import (
    set_rng_state as set_rng_state,
)
from .random import (
    set_rng_state_all as set_rng_state_all,
)
from .streams import *  # noqa: F403  # torch.neuron.Stream, Event, ...: all that it lists

if TYPE_CHECKING:
    from .device_properties import DeviceProperties

_libraries: list[torch.library.Library] = []  # a registration lives as long as its Library object
_start_lock = threading.RLock()
_started = False
_started_pid = 0
_initialized = False  # activation checkpointing keeps the random state of a device whose module says so


def _start() -> ModuleType:
    """Load the runtime and the lowerings once, and register them; returns the dispatch module."""
    global _started, _started_pid, _initialized
    with _start_lock:
        from . import dispatch, install

        if not _started:
            install.install()
            _open_doors()
            _started, _started_pid, _initialized = True, os.getpid(), True
    return dispatch


def _door(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Boxed kernel of every operator that has no kernel of its own on this device."""
    return _start().call(op, args, kwargs)


def sparse_door(key: str) -> Callable[..., Any]:
    """Boxed kernel of a sparse dispatch key: the first sparse tensor of the process brings the others."""

    def door(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        _start()
        from . import sparse

        return sparse.call(key, op, args, kwargs)

    return door


def _nested_door(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    _start()
    from . import nested

    return nested.call(op, args, kwargs)


# Registering a boxed kernel makes C++ go through all operators, some 3 ms on each import of torch. So those of tensors that are
# not plain come when the device starts, and before that doors of these operators alone: whatever else reaches a tensor
# that is not plain has made a plain one first. (By dispatch key: what takes the call, names of ATen.)
_DOORS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "SparsePrivateUse1": (
        sparse_door("SparsePrivateUse1"),
        ("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"),
    ),
    "SparseCsrPrivateUse1": (sparse_door("SparseCsrPrivateUse1"), ()),
    "NestedTensorPrivateUse1": (_nested_door, ("_to_copy",)),
}


def _first_doors() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    for key, (door, names) in _DOORS.items():
        for name in names:
            library.impl(name, functools.partial(door, getattr(torch.ops.aten, name).default), key)
    return library


def _open_doors() -> None:
    library = torch.library.Library("_", "IMPL")
    for key, (door, _) in _DOORS.items():
        library.fallback(door, key)
    _libraries.append(library)


def register() -> None:
    """Name the device, give it its module, and open the door for operators. Called by autoload, once."""
    import sys

    from . import guard, pinned, torch_gaps

    adaptive.note_start()
    module = sys.modules[__name__]
    _setup_privateuseone_for_python_backend(DEVICE_NAME, backend_module=module, device_guard=guard.Guard())
    guard.close()
    for part in (
        adaptive,
        cache,
        memory,
        profiling,
    ):  # `import torch.neuron.memory`: torch.neuron is a file, no package
        sys.modules[f"torch.{DEVICE_NAME}.{part.__name__.rpartition('.')[2]}"] = part
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_door, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _libraries.extend((everything, _first_doors(), pinned.register()))
    torch_gaps.close()
    default = config.DEFAULT_BACKEND()
    if default == DEVICE_NAME:
        torch_gaps.compile_with_us_by_default()
    elif default == "auto":
        torch_gaps.compile_with_us_what_is_ours()


# --- torch.neuron -------------------------------------------------------------------------------------------------------


def is_initialized() -> bool:
    """Whether the runtime runs in this process (it starts on first use)."""
    return _started and _started_pid == os.getpid()


def init() -> None:
    """Start the runtime now instead of on first use.

    Raises:
        RuntimeError: it was running when this process was forked, and cannot run here.
    """
    _start()
    if _is_in_bad_fork():
        from . import runtime

        runtime.check_process()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return _started and _started_pid != os.getpid()


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name and memory of a device. ValueError for a device that is not there, or of another type."""
    index = _index(device)
    from .device_properties import properties_of

    return properties_of(index)


def _sleep(cycles: int) -> None:
    """Does nothing: the device has no kernel that only takes time."""


def device_kind() -> str:
    """The kind of device that programs are compiled for, as PJRT names it: "cpu" where the host stands in."""
    _start()
    from . import executables

    return str(executables.device().device_kind)


def _wait_for_all() -> None:
    if is_initialized():
        from . import runtime

        adaptive.flush("synchronize")
        runtime.synchronize("synchronize")
    elif _is_in_bad_fork():
        init()  # which says why not


def live_bytes() -> int:
    """Bytes of the values on the device now, each array once however many tensors share it.

    Exact at the moment of the call, and free between calls. What a running program holds besides is not in it, nor are
    results of operators that are recorded and have not run: :func:`synchronize` first.
    """
    if not is_initialized():
        return 0
    from . import runtime

    return runtime.live_bytes()


def __getattr__(name: str) -> Any:
    if name == "default_generators":  # as in torch.cuda; made when somebody asks
        return _default_generators()
    raise memory.absent(name)


def compile_step(model: Any, loss_fn: Any, optimizer: Any, **options: Any) -> Any:
    """``step(*batch) -> loss``: forward, backward and the optimizer's update as one program.

    See :func:`shakedown.neuron.modes.compile.step.compile_step` for the options, and docs/compile-step.md.
    """
    _start()
    from .modes.compile.step import compile_step

    return compile_step(model, loss_fn, optimizer, **options)
