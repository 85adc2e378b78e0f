"""Preflight: an exit code per reason, each reached with a real workload, a real process or a real distribution."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import requirements, scan, targets, workload
from shakedown.readiness.errors import BadInput
from shakedown.readiness.evidence import Installation, Probe
from shakedown.readiness.observe import identity
from shakedown.readiness.plan import baseline, child, operators, preflight, preflight_page, stops
from shakedown.readiness.plan.preflight import Preflight, Request
from shakedown.readiness.requirements import Kernel, Operation
from tests.processes import ends, hear_interrupts

from . import installed
from .support import TINY

ANSWERED = """
[operation]
rollback = "true"
handwritten_kernels = "none"
pinned_framework = "2.13"
on_call = "platform team"
"""
SAMPLING = (
    "return {'drawn': torch.multinomial(logits.flatten(0, 1).softmax(-1), 1), 'logits': logits}, F.cross_entropy("
)
run = CliRunner()


def demand(folder: Path, text: str = ANSWERED) -> Path:
    file = folder / "requirements.toml"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Preflight:
    """One whole preflight of the tiny workload, by the command; tests of single reasons start from its answers."""
    folder = tmp_path_factory.mktemp("whole")
    page = folder / "deep" / "page.md"
    arguments = [
        str(TINY),
        "--requirements",
        str(demand(folder)),
        "--profile",
        "neuron-2.33",
        "--out",
        str(page),
        "--json",
    ]
    done = run.invoke(cli.app, ["preflight", *arguments])
    assert done.exit_code == 0, done.output
    found = Preflight.model_validate_json(done.stdout)
    assert page.read_text() == preflight_page.markdown(found)
    return found


def judged(
    whole: Preflight,
    folder: Path,
    text: str = ANSWERED,
    *,
    answer: tuple[Probe | None, preflight.DeviceReport] | None = None,
    found: operators.Operators | None = None,
    **request: object,
) -> Preflight:
    """The judgement of real answers under other requirements."""
    asked = replace(Request(str(TINY)), **request)  # type: ignore[arg-type]
    assert whole.identity is not None
    probe, device = answer or (Probe(identity=whole.identity, opened=True), whole.device)
    locked = requirements.load(demand(folder, text))
    source = workload.resolve(str(asked.workload))
    own = scan.scan(source)
    return preflight.judge(asked, source, locked, probe, device, found or whole.operators, own)


def codes(found: Preflight) -> list[int]:
    return [reason.code for reason in found.reasons]


def asked_with(
    monkeypatch: pytest.MonkeyPatch, site: Path, **request: object
) -> tuple[Probe | None, preflight.DeviceReport]:
    """What a fresh process says that has `site` on its path."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    return preflight.ask_device(replace(Request(str(TINY)), **request), workload.resolve(str(TINY)))  # type: ignore[arg-type]


# --- ready -----------------------------------------------------------------------------------------------------------


def test_ready_names_device_family_deviations_and_operators(whole: Preflight) -> None:
    assert (whole.exit_code, whole.reasons, whole.rehearsal) == (0, [], True)
    assert whole.device.visible
    assert whole.identity is not None
    assert whole.identity.family.word == "rehearsal"
    assert whole.identity.value("workload commit") or "not known" in whole.identity.said("workload commit")
    assert {d.what for d in whole.deviations} >= {"backend package", "compiler"}
    assert whole.route is not None
    assert whole.route.documented is False
    assert [phase.phase for phase in whole.operators.phases] == ["forward", "backward", "optimizer"]
    assert all(phase.native for phase in whole.operators.phases)
    assert whole.operators.dtypes == ("float32", "bfloat16")


def test_the_page_says_that_it_is_a_rehearsal_and_can_be_attached(whole: Preflight) -> None:
    page = preflight_page.markdown(whole)
    assert "> **Rehearsal.**" in page
    assert "**Verdict: ready**" in page
    for title in (
        "Device",
        "Package family",
        "Operators of one training step",
        "Rollback",
        "Stop conditions",
        "Identity",
    ):
        assert f"\n## {title}\n" in page
    assert "```\ntrue\n```" in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert len(tables) > 30
    assert all(line.endswith("|") for line in tables)


