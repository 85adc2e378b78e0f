"""The scan reads a workload's source and runs none of it: what it finds, what it leaves alone, and what it makes of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import evidence, requirements, scan, workload
from shakedown.readiness.errors import BadInput
from shakedown.readiness.judge import scan as judging
from shakedown.readiness.scan import effort
from shakedown.readiness.scan.results import Hours

from .scan_sources import SOURCES
from .support import TINY

ROOT = Path(__file__).parents[2]


def scanned(folder: Path, text: str, others: dict[str, str] | None = None) -> scan.Scan:
    """Scan `text` as a workload that lies beside the files `others`."""
    for name, content in (others or {}).items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    main = folder / "mine.py"
    main.write_text(text)
    return scan.scan(workload.resolve(str(main)))


def marked(text: str) -> Counter[tuple[int, str]]:
    """The rules that the comments of a source ask for, by line."""
    lines = enumerate(text.splitlines(), 1)
    return Counter((n, rule.strip()) for n, line in lines if "#!" in line for rule in line.split("#!")[1].split(","))


def rules(result: scan.Scan) -> list[str]:
    return [hit.rule for hit in result.hits]


@pytest.mark.parametrize("name", SOURCES)
def test_every_marked_line_is_found_and_no_other(tmp_path: Path, name: str) -> None:
    result = scanned(tmp_path, SOURCES[name])
    assert Counter((hit.line, hit.rule) for hit in result.hits) == marked(SOURCES[name])
    for hit in result.hits:
        assert hit.text == SOURCES[name].splitlines()[hit.line - 1].strip()[:200]
        assert hit.rule in result.rules


def test_every_rule_is_tried_and_says_why() -> None:
    tried = {rule for source in SOURCES.values() for _, rule in marked(source)}
    packages = {rule.id for rule in scan.RULES if rule.imports}
    elsewhere = {"cuda-source", "ignore-without-reason", "host-numpy"}
    assert {rule.id for rule in scan.RULES} - tried - packages - elsewhere == set()
    assert len({rule.id for rule in scan.RULES}) == len(scan.RULES)
    for rule in scan.RULES:
        assert len(rule.why) > 20, rule.id
        assert rule.source, rule.id
        assert rule.instead, rule.id


@pytest.mark.parametrize("rule", [rule for rule in scan.RULES if rule.imports], ids=lambda rule: rule.id)
def test_packages_are_known_by_any_of_their_names(tmp_path: Path, rule: scan.Rule) -> None:
    for package in rule.imports:
        assert rule.id in rules(scanned(tmp_path, f"import {package}.inner as inner\n"))
        assert rule.id in rules(scanned(tmp_path, f"def late():\n    from {package} import something\n"))


@pytest.mark.parametrize("spec", ["decoder", "cnn", str(TINY), str(ROOT / "examples" / "tagger.py")])
def test_workloads_that_need_no_change_have_no_findings(spec: str) -> None:
    result = scan.scan(workload.resolve(spec))
    assert result.hits == []
    assert result.effort.grade == "none"
    assert "torch" in result.third_party


PHASES = """
import torch
from torch import nn
import parts

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = parts.Part()
        self.size = torch.tensor(3).item()

    def forward(self, x):
        return self.part(x) + self.shift(x)

    def shift(self, x):
        return x.sum().item()

class Step(torch.autograd.Function):
    @staticmethod
    def backward(ctx, gradient):
        return gradient.max().item()

def build_model():
    return Net()

def make_batch(size, length):
    return {"x": torch.ones(parts.count(torch.tensor([size])))}

def forward(model, batch):
    out = model(batch["x"])
    return out, parts.loss(out)

def build_optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)

def train(model, batches):
    for batch in batches:
        out, loss = forward(model, batch)
        loss.backward()
        report(loss)

def report(loss):
    print(loss.item())

def evaluate(value):
    return value.item()
"""
PARTS = """
from torch import nn

class Part(nn.Module):
    def forward(self, x):
        return x.mean().item()

def loss(out):
    return out.square().sum().item()

def count(sizes):
    return sizes.item()
