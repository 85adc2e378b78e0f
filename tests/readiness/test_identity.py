"""Who measured: every fact has a source or a reason, secrets stay out, and the product is told by two witnesses."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest
import torch

from shakedown.readiness import targets
from shakedown.readiness.evidence import Fact, Family, Identity, write
from shakedown.readiness.evidence.identity import UNKNOWN
from shakedown.readiness.judge import identity as judge_identity
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.observe import commits, family, identity, installation, machine
from shakedown.readiness.requirements import Requirements

from . import installed
from .support import TINY

NEURON, CPU = targets.get("neuron"), targets.get("cpu")


def said(facts: list[Fact]) -> dict[str, str]:
    return {fact.name: fact.said for fact in facts}


# --- machine ---------------------------------------------------------------------------------------------------------


def test_a_trainium_instance_is_read_from_its_files(tmp_path: Path) -> None:
    environment = {"NEURON_RT_VISIBLE_CORES": "0-3", "NEURON_LOGICAL_NC_CONFIG": "2"}
    found = said(machine.facts(environment, root=installed.trainium(tmp_path)))
    expected = {
        "instance type": "trn2.48xlarge",
        "operating system": "Ubuntu 26.04 LTS",
        "OS image": "ami-0abc",
        "memory": "2.0 GiB",
        "memory limit": "1.0 GiB",
        "Neuron devices": "2 (neuron0, neuron1)",
        "NeuronCores allocated": "cores 0-3",
        "logical-core configuration": "2",
        "driver": "2.31.7.0",
        "runtime library": "2.35.30.0-abc",
    }
    assert {name: found[name] for name in expected} == expected
    assert found["cores allocated"].endswith("control group's quota 1.5")
    assert found["collectives"] == "not known: no package aws-neuronx-collectives is installed"


def test_what_cannot_be_read_is_said_with_its_reason(tmp_path: Path) -> None:
    facts = machine.facts({}, root=tmp_path)
    found = said(facts)
    for name in ("instance type", "OS image", "logical-core configuration", "driver"):
        assert found[name].startswith(UNKNOWN), name
        assert len(found[name]) > len(UNKNOWN) + 10
    assert found["Neuron devices"] == "none"
    assert all(fact.source for fact in facts if fact.value)


def test_another_cloud_is_not_an_instance_type(tmp_path: Path) -> None:
    folder = tmp_path / "sys/devices/virtual/dmi/id"
    folder.mkdir(parents=True)
    (folder / "sys_vendor").write_text("QEMU")
    (folder / "product_name").write_text("Standard PC")
    assert (
        said(machine.facts({}, root=tmp_path))["instance type"]
        == "not known: the machine says QEMU Standard PC, not EC2"
    )


@pytest.mark.parametrize(("value", "unknown"), [("", ""), ("4", "no file")])
def test_a_fact_has_a_value_or_a_reason(value: str, unknown: str) -> None:
    with pytest.raises(ValueError, match="has a value or a reason"):
        Fact(group="machine", name="cores", value=value, unknown=unknown)


class _Service(BaseHTTPRequestHandler):
    """The token protocol of EC2's metadata service."""

    def do_PUT(self) -> None:
        self._answer(b"token-1" if self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "60" else b"")

    def do_GET(self) -> None:
        known = {"/latest/meta-data/instance-type": b"trn3.3xlarge", "/latest/meta-data/ami-id": b"ami-9"}
        self._answer(known[self.path] if self.headers["X-aws-ec2-metadata-token"] == "token-1" else b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200 if body else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class _Refusing(_Service):
    def do_PUT(self) -> None:
        self._answer(b"")


class _Silent(_Service):
    def do_PUT(self) -> None:
        self.server.stop.wait(10)  # type: ignore[attr-defined]


@contextmanager
def _serving(kind: type[_Service]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.stop = threading.Event()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/latest/"
    finally:
        server.stop.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("kind", "instance", "image"),
    [
        (_Service, "trn3.3xlarge", "ami-9"),
        (_Refusing, "not known: no DMI data here; the EC2 metadata service said: 401 Unauthorized", "not known: "),
        (_Silent, "not known: no DMI data here; the EC2 metadata service said: nothing within 1 s", "not known: "),
    ],
)
def test_the_metadata_service_is_asked_on_demand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[_Service], instance: str, image: str
) -> None:
    with _serving(kind) as address:
        monkeypatch.setattr(machine, "_METADATA_SERVICE", address)
        found = said(machine.facts({}, ec2=True, root=tmp_path))
        assert found["instance type"].startswith(instance)
        assert found["OS image"].startswith(image)
        assert "--ec2" in said(machine.facts({}, root=tmp_path))["instance type"]


