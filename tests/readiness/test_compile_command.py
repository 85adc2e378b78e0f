"""``shakedown compile``: the cache is filled, nothing runs, and the trial's own process then compiles no graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown.cli import app
from shakedown.readiness import compiling, evidence, requirements, snapshot, worker, workload
from shakedown.readiness.errors import BadInput
from shakedown.readiness.requirements import Requirements
from shakedown.readiness.runner import Launch, LocalProcesses, frozen_environment

TINY = Path(__file__).with_name("tiny.py")
CASE = "2x8"

# An operator without a lowering inside the graph, one between two graphs, a value that the host reads, and a case that fails.
ODD = """
import torch

CASES = ("2x4",)


def build_model():
    return torch.nn.Linear(4, 4)


def make_batch(size, length):
    return {"x": torch.ones(size, length)}


def forward(model, batch):
    y = model(batch["x"])
    y = torch.fake_quantize_per_tensor_affine(y, 0.1, 0, -128, 127)
    if batch["x"].shape[0] == 3:
        raise RuntimeError("no batches of three")
    torch._dynamo.graph_break()
    return y, y.square().mean()


def build_optimizer(parameters):
    return None
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def first(cache: Path) -> dict:
    return command(str(TINY), "--case", CASE, "--dtype", "float32", "--cache", str(cache))


def command(*arguments: str, code: int = 0) -> dict:
    """The document that the command prints."""
    ended = CliRunner().invoke(app, ["compile", *arguments, "--json"])
    assert ended.exit_code == code, ended.output
    return json.loads(ended.stdout)


def test_a_step_is_compiled_and_nothing_is_run(first, cache):
    (case,) = first["cases"]
    assert (case["mode"], case["dtype"], case["case"]) == ("compiled", "float32", CASE)
    assert case["graphs"] == 2  # forward and backward
    assert case["compiled"] > 2  # and the optimizer's operators
    assert (case["executed"], case["host_reads"]) == (0, 0)
    assert (case["error"], case["split"], case["breaks"], case["fallbacks"]) == ("", [], [], [])
    assert case["stored_bytes"] > 0
    assert first["cache"] == str(cache / "executables")
    assert any((cache / "executables").glob("??/*"))


def test_the_trials_compiled_process_then_compiles_no_graph(first, cache, tmp_path):
    source = workload.resolve(str(TINY))
    loaded = workload.load(source)
    (tmp_path / "logs").mkdir()
    timing = {"steps": 2, "processes": 1, "attempts": 1, "scaling_tolerance": 1e9}
    locked = requirements.lock(Requirements.model_validate({"timing": timing}), tmp_path / "requirements.json")
    snapshot.create(loaded, [workload.Case.parse(CASE)], 2, tmp_path / "snapshot")
    job = worker.Job(
        role="candidate",
        root=str(tmp_path),
        workload={"name": source.name, "path": str(source.path), "sha256": source.sha256},
        cell="compiled-float32",
        requirements_sha256=locked,
        snapshot_sha256=evidence.sha256(tmp_path / "snapshot" / "snapshot.json"),
        target="neuron",
        mode="compiled",
        cases=(CASE,),
        cache="warm",
        kind="single",
    )
    ended = LocalProcesses().run(Launch(job, frozen_environment(1, cache), tmp_path / "logs", 600.0))
    assert ended.status == "finished", ended.stderr_tail
    found = evidence.read(evidence.Evidence, tmp_path / "evidence" / "compiled-float32" / f"{CASE}.json")
    programs = [row for row in found.paths.first_step or [] if row.kind == "compile"]
    graphs = [row for row in programs if row.name.startswith("model_default")]
    assert {row.phase for row in graphs} == {"forward", "backward"}
    assert {row.detail for row in graphs} == {"persistent-cache"}
    assert {row.detail for row in programs if row.phase == "optimizer"} <= {"persistent-cache", "same-computation"}


def test_what_is_no_single_program_is_named_and_fails(tmp_path):
    (tmp_path / "odd.py").write_text(ODD)
    made = command(str(tmp_path / "odd.py"), "--case", "2x4,3x4", "--cache", str(tmp_path / "caches"), code=1)
    split, failed = made["cases"]
    assert split["dtype"] == "float32"
    assert any("aten.fake_quantize_per_tensor_affine" in text and "odd.py:" in text for text in split["split"])
    assert any("odd.py:" in text and "graph_break" in text.lower() for text in split["breaks"])
    assert any("fake_quantize" in off["operator"] and off["phase"] == "forward" for off in split["fallbacks"])
    assert failed["error"] == "RuntimeError: no batches of three"
    assert [case["executed"] for case in made["cases"]] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "unknown workload 'nothing'"),
        ([str(TINY), "--case", "2y8"], "is not BATCHxLENGTH"),
        ([str(TINY), "--dtype", "int3"], "dtype 'int3' is unknown"),
        ([str(TINY), "--mode", "adaptive"], "nothing to compile beforehand"),
        ([str(TINY), "--mode", "fast"], "choose among compiled, eager"),
        ([str(TINY), "--timeout", "0"], "leaves no time"),
    ],
)
def test_bad_input_is_one_message(arguments, words):
    said = command(*arguments, code=2)
    assert words in said["error"]
    assert said["exit_code"] == 2


def test_another_kind_of_device_is_refused_with_what_is_possible(monkeypatch):
    job = {
        "name": "tiny",
        "path": str(TINY),
        "sha256": "",
        "cases": [],
        "mode": "compiled",
        "dtype": "",
        "device_kind": "trn2",
    }
    with pytest.raises(BadInput, match=r"compiles for 'cpu', not for 'trn2'.*save_cache_artifacts"):
        compiling._work(job)
    monkeypatch.setenv("SHAKEDOWN_CACHE", "0")
    with pytest.raises(BadInput, match="cache is off"):
        compiling._work({**job, "device_kind": ""})
