"""Memory of a step: peaks that the system keeps, samples that say so, and reasons instead of zeros."""

from __future__ import annotations

import gc
import mmap
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shakedown.readiness import evidence, snapshot, targets, workload
from shakedown.readiness.evidence import Memory, MemorySpan, Meter
from shakedown.readiness.evidence.memory import OVERLAPPED, STEP
from shakedown.readiness.judge import memory as judged
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.observe import memory
from shakedown.readiness.requirements import Requirements
from shakedown.readiness.step import Stepper

from .support import TINY

CPU, NEURON = targets.get("cpu"), targets.get("neuron")
MIB = 1 << 20


def no_phase(name: str) -> AbstractContextManager[None]:
    return nullcontext()


class Allocator:
    """A device module that keeps a peak, as torch.cuda and torch_neuronx do."""

    __name__ = "torch.accelerated"

    def __init__(self) -> None:
        self.held = self.most = 0

    def take(self, nbytes: int) -> None:
        self.held += nbytes
        self.most = max(self.most, self.held)

    def memory_allocated(self) -> int:
        return self.held

    def max_memory_allocated(self) -> int:
        return self.most

    def reset_peak_memory_stats(self) -> None:
        self.most = self.held


@pytest.mark.skipif(sys.platform != "linux", reason="Linux keeps a peak that can be reset")
def test_the_hosts_peak_is_of_the_span_alone() -> None:
    def use(nbytes: int) -> None:
        with mmap.mmap(-1, nbytes) as block:
            for page in range(0, nbytes, mmap.PAGESIZE):
                block[page] = 1

    watch = memory.Watch(CPU)
    use(256 * MIB)  # before: not to be seen
    with watch.measure("little"):
        use(1 * MIB)
    with watch.measure("much"):
        use(128 * MIB)
    little, much = watch.document().spans
    assert watch.document().host.kind == "peak"
    assert little.host is not None
    assert much.host is not None
    assert 100 * MIB < much.host - little.host < 200 * MIB


def test_the_cpu_has_no_memory_of_a_device() -> None:
    watch = memory.Watch(CPU)
    with watch.measure("step"):
        torch.ones(10)
    document = watch.document()
    assert document.device == Meter(kind="unobservable", source="the CPU's memory is the host's")
    assert document.spans[0].device is None, "not known is not zero"


def test_an_allocators_peak_is_taken_where_there_is_one() -> None:
    module = Allocator()
    module.take(700)
    module.take(-600)
    watch = memory.Watch(targets.get("cuda"), wait=lambda: None, module=module)
    with watch.measure("step"):
        module.take(50)
        module.take(-30)
    (span,) = watch.document().spans
    assert (span.device_before, span.device, span.device_after) == (100, 150, 120)
    assert watch.document().device.kind == "peak"
    assert "torch.accelerated.max_memory_allocated()" in watch.document().device.source


def test_mps_tells_the_moment_and_the_evidence_says_so() -> None:
    held = 100
    module = SimpleNamespace(__name__="torch.mps", current_allocated_memory=lambda: held)
    watch = memory.Watch(targets.get("mps"), wait=lambda: None, module=module)
    with watch.measure("step") as sample:
        held = 900  # nobody looks
        held = 300
        sample()
        held = 200
    (span,) = watch.document().spans
    assert span.device == 300
    assert span.samples == 3
    assert watch.document().device.kind == "sampled"
    assert "is not seen" in watch.document().device.source


def test_a_device_without_figures_is_unobservable() -> None:
    watch = memory.Watch(targets.get("xpu"), wait=lambda: None, module=SimpleNamespace(__name__="torch.other"))
    assert watch.document().device.kind == "unobservable"
    assert "torch.other has no function" in watch.document().device.source


def test_the_embedded_device_knows_what_it_holds() -> None:
    for _ in range(3):  # building programs leaves garbage behind, and a number that keeps coming becomes a value
        torch.ones(256, 1024, device="neuron").add_(1) + 1
    gc.collect()
    before = torch.neuron.live_bytes()
    x = torch.ones(256, 1024, device="neuron")
    view, alias = x[1:], x.t()
    assert torch.neuron.live_bytes() - before == MIB, "views hold nothing of their own"
    y = x + 1
    assert torch.neuron.live_bytes() - before == 2 * MIB
    x.add_(1)
    torch.neuron.synchronize()
    assert torch.neuron.live_bytes() - before == 2 * MIB, "an in-place operator replaces its value"
    del x, y, view, alias
    assert torch.neuron.live_bytes() == before


