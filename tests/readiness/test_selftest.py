"""The trial tries itself: a sample of faulty and healthy devices in real processes, and what is made of the results."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import evidence as ev
from shakedown.readiness import record as records
from shakedown.readiness import requirements, workload
from shakedown.readiness.errors import BadInput, Interrupted
from shakedown.readiness.evidence import Evidence, PathRow, Truth
from shakedown.readiness.evidence.memory import Memory, Meter, Reading
from shakedown.readiness.judge import cache, memory, verdict
from shakedown.readiness.judge.results import Cell
from shakedown.readiness.requirements import Requirements
from shakedown.readiness.runner import Launch, LocalProcesses
from shakedown.readiness.selftest import detect, inject, run, table, trials
from shakedown.readiness.selftest.fault import By, Fault, Recipe
from shakedown.readiness.selftest.faults import FAULTS
from shakedown.readiness.selftest.results import Detection, SelfTest, Tried
from shakedown.readiness.selftest.server import Server
from shakedown.readiness.worker import Job

PAGE = Path(__file__).parents[2] / "docs" / "selftest.md"
# One of each kind, on one snapshot and one run of the CPU. The rest is for `shakedown selftest`.
ALWAYS = ("backward_only", "hidden_fallback", "killed")
WHEN_SWEPT = ("second_call_only", "device_leak")  # a trial each: on CI and in `make sweep`
COMMON = trials.Setting("block", ("eager",), ("float32",), ("2x8",))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("selftest")


@pytest.fixture(scope="module")
def sample(pytestconfig: pytest.Config) -> tuple[str, ...]:
    return ALWAYS if pytestconfig.option.sweep == "cover" else ALWAYS + WHEN_SWEPT


@pytest.fixture(scope="module")
def tried(out: Path, sample: tuple[str, ...]) -> SelfTest:
    """Every trial of the sample, kept."""
    planned = [run.Planned(name, COMMON, name) for name in sample]
    planned.append(run.Planned("healthy-eager-float32", COMMON))
    planned.append(run.Planned("legal-float32", COMMON, "plain_attention"))
    return run.run(planned, out, jobs=2, keep=True)


def by_name(found: SelfTest, name: str) -> Tried:
    (one,) = (one for one in found.tried if one.name == name and one.dtype == "float32")
    return one


@pytest.mark.parametrize("name", ALWAYS + WHEN_SWEPT)
def test_a_fault_is_caught_by_its_own_word(tried: SelfTest, sample: tuple[str, ...], name: str) -> None:
    if name not in sample:
        pytest.skip("in `make sweep`")
    one = by_name(tried, name)
    assert one.result == "caught", [f"{d.word}: {d.text}" for d in one.detections]
    assert one.by


def test_right_devices_raise_no_alarm(tried: SelfTest) -> None:
    for name in ("healthy-eager-float32", "legal-float32"):
        one = by_name(tried, name)
        assert one.result == "legal", [f"{d.word}: {d.text}" for d in one.detections]
        assert not any(d.fails for d in one.detections)
    assert tried.false_alarms is not None
    assert (tried.false_alarms.count, tried.false_alarms.runs) == (0, 1)
    assert tried.exit_code == 0


def test_nobody_can_take_a_faulty_device_for_another(tried: SelfTest, out: Path) -> None:
    assert tried.tried
    (folder,) = out.glob("lab-*/trials/backward_only")
    record = records.load(folder)
    assert record.label_text.startswith("FAULTY ON PURPOSE (backward_only). ")
    assert "backward_only" in (folder / "report.md").read_text()
    assert any(f.word == "faulty-on-purpose" for f in record.judgement.findings)
    identity = json.loads((folder / "evidence" / "eager-float32-cold" / "identity.json").read_text())
    assert identity["faults"] == ["backward_only"]
    assert records.verify(folder).verified
    (healthy,) = out.glob("lab-*/trials/healthy-eager-float32")
    assert "FAULTY" not in (healthy / "record.json").read_text()


def test_a_wrong_device_fails_the_trial_and_claims_no_speed(tried: SelfTest, out: Path) -> None:
    assert tried.tried
    (folder,) = out.glob("lab-*/trials/backward_only")
    record = records.load(folder)
    assert record.exit_code == 1
    (cell,) = (one for one in record.judgement.cells if one.cell == "eager-float32-cold")
    (case,) = cell.cases
    assert case.timing is not None
    assert "not explained" in case.timing.later.withheld


def test_what_has_ended_is_not_made_again(tried: SelfTest, out: Path, sample: tuple[str, ...]) -> None:
    made: list[str] = []
    planned = [run.Planned(name, COMMON, name) for name in sample]
    again = run.run(planned, out, progress=lambda what, share: made.append(what))
    assert not made
    assert again.tried == [one for one in tried.tried if one.name in sample]


def test_the_page_lists_exactly_the_faults_there_are(tried: SelfTest, sample: tuple[str, ...]) -> None:
    assert table.faults_on(PAGE.read_text()) == [
        fault.name
        for group in dict.fromkeys(fault.group for fault in FAULTS.values())
        for fault in FAULTS.values()
        if fault.group == group
    ]
    page = table.put_into("# Title\n\nText.\n", table.markdown(tried))
    assert set(table.faults_on(page)) == {*sample, "legal-float32"}
    assert table.put_into(page, table.markdown(tried)) == page


@pytest.mark.parametrize("fault", FAULTS.values(), ids=str)
def test_a_fault_says_what_it_is_and_who_must_catch_it(fault: Fault) -> None:
    assert len(fault.what) > 20
    assert fault.what.endswith(".")
    assert all(detect.check_of(by.word) != "other" for by in fault.by)
    assert fault.by or fault.nature == "legal"
    recipe = fault.recipe
    assert set(fault.hidden_in) < set(recipe.dtypes)
    lines = [f"{key} = {value}" for key, value in ({**trials.DEMAND, **recipe.demand}).items()]
    requirements.parse("\n".join(lines), "requirements")
    source = workload.resolve(str(trials.WORKLOADS / f"{recipe.workload}.py"))
    assert workload.load(source).source == source


def test_there_are_enough() -> None:
    assert len([fault for fault in FAULTS.values() if fault.nature == "wrong"]) >= 30
    assert len({planned.name for planned in run.healthy(100)}) == 100


def test_off_means_that_nothing_of_it_is_there() -> None:
    script = (
        "import sys, shakedown.readiness.worker, shakedown.readiness.candidate\n"
        "print([m for m in sys.modules if m.startswith('shakedown.readiness.selftest.')], len(sys.meta_path))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("]")[0] == "['shakedown.readiness.selftest.inject'"


def test_unknown_faults_are_one_clear_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["selftest", "--faults", "no_such", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"].startswith("unknown fault no_such; choose among scaled_activation")
    with pytest.raises(BadInput, match="SHAKEDOWN_FAULT names no_such, which is no fault"):
        inject.named("no_such")
    done = CliRunner().invoke(cli.app, ["selftest", "--faults", "none"])
    assert done.exit_code == 2
    assert "nothing to try" in done.stderr


def test_the_upper_bound_of_a_rate() -> None:
    assert table.upper_bound(0, 100) == pytest.approx(1 - 0.05**0.01)  # the rule of three: about 3/n
    assert table.upper_bound(1, 100) == pytest.approx(0.0465, abs=1e-4)  # R: binom.test(1, 100, alternative = "less")
    assert table.upper_bound(0, 0) == table.upper_bound(5, 5) == 1.0


def said(word: str, text: str = "", fails: bool = True, dtype: str = "float32") -> Detection:
    return Detection(
        check=detect.check_of(word), word=word, cell="c", mode="eager", dtype=dtype, text=text, fails=fails
    )


@pytest.mark.parametrize(
    ("nature", "found", "dtype", "result"),
    [
        ("wrong", [said("mismatch(weight)", "made 50%")], "float32", "caught"),
        ("wrong", [said("mismatch(weight)", "made 10%")], "float32", "other word"),
        ("wrong", [said("mismatch(weight)", "made 50%"), said("mismatch(gradient)")], "float32", "other word"),
        ("wrong", [said("untested(timing)", fails=False)], "float32", "missed"),
        ("wrong", [], "bfloat16", "below rounding"),
        ("wrong", [said("crashed", dtype="bfloat16")], "bfloat16", "other word"),
        ("legal", [said("mismatch(weight)", "made 50%")], "float32", "alarm"),
        ("legal", [said("mismatch(weight)", "made 50%", fails=False)], "float32", "legal"),
        ("legal", [], "float32", "missed"),
    ],
)
def test_what_becomes_of_a_fault(nature: str, found: list[Detection], dtype: str, result: str) -> None:
    fault = Fault(
        "half",
        "",
        "numbers",
        lambda device: None,
        (By("mismatch(weight)", "made 50%", phase="optimizer"),),
        Recipe(dtypes=("float32", "bfloat16")),
        nature,  # type: ignore[arg-type]
        ("bfloat16",),
    )
    assert detect.result_of(fault, dtype, found)[0] == result


def test_a_server_that_dies_is_an_outcome(tmp_path: Path) -> None:
    with Server(tmp_path / "log") as server:
        ended = server.do(tmp_path / "missing.json", 60)
        assert (ended.status, ended.exit_code) == ("crashed", 1)
        assert "FileNotFoundError" in (tmp_path / "log").read_text()
        ended = server.do(tmp_path / "missing.json", 0)
        assert ended.status == "crashed"


def test_an_interruption_ends_the_process_that_runs(tmp_path: Path) -> None:
    processes = LocalProcesses((sys.executable, "-c", "import time; time.sleep(120)"))
    job = Job(role="candidate", root=str(tmp_path), workload={}, cell="any", requirements_sha256="")
    stopping = threading.Timer(0.5, processes.stop)
    stopping.start()
    begun = time.monotonic()
    with pytest.raises(Interrupted, match="stopped during any"):
        processes.run(Launch(job, {}, tmp_path / "logs", 100.0))
    assert time.monotonic() - begun < 60


# --- checks that exist because a fault was missed without them ------------------------------------------------------------


def healthy_run(out: Path) -> tuple[Path, Cell]:
    """A finished trial of the sample, and its cell on the target."""
    (folder,) = out.glob("lab-*/trials/healthy-eager-float32")
    return folder, next(cell for cell in records.load(folder).cells if cell.mode == "eager")


def compiled(detail: str) -> PathRow:
    return PathRow(kind="compile", name="program", phase="forward", detail=detail, count=3)


@pytest.mark.parametrize(
    ("first", "files", "later", "words"),
    [
        ("compiled", 0, "persistent-cache", []),
        ("compiled", 7, "persistent-cache", ["cache-not-cold"]),
        ("persistent-cache", 0, "persistent-cache", ["cache-not-cold"]),
        ("compiled", 0, "compiled", ["cache-not-warm"]),
    ],
)
def test_a_cache_that_is_not_what_it_is_called(
    tried: SelfTest, out: Path, tmp_path: Path, first: str, files: int, later: str, words: list[str]
) -> None:
    folder, cell = healthy_run(out)
    seen = ev.read(Evidence, folder / "evidence" / cell.id / "2x8.json")
    cells = []
    for state, before, detail in (("cold", files, first), ("warm", 40, later)):
        cells.append(cell.model_copy(update={"id": f"eager-{state}", "cache": state}))
        cache_state = seen.cache.model_copy(update={"state": state, "files_before": before})
        paths = seen.paths.model_copy(update={"first_step": [compiled(detail)]})
        one = seen.model_copy(update={"cell": cells[-1].id, "cache": cache_state, "paths": paths})
        ev.write(one, tmp_path / "evidence" / cells[-1].id / "2x8.json")
    found = cache.findings(tmp_path, cells, Requirements())
    assert [(f.word, f.fails) for f in found] == [(word, False) for word in words]
    other = one.model_copy(update={"tensors_sha256": "0" * 64})
    ev.write(other, tmp_path / "evidence" / cells[-1].id / "2x8.json")
    assert cache.findings(tmp_path, cells, Requirements())[-1].word == "not-repeatable"


def test_a_weight_that_came_apart_is_named(tried: SelfTest, out: Path) -> None:
    folder, cell = healthy_run(out)
    seen = ev.read(Evidence, folder / "evidence" / cell.id / "2x8.json")
    truth = ev.read(Truth, folder / "evidence" / "truth" / f"{seen.tensors_sha256[:16]}.json")
    assert verdict.structure(seen, None, truth) == []
    (tied,) = (t for t in seen.tensors if (t.step, t.role, t.name) == (1, "gradient", "tokens.weight"))
    apart = seen.model_copy(update={"tensors": [*seen.tensors, tied.model_copy(update={"name": "head.weight"})]})
    (said,) = verdict.structure(apart, None, truth)
    assert said == "on the device alone head.weight have gradients of their own: a tied weight has come apart"


@pytest.mark.parametrize(
    ("device", "host", "words"),
    [
        ([100, 116, 132, 148, 164], [0, 0, 0, 0, 0], []),  # numbers that a device keeps
        ([0, 8192, 16384, 24576, 32768], [None] * 5, ["device"]),
        ([0, 1 << 20, 1 << 20, 2 << 20, 3 << 20], [0, 1 << 20, 1 << 20, 2 << 20, 3 << 20], []),  # not in every step
        ([None] * 5, [0, 8 << 20, 16 << 20, 24 << 20, 32 << 20], ["host"]),
        ([0, 1 << 20], [0, 1 << 20], []),
    ],
)
def test_memory_that_grows_with_every_step(device: list[int | None], host: list[int | None], words: list[str]) -> None:
    meter = Meter(kind="peak", source="test")
    readings = [Reading(host=h, device=d) for h, d in zip(host, device, strict=True)]
    document = Memory(host=meter, device=meter, spans=[], readings=readings)
    assert [where for where, _ in memory.grows(document)] == words
