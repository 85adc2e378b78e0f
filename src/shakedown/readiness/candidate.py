"""Stage 4, first kind of child: train the restored workload on one device, in one mode and precision, and keep
evidence.

Each case starts again from the snapshot. Its steps are, in this order: k steps whose tensors are kept (the first one is
also the *first step* of the timing, phase by phase), one step whose operators are observed, a few steps timed phase by
phase, and the timed steps. Copying tensors and counting operators never happen inside a timed span, except for the
embedded device's own counters, which are always on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from . import evidence, requirements, snapshot, targets, workload
from .observe import graphs, identity, numerics, paths, timing
from .worker import Job

PHASE_STEPS = 5
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
        device_init = time.perf_counter() - start
        start = time.perf_counter()
        self.workload = workload.load(job.source)
        self.dtype = getattr(torch, job.dtype)
        self.restored = snapshot.restore(self.workload, job.path("snapshot"), self.dtype)
        self.model = self.restored.model.to(self.device)
        targets.wait(self.target)
        restore = time.perf_counter() - start
        start = time.perf_counter()
        self.optimizer()  # PyTorch imports its compiler front end with the first optimizer: seconds, paid once
        self.startup = evidence.Startup(
            launch=launch,
            import_torch=import_torch,
            device_init=device_init,
            restore=restore,
            optimizer=time.perf_counter() - start,
        )
        moved = {name: value.detach() for name, value in self.model.state_dict().items()}
        self.moved_exactly = snapshot.hash_tensors(moved) == snapshot.hash_tensors(self.restored.weights)
        self.observer = paths.recorder(self.target)
        self.forward: Callable[..., Any] = self.workload.forward
        if job.mode == "compiled":
            # Compiled: forward pass and loss, with the backward pass that belongs to them. The optimizer stays outside.
            self.forward = torch.compile(self.workload.forward, backend=self.target.backend, dynamic=False)

    def run(self) -> None:
        """All cases in order, each written at once, then the timer's self-test."""
        seen: dict[str, int] = {}
        for name in self.job.cases:
            seen[name] = seen.get(name, 0) + 1
            self.case(name, name if seen[name] == 1 else f"{name}#{seen[name]}")
        evidence.write(self.self_test(), self.job.path("evidence", self.job.cell, "self-test.json"))

    def optimizer(self) -> torch.optim.Optimizer:
        """A new optimizer over the model, in the snapshot's state."""
        return snapshot.restore_optimizer(
            self.workload.build_optimizer(self.model.parameters()), self.job.path("snapshot")
        )

    def wait(self) -> None:
        """Everything queued is complete on return."""
        targets.wait(self.target)

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        batch: dict[str, Tensor],
        span: Callable[[str], AbstractContextManager[Any]],
        after_backward: Callable[[dict[str, Tensor], Tensor], None] = lambda outputs, loss: None,
    ) -> None:
        """One training step; `span` opens each phase, `after_backward` sees outputs and loss outside any span."""
        with span("data"):
            on_device = {name: value.to(self.device) for name, value in batch.items()}
        with span("forward"):
            result = self.forward(self.model, on_device)
        outputs, loss = numerics.outputs_of(result)
        with span("backward"):
            loss.backward()
        after_backward(outputs, loss)
        with span("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def timed_span(self, watch: timing.Stopwatch) -> Callable[[str], AbstractContextManager[Any]]:
        """A span that both attributes events to its phase and times it."""

        def span(name: str) -> AbstractContextManager[Any]:
            stack = ExitStack()
            stack.enter_context(self.observer.phase(name))
            stack.enter_context(watch.phase(name))
            return stack

        return span

    def case(self, shape: str, name: str) -> None:
        """Train one case from the snapshot and write its evidence."""
        self.model.load_state_dict(self.restored.weights)
        for parameter in self.model.parameters():
            parameter.grad = None
        optimizer = self.optimizer()
        batches = self.restored.batches[shape]
        capture = numerics.Capture()
        first_step: dict[str, float] = {}
        first_load: float | None = None
        first_rows: list[evidence.PathRow] | None = None
        for number, batch in enumerate(batches, start=1):

            def keep(outputs: dict[str, Tensor], loss: Tensor, number: int = number) -> None:
                if number in (1, len(batches)):
                    for output, value in outputs.items():
                        capture.keep(number, "output", output, value)
                capture.keep(number, "loss", "loss", loss)
                capture.gradients(number, self.model)

            self.wait()
            watch, load = timing.Stopwatch(self.wait), timing.ForeignLoad()
            if number == 1 and self.observer.free:
                with self.observer.step() as first_rows:
                    self.step(optimizer, batch, self.timed_span(watch), keep)
            else:
                self.step(optimizer, batch, self.timed_span(watch), keep)
            if number == 1:
                first_step, first_load = watch.seconds, load.cores()
            capture.weights(number, self.model)
        with self.observer.step() as later_rows:
            self.step(optimizer, batches[0], self.observer.phase)
            self.wait()
        phases = self.phases(optimizer, batches)
        # Before the timed steps, whose number depends on speed: this loss is after as many steps on every device.
        last: list[Tensor] = []
        self.step(optimizer, batches[0], self.observer.phase, lambda outputs, loss: last.append(loss.detach()))
        training = evidence.Training(
            steps=len(batches) + 1 + PHASE_STEPS,
            first_loss=evidence.finite(float(capture.tensors["step1/loss/loss"])),
            last_loss=evidence.finite(float(last[0].float().cpu())),
        )
        later = self.later_steps(optimizer, batches)
        timings = evidence.Timings(
            first_step=first_step, first_step_foreign_cores=first_load, later=later, later_phases=phases
        )
        self.write(shape, name, capture, first_rows, later_rows, timings, training)

    def phases(self, optimizer: torch.optim.Optimizer, batches: list[dict[str, Tensor]]) -> dict[str, list[float]]:
        """Seconds of each phase in a few steps, completion awaited after each."""
        found: dict[str, list[float]] = {}
        for batch in itertools.islice(itertools.cycle(batches), PHASE_STEPS):
            watch = timing.Stopwatch(self.wait)
            self.step(optimizer, batch, self.timed_span(watch))
            for phase, seconds in watch.seconds.items():
                found.setdefault(phase, []).append(seconds)
        return found

    def later_steps(self, optimizer: torch.optim.Optimizer, batches: list[dict[str, Tensor]]) -> evidence.StepSeries:
        """Seconds of whole steps, taken again while strangers keep the machine busy; the least disturbed series stays."""
        demand = self.requirements.timing
        best = self.series(optimizer, batches, 1)
        spent = sum(best.seconds)
        while best.foreign_cores is not None and best.foreign_cores > demand.refuse_foreign_load:
            if best.attempts == demand.attempts or spent > demand.seconds_per_case:
                break
            again = self.series(optimizer, batches, best.attempts + 1)
            spent += sum(again.seconds)
            less = (again.foreign_cores or 0.0) < best.foreign_cores
            best = again if less else best.model_copy(update={"attempts": again.attempts})
        return best

    def series(
        self, optimizer: torch.optim.Optimizer, batches: list[dict[str, Tensor]], attempts: int
    ) -> evidence.StepSeries:
        """Seconds of whole steps: as many as declared, or as fit into the declared time."""
        demand = self.requirements.timing
        self.wait()
        before = self.observer.compiles()
        foreign = timing.ForeignLoad()
        series: list[float] = []
        for batch in itertools.islice(itertools.cycle(batches), demand.steps):
            if len(series) >= demand.least_steps and sum(series) > demand.seconds_per_case:
                break
            start = time.perf_counter()
            self.step(optimizer, batch, self.observer.phase)
            self.wait()
            series.append(time.perf_counter() - start)
        cores, after = foreign.cores(), self.observer.compiles()
        during = after - before if after is not None and before is not None else None
        return evidence.StepSeries(seconds=series, compiles_during=during, foreign_cores=cores, attempts=attempts)

    def write(
        self,
        shape: str,
        name: str,
        capture: numerics.Capture,
        first_rows: list[evidence.PathRow] | None,
        later_rows: list[evidence.PathRow],
        timings: evidence.Timings,
        training: evidence.Training,
    ) -> None:
        """Write tensors, then the document that refers to them by hash."""
        folder = f"evidence/{self.job.cell}"
        file = f"{folder}/{name}.safetensors"
        self.job.path(folder).mkdir(parents=True, exist_ok=True)
        part = self.job.path(folder, f".{name}.part")
        save_file(capture.tensors, part)
        part.replace(self.job.path(file))
        reason = "" if first_rows is not None else "the first step is timed, and counting would slow it on this target"
        info = snapshot.read_info(self.job.path("snapshot"))
        evidence.write(
            evidence.Evidence(
                cell=self.job.cell,
                case=name,
                mode=self.job.mode,
                dtype=self.job.dtype,
                identity=identity.capture(self.target),
                snapshot_sha256=self.job.snapshot_sha256,
                requirements_sha256=self.job.requirements_sha256,
                restored_sha256=self.restored.sha256,
                moved_exactly=self.moved_exactly,
                tensors_file=file,
                tensors_sha256=evidence.sha256(self.job.path(file)),
                tensors=capture.infos,
                missing_gradients=sorted(capture.missing_gradients),
                reduction_length=info.reduction_lengths[shape],
                startup=self.startup,
                cache=self.cache,
                paths=evidence.Paths(
                    source=self.observer.source, first_step=first_rows, later_step=later_rows, reason=reason
                ),
                graphs=graphs.capture() if self.job.mode == "compiled" else None,
                timings=timings,
                training=training,
            ),
            self.job.path(folder, f"{name}.json"),
        )

    def self_test(self) -> evidence.SelfTest:
        """Prove that waiting works here, with a chain of matrix products long enough to be seen by the clock."""
        weight = torch.full((_SELF_TEST_SIDE, _SELF_TEST_SIDE), 1.0 / _SELF_TEST_SIDE).to(self.device)
        value = weight

        def call() -> None:
            nonlocal value
            value = value @ weight

        calls = 1
        for _ in range(2):  # once to compile, once to time
            calls, spent = 1, 0.0
            while spent < _SELF_TEST_SECONDS and calls < 4096:
                calls *= 2
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                float(value[0, 0].cpu())
                spent = time.perf_counter() - start
        return timing.self_test(
            call, self.wait, lambda: float(value[0, 0].cpu()), calls, self.requirements.timing.scaling_tolerance
        )
