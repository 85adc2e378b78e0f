"""Which files go into a bundle: those about one cell, masked, and of tensors only those of the minimal case."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import evidence as ev
from ..bisect.result import Bisect
from ..errors import BadInput, EvidenceError
from ..evidence import printable, untrusted
from ..judge.results import Cell
from ..record import Record
from .mask import Mask
from .results import Bundled

_LONGEST_LOG = 2_000_000  # bytes, from the beginning and the end each
_LARGEST_NUMBERS = 512 << 20
_CASE_FILES = ("case.py", "README.md", "tensors.safetensors")
LEFT_OUT = (
    "weights, batches, optimizer state and captured tensors of the workload; their names and shapes are in the evidence",
    "the workload's source; lines of it that a finding names are there as file and line",
    "evidence of other cells",
)


@dataclass
class Gathered:
    """Files of a bundle as they will be, by name, and what is said about each."""

    mask: Mask
    files: dict[str, bytes] = field(default_factory=dict)
    about: dict[str, Bundled] = field(default_factory=dict)

    def add(self, name: str, content: bytes, what: str, masked: int = 0, original: str = "") -> None:
        """Put a file in as it is."""
        self.files[name] = content
        self.about[name] = Bundled(
            name=name,
            what=what,
            nbytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            masked=masked,
            of_record_sha256=original,
        )

    def listed(self) -> list[Bundled]:
        """What is said about every file, by name."""
        return [self.about[name] for name in sorted(self.about)]

    def add_text(self, name: str, text: str, what: str, original: str = "") -> None:
        """Put text in, masked."""
        shown, count = self.mask.text(printable(text))
        self.add(name, shown.encode(), what, count, original)

    def add_document(self, name: str, value: Any, what: str, original: str = "") -> None:
        """Put JSON in, masked."""
        shown, count = self.mask.document(value)
        self.add(name, (json.dumps(shown, indent=1, ensure_ascii=False) + "\n").encode(), what, count, original)


@dataclass(frozen=True)
class Source:
    """A record on disk, and what a bundle is about."""

    root: Path
    record: Record
    cell: Cell
    case: str
    bisect: Bisect | None
    bisect_folder: Path | None


def gather(source: Source) -> Gathered:
    """Everything but the README and the manifest."""
    record, fixed = source.record, source.record.identity["fixed"]
    gathered = Gathered(Mask(hosts=[str(fixed.get("host", ""))]))
    work: list[Callable[[], None]] = []  # done when everything has been learned that is to be masked

    def document(name: str, value: Any, what: str, original: str = "") -> None:
        gathered.mask.learn(value)
        work.append(lambda: gathered.add_document(name, value, what, original))

    def text(name: str, value: str, what: str, original: str = "") -> None:
        gathered.mask.learn(value)
        work.append(lambda: gathered.add_text(name, value, what, original))

    own = record.identity["cells"].get(source.cell.id, {})
    document("identity.json", {"fixed": fixed, "cell": own}, "who measured, and with which versions")
    environment = {**_table(fixed.get("environment")), **_table(own.get("environment"))}
    document("environment.json", dict(sorted(environment.items())), "environment variables of the process")
    document("requirements.json", record.requirements.model_dump(mode="json"), "demands and tolerances")
    document("finding.json", finding(record, source.cell, source.case), "the verdict on this cell, and every finding")
    for name in sorted(record.files):
        original = record.files[name].sha256
        if _evidence(name, source.cell.id, source.case):
            document(name, _read(source.root, name), "what the process wrote", original)
        elif _log(name, source.cell.id):
            text(name, _log_text(source.root / name), "what the process was told and said", original)
    if (numbers := _numbers(source)) is not None:
        document("numbers.json", numbers, "error of every tensor against its bound")
    if source.bisect is not None and source.bisect_folder is not None:
        document("bisect.json", source.bisect.model_dump(mode="json"), "where the finding begins")
        _minimal_case(source.bisect, source.bisect_folder, gathered, text)
    for job in work:
        job()
    return gathered


def finding(record: Record, cell: Cell, case: str) -> dict[str, Any]:
    """What the judgement says about one cell, or one case of it."""
    judged = next((r for r in record.judgement.cells if r.cell == cell.id), None)
    result = judged.model_dump(mode="json") if judged else None
    if result and case:
        result["cases"] = [c for c in result["cases"] if c["case"] == case]
    return {
        "label": record.label,
        "cell": cell.model_dump(mode="json"),
        "result": result,
        "findings": [
            f.model_dump(mode="json")
            for f in record.judgement.findings
            if f.cell == cell.id and f.case in ("", case or f.case)
        ],
    }


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _evidence(name: str, cell: str, case: str) -> bool:
    """Whether a file is a document of the cell: of this case (``2x8.json``, ``2x8.graphs.json``), or of the process."""
    folder, _, last = name.rpartition("/")
    if folder != f"evidence/{cell}" or not last.endswith(".json"):
        return False
    of = last.split(".")[0]
    return not case or of == case or not of[:1].isdigit()


def _log(name: str, cell: str) -> bool:
    folder, _, last = name.rpartition("/")
    return folder == "logs" and last in {f"{cell}.stderr", f"{cell}.stdout", f"{cell}.job.json"}


def _read(root: Path, name: str) -> Any:
    """A document; one that cannot be read is told as such, because that may be what the bundle is about."""
    try:
        return untrusted.read_json(root / name)
    except (OSError, ValueError) as error:
        return {"unreadable": str(error).replace(str(root), "")}


def _log_text(path: Path) -> str:
    try:
        data = untrusted.read_bytes(path, limit=1 << 40)
    except (OSError, ValueError) as error:
        return f"(not readable: {type(error).__name__})\n"
    if len(data) > 2 * _LONGEST_LOG:
        left = len(data) - 2 * _LONGEST_LOG
        data = data[:_LONGEST_LOG] + f"\n({left:,} bytes left out)\n".encode() + data[-_LONGEST_LOG:]
    return data.decode(errors="replace")


def _numbers(source: Source) -> Any:
    try:
        cells = untrusted.read_json(source.root / "vectors.json", _LARGEST_NUMBERS)
        cases = cells[source.cell.id]
        return {source.case: cases[source.case]} if source.case else cases
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a cell that was not compared has none


def _minimal_case(bisect: Bisect, folder: Path, gathered: Gathered, text: Callable[..., None]) -> None:
    """The runnable case, its tensors included: they are the few values that show the finding."""
    found = bisect.found
    if found is None or not found.case:
        return
    if "/" in found.case or "\\" in found.case or found.case.startswith("."):
        raise BadInput(f"{folder / 'bisect.json'} names the folder {printable(found.case)!r}, which is not inside it")
    for name in _CASE_FILES:
        try:
            data = untrusted.read_bytes(folder / found.case / name)
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{folder / found.case / name} belongs to the minimal case and cannot be read: {error}"
            ) from None
        if name.endswith(".safetensors"):
            gathered.add(f"case/{name}", data, "tensors of the minimal case, and no others")
        else:
            text(f"case/{name}", data.decode(errors="replace"), "the minimal case, to be run alone")


def localisation(folders: list[Path], record: Record, cell: str, case: str) -> tuple[Bisect, Path] | None:
    """The last result of localisation (by folder name) in `folders` that is about this record, cell and case."""
    for folder in sorted(folders, key=lambda f: f.name, reverse=True):
        try:
            found = ev.read(Bisect, folder / "bisect.json")
        except EvidenceError:
            continue
        if (found.record_seal, found.cell) == (record.seal, cell) and case in ("", found.case):
            return found, folder
    return None
