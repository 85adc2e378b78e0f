"""The compatibility table: what the device would do with each operator, beside what the last published sweep measured."""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shakedown.readiness.evidence import write_atomic

from .databases import DTYPE_NAMES
from .operators import Counts, Measured, Support, base_of, measured, read, support, write
from .results import STATUSES, read_parquet
from .summary import gaps, summarise

DATA = Path(__file__).parent / "data"  # the published sweep, shipped with the package
OPERATORS, SUMMARY = DATA / "operators.csv", DATA / "summary.json"
MODES = ("eager", "compile")
SHORT = dict(zip(DTYPE_NAMES, ("f32", "bf16", "f16", "f64", "i64", "i32", "u8", "bool", "c64")))
WAYS = ("fallback", "decomposed", "composite", "native")  # the way that a group of overloads is named by


def letter(counts: Counts | None) -> str:
    """``N`` every check right and native; ``D`` decomposed, ``C`` on the CPU in some; ``!`` some not right; ``·`` none."""
    if counts is None:
        return "·"
    if counts.bad:
        return "!"
    if counts.fallback:
        return "C"
    return "D" if counts.decomposed else "N"


@dataclass
class Line:
    """One operator, or one overload: its way, and its letters by mode and dtype."""

    name: str
    way: str
    reason: str = ""
    letters: dict[str, dict[str, str]] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """Its letters: in eager mode by dtype, then the worst of compile mode."""
        compiled = sorted(set(self.letters["compile"].values()), key="!CDN".index) or ["·"]
        return [self.letters["eager"].get(d, "·") for d in DTYPE_NAMES] + compiled[:1]

    @property
    def missing(self) -> bool:
        """Whether something about it is not native: a fallback, or a check that was not right."""
        return self.way == "fallback" or any(x in "C!" for m in self.letters.values() for x in m.values())


def published() -> Measured:
    """The counts of the published sweep; empty where none is."""
    return read(OPERATORS) if OPERATORS.exists() else {}


def lines(*, overloads: bool) -> list[Line]:
    """The table, a line for each overload or (their ways and counts added up) for each operator."""
    counts = published()
    groups: dict[str, list[Support]] = collections.defaultdict(list)
    for item in support():
        groups[item.name if overloads else base_of(item.name)].append(item)
    return [_line(name, members, counts) for name, members in groups.items()]


def _line(name: str, members: list[Support], counts: Measured) -> Line:
    way = next(w for w in WAYS if any(m.way == w for m in members))
    reason = ""
    if way == "fallback":
        left = [m for m in members if m.way == way]
        reason = left[0].reason
        if len(left) < len(members):
            which = ", ".join(m.name.partition(".")[2] or "default" for m in left)
            reason = f"{reason} ({which})"
            way = next(w for w in (*WAYS[1:], "fallback") if any(m.way == w for m in members))
    letters = {}
    for mode in MODES:
        found = {}
        for dtype in DTYPE_NAMES:
            parts = [c for m in members if (c := counts.get((m.name, mode), {}).get(dtype)) is not None]
            if parts:
                total = Counts(*(sum(getattr(p, f) for p in parts) for f in Counts.__dataclass_fields__))
                found[dtype] = letter(total)
        letters[mode] = found
    return Line(name, way, reason, letters)


def publish(directories: list[Path]) -> None:
    """Make the sweeps in `directories` the published ones.

    Raises:
        FileNotFoundError: a directory holds no finished sweep.
    """
    rows = [row for directory in directories for row in read_parquet(directory / "results.parquet")]
    write(OPERATORS, measured(rows))
    told: dict[str, Any] = {"sweeps": []}
    for directory in directories:
        request = json.loads((directory / "request.json").read_text())
        environment = json.loads((directory / "environment.json").read_text())
        told["sweeps"].append({"command": _command(request), **environment})
    for mode in MODES:
        mine = [r for r in rows if r.mode == mode]
        if mine:
            told[mode] = summarise(mine) | {"gaps": gaps(mine, 10)}
    write_atomic(SUMMARY, (json.dumps(told, indent=1) + "\n").encode())


def _command(request: dict[str, Any]) -> str:
    words = ["shakedown ops conformance"]
    for option, key in (("--suite", "suites"), ("--op", "ops"), ("--dtype", "dtypes")):
        if request[key] and not (key == "suites" and len(request[key]) == 2):
            words.append(f"{option} {','.join(request[key])}")
    if request["mode"] != "eager":
        words.append(f"--mode {request['mode']}")
    words += [] if request["gradients"] else ["--no-gradients"]
    words += [] if request["errors"] or request["mode"] != "eager" else ["--no-errors"]
    words += [f"--samples {request['samples']}"] if request["samples"] else []
    if request["mode"] == "eager":
        words += [f"--variants {-1 if request['variants'] is None else request['variants']}"]
    return " ".join(words)


