"""PyTorch's databases on the device, other entries every day: forward, backward, other forms, errors, modules.

``--sweep`` says how many of the cases run and ``--sweep-seed`` which (:mod:`tests.sampling`). The whole with every sample is a
command: ``shakedown ops conformance``; docs/conformance.md keeps its last results.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from shakedown.conformance import checks, databases, modules
from shakedown.conformance.results import BAD

OTHER_DTYPES = (torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float16, torch.int32, torch.uint8)
OPERATORS = databases.entries("op_db")
MODULES = databases.entries("module_db")


def label(value: object) -> str:
    return value.name if isinstance(value, databases.Entry) else str(value).removeprefix("torch.")


CASES = [
    (entry, dtype)
    for number, entry in enumerate(OPERATORS)
    for dtype in dict.fromkeys((torch.float32, OTHER_DTYPES[number // 10 % len(OTHER_DTYPES)]))
    if dtype in entry.dtypes()
]


def hold(rows: list[checks.Row], known: dict[str, str]) -> None:
    wrong = [r for r in rows if r.status in BAD and r.op not in known]
    assert not wrong, "\n".join(f"{r.op} {r.dtype} {r.check} #{r.sample} {r.shapes}: {r.message}" for r in wrong)


# Entries with samples that are known not to be right, and why. docs/conformance.md lists what each costs.
KNOWN: dict[str, str] = {}


@pytest.mark.rotating(80)
@pytest.mark.parametrize(("entry", "dtype"), CASES, ids=label)
def test_samples_agree_with_the_cpu(entry: databases.Entry, dtype: torch.dtype) -> None:
    gradients = entry.differentiable(dtype)
    bench = checks.Bench(entry, dtype, "eager")
    made = databases.samples(entry, dtype, gradients=gradients)
    with warnings.catch_warnings():
        checks.quiet()
        for place, number in enumerate(databases.spread(len(made), 2)):
            hold(list(bench.sample(number, made[number], gradients=gradients, variants=place == 0)), KNOWN)


@pytest.mark.rotating(40)
@pytest.mark.parametrize("entry", [e for e in OPERATORS if e.info.error_inputs_func], ids=label)
def test_error_inputs_raise_what_the_cpu_raises(entry: databases.Entry) -> None:
    bench = checks.Bench(entry, torch.float32, "eager")
    with warnings.catch_warnings():
        checks.quiet()
        hold([bench.error(n, given) for n, given in enumerate(databases.mistakes(entry))], KNOWN)


@pytest.mark.rotating(40)
@pytest.mark.parametrize("entry", MODULES, ids=label)
def test_modules_agree_with_the_cpu(entry: databases.Entry) -> None:
    bench = modules.ModuleBench(entry, torch.float32, "eager")
    inputs = bench.inputs()
    for number in databases.spread(len(inputs), 3):
        hold(list(bench.module(number, *inputs[number])), {})
