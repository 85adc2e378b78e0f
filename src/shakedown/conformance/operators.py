"""What is known of each ATen operator: how it would run (asked of the device) and how it ran (counted from a sweep)."""

from __future__ import annotations

import collections
import csv
import io
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from .results import BAD, Row

# Operators of machines and libraries other than the host's: nobody reaches them through this device.
_FOREIGN = (
    *("cslt", "cuda", "cudnn", "cufft", "cutlass", "miopen", "mkldnn", "mps", "nnpack", "onednn", "thnn_fused"),
    *("use_cudnn", "vulkan", "xnnpack"),
)


WAYS = ("native", "decomposed", "fallback", "bad")


@dataclass(frozen=True)
class Measured:
    """How often operator `name` ran in checks of samples of `dtype` in `mode`, by what became of them.

    `native`, `decomposed` and `fallback` count checks in which the operator took that way and the check was right; `bad`
    counts checks that were not right while this operator was among those that ran: it may be another one's fault.
    """

    name: str
    dtype: str
    mode: str
    native: int = 0
    decomposed: int = 0
    fallback: int = 0
    bad: int = 0


def measured(rows: Iterable[Row]) -> list[Measured]:
    """Counts for each operator, dtype and mode, in order."""
    counts: dict[tuple[str, str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        if row.status == "skipped" or row.check == "error":
            continue
        for name in set(row.executed) | set(row.fallbacks):
            if not name.startswith("aten::"):
                continue
            way = (
                "fallback"
                if name in row.fallbacks
                else "bad"
                if row.status in BAD
                else "decomposed"
                if name in row.decomposed
                else "native"
            )
            counts[name, row.dtype, row.mode][way] += 1
    return [Measured(*key, *(counts[key][way] for way in WAYS)) for key in sorted(counts)]


def write(path: Path, found: list[Measured]) -> None:
    """Write counts as CSV, atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Measured)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(m) for m in found)
    temporary = path.with_suffix(".partial")
    temporary.write_text(text.getvalue())
    os.replace(temporary, path)


def read(path: Path) -> list[Measured]:
    with path.open(newline="") as file:
        return [
            Measured(line["name"], line["dtype"], line["mode"], *(int(line[way]) for way in WAYS))
            for line in csv.DictReader(file)
        ]


@dataclass(frozen=True)
class Support:
    """The way an overload takes on the device, asked of the dispatcher and the table of lowerings.

    ``native``: a lowering or kernel of its own. ``composite``: PyTorch makes several operators of it, each with a way of
    its own. ``decomposed``: PyTorch's decomposition, traced into one program. ``fallback``: the CPU, with the `reason`.
    """

    name: str
    way: str
    reason: str = ""


def support() -> list[Support]:
    """Every ATen overload on tensors that a user of the host's PyTorch can reach, by name."""
    torch.empty(1, device="neuron").add(1)  # loads the lowerings
    made = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        base, _, which = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or base.lstrip("_").startswith(_FOREIGN):
            continue
        op = getattr(getattr(torch.ops.aten, base, None), which or "default", None)
        if op is not None and any("Tensor" in str(a.type) for a in (*op._schema.arguments, *op._schema.returns)):
            made.append(Support(name, *_way(op)))
    return made


_COMPOSITE_KEYS = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def _way(op: torch._ops.OpOverload) -> tuple[str, str]:
    from shakedown.neuron.lowering import registry

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(op.name(), "PrivateUse1"):
        return "native", ""
    if any(has(op.name(), key) for key in _COMPOSITE_KEYS):
        return "composite", ""
    functional = registry.functional_of(op)
    if functional is not None and registry.lowering_of(functional) is not None:
        return "native", ""
    if functional is not None and registry.decomposition_of(functional) is not None:
        return "decomposed", ""
    if not has(op.name(), "CPU"):
        return "fallback", "PyTorch has no kernel for dense tensors on the CPU either"
    return "fallback", "no lowering"
