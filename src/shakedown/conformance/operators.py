"""What is known of each ATen operator: how it would run (asked of the device) and how it ran (counted from a sweep)."""

from __future__ import annotations

import collections
import csv
import io
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from shakedown.readiness.evidence import write_atomic

from .databases import DTYPE_NAMES
from .results import BAD, Row

# Operators of machines and libraries other than the host's: nobody reaches them through this device.
_FOREIGN = (
    *("cslt", "cuda", "cudnn", "cufft", "cutlass", "miopen", "mkldnn", "mps", "nnpack", "onednn", "thnn_fused"),
    *("use_cudnn", "vulkan", "xnnpack"),
)


@dataclass(frozen=True)
class Counts:
    """How many checks an operator took part in, by what became of them.

    In `native`, `decomposed` and `fallback` it took that way and the check was right. `bad` checks were not right, and
    this operator is a suspect: the entry is about it; or the entry is about none, it ran, and was never right elsewhere.
    """

    native: int = 0
    decomposed: int = 0
    fallback: int = 0
    bad: int = 0

    def __str__(self) -> str:
        return ":".join(str(n) for n in astuple(self))

    @classmethod
    def parse(cls, text: str) -> Counts:
        return cls(*map(int, text.split(":")))


# (operator, mode) -> dtype of the samples -> counts
Measured: TypeAlias = dict[tuple[str, str], dict[str, Counts]]


def measured(rows: Iterable[Row]) -> Measured:
    """Counts for each operator, mode and dtype, in order of names. Error inputs count nowhere."""
    counts: dict[tuple[str, str], dict[str, collections.Counter[str]]] = {}

    def count(row: Row, name: str, way: str) -> None:
        by_dtype = counts.setdefault((name, row.mode), {})
        by_dtype.setdefault(row.dtype, collections.Counter())[way] += 1

    bad = []
    for row in rows:
        if row.status == "skipped" or row.check == "error":
            continue
        if row.status in BAD:
            bad.append(row)
            continue
        for name in _names(row):
            count(row, name, "fallback" if name in row.fallbacks else _way_of_run(row, name))
    for row in bad:
        own = _own(row)
        # An entry composed of several: those that are right everywhere else are not suspects.
        others = {n for n in _names(row) if row.dtype not in counts.get((n, row.mode), {})}
        for name in own or others:
            count(row, name, "bad")
    return {key: {d: Counts(**counts[key][d]) for d in DTYPE_NAMES if d in counts[key]} for key in sorted(counts)}


def _names(row: Row) -> set[str]:
    return {n for n in (*row.executed, *row.fallbacks) if n.startswith("aten::")}


def _way_of_run(row: Row, name: str) -> str:
    return "decomposed" if name in row.decomposed else "native"


def _own(row: Row) -> set[str]:
    """The operator that the row's entry is about, in the overload that ran if it did; nothing for a composed entry."""
    words = row.op.partition("#")[0].split(".")
    ran = {n for n in _names(row) if base_of(n).strip("_") in words}
    if ran:
        return ran
    for word in reversed(words):
        packet = getattr(torch.ops.aten, word, None)
        if packet is not None and packet.overloads():
            which = packet.overloads()[0]
            return {f"aten::{word}" if which == "default" else f"aten::{word}.{which}"}
    return set()


def base_of(name: str) -> str:
    """``aten::add.Tensor`` -> ``add``."""
    return name.removeprefix("aten::").partition(".")[0]


def write(path: Path, found: Measured) -> None:
    """Write counts as CSV, atomically: a line for each operator and mode, a column for each dtype."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["operator", "mode", *DTYPE_NAMES])
    for (name, mode), by_dtype in found.items():
        writer.writerow([name, mode, *(str(by_dtype.get(d, "")) for d in DTYPE_NAMES)])
    write_atomic(path, text.getvalue().encode())


def read(path: Path) -> Measured:
    with path.open(newline="") as file:
        return {
            (line["operator"], line["mode"]): {d: Counts.parse(line[d]) for d in DTYPE_NAMES if line[d]}
            for line in csv.DictReader(file)
        }


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
    from shakedown.neuron.support import way_of

    made = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        base, _, which = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::") or base.lstrip("_").startswith(_FOREIGN):
            continue
        op = getattr(getattr(torch.ops.aten, base, None), which or "default", None)
        if op is not None and any("Tensor" in str(a.type) for a in (*op._schema.arguments, *op._schema.returns)):
            made.append(Support(name, *way_of(op)))
    return made
