"""Projections: the arithmetic of bounds by hand, what is left open, and the way from a trial to the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import evidence as ev
from shakedown.readiness import projection as figures
from shakedown.readiness import record, report, targets, trial
from shakedown.readiness.errors import BadInput, EvidenceError
from shakedown.readiness.evidence import Evidence, Memory, MemorySpan, Meter, PathRow, ProgramCost, Programs, StateBytes
from shakedown.readiness.evidence.memory import STEP
from shakedown.readiness.judge import projection
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.observe import paths, programs
from shakedown.readiness.requirements import Requirements
from shakedown.readiness.requirements.model import ProjectionDemand

from . import tiny
from .support import TINY, InProcess, quick

GIB = 1 << 30
STATE = StateBytes(parameters=4 * GIB, gradients=4 * GIB, optimizer=8 * GIB, buffers=0, batch=1000)
OWN = """
[chips.trainium2.host_link]
value = 32e9
unit = "bytes/s"
per = "chip"
source = "a figure of our own"
date = "2026-01-02"
"""
CORE, CHIP = 0, 1  # positions of the two bounds


def cost(name="aten::mm", phase="forward", calls=1, flops=0.0, nbytes=0.0, dtype="bfloat16", **more):
    values = {
        "flops": flops,
        "transcendentals": 0.0,
        "bytes_accessed": 2 * nbytes,
        "matrix_flops": {dtype: flops} if flops else {},
        "least_bytes": nbytes,
        "argument_bytes": 0,
        "output_bytes": 0,
        "temp_bytes": GIB,
    }
    return ProgramCost(name=name, phase=phase, calls=calls, **values | more)


def written(root: Path, costs, case="4x512", mode="eager", dtype="bfloat16", state=STATE, live=None, **more) -> Cell:
    """A cell that left the documents of one case."""
    cell = Cell(
        id=f"{mode}-{dtype}-cold",
        mode=mode,
        dtype=dtype,
        cache="cold",
        target="neuron",
        cases=[case],
        outcome=Outcome(status="finished"),
    )
    folder = root / "evidence" / cell.id
    ev.write(Programs(source="by hand", programs=costs, state=state, **more), folder / f"{case}.programs.json")
    if live is not None:
        meter = Meter(kind="sampled", source="by hand")
        span = MemorySpan(name=STEP, host=None, device=live, device_before=None, device_after=None, samples=2)
        ev.write(Memory(host=meter, device=meter, spans=[span]), folder / f"{case}.memory.json")
    return cell


def projected(root: Path, cells, name="trn2.48xlarge", own: Path | None = None, **more):
    made = projection.project(root, cells, figures.load(own), name, **more)
    assert made is not None
    return made


# --- the figures --------------------------------------------------------------------------------------------------------


def test_every_shipped_figure_has_source_and_date_and_a_logical_core_is_a_quarter_of_a_chip():
    known = figures.load()
    for name in known.instances:
        chip = known.chip_of(name)
        core, whole = projection.units_of(chip)
        assert chip.logical_cores == 4
        assert core.peak == {dtype: rate / 4 for dtype, rate in whole.peak.items()}
        assert core.memory_bytes == whole.memory_bytes // 4
        assert core.memory_bandwidth == pytest.approx(whole.memory_bandwidth / 4)
        assert whole.host_bandwidth is None  # nobody has published it
    raw = figures.instances.SHIPPED.read_text()
    assert raw.count("\nvalue =") == raw.count("\nsource =") == raw.count("\ndate =")
    assert projection.units_of(known.chip_of("trn2.3xlarge"))[CHIP].memory_bytes == 96 * GIB


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[chips.trainium2\n", "is not TOML"),
        ("[chips.trainium2.memory]\nvalue = -1\n", "chips.trainium2.memory.value"),
        ("[chips.trainium2]\nspeed = 1\n", "chips.trainium2.speed"),
        ('[instances.mine]\nchip = "none"\nchips = {value=1, unit="chips", per="instance", source="x", date="2026-01-01"}\n',
         "instances.mine.chip: no chip 'none'"),
    ],
)  # fmt: skip
def test_a_file_of_ones_own_that_is_wrong_is_named_with_its_key(tmp_path, text, said):
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=f"own.toml.*{said}"):
        figures.load(file)
    with pytest.raises(BadInput, match="cannot be read"):
        figures.load(tmp_path / "missing.toml")


# --- the arithmetic -----------------------------------------------------------------------------------------------------


def test_a_bound_is_the_sum_of_the_longer_of_arithmetic_and_memory(tmp_path):
    heavy, light = 667e12, 2.9e9  # on one chip: a second of arithmetic, a millisecond of memory
    made = projected(
        tmp_path,
        [
            written(
                tmp_path,
                [
                    cost(flops=heavy, nbytes=light),
                    cost("aten::add", "backward", calls=3, nbytes=2.9e12),  # three seconds of memory
                ],
            )
        ],
    )
    (case,) = made.cases
    core, chip = case.bounds
    assert chip.seconds == pytest.approx(4.0)
    assert chip.whole_step_seconds == pytest.approx(3.001)  # arithmetic hides behind memory
    assert chip.as_fused_seconds == pytest.approx(1 + 6)
    assert chip.by_phase == pytest.approx({"forward": 1.0, "backward": 3.0})
    assert chip.roof == "memory"
    assert chip.share_bound_by_memory == pytest.approx(0.75)
    assert chip.ridge == pytest.approx(667 / 2.9)
    assert chip.intensity == pytest.approx(heavy / (3 * 2.9e12 + light))
    assert core.seconds == pytest.approx(4 * chip.seconds)
    assert (case.programs, case.calls) == (2, 4)
    assert made.kind == "projection"
    assert (made.chips, made.logical_cores) == (16, 64)
    assert made.figures["memory bandwidth"].source
    assert len(made.assumptions) > 5


def test_each_product_runs_at_the_rate_of_its_own_dtype(tmp_path):
    mixed = [cost(flops=667e12, nbytes=1.0), cost(flops=181e12, nbytes=1.0, dtype="float32")]
    (case,) = projected(tmp_path, [written(tmp_path, mixed)]).cases
    assert case.bounds[CHIP].seconds == pytest.approx(2.0)
    assert case.bounds[CHIP].roof == "arithmetic"
    assert case.matrix_flops == {"bfloat16": 667e12, "float32": 181e12}


@pytest.mark.parametrize("inside", [False, True])
def test_without_a_published_rate_there_is_no_bound(tmp_path, inside):
    one = cost(flops=1e12, nbytes=1.0, dtype="float64")
    cell = written(tmp_path, [one], dtype="bfloat16" if inside else "float64", live=GIB)
    for bound in projected(tmp_path, [cell]).cases[0].bounds:
        assert (bound.seconds, bound.whole_step_seconds, bound.roof) == (None, None, None)
        assert bound.reason == "no dense rate of float64 is published"
        assert bound.fits  # that needs no rate


def test_what_xla_cannot_say_is_not_zero(tmp_path):
    silent = cost(nbytes=2.9e12, bytes_accessed=None, flops=None, matrix_flops={}, reason="no analysis")
    (case,) = projected(tmp_path, [written(tmp_path, [silent, cost(flops=1.0)], unanalysed={"aten::x": 2})]).cases
    assert case.bytes_accessed is None
    assert case.flops is None
    assert case.bounds[CHIP].as_fused_seconds is None
    assert case.bounds[CHIP].seconds == pytest.approx(1.0)
    assert case.unanalysed == {"aten::x": 2}


def test_unseen_work_is_listed_with_its_phases(tmp_path):
    costs = [cost(unseen={"sort": 2}, calls=3), cost(phase="backward", unseen={"sort": 1, "fft": 1})]
    (case,) = projected(tmp_path, [written(tmp_path, costs)]).cases
    found = {one.what: (one.count, one.phases) for one in case.unseen}
    assert found == {"sort": (7, ["forward", "backward"]), "fft": (1, ["backward"])}


def test_fallbacks_take_at_least_their_bytes_over_the_host_link(tmp_path, recorded):
    root, own = tmp_path, tmp_path / "own.toml"
    own.write_text(OWN)
    cell = written(root, [cost(nbytes=1.0)], case="2x8", dtype="float32")
    document = ev.read(Evidence, recorded / "evidence" / "eager-float32-cold" / "2x8.json")
    fell = [
        PathRow(kind="fallback", name="aten::multinomial", phase="forward", count=2, nbytes=64_000_000, where="host"),
        PathRow(kind="fallback", name="aten::take", phase="backward", count=1, nbytes=32_000_000, where="host"),
    ]
    left = document.model_copy(update={"paths": document.paths.model_copy(update={"later_step": fell})})
    ev.write(left, root / "evidence" / cell.id / "2x8.json")
    for made, seconds in ((projected(root, [cell]), (None, None)), (projected(root, [cell], own=own), (0.002, 0.001))):
        moved = made.cases[0].bounds[CORE]
        assert [(one.operator, one.calls) for one in moved.transfers] == [("aten::multinomial", 2), ("aten::take", 1)]
        assert tuple(one.seconds for one in moved.transfers) == seconds
        assert moved.transfer_seconds == (None if None in seconds else pytest.approx(0.003))
        assert any("between host and device" in text for text in made.missing) == (None in seconds)


def test_what_fits_is_said_as_far_as_it_is_known(tmp_path):
    kept = 16 * GIB + 1000

    def bound(live, temp=GIB, state=STATE):
        cell = written(tmp_path, [cost(temp_bytes=temp)], live=live, state=state)
        (case,) = projected(tmp_path, [cell]).cases
        return case.memory, case.bounds

    need, (core, chip) = bound(20 * GIB)
    assert need.needed == 20 * GIB
    assert need.with_temporaries == 21 * GIB
    assert core.fits is True
    assert core.memory_share == pytest.approx(20 / 24)
    need, (core, chip) = bound(25 * GIB)
    assert (core.fits, chip.fits) == (False, True)
    assert bound(20 * GIB, temp=5 * GIB)[1][CORE].fits is None  # only where this compiler's temporaries are not needed
    need, (core, _) = bound(None)
    (tmp_path / "evidence" / "eager-bfloat16-cold" / "4x512.memory.json").unlink()
    need, (core, _) = bound(None)
    assert need.needed == kept
    assert need.peak_live is None
    assert core.fits is None  # activations were not seen
    assert bound(20 * GIB, state=None)[0] is None


def test_where_a_batch_stops_fitting_needs_two_sizes_of_one_length(tmp_path):
    cells = [
        written(tmp_path, [cost()], case=case, live=live * GIB)
        for case, live in (("2x512", 17), ("4x512", 18), ("8x512", 20), ("4x1024", 19))
    ]
    limits = {(one.length, one.unit): one for one in projected(tmp_path, cells).batch_limits}
    found = limits[512, "logical core"]
    assert found.points == [(2, 17 * GIB), (4, 18 * GIB), (8, 20 * GIB)]
    assert found.slope == pytest.approx(GIB / 2)
    assert found.fixed == pytest.approx(16 * GIB)
    assert found.residual == pytest.approx(0, abs=1e-9)
    assert found.largest == 16  # 16 + 16/2 = 24 GiB
    assert limits[512, "chip"].largest == 160
    assert limits[1024, "chip"].largest is None
    assert limits[1024, "chip"].reason == "one batch size at this length was measured; a line needs two sizes"
    unseen = projected(tmp_path, [written(tmp_path, [cost()], case="2x64"), written(tmp_path, [cost()], case="4x64")])
    assert unseen.batch_limits[0].points == []  # nobody saw what was alive
    assert unseen.batch_limits[0].reason.startswith("no memory of a step")


def test_a_need_that_does_not_grow_has_no_limit(tmp_path):
    cells = [written(tmp_path, [cost()], case=case, live=17 * GIB) for case in ("2x512", "4x512")]
    for one in projected(tmp_path, cells).batch_limits:
        assert (one.largest, one.slope) == (None, 0)  # exactly: noise in the slope would make it an enormous batch
        assert "does not grow" in one.reason


def test_what_was_not_counted_is_said(tmp_path):
    cell = written(tmp_path, [cost(nbytes=1.0)])
    other = written(tmp_path, None, mode="compiled", reason="nothing tells")
    damaged = written(tmp_path, [cost()], mode="adaptive", unanalysed={"aten::x": 2})
    path = tmp_path / "evidence" / damaged.id / "4x512.programs.json"
    words = [f.word for f in projection.findings(tmp_path, [cell, other, damaged], Requirements())]
    assert words == ["uncounted(programs)"]
    path.write_text(path.read_text().replace('"calls": 1', '"calls": -1'))
    made = projected(tmp_path, [cell, other, damaged])
    assert [case.cell for case in made.cases] == [cell.id]
    assert any("nothing tells" in text for text in made.not_projected)
    assert any(text.startswith(damaged.id) for text in made.not_projected)
    words = [f.word for f in projection.findings(tmp_path, [cell, other, damaged], Requirements())]
    assert words == ["untested(programs)"]
    with pytest.raises(EvidenceError):
        projection.read(tmp_path, damaged, "4x512")


def test_precisions_can_be_chosen_and_requirements_decide_whether_it_is_made(tmp_path):
    cells = [written(tmp_path, [cost(nbytes=1.0)]), written(tmp_path, [cost(nbytes=1.0)], dtype="float32")]
    assert [c.dtype for c in projected(tmp_path, cells, dtypes=("float32",)).cases] == ["float32"]
    assert projection.project(tmp_path, cells, figures.load(), "trn2.48xlarge", ("float16",)) is None
    with pytest.raises(BadInput, match=r"no figures of an instance 'p5'.*trn2.48xlarge"):
        projected(tmp_path, cells, "p5")

    def asked(name):
        return Requirements(projection=ProjectionDemand(instance=name))

    assert projection.judged(tmp_path, cells, asked("trn3-gen1-ultraserver")).chip == "AWS Trainium3"
    assert projection.judged(tmp_path, cells, asked("")) is None
    assert projection.judged(tmp_path, cells, asked("p5")) is None
    assert [f.word for f in projection.findings(tmp_path, cells, asked("p5"))] == ["untested(projection)"]


# --- the evidence -------------------------------------------------------------------------------------------------------


def test_training_keeps_weights_gradients_and_state():
    model = tiny.build_model().to("neuron")
    optimizer = tiny.build_optimizer(model.parameters())
    batch = {name: value.to("neuron") for name, value in tiny.make_batch(2, 8).items()}
    weights = 4 * sum(p.numel() for p in model.parameters())  # tied weights once
    before = programs.state_bytes(model, optimizer, batch)
    assert before == StateBytes(parameters=weights, gradients=weights, optimizer=0, buffers=0, batch=2 * 2 * 8 * 8)
    tiny.forward(model, batch)[1].backward()
    optimizer.step()
    assert (
        programs.state_bytes(model, optimizer, batch).optimizer == 2 * weights
    )  # two moments; its counter is the CPU's
    assert programs.state_bytes(model, None, batch).gradients == 0


def test_a_training_step_multiplies_what_its_layers_say_and_uncounted_work_is_named():
    target = targets.get("neuron")
    observer = paths.recorder(target)
    model = tiny.build_model().to("neuron")
    model.drop.p = 0.0
    batch = {name: value.to("neuron") for name, value in tiny.make_batch(2, 8).items()}
    more: list[torch.Tensor] = []

    def step():
        model.zero_grad()
        with observer.phase("forward"):
            loss = tiny.forward(model, batch)[1]
        with observer.phase("backward"):
            loss.backward()
        for x in more:
            torch.exp(x)

    step()
    found = programs.observe(target, observer, step, STATE)
    assert found.unanalysed == {}
    assert found.programs
    width, tokens = tiny.WIDTH, 2 * 8
    attention = 2 * (2 * 8 * 8 * width)  # of the scores, and again of what they weigh
    weights = 3 * width * width + 2 * width * 2 * width + width * tiny.VOCABULARY
    forward = 2 * tokens * weights + 2 * attention
    by_phase = {
        phase: sum(sum(p.matrix_flops.values()) * p.calls for p in found.programs if p.phase == phase)
        for phase in ("forward", "backward")
    }
    # Twice the forward pass (6 * weights * tokens in all), and the scores once more, which are not kept.
    assert by_phase == {"forward": forward, "backward": 2 * forward + attention}
    more.append(torch.randn(977, device="neuron"))  # a size that nothing else in this process has
    assert programs.observe(target, observer, step, STATE).unanalysed == {"aten::exp": 1}  # made inside


def test_other_targets_say_why_there_is_nothing():
    target = targets.get("cpu")
    found = programs.observe(target, paths.recorder(target), lambda: None, STATE)
    assert found.programs is None
    assert "cpu" in found.reason
    assert found.state == STATE


# --- from a trial to the command ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A quick trial of the tiny workload: eager float32, two batch sizes of one length."""
    folder = tmp_path_factory.mktemp("projection")
    request = trial.Request(
        str(TINY),
        folder / "run",
        modes=("eager",),
        dtypes=("float32",),
        cases=("2x8", "4x8"),
        requirements=quick(folder),
        quick=True,
    )
    trial.run(request, executor=InProcess())
    return folder / "run"


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["project", *map(str, arguments)])


