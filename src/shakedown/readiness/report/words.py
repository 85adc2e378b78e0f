"""Units, names and the pieces a report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..judge.results import CaseResult, Cell, CellResult, Verdict
from ..record import Record

Pairs = list[tuple[Cell, CellResult]]
SEVERITY: tuple[Verdict, ...] = ("killed", "timeout", "crashed", "mismatch", "match", "untested")
MODES = {"reference": "CPU", "eager": "eager", "compiled": "compiled", "adaptive": "adaptive"}


@dataclass(frozen=True)
class Table:
    """Header and rows of text."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def filled(self) -> Table:
        """This table without columns that hold a dash in every row; the first column stays."""
        kept = [i for i in range(len(self.header)) if not i or any(row[i] != "–" for row in self.rows)]
        return Table(tuple(self.header[i] for i in kept), [tuple(row[i] for i in kept) for row in self.rows])


@dataclass(frozen=True)
class Section:
    """A heading, sentences, and tables."""

    title: str
    sentences: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.sentences or self.drawn())

    def drawn(self) -> list[Table]:
        """Tables that hold anything, without columns in which nothing stands."""
        return [table.filled() for table in self.tables if table.rows]


def seconds(value: float | None) -> str:
    """A duration with a unit that suits it."""
    if value is None:
        return "–"
    if value >= 10:
        return f"{value:.1f} s"
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 0.1:
        return f"{value * 1e3:.0f} ms"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def share(value: float) -> str:
    """A share in per cent; far beyond the whole, the exact figure says nothing more."""
    return f"{value:.0%}" if value < 10 else "over 1000%"


def loss(value: float | None, digits: int = 4) -> str:
    """A loss; "not finite" is a finding of its own."""
    return "not finite" if value is None else f"{value:.{digits}f}"


def size(value: int | None) -> str:
    """Bytes with a unit that suits them."""
    if value is None:
        return "not seen"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value} B"


def name_of(cell: Cell) -> str:
    """`eager float32 cold`; a process that is not one of the sequences by what it is for."""
    state = "" if cell.cache == "none" else f" {cell.cache}"
    if cell.kind == "sequence":
        return f"{MODES[cell.mode]} {cell.dtype}{state}"
    part = cell.id.removeprefix(f"{cell.mode}-{cell.dtype}-").removesuffix(f"-{cell.cache}")
    return f"{MODES[cell.mode]} {cell.dtype} {part}{state}"


def side_of(mode: str, dtype: str) -> str:
    """`eager float32`: what all processes of one mode and precision have in common."""
    return f"{MODES[mode]} {dtype}"


def by_side(of: Pairs) -> dict[tuple[str, str], Pairs]:
    """Processes of each mode and precision, in the order in which the trial names them."""
    found: dict[tuple[str, str], Pairs] = {}
    for cell, result in of:
        found.setdefault((cell.mode, cell.dtype), []).append((cell, result))
    return found


def worst(verdicts: Sequence[Verdict]) -> str:
    """The verdict that several together deserve: what was not tested does not hide what was."""
    return min(verdicts, key=SEVERITY.index) if verdicts else "–"


def title(record: Record) -> str:
    """What was tried on what, and how that counts."""
    return f"Trial of {record.trial['workload']} on {record.trial['target']} ({record.label})"


def pairs(record: Record) -> Pairs:
    """Each process with its judgement."""
    return list(zip(record.cells, record.judgement.cells, strict=True))


def cases(of: Pairs) -> list[tuple[Cell, CaseResult]]:
    """Each case with the process it ran in."""
    return [(cell, case) for cell, result in of for case in result.cases]


def grouped_findings(record: Record) -> list[tuple[bool, str, str, list[str]]]:
    """What the checks found: whether it fails, its word, its text, and everywhere it was found; what fails comes first."""
    found: dict[tuple[bool, str, str], list[str]] = {}
    for one in record.judgement.findings:
        found.setdefault((not one.fails, one.word, one.text), []).append(f"{one.cell} {one.case}".strip())
    return [
        (not harmless, word, text, where)
        for (harmless, word, text), where in sorted(found.items(), key=lambda item: item[0][:2])
    ]