# --- process ---------------------------------------------------------------------------------------------------------


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_API_KEY", "hunter2")
    monkeypatch.setenv("TORCH_HUB_TOKEN", "hunter2")
    monkeypatch.setenv("NEURON_CC_FLAGS", "--cache=https://ann:hunter2@host/x?token=hunter2 -O1 --optkey")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "s3://bucket/AKIAABCDEFGHIJKLMNOP/x")
    monkeypatch.setenv("UNRELATED", "hunter2")
    found = identity.environment()
    assert found["NEURON_API_KEY"] == found["TORCH_HUB_TOKEN"] == "masked"
    assert found["NEURON_CC_FLAGS"] == "--cache=https://masked@host/x?token=masked -O1 --optkey"
    assert found["JAX_COMPILATION_CACHE_DIR"] == "s3://bucket/masked/x"
    assert "hunter2" not in identity.identify(CPU).model_dump_json()


def test_what_differs_between_cells_on_purpose_is_not_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    plain = identity.capture(CPU)
    for name in ("SHAKEDOWN_ADAPTIVE", "SHAKEDOWN_SPAWNED_AT"):
        monkeypatch.setenv(name, "0")
    other = identity.capture(NEURON, TINY)
    assert plain["fixed"] == other["fixed"]
    assert plain["fixed"]["machine"]["logical-core configuration"] == "1"
    assert other["also"]["environment"].items() >= {"SHAKEDOWN_ADAPTIVE": "0", "SHAKEDOWN_SPAWNED_AT": "0"}.items()
    assert other["also"]["family"] == other["also"]["family_signs"]["word"] == "rehearsal"
    assert other["also"]["backend"]["compiler"].startswith("XLA of jaxlib ")
    assert set(other["also"]["commits"]) == {"shakedown commit", "workload commit"}
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert identity.capture(CPU)["fixed"] != plain["fixed"]


def test_everything_a_review_asks_for_is_in_the_identity() -> None:
    found = identity.identify(NEURON, TINY)
    names = {fact.name for fact in found.facts}
    asked = "instance type|cores allocated|logical-core configuration|OS image|Python|torch|backend package|compiler|runtime"
    assert names >= {*asked.split("|"), "driver", "workload commit", "shakedown commit", "threads", "memory"}
    assert found.value("threads") == str(torch.get_num_threads())
    assert found.unmet == []
    with pytest.raises(KeyError):
        found.said("shoe size")


# --- commits ---------------------------------------------------------------------------------------------------------


def test_the_commit_of_a_workload_and_what_was_changed_since(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        settings = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *settings, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    def asked(name: str = "mine.py") -> str:
        commits.workload.cache_clear()
        return commits.workload(tmp_path / name).said

    file = tmp_path / "mine.py"
    file.write_text("one = 1\n")
    assert asked().startswith("not known: fatal: not a git repository")
    git("init", "-q")
    (tmp_path / "other.py").write_text("")
    git("add", "mine.py", "other.py")
    git("commit", "-qm", "first")
    head = git("rev-parse", "HEAD")
    assert asked() == f"{head} (clean)"
    (tmp_path / "other.py").write_text("changed")
    assert asked() == f"{head} (1 tracked files changed since)"
    file.write_text("one = 2\n")
    assert asked() == f"{head} (2 tracked files changed since, the workload file among them)"
    (tmp_path / "new.py").write_text("")
    assert asked("new.py") == f"{head} (2 tracked files changed since; the workload file is not in it)"


def test_without_git_the_commit_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    commits.workload.cache_clear()
    assert commits.workload(tmp_path / "mine.py").said == "not known: git cannot be started: No such file or directory"


# --- family ----------------------------------------------------------------------------------------------------------


def test_the_rehearsal_is_what_both_witnesses_say() -> None:
    found = family.tell({})
    assert (found.word, found.by_metadata, found.by_behaviour) == ("rehearsal", "rehearsal", "rehearsal")
    assert not found.disagreement


def test_the_two_products_of_one_name_are_told_apart_by_their_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def asked(name: str) -> Family:
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / name)
            return family.tell({"SHAKEDOWN_DEVICE": "rehearsal"})

    installed.native(tmp_path / "native")
    installed.legacy(tmp_path / "legacy")
    installed.distribution(tmp_path / "bare", "torch-neuronx", "9.9")
    installed.distribution(
        tmp_path / "mixture",
        "torch_neuronx",
        "2.13.3.0.1",
        entry_points=installed.NATIVE_POINTS,
        requires=("torch_xla>=2.9 ; extra == 'x'",),
    )
    for name, expected in {
        "native": "native",
        "legacy": "legacy",
        "bare": "unclear",
        "mixture": "native and legacy",
    }.items():
        assert asked(name).by_metadata == expected, name
    # The embedded device answers in this process, whatever lies on the path.
    told = asked("native")
    assert told.word == "rehearsal"
    assert told.disagreement == (
        "the installed torch-neuronx is native, but rehearsal answers for the device, as SHAKEDOWN_DEVICE=rehearsal asks"
    )
    assert "mixture of two installations" in asked("mixture").disagreement
    assert any("torch-xla" in sign for sign in asked("legacy").signs)
    assert any("xla_impl" in sign for sign in asked("legacy").signs)


_ASK = "import torch, json; from shakedown.readiness.observe import family; print(family.tell({}).model_dump_json())"


