"""Real trials of small workloads: the snapshot and the CPU's own run once for each workload, a fresh process for each device."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from .. import requirements, state, targets, trial, workload
from ..evidence import write, write_atomic
from ..judge.results import Cell, Outcome
from ..record import Record
from ..runner import Executor, Launch, LocalProcesses
from .inject import VARIABLE
from .server import Server

WORKLOADS = Path(__file__).with_name("workloads")
_SEED = re.compile(r"^SEED = \d+", re.MULTILINE)
# Nothing is timed for its own sake: one process, few steps, one thread, and a clock that decides only where a fault asks.
DEMAND = {
    "timing.steps": "5",
    "timing.processes": "1",
    "timing.attempts": "1",
    "timing.scaling_tolerance": "1e9",
    "run.threads": "1",
    "run.timeout_seconds": "240",
    "parity.steps": "0",
    "variations.logging_every": "0",
    "variations.padding": "false",
    "variations.noncontiguous": "false",
    "variations.hard_inputs": "false",
    "variations.neighbours": "false",
    "variations.restart": "false",
}


@dataclass(frozen=True)
class Setting:
    """What one trial is made of."""

    workload: str
    modes: tuple[str, ...]
    dtypes: tuple[str, ...]
    cases: tuple[str, ...]
    kinds: tuple[str, ...] = ("sequence",)
    demand: Mapping[str, str] = field(default_factory=dict)
    warm: bool = False
    share: bool = True
    seed: int = 0

    @property
    def base(self) -> str:
        """A name for what does not depend on the device: workload, seed, precisions, shapes and requirements."""
        again = "adaptive" in self.modes and len(set(self.cases)) == len(self.cases)  # see matrix.plan
        parts = (self.workload, self.seed, self.dtypes, self.cases, sorted(self.demand.items()), again)
        return f"{self.workload}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


class Lab:
    """A folder in which trials are made, one after the other. Of several labs, each has a folder and a server of its own;
    they may share `cache`, a folder of compiled programs.
    """

    def __init__(self, folder: Path, cache: Path, server: Server) -> None:
        self.folder, self.cache, self.server = folder, cache, server
        self.processes = LocalProcesses()

    def stop(self) -> None:
        """End what runs in another thread: :meth:`try_out` raises Interrupted there."""
        self.processes.stop()
        self.server.stop()

    def try_out(self, setting: Setting, name: str, fault: str, dtypes: tuple[str, ...]) -> Record:
        """Make the trial `name` of `setting` in `dtypes`, with the device made wrong by `fault`. Its folder must not exist."""
        base = self.folder / "bases" / setting.base
        if not (base / "trial.json").exists():
            self._make_base(setting, base)
        root = self.folder / "trials" / name
        shutil.copytree(base, root, copy_function=os.link)
        known = state.State.model_validate_json((root / "trial.json").read_text())
        known = known.model_copy(update={"modes": list(setting.modes), "quick": not setting.warm})
        (root / "trial.json").unlink()  # a link: the base keeps its own
        write(known, root / "trial.json")
        executor = _Executor(self, fault, self.cache if setting.share else None)
        source = workload.Source(known.workload["name"], Path(known.workload["path"]), known.workload["sha256"])
        demand = requirements.unlock(root / "requirements.json")
        request = trial.Request(
            str(source.path), root, target="neuron", modes=setting.modes, dtypes=setting.dtypes, quick=not setting.warm
        )
        checked = trial.Checked(
            request, source, targets.get("neuron"), setting.modes, setting.dtypes, setting.cases, demand
        )
        going = trial.Trial(checked, _silent, executor)
        going.begin(known)
        going.cells = state.restored(root, [c for c in going.cells if _wanted(c, setting) and c.dtype in dtypes])
        return going.go_on()

    def _make_base(self, setting: Setting, base: Path) -> None:
        """Snapshot and reference, as every trial makes them."""
        shutil.rmtree(base, ignore_errors=True)  # left by one that was interrupted
        sources = self.folder / "sources"
        sources.mkdir(parents=True, exist_ok=True)
        file = sources / f"{setting.base}.py"
        text, count = _SEED.subn(f"SEED = {setting.seed}", (WORKLOADS / f"{setting.workload}.py").read_text())
        assert count == 1, f"the workload {setting.workload} has no line SEED = 0"
        write_atomic(file, text.encode())
        demand = file.with_suffix(".toml")
        lines = [f"{key} = {value}" for key, value in (DEMAND | dict(setting.demand)).items()]
        write_atomic(demand, ("\n".join(lines) + "\n").encode())
        request = trial.Request(
            str(file),
            base,
            target="neuron",
            modes=setting.modes,
            dtypes=setting.dtypes,
            cases=setting.cases,
            requirements=demand,
        )
        making = trial.Trial(trial.check(request), _silent, _Executor(self, "", self.cache))
        making.prepare()
        making.cells = [cell for cell in making.cells if _wanted(cell, setting) and cell.mode == "reference"]
        made = making.state
        (base / "trial.json").unlink()  # there only once the reference is
        making.references()
        making.candidates()  # the CPU's part in other kinds of cells
        failed = [cell.outcome for cell in making.cells if cell.outcome.status != "finished"]
        if failed:
            raise RuntimeError(f"the CPU's own run of {setting.workload} failed: {failed[0].reason}")
        write(made, base / "trial.json")


def _silent(what: str, share: float) -> None:
    """Nobody watches a single trial."""


def _wanted(cell: Cell, setting: Setting) -> bool:
    if cell.mode == "reference":
        return cell.kind in ("sequence", "parity")
    return cell.kind in setting.kinds and cell.mode in setting.modes


@dataclass(frozen=True)
class _Executor(Executor):
    """Real processes for whatever a fault can reach; snapshot and truth are done by a server, which the CPU's own are."""

    lab: Lab
    fault: str
    cache: Path | None

    def run(self, launch: Launch) -> Outcome:
        if launch.job.role in ("snapshot", "truth"):
            launch.logs.mkdir(parents=True, exist_ok=True)
            file = launch.logs / f"{launch.job.cell}.job.json"
            file.write_text(json.dumps(asdict(launch.job), indent=1))
            begun = time.monotonic()
            ended = self.lab.server.do(file, launch.timeout_seconds)
            return ended.model_copy(update={"seconds": time.monotonic() - begun})
        environment = dict(launch.environment)
        if self.fault and not launch.job.reference:
            environment[VARIABLE] = self.fault
        if self.cache is not None and "SHAKEDOWN_CACHE_DIR" in environment:
            self.cache.mkdir(parents=True, exist_ok=True)
            environment["SHAKEDOWN_CACHE_DIR"] = str(self.cache)
        return self.lab.processes.run(replace(launch, environment=environment))
