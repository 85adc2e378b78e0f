"""From counted programs and published figures to the least that a step can take: a pure function, and never a measurement."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence import Evidence, Memory
from ..evidence.memory import STEP
from ..evidence.programs import Programs
from ..projection import Chip, Figure, Instances, load
from ..requirements import Requirements
from .projected import (
    BatchLimit,
    Bound,
    CaseProjection,
    MemoryNeed,
    Projection,
    Transfer,
    Unit,
    Unseen,
)
from .results import Cell, Finding

__all__ = ["BatchLimit", "Bound", "CaseProjection", "Projection", "findings", "judged", "project"]

ASSUMPTIONS = (
    "Every program runs at the published peak: dense matrix products at the peak rate of their dtype, memory at its full "
    "bandwidth, both at once within a program. No machine does that, so a real step takes longer.",
    "Programs run one after the other. Launching, compiling, waiting for the host, and everything but matrix products and "
    "memory traffic (vector and scalar engines, sorts, custom calls) takes no time.",
    "A program reads its inputs from device memory and writes its outputs there, each once. A compiler that keeps a value "
    "on the chip between two programs of the trial could beat this bound: eager programs are single operators, "
    "adaptive ones segments, compiled ones whole graphs, as the embedded device ran them.",
    "Graphs are those that PyTorch partitioned here, recomputation included; Neuron's compiler may choose others.",
    "Bytes `as fused` are those of XLA's CPU compiler after its own fusion, with half precision widened: an indication of "
    "how much of the bound depends on fusing well, and no bound.",
    "float32 products are taken at the float32 rate. A compiler that casts them to bfloat16 changes numbers and rate.",
    "A logical core has an equal part of its chip's rates and memory (two of eight physical cores, the default setting). A "
    "chip is projected as if one step were spread over it perfectly, which the workload as written does not do.",
    "Memory needed is at least what training keeps and what was alive when somebody looked. Programs' code, the runtime, "
    "collectives and fragmentation come on top.",
    "A transfer takes its bytes over the host link's bandwidth, without latency.",
)
NOT_PROJECTED = (
    "distribution: one logical core and one chip are projected, no communication between them",
    "throughput and price: a bound on a step is not a speed",
    "compilation, start-up, and the host's own time in operators that fall back",
    "copies of batches to the device, and values that are read back",
)


def project(
    root: Path, cells: list[Cell], instances: Instances, name: str, dtypes: tuple[str, ...] = ()
) -> Projection | None:
    """Project every case whose programs were counted onto the instance `name`; `dtypes` limits them to precisions.

    None where no case has such evidence.

    Raises:
        BadInput: there is no such instance.
    """
    chip = instances.chip_of(name)
    units = units_of(chip)
    cases: list[CaseProjection] = []
    left_out: list[str] = []
    documents = 0
    for cell in cells:
        if cell.mode == "reference" or (dtypes and cell.dtype not in dtypes):
            continue
        for case in cell.cases:
            try:
                found = read(root, cell, case)
            except EvidenceError as error:
                left_out.append(f"{cell.id} {case}: {error}")
                continue
            if found is None:
                continue
            documents += 1
            if found.programs is None:
                left_out.append(f"{cell.id} {case}: {found.reason}")
            else:
                cases.append(_case(root, cell, case, found, units))
    if not documents and not left_out:
        return None
    figures, missing = _figures(instances, name, chip)
    return Projection(
        instance=name,
        chip=chip.title,
        chips=int(instances.instances[name].chips.value),
        logical_cores=int(instances.instances[name].chips.value * chip.logical_cores),
        dated=instances.dated,
        figures=figures,
        missing=missing,
        units=units,
        cases=cases,
        batch_limits=_batch_limits(cases, units),
        assumptions=list(ASSUMPTIONS),
        not_projected=[*NOT_PROJECTED, *left_out],
    )


def judged(root: Path, cells: list[Cell], requirements: Requirements) -> Projection | None:
    """The projection that the requirements ask for; None where they ask for none, or nothing was counted."""
    known, name = load(), requirements.projection.instance
    return project(root, cells, known, name) if name in known.instances else None


def read(root: Path, cell: Cell, case: str) -> Programs | None:
    """The counted programs of a case; None where nobody counted. Raises :class:`EvidenceError` when damaged."""
    path = root / "evidence" / cell.id / f"{case}.programs.json"
    return ev.read(Programs, path) if path.exists() else None


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """Damaged documents, and cases in which work ran that no program stands for: a bound would miss it."""
    made = []
    if requirements.projection.instance not in ("", *load().instances):
        text = f"no figures of an instance {requirements.projection.instance!r} are known"
        made.append(Finding(word="untested(projection)", cell="", text=text, fails=False))
    for cell in cells:
        for case in cell.cases:
            try:
                found = read(root, cell, case)
            except EvidenceError as error:
                made.append(Finding(word="untested(programs)", cell=cell.id, case=case, text=str(error), fails=False))
                continue
            if found is not None and found.unanalysed:
                names = ", ".join(f"{name} ({count})" for name, count in found.unanalysed.items())
                text = f"ran on the device and are not among the programs that were counted: {names}"
                made.append(Finding(word="uncounted(programs)", cell=cell.id, case=case, text=text, fails=False))
    return made


# --- the instance -------------------------------------------------------------------------------------------------------


def units_of(chip: Chip) -> list[Unit]:
    """What a step is projected on: one logical core and one chip of this kind."""
    made = []
    for name, share in (("logical core", 1 / chip.logical_cores), ("chip", 1.0)):

        def of(figure: Figure | None, name: str = name, share: float = share) -> float | None:
            if figure is None or figure.per == "instance":
                return None
            if figure.per == name:
                return figure.value
            return figure.value * (share if name == "logical core" else chip.logical_cores)

        peak = {dtype: rate for dtype, figure in chip.peak.items() if (rate := of(figure)) is not None}
        memory = of(chip.memory)
        made.append(
            Unit(
                name=name,  # type: ignore[arg-type]
                peak=peak,
                memory_bytes=None if memory is None else int(memory),
                memory_bandwidth=of(chip.memory_bandwidth),
                # A single unit may have its chip's link, or its instance's, to itself: the least that a transfer takes.
                host_bandwidth=None if chip.host_link is None else chip.host_link.value,
                derived="" if name == "chip" else f"the chip's figures over {chip.logical_cores:g} logical cores",
            )
        )
    return made


def _figures(instances: Instances, name: str, chip: Chip) -> tuple[dict[str, Figure], list[str]]:
    """Every published figure by key, and what is not published with what it keeps from being projected."""
    named: dict[str, Figure | None] = {
        "chips": instances.instances[name].chips,
        "physical cores": chip.physical_cores,
        "physical cores of a logical core": chip.physical_cores_per_logical_core,
        **{f"peak {dtype}": figure for dtype, figure in chip.peak.items()},
        "memory": chip.memory,
        "memory bandwidth": chip.memory_bandwidth,
        "host link": chip.host_link,
    }
    consequence = {
        "memory": "size of the device memory: whether a step fits is not projected",
        "memory bandwidth": "bandwidth of the device memory: no time is projected",
        "host link": "bandwidth between host and device: of transfers the bytes are given, and no time",
    }
    missing = [consequence[key] for key, figure in named.items() if figure is None]
    return {key: figure for key, figure in named.items() if figure is not None}, missing


# --- one case -----------------------------------------------------------------------------------------------------------


def _case(root: Path, cell: Cell, case: str, found: Programs, units: list[Unit]) -> CaseProjection:
    programs = found.programs or []
    flops: dict[str, float] = {}
    unseen: Counter[str] = Counter()
    phases: dict[str, list[str]] = {}
    for program in programs:
        for dtype, count in program.matrix_flops.items():
            flops[dtype] = flops.get(dtype, 0.0) + count * program.calls
        for what, count in program.unseen.items():
            unseen[what] += count * program.calls
            if program.phase not in phases.setdefault(what, []):
                phases[what].append(program.phase)
    memory = _memory(root, cell, case, found)
    fallbacks = _fallbacks(root, cell, case)

    def total(field: str) -> float | None:
        values = [getattr(program, field) for program in programs]
        return None if None in values else sum(v * p.calls for v, p in zip(values, programs))

    return CaseProjection(
        cell=cell.id,
        mode=cell.mode,
        dtype=cell.dtype,
        case=case,
        programs=len(programs),
        calls=sum(program.calls for program in programs),
        flops=total("flops"),
        transcendentals=total("transcendentals"),
        matrix_flops=flops,
        bytes_accessed=total("bytes_accessed"),
        least_bytes=total("least_bytes") or 0.0,
        memory=memory,
        bounds=[_bound(unit, cell.dtype, found, memory, fallbacks) for unit in units],
        unseen=[Unseen(what=what, count=count, phases=phases[what]) for what, count in unseen.most_common()],
        unanalysed=found.unanalysed,
    )


def _bound(
    unit: Unit, dtype: str, found: Programs, memory: MemoryNeed | None, fallbacks: list[Transfer] | None
) -> Bound:
    programs = found.programs or []
    used = {dtype} | {name for program in programs for name, count in program.matrix_flops.items() if count}
    reasons = [f"no dense rate of {name} is published" for name in sorted(used - unit.peak.keys())]
    if unit.memory_bandwidth is None:
        reasons.append("no memory bandwidth is published")
    fits, share = _fits(memory, unit)
    transfers = [
        transfer.model_copy(
            update={"seconds": transfer.nbytes / unit.host_bandwidth if unit.host_bandwidth is not None else None}
        )
        for transfer in fallbacks or []
    ]
    times = [transfer.seconds for transfer in transfers]
    moved = 0.0 if fallbacks == [] else None if None in times or not times else sum(t or 0.0 for t in times)
    nothing = Bound(
        unit=unit.name,
        seconds=None,
        whole_step_seconds=None,
        as_fused_seconds=None,
        by_phase={},
        intensity=None,
        ridge=None,
        roof=None,
        share_bound_by_memory=None,
        transfers=transfers,
        transfer_seconds=moved,
        fits=fits,
        memory_share=share,
        reason="; ".join(reasons),
    )
    bandwidth = unit.memory_bandwidth
    if reasons or bandwidth is None:
        return nothing
    seconds = by_memory = arithmetic = least = 0.0
    as_fused: float | None = 0.0
    phases: dict[str, float] = {}
    for program in programs:
        computing = sum(count / unit.peak[name] for name, count in program.matrix_flops.items() if count)
        moving = program.least_bytes / bandwidth
        takes = program.calls * max(computing, moving)
        phases[program.phase] = phases.get(program.phase, 0.0) + takes
        seconds += takes
        by_memory += takes if moving > computing else 0.0
        arithmetic += program.calls * computing
        least += program.calls * program.least_bytes
        if as_fused is not None and program.bytes_accessed is not None:
            as_fused += program.calls * max(computing, program.bytes_accessed / bandwidth)
        else:
            as_fused = None
    operations = sum(count * program.calls for program in programs for count in program.matrix_flops.values())
    return nothing.model_copy(
        update={
            "seconds": seconds,
            "whole_step_seconds": max(arithmetic, least / bandwidth),
            "as_fused_seconds": as_fused,
            "by_phase": phases,
            "intensity": operations / least if least else None,
            "ridge": unit.peak[dtype] / bandwidth,
            "roof": None if not seconds else "arithmetic" if arithmetic >= least / bandwidth else "memory",
            "share_bound_by_memory": by_memory / seconds if seconds else None,
        }
    )


def _fits(memory: MemoryNeed | None, unit: Unit) -> tuple[bool | None, float | None]:
    if memory is None or unit.memory_bytes is None:
        return None, None
    share = memory.needed / unit.memory_bytes
    if share > 1:
        return False, share
    seen = memory.peak_live is not None and memory.with_temporaries is not None
    return (True if seen and (memory.with_temporaries or 0) <= unit.memory_bytes else None), share


def _memory(root: Path, cell: Cell, case: str, found: Programs) -> MemoryNeed | None:
    state = found.state
    if state is None:
        return None
    peak, meter = None, "not measured"
    path = root / "evidence" / cell.id / f"{case}.memory.json"
    if path.exists():
        try:
            document = ev.read(Memory, path)
            meter = f"{document.device.kind}: {document.device.source}"
            peak = next((span.device for span in document.spans if span.name == STEP), None)
        except EvidenceError as error:
            meter = str(error)  # the check on memory names it as well
    known = [program.temp_bytes for program in found.programs or [] if program.temp_bytes is not None]
    kept = state.parameters + state.gradients + state.optimizer + state.buffers + state.batch
    needed = max(kept, peak or 0)
    most = max(known, default=None)
    return MemoryNeed(
        **state.model_dump(),
        peak_live=peak,
        largest_temporaries=most,
        needed=needed,
        with_temporaries=None if most is None else needed + most,
        meter=meter,
    )


def _fallbacks(root: Path, cell: Cell, case: str) -> list[Transfer] | None:
    """What fell back in a later step, the most bytes first; None where that was not seen."""
    try:
        rows = ev.read(Evidence, root / "evidence" / cell.id / f"{case}.json").paths.later_step
    except EvidenceError:
        return None  # the case is untested then, and says why
    if rows is None:
        return None
    calls: Counter[tuple[str, str]] = Counter()
    nbytes: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.kind == "fallback":
            calls[row.name, row.phase] += row.count or 0
            nbytes[row.name, row.phase] += row.nbytes
    return [
        Transfer(operator=name, phase=phase, calls=calls[name, phase], nbytes=moved, seconds=None)
        for (name, phase), moved in nbytes.most_common()
    ]


# --- batch sizes --------------------------------------------------------------------------------------------------------


def _batch_limits(cases: list[CaseProjection], units: list[Unit]) -> list[BatchLimit]:
    points: dict[tuple[str, str, int], dict[int, int]] = {}
    for case in cases:
        shape = re.fullmatch(r"(\d+)x(\d+)", case.case)
        if shape is not None:
            size, length = map(int, shape.groups())
            own = points.setdefault((case.mode, case.dtype, length), {})
            # What training keeps hardly depends on the batch; without what was alive in a step there is nothing to go by.
            if case.memory is not None and case.memory.peak_live is not None:
                own[size] = max(case.memory.needed, own.get(size, 0))
    return [
        _batch_limit(mode, dtype, length, unit, sorted(own.items()))
        for (mode, dtype, length), own in points.items()
        for unit in units
    ]


def _batch_limit(mode: str, dtype: str, length: int, unit: Unit, points: list[tuple[int, int]]) -> BatchLimit:
    """A straight line through the points, by least squares."""
    limit = BatchLimit(
        mode=mode,
        dtype=dtype,
        length=length,
        unit=unit.name,
        points=points,
        fixed=None,
        slope=None,
        residual=None,
        largest=None,
    )
    if len(points) < 2:
        sizes_seen = "one batch size" if points else "no memory of a step"
        return limit.model_copy(update={"reason": f"{sizes_seen} at this length was measured; a line needs two sizes"})
    if unit.memory_bytes is None:
        return limit.model_copy(update={"reason": "no memory size is published"})
    sizes, needs = zip(*points)
    n, total, of_needs = len(points), sum(sizes), sum(needs)
    # In integers as far as possible: rounding noise in a slope of 0 would look like an enormous batch.
    slope = (n * sum(x * y for x, y in points) - total * of_needs) / (n * sum(x * x for x in sizes) - total**2)
    fixed = (of_needs - slope * total) / n
    line = {"fixed": fixed, "slope": slope}
    if slope <= 0:
        why = "what is needed does not grow with the batch over the sizes that were measured"
        return limit.model_copy(update=line | {"reason": why})
    residual = max(abs(y - (fixed + slope * x)) / max(y, 1) for x, y in points)
    largest = max(0, math.floor((unit.memory_bytes - fixed) / slope))
    return limit.model_copy(update=line | {"residual": residual, "largest": largest})
