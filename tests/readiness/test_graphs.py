"""Where compiled code ends and why: Dynamo's decisions on real functions, on both devices."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from shakedown import dynamo
from shakedown.readiness import evidence, targets
from shakedown.readiness.evidence import PathRow
from shakedown.readiness.judge import graphs as judge
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.observe import graphs
from shakedown.readiness.requirements import Requirements

from . import tiny
from .stepping import Training
from .watching import BACKENDS, body, both, compiled, judged, watching

HERE = (Path(__file__),)
log = logging.getLogger("workload")


@pytest.fixture
def watch() -> Iterator[graphs.Watch]:
    with watching() as started:
        yield started


# --- graph breaks -------------------------------------------------------------------------------------------------------


@torch.compiler.disable
def left_alone(x: Tensor) -> Tensor:
    return x + 3


def prints(x: Tensor) -> Tensor:
    x = x + 1
    print("a step")
    return x * 2


def logs(x: Tensor) -> Tensor:
    x = x + 1
    log.debug("a step")
    return x * 2


def reads(x: Tensor) -> Tensor:
    x = x + 1
    scale = x.sum().item()
    return x * scale


def reads_a_list(x: Tensor) -> Tensor:
    x = x + 1
    scale = x.tolist()[0]
    return x * scale


def branches(x: Tensor) -> Tensor:
    x = x + 1
    if x.sum() > 0:
        return x * 2
    return x


def selects(x: Tensor) -> Tensor:
    x = x + 1
    x = x[x > 0]
    return x * 2


def calls_out(x: Tensor) -> Tensor:
    x = x + 1
    x = left_alone(x)
    return x * 2


def seeds(x: Tensor) -> Tensor:
    x = x + 1
    torch.manual_seed(1)
    return x * 2


CAUSES = [
    (prints, "side effect"),
    (logs, "side effect"),
    (reads, "host read"),
    (reads_a_list, "host read"),
    (branches, "data-dependent control flow"),
    (selects, "data-dependent shape"),
    (calls_out, "asked for"),
    (seeds, "unsupported call"),
]


ON_THE_DEVICE = (prints, reads, branches, selects)


@pytest.mark.parametrize(
    ("device", "function", "cause"),
    [(device, *pair) for pair in CAUSES for device in BACKENDS if device == "cpu" or pair[0] in ON_THE_DEVICE],
)
def test_a_break_has_a_cause_and_a_line(
    watch: graphs.Watch, device: str, function: Callable[[Tensor], Tensor], cause: str, tmp_path: Path
) -> None:
    given = torch.arange(4.0)
    expected = function(given)
    result = compiled(watch, function, device)(given.to(device))
    torch.testing.assert_close(result.cpu(), expected)
    record = watch.case()
    (site,) = record.break_sites
    assert judge.cause(site.kind, site.context) == cause
    assert (site.function, Path(site.file), site.skipped) == (function.__name__, HERE[0], False)
    assert site.line == function.__code__.co_firstlineno + 2
    assert [graph.resumed for graph in record.graphs] == [False, True]
    (found,) = judged(tmp_path, {"4x1": record})
    assert (found.word, found.fails) == ("partly-compiled", False)
    assert f"test_graphs.py:{site.line} in {function.__name__}" in found.text
    passes, reason = judge.whole([record])
    assert passes is False
    assert reason.startswith(cause)


def loops(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + 1
        print("a step")
    return x


@both
def test_the_full_graph_is_tried_and_the_first_obstacle_named(watch: graphs.Watch, device: str) -> None:
    given = (torch.ones(4, device=device),)
    for function, failure in ((body, ""), (prints, "Unsupported"), (loops, "Unsupported"), (calls_out, "Unsupported")):
        tried = graphs.full_graph(function, given, BACKENDS[device], HERE)
        assert (tried.passes, tried.failure) == (not failure, failure)
        if failure:
            assert Path(tried.file) == HERE[0]
            assert tried.line - function.__code__.co_firstlineno == (3 if function is loops else 2)
            assert tried.reason
    # What is selected by values is captured as a symbol then; the embedded device refuses sizes that depend on data.
    tried = graphs.full_graph(selects, given, BACKENDS[device], HERE)
    assert tried.passes is (device == "cpu")
    if device == "neuron":
        assert "the size of what aten.index.Tensor gives depends on data" in tried.reason
        assert (Path(tried.file), tried.line) == (HERE[0], selects.__code__.co_firstlineno + 2)
    assert watch.case().limits == []


@both
def test_a_function_that_cannot_be_compiled_is_not_called_compiled(
    watch: graphs.Watch, device: str, tmp_path: Path
) -> None:
    function = compiled(watch, loops, device)
    for _ in range(4):
        function(torch.ones(2, device=device))
    record = watch.case()
    (skip,) = record.skipped
    assert (skip.function, skip.ran_eager, skip.failure) == ("loops", 4, "Unsupported")
    assert record.break_sites[0].skipped
    assert record.captured == 0
    assert [(row.calls, row.ran_eager, row.without_graph) for row in record.shapes] == [(4, 4, 4)]
    (found,) = judged(tmp_path, {"2x1": record})
    assert (found.word, found.fails) == ("not-captured", True)
    assert "none of 4 calls" in found.text
    assert "side effect at test_graphs.py" in found.text


def test_a_line_of_the_library_is_not_the_users_line(watch: graphs.Watch) -> None:
    class Reading(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float(x.sum())

    model = nn.Sequential(nn.Linear(4, 4), Reading())
    compiled(watch, lambda x: model(x), "cpu")(torch.ones(1, 4))
    (site,) = watch.case().break_sites
    assert Path(site.file) == HERE[0]
    assert site.line == Reading.forward.__code__.co_firstlineno + 1


# --- inside and outside, lowering and fallback --------------------------------------------------------------------------


@both
def test_a_step_is_split_into_graphs_and_the_rest(device: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    waits: list[None] = []

    def wait() -> None:
        waits.append(None)
        torch.accelerator.synchronize() if device != "cpu" else None

    def forward(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        hidden = model(batch["x"])
        hidden = left_alone(hidden)
        return hidden.square().mean()

    model = nn.Linear(32, 32).to(device)
    batch = {"x": torch.ones(8, 32, device=device)}
    with graphs.Watch(HERE, wait) as watch:
        function = compiled(watch, forward, device)
        function(model, batch).backward()
        assert not waits  # only an observed step is awaited
        before = watch.capture()
        for _ in range(3):
            with watch.step() as observed:
                with observed.span("data"):
                    batch["x"] + 1  # not part of what is compiled
                with observed.span("forward"):
                    loss = function(model, batch)
                with observed.span("backward"):
                    loss.backward()
        record = watch.case()
    assert (record.captured, record.breaks) == (before.captured, before.breaks)  # observing compiled nothing
    regions = record.regions
    assert regions is not None
    assert (regions.steps, regions.graph_runs, regions.backward_runs) == (3, 6, 6)
    assert regions.outside == {"aten::add.Tensor": 3}
    assert all(0 < inside < seconds for inside, seconds in zip(regions.seconds_inside, regions.seconds, strict=True))
    assert len(waits) == 3 * (4 + 4 * 2)  # both ends of two phases and of four graphs
    summary = judge.summarise({"8x32": record}, {}, Requirements())
    shares = [1 - inside / seconds for inside, seconds in zip(regions.seconds_inside, regions.seconds)]
    assert summary.share_outside == pytest.approx(sorted(shares)[1])
    assert summary.operators_outside == {"aten::add.Tensor": 1}
    (found,) = judged(tmp_path, {"8x32": record})
    assert found.word == "partly-compiled"
    assert "operators there in one step: 1 aten::add.Tensor" in found.text
    assert watch.case().regions is None
    torch._dynamo.reset()


def quantised(x: Tensor) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)  # quantised


def test_a_lowering_problem_is_neither_a_capture_problem_nor_a_fallback(tmp_path: Path) -> None:
    torch._dynamo.reset()
    place = f"test_graphs.py:{quantised.__code__.co_firstlineno + 1}"
    given = torch.ones(4, device="neuron")
    with warnings.catch_warnings(record=True) as said, graphs.Watch(HERE) as watch:
        warnings.simplefilter("always")
        function = compiled(watch, lambda x: quantised(x) + 0, "neuron")
        function(given)
        with watch.step() as observed, observed.span("forward"):
            function(given)
        split = watch.case()
        compiled(watch, lambda x: prints(quantised(x) + 0), "neuron")(given)
        mixed = watch.case()
        compiled(watch, quantised, "neuron")(given)
        by_operator = watch.case()
    assert len([one for one in said if "graph model_default" in str(one.message)]) == 3

    assert (split.captured, split.break_sites, split.by_operator) == (1, [], [])
    (graph,) = split.splits
    assert graph.programs == 1
    assert graph.outside[0].operator == "aten.fake_quantize_per_tensor_affine_cachemask.default"
    assert graph.outside[0].reason == "no lowering"
    assert place in graph.outside[0].place
    assert split.regions is not None
    assert split.regions.inside_operators == {"aten::fake_quantize_per_tensor_affine_cachemask.default": 1}
    (found,) = judged(tmp_path, {"4x1": split})
    assert (found.word, found.fails) == ("graph-split", False)
    assert f"cachemask.default at {place} is in no program (no lowering)" in found.text
    row = PathRow(kind="fallback", name="aten::fake_quantize", phase="forward", detail="no lowering", count=1)
    lowering, fallback = judge.problems(split, [row])
    assert (lowering.kind, lowering.cause, lowering.place) == ("lowering", "outside programs", place)
    assert fallback.kind == "fallback"
    whole, reason = judge.whole([split])
    assert whole is False
    assert "is in no program" in reason

    assert [problem.kind for problem in judge.problems(mixed, [])] == ["capture", "lowering"]
    words = {found.word: found for found in judged(tmp_path, {"4x1": mixed})}
    assert set(words) == {"partly-compiled", "graph-split"}
    assert not any(found.fails for found in words.values())

    assert by_operator.splits == []
    assert "no lowering" in by_operator.by_operator[0].reason
    (found,) = judged(tmp_path, {"4x1": by_operator})
    assert (found.word, found.fails) == ("graph-by-operator", True)
    assert "every graph" in found.text


def test_a_full_graph_that_the_backend_splits_is_said_to_be_split() -> None:
    with pytest.warns(UserWarning, match="splits graph"):
        tried = graphs.full_graph(lambda x: quantised(x) + 0, (torch.ones(4, device="neuron"),), "neuron", HERE)
    assert tried.passes
    assert [one.outside[0].reason for one in tried.splits] == ["no lowering"]


def test_a_record_from_before_graphs_were_split_is_read(watch: graphs.Watch, tmp_path: Path) -> None:
    compiled(watch, body, "cpu")(torch.ones(2, 2))
    record = watch.case()
    old = json.loads(record.model_dump_json())
    del old["splits"]
    path = tmp_path / "old.graphs.json"
    path.write_text(json.dumps(old))
    assert evidence.read(evidence.GraphRecord, path) == record


def test_a_backend_that_fails_is_not_a_graph_break(watch: graphs.Watch) -> None:
    def broken(module: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        raise ValueError("no program for this graph")

    function = watch.calls(torch.compile(lambda x: x + 1, backend=watch.backend(broken)))
    with torch._dynamo.config.patch(suppress_errors=True):
        function(torch.ones(2))
        function(torch.ones(2))
    record = watch.case()
    (problem,) = judge.problems(record, [])
    assert (problem.kind, problem.cause, problem.count) == ("lowering", "backend failure", 2)
    assert "no program for this graph" in problem.text


@both
def test_a_training_workload_is_whole(device: str, tmp_path: Path) -> None:
    torch._dynamo.reset()
    target = targets.get(device)
    training = Training(tiny, target)
    with graphs.Watch((Path(tiny.__file__),), lambda: targets.wait(target)) as watch:
        training.forward = watch.calls(
            torch.compile(tiny.forward, backend=watch.backend(target.backend), dynamic=False)
        )
        losses = [training.step() for _ in range(3)]
        with watch.step() as observed:
            training.step(observed)
        record = watch.case()
    assert losses[2] < losses[0]
    assert record.captured == 1
    assert record.regions is not None
    assert (record.regions.graph_runs, record.regions.backward_runs) == (1, 1)
    assert record.regions.outside == {}
    assert [(row.shapes, row.calls) for row in record.shapes] == [("ids 2x4, labels 2x4", 4)]
    assert judged(tmp_path, {"2x4": record}) == []
    model, batch = training.model, {name: value.to(training.device) for name, value in training.batch.items()}
    assert graphs.full_graph(tiny.forward, (model, batch), target.backend).passes


# --- absence ------------------------------------------------------------------------------------------


def test_a_run_that_stays_eager_for_no_known_reason_is_seen(watch: graphs.Watch, tmp_path: Path) -> None:
    function = compiled(watch, body, "cpu")
    with torch.compiler.set_stance("force_eager"):
        function(torch.ones(2, 8))
    record = watch.case()
    (found,) = judged(tmp_path, {"2x8": record})
    assert (found.word, found.fails) == ("not-captured", True)
    assert judge.whole([record]) == (False, "1 calls with 2x8 ran no graph")
    assert judge.whole([watch.case()])[0] is None


def test_what_this_pytorch_does_not_show_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._dynamo import symbolic_convert

    monkeypatch.delattr(symbolic_convert.InstructionTranslatorBase, "log_graph_break")
    with graphs.Watch(HERE, observer=dynamo.Observer()) as watch:
        record = watch.case()
    assert record.unseen[0].startswith("graph breaks: PyTorch")
    (found,) = judged(tmp_path, {"2x8": record})
    assert (found.word, found.fails) == ("unobservable(graphs)", False)


def test_records_survive_writing_and_damage_is_named(watch: graphs.Watch, tmp_path: Path) -> None:
    compiled(watch, prints, "cpu")(torch.ones(2))
    record = watch.case()
    path = tmp_path / "evidence" / "c" / "2x8.graphs.json"
    evidence.write(record, path)
    assert evidence.read(evidence.GraphRecord, path) == record
    path.write_text(path.read_text().replace("/1", "/99"))
    cell = Cell(
        id="c",
        mode="compiled",
        dtype="float32",
        cache="none",
        target="cpu",
        cases=["2x8"],
        outcome=Outcome(status="finished"),
    )
    (found,) = judge.findings(tmp_path, [cell], Requirements())
    assert found.word == "untested(graphs)"
    assert ".graphs.json" in found.text
    evidence.write(record, path)
    full = tmp_path / "evidence" / "c" / "full-graph.json"
    evidence.write(evidence.FullGraph(passes=True), full)
    assert judge.read_full_graph(tmp_path, cell) == evidence.FullGraph(passes=True)
    full.write_text("{")
    assert "full-graph.json" in judge.findings(tmp_path, [cell], Requirements())[0].text
