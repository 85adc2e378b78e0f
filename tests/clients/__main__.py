"""``python -m tests.clients``: models of Hugging Face in every mode, and what other packages do with models, held to the
CPU; the tables of docs/clients.md.

Each row is run in a process of its own, so that what it compiles does not depend on the rows before it, and is a file
under ``--out``: a row that has one is not run again, so an interrupted run goes on. Exit status 1 when a row is wrong, 2 for
a bad request.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shakedown.neuron import program_key

from . import decoding, packages, rows, running
from .families import DECODERS, OTHERS, Family
from .rows import NAMES, Row
from .running import Case
from .table import problem_of, written

_NEW_TOKENS = 5


def cases() -> Iterator[Case]:
    """The rows of the table, in its order. (Decoding follows them.)"""
    for family in DECODERS:
        experts = family.experts or (None,)
        for dtype in NAMES:
            first = Case(family, "compile", dtype, experts=experts[0])
            for attention in family.attention:
                # The loss that balances experts reads the mask, and cannot read one of blocks; without a mask of the
                # caller's, Transformers makes one in the graph, with a warning that Dynamo refuses.
                if not (experts[0] and attention == "flex_attention"):
                    yield replace(first, attention=attention)
            yield replace(first, padded=False)
            yield from (replace(first, experts=e) for e in experts[1:])
            yield from (Case(family, mode, dtype) for mode in ("eager", "adaptive"))
        if not family.experts:  # what records the routers' logits for their loss is a side effect in a checkpoint
            yield Case(family, "compile", checkpointing=True)
    for family in OTHERS:
        experts = family.experts[0] if family.experts else None
        yield Case(family, "compile", attention=family.attention[0], experts=experts)


def name_of(case: Case) -> str:
    parts = [case.family.name, case.mode, case.attention, case.experts, NAMES[case.dtype]]
    parts += ["padded" if case.padded else "full", "checkpointed" if case.checkpointing else None]
    return "-".join(p for p in parts if p)


def row_of(case: Case) -> dict[str, Any]:
    """Run `case`: a row of the table. Whatever goes wrong is its ``problem``."""
    row: dict[str, Any] = {
        "model": case.family.name,
        "mode": case.mode,
        "attention": case.attention,
        "experts": case.experts,
        "dtype": NAMES[case.dtype],
        "mask": "padded" if case.padded else "none",
        "checkpointing": case.checkpointing,
    }
    try:
        row |= running.run(case).document()
    except Exception as error:  # a row says what happened, and the others still run
        row["problem"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return row


def decoded(family: Family) -> dict[str, Any]:
    """Decode greedily on the device in both ways: a row."""
    row: dict[str, Any] = {"model": family.name, "mode": "decode", "tokens": _NEW_TOKENS}
    try:
        model, prompt, expected = decoding.on_cpu(family, True, _NEW_TOKENS)
        for way in (decoding.generated, decoding.stepped):
            torch._dynamo.reset()
            seen = running.Counts()
            right = torch.equal(way(model, prompt, _NEW_TOKENS), expected)
            row[way.__name__] = {"right": right, "graphs": seen.graphs(), "fallbacks": seen.fallbacks()}
    except Exception as error:
        row["problem"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return row


def done(row: Row, mode: str) -> dict[str, Any]:
    """Do `row`: a row of the table of packages. Whatever goes wrong is its ``problem``."""
    try:
        return rows.run(row, mode)
    except Exception as error:
        about = {"package": row.package, "what": row.what, "mode": mode, "dtype": NAMES[row.dtype], "how": row.how}
        return {**about, "problem": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


Job = tuple[str, str, Callable[[], dict[str, Any]]]  # name, mode, and what makes the row


def _models() -> list[Job]:
    made: list[Job] = [(name_of(c), c.mode, functools.partial(row_of, c)) for c in cases()]
    return made + [(f"{f.name}-decode", "decode", functools.partial(decoded, f)) for f in DECODERS]


def _jobs(beginnings: tuple[str, ...]) -> list[Job]:
    """All models, and the packages of which a row's name may begin so."""
    return _models() + [
        (r.name(m), m, functools.partial(done, r, m)) for r in packages.rows(beginnings) for m in r.modes
    ]


def _in_own_process(out: Path, name: str, mode: str) -> None:
    """Run a row; a process that ends without one is told, and the others still run."""
    command = [sys.executable, "-m", "tests.clients", "--out", str(out), "--row", name]
    # Whether operators are recorded is decided when Python starts.
    environment = {**os.environ, "SHAKEDOWN_ADAPTIVE": str(int(mode == "adaptive"))}
    if status := subprocess.run(command, env=environment, check=False).returncode:
        print(f"{name}: its process ended with {status}", file=sys.stderr, flush=True)


def _kept(out: Path) -> list[dict[str, Any]]:
    """The rows that are there, in the order of the tables."""
    models = [json.loads(f.read_text()) for n, _, _ in _models() if (f := out / f"{n}.json").exists()]
    others = [json.loads(f.read_text()) for f in sorted(out.glob("*.json")) if f.name.startswith(packages.PREFIXES)]
    return models + sorted(others, key=lambda r: (packages.PREFIXES.index(r["package"]), r["what"], r["name"]))


def _keep(out: Path, name: str, make: Any) -> None:
    file = out / f"{name}.json"
    if file.exists():
        return
    started = time.monotonic()
    row = {**make(), "name": name, "torch": torch.__version__, "source": program_key.source_digest()}
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(row, indent=1))
    unfinished.replace(file)
    print(f"{name}: {problem_of(row) or 'right'} ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("clients"), help="folder of the rows (default: clients)")
    parser.add_argument("--only", default="", help="rows whose name begins with one of these, by commas")
    parser.add_argument("--write", type=Path, help="page whose table is to be replaced")
    parser.add_argument("--row", help="run this row alone, in this process (how each row is run)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.row is not None:
        (make,) = (make for name, _, make in _jobs((options.row,)) if name == options.row)
        _keep(options.out, options.row, make)
        return 0
    beginnings = tuple(filter(None, options.only.split(","))) or ("",)
    jobs = _jobs(beginnings)
    wanted = [job for job in jobs if job[0].startswith(beginnings)]
    if not wanted:
        print(f"no row's name begins with {options.only!r}; one is called {jobs[0][0]}", file=sys.stderr)
        return 2
    for name, mode, _ in wanted:
        if not (options.out / f"{name}.json").exists():
            _in_own_process(options.out, name, mode)
    kept = _kept(options.out)
    if options.write is not None:
        options.write.write_text(written(options.write.read_text(), kept))
    missing = [n for n, _, _ in wanted if not (options.out / f"{n}.json").exists()]
    if missing:
        print(f"not run: {', '.join(missing)}", file=sys.stderr)
    names = {n for n, _, _ in wanted}
    return 1 if missing or any(problem_of(r) for r in kept if r["name"] in names) else 0


if __name__ == "__main__":
    sys.exit(main())
