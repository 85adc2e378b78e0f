"""Probes: each operator of a workload with its neighbours' arguments, canaries for dtypes, the user's own task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shakedown.readiness import evidence, requirements, snapshot, worker, workload
from shakedown.readiness.errors import WorkloadError
from shakedown.readiness.evidence.probes import Canary, Probes, TaskScore
from shakedown.readiness.judge import decisions
from shakedown.readiness.judge import probes as judge
from shakedown.readiness.judge.results import Cell, Finding, Outcome
from shakedown.readiness.probe import child, doubles, neighbours, run, task
from shakedown.readiness.requirements import Requirements

from . import support  # noqa: F401  one thread

SMALL = """
import numpy as np
import torch
from torch import nn

CASES = ("4x6",)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, x):
        return torch.exp(self.inner(x))


def build_model():
    return Small()


def make_batch(size, length):
    return {"x": torch.randn(size, length), "count": torch.arange(size)}


def forward(model, batch):
    y = model(batch["x"])
    return y, y.mean() + (batch["count"] * 2).sum() * 0.0


def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


LINE = f"small.py:{SMALL[: SMALL.index('torch.exp(')].count(chr(10)) + 1}"
INFERENCE = SMALL.replace(
    "return torch.optim.SGD(parameters, lr=0.1)", "return None"
)  # few calls: compiling takes time

FEW = {"variations": {"neighbour_operators": 5}}


def make_job(
    folder: Path, text: str = SMALL, target: str = "neuron", mode: str = "eager", demand: dict[str, Any] | None = None
) -> worker.Job:
    """A probe job over a workload that is written here, with a snapshot of one step."""
    file = folder / "small.py"
    file.write_text(text)
    source = workload.resolve(str(file))
    loaded = workload.load(source)
    (folder / "logs").mkdir()
    locked = requirements.lock(Requirements.model_validate(demand or {}), folder / "requirements.json")
    snapshot.create(loaded, loaded.cases, 1, folder / "snapshot")
    return worker.Job(
        role="probe",
        root=str(folder),
        workload={"name": source.name, "path": str(source.path), "sha256": source.sha256},
        cell=f"{mode}-float32-probe",
        requirements_sha256=locked,
        snapshot_sha256=evidence.sha256(folder / "snapshot" / "snapshot.json"),
        target=target,
        mode=mode,
    )


def probed(job: worker.Job, backend: Callable[..., Any] | None = None, seconds: float = 60.0) -> Probes:
    """All probes of `job` in this process, so that a fault can be a backend that is made here."""
    journal = run.Journal(job.path("logs", "here.jsonl"))
    child.perform(job, journal, seconds, backend)
    document = run.assemble(job, journal, 1, "")
    evidence.write(document, job.path("evidence", job.cell, "probes.json"))
    return document


def found(job: worker.Job) -> list[Finding]:
    """What the check makes of the evidence of `job`."""
    return judge.findings(Path(job.root), [cell(job)], requirements.unlock(job.path("requirements.json")))


def cell(job: worker.Job) -> Cell:
    done = Outcome(status="finished", exit_code=0)
    fields = {"mode": job.mode, "dtype": job.dtype, "cache": "none", "target": job.target, "cases": []}
    return Cell(id=job.cell, kind="probe", outcome=done, **fields)  # type: ignore[arg-type]


