"""One model trained for three steps in one mode on the device, and what it is held to: the same on the CPU."""

from __future__ import annotations

import copy
import functools
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch

from shakedown.conformance.compare import TOLERANCE
from shakedown.neuron import events

from .comparing import Results, errors_of
from .families import Family

STEPS = 3


@dataclass(frozen=True)
class Case:
    """What is run. ``mode`` is eager, adaptive (decided when Python starts) or compile."""

    family: Family
    mode: str = "compile"
    dtype: torch.dtype = torch.float32
    attention: str = "sdpa"
    experts: str | None = None
    padded: bool = True
    checkpointing: bool = False
    layers: int = 1


@dataclass(frozen=True)
class Outcome:
    """What it came to. ``error`` is the largest error of a tensor in units of what that tensor is allowed: 1 is too much.

    ``programs`` counts the graphs compiled, ``compiles`` every program that was built, from a cache or not; ``outside``
    names operators that ran outside graphs in forward and backward of the last step.
    """

    error: float
    worst: str
    programs: int
    breaks: int
    fallbacks: tuple[str, ...]
    compiles: int
    outside: tuple[str, ...]
    last_step_compiles: int
    seconds: float  # of processor time, in this process

    def document(self) -> dict[str, Any]:
        return asdict(self)


class Counts:
    """What happened on the device since this was made."""

    def __init__(self) -> None:
        events.clear()

    def graphs(self) -> list[int]:
        """How often each compiled graph ran, in the order in which they were made."""
        ran = {r["name"]: r["count"] for r in events.snapshot() if r["name"].startswith("graph::")}
        return [ran[name] for name in sorted(ran, key=lambda n: int(n.split("_")[-2]))]

    def fallbacks(self) -> list[str]:
        return events.names("fallback")


def train(model: Any, call: Any, batch: dict[str, torch.Tensor]) -> Results:
    """Three steps of AdamW: logits, loss and gradients of the first, and by how much the weights changed, on the CPU."""
    found: Results = {}
    before = {n: p.detach().cpu().double().clone() for n, p in model.named_parameters()}  # float64 is no copy
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
    for step in range(STEPS):
        optimizer.zero_grad()
        with events.phase(f"step {step}"):
            given = call(**batch)
            given.loss.backward()
            if model.device.type == "neuron":
                torch.neuron.synchronize()
        if step == 0:
            found["logits"], found["loss"] = given.logits.detach().cpu(), given.loss.detach().cpu()
            found |= {f"gradient of {n}": p.grad.cpu() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    return found | {f"change of {n}": p.detach().cpu().double() - before[n] for n, p in model.named_parameters()}


def _batch(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    given = case.family.batch(case.padded)
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in given.items()}


def _prepared(case: Case) -> Any:
    """The model as the CPU and the device start from it, its hooks in place: Dynamo cannot enter the lock around that."""
    experts = case.experts if case.mode == "compile" else None
    attention = "sdpa" if case.attention == "flex_attention" else case.attention
    model = case.family.build(attention, experts, case.layers).to(case.dtype)
    if case.checkpointing:
        model.config.use_cache = False  # where it is on, a warning says that it is off: Dynamo refuses the warning
        model.activation_checkpointing_enable()
    with torch.no_grad():
        model(**_batch(case, case.dtype))
    return model


@functools.lru_cache(maxsize=8)
def _expected(case: Case, wide: bool) -> Results:
    """On the CPU, in the case's dtype or, `wide`, from the same weights in float64."""
    model = _prepared(case)
    dtype = torch.float64 if wide else case.dtype
    if wide and case.family.experts:
        model.set_experts_implementation("eager")  # the others refuse float64
    model = model.to(dtype)
    return train(model, model, _batch(case, dtype))


def _reference(case: Case, wide: bool) -> Results:
    """The CPU's answer does not depend on the mode; it has no gradient of flex attention, and gets the same sums by sdpa."""
    attention = "sdpa" if case.attention == "flex_attention" else case.attention
    return _expected(Case(case.family, "cpu", case.dtype, attention, None, case.padded, False, case.layers), wide)


def errors(case: Case, found: Results) -> dict[str, float]:
    """The error of each tensor in units of what it is allowed; see :func:`.comparing.errors_of`, whose truth is float64."""
    expected = _reference(case, False)
    return errors_of(found, expected, TOLERANCE[case.dtype][0], lambda: _reference(case, True))


def _blocks(mask: torch.Tensor) -> Any:
    """A causal mask over the tokens of `mask` (B, L). Transformers makes it of the mask's values, which no graph knows."""
    from torch.nn.attention.flex_attention import create_block_mask

    there = mask.bool()
    rows, length = mask.shape
    return create_block_mask(lambda b, h, q, k: (q >= k) & there[b, k], rows, None, length, length, device="neuron")


def run(case: Case) -> Outcome:
    """Train on the device in the case's mode and compare.

    Raises:
        RuntimeError: the process records operators and `mode` is not adaptive, or the other way round.
    """
    if torch.neuron.adaptive.enabled() != (case.mode == "adaptive"):
        raise RuntimeError(
            f"adaptive eager is {torch.neuron.adaptive.enabled()} in this process: set SHAKEDOWN_ADAPTIVE"
        )
    started = time.process_time()
    model = copy.deepcopy(_prepared(case)).to("neuron")
    batch = {n: t.to("neuron") for n, t in _batch(case, case.dtype).items()}
    if case.attention == "flex_attention":
        model.set_attn_implementation("flex_attention")
        if "attention_mask" in batch:
            batch["attention_mask"] = _blocks(batch["attention_mask"])
    call = model
    if case.mode == "compile":
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        call = torch.compile(model, backend="neuron", dynamic=False, fullgraph=True)
    events.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*operator by operator.*")
        found = train(model, call, batch)
    rows = events.snapshot()
    last = [r for r in rows if r["phase"] == f"step {STEPS - 1}"]
    executed = {r["name"] for r in rows if r["kind"] == "execute"}
    worst, error = max(errors(case, found).items(), key=lambda item: item[1])
    return Outcome(
        error=error,
        worst=worst,
        programs=sum(n.startswith("graph::") for n in executed),
        breaks=sum(torch._dynamo.utils.counters["graph_break"].values()) if case.mode == "compile" else 0,
        fallbacks=tuple(sorted({r["name"] for r in rows if r["kind"] == "fallback"})),
        compiles=sum(r["count"] for r in rows if r["kind"] == "compile"),
        outside=tuple(r["name"] for r in last if r["kind"] == "execute" and not r["name"].startswith("graph::")),
        last_step_compiles=sum(r["count"] for r in last if r["kind"] == "compile"),
        seconds=time.process_time() - started,
    )
