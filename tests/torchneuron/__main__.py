"""``python -m tests.torchneuron [--write docs/torchneuron.md]``: run every check; exit code 1 when one is not right."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shakedown.readiness.evidence import write_atomic

from .contract import entries, row_of
from .table import text_of, with_table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torchneuron", description=__doc__)
    parser.add_argument("--write", type=Path, help="the page whose table is to be written; default: standard output")
    parser.add_argument("--only", default="", help="entries whose name contains this")
    chosen = parser.parse_args()
    rows = []
    for one in entries():
        if chosen.only in one.name:
            rows.append(row_of(one))
            if rows[-1].problem:
                print(f"{one.section} {one.name}: {rows[-1].problem}", file=sys.stderr)
    table = text_of(rows)
    if chosen.write is None:
        print(table, end="")
    else:
        write_atomic(chosen.write, with_table(chosen.write.read_text(), table).encode())
    return 1 if any(row.problem for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
