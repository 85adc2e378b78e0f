"""The self-test: which trials are made, in what order, and what becomes of each. Trials that have ended are not made again."""

from __future__ import annotations

import math
import queue
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import shakedown

from ..errors import BadInput, EvidenceError, Interrupted, TrialError
from ..evidence import read, write
from ..observe import identity
from ..record import Record
from . import detect, table
from .faults import FAULTS
from .results import SelfTest, Tried
from .server import Server
from .trials import Lab, Setting

Progress = Callable[[str, float], None]
_PROBED = {
    "variations.neighbours": "true",
    "variations.neighbour_operators": "6",
    "variations.neighbour_seconds": "150",
}
_RESTARTED = {"variations.restart": "true"}
_VARIED = {"variations.padding": "true", "variations.noncontiguous": "true"}
# What healthy devices go through in turn: workload, shapes, kinds of cells, what is asked for besides.
_ROUNDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], dict[str, str]], ...] = (
    ("block", ("2x8", "2x8"), ("sequence",), {}),
    ("images", ("4x8", "4x8"), ("sequence",), {}),
    ("plain", ("4x6", "3x5", "4x6"), ("sequence",), {}),
    ("plain", ("4x6",), ("restart",), _RESTARTED),
    ("block", ("3x7",), ("variation",), _VARIED),
    ("plain", ("4x6",), ("probe",), _PROBED),
)
_MODES = ("eager", "compiled", "adaptive")
_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Planned:
    """One trial to be made: of a fault in one or several precisions, or of a healthy device."""

    name: str
    setting: Setting
    fault: str = ""


def healthy(count: int) -> list[Planned]:
    """`count` trials of a device that was left alone: every seed is tried in every mode and precision that applies."""
    found: list[Planned] = []
    seed = 0
    while len(found) < count:
        workload, cases, kinds, demand = _ROUNDS[seed % len(_ROUNDS)]
        seed += 1
        for mode in _MODES:
            if kinds == ("probe",) and mode == "adaptive":
                continue
            for dtype in _DTYPES:
                # Precisions share the base of their seed.
                setting = Setting(workload, (mode,), _DTYPES, cases, kinds, demand, seed=seed)
                found.append(Planned(f"healthy-{seed:03d}-{workload}-{'-'.join(kinds)}-{mode}-{dtype}", setting))
    return found[:count]


def faults(names: Sequence[str]) -> list[Planned]:
    """A trial for each of `names`, or for every fault. Raises :class:`BadInput` on a name that is none."""
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise BadInput(f"unknown fault {', '.join(unknown)}; choose among {', '.join(FAULTS)}")
    planned = []
    for name in names or FAULTS:
        recipe = FAULTS[name].recipe
        setting = Setting(
            recipe.workload,
            recipe.modes,
            recipe.dtypes,
            recipe.cases,
            recipe.kinds,
            recipe.demand,
            warm=recipe.warm,
            share=recipe.share,
        )
        planned.append(Planned(name, setting, fault=name))
    return planned


def run(
    planned: Sequence[Planned], out: Path, jobs: int = 1, keep: bool = False, progress: Progress = lambda *_: None
) -> SelfTest:
    """Make the trials of `planned` in `out`, `jobs` at a time, and sum them up in ``selftest.json``.

    What `out` has of another version of the source is made again. A trial is thrown away once it is summed up, unless
    something is wrong with it, or `keep`.

    Raises:
        BadInput: `out` cannot be made, or `jobs` is not a number of processes.
    """
    if jobs < 1:
        raise BadInput(f"--jobs {jobs} leaves nobody to do the work; give 1 or more")
    begun, source = time.monotonic(), identity.source_sha256()
    try:
        (out / "tried").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the directory {out}: {error.strerror}") from None
    waiting = [one for one in planned if not _known(out, one, source)]
    servers = [Server(out / "logs" / f"server-{number}.stderr") for number in range(jobs)]
    every = [Lab(out / f"lab-{number}", out / "cache", server) for number, server in enumerate(servers)]
    labs: queue.Queue[Lab] = queue.Queue()
    for lab in every:
        labs.put(lab)
    done = len(planned) - len(waiting)

    def work(one: Planned) -> list[Tried]:
        lab = labs.get()
        try:
            return _try(lab, one, source, keep)
        finally:
            labs.put(lab)

    pool = ThreadPoolExecutor(jobs)
    try:
        running = {pool.submit(work, one): one for one in waiting}
        for finished in as_completed(running):
            one = running[finished]
            for result in finished.result():
                write(result, _file(out, one, result.dtype))
            done += 1
            words = ", ".join(dict.fromkeys(result.result for result in finished.result()))
            left = (time.monotonic() - begun) / max(done - len(planned) + len(waiting), 1) * (len(planned) - done)
            progress(
                f"{one.name}: {words} ({done} of {len(planned)}, about {left / 60:.0f} min left)", done / len(planned)
            )
    except BaseException:
        for lab in every:  # or what runs now would have to end by itself
            lab.stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for server in servers:
            server.__exit__(None, None, None)
    tried = [read(Tried, _file(out, one, dtype)) for one in planned for dtype in _dtypes(one)]
    summary = SelfTest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        shakedown_version=shakedown.__version__,
        source_sha256=source,
        versions=identity.versions(),
        seconds=sum(one.seconds for one in tried),
        jobs=jobs,
        tried=tried,
        false_alarms=table.false_alarms(tried),
        words=table.words(tried),
    )
    write(summary, out / "selftest.json")
    return summary


