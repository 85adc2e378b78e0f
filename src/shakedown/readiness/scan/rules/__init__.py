"""Everything the scan looks for, one block per rule."""

from __future__ import annotations

from ..rule import Rule
from . import cuda, device, host, numeric, packages, software

EMPTY_IGNORE = Rule(
    id="ignore-without-reason",
    kind="scan",
    severity="note",
    effort="none",
    looks_for="`# shakedown: ignore[...]` without a reason, or with the name of no rule",
    why="A finding may be taken out only by somebody who says why; this comment takes nothing out.",
    source="this scan",
    instead="`# shakedown: ignore[rule] reason`",
)
NATIVE_SOURCE = packages.NATIVE_SOURCE
RULES: tuple[Rule, ...] = (
    *device.RULES,
    *cuda.RULES,
    *packages.RULES,
    *host.RULES,
    *numeric.RULES,
    *software.RULES,
    NATIVE_SOURCE,
    EMPTY_IGNORE,
)

__all__ = ["EMPTY_IGNORE", "NATIVE_SOURCE", "RULES"]
