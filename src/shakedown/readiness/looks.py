"""A closer look at steps that nobody times: adaptive eager's programs, operators with their lines, graphs, memory, lines.

Single cases exist to be timed in one more process, and a case that comes again to be found compiled: only adaptive eager's
programs are awaited there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import evidence
from .observe import fusion, graphs, lines, memory, programs, traces
from .step import Span

if TYPE_CHECKING:
    from .candidate import Candidate

LATER_TRACED = 3  # steps in a profile after the first
OBSERVED = 3  # steps that are split into graphs and the rest: one alone may be disturbed


class Looks:
    """What is looked at in one case of one process, each look in steps of its own."""

    def __init__(self, process: Candidate, name: str, batches: list[dict[str, Tensor]]) -> None:
        self.process, self.name, self.batches = process, name, batches
        self.attributed: list[evidence.PathRow] | None = None
        self.attributed_seconds: float | None = None
        self.unreported: Mapping[str, int] = {}
        self.memory: memory.Watch | None = None

    def _write(self, document: evidence.Frozen, kind: str) -> None:
        job = self.process.job
        evidence.write(document, job.path("evidence", job.cell, f"{self.name}.{kind}.json"))

    def _step(self, span: Span) -> None:
        self.process.stepper.step(self.batches[0], span, log=self.process.logs)
        self.process.wait()

    def settle(self) -> None:
        """In adaptive eager: steps until its programs are compiled, and what they hold."""
        process = self.process
        if process.job.mode == "adaptive":
            found = fusion.observe(process.target, process.observer, lambda: self._step(process.observer.phase))
            self._write(found, "fusion")

    def closer(self) -> None:
        """Operators one by one with the lines that ask for them; graphs; memory; programs; lines of the workload that run."""
        process = self.process
        if process.job.kind == "single" or "#" in self.name:
            return
        with process.observer.attributed(process.roots, self._standing()) as rows:
            self._step(process.observer.phase)
        self.attributed, self.attributed_seconds, self.unreported = list(rows), rows.seconds, rows.unreported
        if process.graphs is not None:
            for _ in range(OBSERVED):
                with process.graphs.step() as observed:
                    self._step(observed.span)
        self.memory = memory.Watch(process.target, process.wait)
        memory.of_steps(self.memory, self._step, self._overlapped, process.observer.phase)
        if process.job.kind == "sequence" and process.job.cache != "warm" and not process.job.reference:
            self._write(self._programs(), "programs")
        if process.job.reference:
            with lines.record(process.roots) as seen:
                self._step(process.observer.phase)
            process.lines = process.lines.merged(seen.document()) if process.lines else seen.document()
            evidence.write(process.lines, process.job.path("evidence", process.job.cell, "lines.json"))

    def between(self) -> None:
        """What is held after a step, where the next one has not begun."""
        if self.memory is not None:
            self.memory.read()

    def finish(self) -> None:
        """Memory, and what became of graphs in the whole case, its timed steps included: past a limit they ran eager too."""
        if self.memory is not None:
            self._write(self.memory.document(), "memory")
        if self.process.graphs is not None:
            self._write(self.process.graphs.case(), "graphs")

    def _programs(self) -> evidence.Programs:
        """What a step computes and moves: once for each case, since a warm process runs the same programs."""
        process = self.process
        state = programs.state_bytes(process.stepper.model, process.stepper.optimizer, self.batches[0])
        return programs.observe(process.target, process.observer, lambda: self._step(process.observer.phase), state)

    def _standing(self) -> dict[str, str]:
        """The optimizer has no line of its own in a step; it is named by the function that made it."""
        code: Any = getattr(self.process.workload.build_optimizer, "__code__", None)
        if code is None or self.process.stepper.optimizer is None:
            return {}
        kind = type(self.process.stepper.optimizer).__name__
        return {"optimizer": f"{self.process.job.source.path.name}:{code.co_firstlineno} ({kind})"}

    def _overlapped(self, span: Span) -> None:
        """A step during which the next batch is on the device already."""
        ahead = {name: value.to(self.process.device) for name, value in self.batches[-1].items()}
        self._step(span)
        del ahead


def trace_cases(process: Candidate) -> None:
    """Profile each case of a process that is there for nothing else."""
    for name in process.job.cases:
        process.stepper.reset()
        tracer = traces.Tracer(process.target, process.observer)
        batch = process.restored.batches[name][0]

        def step(span: Span, batch: dict[str, Tensor] = batch) -> None:
            process.stepper.step(batch, span, log=True)

        tracer.run(step, LATER_TRACED)
        tracer.write(process.job.path(), process.job.cell, name)


def whole_graph(process: Candidate, case: str) -> None:
    """Would one graph do? The last thing a process does with compiled code."""
    batch = {name: value.to(process.device) for name, value in process.restored.batches[case][0].items()}
    process.stepper.reset()
    found = graphs.full_graph(
        process.workload.forward,
        (process.stepper.model, batch),
        process.target.backend,
        tuple(process.roots),
    )
    evidence.write(found, process.job.path("evidence", process.job.cell, "full-graph.json"))
