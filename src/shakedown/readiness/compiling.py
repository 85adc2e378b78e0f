"""``shakedown compile``: the programs of a workload's training step, compiled and stored, and not run.

A process of its own for each mode and precision makes the step that a trial makes, on the embedded device in its compile-only
state: tensors have sizes and no memory, and where a program would be called, it is compiled. What a step needs to know of
values, such as a loss that is printed, is taken as zero, and counted (``host_reads``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BadInput, TrialError
from .evidence import Frozen
from .plan import child

if TYPE_CHECKING:
    from .workload import Workload

SCHEMA = "shakedown.compile/1"
MODES = ("compiled", "eager")
_STEPS = 2  # the first makes the optimizer's state, the second finds it
_COMPILED, _FOUND = "compiled", "found"


class OffDevice(Frozen):
    """An operator that the CPU has to run. ``calls`` are those of two steps."""

    phase: str
    operator: str
    calls: int
    reason: str


class Case(Frozen):
    """What became of one case in one mode and precision.

    ``graphs`` are captured graphs, ``compiled`` programs that were compiled and stored, ``found`` those that the cache
    had. ``seconds`` is the whole case, ``compile_seconds`` the compiler's share; ``stored_bytes`` is what was added to the cache.
    ``split`` says of graphs that are not one program why, with operator and line; ``error`` ended the case.
    """

    mode: str
    dtype: str
    case: str
    graphs: int = 0
    compiled: int = 0
    found: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    stored_bytes: int = 0
    breaks: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    fallbacks: tuple[OffDevice, ...] = ()
    host_reads: int = 0
    executed: int = 0
    error: str = ""

    @property
    def complete(self) -> bool:
        """Whether every graph is one program."""
        return not self.split and not self.error


class Compiled(Frozen):
    """Everything that was compiled by one call of the command."""

    schema_version: str = SCHEMA
    workload: str
    workload_sha256: str
    profile: str
    cache: str
    cases: tuple[Case, ...]

    @property
    def complete(self) -> bool:
        return all(case.complete for case in self.cases)


@dataclass(frozen=True)
class Request:
    """What was asked for; empty tuples mean the workload's own. ``cache`` None means the user's cache."""

    workload: str
    cases: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("compiled",)
    profile: str = ""
    cache: Path | None = None
    device_kind: str = ""
    timeout_seconds: float = 3600.0


def run(request: Request, told: Callable[[str], None]) -> Compiled:
    """Compile what `request` names, one process after another; `told` hears what is being done.

    Raises:
        BadInput: the workload, a case, a precision, a mode or the device kind cannot be compiled for, or caches are off.
        TrialError: a process did not come to its end.
    """
    from . import workload

    unknown = [mode for mode in request.modes if mode not in MODES]
    if "adaptive" in unknown:
        raise BadInput(
            "adaptive eager decides while it runs which operators it fuses, so there is nothing to compile beforehand; "
            f"choose among {', '.join(MODES)}"
        )
    if unknown:
        raise BadInput(f"unknown mode {', '.join(unknown)}; choose among {', '.join(MODES)}")
    source = workload.resolve(request.workload)
    cases = [str(workload.Case.parse(case)) for case in request.cases]
    dtypes = [workload.parse_dtype(name) for name in request.dtypes]
    made: list[Case] = []
    found: dict[str, Any] = {}
    if not dtypes:  # the workload's own are known where it is loaded: the first process says which
        found = _ask(request, source, cases, request.modes[0], "")
        made += [Case.model_validate(case) for case in found["cases"]]
        dtypes = found["dtypes"]
        told(f"{request.modes[0]} {dtypes[0]}: done")
    for dtype in dtypes:
        for mode in dict.fromkeys(request.modes):
            if not any((case.mode, case.dtype) == (mode, dtype) for case in made):
                told(f"{mode} {dtype} ...")
                found = _ask(request, source, cases, mode, dtype)
                made += [Case.model_validate(case) for case in found["cases"]]
    return Compiled(
        workload=source.name,
        workload_sha256=source.sha256,
        profile=found["profile"],
        cache=found["cache"],
        cases=tuple(made),
    )


def _ask(request: Request, source: Any, cases: list[str], mode: str, dtype: str) -> dict[str, Any]:
    environment = {"SHAKEDOWN_COMPILE_ONLY": "1", "SHAKEDOWN_ADAPTIVE": "0", "TORCH_NEURONX_ENABLE_CONCATENATION": "0"}
    environment |= {"SHAKEDOWN_PROFILE": request.profile} if request.profile else {}
    environment |= {"SHAKEDOWN_CACHE_DIR": str(request.cache.absolute())} if request.cache else {}
    job = {
        "name": source.name,
        "path": str(source.path),
        "sha256": source.sha256,
        "cases": cases,
        "mode": mode,
        "dtype": dtype,
        "device_kind": request.device_kind,
        "environment": environment,
    }
    ended = child.ask("shakedown.readiness.compiling", job, request.timeout_seconds)
    if ended.answer is None:
        raise TrialError(f"compiling {source.name} ({mode} {dtype or 'default precision'}): {ended.reason}")
    answer: dict[str, Any] = json.loads(ended.answer)
    if "refused" in answer:
        raise BadInput(answer["refused"])
    return answer


# --- the process that compiles ---------------------------------------------------------------------------------------------


def _work(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    from . import targets, workload
    from .observe import paths

    target = targets.get("neuron")
    targets.require(target)
    if targets.family(target) != "rehearsal":
        raise BadInput(
            "the device `neuron` is AWS's here, whose compiler this command does not drive; set SHAKEDOWN_DEVICE=rehearsal to "
            "compile for the embedded device"
        )
    try:
        kind = torch.neuron.device_kind()
        profile = torch.neuron.profile()
    except ValueError as error:  # a variable of the device's, such as the profile's, cannot be used
        raise BadInput(str(error)) from None
    cache = torch.neuron.cache.stats()
    if not cache["enabled"]:
        raise BadInput("the executable cache is off (SHAKEDOWN_CACHE=0), so nothing that is compiled could be kept")
    if job["device_kind"] not in ("", kind):
        raise BadInput(
            f"this machine's PJRT plugin compiles for {kind!r}, not for {job['device_kind']!r}: a plugin compiles for devices "
            "that are not there only where it can describe them (JAX's topologies), and XLA's plugin for CPUs cannot. "
            "Compile on a machine of that kind, and carry the result over with torch.compiler.save_cache_artifacts()"
        )
    loaded = workload.load(workload.Source(job["name"], Path(job["path"]), job["sha256"]))
    events = paths.recorder(target).events  # type: ignore[attr-defined]
    dtype = job["dtype"] or loaded.dtypes[0]
    forward = loaded.forward
    if job["mode"] == "compiled":
        forward = torch.compile(loaded.forward, backend=target.backend, dynamic=False)
    cases = job["cases"] or [str(case) for case in loaded.cases]
    made = [_case(loaded, case, dtype, job["mode"], forward, events) for case in dict.fromkeys(cases)]
    return {
        "cases": [case.model_dump() for case in made],
        "dtypes": list(loaded.dtypes),
        "profile": profile,
        "cache": str(cache["directory"]),
    }


def _case(loaded: Workload, text: str, dtype: str, mode: str, forward: Any, events: Any) -> Case:
    events.clear()
    start = time.perf_counter()
    error = ""
    try:
        _steps(loaded, text, dtype, forward, events)
    except BadInput:
        raise
    except Exception as raised:
        lines = [line for line in str(raised).splitlines() if line.strip()]
        error = f"{type(raised).__name__}: {lines[0] if lines else ''}"
    return _summary(
        events.snapshot(), mode=mode, dtype=dtype, case=text, seconds=time.perf_counter() - start, error=error
    )


def _steps(loaded: Workload, text: str, dtype: str, forward: Any, events: Any) -> None:
    """The steps of a trial (:class:`.step.Stepper`), from a model that is built as the snapshot builds it."""
    import torch

    from . import snapshot, variations
    from .observe import numerics
    from .workload import Case as Shape

    shape, precision, device = Shape.parse(text), getattr(torch, dtype), torch.device("neuron")
    model, _ = snapshot.build(loaded, snapshot.SEED)
    model.to(precision).to(device)
    batch = snapshot.make_batch(loaded, shape, 1)
    if shape.variation:
        batch = variations.vary(loaded, batch, shape, padded_to=0, dtypes=(dtype,))
    moved = {n: (v.to(precision) if v.is_floating_point() else v).to(device) for n, v in batch.items()}
    optimizer = snapshot.build_optimizer(loaded, model)
    for _ in range(_STEPS):
        with events.phase("forward"), torch.set_grad_enabled(optimizer is not None):
            _, loss = numerics.outputs_of(forward(model, moved), optimizer is not None)
        if optimizer is not None and loss is not None:
            with events.phase("backward"):
                loss.backward()
            with events.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


def _summary(rows: list[dict[str, Any]], *, seconds: float, **fields: Any) -> Case:
    def of(kind: str, name: str = "") -> list[dict[str, Any]]:
        return [row for row in rows if row["kind"] == kind and (not name or row["name"] == name)]

    programs = of("compile")
    fresh = [row for row in programs if row["detail"] == _COMPILED]
    graphs = {row["name"] for row in of("compile-only") if row["name"].startswith("graph::")}
    return Case(
        graphs=len(graphs),
        compiled=sum(row["count"] for row in fresh),
        found=sum(row["count"] for row in programs if row["detail"] != _COMPILED),
        seconds=round(seconds, 3),
        compile_seconds=round(sum(row["seconds"] for row in fresh), 3),
        stored_bytes=sum(row["nbytes"] for row in of("cache", "stored")),
        breaks=tuple(f"{row['name']}: {row['detail']}" for row in of("break")),
        split=tuple(f"{row['name']}: {row['detail']}" for row in of("split")),
        fallbacks=tuple(
            OffDevice(phase=row["phase"], operator=row["name"], calls=row["count"], reason=row["detail"])
            for row in of("fallback")
        ),
        host_reads=sum(row["count"] for row in of("unknown")),
        executed=sum(row["count"] for row in of("execute")),
        **fields,
    )


def main(job_file: str) -> None:
    """Compile the cases of one job, and write what became of them beside it."""
    job = json.loads(Path(job_file).read_text())
    os.environ.update(job["environment"])  # before torch is imported: the device reads it then
    try:
        answer = _work(job)
    except BadInput as error:
        answer = {"refused": str(error)}
    Path(job["out"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
