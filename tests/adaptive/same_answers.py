"""``python -m tests.adaptive.same_answers``: adaptive eager against plain eager execution, bit by bit, at length.

Needs ``SHAKEDOWN_ADAPTIVE=1``. Three parts, each left out with a 0:

- ``--programs N``: random programs (:mod:`.programs`), from seed ``--seed`` on; each is replayed under several policies of
  which tensors live on, until it runs fused;
- ``--groups N``: groups of 40 samples of PyTorch's operator database (:mod:`.database`);
- ``--steps N``: training steps of two models with two optimizers in two dtypes (:mod:`.training`).

``--json F`` writes what was found. Exit status 1 when anything differs. A program is shown with ``--show SEED``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import database, training
from .bits import difference
from .programs import Outcome, Policy, Program, Unexpected, write
from .running import operators

# Which slots live to the end, and how many rounds it takes until that runs fused: one builds a group, one has it compiled, one
# runs it. Programs for other results are made up to a number, after which one that returns everything serves all.
POLICIES: dict[str, tuple[Policy, int]] = {
    "few": (lambda slot, round: slot % 4 == 0, 3),
    "others": (lambda slot, round: slot % 3 == 1, 3),
    "other ones each time": (lambda slot, round: zlib.crc32(f"{slot} {round}".encode()) % 2 == 0, 6),
    "all": (lambda slot, round: True, 3),
}
_PATIENCE = 300.0  # seconds for the background compiler


@dataclass
class Replayed:
    """What became of one program."""

    seed: int
    steps: int
    errors: int  # steps that raise
    fused: int = 0  # operators in the last round of each policy
    one_by_one: int = 0
    differences: list[str] = field(default_factory=list)
    ulps: dict[str, int] = field(default_factory=dict)  # dtype -> largest distance
    failed_compiles: list[str] = field(default_factory=list)
    seconds: float = 0.0


def replay(seed: int, length: int | None = None, policies: Sequence[str] = tuple(POLICIES)) -> Replayed:
    """Write the program of `seed` under plain eager execution, replay it recorded, and compare after every round."""
    start = time.perf_counter()
    torch.neuron.adaptive.reset()
    program = write(seed, length)
    found = Replayed(seed, len(program.steps), len(program.expected.raised))
    for name in policies:
        keep, rounds = POLICIES[name]
        for round in range(rounds):
            before = operators()
            try:
                outcome = program.replay(keep, round)
                torch.neuron.synchronize()
            except Unexpected as error:
                found.differences.append(f"{name}, round {round}: {error}")
                return found
            after = operators()
            _compare(program, outcome, f"{name}, round {round}", found)
            assert torch.neuron.adaptive.wait(_PATIENCE), "the background compiler takes too long"
        found.fused += after[0] - before[0]
        found.one_by_one += after[1] - before[1]
    found.failed_compiles = [e for g in torch.neuron.adaptive.groups() for e in g["errors"]]
    found.seconds = time.perf_counter() - start
    return found


def _compare(program: Program, outcome: Outcome, when: str, found: Replayed) -> None:
    for where, what in program.differences(outcome):
        found.differences.append(f"{when}: {where}: {what.problem}")
        if what.ulps is not None:
            found.ulps[what.dtype] = max(found.ulps.get(what.dtype, 0), what.ulps)


@dataclass
class Compared:
    """What became of one training."""

    name: str
    steps: int
    fused: int
    one_by_one: int
    first_other_loss: int | None  # step
    differences: list[str]


def compare_training(model: str, optimizer: str, dtype: torch.dtype, steps: int, read: int = 0) -> Compared:
    expected = training.train(model, optimizer, dtype, steps, eager=True, read=read)
    actual = training.train(model, optimizer, dtype, steps, eager=False, read=read)
    assert expected.fused == expected.one_by_one == 0, "plain eager execution was recorded"
    other = (i for i, (a, e) in enumerate(zip(actual.losses, expected.losses)) if difference(a, e) is not None)
    found = [(name, difference(actual.state[name], value)) for name, value in expected.state.items()]
    return Compared(
        f"{model}, {optimizer}, {str(dtype).removeprefix('torch.')}, read every {read}",
        steps,
        actual.fused,
        actual.one_by_one,
        next(other, None),
        [f"{name}: {what.problem}" for name, what in found if what is not None],
    )


def _say(line: str) -> None:
    print(line, flush=True)


def _programs(first: int, count: int, report: dict[str, Any]) -> bool:
    good = True
    for seed in range(first, first + count):
        found = replay(seed)
        report["programs"].append(asdict(found))
        good &= not found.differences and not found.failed_compiles
        _say(
            f"program {seed}: {found.steps} steps, {found.errors} raise, {found.fused} fused, {found.one_by_one} one by one, "
            f"{found.seconds:.1f} s, {len(found.differences)} differences {found.ulps}"
        )
        for line in (*found.differences[:5], *found.failed_compiles[:5]):
            _say(f"  {line}")
    return good


def _groups(seed: int, count: int, report: dict[str, Any]) -> bool:
    good = True
    for number, calls in enumerate(database.groups(seed)):
        if number >= count:
            break
        torch.neuron.adaptive.reset()
        found = database.compare(calls)
        failed = [e for g in torch.neuron.adaptive.groups() for e in g["errors"]]
        rows = [{"call": str(call), "problem": d.problem, "ulps": d.ulps} for call, d in found.differences]
        report["groups"].append(
            {
                "number": number,
                "calls": len(found.calls),
                "skipped": [f"{call}: {why}" for call, why in found.skipped],
                "fused": found.fused,
                "one_by_one": found.one_by_one,
                "differences": rows,
                "failed_compiles": failed,
            }
        )
        good &= not rows and not failed
        _say(
            f"group {number}: {len(found.calls)} calls, {found.fused} fused, {found.one_by_one} one by one, {len(rows)} differ"
        )
        for row in rows:
            _say(f"  {row['call']}: {row['problem']}")
        for line in failed:
            _say(f"  {line}")
    return good


def _trainings(steps: int, report: dict[str, Any]) -> bool:
    good = True
    for model in training.MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            for optimizer in training.OPTIMIZERS:
                torch.neuron.adaptive.reset()
                found = compare_training(model, optimizer, dtype, steps, read=0 if optimizer == "SGD" else 1)
                report["trainings"].append(asdict(found))
                good &= found.first_other_loss is None and not found.differences
                _say(f"{found}")
    return good


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adaptive.same_answers", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", type=int, default=1000, help="at most so many; there are about 40")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=int, metavar="SEED", help="print this program and do nothing else")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # of the operators under test
    torch.neuron.init()
    if not torch.neuron.adaptive.enabled():
        parser.error("set SHAKEDOWN_ADAPTIVE=1")
    if options.show is not None:
        _say(str(write(options.show)))
        return 0
    report: dict[str, Any] = {"seed": options.seed, "programs": [], "groups": [], "trainings": []}
    try:
        good = _programs(options.seed, options.programs, report)
        good = _groups(options.seed, options.groups, report) and good
        good = (not options.steps or _trainings(options.steps, report)) and good
    finally:
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