@pytest.mark.rotating(3, group="a process that starts torch")
def test_another_target_has_no_baseline(tmp_path: Path) -> None:
    done = run.invoke(
        cli.app, ["preflight", str(TINY), "--target", "cpu", "--requirements", str(demand(tmp_path)), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = Preflight.model_validate_json(done.stdout)
    assert not found.rehearsal
    assert not found.baseline_applies
    assert found.deviations == []
    assert "not for cpu" in found.operators.unknown


# --- 10: the device ---------------------------------------------------------------------------------------------------


@pytest.mark.rotating(3, group="a process that starts torch")
def test_a_device_that_is_switched_off_is_not_visible(
    whole: Preflight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHAKEDOWN_DEVICE", "off")
    answer = asked_with(monkeypatch, tmp_path)
    found = judged(whole, tmp_path, text="", answer=answer)
    assert found.exit_code == 10
    assert codes(found) == [10, 14, 15, 15, 15]
    assert "no neuron device can be used here" in found.reasons[0].text
    assert not found.rehearsal
    assert "**Not visible**" in preflight_page.markdown(found)


def test_a_device_that_does_not_answer_in_time_is_not_visible(
    whole: Preflight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = asked_with(monkeypatch, tmp_path, timeout_seconds=0.05)
    found = judged(whole, tmp_path, answer=answer)
    assert (found.exit_code, codes(found), found.identity) == (10, [10], None)
    assert found.reasons[0].text == "neuron: no answer within 0.05 s"
    assert "no process could say who it is" in preflight_page.markdown(found)


def test_a_question_that_hangs_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import json, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "pathlib.Path(json.load(open(sys.argv[1]))['out']).write_text(str(child.pid))\n"
        "time.sleep(300)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for limit in (5.0, 20.0, 60.0):  # on a crowded machine Python may not have started when the first has passed
        ended = child.ask("hanging", {}, limit)
        assert (ended.reason, ended.exit_code) == (f"no answer within {limit:g} s", None)
        if ended.answer is not None:
            break
    assert ended.answer is not None
    assert ends(int(ended.answer))


def test_a_question_that_crashes_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text("import os; os.abort()")
    (tmp_path / "raising.py").write_text("print('working'); raise OSError('no libnrt.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert child.ask("crashing", {}, 300.0).reason.startswith("died of SIGABRT: ")
    assert child.ask("raising", {}, 300.0).reason == "exit code 1: OSError: no libnrt.so"


@pytest.mark.rotating(3, group="a process that starts torch")
def test_a_backend_that_breaks_import_torch_still_says_who_it_is(
    whole: Preflight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = installed.native(tmp_path, acting="def _autoload():\n    raise OSError('libnrt.so: no such file')\n")
    probe, device = asked_with(monkeypatch, site)
    assert probe is not None
    found = judged(whole, tmp_path, answer=(probe, device))
    assert found.exit_code == 10
    assert "import torch raised" in device.reason
    assert probe.identity.family.by_metadata == "native"


# --- 11: the family ---------------------------------------------------------------------------------------------------


def test_asked_for_the_native_package_and_found_the_rehearsal(whole: Preflight, tmp_path: Path) -> None:
    found = judged(whole, tmp_path, family="native")
    assert (found.exit_code, codes(found)) == (11, [11])
    assert found.reasons[0].text == "native was asked for, and this is rehearsal"
    assert judged(whole, tmp_path, family="rehearsal").exit_code == 0


@pytest.mark.rotating(3, group="a process that starts torch")
def test_the_legacy_package_is_not_the_device_neuron(
    whole: Preflight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = judged(whole, tmp_path, answer=asked_with(monkeypatch, installed.legacy(tmp_path)))
    assert codes(found)[:2] == [10, 11]
    assert "legacy one on PyTorch/XLA" in found.reasons[1].text


@pytest.mark.rotating(3, group="a process that starts torch")
def test_two_witnesses_that_disagree_stop_unless_one_is_named(
    whole: Preflight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHAKEDOWN_DEVICE", "rehearsal")
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    answer = asked_with(monkeypatch, installed.native(tmp_path))
    assert answer[1].visible
    found = judged(whole, tmp_path, answer=answer)
    assert (found.exit_code, codes(found)) == (11, [11])
    assert "native, but rehearsal answers for the device" in found.reasons[0].text
    assert judged(whole, tmp_path, answer=answer, family="rehearsal").exit_code == 0


# --- 12: the combination ----------------------------------------------------------------------------------------------


@pytest.mark.rotating(3, group="a process that starts torch")
def test_the_native_package_where_it_is_not_supported(
    whole: Preflight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = installed.native(tmp_path, version="2.9.0.2.15", tag="cp399-cp399-linux_x86_64", requires=("torch<2",))
    answer = asked_with(monkeypatch, site)
    assert answer[1].visible
    found = judged(whole, tmp_path, answer=answer)
    assert found.exit_code == 12
    assert not found.rehearsal
    texts = " / ".join(reason.text for reason in found.reasons)
    assert "torch-neuronx needs torch<2" in texts
    assert "backend package: torch-neuronx 2.9.0.2.15, documented is torch-neuronx 2.1" in texts
    assert "its wheel is for cp399" in texts


@pytest.mark.rotating(3, group="a process that starts torch")
def test_a_rehearsal_stands_on_other_ground_and_only_its_own_requirements_stop_it(
    whole: Preflight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert any(deviation.grade == "differs" for deviation in whole.deviations)
    points = "[torch.backends]\nshakedown = shakedown.neuron.autoload:autoload\n"
    installed.distribution(tmp_path, "shakedown", "0.0.1", requires=("torch<2",), entry_points=points)
    found = judged(whole, tmp_path, answer=asked_with(monkeypatch, tmp_path))
    assert (found.exit_code, codes(found), found.rehearsal) == (12, [12], True)
    assert "shakedown needs torch<2" in found.reasons[0].text


def test_the_documented_combination_has_no_deviation(tmp_path: Path) -> None:
    here, matrix = installed.documented(tmp_path), baseline.matrix()
    assert baseline.deviations(here, matrix) == []
    route = baseline.route(here, matrix)
    assert (route.documented, route.wheel) == (True, True)


@pytest.mark.parametrize(
    ("change", "what", "grade"),
    [
        ({"instance": "trn1.32xlarge"}, "instance type", "unsupported"),
        ({"system": "Ubuntu 20.04 LTS"}, "operating system", "unsupported"),
        ({"Python": "3.11.9 (cpython)"}, "Python", "unsupported"),
        ({"Python": "3.13.1 (pypy)"}, "Python", "unsupported"),
        ({"torch": "2.14.1"}, "PyTorch", "differs"),
        ({"torch": "2.12.0", "backend package": "torch-neuronx 2.14.3.0.77"}, "PyTorch", "unsupported"),
        ({"backend package": "torch-neuronx 2.13.3.0.77"}, "backend package", "unsupported"),
        ({"compiler": "neuronx-cc 2.27.1"}, "compiler", "differs"),
    ],
)
def test_every_departure_from_the_baseline_is_named(
    tmp_path: Path, change: dict[str, str], what: str, grade: str
) -> None:
    matrix = baseline.matrix()
    found = {d.what: d for d in baseline.deviations(installed.documented(tmp_path, **change), matrix)}
    assert found[what].grade == grade
    assert found[what].source in {source.id for source in matrix.source}


def test_the_way_of_installing_is_compared_too(tmp_path: Path) -> None:
    matrix = baseline.matrix()
    older = installed.documented(tmp_path, system="Ubuntu 24.04.3 LTS")
    assert baseline.deviations(older, matrix) == []
    route = baseline.route(older, matrix)
    assert (route.documented, route.wheel) == (False, False)
    assert "wheels are for Ubuntu 26.04" in route.wheel_reason
    image = older.model_copy(update={"installation": Installation(route="image", how="a prefix")})
    assert baseline.route(image, matrix).documented is True
    image = image.model_copy(
        update={"facts": installed.documented(tmp_path, system="Ubuntu 24.04", torch="2.13.0").facts}
    )
    assert "it comes with PyTorch 2.14.0" in baseline.route(image, matrix).reason


# --- 13: operators ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampling(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The job of a workload that draws samples, which is documented to run on the CPU."""
    file = tmp_path_factory.mktemp("sampling") / "sampling.py"
    text = TINY.read_text()
    changed = text.replace('return {"logits": logits, "best": logits.argmax(-1)}, F.cross_entropy(', SAMPLING)
    assert changed != text
    file.write_text(changed)
    source = workload.resolve(str(file))
    job = {"name": source.name, "path": str(source.path), "sha256": source.sha256}
    return job | {"case": "1x4", "dtypes": ["float32"], "profile": "neuron-2.33", "accepted": []}


def accepting(calls: int, phase: str = "") -> dict[str, object]:
    return {"operator": "aten::multinomial", "phase": phase, "calls": calls, "nbytes": 0, "reason": "one draw a step"}


def test_an_operator_that_leaves_the_device_stops_where_that_was_asked_for(
    whole: Preflight, tmp_path: Path, sampling: dict[str, object]
) -> None:
    found = operators.count(sampling)
    row = next(row for row in found.rows if row.operator == "aten::multinomial")
    assert (row.phase, row.calls, row.verdict, row.accepted) == ("forward", 1, "fallback", False)
    assert row.lines[0].startswith("sampling.py:")
    assert "compatibility table" in row.source
    stopped = judged(whole, tmp_path, found=found, exit_on_missing=True)
    assert (stopped.exit_code, codes(stopped)) == (13, [13])
    assert "aten::multinomial in forward at sampling.py:" in stopped.reasons[0].text
    assert judged(whole, tmp_path, found=found).exit_code == 0
    page = preflight_page.markdown(stopped)
    assert "| aten::multinomial | forward | 1 | the CPU | no | sampling.py:" in page


def test_an_accepted_operator_is_accepted_within_its_budget(
    whole: Preflight, tmp_path: Path, sampling: dict[str, object]
) -> None:
    accepted = operators.count(sampling | {"accepted": [accepting(1, "forward")]})
    assert judged(whole, tmp_path, found=accepted, exit_on_missing=True).exit_code == 0
    fallbacks = [requirements.AcceptedFallback.model_validate(accepting(1, "forward"))]
    assert operators.accepts(fallbacks, "aten::multinomial.out", "forward", 1)
    assert not operators.accepts(fallbacks, "aten::multinomial", "forward", 2)
    assert not operators.accepts(fallbacks, "aten::multinomial", "backward", 1)
    assert not operators.accepts(fallbacks, "aten::multinomial_other", "forward", 1)


def test_a_list_that_could_not_be_made_stops_always(whole: Preflight, tmp_path: Path) -> None:
    found = judged(whole, tmp_path, found=operators.Operators(unknown="died of SIGSEGV: nothing on standard error"))
    assert (found.exit_code, codes(found)) == (13, [13])
    cut = whole.operators.model_copy(update={"stops": ("float32, forward: data-dependent at tiny.py:3: nonzero",)})
    assert judged(whole, tmp_path, found=cut).exit_code == 0
    assert judged(whole, tmp_path, found=cut, exit_on_missing=True).exit_code == 13


# --- 14 and 15: rollback and stop conditions --------------------------------------------------------------------------


def test_without_a_rollback_command_it_stops(whole: Preflight, tmp_path: Path) -> None:
    found = judged(whole, tmp_path, ANSWERED.replace('rollback = "true"', ""))
    assert (found.exit_code, codes(found)) == (14, [14])
    two = judged(whole, tmp_path, ANSWERED.replace('"true"', '"""stop it\nstart the old one"""'))
    assert two.exit_code == 14
    assert "2 lines" in two.reasons[0].text
    odd = judged(whole, tmp_path, ANSWERED.replace('"true"', '"no-such-program --now"'))
    assert (odd.exit_code, odd.rollback.note) == (0, "no-such-program is not a program of this machine")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('on_call = "platform team"', "", "on call"),
        ('"platform team"', '"nobody"', "on call"),
        ('"2.13"', '"torch==2.9.*"', "pinned framework"),
        ('"2.13"', '"the one we have"', "pinned framework"),
        ('handwritten_kernels = "none"', "", "hand-written kernels"),
    ],
)
def test_a_stop_condition_unanswered_or_triggered(
    whole: Preflight, tmp_path: Path, old: str, new: str, name: str
) -> None:
    found = judged(whole, tmp_path, ANSWERED.replace(old, new))
    assert (found.exit_code, codes(found)) == (15, [15])
    assert found.reasons[0].text.startswith(f"{name}: ")


def test_kernels_are_looked_for_where_none_were_declared() -> None:
    answered = Operation(handwritten_kernels="none", pinned_framework="none", on_call="us")
    planned = answered.model_copy(update={"handwritten_kernels": "the flash kernel falls back to PyTorch's"})
    kernel = Kernel(name="mylib::flash", owner="ann")

    def state(operation: Operation, kernels: list[Kernel], own: tuple[str, ...]) -> str:
        return stops.conditions(operation, kernels, own, [])[0].state

    assert state(answered, [], ()) == "clear"
    assert state(answered, [], ("mylib::flash.default",)) == "triggered"
    assert state(answered, [kernel], ()) == "triggered"
    assert state(planned, [kernel], ("mylib::flash.default",)) == "answered"


def test_what_its_source_says_is_on_the_page_and_kernels_in_it_stop(whole: Preflight, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    lines = "import triton\n\n@triton.jit\ndef twice(x):\n    return x\n\n"
    file.write_text(lines + TINY.read_text().replace("logits = model(", "model.cuda()\n    logits = model("))
    found = judged(whole, tmp_path, workload=str(file))
    assert (found.exit_code, codes(found)) == (15, [15])
    assert "hand-written kernels: answered `none`, but the workload has " in found.reasons[0].text
    page = preflight_page.markdown(found)
    cuda = next(hit for hit in found.scan.hits if ".cuda()" in hit.text)
    assert f"| {cuda.where} | {cuda.severity} |" in page
    assert "nothing was found" in preflight_page.markdown(whole)


# --- 2: bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonesuch"], "unknown workload 'nonesuch'"),
        ([str(TINY), "--target", "abacus"], "unknown target 'abacus'"),
        ([str(TINY), "--family", "royal"], "unknown package family 'royal'"),
        (
            [str(TINY), "--target", "cpu", "--family", "native"],
            "--family tells apart what answers for the target neuron",
        ),
        ([str(TINY), "--requirements", "none.toml"], "none.toml"),
        ([str(TINY), "--timeout", "0"], "no time"),
    ],
)
def test_bad_input_is_one_line_and_checks_nothing(arguments: list[str], words: str) -> None:
    done = run.invoke(cli.app, ["preflight", *arguments, "--json"])
    assert done.exit_code == 2, done.output
    answer = json.loads(done.stdout)
    assert answer["exit_code"] == 2
    assert words in answer["error"]


@pytest.mark.rotating(3, group="a process that starts torch")
def test_a_workload_that_cannot_be_loaded_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TINY.read_text().replace("def forward(model, batch)", "def go(model, batch)"))
    with pytest.raises(BadInput, match="defines no function forward"):
        preflight.ask_operators(
            Request(str(file)), requirements.load(demand(tmp_path)), workload.resolve(str(file)), None
        )


@pytest.mark.rotating(3, group="a process that starts torch")
def test_an_interrupt_ends_it_and_what_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shakedown.cli", "preflight", str(TINY)]
    command += ["--out", str(tmp_path / "page.md")]
    asking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hear_interrupts)
    assert asking.stderr is not None
    assert asking.stderr.readline().startswith("opening the device")
    asking.send_signal(signal.SIGINT)
    _, said = asking.communicate(timeout=600)
    assert asking.returncode == 130
    assert "interrupted" in said
    assert not (tmp_path / "page.md").exists()


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "page.md"
    done = run.invoke(cli.app, ["preflight", str(TINY), "--target", "cpu", "--timeout", "0.05", "--out", str(place)])
    assert done.exit_code == 2, done.output
    assert "cannot write" in done.stderr.replace("\n", "")


def test_the_codes_are_in_the_help_and_in_the_documentation() -> None:
    help_text = run.invoke(cli.app, ["preflight", "--help"]).stdout
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "preflight.md").read_text()
    for code in preflight.Code:
        assert str(int(code)) in help_text
        assert f"| {int(code)} |" in page


def test_the_identity_of_the_child_is_that_of_this_process(whole: Preflight) -> None:
    assert whole.identity is not None
    here = identity.identify(targets.get("neuron"), TINY)
    for name in ("instance type", "operating system", "torch", "backend package", "cores allocated"):
        assert whole.identity.said(name) == here.said(name), name
