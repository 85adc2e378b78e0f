"""Shares and gaps counted from a sweep's rows."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from .checks import BY_OPERATOR
from .results import BAD, RIGHT, Row

_SAMPLE_CHECKS = ("forward", "inplace", "out", "noncontiguous", "view")


def _share(rows: Iterable[Row], right: Callable[[Row], bool]) -> dict[str, Any]:
    measured = [r for r in rows if r.status != "skipped"]
    good = sum(map(right, measured))
    return {"measured": len(measured), "good": good, "share": good / len(measured) if measured else None}


def summarise(rows: list[Row]) -> dict[str, Any]:
    """Counts and shares, each with the number of checks behind it.

    - ``correct``: checks of operator samples (forward, in-place, ``out=``, layouts) whose status is right.
    - ``on_device``: of the right ones among them, those that never touched the CPU.
    - ``gradients``, ``errors``, ``modules``: the same, of those checks.
    - ``by_operator``: right checks in compile mode of which some graph could not be one program.
    - ``skipped`` were not measured and count nowhere: the CPU raises, or Dynamo does not capture the sample.
    """
    ops = [r for r in rows if r.suite == "op_db"]
    plain = [r for r in ops if r.check in _SAMPLE_CHECKS]
    by_dtype = {}
    for dtype in dict.fromkeys(r.dtype for r in plain):
        mine = [r for r in plain if r.dtype == dtype]
        by_dtype[dtype] = {
            "correct": _share(mine, lambda r: r.status in RIGHT),
            "on_device": _share(mine, lambda r: r.status in ("native", "decomposed")),
            "gradients": _share(
                (r for r in ops if r.check == "gradient" and r.dtype == dtype), lambda r: r.status in RIGHT
            ),
        }
    return {
        "rows": len(rows),
        "status": dict(collections.Counter(r.status for r in rows).most_common()),
        "correct": _share(plain, lambda r: r.status in RIGHT),
        "on_device": _share(plain, lambda r: r.status in ("native", "decomposed")),
        "gradients": _share((r for r in ops if r.check == "gradient"), lambda r: r.status in RIGHT),
        "errors": _share((r for r in ops if r.check == "error"), lambda r: r.status == "same-error"),
        "modules": _share((r for r in rows if r.suite == "module_db"), lambda r: r.status in RIGHT),
        "crashes": sum(r.status == "crashed" for r in rows),
        "timeouts": sum(r.status == "timeout" for r in rows),
        "by_operator": sum(r.message == BY_OPERATOR for r in rows),
        "judged_by_float64": sum(r.judged_by_float64 for r in rows),
        "by_check": {
            check: dict(collections.Counter(r.status for r in rows if r.check == check).most_common())
            for check in dict.fromkeys(r.check for r in rows)
        },
        "by_dtype": by_dtype,
    }


def gaps(rows: list[Row], limit: int = 10) -> list[dict[str, Any]]:
    """What costs most: operators on the CPU, and entries that are not right, by the number of checks they cost."""
    found: dict[tuple[str, str], list[Row]] = collections.defaultdict(list)
    for row in rows:
        if row.status in BAD:
            found[row.status, row.op].append(row)
        elif row.status == "fallback":
            for name in row.fallbacks:
                found["fallback", name].append(row)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))[:limit]
    return [
        {
            "what": what,
            "name": name,
            "checks": len(cost),
            "entries": sorted({r.op for r in cost})[:5],
            "dtypes": sorted({r.dtype for r in cost}),
            "example": next((r.message for r in cost if r.message), ""),
        }
        for (what, name), cost in ordered
    ]
