"""From a record and the name of a cell to an archive."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shakedown

from .. import evidence as ev
from .. import record as records
from ..errors import BadInput, OutputExists, RecordError
from ..judge.results import FAILED, Cell
from ..record import Record
from . import archive, contents, page
from .results import Bundle

_RUNS = Path("shakedown-runs")  # where `shakedown bisect` writes by default


@dataclass(frozen=True)
class Request:
    """What is to be bundled. No case: the cell's first failed one, or all of a cell where none failed.

    ``bisect`` is the directory of a localisation; None looks beside the record and in shakedown-runs.
    """

    record: Path
    cell: str
    out: Path
    case: str = ""
    bisect: Path | None = None
    unverified: bool = False


def make(request: Request) -> Bundle:
    """Write the archive; returns its manifest.

    Raises:
        BadInput: no readable record, no such cell or case, another record's localisation, an existing or unknown output.
        RecordError: the record does not verify, and `unverified` was not asked for.
    """
    if not request.out.name.endswith(archive.FORMS):
        raise BadInput(f"{request.out} must end in one of {', '.join(archive.FORMS)}, which says what to make")
    if request.out.exists():
        raise OutputExists(f"{request.out} exists and is left as it is; give another --out")
    try:
        record = records.load(request.record)
    except RecordError as error:
        raise BadInput(f"{error}; give the directory of a finished trial") from None
    cell, case = _subject(request, record)
    verification = records.verify(request.record)
    if not verification.verified and not request.unverified:
        first = "; ".join(verification.problems[:3])
        more = f" and {len(verification.problems) - 3} more" if len(verification.problems) > 3 else ""
        raise RecordError(
            f"{request.record} does not verify: {first}{more}. Who gets a bundle relies on it: start from the original record, "
            "or say --unverified, and the bundle will say so, too"
        )
    localised = _localised(request, record, case)
    source = contents.Source(request.record, record, cell, case, *(localised or (None, None)))
    gathered = contents.gather(source)
    bundle = _manifest(source, gathered, verification)
    gathered.add_text("README.md", page.readme(bundle, _versions(record, cell)), "this page, to be read first")
    bundle = bundle.model_copy(update={"files": gathered.listed()})
    shown, _ = gathered.mask.document(bundle.model_dump(mode="json"))
    gathered.files["manifest.json"] = (json.dumps(shown, indent=1, ensure_ascii=False) + "\n").encode()
    packed = archive.pack(gathered.files, _folder(record, cell, case), request.out.name)
    try:
        ev.write_atomic(request.out, packed)
    except OSError as error:
        raise BadInput(f"cannot write {request.out}: {error.strerror}") from None
    return Bundle.model_validate(shown)


def _folder(record: Record, cell: Cell, case: str) -> str:
    """The folder inside the archive: what it is about, and not what the archive happens to be called."""
    text = "-".join(part for part in (record.trial["workload"], cell.id, case) if part)
    return "".join(c if c.isalnum() or c in "-_~." else "_" for c in text).lstrip(".")[:120] or "bundle"


def _subject(request: Request, record: Record) -> tuple[Cell, str]:
    cells = {cell.id: cell for cell in record.cells}
    if request.cell not in cells:
        raise BadInput(f"there is no cell {request.cell!r} in {request.record}; choose among {', '.join(cells)}")
    cell = cells[request.cell]
    if request.case and request.case not in cell.cases:
        known = ", ".join(cell.cases) or "none: it has no cases"
        raise BadInput(f"cell {cell.id} has no case {request.case!r}; choose among {known}")
    result = next((r for r in record.judgement.cells if r.cell == cell.id), None)
    failed = [c.case for c in result.cases if c.verdict in FAILED] if result else []
    return cell, request.case or next(iter(failed), "")


def _localised(request: Request, record: Record, case: str) -> tuple[Any, Path] | None:
    if request.bisect is not None:
        found = contents.localisation([request.bisect], record, request.cell, case)
        if found is None:
            of = f"{request.cell}, {case}" if case else request.cell
            raise BadInput(f"{request.bisect} holds no bisect.json about {of} of this very record")
        return found
    around = [request.record.absolute().parent, _RUNS]
    folders = [
        path for place in around if place.is_dir() for path in place.iterdir() if (path / "bisect.json").is_file()
    ]
    return contents.localisation(folders, record, request.cell, case)


def _manifest(source: contents.Source, gathered: contents.Gathered, verification: records.Verification) -> Bundle:
    record, cell = source.record, source.cell
    said = contents.finding(record, cell, source.case)
    result = said["result"] or {"verdict": "untested", "reason": "it was not judged", "cases": []}
    findings = [f"{c['case']}: {text}" for c in result["cases"] for text in c["findings"]]
    findings += [f"{f['word']}: {f['text']}" for f in said["findings"]]
    findings += [f"{c['case']}: {c['verdict']}: {c['reason']}" for c in result["cases"] if c["reason"]]
    if result["reason"]:
        findings.append(result["reason"])
    ask = f"shakedown bisect RECORD {cell.id}" + (f" --case {source.case}" if source.case else "")
    localised = f"Not localised: `{ask}` finds where it begins, as a case of a few lines. Bundle again after it."
    if source.bisect:
        localised = f"{source.bisect.text}."
    elif result["verdict"] == "match":
        localised = "There is nothing to localise: this cell matches."
    return Bundle(
        shakedown_version=shakedown.__version__,
        record_seal=record.seal,
        record_created=record.created,
        label=record.label,
        label_text=record.label_text,
        workload=record.trial["workload"],
        target=cell.target,
        cell=cell.id,
        case=source.case,
        verdict=result["verdict"],
        findings=list(dict.fromkeys(findings)),
        verified=verification.verified,
        problems=verification.problems,
        localised=localised,
        has_minimal_case="case/case.py" in gathered.files,
        left_out=list(contents.LEFT_OUT),
        files=gathered.listed(),
    )


def _versions(record: Record, cell: Cell) -> dict[str, Any]:
    fixed, own = record.identity["fixed"], record.identity["cells"].get(cell.id, {})
    found = {"python": fixed.get("python"), "platform": fixed.get("platform"), "cpu": fixed.get("cpu")}
    for table in (fixed.get("versions"), own.get("backend")):
        found |= table if isinstance(table, dict) else {}
    if "Python" in found:  # with its implementation
        del found["python"]
    return found | {"answered for the device": own.get("family", "not known")}
