"""Which lines ran: recorded in a real step on the CPU, and joined to what the scan found."""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import evidence, requirements, scan, workload
from shakedown.readiness.judge import scan as judging
from shakedown.readiness.judge.results import Cell, Outcome
from shakedown.readiness.observe import lines

from .support import TINY

# `#: ran`, `#: did not run` end the lines that the scan finds; what they say is what must come out.
MINE = '''
"""A workload whose lines are known to run or not."""
import threading

import torch
from torch import nn

DEVICE = "cuda"  #: ran
CASES = ("2x4",)


class Twice(torch.autograd.Function):  #: ran
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if gradient.isnan().any():  #: ran
            gradient = gradient.cuda()  #: did not run
        return gradient * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if self.layer.in_features > 100:
            x = x.cuda()  #: did not run
        elif torch.device("cpu").type == "cuda":  #: ran
            return x.to(
                "cuda"  #: did not run
            )
        return Twice.apply(
            self.layer(x)
        ), torch.zeros(
            1,
            device="cpu" if self.training else "cuda",  #: ran
        ) + torch.zeros(1)  #: ran


def build_model():
    return Net()


def make_batch(size, length):
    held = []
    thread = threading.Thread(target=lambda: held.append(draw(size, length)))
    thread.start()
    thread.join()
    return {"x": held[0]}


def draw(size, length):
    kind = str(torch.ones(1).device) == "cuda"  #: ran
    return torch.randn(size, length)


def forward(model, batch):
    out, zero = model(batch["x"])
    return out, out.square().mean()


def build_optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)


def train():
    return Net().cuda()  #: did not run
'''
METHODS = [
    "sys.settrace",
    pytest.param(
        "sys.monitoring",
        marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12"),
    ),
]


def start(method: str, roots: list[Path]) -> tuple[lines.Seen, AbstractContextManager[None]]:
    """The recorder of one method, whichever `record` would choose here."""
    seen = lines.Seen(roots)
    if method == "sys.settrace":
        return seen, lines._trace(seen)
    return seen, lines._monitor(seen, sys.monitoring, 4)  # type: ignore[attr-defined]


def step(source: workload.Source) -> None:
    """What the trial does in its first processes: load, build, draw, and one training step."""
    loaded = workload.load(source)
    model = loaded.build_model()
    optimizer = loaded.build_optimizer(model.parameters())
    _, loss = loaded.forward(model, loaded.make_batch(2, 4))
    loss.backward()
    optimizer.step()


def said(text: str) -> dict[int, str]:
    """What the comments of a source say of its lines."""
    return {n: line.split("#:")[1].strip() for n, line in enumerate(text.splitlines(), 1) if "#:" in line}


