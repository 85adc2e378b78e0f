"""What the scan of the source means for the trial: devices named in lines that ran, and kernels that nobody answers for.

Nothing here fails a cell: the scan reads text, and the cell that ran the text has been judged by its numbers already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import EvidenceError
from ..evidence.files import read
from ..evidence.lines import Lines
from ..requirements import Kernel, Requirements
from ..scan.join import joined, ran
from ..scan.results import Hit, Scan
from .results import Cell, Finding

FILE = "scan.json"
RECORD = "lines.json"
SNAPSHOT = "snapshot"  # the process that builds the model and the batches
WITHOUT_DEVICE = "factory-without-device"  # the one rule of its kind that names no device


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """Read ``scan.json`` and the cells' ``lines.json`` in the run at `root`. A run without a scan has no findings."""
    if not (root / FILE).exists():
        return []
    try:
        scan = read(Scan, root / FILE)
        records = _records(root, cells)
    except EvidenceError as error:
        return [Finding(word="untested(scan)", cell="", text=str(error), fails=False)]
    return [*devices(scan, records), *kernels(scan.hits, requirements.kernels)]


def read_joined(root: Path, cells: list[Cell]) -> Scan | None:
    """The scan with whether each place ran; None where there was none. Raises :class:`EvidenceError` on a damaged file."""
    if not (root / FILE).exists():
        return None
    return joined(read(Scan, root / FILE), _records(root, cells).values())


def _records(root: Path, cells: list[Cell]) -> dict[str, Lines]:
    return recorded(root, [SNAPSHOT, *(cell.id for cell in cells)])


def recorded(root: Path, cells: Iterable[str]) -> dict[str, Lines]:
    """The records of executed lines, by cell. Raises :class:`EvidenceError` on a damaged one."""
    paths = {cell: root / "evidence" / cell / RECORD for cell in cells}
    return {cell: read(Lines, path) for cell, path in paths.items() if path.exists()}


def devices(scan: Scan, records: dict[str, Lines]) -> list[Finding]:
    """Hard-coded devices in lines that ran: on the target, they are where the program stops or stays on the host."""
    named = [hit for hit in scan.hits if hit.kind == "device" and hit.severity != "note"]
    if not named:
        return []
    if not records:
        text = f"which lines ran was not recorded: {len(named)} places that name a device may or may not run"
        return [Finding(word="untested(lines)", cell="", text=text, fails=False)]
    found = []
    for hit in named:
        where = next((cell for cell, record in records.items() if ran(hit, scan, [record]) == "ran"), None)
        if where is not None:
            instead = scan.rules[hit.rule].instead
            text = f"{hit.where} ran ({hit.phase}): `{hit.text}`; write {instead}"
            word = "made-without-device" if hit.rule == WITHOUT_DEVICE else "hard-coded-device"
            found.append(Finding(word=word, cell=where, text=text, fails=False))
    unknown = sum(ran(hit, scan, records.values()) == "unknown" for hit in named)
    if unknown:
        why = "the file changed, lies outside the recorded folder, or was imported before"
        text = f"whether {unknown} places that name a device ran is unknown: {why}"
        found.append(Finding(word="untested(lines)", cell="", text=text, fails=False))
    return found


def kernels(hits: Iterable[Hit], declared: list[Kernel]) -> list[Finding]:
    """Hand-written kernels that the requirements do not list, or list without an owner or a fallback."""
    places: dict[str, list[Hit]] = {}
    for hit in hits:
        if hit.kernel:
            places.setdefault(hit.kernel, []).append(hit)
    found = []
    for name, where in sorted(places.items()):
        first = f"{where[0].where} ({where[0].rule})" + (f" and {len(where) - 1} more" if len(where) > 1 else "")
        known = next((kernel for kernel in declared if same_kernel(kernel.name, name)), None)
        if known is None:
            text = f"{name}, {first}, is not declared; add it to [[kernels]] with its owner and what runs without it"
            found.append(Finding(word="kernel-undeclared", cell="", text=text, fails=False))
            continue
        if not known.owner.strip():
            text = f"{name}, {first}, has no owner: nobody maintains its backward and the shapes it covers"
            found.append(Finding(word="kernel-without-owner", cell="", text=text, fails=False))
        if not known.fallback.strip():
            text = f"{name}, {first}, has no fallback: where it does not run, the workload does not"
            found.append(Finding(word="kernel-without-fallback", cell="", text=text, fails=False))
    return found


def same_kernel(declared: str, found: str) -> bool:
    """Whether a declared name means the kernel that was found: the name, its namespace, or the package that brings it."""
    one, other = (re.sub(r"::|/", ".", name.strip().lower().replace("-", "_")) for name in (declared, found))
    return one == other or other.startswith(one + ".") or other.endswith("." + one)