def wrong_products(run_graph: Callable[..., Any]) -> Callable[..., Any]:
    """A device that multiplies matrices in bfloat16 without saying so."""

    class Narrow(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                result = func(*(a.bfloat16() if a.dtype == torch.float32 else a for a in args), **(kwargs or {}))
                return result.to(args[0].dtype)
            return func(*args, **(kwargs or {}))

    def narrow(*inputs: Any) -> Any:
        with Narrow():
            return run_graph(*inputs)

    return narrow


def ignored_strides(run_graph: Callable[..., Any]) -> Callable[..., Any]:
    """A device that reads transposed memory as if it were in order, in one operator."""

    class Careless(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.exp.default and not args[0].is_contiguous() and args[0].stride() == (1, 4):
                args = (args[0].as_strided(args[0].shape, (5, 1)),)
            return func(*args, **(kwargs or {}))

    def careless(*inputs: Any) -> Any:
        with Careless():
            return run_graph(*inputs)

    return careless


def through(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """A ``torch.compile`` backend that runs a captured graph through `change`."""
    return lambda graph, inputs: change(graph.forward)


def test_a_healthy_device_matches_in_every_variation(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    document = probed(job)
    assert document.case == "4x6"
    assert document.chosen == len([p for p in document.probes if p.variation == neighbours.UNCHANGED])
    assert {p.variation for p in document.probes} == set(neighbours.ORDER)
    assert not [p for p in document.probes if judge.differs(p) or p.outcome == "untested"]
    (exp,) = [p for p in document.probes if p.operator == "aten.exp.default" and p.variation == neighbours.UNCHANGED]
    assert exp.line == LINE
    assert "pointwise" in exp.tags
    assert exp.comparisons[0].contract == "rounding"
    assert not [f for f in found(job) if f.fails]
    rows = {row.variation: row for row in judge.summarise(document).variations}
    assert rows["same"].matches == document.chosen
    assert rows["expanded"].refused > 0, "a write into expanded memory is refused by the CPU and by the device"


def test_an_operator_that_differs_fails_with_its_line_and_the_precision_it_looks_like(tmp_path: Path) -> None:
    job = make_job(tmp_path, INFERENCE, target="cpu", mode="compiled", demand=FEW)
    probed(job, through(wrong_products))
    (finding, *_) = [f for f in found(job) if f.word == "operator-differs" and "addmm" in f.text]
    assert finding.fails
    assert LINE in finding.text
    assert "behaves like bfloat16" in finding.text
    assert not [f for f in found(job) if f.word == "neighbour-differs" and "addmm" in f.text], "said once"


def test_a_neighbour_that_differs_does_not_fail(tmp_path: Path) -> None:
    job = make_job(tmp_path, INFERENCE, target="cpu", mode="compiled", demand=FEW)
    probed(job, through(ignored_strides))
    (finding,) = [f for f in found(job) if f.word == "neighbour-differs"]
    assert not finding.fails
    assert finding.text.startswith("exp differs with transposed")
    assert not [f for f in found(job) if f.word == "operator-differs"]


FRAGILE = """
import os
import signal
library = torch.library.Library("fragile", "DEF")
library.define("doubled(Tensor x) -> Tensor")
library.impl("doubled", lambda x: x * 2, "CPU")
library.impl("doubled", lambda x: os.kill(os.getpid(), signal.SIGSEGV), "PrivateUse1")


def forward(model, batch):
    y = torch.ops.fragile.doubled(model(batch["x"]).detach()) + model(batch["x"])
    return y, y.mean()
"""


def test_a_probe_that_ends_its_process_is_named_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, INFERENCE + FRAGILE, demand={"variations": {"neighbour_operators": 12}})
    # The first death is on an unchanged call; its neighbours die as well, so only two processes are let live.
    monkeypatch.setattr(run, "_MOST_DEATHS", 1)
    worker.perform(job)
    document = evidence.read(Probes, tmp_path / "evidence" / job.cell / "probes.json")
    assert document.processes == 2
    dead = [p for p in document.probes if p.outcome == "crashed"]
    assert dead[0].operator == "fragile.doubled.default"
    assert dead[0].variation == neighbours.UNCHANGED
    assert "exit code -11" in dead[0].reason
    same = [p for p in document.probes if p.variation == neighbours.UNCHANGED]
    assert [p.outcome for p in same].count("crashed") == 1
    assert [p.outcome for p in same].count("returned") == len(same) - 1
    assert any(f.word == "operator-differs" and "crashed" in f.text and f.fails for f in found(job))
    assert any(f.word == "untested(probes)" for f in found(job)), "what was not run is said"


def test_a_probe_that_hangs_is_ended_and_told(tmp_path: Path) -> None:
    job = make_job(tmp_path, demand={"variations": {"neighbour_seconds": 8.0}})
    call = {"operator": "aten.mm.default", "arguments": "", "phase": "forward", "line": "", "calls": 1, "tags": []}
    script = tmp_path / "stuck.py"
    script.write_text(
        f"""
import json, pathlib, sys, time
journal = pathlib.Path(sys.argv[2])
if journal.exists() and "done" in journal.read_text():
    sys.exit(0)
call = {call!r}
for line in (dict(about={{}}), dict(plan=[[0, "same", call]]), dict(start=[0, "same"]), dict(device=[0, "same"])):
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\\n")
time.sleep(600)
"""
    )
    document = run.run(job, (sys.executable, str(script)))
    (probe,) = document.probes
    assert probe.outcome == "hung"
    assert document.processes == 2
    (finding,) = [f for f in found(job) if f.word == "operator-differs"]
    assert "hung" in finding.text


def test_what_time_does_not_allow_is_untested(tmp_path: Path) -> None:
    job = make_job(tmp_path, target="cpu")
    document = probed(job, seconds=0.0)
    assert {p.outcome for p in document.probes} == {"untested"}
    assert document.canaries, "canaries always run"


ORDERS = """
def forward(model, batch):
    y = model(batch["x"])
    best = torch.zeros(4, 5).argmax(-1)
    target = torch.zeros(3)
    target[torch.tensor([1, 1])] = torch.tensor([4.0, 5.0])
    noise = torch.rand(4)
    distinct = torch.topk(torch.arange(5.0), 2)
    return {"y": y, "best": best}, y.mean() + target.sum() * 0 + noise.sum() * 0
"""


def test_code_whose_answer_depends_on_an_order_is_named_by_its_line(tmp_path: Path) -> None:
    job = make_job(tmp_path, SMALL + ORDERS, target="cpu")
    probed(job)
    lines = {f.text.split(" ")[0]: f.text for f in found(job) if f.word == "order-dependent"}
    first = SMALL.count("\n") + 4
    assert f"small.py:{first}: 4 of 4 rows share their extreme value" in lines["aten.argmax.default"]
    assert f"small.py:{first + 2}: 1 of 2 writes go where another one goes" in lines["aten.index_put_.default"]
    assert "draws random numbers" in lines["aten.rand.default"]
    assert not any("topk" in operator for operator in lines)


class TestCanaries:
    """Each canary has one right answer; the patterns of known faults are recognised."""

    def words(self, job: worker.Job) -> dict[str, tuple[str, str]]:
        document = evidence.read(Probes, job.path("evidence", job.cell, "probes.json"))
        return {canary.name: judge.verdict(canary) for canary in document.canaries}

    def test_the_embedded_device_rounds_and_has_64_bits(self, tmp_path: Path) -> None:
        for mode in ("eager", "compiled"):
            (tmp_path / mode).mkdir()
            job = make_job(tmp_path / mode, mode=mode)
            probed(job, seconds=0.0)
            words = self.words(job)
            for name in ("narrowing(bfloat16)", "narrowing(float16)", "int64", "float64"):
                assert words[name][0] == "match", (mode, name, words[name])
            assert words["denormals"][0] in ("match", "flushes-denormals")

    def test_right_answers_are_those_of_the_published_case(self, tmp_path: Path) -> None:
        job = make_job(tmp_path, target="cpu")
        by_name = {canary.name: canary for canary in probed(job, seconds=0.0).canaries}
        rounded = [1.0, 1.0, 1.0078125, 1.015625, 3.140625, 0.00099945068, 65536.0, 0.333984375]
        half = [1.001953125, 1.00390625, 1.0078125, 1.01171875, 3.140625, 0.00100040436, 65504, 0.333251953125]
        assert [float(x) for x in by_name["narrowing(bfloat16)"].expected] == pytest.approx(rounded, rel=1e-8)
        assert [float(x) for x in by_name["narrowing(float16)"].expected] == pytest.approx(half, rel=1e-8)
        assert by_name["int64"].expected[:3] == ["2147483654", "4294967297", "4"]
        assert by_name["int64"].expected[9:] == ["6442450952", "1", "2147483648"]
        assert by_name["int64"].without[:3] == ["-2147483642", "1", "4"]
        assert [float(x) for x in by_name["float64"].expected] == [9.094947017729282e-13, -1.0, 16777216.0]
        assert [float(x) for x in by_name["float64"].without] == [0.0, -1.0, 16777215.0]
        assert by_name["histc(int32)"].expected == ["1", "1", "3", "1"]

    def test_a_compiler_that_drops_a_narrowing_cast_is_named(self, tmp_path: Path) -> None:
        def drop(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            for node in list(graph.graph.nodes):
                if node.op == "call_method" and node.target == "to" and node.args[1] in (torch.bfloat16, torch.float16):
                    node.replace_all_uses_with(node.args[0])
                    graph.graph.erase_node(node)
            graph.recompile()
            return graph.forward

        job = make_job(tmp_path, target="cpu", mode="compiled")
        probed(job, drop, seconds=0.0)
        word, text = self.words(job)["narrowing(bfloat16)"]
        assert (word, text) == ("wrong", "output equals the un-rounded input: narrowing cast removed")
        assert [f.fails for f in found(job) if "narrowing cast removed" in f.text] == [True, True]

    def test_integers_cut_to_32_bits_are_recognised_and_never_a_match(self, tmp_path: Path) -> None:
        def narrow(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            def call(*args: Any) -> Any:
                cut = [a.int() if isinstance(a, torch.Tensor) and a.dtype == torch.int64 else a for a in args]
                return tuple(r.long() if r.dtype == torch.int32 else r for r in graph.forward(*cut))

            return call

        job = make_job(tmp_path, target="cpu", mode="compiled")
        probed(job, narrow, seconds=0.0)
        word, text = self.words(job)["int64"]
        assert word == "precision-blocked(int64)"
        assert text.startswith("high half lost")
        (finding,) = [f for f in found(job) if f.word == "precision-blocked(int64)"]
        assert not finding.fails, "the workload's own integers are small"
        assert "largest integer of the workload's step is 12" in finding.text

    @pytest.mark.parametrize("lost", [["2147483654", "0", "4"], ["-2147483642", "1", "4"], ["2147483654", "1", "4"]])
    def test_the_published_patterns_of_lost_halves(self, lost: list[str]) -> None:
        right, narrow = ["2147483654", "4294967297", "4"], ["-2147483642", "1", "4"]
        canary = Canary(name="int64", operation="a + 1", expected=right, found=lost, without=narrow)
        expected = "wrong" if lost[1] == "0" else "precision-blocked(int64)"
        assert judge.verdict(canary)[0] == expected

    def test_a_refusal_is_an_answer(self) -> None:
        for name, word in (("float64", "precision-blocked(float64)"), ("int64", "precision-blocked(int64)")):
            canary = Canary(name=name, operation="x", expected=["1"], found=[], without=["0"], error="TypeError: no")
            assert judge.verdict(canary)[0] == word
            assert "TypeError: no" in judge.verdict(canary)[1]


DOUBLES = """
def build_model():
    model = Small()
    model.register_buffer("table", torch.from_numpy(np.linspace(0, 1, 5)))
    model.register_buffer("scaled", torch.tensor(np.ones(5)) * 2)
    model.register_buffer("asked", torch.zeros(5, dtype=torch.float64))
    model.register_buffer("single", torch.from_numpy(np.ones(5, dtype=np.float32)))
    return model
"""


def test_float64_tensors_are_listed_with_who_asked_for_them(tmp_path: Path) -> None:
    file = tmp_path / "doubles.py"
    file.write_text(SMALL + DOUBLES)
    listed = doubles.float64_tensors(workload.load(workload.resolve(str(file))))
    assert {t.name: t.origin for t in listed} == {
        "table": doubles.NUMPY,
        "scaled": doubles.NUMPY,
        "asked": doubles.ASKED,
    }
    assert listed[0].line == f"doubles.py:{SMALL.count(chr(10)) + 4}"


def test_a_default_dtype_is_an_origin_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "doubles.py"
    file.write_text(SMALL)
    torch.set_default_dtype(torch.float64)
    try:
        listed = doubles.float64_tensors(workload.load(workload.resolve(str(file))))
    finally:
        torch.set_default_dtype(torch.float32)
    assert {t.name for t in listed} == {"inner.weight", "inner.bias", "batch['x']"}
    assert {t.origin for t in listed} == {doubles.DEFAULT}


def test_float64_as_float32_blocks_and_no_tolerance_is_offered(tmp_path: Path) -> None:
    """Under the support profile of a release that computes float64 as float32, in a process of its own."""
    job = make_job(tmp_path, SMALL + DOUBLES)
    (tmp_path / "job.json").write_text(json.dumps(job.__dict__))
    command = [
        sys.executable,
        "-m",
        "shakedown.readiness.probe.child",
        tmp_path / "job.json",
        tmp_path / "j.jsonl",
        "0",
    ]
    subprocess.run(command, check=True, env=os.environ | {"SHAKEDOWN_PROFILE": "neuron-2.33"}, timeout=1200)
    document = run.assemble(job, run.Journal(tmp_path / "j.jsonl"), 1, "")
    evidence.write(document, tmp_path / "evidence" / job.cell / "probes.json")
    (finding,) = [f for f in found(job) if f.word == "precision-blocked(float64)"]
    assert finding.fails, "the workload has float64 tensors"
    assert "computed as float32" in finding.text
    assert "table (NumPy default, small.py:" in finding.text
    assert "asked (asked for, small.py:" in finding.text
    assert "toleran" not in finding.text
    plain = document.model_copy(update={"float64_tensors": []})
    evidence.write(plain, tmp_path / "evidence" / job.cell / "probes.json")
    (finding,) = [f for f in found(job) if f.word == "precision-blocked(float64)"]
    assert not finding.fails
    demanded = Requirements.model_validate({"workload": {"float64": True}})
    (finding,) = [f for f in judge.findings(tmp_path, [cell(job)], demanded) if f.word == "precision-blocked(float64)"]
    assert finding.fails
    assert "the requirements demand float64" in finding.text


def test_absent_and_damaged_probes_are_untested(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    (finding,) = found(job)
    assert (finding.word, finding.fails) == ("untested(probes)", False)
    path = tmp_path / "evidence" / job.cell / "probes.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    (finding,) = found(job)
    assert finding.word == "untested(probes)"
    assert judge.summary(tmp_path, [cell(job)]) == []


class TestTask:
    """A score of the user's own, from outputs that were captured, held to a frozen limit."""

    text = SMALL + "\n\ndef positive(outputs, batch):\n    return float((outputs['output'] > 1).float().mean())\n"

    def loaded(self, folder: Path, text: str = "") -> workload.Workload:
        file = folder / "scored.py"
        file.write_text(text or self.text)
        return workload.load(workload.resolve(str(file)))

    def test_scores_go_from_captured_outputs_to_a_finding(self, tmp_path: Path) -> None:
        loaded = self.loaded(tmp_path)
        right, wrong = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([[2.0, 2.0], [2.0, 0.0]])
        for name, values, path in (
            ("device", wrong, tmp_path / "evidence" / "eager" / "4x6.task.json"),
            ("truth", right.double(), tmp_path / "evidence" / "truth" / f"{'a' * 16}.task.json"),
        ):
            kept = {"step1/output/output": values, "step1/loss/loss": torch.tensor(1.0)}
            task.keep(loaded, "positive", kept, [{}], "a" * 64, path)
            assert evidence.read(TaskScore, path).scores == {"step1": 0.75 if name == "device" else 0.5}
        demand = Requirements.model_validate({"task": {"function": "positive", "limit": 0.1, "reason": "a tenth"}})
        done = Outcome(status="finished", exit_code=0)
        fields = {"mode": "eager", "dtype": "float32", "cache": "none", "target": "cpu"}
        one = Cell(id="eager", cases=["4x6"], outcome=done, **fields)  # type: ignore[arg-type]
        (finding,) = decisions.task_findings(tmp_path, [one], demand)
        assert (finding.word, finding.fails, finding.case) == ("task-outside-limit", True, "4x6")
        assert "positive at step1 is 0.75, truth 0.5: 0.25 apart, the limit is 0.1 (a tenth)" in finding.text
        wide = demand.model_copy(update={"task": demand.task.model_copy(update={"limit": 0.3})})
        assert decisions.task_findings(tmp_path, [one], wide) == []

    @pytest.mark.parametrize(
        ("name", "body", "said"),
        [
            ("absent", "", "is not defined in the workload"),
            ("broken", "return outputs['nothing']", "raises KeyError: 'nothing'"),
            ("vague", "return 'good'", "returned str; it must return one number"),
        ],
    )
    def test_a_task_that_gives_no_number_is_named(self, tmp_path: Path, name: str, body: str, said: str) -> None:
        loaded = self.loaded(tmp_path, SMALL + (f"\n\ndef {name}(outputs, batch):\n    {body}\n" if body else ""))
        with pytest.raises(WorkloadError, match=said):
            task.score(loaded, name, {}, {})


def test_calls_in_bfloat16_are_judged_at_its_precision(tmp_path: Path) -> None:
    job = replace(make_job(tmp_path, demand={"variations": {"neighbour_operators": 10}}), dtype="bfloat16")
    document = probed(job)
    assert any(c.dtype == "bfloat16" for p in document.probes for c in p.comparisons)
    assert not [p for p in document.probes if judge.differs(p)]
