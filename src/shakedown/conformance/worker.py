"""The child process of a sweep: reads one unit of work a line, answers with rows; dies alone when a sample kills it.

Before each sample it says which one it is about to run, so that the parent can tell what a crash cost. A unit is one entry
in one dtype and mode; after a crash the parent sends the unit again with the samples to leave out.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from . import databases
from .checks import Bench, quiet
from .modules import ModuleBench
from .results import Row


@dataclass
class Unit:
    """One entry in one dtype and mode. ``dtype == "error"`` stands for the entry's error inputs.

    `samples` and `variants` are the largest numbers of samples to run, and of those to run in other forms too (None: all).
    `leave_out` are samples that killed an earlier worker.
    """

    suite: databases.Suite
    op: str
    dtype: str
    mode: str
    gradients: bool = True
    samples: int | None = None
    variants: int | None = 0
    leave_out: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """A file name, unique among units."""
        return f"{self.suite}-{self.op}-{self.dtype}-{self.mode}".replace("/", "_").replace("#", "_")


def run(unit: Unit) -> Iterator[int | list[Row]]:
    """The number of each sample before it runs, then its rows."""
    entry = databases.entry(unit.suite, unit.op)
    if unit.dtype == "error":
        yield from _errors(unit, Bench(entry, torch.float32, unit.mode))
        return
    dtype: torch.dtype = getattr(torch, unit.dtype)
    gradients = unit.gradients and entry.differentiable(dtype)
    if unit.suite == "module_db":
        modules = ModuleBench(entry, dtype, unit.mode)
        inputs = modules.inputs()
        for number in databases.spread(len(inputs), unit.samples):
            if number not in unit.leave_out:
                yield number
                yield list(modules.module(number, *inputs[number]))
        return
    bench = Bench(entry, dtype, unit.mode)
    made = databases.samples(entry, dtype, gradients=gradients)
    chosen = databases.spread(len(made), unit.samples)
    in_variants = {chosen[i] for i in databases.spread(len(chosen), unit.variants)}
    for number in chosen:
        if number in unit.leave_out:
            continue
        yield number
        sample, made[number] = made[number], None  # its tensors are not needed again
        yield list(bench.sample(number, sample, gradients=gradients, variants=number in in_variants))


def _errors(unit: Unit, bench: Bench) -> Iterator[int | list[Row]]:
    if unit.suite != "op_db" or bench.info.error_inputs_func is None:
        return
    for number, given in enumerate(databases.mistakes(databases.entry(unit.suite, unit.op))):
        if number not in unit.leave_out:
            yield number
            row = bench.error(number, given)
            row.dtype = unit.dtype
            yield [row]


def start() -> None:
    """Answer every unit on standard input, until it closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print, from C++ too, is not an answer

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    faulthandler.enable()
    quiet()
    torch.empty(1, device="neuron").add(1)  # loads the device: where that fails, no unit is to blame
    say({"ready": True})
    for line in sys.stdin:
        unit = Unit(**json.loads(line))
        try:
            for part in run(unit):
                if isinstance(part, int):
                    say({"begin": part})
                else:
                    say({"rows": [asdict(r) for r in part]})
        except Exception as error:  # the database itself failed: nothing was measured
            row = Row(unit.suite, unit.op, unit.dtype, unit.mode, "forward", -1, "skipped")
            row.message = f"no samples: {type(error).__name__}: {error}"[:400]
            say({"rows": [asdict(row)]})
        say({"end": True, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss})


if __name__ == "__main__":
    start()