def _dtypes(one: Planned) -> tuple[str, ...]:
    return one.setting.dtypes if one.fault else (one.name.rpartition("-")[2],)


def _file(out: Path, one: Planned, dtype: str) -> Path:
    return out / "tried" / (f"{one.name}-{dtype}.json" if one.fault else f"{one.name}.json")


def _known(out: Path, one: Planned, source: str) -> bool:
    try:
        return all(read(Tried, _file(out, one, dtype)).source_sha256 == source for dtype in _dtypes(one))
    except EvidenceError:
        return False


def _try(lab: Lab, one: Planned, source: str, keep: bool) -> list[Tried]:
    begun = time.monotonic()
    shutil.rmtree(lab.folder / "trials" / one.name, ignore_errors=True)  # left by one that was interrupted
    try:
        record = lab.try_out(one.setting, one.name, one.fault, _dtypes(one))
    except Interrupted:
        raise
    except (TrialError, RuntimeError, OSError) as error:
        seconds = time.monotonic() - begun
        return [_not_applicable(one, dtype, source, seconds, str(error)) for dtype in _dtypes(one)]
    seconds = (time.monotonic() - begun) / len(_dtypes(one))
    found = [_summed(one, dtype, source, record, seconds) for dtype in _dtypes(one)]
    if not keep and all(tried.result in ("caught", "below rounding", "legal") for tried in found):
        shutil.rmtree(lab.folder / "trials" / one.name)
    return found


def _fields(one: Planned, dtype: str, source: str, seconds: float) -> dict[str, object]:
    fault = FAULTS.get(one.fault)
    return {
        "name": one.name,
        "kind": "fault" if fault else "healthy",
        "group": fault.group if fault else "healthy",
        "what": fault.what if fault else "A device that was left alone.",
        "source_sha256": source,
        "workload": one.setting.workload,
        "modes": list(one.setting.modes),
        "dtype": dtype,
        "seed": one.setting.seed,
        "expected": [by.word for by in fault.by] if fault else [],
        "phase": ", ".join(dict.fromkeys(by.phase for by in fault.by if by.phase)) if fault else "",
        "seconds": seconds,
    }


def _not_applicable(one: Planned, dtype: str, source: str, seconds: float, reason: str) -> Tried:
    return Tried.model_validate(
        _fields(one, dtype, source, seconds)
        | {"result": "not applicable", "by": [], "detections": [], "verdict": "", "reason": reason[:2000]}
    )


def _summed(one: Planned, dtype: str, source: str, record: Record, seconds: float) -> Tried:
    found = detect.detections(record.judgement, record.cells)
    fault = FAULTS.get(one.fault)
    mine = [d for d in found if d.dtype in ("", dtype)]
    if fault is not None:
        result, by = detect.result_of(fault, dtype, found)
    else:
        failing = [d for d in mine if d.fails]
        result, by = ("alarm", failing) if failing else ("legal", [])
    margins = [
        case.tensors.worst_margin
        for cell in record.judgement.cells
        for case in cell.cases
        if case.tensors and any(c.id == cell.cell and c.mode != "reference" and c.dtype == dtype for c in record.cells)
    ]
    worst = max(margins, default=None)
    return Tried.model_validate(
        _fields(one, dtype, source, seconds)
        | {
            "result": result,
            "by": by[:6],
            "detections": mine[:40],
            "verdict": "failed" if any(d.fails for d in mine) else "passed",
            "margin": worst if worst is None or math.isfinite(worst) else None,
        }
    )
