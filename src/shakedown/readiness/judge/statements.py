"""The sentences that each of the four results rests on: measured (or rehearsal), documented, or open."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from ..evidence.identity import FamilyWord
from ..plan.baseline import matrix
from .results import CaseResult, Cell, CellResult, Statement
from .seen import Seen

Said = list[Statement]
_PRODUCTS: dict[FamilyWord, str] = {
    "rehearsal": "Shakedown's embedded device",
    "native": "AWS's native TorchNeuron",
    "legacy": "AWS's XLA-based torch-neuronx",
    "none": "a device of PyTorch's own",
}


def environment(seen: Seen) -> Said:
    """Who measured, against what AWS documents."""
    said: Said = []
    for word in _families(seen):
        kind: Literal["rehearsal", "measured"] = "rehearsal" if word == "rehearsal" else "measured"
        said.append(Statement(kind=kind, text=f"what answered for the device: {_PRODUCTS[word]}"))
    if any(identity.target == "neuron" for identity in seen.identities.values()):
        of = matrix()
        ground = f"{of.release}, {of.dated:%d %B %Y}"
        departs = seen.with_words("departs-from-baseline", "unsupported-combination")
        text = "; ".join(f.text for f in departs) or f"no departure from what is documented for {ground}"
        said.append(Statement(kind="documented", text=text))
    said += [_open(f.text) for f in seen.with_words("untested(baseline)", "untested(identity)")]
    if not said:
        said.append(_open("no process on the target said who it is"))
    return said


def _families(seen: Seen) -> list[FamilyWord]:
    """The products that answered in some process on the target, in the order they were met."""
    met = [seen.identities[cell.id].family.word for cell, _ in seen.candidates() if cell.id in seen.identities]
    return list(dict.fromkeys(met))


def correctness(seen: Seen) -> Said:
    """One sentence for each mode and precision, then what was not compared."""
    said: Said = []
    untested: dict[str, list[str]] = {}
    sides: dict[tuple[str, str], list[CellResult]] = {}
    for cell, result in seen.pairs():
        if result.verdict == "untested":
            untested.setdefault(result.reason, []).append(cell.id)
        else:
            sides.setdefault((cell.mode, cell.dtype), []).append(result)
    for (mode, dtype), own in sides.items():
        verdicts = Counter(case.verdict for result in own for case in result.cases)
        words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        others = [f"{result.cell} {result.verdict}" for result in own if not result.cases]
        processes = "1 process" if len(own) == 1 else f"{len(own)} processes"
        text = f"{mode} {dtype}: {processes}, cases {words or 'none'}" + "".join(f"; {one}" for one in others)
        said.append(_shown(seen, text, on_cpu=mode == "reference"))
    said += [_open(f"{', '.join(names)}: {reason}") for reason, names in untested.items()]
    kinds = {cell.kind for cell, result in seen.candidates() if result.verdict != "untested"}
    if "variation" not in kinds:
        said.append(_open("no variation of the inputs was tried (padding, layout, logging, hard inputs)"))
    if "probe" not in kinds:
        said.append(_open("neighbours of the workload's operators, and number formats, were not probed"))
    return said + _long_runs(seen)


def _long_runs(seen: Seen) -> Said:
    """Loss parity, where it was decided; by itself it passes no training."""
    told = seen.with_words("loss-parity")
    unsettled = [one for one in told if one.word in ("loss-parity(no-power)", "loss-parity(untested)")]
    settled = Counter(one.word for one in told if one not in unsettled)
    said = [_open(f"{one.cell}: {one.word}: {one.text}") for one in unsettled]
    if settled:
        words = ", ".join(f"{count} {word}" for word, count in settled.items())
        said.append(
            _shown(
                seen,
                f"losses over a longer run: {words}; by themselves they pass no training, gradients and updates do",
            )
        )
    if not told:
        said.append(_open("loss parity over a long run: here k steps are compared, each from the device's own state"))
    return said


def path(seen: Seen) -> Said:
    """What left the device in each mode, and what happened to graphs."""
    said: Said = []
    sides: dict[tuple[str, str], list[CaseResult]] = {}
    for cell, case in seen.cases():
        if case.paths is not None:
            sides.setdefault((cell.mode, cell.dtype), []).append(case)
    for (mode, dtype), own in sides.items():
        summaries = [case.paths for case in own if case.paths is not None]
        if any(summary.fallbacks is None for summary in summaries):
            said.append(_open(f"{mode} {dtype}: fallbacks cannot be seen on this target"))
            continue
        names = {f.name for summary in summaries for f in summary.fallbacks or []}
        refused = {f.name for s in summaries for f in s.fallbacks or [] if f.acceptance != "accepted"}
        text = f"{mode} {dtype}: {'1 operator' if len(names) == 1 else f'{len(names)} operators'} fell back to the CPU"
        if names:
            text += f", {len(names - refused)} of them accepted"
        said.append(_shown(seen, text))
    words = ("recompile-bound", "not-captured", "graph-by-operator", "graph-split")
    told = Counter((f.word, f.text) for f in seen.with_words(*words))
    said += [_shown(seen, f"{word}: {text}") for word, text in told]
    said += [_open(f"{f.cell}: {f.text}") for f in seen.with_words("untested(graphs)", "untested(fusion)")]
    return said or [_open("no path was seen, because nothing ran on the target")]


def operation(seen: Seen) -> Said:
    """Start, steady state, restart, budgets, and whoever undoes it."""
    said: Said = []
    times = [one for one in seen.timings if one.mode != "reference"]
    given = [one for one in times if one.median is not None]
    if given:
        text = f"step times of {len(given)} of {len(times)} combinations of mode, precision and case"
        said.append(_shown(seen, text))
    withheld = Counter(one.withheld for one in times if one.median is None)
    said += [_open(f"{count} step times are withheld: {why}") for why, count in withheld.items()]
    if seen.rehearsal:
        said.append(_open("speed and memory of the target: times of the embedded device say nothing of them"))
    run = [cell for cell, result in seen.candidates() if result.verdict != "untested"]
    said += _started(seen, run)
    said += [_open(f"{f.cell} {f.case}: {f.text}".replace(" :", ":")) for f in seen.with_words("untested(budget)")]
    rollback = seen.requirements.operation.rollback
    if rollback:
        said.append(Statement(kind="documented", text=f"rollback, as the requirements state it: {rollback}"))
    else:
        said.append(_open("no rollback command is stated in the requirements"))
    return said + [_open("distribution over several devices")]


def _started(seen: Seen, run: list[Cell]) -> Said:
    """Cold and warm starts, and restarts with state."""
    said: Said = []
    by_id = {cell.id: result for cell, result in seen.pairs()}
    cold = [cell for cell in run if cell.cache == "cold"]
    warm = [cell for cell in run if cell.cache == "warm"]
    for name, own in (("cold", cold), ("warm", warm)):
        with_cases = [cell for cell in own if by_id[cell.id].cases]
        proved = [cell for cell in with_cases if by_id[cell.id].cache_proved]
        if with_cases:
            text = f"{len(proved)} of {len(with_cases)} processes proved that their cache was {name}"
            said.append(_shown(seen, text))
    if cold and not warm:
        said.append(_open("a start with a warm cache was not tried"))
    resumed = seen.with_words("resumed", "resume-broken")
    if resumed:
        said += [_shown(seen, f"{finding.cell}: {finding.word}: {finding.text}") for finding in resumed]
    else:
        said.append(_open("restart with optimizer state was not tried"))
    return said


def _shown(seen: Seen, text: str, on_cpu: bool = False) -> Statement:
    return Statement(kind="rehearsal" if seen.rehearsal and not on_cpu else "measured", text=text)


def _open(text: str) -> Statement:
    return Statement(kind="open", text=text)
