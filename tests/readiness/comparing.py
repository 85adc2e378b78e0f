"""Pairs of records to compare: the kept evidence of a real trial, changed in one place, judged and sealed today."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from shakedown.readiness import compare
from shakedown.readiness import record as records
from shakedown.readiness.compare import Comparison
from shakedown.readiness.evidence import sha256
from shakedown.readiness.judge.results import Cell
from shakedown.readiness.record import sealing

from .resealed import KEPT

CASE, EAGER, CPU = "2x3", "eager-float32", "reference-float32"
Edit = Callable[[dict[str, Any]], None]


def made(out: Path) -> Path:
    """The kept evidence of a real trial of one case, judged and sealed today; every interval from a few hundred draws.

    It was measured on the CPU. Here it passes for a rehearsal, so that operators may fall back.
    """
    shutil.copytree(KEPT, out)
    locked = out / "requirements.json"
    edited(locked, lambda raw: raw["values"]["resampling"].update(draws=300))

    def rehearsed(raw: dict[str, Any]) -> None:
        raw["requirements_sha256"] = sha256(locked)
        if raw.get("cell") == EAGER:
            raw["identity"]["also"]["family"] = "rehearsal"
        if "paths" in raw:
            raw["paths"] |= {"unobservable": {}, "first_step": raw["paths"]["later_step"]}

    for path in (*out.glob(f"evidence/*/{CASE}.json"), *out.glob("evidence/truth/*.json")):
        edited(path, rehearsed)
    known = records.load(KEPT)
    cells = [cell if cell.id == CPU else cell.model_copy(update={"target": "neuron"}) for cell in known.cells]
    records.seal(out, dict(known.trial) | {"target": "neuron"}, cells)
    return out


def broken(base: Path, out: Path) -> Path:
    """The same trial, whose device made a gradient that is half a per cent too large."""

    def change(root: Path) -> None:
        path = root / "evidence" / EAGER / f"{CASE}.json"
        raw = json.loads(path.read_text())
        values = load_file(root / raw["tensors_file"])
        values["step1/gradient/weight"] = values["step1/gradient/weight"] * np.float32(1.005)
        new = root / "evidence" / "tensors" / "wrong.safetensors"
        save_file(values, new)
        old = raw["tensors_sha256"]
        raw |= {"tensors_file": "evidence/tensors/wrong.safetensors", "tensors_sha256": sha256(new)}
        path.write_text(json.dumps(raw))
        truth = json.loads((root / "evidence" / "truth" / f"{old[:16]}.json").read_text())
        truth["of_tensors_sha256"] = sha256(new)
        (root / "evidence" / "truth" / f"{sha256(new)[:16]}.json").write_text(json.dumps(truth))

    return judged_again(base, out, change)


def edited(path: Path, edit: Edit) -> None:
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))


def judged_again(base: Path, out: Path, change: Callable[[Path], list[Cell] | None]) -> Path:
    """A copy of the trial whose evidence `change` has altered, judged and sealed as any trial is; with the processes that
    it returns, if any.
    """
    shutil.copytree(base, out)
    known = records.load(out)
    records.seal(out, dict(known.trial), change(out) or known.cells)
    return out


def resealed(base: Path, out: Path, edit: Edit, keep: bool = True) -> Path:
    """A copy whose record says something else under a seal that fits; without `keep`, of the record alone."""
    if keep:
        shutil.copytree(base, out)
    else:
        out.mkdir()
    raw = json.loads((base / "record.json").read_text())
    edit(raw)
    raw["seal"] = sealing.digest(raw)
    (out / "record.json").write_text(json.dumps(raw))
    return out


def compared(before: Path, after: Path, allow: bool = False) -> Comparison:
    return compare.compare(compare.opened(before), compare.opened(after), allow)
