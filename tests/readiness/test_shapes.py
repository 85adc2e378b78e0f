"""Lengths of real traffic, what they cost by shape, and the buckets to pad them to."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from shakedown import buckets, cli, lengths
from shakedown.buckets import BadLengths
from shakedown.readiness import record, report, requirements, trial
from shakedown.readiness.errors import BadInput, EvidenceError
from shakedown.readiness.judge import shapes, step_cost
from shakedown.readiness.judge.graphs import GraphSummary, LedgerRow, Problem
from shakedown.readiness.judge.results import Cell, CellResult, Outcome
from shakedown.readiness.judge.shape_rows import Distribution, Tried
from shakedown.readiness.judge.step_cost import Measured
from shakedown.readiness.requirements import CaseDemand, Demanded, Requirements, Traffic

from .support import TINY, InProcess

run = CliRunner()

# --- files of lengths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "weights", "requests"),
    [
        ("a.txt", "96\n\n240 # long\n96\n", {96: 2, 240: 1}, 3),
        ("a.csv", "length,count\n96, 10\n240,5\n96,1\n", {96: 11, 240: 5}, 16),
        ("a.tsv", "\ufeff96\t0.25\n240\t0.75\n", {96: 0.25, 240: 0.75}, None),
        ("a.json", "[96, 240, 96]", {96: 2, 240: 1}, 3),
        ("a.json", '{"96": 7, "240": 0, "480": 1}', {96: 7, 480: 1}, 8),
        ("a.JSON", '[{"length": 96, "count": 0.5}, {"length": 240, "count": 1.5}]', {96: 0.5, 240: 1.5}, None),
    ],
)
def test_lengths_are_read(
    tmp_path: Path, name: str, text: str, weights: dict[int, float], requests: int | None
) -> None:
    (tmp_path / name).write_text(text)
    found = lengths.read(tmp_path / name)
    assert (found.weights, found.requests) == (weights, requests)
    assert len(found.sha256) == 64


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "96\n24o\n", "a.txt:2: '24o' is no length; write a whole number from 1 to 10,000,000"),
        ("a.txt", "96\n\n0\n", "a.txt:3: '0' is no length"),
        ("a.txt", "1e3\n", "a.txt:1: '1e3' is no length"),
        ("a.txt", "12345678901\n", "a.txt:1: '12345678901' is no length"),
        ("a.txt", "96\nlength,count\n", "a.txt:2: 'length' is no length"),
        ("a.csv", "length,count\n96,-1\n", "a.csv:2: '-1' is no count"),
        ("a.csv", "96,nan\n", "a.csv:1: 'nan' is no count"),
        ("a.csv", "1,96,3\n", "a.csv:1: 1,96,3: write one length, or `length,count`"),
        ("a.txt", "# nothing\n", "a.txt: there is no length in it"),
        ("a.csv", "96,0\n", "a.csv: there is no length in it"),
        ("a.json", "[96,\n 240,,]", "a.json:2: not JSON: Expecting value"),
        ("a.json", "[96, true]", "a.json: entry 2: True is no length"),
        ("a.json", '{"96": "many"}', "a.json: length '96': 'many' is no count"),
        ("a.json", '[{"length": 96}]', 'a.json: entry 1: write {"length": 128, "count": 3}'),
        ("a.json", "3", "a.json: write a list of lengths"),
        ("a.json", "[" * 100_000, "a.json: lists within lists"),
    ],
)
def test_a_mistake_in_a_file_of_lengths_is_told_with_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadLengths) as raised:
        lengths.read(tmp_path / name)
    assert str(raised.value).removeprefix(f"{tmp_path}/").startswith(said)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(BadLengths, match="cannot read the lengths .*: No such file"):
        lengths.read(tmp_path / "none.txt")
    (tmp_path / "b.txt").write_bytes(b"96\n\xff\xfe")
    with pytest.raises(BadLengths, match=r"b\.txt: not UTF-8"):
        lengths.read(tmp_path / "b.txt")


def test_quantiles_are_lengths_that_came() -> None:
    weights = {96: 50.0, 240: 40.0, 480: 9.0, 900: 1.0}
    assert [lengths.quantile(weights, q) for q in (0.5, 0.9, 0.99, 1.0)] == [96, 240, 480, 900]


# --- the plan -----------------------------------------------------------------------------------------------------------


def costs_of(traffic: dict[tuple[int, int], float], edges: tuple[int, ...], price) -> float:
    return sum(w * price(size, next(e for e in edges if e >= n)) for (size, n), w in traffic.items())


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from([1, 4]), st.integers(1, 700)), st.floats(0.01, 1), min_size=1, max_size=6
    ),
    st.integers(2, 7),
    st.dictionaries(st.integers(1, 1024), st.floats(0.1, 10), max_size=12),
    st.floats(0, 5),
)
def test_a_plan_is_the_best_there_is(traffic, most: int, odd, compiling: float) -> None:
    """Against every choice of edges, whatever a shape costs: growing with the length or not."""

    def price(size: int, edge: int) -> float:
        return odd.get(edge, 0.001 * edge) * size

    sizes = len({size for size, _ in traffic})
    edges = buckets.candidates(length for _, length in traffic)
    longest = max(length for _, length in traffic)
    found = buckets.plan(traffic, max_programs=most, steps=100, cost=price, compile_seconds=compiling)
    total = sum(traffic.values())
    best = {
        count: min(
            costs_of(traffic, chosen, price) / total
            for chosen in itertools.combinations(edges, count)
            if chosen[-1] >= longest
        )
        for count in range(1, min(most // sizes, len(edges)) + 1)
    }
    for point in found.curve:
        assert point.step_seconds == pytest.approx(best[len(point.edges)])
        assert point.programs == len(point.edges) * sizes <= most
        assert point.total_seconds == pytest.approx(point.programs * compiling + 100 * best[len(point.edges)])
        positions = costs_of(traffic, point.edges, lambda size, edge: size * edge)
        assert point.waste == pytest.approx(1 - sum(w * size * n for (size, n), w in traffic.items()) / positions)
    steps = [point.step_seconds or 0.0 for point in found.curve]
    assert steps == sorted(steps, reverse=True)
    assert min(steps) == pytest.approx(min(best.values())), "no number of programs beyond the curve's would be better"
    least = min(point.total_seconds or 0.0 for point in found.curve)
    assert found.best.total_seconds <= least * (1 + buckets.NEAR) + 1e-12
    fewer = [point.total_seconds or 0.0 for point in found.curve[: found.recommended]]
    assert all(one > least * (1 + buckets.NEAR) for one in fewer)


SERVICE = {(1, 96): 0.6, (1, 240): 0.3, (1, 480): 0.1}


def cost(size: int, edge: int) -> float:
    return size * (1e-3 + 1e-4 * edge)


def test_compilation_is_weighed_against_padding() -> None:
    def best(compiling: float, steps: int = 1000, **more) -> buckets.BucketPlan:
        return buckets.plan(SERVICE, max_programs=8, steps=steps, cost=cost, compile_seconds=compiling, **more)

    assert best(0.1).best.edges == (128, 256, 512)
    assert best(60.0).best.edges == (512,)
    assert best(60.0, steps=100_000).best.edges == (128, 256, 512), "a longer run pays for more programs"
    middle = best(8.0)
    assert middle.best.edges == (128, 512)
    assert middle.best.compile_seconds == 16.0
    assert middle.best.step_seconds == pytest.approx(0.6 * cost(1, 128) + 0.4 * cost(1, 512))
    assert middle.best.total_seconds == pytest.approx(16 + 1000 * (middle.best.step_seconds or 0))
    assert middle.reason.startswith("the fewest programs within 1% of the least total")
    held = best(0.1, expected=2)
    assert held.best.programs == 2
    assert "of at most 2 expected programs" in held.reason
    assert len(held.curve) == 3, "the curve still shows what a third would bring"


def test_without_costs_padding_alone_decides() -> None:
    found = buckets.plan(SERVICE, max_programs=8, steps=1000)
    assert (found.basis, found.best.edges) == ("padding only", (128, 256, 512))
    assert found.best.total_seconds is None
    assert "costs are not weighed" in found.reason
    half = buckets.plan(SERVICE, max_programs=8, steps=1000, cost=cost)
    assert (half.basis, half.best.total_seconds) == ("padding only", None)
    assert half.best.step_seconds is not None


def test_batch_sizes_have_programs_of_their_own() -> None:
    traffic = {(1, 96): 0.5, (1, 480): 0.1, (4, 240): 0.4}
    found = buckets.plan(traffic, max_programs=5, steps=10)
    assert found.sizes == (1, 4)
    assert [point.programs for point in found.curve] == [2, 4]
    with pytest.raises(BadLengths, match="a program for each of the batch sizes 1, 4"):
        buckets.plan(traffic, max_programs=1, steps=10)


@pytest.mark.parametrize(("rule", "edges"), [("refuse", (128, 256)), ("truncate", (128, 300)), ("compile", (128, 256))])
def test_no_bucket_is_longer_than_the_maximum_and_longer_requests_have_a_rule(rule, edges: tuple[int, ...]) -> None:
    traffic = SERVICE | {(1, 481): 0.0001}
    total = sum(traffic.values())
    found = buckets.plan(
        traffic, max_programs=2, steps=1000, maximum=300, rule=rule, requests=10_001, cost=cost, compile_seconds=2.0
    )
    assert found.best.edges == edges
    assert found.longer.share == pytest.approx(0.1001 / total)
    assert (found.longer.requests, found.longer.lengths, found.longer.maximum) == (1001, 2, 300)
    assert found.longer.text.startswith("1,001 of 10,001 requests (10.01%) are longer than 300; ")
    assert {"refuse": "refused with an error", "truncate": "cut to 300", "compile": "about 2 s"}[
        rule
    ] in found.longer.text
    with pytest.raises(BadLengths, match="no request is as short as the maximum, 64"):
        buckets.plan(traffic, max_programs=2, steps=1000, maximum=64, rule="refuse")


def test_without_a_maximum_the_last_bucket_is_the_limit() -> None:
    found = buckets.plan(SERVICE, max_programs=8, steps=1000)
    assert found.longer.maximum == 512
    assert found.longer.text.startswith("no request of this traffic is longer than 512; such a request is refused")


def test_many_lengths_have_coarser_candidates() -> None:
    many = buckets.candidates(range(1, 400_000, 3))
    assert len(many) <= 1024
    assert many[-1] >= 400_000
    assert 512 in {b - a for a, b in itertools.pairwise(many)}


# --- the cost of a step -------------------------------------------------------------------------------------------------


def timed(size: int, length: int, seconds: float) -> Measured:
    return Measured(size=size, length=length, seconds=seconds, low=None, high=None)


def test_a_line_through_two_lengths_has_no_residual() -> None:
    found = step_cost.fitted([timed(2, 128, 0.010), timed(2, 512, 0.022), timed(8, 128, 0.5)], [2])
    assert found is not None
    assert (found.variable, found.residual, found.worst) == ("length", None, None)
    assert found.seconds(2, 320) == pytest.approx(0.016)
    assert found.basis(2, 320) == "interpolated"
    assert found.basis(2, 513) == "extrapolated"
    assert (
        found.method == "a + b * length through 2 timed shapes at batch 2; no residual: as many coefficients as values"
    )


def test_estimates_do_not_reach_far_and_a_bad_fit_is_none() -> None:
    model = step_cost.fitted([timed(2, 128, 0.010), timed(2, 512, 0.022)], [2])
    paid = step_cost.Costs([], model, None)
    assert paid.of(2, 1024).basis == "extrapolated"
    assert paid.of(2, 1025) == step_cost.StepCost(seconds=None, low=None, high=None, basis="not measured")
    wild = {"1x64": 0.010, "1x128": 0.030, "1x256": 0.010}
    timings = [
        SimpleNamespace(mode="eager", dtype="float32", case=case, median=seconds, interval=None)
        for case, seconds in wild.items()
    ]
    found = step_cost.costs([], [], timings, "eager", "float32", [1])  # type: ignore[arg-type]
    assert found.model is None
    assert found.of(1, 100).basis == "not measured"
    assert found.of(1, 64).basis == "measured"
    assert found.doubt.startswith("step times follow no law of the length")


def test_the_square_is_found_and_the_residual_told() -> None:
    exact = [timed(1, n, 1e-3 + 2e-6 * n + 3e-8 * n * n) for n in (64, 128, 256, 512, 1024)]
    found = step_cost.fitted(exact, [1])
    assert found is not None
    assert found.coefficients == pytest.approx((1e-3, 2e-6, 3e-8), rel=1e-6)
    assert found.residual == pytest.approx(0, abs=1e-9)
    noisy = [timed(1, one.length, one.seconds * (1.05 if i % 2 else 0.95)) for i, one in enumerate(exact)]
    found = step_cost.fitted(noisy, [1])
    assert found is not None
    assert 0.01 < found.residual <= found.worst < 0.08
    assert "off on average" in found.method


def test_a_longer_step_never_costs_less() -> None:
    found = step_cost.fitted([timed(1, 128, 0.020), timed(1, 256, 0.018)], [1])
    assert found is not None
    assert min(found.coefficients) >= 0
    assert found.seconds(1, 4096) >= found.seconds(1, 1)
    assert found.residual is not None


def test_batch_sizes_share_a_model_and_one_shape_gives_none() -> None:
    points = [timed(1, 128, 0.010), timed(4, 128, 0.025)]
    found = step_cost.fitted(points, [1])
    assert found is not None
    assert found.variable == "batch x length"
    assert found.seconds(2, 128) == pytest.approx(0.015)
    assert step_cost.fitted(points[:1], [1]) is None
    assert step_cost.fitted([], [1]) is None


# --- the ledger ---------------------------------------------------------------------------------------------------------

LENGTHS = "length,count\n8,700\n12,200\n14,60\n40,40\n"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A real trial of the tiny workload, compiled on the CPU, whose requirements name a file of lengths."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "lengths.csv").write_text(LENGTHS)
    off = "".join(f"{name} = false\n" for name in ("padding", "noncontiguous", "hard_inputs", "neighbours", "restart"))
    (folder / "r.toml").write_text(
        '[numerics]\nsteps = 1\n[traffic]\nlengths = "lengths.csv"\nlonger = "truncate"\nmaximum = 32\nmax_programs = 3\n'
        "[timing]\nsteps = 6\nprocesses = 1\nscaling_tolerance = 1e9\nrefuse_foreign_load = 1e9\nrefuse_spread = 1e9\n"
        f"lasting_change = 1e9\n[run]\nthreads = 1\n[parity]\nsteps = 0\n[variations]\nlogging_every = 0\n{off}"
    )
    request = trial.Request(
        str(TINY), folder / "out", "cpu", modes=("compiled",), dtypes=("float32",), cases=("2x8", "2x16"),
        requirements=folder / "r.toml",
    )  # fmt: skip
    return SimpleNamespace(folder=folder, root=folder / "out", record=trial.run(request, executor=InProcess()))


def test_the_file_of_lengths_is_hashed_copied_and_sealed(done: SimpleNamespace) -> None:
    wanted = done.record.requirements.traffic
    assert wanted.sha256 == lengths.read(done.folder / "lengths.csv").sha256
    assert (done.root / "traffic.txt").read_text() == LENGTHS
    assert "traffic.txt" in done.record.files
    assert record.verify(done.root).problems == []


def test_the_ledger_of_a_real_trial(done: SimpleNamespace) -> None:
    found = done.record.judgement.shapes
    assert (found.kind, found.mode, found.dtype, found.source) == ("measured", "compiled", "float32", "lengths.csv")
    assert (found.requests, found.distinct) == (1000, 4)
    assert found.quantiles == {"p50": 8, "p90": 12, "p99": 40, "longest": 40}
    assert [(row.size, row.length, row.requests) for row in found.rows] == [
        (2, 8, 700),
        (2, 12, 200),
        (2, 14, 60),
        (2, 40, 40),
    ]
    first, second, _, last = found.rows
    median = {one.case: one.median for one in done.record.judgement.timings if one.mode == "compiled"}
    assert (first.step.seconds, first.step.basis) == (median["2x8"], "measured")
    assert second.step.basis == "interpolated"
    assert last.step.basis == "not measured", "40 is more than twice the longest that was timed"
    assert first.compiled == 1
    assert first.calls is not None
    assert first.reused == pytest.approx((first.calls - 1) / first.calls)
    assert (second.calls, second.compiled, second.reused) == (None, None, None), "the trial did not run it"
    assert found.compile_cost is not None
    assert found.compile_cost.shapes == 1
    assert "after its first one" in found.compile_cost.method
    assert found.now.programs == 4
    assert found.now.waste == 0.0


def test_the_plan_of_a_real_trial(done: SimpleNamespace) -> None:
    found = done.record.judgement.shapes
    assert found.plan is not None
    assert (found.plan.basis, found.plan.max_programs, found.plan.steps) == ("costs", 3, 10_000)
    assert found.plan.longer.maximum == 32
    assert found.plan.longer.requests == 40
    assert all(edge <= 32 for point in found.plan.curve for edge in point.edges)
    assert found.plan.best.edges[-1] == 32
    assert sum(row.requests for row in found.buckets) == 1000, "what is cut is computed, too"
    assert any("above the longest length that the trial ran, 16" in note for note in found.notes)
    (finding,) = [one for one in done.record.judgement.findings if one.word == shapes.WORD]
    assert not finding.fails
    assert finding.text.startswith("4 shapes in the traffic (lengths.csv), and 3 programs at most: pad lengths to ")


def test_both_sections_are_in_the_report(done: SimpleNamespace) -> None:
    text = report.markdown(done.record)
    assert "## Shapes of the traffic" in text
    assert "| shape now | of the traffic |" in text
    assert "## Break-even of each start" in text
    assert "processes have steps that count" in text


def test_a_changed_copy_is_found_and_nothing_is_said_from_it(done: SimpleNamespace, tmp_path: Path) -> None:
    root = tmp_path / "changed"
    shutil.copytree(done.root, root)
    (root / "traffic.txt").write_text(LENGTHS.replace("700", "7"))
    assert any(one.startswith("traffic.txt was changed") for one in record.verify(root).problems)
    made, (finding,) = shapes.judge(root, Tried(), done.record.requirements)
    assert made is None
    assert finding.word == "untested(shapes)"
    shared = done.record.requirements.model_copy(update={"cases": [CaseDemand(size=2, length=8, share=1.0)]})
    both = shapes.distribution(done.root, [], shared)
    assert both is not None
    assert both.requests == 1000
    assert "shares of the cases, too, which are not used" in both.note
    (root / "traffic.txt").unlink()
    with pytest.raises(EvidenceError):
        shapes.distribution(root, [], done.record.requirements)


def test_requirements_name_lengths(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('[run]\nthreads = 1\n[traffic]\nlengths = "l.txt"\n')
    with pytest.raises(BadInput, match=r"r\.toml:4: traffic\.lengths: cannot read the lengths .*l\.txt: No such file"):
        requirements.load(file)
    (tmp_path / "l.txt").write_text("8\nx\n")
    with pytest.raises(BadInput, match=r"r\.toml:4: traffic\.lengths: .*l\.txt:2: 'x' is no length"):
        requirements.load(file)
    (tmp_path / "l.txt").write_text("8\n")
    requirements.lock(requirements.load(file), tmp_path / "run" / "requirements.json", file)
    assert requirements.changed(file, tmp_path / "run" / "requirements.json") == ""
    (tmp_path / "l.txt").write_text("8\n9\n")
    assert "traffic.sha256: " in requirements.changed(file, tmp_path / "run" / "requirements.json")
    file.write_text(f'[traffic]\nlengths = "l.txt"\nsha256 = "{"0" * 64}"\n')
    with pytest.raises(BadInput, match="has SHA-256 .*, and traffic.sha256 is 000"):
        requirements.load(file)
    for text, said in (
        ("[traffic]\nbatch = 2\n", "r.toml:2: traffic.batch: it is about a file of lengths"),
        (
            "[workload]\nexpected_programs = 3\n[traffic]\nmax_programs = 2\n",
            "r.toml:4: traffic.max_programs: 2 programs",
        ),
        ("[traffic]\nmaximum = 8\n[[cases]]\nsize = 1\nlength = 9\n", "r.toml:2: traffic.maximum: 8 is the longest"),
    ):
        with pytest.raises(BadInput) as raised:
            requirements.parse(text, "r.toml")
        assert str(raised.value).startswith(said)


def twenty() -> tuple[Tried, Requirements]:
    """The run that asks for twenty shapes where Dynamo compiles eight."""
    shares = [CaseDemand(size=1, length=n, share=0.05) for n in range(2, 22)]
    demand = Requirements(cases=shares, workload=Demanded(training_steps=1000))
    names = [f"1x{n}" for n in range(2, 22)]
    cell = Cell(
        id="compiled-float32", mode="compiled", dtype="float32", cache="none", target="cpu", cases=names,
        outcome=Outcome(status="finished"),
    )  # fmt: skip
    limit = Problem(
        kind="capture", cause="limit reached", text="recompile_limit = 8; last guard: size mismatch", place="w.py:3 in forward",
        count=12,
    )  # fmt: skip
    rows = [
        LedgerRow(
            case=name, shapes=f"x {name}", calls=1, share=0.05, declared_share=0.05, compiled=int(i < 8), ran_eager=int(i >= 8),
            without_graph=int(i >= 8),
        )
        for i, name in enumerate(names)
    ]  # fmt: skip
    summary = GraphSummary(
        captured=8, graph_runs=8, compiled_again=7, ran_eager=12, whole=False, whole_reason="", full_graph=None,
        share_outside=None, operators_outside={}, problems=[limit], ledger=rows,
    )  # fmt: skip
    result = CellResult(cell=cell.id, verdict="match", cache_proof="", cache_proved=True, repeats="", cases=[])
    return Tried([cell], [result], [], {cell.id: summary}), demand


def test_twenty_shapes_join_the_limit_that_was_met() -> None:
    tried, demand = twenty()
    known = shapes.from_cases(demand)
    assert known is not None
    found = shapes.ledger(known, tried, demand)
    assert (found.kind, found.mode, found.now.programs) == ("none", "compiled", 20)
    assert found.limits == ["w.py:3 in forward: recompile_limit = 8; last guard: size mismatch; 12 calls ran eager"]
    assert found.plan is not None
    assert found.plan.best.programs <= 8
    (finding,) = shapes.findings(found)
    assert finding.word == "bucket-plan-needed"
    assert "The trial met the limit: w.py:3 in forward" in finding.text
    assert not finding.fails, "the compiled process that met the limit fails, and its finding is recompile-bound"


def test_shares_of_cases_and_lengths_they_are_padded_to() -> None:
    cases = [
        CaseDemand(size=1, length=96, share=0.75, padded_to=128),
        CaseDemand(size=1, length=100, share=0.25, padded_to=128),
    ]
    demand = Requirements(cases=cases)
    known = shapes.from_cases(demand)
    assert known is not None
    found = shapes.ledger(known, Tried(), demand)
    (row,) = found.rows
    assert (row.size, row.length, row.lengths, row.shortest, row.longest) == (1, 128, 2, 96, 100)
    assert row.waste == found.now.waste == pytest.approx(1 - 97 / 128)
    assert (row.requests, row.step.basis) == (None, "not measured")
    assert shapes.findings(found) == []
    assert shapes.from_cases(Requirements(cases=[CaseDemand(size=1, length=8)])) is None


def test_rare_shapes_are_counted_and_not_listed() -> None:
    weights = {(1, n, n): float(500 - n) for n in range(1, 400)}
    found = shapes.ledger(Distribution("made up", weights), Tried(), Requirements())
    assert (len(found.rows), found.rows_left_out) == (shapes.ROWS, 399 - shapes.ROWS)
    assert sum(row.share for row in found.rows) + found.share_left_out == pytest.approx(1)
    assert found.now.programs == 399


# --- the command --------------------------------------------------------------------------------------------------------


def shakedown(*arguments: object) -> tuple[int, str, str]:
    found = run.invoke(cli.app, ["shapes", *map(str, arguments)], env={"COLUMNS": "300"})
    return found.exit_code, found.stdout, found.stderr


def test_the_command_with_a_record(done: SimpleNamespace, tmp_path: Path) -> None:
    code, out, _ = shakedown(done.root, "--json")
    assert code == 0
    assert json.loads(out) == json.loads(done.record.judgement.shapes.model_dump_json())
    code, out, _ = shakedown(done.root)
    assert code == 0
    for text in (
        "Traffic: lengths.csv; 1,000 requests",
        "Costs: measured, compiled float32.",
        "as it is now",
        "recommended",
    ):
        assert text in out
    (tmp_path / "other.txt").write_text("16\n" * 3)
    code, out, _ = shakedown(
        done.root, "--lengths", tmp_path / "other.txt", "--max-programs", 1, "--steps", 50, "--json"
    )
    found = json.loads(out)
    assert (code, found["requests"], found["plan"]["max_programs"], found["plan"]["steps"]) == (0, 3, 1, 50)
    assert found["rows"][0]["step"]["basis"] == "measured"


def test_the_command_without_a_record(tmp_path: Path) -> None:
    file = tmp_path / "l.json"
    file.write_text('{"96": 6, "240": 3, "480": 1}')
    code, out, _ = shakedown("--lengths", file, "--max-programs", 2)
    assert code == 0
    assert "No trial is given, so costs are not measured: padding only." in out
    assert "pad to 128/512, 2 programs" in out
    assert "In code: shakedown.neuron.bucketed(step, dim=1, buckets=[128, 512])." in out
    assert "not measured" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a trial's directory, or --lengths FILE, or both"),
        (("nowhere",), "nowhere"),
        (("--lengths", "nowhere.txt"), "cannot read the lengths nowhere.txt: No such file or directory"),
        (("--lengths", "{lengths}", "--longer", "drop"), "--longer drop: choose among refuse, truncate, compile"),
        (("{root}", "--mode", "eager"), "the trial did not run eager; it has compiled float32"),
    ],
)
def test_bad_input_is_told_in_one_line(done: SimpleNamespace, arguments: tuple[str, ...], said: str) -> None:
    given_ = [one.format(lengths=done.folder / "lengths.csv", root=done.root) for one in arguments]
    code, out, err = shakedown(*given_)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_trial_without_traffic_needs_lengths(done: SimpleNamespace, tmp_path: Path) -> None:
    plain = done.record.requirements.model_copy(update={"traffic": Traffic()})
    assert shapes.judge(done.root, Tried(), plain) == (None, [])