def told_by_a_process(site: Path | None, **environment: str) -> Family:
    settings = {"PATH": "/usr/bin:/bin", "HOME": str(site or "/tmp"), **environment}
    if site is not None:
        settings["PYTHONPATH"] = str(site)
    done = subprocess.run([sys.executable, "-c", _ASK], env=settings, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return Family.model_validate_json(done.stdout.splitlines()[-1])


def test_the_native_product_is_recognised_by_what_it_registers(tmp_path: Path) -> None:
    told = told_by_a_process(installed.native(tmp_path))
    assert (told.word, told.by_metadata, told.by_behaviour, told.disagreement) == ("native", "native", "native", "")
    idle = told_by_a_process(tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert (idle.word, idle.by_metadata) == ("none", "native")
    assert idle.disagreement == "the installed torch-neuronx is native, but nothing registered the device neuron"


def test_the_legacy_product_owns_the_device_through_xla(tmp_path: Path) -> None:
    told = told_by_a_process(installed.legacy(tmp_path))
    assert (told.word, told.by_metadata, told.by_behaviour, told.disagreement) == ("legacy", "legacy", "legacy", "")


# --- installation ----------------------------------------------------------------------------------------------------


def test_how_the_package_was_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert installation.of_vendor() is None
    with monkeypatch.context() as patch:
        patch.syspath_prepend(installed.native(tmp_path / "wheel", tag="cp399-cp399-manylinux_2_28_x86_64"))
        found = installation.of_vendor()
        assert found is not None
        assert (found.route, found.tags_fit) == ("wheel", False)
        image = installation.of_vendor(prefix="/opt/aws_neuronx_venv_torch_neuronx_2_14_0")
        assert image is not None
        assert image.route == "image"
    with monkeypatch.context() as patch:
        patch.syspath_prepend(installed.native(tmp_path / "source", url="file:///src/torch-neuronx"))
        found = installation.of_vendor()
        assert found is not None
        assert (found.route, found.how, found.tags_fit) == ("source", "installed from file:///src/torch-neuronx", True)


def test_requirements_of_the_package_that_are_not_met(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wants = ("torch<2", "no-such-thing>=1", "numpy", "jax<0 ; python_version < '3'", "scipy ; extra == 'all'")
    monkeypatch.syspath_prepend(installed.native(tmp_path, requires=wants))
    assert installation.unmet("torch-neuronx") == [
        f"torch-neuronx needs torch<2, and {metadata.version('torch')} is installed",
        "torch-neuronx needs no-such-thing, which is not installed",
    ]
    assert installation.unmet("not-there-at-all") == []


# --- judgement -------------------------------------------------------------------------------------------------------


def found_in(root: Path, identities: dict[str, Identity]) -> list[tuple[str, str, str]]:
    waiting = Outcome(status="finished")
    cells = []
    for name, document in identities.items():
        write(document, root / "evidence" / name / "identity.json")
        cells.append(
            Cell(id=name, mode="eager", dtype="float32", cache="cold", target="neuron", cases=["2x8"], outcome=waiting)
        )
    found = judge_identity.findings(root, cells, Requirements())
    assert not any(finding.fails for finding in found)
    return [(finding.word, finding.cell, finding.text) for finding in found]


def test_departures_of_a_rehearsal_are_findings_once_and_fail_nothing(tmp_path: Path) -> None:
    here = identity.identify(NEURON)
    found = found_in(tmp_path, {"eager-cold": here, "eager-warm": here})
    assert {cell for _, cell, _ in found} == {"eager-cold"}
    texts = [text for word, _, text in found if word == "departs-from-baseline"]
    assert any(text.startswith("a rehearsal stands on other ground than AWS Neuron SDK 2.33.0") for text in texts)
    assert any("way of installing: this package's own device" in text for text in texts)
    assert any(word == "untested(baseline)" and "driver" in text for word, _, text in found)
    assert not any(word == "unsupported-combination" for word, _, _ in found)


def test_the_native_package_is_held_against_the_matrix(tmp_path: Path) -> None:
    right = installed.documented(tmp_path / "right")
    assert found_in(tmp_path / "a", {"eager": right}) == []
    wrong = installed.documented(tmp_path / "wrong", instance="trn1.32xlarge", compiler="neuronx-cc 2.27.1")
    wrong = wrong.model_copy(update={"unmet": ["torch-neuronx needs numpy<2, and 2.4 is installed"]})
    words = {word: text for word, _, text in found_in(tmp_path / "b", {"eager": wrong})}
    assert set(words) == {"unsupported-combination", "departs-from-baseline", "unmet-requirement"}
    assert (
        "instance type is trn1.32xlarge, documented is trn2 or trn3 [component-notes]"
        in words["unsupported-combination"]
    )


def test_a_damaged_identity_is_untested(tmp_path: Path) -> None:
    found_in(tmp_path, {"eager": installed.documented(tmp_path / "files")})
    (tmp_path / "evidence" / "eager" / "identity.json").write_text("{")
    cell = Cell(
        id="eager",
        mode="eager",
        dtype="float32",
        cache="cold",
        target="neuron",
        cases=["2x8"],
        outcome=Outcome(status="finished"),
    )
    (finding,) = judge_identity.findings(tmp_path, [cell], Requirements())
    assert (finding.word, finding.fails) == ("untested(identity)", False)
