"""PyTorch's operator database as a source of test inputs: one sample on the CPU, the same on the device, compared.

As a command, sweep operators and list what is wrong and what touched the CPU::

    python -m tests.neuron.opinfo --op add --op softmax --dtype float32 --samples 20
    python -m tests.neuron.opinfo --all --dtype float32 bfloat16
"""

from __future__ import annotations

import argparse
import collections
import copy
import sys
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from shakedown.neuron import events

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
# Relative and absolute tolerance of the working precision; sums and products of many terms differ by their order.
TOLERANCE = {
    torch.float32: (1e-4, 1e-4),
    torch.float64: (1e-7, 1e-7),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float16: (4e-3, 4e-3),
    torch.complex64: (1e-4, 1e-4),
}


# Entries whose values come from a random stream, which is the device's own: sizes and dtypes are compared, values are not.
RANDOM = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "uniform"),
    *("rand_like", "randn", "randn_like", "randint", "randint_like", "randperm"),
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout"),
    *("nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d"),
    *("nn.functional.fractional_max_pool3d", "pca_lowrank", "svd_lowrank", "normal.in_place", "normal.number_mean"),
    "nn.functional.multi_head_attention_forward",
    *("native_dropout_backward", "torch.ops.aten._fused_dropout"),
}


@dataclass
class Outcome:
    """Of one sample: what went wrong ("" when nothing did), and which operators ran on the CPU, with reasons."""

    error: str = ""
    fallbacks: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=1)
def by_name() -> dict[str, list[OpInfo]]:
    table: dict[str, list[OpInfo]] = {}
    for info in op_db:
        table.setdefault(info.name, []).append(info)
        if info.variant_test_name:
            table.setdefault(f"{info.name}.{info.variant_test_name}", []).append(info)
    return table


def samples(info: OpInfo, dtype: torch.dtype, *, gradients: bool, limit: int) -> list[SampleInput]:
    """Up to `limit` CPU samples, spread evenly over what the entry generates."""
    torch.manual_seed(0)
    made = list(info.sample_inputs("cpu", dtype, requires_grad=gradients))
    step = max(1, len(made) // limit)
    return made[::step][:limit]


def moved(value: Any) -> Any:
    """`value` with every tensor on the device, strides and requires_grad kept."""
    if isinstance(value, torch.Tensor):
        count = value.untyped_storage().nbytes() // value.dtype.itemsize
        whole = value.detach().resolve_conj().resolve_neg()
        if count != value.numel() or whole.stride() != value.stride():  # the storage too, since views reach all of it
            flat = value.detach().as_strided((count,), (1,), 0)
            made = flat.to("neuron").as_strided(value.shape, value.stride(), value.storage_offset())
        else:
            made = value.detach().to("neuron")
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(v) for v in value)
    if isinstance(value, dict):
        return {k: moved(v) for k, v in value.items()}
    if isinstance(value, torch.device):
        return torch.device("neuron")
    if value == "cpu":
        return "neuron"
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    return []


def compare(actual: Any, expected: Any, dtype: torch.dtype, *, scale: float = 1.0) -> None:
    """Same structure, sizes, strides aside, dtypes and values; NaN equals NaN. AssertionError otherwise."""
    got, want = _tensors(actual), _tensors(expected)
    assert len(got) == len(want), f"{len(got)} tensors, expected {len(want)}"
    for a, e in zip(got, want):
        rtol, atol = TOLERANCE.get(e.dtype, TOLERANCE.get(dtype, (0, 0)) if e.dtype.is_floating_point else (0, 0))
        torch.testing.assert_close(a.detach().cpu(), e.detach(), rtol=rtol * scale, atol=atol * scale, equal_nan=True)


