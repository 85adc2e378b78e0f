"""Stage 4, first kind of child: train the restored workload on one device, in one mode and precision, and keep
evidence.

Each case starts again from the snapshot. Its steps are, in this order: k steps whose tensors are kept (the first one is
also the *first step* of the timing, phase by phase), a few more and one whose loss is read; in adaptive eager, steps until
its programs are compiled; one whose operators are counted; those that :mod:`.looks` takes a closer look at; a few timed
phase by phase; and the timed steps. Copying tensors and watching operators never happen inside a timed span, except for
the embedded device's own counters, which are always on.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import evidence, requirements, snapshot, targets, variations, workload
from .errors import WorkloadError
from .evidence.failure import Failure
from .evidence.lines import Lines
from .looks import Looks, trace_cases, whole_graph
from .observe import graphs, identity, numerics, paths, timing
from .probe import task
from .scan import root_of
from .step import Span, Stepper
from .whole import compile_stepper
from .worker import Job

PHASE_STEPS = 5
COUNTED_STEPS = 3
MORE_STEPS = 6  # before the loss is read again
_SELF_TEST_SIDE = 256  # a product of this side costs far more than the call that asks for it
_SELF_TEST_SECONDS = 0.008  # long against reading a value back, short against a stranger's turn on the processor


class Candidate:
    """One process of the trial: device, model and clocks, shared by its cases."""

    def __init__(self, job: Job, launch: float, import_torch: float, cache: dict[str, Any]) -> None:
        self.job = job
        self.requirements = requirements.unlock(job.path("requirements.json"))
        self.target = targets.get(job.target)
        self.cache = evidence.CacheState(**cache)
        start = time.perf_counter()
        self.device = targets.open_device(self.target)
        self.wait = timing.completion(self.target)
        device_init = time.perf_counter() - start
        start = time.perf_counter()
        self.workload = workload.load(job.source)
        self.roots = [root_of(job.source.path)]
        dtype = getattr(torch, job.dtype)
        self.restored = snapshot.restore(self.workload, job.path("snapshot"), dtype)
        self.stepper = Stepper(self.workload, self.restored, self.device, job.path("snapshot"))
        self.wait()
        restore = time.perf_counter() - start
        start = time.perf_counter()
        self.stepper.new_optimizer()  # PyTorch imports its compiler front end with the first one: seconds, paid once
        self.startup = evidence.Startup(
            launch=launch,
            import_torch=import_torch,
            device_init=device_init,
            restore=restore,
            optimizer=time.perf_counter() - start,
        )
        moved = {name: value.detach() for name, value in self.stepper.model.state_dict().items()}
        self.moved_exactly = snapshot.hash_tensors(moved) == snapshot.hash_tensors(self.restored.weights)
        self.identity = identity.capture(self.target, job.source.path)
        who = identity.identify(self.target, job.source.path)
        evidence.write(who, job.path("evidence", job.cell, "identity.json"))
        self.observer = paths.recorder(self.target)
        self.lines: Lines | None = None
        self.graphs: graphs.Watch | None = None
        if job.mode == "compiled":
            self.graphs = graphs.Watch(tuple(self.roots), self.wait).start()
            compile_stepper(self.stepper, self.target, self.requirements, self.graphs)

    def run(self) -> bool:
        """The timer's self-test, then all cases in order, each written at once. False when a case failed.

        An exception ends its case and not the process: a shape that does not fit says nothing about the others.
        """
        if self.job.kind == "trace":
            trace_cases(self)
            return True
        evidence.write(self.self_test(), self.job.path("evidence", self.job.cell, "self-test.json"))
        seen: dict[str, int] = {}
        well = True
        for name in self.job.cases:
            seen[name] = seen.get(name, 0) + 1
            numbered = name if seen[name] == 1 else f"{name}#{seen[name]}"
            try:
                self.case(name, numbered)
            except WorkloadError:
                raise
            except Exception as error:
                well = False
                traceback.print_exc()
                if self.graphs is not None:
                    self.graphs.case()  # what it counted is not the next case's
                evidence.write(
                    Failure(case=numbered, error=type(error).__name__, message=str(error)[:2000]),
                    self.job.path("evidence", self.job.cell, f"{numbered}.failure.json"),
                )
        if self.graphs is not None and self.job.kind == "sequence":
            whole_graph(self, self.job.cases[0])
        return well

    def timed_span(self, watch: timing.Stopwatch) -> Span:
        """A span that both attributes events to its phase and times it."""

        def span(name: str) -> AbstractContextManager[Any]:
            stack = ExitStack()
            stack.enter_context(self.observer.phase(name))
            stack.enter_context(watch.phase(name))
            return stack

        return span

    def case(self, shape: str, name: str) -> None:
        """Train one case from the snapshot and write its evidence."""
        stepper, observer = self.stepper, self.observer
        stepper.reset()
        batches = self.restored.batches[shape]
        self.logs = workload.Case.parse(shape).variation == "logging"
        # On the device, since a copy from the host may straighten what it copies.
        stepper.rearrange = variations.relayout if workload.Case.parse(shape).variation == "noncontiguous" else dict
        capture = numerics.Capture()
        first_step: dict[str, float] = {}
        first_load: float | None = None
        first_rows: list[evidence.PathRow] | None = None
        for number, batch in enumerate(batches, start=1):

            def keep(outputs: dict[str, Tensor], loss: Tensor | None, number: int = number) -> None:
                if number in (1, len(batches)):
                    for output, value in outputs.items():
                        capture.keep(number, "output", output, value)
                if loss is not None:
                    capture.keep(number, "loss", "loss", loss)
                capture.gradients(number, stepper.model)

            self.wait()
            watch, load = timing.Stopwatch(self.wait), timing.ForeignLoad()
            if number == 1 and observer.free:
                with observer.step() as first_rows:
                    stepper.step(batch, self.timed_span(watch), keep)
            else:
                stepper.step(batch, self.timed_span(watch), keep)
            if number == 1:
                first_step, first_load = watch.seconds, load.cores()
            capture.weights(number, stepper.model, stepper.optimizer)
        for batch in itertools.islice(itertools.cycle(batches), MORE_STEPS):
            stepper.step(batch, observer.phase)
            self.wait()
        # Before steps whose number depends on speed or mode: this loss is after as many steps on every device.
        last: list[Tensor] = []
        stepper.step(
            batches[0], observer.phase, lambda outputs, loss: last.extend([] if loss is None else [loss.detach()])
        )
        first_loss = capture.tensors.get("step1/loss/loss")
        training = evidence.Training(
            steps=len(batches) + MORE_STEPS,
            first_loss=None if first_loss is None else evidence.finite(float(first_loss)),
            last_loss=evidence.finite(float(last[0].float().cpu())) if last else None,
        )
        looks = Looks(self, name, batches)
        looks.settle()
        later_rows = self.counted(batches)
        looks.closer()
        phases = self.phases(batches, looks.between)
        later = self.later_steps(batches)
        looks.finish()
        self.write(
            shape,
            name,
            capture,
            paths=evidence.Paths(
                source=observer.source,
                first_step=first_rows,
                later_step=later_rows,
                reason="" if first_rows is not None else "the first step is timed, and counting would slow it here",
                later_seconds=later_rows.seconds if observer.free else None,
                attributed=looks.attributed,
                attributed_seconds=looks.attributed_seconds,
                unreported=dict(looks.unreported),
                unobservable={str(kind): why for kind, why in observer.unobservable.items()},
            ),
            timings=evidence.Timings(
                first_step=first_step, first_step_foreign_cores=first_load, later=later, later_phases=phases
            ),
            training=training,
        )

    def counted(self, batches: list[dict[str, Tensor]]) -> paths.Rows:
        """The rows of one counted step: of a few, the one that strangers disturbed least."""
        best: paths.Rows | None = None
        for _ in range(COUNTED_STEPS):
            with self.observer.step() as rows:
                self.stepper.step(batches[0], self.observer.phase, log=self.logs)
                self.wait()
            if best is None or (rows.seconds or 0.0) < (best.seconds or 0.0):
                best = rows
        assert best is not None
        return best

    def phases(self, batches: list[dict[str, Tensor]], between: Callable[[], None]) -> dict[str, list[float]]:
        """Seconds of each phase in a few steps, completion awaited after each; `between` is called after a step."""
        found: dict[str, list[float]] = {}
        for batch in itertools.islice(itertools.cycle(batches), PHASE_STEPS):
            watch = timing.Stopwatch(self.wait)
            self.stepper.step(batch, self.timed_span(watch), log=self.logs)
            for phase, seconds in watch.seconds.items():
                found.setdefault(phase, []).append(seconds)
            between()
        return found

    def later_steps(self, batches: list[dict[str, Tensor]]) -> evidence.StepSeries:
        """The series of timed steps that strangers disturbed least."""
        every = self.requirements.variations.logging_every

        def step(number: int) -> None:
            log = self.logs and number % every == every - 1
            self.stepper.step(batches[number % len(batches)], self.observer.phase, log=log)

        return timing.quietest_series(step, self.wait, self.observer.compiles, self.requirements.timing)

    def write(
        self,
        shape: str,
        name: str,
        capture: numerics.Capture,
        paths: evidence.Paths,
        timings: evidence.Timings,
        training: evidence.Training,
    ) -> None:
        """Write tensors, then the document that refers to them by hash."""
        folder = f"evidence/{self.job.cell}"
        file, digest = numerics.keep_tensors(Path(self.job.root), self.job.cell, capture)
        info = snapshot.read_info(self.job.path("snapshot"))
        evidence.write(
            evidence.Evidence(
                cell=self.job.cell,
                case=name,
                mode=self.job.mode,
                dtype=self.job.dtype,
                identity=self.identity,
                snapshot_sha256=self.job.snapshot_sha256,
                requirements_sha256=self.job.requirements_sha256,
                restored_sha256=self.restored.sha256,
                moved_exactly=self.moved_exactly,
                tensors_file=file,
                tensors_sha256=digest,
                tensors=capture.infos,
                missing_gradients=sorted(capture.missing_gradients),
                reduction_length=info.reduction_lengths[shape],
                startup=self.startup,
                cache=self.cache,
                paths=paths,
                graphs=graphs.capture() if self.job.mode == "compiled" else None,
                timings=timings,
                training=training,
            ),
            self.job.path(folder, f"{name}.json"),
        )
        if function := self.requirements.task.function:
            beside = self.job.path(folder, f"{name}.task.json")
            task.keep(self.workload, function, capture.tensors, self.restored.batches[shape], digest, beside)

    def self_test(self) -> evidence.SelfTest:
        """Prove that waiting works here, with a chain of matrix products long enough to be seen by the clock."""
        weight = torch.full((_SELF_TEST_SIDE, _SELF_TEST_SIDE), 1.0 / _SELF_TEST_SIDE).to(self.device)
        value = weight

        def call() -> None:
            nonlocal value
            value = value @ weight

        def timed() -> float:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            float(value[0, 0].cpu())
            return time.perf_counter() - start

        calls = 1
        for _ in range(2):  # once to compile, once to time
            calls, spent = 1, 0.0
            while spent < _SELF_TEST_SECONDS and calls < 4096:
                calls *= 2
                spent = min(timed() for _ in range(3))  # the least: what strangers add is no work of these calls
        return timing.self_test(
            call, self.wait, lambda: float(value[0, 0].cpu()), calls, self.requirements.timing.scaling_tolerance
        )
