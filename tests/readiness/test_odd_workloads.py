"""Workloads that are unusual but legal are judged; those that misbehave are named, and never take the trial with them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record, trial
from shakedown.readiness.errors import WorkloadError
from shakedown.readiness.judge.disposition import INCONCLUSIVE

from .support import InProcess, quick

pytestmark = pytest.mark.rotating(2, least=3)  # each case is a trial

PLAIN = """
import torch
from torch import nn
from torch.nn import functional as F

CASES = ("4x6",)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 3)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))

def build_model():
    return Net()

def make_batch(size, length):
    return {"x": torch.randn(size, length), "y": torch.randint(0, 3, (size,))}

def forward(model, batch):
    scores = model(batch["x"])
    return scores, F.cross_entropy(scores, batch["y"])

def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""

EMBEDDING = """
import torch
from torch import nn
from torch.nn import functional as F

CASES = ("4x6",)

def build_model():
    return nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(48, 3))

def make_batch(size, length):
    return {"ids": torch.randint(0, 20, (size, length)), "y": torch.randint(0, 3, (size,))}

def forward(model, batch):
    scores = model(batch["ids"])
    return scores, F.cross_entropy(scores, batch["y"])

def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


def tried(
    folder: Path, text: str, target: str = "cpu", modes: tuple[str, ...] = ("eager",), cases: tuple[str, ...] = ()
) -> record.Record:
    file = folder / "odd.py"
    file.write_text(text)
    request = trial.Request(
        str(file), folder / f"run-{target}", target, modes, ("float32",), cases, requirements=quick(folder)
    )
    return trial.run(request, executor=InProcess())


def kept(done: record.Record, folder: Path, cell: str, case: str = "4x6") -> dict[str, str]:
    from shakedown.readiness import evidence

    found = evidence.read(evidence.Evidence, folder / "evidence" / cell / f"{case}.json")
    return {f"{t.role}/{t.name}": t.dtype for t in found.tensors}


def verdicts(done: record.Record) -> dict[str, list[str]]:
    return {cell.cell: [case.verdict for case in cell.cases] for cell in done.judgement.cells}


ODD = {
    "optimizer without state": (PLAIN, {"gradient/up.weight", "weight/up.weight"}, {"state/up.weight.step"}),
    "model without parameters": (
        PLAIN.replace("return Net()", "return nn.Softmax(dim=-1)"),
        {"output/output", "loss/loss"},
        {"gradient/up.weight", "weight/up.weight"},
    ),
    "no optimizer": (
        PLAIN.replace("return torch.optim.SGD(parameters, lr=0.1)", "return None"),
        {"output/output", "loss/loss", "weight/up.weight"},
        {"gradient/up.weight"},
    ),
    "no loss where nothing is trained": (
        PLAIN.replace("return torch.optim.SGD(parameters, lr=0.1)", "return None").replace(
            'return scores, F.cross_entropy(scores, batch["y"])', "return scores, None"
        ),
        {"output/output", "weight/up.weight"},
        {"loss/loss"},
    ),
    "unused parameters": (
        PLAIN.replace("self.up = nn.Linear(6, 8)", "self.up = nn.Linear(6, 8); self.spare = nn.Linear(2, 2)"),
        {"gradient/up.weight", "weight/spare.weight"},
        {"gradient/spare.weight"},
    ),
    "tied weights": (
        PLAIN.replace("self.up = nn.Linear(6, 8)", "self.up = nn.Linear(6, 6)")
        .replace("self.down = nn.Linear(8, 3)", "self.down = nn.Linear(6, 6); self.down.weight = self.up.weight")
        .replace("(0, 3, (size,))", "(0, 6, (size,))"),
        {"gradient/up.weight", "weight/up.weight", "gradient/down.bias"},
        {"weight/down.weight"},
    ),
    "integer outputs": (
        PLAIN.replace("return scores, F", 'return {"best": scores.argmax(-1), "sure": scores > 0}, F'),
        {"output/best", "output/sure"},
        {"output/output"},
    ),
    "nested outputs": (
        PLAIN.replace("return scores, F", 'return {"all": [scores, (scores * 2, {"third": scores + 1})], "n": 3}, F'),
        {"output/all.0", "output/all.1.0", "output/all.1.1.third"},
        {"output/n"},
    ),
    "sparse gradients": (EMBEDDING, {"gradient/0.weight", "weight/0.weight"}, set()),
    "an optimizer for sparse gradients": (
        EMBEDDING.replace(
            "return torch.optim.SGD(parameters, lr=0.1)",
            "return torch.optim.SparseAdam([next(iter(parameters))], lr=0.1)",
        ),
        {"gradient/0.weight", "state/0.weight.exp_avg"},
        set(),
    ),
}


ON_THE_DEVICE = (
    "an optimizer for sparse gradients", "model without parameters", "nested outputs", "sparse gradients", "tied weights",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "target"), [(name, "cpu") for name in sorted(ODD)] + [(name, "neuron") for name in ON_THE_DEVICE]
)
def test_unusual_but_legal(tmp_path: Path, name: str, target: str) -> None:
    text, there, absent = ODD[name]
    done = tried(tmp_path, text, target)
    cell = "eager-float32" if target == "cpu" else "eager-float32-cold"
    assert verdicts(done)[cell] == ["match"], done.judgement.cells
    names = kept(done, tmp_path / f"run-{target}", cell).keys()
    assert there <= names
    assert not absent & names
    assert record.verify(tmp_path / f"run-{target}").problems == []


@pytest.mark.parametrize("name", ["no optimizer", "unused parameters"])
def test_unusual_and_compiled(tmp_path: Path, name: str) -> None:
    done = tried(tmp_path, ODD[name][0], "neuron", ("compiled",))
    assert verdicts(done)["compiled-float32-cold"] == ["match"], done.judgement.cells


def test_a_loss_that_is_nan_in_exact_arithmetic_leaves_nothing_to_compare(tmp_path: Path) -> None:
    text = PLAIN.replace(
        'return scores, F.cross_entropy(scores, batch["y"])', "return scores, (scores.sum() - 1e9).sqrt()"
    )
    done = tried(tmp_path, text)
    (case,) = next(cell.cases for cell in done.judgement.cells if cell.cell == "eager-float32")
    assert case.verdict == "untested"
    assert "not finite in float64 on the CPU at step 1: the workload diverges by itself" in case.reason
    assert case.losses["device_step1"] is None
    assert done.judgement.decision.disposition == INCONCLUSIVE


def test_a_shape_that_does_not_fit_takes_only_its_own_case(tmp_path: Path) -> None:
    done = tried(tmp_path, PLAIN, cases=("4x6", "4x7", "2x6"))
    for cell in ("reference-float32", "eager-float32"):
        assert verdicts(done)[cell] == ["match", "untested", "match"]
    reason = next(c for c in done.judgement.cells if c.cell == "eager-float32").cases[1].reason
    assert "the workload itself fails on the CPU: RuntimeError: mat1 and mat2 shapes cannot be multiplied" in reason


def test_no_shape_that_fits_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(PLAIN)
    arguments = ["run", str(tmp_path / "odd.py"), "--target", "cpu", "--case", "4x7", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(cli.app, [*arguments, "--requirements", str(quick(tmp_path))])
    assert done.exit_code == 2
    assert "mat1 and mat2 shapes cannot be multiplied" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (("return scores, F.cross", "return object(), F.cross"), "an output of type object"),
        (("return scores, F.cross", "return {}, F.cross"), "must return outputs"),
        (('F.cross_entropy(scores, batch["y"])', "scores"), "the loss as a tensor with one element"),
        (('F.cross_entropy(scores, batch["y"])', "None"), "the loss as a tensor with one element"),
        (("return torch.optim.SGD(parameters, lr=0.1)", "return 5"), r"build_optimizer\(\) returned int"),
        (('return {"x"', 'return 5, {"x"'), r"make_batch\(\) must return a dict of tensors"),
    ],
)
def test_a_broken_protocol_is_bad_input(tmp_path: Path, edit: tuple[str, str], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        tried(tmp_path, PLAIN.replace(*edit))
    assert not (tmp_path / "run-cpu").exists()


NOISE = """
import os, sys, threading, time