@pytest.mark.parametrize("method", METHODS)
def test_each_place_is_joined_to_whether_it_ran(tmp_path: Path, method: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    source = workload.resolve(str(file))
    seen, recording = start(method, [scan.root_of(file)])
    with recording:
        step(source)
    record = seen.document()
    assert record.method == method
    assert list(record.files) == ["mine.py"], "neither torch nor the trial itself"
    assert record.files["mine.py"].imported
    found = scan.scan(source)
    assert {hit.ran for hit in found.hits} == {"not run"}
    joined = scan.joined(found, [record])
    assert {hit.line: hit.ran for hit in joined.hits} == said(MINE)


def interrupted(source: workload.Source) -> lines.Seen:
    """A recording that ends by an error."""
    try:
        with lines.record([TINY.parent]) as seen:
            workload.load(source)
            raise ZeroDivisionError
    except ZeroDivisionError:
        return seen


def test_the_public_recorder_leaves_nothing_behind(tmp_path: Path) -> None:
    before, before_threads = sys.gettrace(), threading.gettrace()
    source = workload.resolve(str(TINY))
    seen = interrupted(source)
    assert (sys.gettrace(), threading.gettrace()) == (before, before_threads)
    first = seen.document()
    workload.load(source)
    assert seen.document() == first, "the recording is over"
    assert first.files["tiny.py"].sha256 == source.sha256
    with lines.record([TINY.parent]) as again:
        workload.load(source)
    assert again.document() == first, "a second recording sees what the first one saw"


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\nX = 'cuda'\ndef f():\n    return 'cuda'\ndef g():\n    return 'cuda'\n")
    (tmp_path / "other.py").write_text("Y = 'cuda'\n")
    source = workload.resolve(str(file))
    import importlib.util

    spec = importlib.util.spec_from_file_location("mine_late", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with lines.record([tmp_path]) as seen:  # after the import: module level was not seen
        module.f()
    record = seen.document()
    assert not record.files["mine.py"].imported
    found = scan.scan(source)
    assert [hit.ran for hit in scan.joined(found, [record]).hits] == ["unknown", "ran", "did not run"]
    assert [hit.ran for hit in scan.joined(scan.scan_folder(tmp_path), [record]).hits][-1] == "did not run"
    file.write_text("# a line above\n" + file.read_text())
    edited = scan.joined(scan.scan(workload.resolve(str(file))), [record])
    assert [hit.ran for hit in edited.hits] == ["unknown", "unknown", "unknown"]


def test_a_record_says_nothing_of_files_outside_its_folder(tmp_path: Path) -> None:
    """The workload's folder may be recorded while its whole repository is scanned."""
    (tmp_path / "pyproject.toml").write_text("")
    for name, text in {"jobs/mine.py": "import near\nimport far\nX = 'cuda'\n", "jobs/near.py": "Y = 'cuda'\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "far.py").write_text("Z = 'cuda'\n")
    source = workload.resolve(str(tmp_path / "jobs" / "mine.py"))
    with lines.record([source.path.parent]) as seen:
        exec(compile("X = 1\nY = 2\nZ = 3", str(source.path), "exec"), {})
    found = scan.joined(scan.scan(source), [seen.document()])
    assert {hit.path: hit.ran for hit in found.hits} == {
        "far.py": "unknown",
        "jobs/mine.py": "ran",
        "jobs/near.py": "did not run",
    }


def cell(name: str) -> Cell:
    return Cell(
        id=name,
        mode="reference",
        dtype="float32",
        cache="none",
        target="cpu",
        cases=["2x4"],
        outcome=Outcome(status="finished", exit_code=0),
    )


def run_directory(root: Path, text: str, recorded: bool = True) -> Path:
    """A run's directory as the trial leaves it: the scan, and the lines of two of its processes."""
    file = root / "source" / "mine.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    source = workload.resolve(str(file))
    evidence.write(scan.scan(source), root / "scan.json")
    if recorded:
        with lines.record([scan.root_of(file)]) as seen:
            loaded = workload.load(source)
            model = loaded.build_model()
            batch = loaded.make_batch(2, 4)
        evidence.write(seen.document(), root / "evidence" / "snapshot" / "lines.json")
        with lines.record([scan.root_of(file)]) as seen:
            _, loss = loaded.forward(model, batch)
            loss.backward()
        evidence.write(seen.document(), root / "evidence" / "reference-float32" / "lines.json")
    return root


def test_a_device_in_a_line_that_ran_is_a_finding_of_the_cell_where_it_ran(tmp_path: Path) -> None:
    root = run_directory(tmp_path, MINE)
    found = judging.findings(root, [cell("reference-float32")], requirements.Requirements())
    devices = {
        int(finding.text.split(":")[1]): finding.cell for finding in found if finding.word == "hard-coded-device"
    }
    (made,) = [finding for finding in found if finding.word == "made-without-device"]
    assert (made.cell, made.fails) == ("reference-float32", False)
    ran = [line for line, what in said(MINE).items() if what == "ran"]
    text = MINE.splitlines()
    assert devices == {
        line: "snapshot" if "DEVICE" in text[line - 1] or "kind" in text[line - 1] else "reference-float32"
        for line in ran
        if "cuda" in text[line - 1]
    }
    assert {finding.word for finding in found} == {"hard-coded-device", "made-without-device", "kernel-undeclared"}
    assert not any(finding.fails for finding in found)
    assert "write" in found[0].text


def test_without_records_or_scan_nothing_is_made_up(tmp_path: Path) -> None:
    assert judging.findings(tmp_path, [], requirements.Requirements()) == []
    root = run_directory(tmp_path / "run", MINE, recorded=False)
    found = judging.findings(root, [cell("reference-float32")], requirements.Requirements())
    assert "untested(lines)" in {finding.word for finding in found}
    assert "hard-coded-device" not in {finding.word for finding in found}
    (root / "scan.json").write_text("{}")
    (damaged,) = judging.findings(root, [], requirements.Requirements())
    assert damaged.word == "untested(scan)"


def test_the_command_joins_a_record(tmp_path: Path) -> None:
    root = run_directory(tmp_path, MINE)
    done = CliRunner().invoke(cli.app, ["scan", str(root / "source" / "mine.py"), "--record", str(root), "--json"])
    assert done.exit_code == 1
    result = scan.Scan.model_validate_json(done.stdout)
    assert {hit.line: hit.ran for hit in result.hits} == said(MINE)
