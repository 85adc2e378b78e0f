"""Shapes, guards, the limit that makes Dynamo quiet, and expectations, on both devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from shakedown.readiness import evidence, trial
from shakedown.readiness.judge import graphs as judge
from shakedown.readiness.judge.disposition import CHANGE
from shakedown.readiness.observe import graphs
from shakedown.readiness.requirements import CaseDemand, Demanded, Requirements

from .support import TINY, InProcess, quick
from .watching import body, both, compiled, judged, watching

HERE = (Path(__file__),)


@pytest.fixture
def watch() -> Iterator[graphs.Watch]:
    with watching() as started:
        yield started


# --- shapes, and the quiet limit ----------------------------------------------------------------------------------------


@both
def test_repeated_shapes_compile_once_each(watch: graphs.Watch, device: str, tmp_path: Path) -> None:
    function = compiled(watch, body, device)
    cumulated = []
    for length in (96, 240, 480, 96, 240):
        function(torch.ones(1, length, device=device))
        cumulated.append(watch.capture().captured)
    assert cumulated == [1, 2, 3, 3, 3]
    record = watch.case()
    assert [(r.shapes, r.calls, r.compiled) for r in record.shapes] == [
        ("1x96", 2, 1),
        ("1x240", 2, 1),
        ("1x480", 1, 1),
    ]
    assert [judge.guard_about(again.guard) for again in record.recompilations] == ["shape", "shape"]
    assert all(again.function == "body" and again.file == body.__code__.co_filename for again in record.recompilations)
    shares = [row.share for row in judge.ledger({"a": record}, Requirements())]
    assert shares == pytest.approx([0.4, 0.4, 0.2])
    assert judged(tmp_path, {"1x96": record}) == []
    assert judge.whole([record]) == (True, "")


def test_padding_to_buckets_compiles_once_for_each_bucket(watch: graphs.Watch) -> None:
    function = compiled(watch, body, "cpu")
    cumulated = []
    for length in (96, 240, 480, 96, 240):
        bucket = next(size for size in (128, 256, 512) if size >= length)
        function(nn.functional.pad(torch.ones(1, length), (0, bucket - length)))
        cumulated.append(watch.capture().captured)
    assert cumulated == [1, 2, 3, 3, 3]
    assert [row.shapes for row in watch.case().shapes] == ["1x128", "1x256", "1x512"]


@both
def test_past_the_limit_every_eager_call_is_counted(watch: graphs.Watch, device: str, tmp_path: Path) -> None:
    function = compiled(watch, body, device)
    for length in range(2, 22):
        function(torch.ones(1, length, device=device))
    first = watch.case()
    assert first.captured == 8  # what a plain counter reports, and it looks healthy
    (limit,) = first.limits
    assert (limit.function, limit.limit, limit.allowed, limit.ran_eager) == ("body", "recompile_limit", 8, 12)
    assert "size mismatch" in limit.guard
    rows = judge.ledger({"1x2": first}, Requirements())
    assert [row.ran_eager for row in rows] == [0] * 8 + [1] * 12
    assert [row.without_graph for row in rows] == [0] * 8 + [1] * 12

    for length in (2, 9, 10, 21, 21):  # what was compiled stays compiled; the rest stays eager
        result = function(torch.ones(1, length, device=device))
        torch.testing.assert_close(result.cpu(), torch.full((1,), 3.0 * length))
    second = watch.case()
    assert second.captured == 0
    assert [event.ran_eager for event in second.limits] == [3]
    assert [(row.shapes, row.ran_eager) for row in second.shapes] == [("1x2", 0), ("1x9", 0), ("1x10", 1), ("1x21", 2)]

    found = judged(tmp_path, {"1x2": first, "1x3": second})
    assert [(f.word, f.case, f.fails) for f in found] == [
        ("recompile-bound", "1x2", True),
        ("recompile-bound", "1x3", True),
    ]
    assert "recompile_limit = 8" in found[0].text
    assert "12 calls ran eager" in found[0].text
    assert "3 calls ran eager" in found[1].text
    passes, reason = judge.whole([first])
    assert passes is False
    assert "recompile_limit" in reason


def test_watching_changes_neither_what_compiles_nor_what_runs_eager(watch: graphs.Watch) -> None:
    """The same calls without a watch: as many graphs, and after it Dynamo is as quiet as it was."""
    watch.stop()
    runs: list[int] = []

    def counting(module: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        number = len(runs)
        runs.append(0)

        def run(*arguments: Tensor) -> object:
            runs[number] += 1
            return module(*arguments)

        return run

    lengths = [*range(2, 22), 2, 9, 10, 21]
    plain = torch.compile(lambda x: body(x), backend=counting, dynamic=False)
    for length in lengths:
        plain(torch.ones(1, length))
    with graphs.Watch(HERE) as second:
        function = torch.compile(lambda x: body(x), backend=second.backend("eager"), dynamic=False)
        for length in lengths:
            function(torch.ones(1, length))
        record = second.case()
    assert [graph.runs for graph in record.graphs] == runs == [2, 1, 1, 1, 1, 1, 1, 2]
    assert record.limits[0].ran_eager == 14
    with torch.compiler.set_stance("fail_on_recompile"):
        function(torch.ones(1, 30))  # past the limit nothing compiles, so nothing fails: the stance has gone quiet
    assert second.capture().limits[0].ran_eager == 14


def test_a_new_watch_ends_the_one_before(watch: graphs.Watch) -> None:
    with graphs.Watch(HERE) as second:
        function = compiled(second, body, "cpu")
        for length in range(2, 12):
            function(torch.ones(1, length))
        assert [event.ran_eager for event in second.case().limits] == [2]
        assert watch.case().limits == []
    function(torch.ones(1, 30))
    assert second.capture().limits[0].ran_eager == 2  # it has ended as well


def test_a_trial_of_a_workload_past_the_limit_fails_and_says_how_many_calls_ran_eager(tmp_path: Path) -> None:
    request = trial.Request(
        str(TINY),
        tmp_path / "run",
        target="cpu",
        modes=("compiled",),
        dtypes=("float32",),
        cases=("1x4", "1x6", "1x8"),
        requirements=quick(tmp_path),
        quick=True,
    )
    tight = functools.partial(torch._dynamo.config.patch, recompile_limit=2)
    done = trial.Trial(trial.check(request), lambda what, share: None, InProcess({"compiled-float32": tight})).run()
    (cell,) = [cell for cell in done.judgement.cells if cell.cell == "compiled-float32"]
    found = {finding.case: finding for finding in done.judgement.findings if finding.cell == "compiled-float32"}
    assert {case: finding.word for case, finding in found.items() if finding.fails} == {"1x8": "recompile-bound"}
    record = evidence.read(evidence.GraphRecord, tmp_path / "run" / "evidence" / "compiled-float32" / "1x8.graphs.json")
    (row,) = record.shapes
    assert row.ran_eager == row.without_graph == row.calls > 5  # every step of the case, the timed ones included
    assert f"{row.calls} calls ran eager" in found["1x8"].text
    assert record.limits[0].allowed == 2
    assert {case.case: case.verdict for case in cell.cases}["1x4"] == "match"  # eager and compiled are equally right
    assert done.judgement.decision.disposition == CHANGE


def test_a_reset_gives_a_function_another_chance(watch: graphs.Watch) -> None:
    function = compiled(watch, body, "cpu")
    for length in range(2, 14):
        function(torch.ones(1, length))
    torch.compiler.reset()
    for length in (30, 31, 30):
        function(torch.ones(1, length))
    record = watch.case()
    assert record.captured == 10
    assert [event.ran_eager for event in record.limits] == [4]


# --- other guards -------------------------------------------------------------------------------------------------------

SCALE = 2


def scaled(x: Tensor) -> Tensor:
    return x * SCALE


def test_recompilations_say_which_guard_failed(watch: graphs.Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    function = compiled(watch, scaled, "cpu")
    base = torch.ones(4, 6)

    def about(given: Tensor) -> list[str]:
        torch.compiler.reset()
        function(base)
        return about_again(given)

    def about_again(given: Tensor = base) -> list[str]:
        function(given)
        return [judge.guard_about(again.guard) for again in watch.case().recompilations]

    assert about(base) == []
    assert about(torch.ones(6, 4).t()) == ["stride"]
    assert about(torch.ones(2, 6)) == ["shape"]
    assert about(base.bfloat16()) == ["dtype"]
    assert about(base.clone().requires_grad_()) == ["requires_grad"]
    torch.compiler.reset()
    function(base)
    with torch.no_grad():
        assert about_again() == ["grad mode"]
    torch.compiler.reset()
    function(base)
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert about_again() == ["global"]


def test_more_programs_than_planned_fail(watch: graphs.Watch, tmp_path: Path) -> None:
    function = compiled(watch, body, "cpu")
    for length in (8, 12, 16):
        function(torch.ones(2, length))
    record = watch.case()
    cases = [CaseDemand(size=2, length=8, share=1.0)]

    def words(expected: int) -> list[tuple[str, bool]]:
        requirements = Requirements(workload=Demanded(expected_programs=expected), cases=cases)
        return [(found.word, found.fails) for found in judged(tmp_path, {"2x8": record}, requirements)]

    assert words(0) == words(3) == []
    assert words(2) == [("more-programs-than-expected", True)]
    assert words(4) == [("fewer-programs-than-expected", False)]
    assert {row.declared_share for row in judge.ledger({"2x8": record}, Requirements(cases=cases))} == {1.0}
