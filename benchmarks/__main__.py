"""``python -m benchmarks [CASE ...]``: a table on standard error, every figure as JSON on standard output."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path

import jax
import torch
from rich.console import Console
from rich.table import Table

from .cases import CASES, run


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios of the device against peers on the same work in the same run.")
    parser.add_argument(
        "case",
        nargs="*",
        help=f"one or more of {', '.join(CASES)}, or adaptive for all of its rows (default: all rows)",
    )
    parser.add_argument("--json", type=Path, help="write the JSON to this file instead of standard output")
    options = parser.parse_args()
    names = [
        n for c in options.case for n in ([n for n in CASES if n.startswith("adaptive-")] if c == "adaptive" else [c])
    ]
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}: choose among {', '.join(CASES)}, adaptive")
    if torch.neuron.adaptive.enabled():
        parser.error("rows choose their modes: unset SHAKEDOWN_ADAPTIVE")
    torch.set_num_threads(os.cpu_count() or 1)
    console = Console(stderr=True)
    table = Table("work", "against", "figure", "target", "met", "IQR / median", "others' load")
    rows = []
    for row, _seconds in run(names or list(CASES)):
        rows.append(row)
        d = row.detail
        spread = (
            f"{d['ours']['iqr'] / d['ours']['median']:.0%}, {d['peer']['iqr'] / d['peer']['median']:.0%}"
            if "ours" in d
            else ""
        )
        load = f"{d['foreign']:.2f} cores{' (noisy)' if d['noisy'] else ''}" if "foreign" in d else ""
        met = "" if row.met is None else "yes" if row.met else "no"
        table.add_row(row.name, row.peer, row.figure, row.target, met, spread, load)
        console.print(f"measured: {row.name}: {row.figure}", style="dim", soft_wrap=True)
    console.print(table)
    machine = {
        "processors": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "jax": jax.__version__,
    }
    figures = json.dumps({"machine": machine, "rows": [asdict(r) for r in rows]}, indent=1)
    if options.json:
        options.json.write_text(figures)
    else:
        print(figures)


if __name__ == "__main__":
    main()
