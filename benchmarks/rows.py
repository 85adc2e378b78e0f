"""One line of the table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .measure import Comparison


@dataclass(frozen=True)
class Row:
    """``figure`` is what the table shows; ``met`` is None where there is no target."""

    name: str
    peer: str
    target: str
    figure: str
    met: bool | None
    detail: dict[str, Any]
    ratio: float | None = None


def compared(name: str, peer: str, limit: float | None, found: Comparison, **detail: Any) -> Row:
    """The row of a comparison whose ratio should be at most `limit`."""
    return Row(
        name,
        peer,
        "none" if limit is None else f"<= {limit:.2f}x",
        f"{found.ratio:.2f}x",
        None if limit is None else found.ratio <= limit,
        {**asdict(found), "noisy": found.noisy, **detail},
        found.ratio,
    )