def build_model():
    print("x" * 5_000_000)
    print("the last words", flush=True)
    print("y" * 3_000_000, file=sys.stderr, flush=True)
    return Net()

def build_optimizer(parameters):
    if not any(t.name == "pump" for t in threading.enumerate()):
        threading.Thread(target=time.sleep, args=(3000,), name="pump").start()
        if os.fork() == 0:
            time.sleep(3000)
        if os.fork() == 0:
            return torch.optim.SGD(list(parameters), lr=100.0)  # a child that goes on as if it were the parent
    return torch.optim.SGD(parameters, lr=0.1)
"""


def test_one_that_prints_megabytes_forks_and_leaves_a_thread_behind(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(PLAIN + NOISE)
    request = trial.Request(
        str(file), tmp_path / "run", "cpu", ("eager",), ("float32",), requirements=quick(tmp_path), timeout_seconds=1500
    )
    done = trial.run(request)
    assert verdicts(done) == {"reference-float32": ["match"], "eager-float32": ["match"]}
    assert {c.outcome.status for c in done.cells} == {"finished"}
    assert max(c.outcome.seconds for c in done.cells) < 1500  # nobody waited for what sleeps for 3000
    left = [f for f in done.judgement.findings if f.word == "thread-left-behind"]
    assert {f.cell for f in left} == {"reference-float32", "eager-float32"}
    assert "pump" in left[0].text
    log = (tmp_path / "run" / "logs" / "eager-float32.stdout").read_text()
    assert len(log) < 2_200_000
    assert "bytes left out" in log
    assert log.rstrip().endswith("the last words")
    assert not [t for t in threading.enumerate() if t.name == "pump"]


def test_tied_weights_stay_one_parameter_when_moved_after_the_optimizer_was_built() -> None:
    model = torch.nn.Module()
    model.embedding = torch.nn.Embedding(7, 4)
    model.head = torch.nn.Linear(4, 7, bias=False)
    model.head.weight = model.embedding.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.to("neuron")
    assert model.head.weight is model.embedding.weight
    assert len(list(model.parameters())) == 1
    before = model.embedding.weight.detach().cpu().clone()
    loss = model.head(model.embedding(torch.tensor([1, 2], device="neuron"))).sum()
    loss.backward()
    optimizer.step()
    after = model.embedding.weight.detach().cpu()
    assert not torch.equal(before, after)
    assert optimizer.param_groups[0]["params"][0] is model.embedding.weight
    other = torch.nn.Module()
    other.embedding = torch.nn.Embedding(7, 4)
    other.head = torch.nn.Linear(4, 7, bias=False)
    other.head.weight = other.embedding.weight
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.head.weight, after)


def test_what_cannot_be_recomputed_in_float64_says_so(tmp_path: Path) -> None:
    text = PLAIN.replace("return self.down(F.silu(self.up(x)))", "return self.down(F.silu(self.up(x)).float())")
    done = tried(tmp_path, text)
    (case,) = next(cell.cases for cell in done.judgement.cells if cell.cell == "eager-float32")
    assert case.verdict == "untested"
    assert "cannot be recomputed in float64 on the CPU: RuntimeError" in case.reason
