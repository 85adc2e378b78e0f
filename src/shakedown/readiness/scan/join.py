"""Whether a place that the scan found ran in the trial.

A record counts for a file only when the file's hash is the scanned one: after an edit, line numbers mean something else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ..evidence.lines import Lines
from .results import Hit, Ran, Scan


def ran(hit: Hit, scan: Scan, records: Iterable[Lines]) -> Ran:
    """What the records of executed lines say about one place."""
    records = list(records)
    if not records:
        return "not run"
    digest = next((file.sha256 for file in scan.files if file.path == hit.path), None)
    if digest is None or not hit.code_lines:
        return "unknown"
    seen = [file for record in records for file in record.files.values() if file.sha256 == digest]
    if not seen:
        return "did not run" if any(covers(record, scan, hit.path) for record in records) else "unknown"
    executed: set[int] = set().union(*(file.lines for file in seen))
    if executed & set(hit.code_lines):
        return "ran"
    at_import = not hit.function
    return "unknown" if at_import and not any(file.imported for file in seen) else "did not run"


def covers(record: Lines, scan: Scan, path: str) -> bool:
    """Whether `record` would list the scanned file `path` if a line of it had run as it is now.

    Paths of a record are relative to the folder that was recorded, which may lie below the folder that was scanned; files
    with equal hashes tell by how much. A file outside it, or one that is listed with another hash, is not covered.
    """
    digests = {file.sha256: file.path for file in scan.files}
    for name, file in record.files.items():
        scanned = digests.get(file.sha256, "")
        if scanned.endswith(name):
            folder = scanned.removesuffix(name)
            if path.startswith(folder) and path.removeprefix(folder) not in record.files:
                return True
    return False


def joined(scan: Scan, records: Iterable[Lines]) -> Scan:
    """`scan` with the answer at every place."""
    records = list(records)
    return scan.model_copy(
        update={"hits": [hit.model_copy(update={"ran": ran(hit, scan, records)}) for hit in scan.hits]}
    )


def by_file(hits: Iterable[Hit]) -> dict[str, list[Hit]]:
    """Places by file, in the order of their lines."""
    found: dict[str, list[Hit]] = defaultdict(list)
    for hit in sorted(hits, key=lambda hit: (hit.path, hit.line, hit.column)):
        found[hit.path].append(hit)
    return dict(found)
