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
    digests = {file.path: file.sha256 for file in scan.files}
    digest = digests.get(hit.path)
    seen = [file for record in records for file in record.files.values() if file.sha256 == digest]
    if digest is None or not hit.code_lines:
        return "unknown"
    if not seen:
        names = [name for record in records for name in record.files]
        changed = any(
            name == hit.path or hit.path.endswith("/" + name) or name.endswith("/" + hit.path) for name in names
        )
        return "unknown" if changed else "did not run"
    executed: set[int] = set().union(*(file.lines for file in seen))
    if executed & set(hit.code_lines):
        return "ran"
    at_import = not hit.function
    return "unknown" if at_import and not any(file.imported for file in seen) else "did not run"


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
