"""A record of this version in a second, without a device: the kept evidence of a real trial, judged and sealed today."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from shakedown.readiness import record as records
from shakedown.readiness.record import sealing

KEPT = Path(__file__).with_name("records") / "version2"


def made(folder: Path) -> Path:
    """A sealed record in the new directory `folder`."""
    before = records.load(KEPT)
    shutil.copytree(KEPT, folder)
    (folder / "record.json").unlink()
    records.seal(folder, dict(before.trial), before.cells)
    return folder


def raw_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "record.json").read_text()))


def rewrite(folder: Path, raw: dict[str, Any], seal: bool = True) -> None:
    """Write `raw` as the record, by default with the seal that belongs to it, as a careful forger would."""
    if seal:
        raw = raw | {"seal": sealing.digest(raw)}
    (folder / "record.json").write_text(json.dumps(raw))