# --- the page -----------------------------------------------------------------------------------------------------------

_HEAD = """\
# Compatibility

<!-- Generated by `shakedown ops table --write docs/compatibility.md`; a test fails when it is stale. -->

What the `neuron` device does with every ATen operator, and how that was measured. All of it is **rehearsal**: the embedded
device ran on the host's processor, in profile `native`. [conformance.md](conformance.md) says how a check is made, what
counts as right, and how to repeat it.
"""

_LEGEND = """\
## Operators

*Way* is what the dispatcher does today: `native` (a lowering or kernel of the device's own), `composite` (PyTorch makes
several operators of it), `decomposed` (PyTorch's decomposition, compiled as one program), `fallback` (the CPU, recorded as
such). The letters are measured, by dtype of the samples: `N` every check right and native, `D` right, some decomposed, `C`
right, some on the CPU, `!` some check not right while this operator is a suspect, `·` no sample reached it. Forms that
write in place or into `out=` are counted with the operator.
"""


def page() -> str:
    """docs/compatibility.md, from the published sweep and the device as it is.

    Raises:
        FileNotFoundError: no sweep has been published.
    """
    told = json.loads(SUMMARY.read_text())
    parts = [_HEAD, _shares(told), *(_gaps(mode, told[mode]) for mode in MODES if mode in told), _LEGEND]
    table = lines(overloads=False)
    ways = collections.Counter(line.way for line in table)
    parts.append(f"{len(table)} operators: " + ", ".join(f"{n} {way}" for way, n in ways.most_common()) + ".\n")
    heads = " | ".join(SHORT.values())
    parts.append(f"| operator | way | {heads} | compiled | not native because |\n| --- |{' --- |' * 12}")
    parts += [_row(line) for line in table]
    return "\n".join(parts) + "\n"


def _row(line: Line) -> str:
    return f"| `{line.name}` | {line.way} | {' | '.join(line.cells())} | {line.reason} |"


def _share(found: dict[str, Any]) -> str:
    return f"{found['share']:.2%} of {found['measured']:,}" if found["measured"] else "not measured"


def _shares(told: dict[str, Any]) -> str:
    text = ["## Measured\n"]
    for sweep in told["sweeps"]:
        text.append(f"- `{sweep['command']}` with torch {sweep['torch']}, JAX {sweep['jax']}")
    for mode in MODES:
        if mode not in told:
            continue
        found = told[mode]
        text.append(f"\n### {mode}\n\n| dtype | checks correct | never touched the CPU | gradients correct |")
        text.append("| --- | --- | --- | --- |")
        for dtype, shares in {**found["by_dtype"], "all": found}.items():
            text.append(f"| {dtype} | " + " | ".join(_share(shares[k]) for k in _COLUMNS) + " |")
        text.append(
            f"\nError inputs that raise the CPU's exception type: {_share(found['errors'])}. Modules, forward and backward: "
            f"{_share(found['modules'])}. Crashes of the interpreter: {found['crashes']}; samples stopped for time: "
            f"{found['timeouts']}. Settled by float64, the device being at least as close as the CPU: "
            f"{found['judged_by_float64']}.\n"
        )
        if mode == "compile":
            text.append(
                f"Right, but with a graph that ran operator by operator, with a warning: {found['by_operator']}.\n"
            )
        text.append("| check | " + " | ".join(STATUSES) + " |\n| --- |" + " --- |" * len(STATUSES))
        for check, statuses in found["by_check"].items():
            text.append(f"| {check} | " + " | ".join(f"{statuses.get(s, 0):,}" for s in STATUSES) + " |")
    return "\n".join(text) + "\n"


_COLUMNS = ("correct", "on_device", "gradients")


def _gaps(mode: str, found: dict[str, Any]) -> str:
    text = [f"### The largest gaps, {mode}\n", "| what | operator or entry | checks | dtypes | for example |"]
    text.append("| --- | --- | --- | --- | --- |")
    for gap in found["gaps"]:
        example = gap["example"].replace("|", "\\|")[:160]
        text.append(f"| {gap['what']} | `{gap['name']}` | {gap['checks']} | {', '.join(gap['dtypes'])} | {example} |")
    return "\n".join(text) + "\n"