@pytest.fixture(scope="module")
def stepper(tmp_path_factory: pytest.TempPathFactory) -> Stepper:
    folder = tmp_path_factory.mktemp("memory") / "snapshot"
    loaded = workload.load(workload.resolve(str(TINY)))
    snapshot.create(loaded, [workload.Case(2, 8)], 2, folder)
    restored = snapshot.restore(loaded, folder, torch.float32)
    made = Stepper(loaded, restored, targets.open_device(NEURON), folder)
    made.reset()
    for batch in restored.batches["2x8"] * 3:  # numbers that keep coming become values on the device
        made.step(batch, no_phase)
    return made


def test_a_real_step_alone_and_with_the_next_batch_on_the_device(stepper: Stepper) -> None:
    now, following = stepper.restored.batches["2x8"]

    def overlapped(span: memory.Span) -> None:
        ahead = {name: value.to("neuron") for name, value in following.items()}
        stepper.step(now, span)
        assert ahead

    found = memory.of_steps(memory.Watch(NEURON), lambda span: stepper.step(now, span), overlapped, no_phase)
    assert found.device.kind == "peak"
    assert found.device.source.startswith("torch.neuron.max_memory_allocated()")
    step, both = found.spans
    assert step.samples == 2 + 2 * 4, "where the span and each of its four phases begin and end"
    summary = judged.summarise("eager-float32", "2x8", found)
    batch = sum(value.numel() * value.element_size() for value in following.values())
    assert summary.overlap == batch
    weights = sum(value.numel() * value.element_size() for value in stepper.model.parameters())
    assert step.device_before is not None
    assert step.device_before >= 3 * weights, "AdamW keeps two values for each weight"
    assert (step.device or 0) - step.device_before >= weights, "gradients"
    assert summary.kept == 0, "no tensor stays behind"
    assert both.device_after == both.device_before, "nor does the batch that was ahead"
    assert found.model_dump_json() == Memory.model_validate_json(found.model_dump_json()).model_dump_json()


def document(kind: str, step: int | None, overlapped: int | None) -> Memory:
    def span(name: str, device: int | None) -> MemorySpan:
        return MemorySpan(name=name, host=10, device=device, device_before=1, device_after=1, samples=2)

    meter = Meter(kind=kind, source="as told")  # type: ignore[arg-type]
    spans = [span(STEP, step)] + [span(OVERLAPPED, overlapped)] * (overlapped is not None)
    return Memory(host=Meter(kind="peak", source="VmHWM"), device=meter, spans=spans)


@pytest.mark.parametrize(
    ("found", "word", "fails"),
    [
        (document("peak", 800, 900), "", False),
        (document("peak", 800, 1100), "over-budget(memory)", True),
        (document("sampled", 800, 1100), "over-budget(memory)", True),
        (document("sampled", 800, 900), "untested(memory)", False),
        (document("peak", 800, None), "untested(memory)", False),
        (document("unobservable", None, None), "untested(memory)", False),
    ],
)
def test_a_budget_is_met_by_peaks_only(tmp_path: Path, found: Memory, word: str, fails: bool) -> None:
    cell = Cell(
        id="eager-float32",
        mode="eager",
        dtype="float32",
        cache="none",
        target="cuda",
        cases=["2x8", "1x12"],
        outcome=Outcome(status="finished"),
    )
    evidence.write(found, tmp_path / "evidence" / cell.id / "2x8.memory.json")
    demand = Requirements()
    assert judged.findings(tmp_path, [cell], demand) == []
    limits = demand.budgets.model_copy(update={"device_memory": 1000.0})
    made = judged.findings(tmp_path, [cell], demand.model_copy(update={"budgets": limits}))
    assert [(one.word, one.fails) for one in made] == ([(word, fails)] if word else [])
    (summary,) = judged.read(tmp_path, [cell])
    assert (summary.case, summary.host, summary.device) == ("2x8", 10, found.spans[0].device)


def test_a_damaged_document_is_named(tmp_path: Path) -> None:
    cell = Cell(
        id="eager-float32",
        mode="eager",
        dtype="float32",
        cache="none",
        target="cuda",
        cases=["2x8"],
        outcome=Outcome(status="finished"),
    )
    path = tmp_path / "evidence" / cell.id / "2x8.memory.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    (finding,) = judged.findings(tmp_path, [cell], Requirements())
    assert (finding.word, finding.fails) == ("untested(memory)", False)
    assert judged.read(tmp_path, [cell]) == []