def test_a_trial_is_projected_and_both_reports_say_what_it_is(recorded):
    found = record.load(recorded)
    made = found.judgement.projection
    assert made is not None
    assert [(case.case, case.bounds[CORE].fits) for case in made.cases] == [("2x8", True), ("4x8", True)]
    assert all(0 < bound.whole_step_seconds <= bound.seconds for case in made.cases for bound in case.bounds)
    assert all(case.least_bytes <= case.bytes_accessed for case in made.cases)
    assert [limit.points[0][0] for limit in made.batch_limits] == [2, 2]
    text = report.markdown(found)
    assert "PROJECTION, not a measurement" in text
    assert "Documented: memory bandwidth, 2.9e+12 bytes/s of one chip (AWS Neuron documentation" in text
    for bound in (bound for case in made.cases for bound in case.bounds):
        assert not {"items", "price", "throughput"} & set(bound.model_dump())
    assert record.verify(recorded).verified


def test_the_command_projects_for_another_instance_and_with_figures_of_ones_own(recorded, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(OWN)
    done = invoke(recorded, "--instance", "trn3-gen1-ultraserver", "--json")
    assert done.exit_code == 0
    made = json.loads(done.stdout)
    assert (made["kind"], made["chip"]) == ("projection", "AWS Trainium3")
    shown = invoke(recorded / "record.json", "--instances", own, "--dtype", "float32")
    assert shown.exit_code == 0
    assert "PROJECTION, not a measurement" in shown.stdout
    assert "a figure of our own" in " ".join(shown.stdout.split())
    own.write_text(
        '[chips.trainium2.memory]\nvalue = 1e5\nunit = "bytes"\nper = "chip"\nsource = "x"\ndate = "2026-01-02"\n'
    )
    small = invoke(recorded, "--instances", own, "--json")
    assert small.exit_code == 1  # 25 kB do not hold it
    assert json.loads(small.stdout)["cases"][0]["bounds"][CORE]["fits"] is False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--instance", "p5"), "no figures of an instance 'p5'"),
        (("--dtype", "float16"), "--dtype float16: the trial in"),
        (("--instances", "missing.toml"), "missing.toml cannot be read"),
    ],
)
def test_bad_input_is_one_line(recorded, options, said):
    done = invoke(recorded, "--json", *options)
    assert done.exit_code == 2
    assert said in json.loads(done.stdout)["error"]
    assert invoke(recorded.parent).exit_code == 2


def test_an_instance_that_is_not_known_is_refused_in_the_requirements(tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text('[projection]\ninstance = "trn2.48xlrge"\n')
    request = trial.Request(str(TINY), tmp_path / "run", requirements=file)
    with pytest.raises(BadInput, match=r"projection.instance.*trn2\.48xlarge"):
        trial.check(request)