"""


def test_phase_is_who_calls(tmp_path: Path) -> None:
    hits = scanned(tmp_path, PHASES, {"parts.py": PARTS}).hits
    found = {hit.function: hit for hit in hits if hit.rule == "host-item"}
    assert {name: (hit.phase, hit.in_step) for name, hit in found.items()} == {
        "Net.shift": ("forward", True),
        "Part.forward": ("forward", True),
        "loss": ("forward", True),
        "Step.backward": ("backward", True),
        "report": ("training loop", False),
        "evaluate": ("elsewhere", False),
    }, "make_batch and build_model work on the host: reading there waits for nothing"
    assert found["evaluate"].severity == "note"
    assert found["report"].severity == found["loss"].severity == "costs time"


def test_imports_are_followed_inside_the_repository_and_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    boom = "raise RuntimeError('imported')\n"
    files = {
        "dynamic.py": "y = 'cuda:1'\n",
        "src/pkg/__init__.py": boom + "from .inner import helper\n",
        "src/pkg/inner.py": "from . import deep\nfrom .deep.er import x\ndef helper(x):\n    return x.cuda()\n",
        "src/pkg/deep/__init__.py": "",
        "src/pkg/deep/er.py": "x = 'cuda:0'\n",
        "src/pkg/never.py": "x = 'cuda:0'\n",
        "lib/local.py": "DEVICE = 'cuda'\n",
        "venv/lib/site-packages/foreign.py": "x = 'cuda:0'\n",
    }
    result = scanned(
        tmp_path,
        boom + "import numpy, json\nfrom pkg import helper\nimport lib.local, foreign\nimport importlib\n"
        "late = importlib.import_module('dynamic')\n",
        files,
    )
    assert [file.path for file in result.files] == [
        "dynamic.py", "lib/local.py", "mine.py", "src/pkg/__init__.py", "src/pkg/deep/__init__.py", "src/pkg/deep/er.py",
        "src/pkg/inner.py",
    ]  # fmt: skip
    assert result.third_party == ["foreign", "numpy"]
    assert sorted(hit.path for hit in result.hits) == [
        "dynamic.py", "lib/local.py", "src/pkg/deep/er.py", "src/pkg/inner.py",
    ]  # fmt: skip


def test_a_folder_is_scanned_whole_and_what_cannot_be_read_is_listed(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'python 2'\n")
    (tmp_path / "zero.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "declared.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'\nd = 'cuda'\n")
    (tmp_path / "deep.py").write_text("x = " + "(" * 300 + "1" + ")" * 300 + "\n")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "long.py").write_text("x = 1" + " + 1" * 20_000 + "\n")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "norm.cu").write_text("__global__ void norm() {}\n")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "env" / "inside.py").write_text("x = 'cuda'\n")
    said: list[str] = []
    result = scan.scan_folder(tmp_path, lambda what, share: said.append(what))
    reasons = {entry.path: entry.reason for entry in result.skipped}
    assert "SyntaxError in line 1: Missing parentheses" in reasons["old.py"]
    assert set(reasons) >= {"old.py", "zero.py", "latin.py", "deep.py", "gone.py", "broken.py", "long.py"}
    assert all(reasons.values())
    assert [(hit.where, hit.rule, hit.kernel) for hit in result.hits] == [
        ("declared.py:3:5", "cuda-device", ""),
        ("kernels/norm.cu:1:1", "cuda-source", "norm"),
    ]
    assert "declared.py" in said
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no Python file"):
        scan.scan_folder(tmp_path / "empty")


def test_a_large_package_is_read_without_a_crash() -> None:
    import torch

    result = scan.scan_folder(Path(torch.__file__).parent / "optim")
    assert len(result.files) > 15
    assert result.skipped == []
    waits = {hit.path for hit in result.hits if hit.rule == "data-branch"}
    assert "lbfgs.py" in waits
    assert "sgd.py" not in waits, "branches of SGD ask options, never tensors"


IGNORED = """
import torch
a = torch.ones(1).cuda()  # shakedown: ignore[cuda-method] a tool that only runs on CUDA
# shakedown: ignore[cuda-method, cuda-device] the same
b = torch.ones(1, device="cuda").cuda()
c = torch.ones(
    1,
    device="cuda",  # shakedown: ignore[cuda-device] over several lines
)
d = torch.ones(1).cuda()  # shakedown: ignore[cuda-method]
e = torch.ones(1).cuda()  # shakedown: ignore[other-rule] for another rule
f = torch.ones(1).cuda(), "# shakedown: ignore[cuda-method] in a string"
"""


def test_a_comment_with_a_reason_takes_a_finding_out(tmp_path: Path) -> None:
    result = scanned(tmp_path, IGNORED)
    assert [(entry.hit.line, entry.hit.rule, entry.reason) for entry in result.ignored] == [
        (3, "cuda-method", "a tool that only runs on CUDA"),
        (5, "cuda-device", "the same"),
        (5, "cuda-method", "the same"),
        (8, "cuda-device", "over several lines"),
    ]
    assert [(hit.line, hit.rule, hit.detail) for hit in result.hits] == [
        (10, "ignore-without-reason", "it gives no reason"),
        (10, "cuda-method", ""),
        (11, "ignore-without-reason", "unknown rule other-rule"),
        (11, "cuda-method", ""),
        (12, "cuda-method", ""),
    ]
    assert result.effort.kinds[0].places == 3


def test_guarded_and_optional_places_are_notes(tmp_path: Path) -> None:
    result = scanned(
        tmp_path,
        "import torch\ntry:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n"
        "def f(x):\n    if torch.cuda.is_available():\n        x = x.cuda()\n    else:\n        x = x.cuda()\n    return x\n",
    )
    found = {(hit.line, hit.rule): (hit.severity, hit.detail) for hit in result.hits}
    assert found[3, "package-flash-attn"] == ("note", "optional: the code goes on without it")
    assert found[8, "cuda-method"] == ("note", "only where CUDA is available, so the device skips it")
    assert found[10, "cuda-method"] == ("changes needed", "")
    assert found[7, "cuda-available"][0] == "changes needed"
    late = scanned(
        tmp_path,
        "def f():\n    if is_apex_available():\n        import apex\n    if HAS_APEX and True:\n        import apex\n"
        "    if find_spec('apex'):\n        import apex\n    else:\n        import apex\n",
    )
    assert [hit.severity for hit in late.hits] == ["note", "note", "note", "blocks"]


def test_effort_grows_with_places_and_says_what_dominates(tmp_path: Path) -> None:
    one = scanned(tmp_path, "x = 'cuda'\n").effort
    ten = scanned(tmp_path, "x = 'cuda'\n" * 10).effort
    kernel = scanned(tmp_path, "x = 'cuda'\nimport triton\n").effort
    assert (one.grade, one.required) == ("trivial", Hours(low=0.1, high=0.5))
    assert ten.required == Hours(low=0.19, high=0.95)
    assert (kernel.grade, [(part.kind, part.places) for part in kernel.kinds]) == (
        "large",
        [("device", 1), ("package", 1)],
    )
    waits = scanned(
        tmp_path,
        "def f(x):\n    x.backward()\n    return x\n" + "for b in data:\n    loss.backward()\n    loss.item()\n",
    )
    assert (waits.effort.required.high, waits.effort.optional.high) == (0, 4)
    assert effort.hours("large", 2).high == pytest.approx(1.7 * effort.GRADES["large"].high)
    assert effort.hours("large", 0).high == 0


KERNELS = SOURCES["kernels"] + "\nimport flash_attn\n"


def test_kernels_need_a_declaration_an_owner_and_a_fallback(tmp_path: Path) -> None:
    result = scanned(tmp_path, KERNELS)
    names = {
        "fast_norm",
        "libfast.so",
        "liba.so",
        "mine",
        "mine::scale",
        "kernel",
        "Square",
        "theirs::norm",
        "flash_attn",
    }
    assert {hit.kernel for hit in result.hits if hit.kernel} == names
    undeclared = judging.kernels(result.hits, [])
    assert {finding.text.split(",")[0] for finding in undeclared} == names
    assert {finding.word for finding in undeclared} == {"kernel-undeclared"}
    declared = [
        requirements.Kernel(name="flash-attn", owner="attention team", fallback="scaled_dot_product_attention"),
        requirements.Kernel(name="theirs", owner="vendor"),
        requirements.Kernel(name="mine", owner=" ", fallback="plain PyTorch"),
    ]
    found = judging.kernels(result.hits, declared)
    by_word = {(finding.word, finding.text.split(",")[0]) for finding in found}
    assert ("kernel-without-fallback", "theirs::norm") in by_word
    assert {("kernel-without-owner", "mine"), ("kernel-without-owner", "mine::scale")} <= by_word
    assert not any("flash_attn" in finding.text for finding in found)
    assert not any(finding.fails for finding in found)


run = CliRunner()


def test_the_command_says_what_to_write_and_how_much(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\nx = torch.ones(1).cuda()\n")
    done = run.invoke(cli.app, ["scan", str(file)])
    assert done.exit_code == 1
    assert "2:19  changes needed  cuda-method  import, not run" in done.stdout
    assert "write: .to(device)" in done.stdout
    assert "estimate" in done.stdout
    as_json = run.invoke(cli.app, ["scan", str(tmp_path), "--json"])
    assert scan.Scan.model_validate_json(as_json.stdout).hits[0].rule == "cuda-method"
    assert run.invoke(cli.app, ["scan", "decoder"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonesuch"], "unknown workload 'nonesuch'"),
        (["missing.py"], "cannot read the workload missing.py"),
        (["decoder", "--record", "nowhere"], "nowhere holds no record of executed lines"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    done = run.invoke(cli.app, ["scan", *arguments, "--json"])
    assert done.exit_code == 2
    assert words in json.loads(done.stdout)["error"]


def test_documents_survive_writing_and_reading(tmp_path: Path) -> None:
    result = scanned(tmp_path, SOURCES["kernels"])
    evidence.write(result, tmp_path / "scan.json")
    assert evidence.read(scan.Scan, tmp_path / "scan.json") == result


SCRIPT = """
import torch
model = torch.nn.Linear(2, 2)
for batch in something():
    loss = model.compute(batch)
    print(loss)
    loss.backward()
"""
OPTIMIZER = """
import torch
class Mine(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            self.one(group)
    def one(self, group):
        return group["norm"].item()
"""


def test_scripts_and_optimizers_are_in_a_phase_as_well(tmp_path: Path) -> None:
    (printed,) = scanned(tmp_path, SCRIPT).hits
    assert (printed.rule, printed.phase, printed.severity) == ("host-print", "training loop", "costs time")
    (read,) = scanned(tmp_path, OPTIMIZER).hits
    assert (read.rule, read.phase, read.in_step, read.detail) == ("host-item", "optimizer", True, "if this is a tensor")


def test_a_workload_that_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def forward(:\n")
    done = run.invoke(cli.app, ["scan", str(file), "--json"])
    assert done.exit_code == 2
    assert "cannot be scanned: it is not Python" in json.loads(done.stdout)["error"]