def check(info: OpInfo, dtype: torch.dtype, sample: SampleInput, *, gradients: bool) -> Outcome:
    """Run one sample on both devices, forward and (when asked and possible) backward."""
    outcome = Outcome()
    host = (copy.deepcopy(sample.input) if not gradients else sample.input, sample.args, sample.kwargs)
    # The sample's own `output_process_fn_grad` reduces outputs to what is differentiable (signs of factors, for one).
    process = sample.output_process_fn_grad or (lambda x: x)
    try:
        torch.manual_seed(7)
        expected = info.op(host[0], *host[1], **host[2])
    except Exception as error:
        return Outcome(f"skip: the CPU raises {type(error).__name__}")
    if any(t.layout is not torch.strided for t in _tensors([host[0], list(host[1]), list(host[2].values())])):
        return Outcome("skip: not strided")
    device = moved((sample.input, sample.args, sample.kwargs))
    events.clear()
    try:
        torch.manual_seed(7)
        actual = info.op(device[0], *device[1], **device[2])
        if info.name in RANDOM or _draws(sample):
            assert [(t.shape, t.dtype) for t in _tensors(actual)] == [(t.shape, t.dtype) for t in _tensors(expected)]
            return _recorded(outcome)
        compare(actual, expected, dtype)
        if gradients:
            _check_gradients(process(actual), process(expected), device, host, dtype)
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {str(error).strip()[:400]}"
    return _recorded(outcome)


def _draws(sample: SampleInput) -> bool:
    """Whether the sample asks for dropout."""
    return any(sample.kwargs.get(name, 0) for name in ("dropout_p", "dropout"))


def _recorded(outcome: Outcome) -> Outcome:
    outcome.fallbacks = {r["name"]: r["detail"] for r in events.snapshot() if r["kind"] == "fallback"}
    return outcome


def _check_gradients(actual: Any, expected: Any, device: Any, host: Any, dtype: torch.dtype) -> None:
    outs_h = [t for t in _tensors(expected) if t.requires_grad]
    outs_d = [t for t in _tensors(actual) if t.requires_grad]
    ins_h = [t for t in _tensors([host[0], host[1], list(host[2].values())]) if t.requires_grad]
    ins_d = [t for t in _tensors([device[0], device[1], list(device[2].values())]) if t.requires_grad]
    assert len(outs_h) == len(outs_d), "different outputs require a gradient"
    if not outs_h or not ins_h:
        return
    seeds = [torch.randn_like(t.detach()) for t in outs_h]
    grads_h = torch.autograd.grad(outs_h, ins_h, seeds, allow_unused=True)
    grads_d = torch.autograd.grad(outs_d, ins_d, [s.to("neuron") for s in seeds], allow_unused=True)
    for g, h in zip(grads_d, grads_h):
        assert (g is None) == (h is None), "a gradient is missing on one side"
        if h is not None:
            compare(g, h, dtype, scale=4)


def sweep(infos: list[OpInfo], dtypes: list[torch.dtype], limit: int, gradients: bool, verbose: bool) -> int:
    wrong = 0
    fallbacks: dict[tuple[str, str], int] = collections.Counter()
    for info in infos:
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        for dtype in dtypes:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            grad = gradients and info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
            counts: dict[str, int] = collections.Counter()
            errors: dict[str, int] = collections.Counter()
            here: set[str] = set()
            for sample in samples(info, dtype, gradients=grad, limit=limit):
                outcome = check(info, dtype, sample, gradients=grad)
                kind = "skip" if outcome.error.startswith("skip") else "wrong" if outcome.error else "ok"
                counts[kind] += 1
                if kind == "wrong":
                    errors[outcome.error] += 1
                for op, reason in outcome.fallbacks.items():
                    fallbacks[op, reason] += 1
                    here.add(op)
            wrong += counts["wrong"]
            if verbose or counts["wrong"] or here:
                print(f"{name:40} {dtype!s:15} {dict(counts)} fallbacks: {sorted(here) or 'none'}", flush=True)
            for error, n in errors.items():
                print(f"      x{n} {error}", flush=True)
    for (op, reason), n in sorted(fallbacks.items()):
        print(f"fallback {n:5d} {op:45} {reason[:160]}")
    print(f"{wrong} wrong samples, {len({o for o, _ in fallbacks})} operators on the CPU")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", action="append", default=[], help="name in the operator database, repeatable")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    unknown = [n for n in options.op if n not in by_name()]
    if unknown:
        parser.error(f"not in the operator database: {', '.join(unknown)}")
    infos = list(op_db) if options.all else [i for n in options.op for i in by_name()[n]]
    dtypes = [getattr(torch, d) for d in options.dtype]
    return 1 if sweep(infos, dtypes, options.samples, not options.no_gradients, options.verbose) else 0


if __name__ == "__main__":
    sys.exit(main())
