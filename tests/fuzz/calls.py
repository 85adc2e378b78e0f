"""One call of the fuzzer: what it does on either side, and how the two are compared."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import torch

from . import database, schemas
from .tensors import Twins, filled, tensors_in, walk

Kind = Literal[
    "same",  # values, sizes, dtypes, arguments afterwards
    "both raised",
    "error differs",  # both raised, another type
    "wider",  # the CPU has no kernel for the dtype
    "value differs",
    "alias differs",  # the result shares memory with an argument on one side only
    "argument differs",
    "stride differs",
    "only the device raised",
    "only the CPU raised",
    "crash",
    "slow",
    "CPU crash",
    "CPU slow",
]
WRONG: tuple[Kind, ...] = ("value differs", "alias differs", "argument differs", "only the CPU raised", "crash")

_TOLERANCE = {
    torch.float32: (1e-3, 1e-4),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (4e-2, 4e-2),
    torch.float16: (1e-2, 1e-2),
    torch.complex64: (1e-3, 1e-3),
    torch.complex128: (1e-7, 1e-7),
}
# Values that no two kernels need agree on: uninitialised memory, signs of singular vectors, the order of equal elements,
# draws, and what is left of a pole.
_ANY_VALUE = re.compile(
    r"empty|svd|eig|qr|lstsq|householder|lu_factor|linalg_lu|ldl|topk|sort|argsort|kthvalue|mode|median|unique|resize"
    r"|pinv|matrix_rank|linalg\.(inv|solve|cond|tensorsolve|tensorinv|det|slogdet|matrix_power)|logdet|det|cholesky|triangular"
    r"|rrelu|dropout|philox|normal|geometric|cauchy|exponential|uniform|bernoulli|multinomial|rand|poisson|_dep_token"
    r"|multi_head_attention_forward|scaled_dot_product|polygamma"
)
_NO_KERNEL = re.compile(
    r"not implemented for|not supported|only supports|unsupported dtype|Expected a? ?float|does not support|not yet"
    r"|Got unsupported|is not implemented|expected .*dtype|must be .*float|Low precision"
    r"|Expected (both )?inputs? to be|INTERNAL ASSERT"
)


@dataclass(frozen=True)
class Outcome:
    """How one call ended. `detail` says what differs; `call` shows the arguments."""

    number: int
    name: str
    kind: Kind
    detail: str = ""
    call: str = ""
    seconds: float = 0.0


@dataclass
class Call:
    """A function and its arguments on the CPU, in one or two versions that differ in numbers and values alone."""

    name: str
    function: Any
    versions: list[tuple[list[Any], dict[str, Any]]] = field(default_factory=list)
    stay: frozenset[int] = frozenset()  # numbers of 0-d tensors that stay on the CPU


def generate(seed: int, number: int, only: str = "") -> Call:
    """Call `number` of the stream `seed`: the same in every process. `only` keeps the names that contain it."""
    attempt = 0
    while True:
        rng = Random(f"{seed}:{number}:{attempt}")
        attempt += 1
        try:
            name, function, args, kwargs = (schemas if rng.random() < 0.6 else database).call(rng)
        except Exception:  # a change that PyTorch refuses, such as an impossible view
            continue
        if only in name:
            break
    made = Call(name, function, [(args, kwargs)])
    if rng.random() < 0.1:
        made.stay = frozenset({rng.randrange(3)})
    if rng.random() < 0.4:
        made.versions.append((_renumbered(rng, args), _renumbered(rng, kwargs)))
    return made


def _renumbered(rng: Random, value: Any) -> Any:
    """`value` with other numbers of the same types, and other values in tensors of integers."""
    if type(value) is float:
        return float(rng.choice(schemas.NUMBERS)) if rng.random() < 0.6 else value
    if isinstance(value, torch.Tensor):
        plain = value.is_contiguous() and not value.is_conj() and not value.is_neg() and value.numel() < 4096
        if plain and value.dtype in (torch.int64, torch.int32) and rng.random() < 0.7:
            high = int(value.max()) + 1 if value.numel() else 1
            return filled(rng, list(value.shape), value.dtype, min(max(high, 1), 2**20))
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_renumbered(rng, v) for v in value)
    if isinstance(value, dict):
        return {k: _renumbered(rng, v) for k, v in value.items()}
    return value


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """What one device made of a call."""

    args: Any
    twins: Twins
    result: Any = None
    error: Exception | None = None
    drew: bool = False


def run(call: Call, version: int, device: str) -> Side:
    """Run one version of the call on copies of its tensors."""
    given = call.versions[version]
    twins = Twins(device, call.stay if device != "cpu" else frozenset())
    args, kwargs = walk(list(given), twins.of)
    # A device among the arguments follows the tensors'.
    args = [torch.device(device) if isinstance(a, torch.device) else a for a in args]
    names = {a.name for a in call.function._schema.arguments} if hasattr(call.function, "_schema") else set()
    if "device" in kwargs or ("device" in names and not tensors_in(args)):
        kwargs["device"] = torch.device(device)
    side = Side((args, kwargs), twins)
    before = _random_states()
    try:
        with torch.no_grad():
            side.result = call.function(*args, **kwargs)
            if device != "cpu":
                torch.neuron.synchronize()
    except Exception as error:
        side.error = error
    side.drew = before != _random_states()
    return side


def _random_states() -> Any:
    from shakedown.neuron import rng

    return rng.state(), torch.initial_seed(), hash(torch.get_rng_state().numpy().tobytes())


# --- comparing --------------------------------------------------------------------------------------------------------


def judge(call: Call, cpu: Side, device: Side) -> tuple[Kind, str]:
    """What kind of agreement or difference there is, and what differs."""
    if cpu.error is not None or device.error is not None:
        kind, detail = _errors(cpu.error, device.error)
        if kind in ("both raised", "error differs") or cpu.error is not None:
            return kind, detail
        return kind, detail
    loose: bool | None = cpu.drew or device.drew or bool(_ANY_VALUE.search(call.name))
    if re.search("upsample|interpolate|grid_sampl", call.name):
        loose = None
    half = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors_in(cpu.args))
    if half and re.search("grid_sampl|soft_margin_loss", call.name):
        loose = True  # the CPU rounds each coordinate, or each step, to the half type
    difference = _difference(device.result, cpu.result, loose, "result")
    if difference:
        return "value differs", difference
    resized = cpu.twins.resized()
    difference = _difference(device.args, cpu.args, loose, "argument")
    if difference:
        return "argument differs", difference
    for key, theirs in cpu.twins.storages.items():
        # Where a tensor was resized, the CPU grew the storage itself and the device gave the tensor another.
        if key in resized or key not in device.twins.storages:
            continue
        difference = _difference(device.twins.storages[key], theirs, loose, "memory of an argument")
        if difference:
            return "argument differs", difference
    shared, ours_shared = _sharing(cpu), _sharing(device)
    if shared != ours_shared and not resized and "unsafe_" not in call.name:
        return "alias differs", f"shares memory with arguments: {ours_shared} on the device, {shared} on the CPU"
    for a, b in zip(tensors_in(device.result), tensors_in(cpu.result)):
        if a.numel() > 1 and a.stride() != b.stride():
            return "stride differs", f"{a.stride()} on the device, {b.stride()} on the CPU, sizes {list(a.shape)}"
    return "same", ""


def _errors(cpu: Exception | None, device: Exception | None) -> tuple[Kind, str]:
    described = f"CPU: {_line(cpu)} | device: {_line(device)}"
    if cpu is None:
        return "only the device raised", described
    if device is None:
        lacks = isinstance(cpu, NotImplementedError) or _NO_KERNEL.search(str(cpu))
        return ("wider" if lacks else "only the CPU raised"), described
    same = isinstance(device, type(cpu)) or isinstance(cpu, type(device)) or _NO_KERNEL.search(str(cpu))
    return ("both raised" if same else "error differs"), described


def _line(error: Exception | None) -> str:
    if error is None:
        return "none"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


def _sharing(side: Side) -> list[list[bool]]:
    given = tensors_in(side.args)
    return [
        [
            r.layout is torch.strided
            and a.layout is torch.strided
            and r.device == a.device
            and r.untyped_storage()._cdata == a.untyped_storage()._cdata
            for a in given
        ]
        for r in tensors_in(side.result)
    ]


def _difference(ours: Any, theirs: Any, loose: bool | None, where: str) -> str:
    """Empty when equal; otherwise what differs first. `loose`: values need not agree; None: bytes only nearly."""
    if isinstance(theirs, torch.Tensor):
        if not isinstance(ours, torch.Tensor):
            return f"{where}: {type(ours).__name__} for a tensor"
        if ours.shape != theirs.shape:
            return f"{where}: sizes {list(ours.shape)} for {list(theirs.shape)}"
        if ours.dtype != theirs.dtype:
            return f"{where}: {ours.dtype} for {theirs.dtype}"
        if ours.layout is not torch.strided or theirs.layout is not torch.strided:
            return "" if ours.layout == theirs.layout else f"{where}: {ours.layout} for {theirs.layout}"
        if loose or theirs.numel() == 0 or theirs.numel() > 1 << 24:
            return ""
        pixels = loose is None
        return _values(ours.cpu().resolve_conj().resolve_neg(), theirs.resolve_conj().resolve_neg(), where, pixels)
    if isinstance(theirs, (list, tuple)):
        if not isinstance(ours, (list, tuple)) or len(ours) != len(theirs):
            return f"{where}: {ours!r:.60} for {theirs!r:.60}"
        return next((d for a, b in zip(ours, theirs) if (d := _difference(a, b, loose, where))), "")
    if isinstance(theirs, dict):
        return next((d for k in theirs if (d := _difference(ours[k], theirs[k], loose, f"{where} {k}"))), "")
    if isinstance(theirs, torch.device) or callable(theirs):
        return ""
    if isinstance(theirs, float) and isinstance(ours, float):
        return _values(torch.tensor(ours), torch.tensor(theirs), where) if not loose else ""
    return "" if loose or ours == theirs else f"{where}: {ours!r:.60} for {theirs!r:.60}"


def _values(ours: torch.Tensor, theirs: torch.Tensor, where: str, loosely: bool = False) -> str:
    if theirs.dtype not in _TOLERANCE:
        equal = torch.equal(ours, theirs)
        if theirs.dtype == torch.uint8 and loosely:  # CPU kernels weigh pixels with 16-bit integers
            equal = bool(((ours.int() - theirs.int()).abs() <= 1).all())
    else:
        rtol, atol = _TOLERANCE[theirs.dtype]
        wide = torch.complex128 if theirs.dtype.is_complex else torch.float64
        equal = torch.allclose(ours.to(wide), theirs.to(wide), rtol, atol, equal_nan=True)
    if equal:
        return ""
    ours, theirs = ours.reshape(-1), theirs.reshape(-1)
    for i in range(len(ours)):
        if not _values_equal(ours[i], theirs[i]):
            return f"{where}: {ours[i].item()} for {theirs[i].item()} at {i} of {len(ours)}"
    return f"{where}: other values"


def _values_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if b.dtype not in _TOLERANCE:
        return bool(a == b)
    rtol, atol = _TOLERANCE[b.dtype]
    wide = torch.complex128 if b.dtype.is_complex else torch.float64
    return torch.allclose(a.to(wide), b.to(wide), rtol, atol, equal_nan=True)


# --- showing ----------------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """Arguments in a line that a person can type again."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if value.layout is not torch.strided:
            return f"{text} {value.layout}"
        if not value.is_contiguous() or value.storage_offset():
            text += f" strides {list(value.stride())} offset {value.storage_offset()}"
        text += " conj" if value.is_conj() else " neg" if value.is_neg() else ""
        if 0 < value.numel() <= 12:
            text += f" {value.tolist()}"
        return f"<{text}>"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{k}={shown(v)}" for k, v in value.items())
    return repr(value)


def describe(call: Call, version: int) -> str:
    args, kwargs = call.versions[version]
    text = ", ".join([*map(shown, args), *([shown(kwargs)] if kwargs else [])])
    seen: dict[int, int] = {}
    alias = [
        seen.setdefault(t.untyped_storage()._cdata, i)
        for i, t in enumerate(tensors_in((args, kwargs)))
        if t.layout is torch.strided
    ]
    shared = f" memory {alias}" if alias != list(range(len(alias))) else ""
    return f"{call.name}({text}){shared}" + (f" on the CPU: {sorted(call.stay)}" if call.stay else "")


def now() -> float:
    return time.monotonic()
