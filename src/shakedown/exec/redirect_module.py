"""``torch.cuda`` while CUDA is redirected: what ``torch.neuron`` has under the same name, answers, and refusals.

PyTorch's own code asks ``torch.cuda`` too, to choose kernels that are not here; it is told the truth.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import places
from .redirect import DEVICE, ours

# Functions and classes that torch.neuron has too, by the rule of `shakedown scan` that finds them in a source.
_SAME = {
    "cuda-available": "device_count",
    "cuda-synchronize": """
        synchronize current_device set_device empty_cache memory_allocated max_memory_allocated memory_reserved
        max_memory_reserved memory_stats memory_stats_as_nested_dict memory_summary reset_peak_memory_stats
        reset_accumulated_memory_stats mem_get_info memory_snapshot set_per_process_memory_fraction
        get_per_process_memory_fraction get_device_name current_stream default_stream set_stream
        stream Stream Event StreamContext device init
    """,
    "cuda-seed": "manual_seed manual_seed_all seed seed_all initial_seed get_rng_state set_rng_state",
    "cuda-api": "is_bf16_supported is_initialized",
}
_OTHER_NAME = {
    "memory_cached": "memory_reserved",
    "max_memory_cached": "max_memory_reserved",
    "reset_max_memory_allocated": "reset_peak_memory_stats",
    "reset_max_memory_cached": "reset_peak_memory_stats",
}
# Questions about CUDA itself, which have one true answer here. (0, 0) is below every capability that a script may ask for, so
# that it takes the path that needs none of CUDA's special units.
_ANSWERS: dict[str, Any] = {
    "get_device_capability": (0, 0),
    "get_arch_list": [],
    "get_gencode_flags": "",
    "is_tf32_supported": False,
    "is_current_stream_capturing": False,
    "can_device_access_peer": False,
    "get_sync_debug_mode": 0,
}
_IGNORED = ("ipc_collect", "set_sync_debug_mode", "_sleep")
# Asked by PyTorch's own code as well, which is told the truth.
_TRUTH = ("is_available", "device_count", "is_initialized", "current_device", "is_bf16_supported", "init", "_lazy_init")
_GRAPHS = {
    "CUDAGraph",
    "graph",
    "make_graphed_callables",
    "graph_pool_handle",
}
_MISSING = object()


class NotRedirected(RuntimeError):
    """Something of CUDA that has no counterpart on the device."""


def refuse(what: str, rule: str = "cuda-api", instead: str = "") -> NotRedirected:
    """Note that `what` cannot be redirected; returns the error to raise."""
    places.note(what, "nothing", "not redirected", rule)
    advice = instead or "remove it, or put it behind a test for CUDA"
    return NotRedirected(f"{what} cannot be redirected to the {DEVICE} device by --redirect-cuda: {advice}")


def _device_module() -> Any:
    return getattr(torch, DEVICE)


def begin() -> None:
    """Replace what is public in ``torch.cuda``, and the same functions in its submodules."""
    replacements: dict[str, Any] = {}
    for rule, names in _SAME.items():
        for name in names.split():
            replacements[name] = _same(name, name, rule)
    for name, other in _OTHER_NAME.items():
        replacements[name] = _same(name, other, "cuda-synchronize")
    for name, answer in _ANSWERS.items():
        replacements[name] = _answering(name, answer)
    for name in _IGNORED:
        replacements[name] = _ignoring(f"torch.cuda.{name}")
    replacements["is_available"] = _asked("is_available", "True", lambda: True)
    replacements["get_rng_state_all"] = _noting(
        "get_rng_state_all", lambda: [_device_module().get_rng_state(i) for i in range(_device_module().device_count())]
    )
    replacements["set_rng_state_all"] = _noting("set_rng_state_all", _set_rng_state_all)
    replacements["device_of"] = _device_of
    replacements["get_device_properties"] = _get_device_properties
    replacements["OutOfMemoryError"] = torch.OutOfMemoryError
    replacements["_lazy_init"] = _lazy_init
    for name in set(torch.cuda.__all__) - set(replacements):
        original = getattr(torch.cuda, name, None)
        if isinstance(original, types.ModuleType) or name.endswith(("Tensor", "Storage")) or original is None:
            continue
        if isinstance(original, type) and issubclass(original, BaseException):
            continue
        if callable(original):
            replacements[name] = _refusing(name, original)
    for name, replacement in replacements.items():
        if replacement is not None:
            _put(name, replacement)
    generators = getattr(_device_module(), "default_generators", None)
    if generators is not None:
        torch.cuda.default_generators = generators
    _nvtx()


def _put(name: str, replacement: Any) -> None:
    original = getattr(torch.cuda, name, _MISSING)
    if isinstance(replacement, types.FunctionType) and isinstance(original, types.FunctionType):
        functools.update_wrapper(replacement, original)  # Dynamo looks at __wrapped__ of some
    if name in _TRUTH and callable(original):
        replacement.truth = original
    setattr(torch.cuda, name, replacement)
    for module in vars(torch.cuda).copy().values():
        inside = isinstance(module, types.ModuleType) and module.__name__.startswith("torch.cuda.")
        if inside and original is not _MISSING and vars(module).get(name, _MISSING) is original:
            setattr(module, name, replacement)


def _asked(name: str, became: str, answer: Callable[..., Any], rule: str = "cuda-available") -> Any:
    """A question that PyTorch's own code asks too. Dynamo evaluates it while it captures, as it does CUDA's own."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if places.asked_by_torch():
            return function.truth(*args, **kwargs)  # type: ignore[attr-defined]
        places.note(f"torch.cuda.{name}()", became, "redirected", rule)
        return answer(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see redirect._note_captured
    return function


def _same(name: str, other: str, rule: str) -> Any:
    """``torch.neuron.<other>`` under CUDA's name; None where it has no such name."""
    found = getattr(_device_module(), other, None)
    if found is None:
        original = getattr(torch.cuda, name, None)
        return None if original is None else _refusing(name, original)
    became = f"torch.{DEVICE}.{other}"
    if isinstance(found, type):
        return _subclass(found, f"torch.cuda.{name}", became, rule)

    def answer(*args: Any, **kwargs: Any) -> Any:
        return found(*map(ours, args), **{k: ours(v) for k, v in kwargs.items()})

    if name in _TRUTH:
        return _asked(name, became, answer, rule)

    @functools.wraps(found)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not places.asked_by_torch():
            places.note(f"torch.cuda.{name}()", became, "redirected", rule)
        return answer(*args, **kwargs)

    return function


def _subclass(found: Any, call: str, became: str, rule: str) -> Any:
    """`found`, noting where it is made. ``isinstance`` holds for instances that others have made."""

    class Meta(type(found)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, found)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            places.note(f"{call}()", became, "redirected", rule)
            return found(*map(ours, args), **{k: ours(v) for k, v in kwargs.items()})

    return Meta(found.__name__, (), {"__module__": "torch.cuda", "__doc__": found.__doc__})


def _answering(name: str, value: Any) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        if not places.asked_by_torch():
            places.note(f"torch.cuda.{name}()", repr(value), "answered", "cuda-api")
        return value.copy() if isinstance(value, list) else value

    return function


def _ignoring(call: str, rule: str = "cuda-api", result: Any = None) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        places.note(f"{call}()", "nothing", "ignored", rule)
        return result

    return function


def _noting(name: str, answer: Callable[..., Any]) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        if not places.asked_by_torch():
            places.note(f"torch.cuda.{name}()", f"torch.{DEVICE}", "redirected", "cuda-seed")
        return answer(*args, **kwargs)

    return function


def _set_rng_state_all(new_states: Any) -> None:
    for index, state in enumerate(new_states):
        _device_module().set_rng_state(state, index)


class DeviceProperties:
    """What ``torch.neuron`` says of the device, and the compute capability ``major``.``minor``, which is 0.0."""

    major = minor = 0

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found, name)

    def __repr__(self) -> str:
        return repr(self._found)


def _get_device_properties(device: Any = None) -> DeviceProperties:
    if not places.asked_by_torch():
        became = f"torch.{DEVICE}.get_device_properties"
        places.note("torch.cuda.get_device_properties()", became, "redirected", "cuda-synchronize")
    return DeviceProperties(_device_module().get_device_properties(ours(device)))


def _device_of(obj: Any) -> Any:
    """``with torch.cuda.device_of(tensor)``: nothing to do for a tensor that is elsewhere."""
    places.note("torch.cuda.device_of()", f"torch.{DEVICE}.device", "redirected", "cuda-synchronize")
    return _device_module().device(obj.device) if obj.device.type == DEVICE else contextlib.nullcontext()


def _refusing(name: str, original: Any) -> Any:
    rule = "cuda-graphs" if name in _GRAPHS else "cuda-api"
    instead = f'torch.compile(step, backend="{DEVICE}") is the counterpart' if name in _GRAPHS else ""
    if isinstance(original, type):

        def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
            raise refuse(f"torch.cuda.{name}", rule, instead)

        return type(name, (), {"__new__": make, "__module__": "torch.cuda"})

    def function(*args: Any, **kwargs: Any) -> Any:
        raise refuse(f"torch.cuda.{name}", rule, instead)

    return function


def _lazy_init() -> None:
    """What C++ calls before it makes something for CUDA: a device has come there that nothing of ours has seen."""
    raise refuse(
        "a CUDA device that reached PyTorch from a place that --redirect-cuda does not see",
        "cuda-device",
        "name the device in Python, in a thread that was started by threading.Thread (docs/exec.md)",
    )


def _nvtx() -> None:
    """Marks for NVIDIA's profiler: there is nobody to read them."""
    nvtx = torch.cuda.nvtx
    for name, result in (("range_push", 0), ("range_pop", 0), ("range_start", 0), ("range_end", None), ("mark", None)):
        setattr(nvtx, name, _ignoring(f"torch.cuda.nvtx.{name}", "cuda-profiling", result))

    @contextlib.contextmanager
    def nvtx_range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        places.note("torch.cuda.nvtx.range()", "nothing", "ignored", "cuda-profiling")
        yield

    nvtx.range = nvtx_range
    for name in ("start", "stop", "init"):
        if hasattr(torch.cuda.profiler, name):
            setattr(torch.cuda.profiler, name, _ignoring(f"torch.cuda.profiler.{name}", "cuda-profiling"))
