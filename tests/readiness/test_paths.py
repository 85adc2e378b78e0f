"""Which operators ran where, how long, and which line of the workload asked for them: watched on real steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from shakedown.readiness import targets
from shakedown.readiness.evidence import PathRow
from shakedown.readiness.observe import paths
from shakedown.readiness.observe.lines_of_user import Lines, definition

from . import leaving, tiny
from .stepping import Training, line

NEURON, CPU = targets.get("neuron"), targets.get("cpu")
LEFT = {  # operator, phase: calls, words of the line
    ("leaving::squash", "forward"): (1, "line of squash"),
    ("leaving::slope", "backward"): (1, "line of slope"),
    ("leaving::squash", "optimizer"): (2, "line of descent"),
}


def of(rows: list[PathRow], kind: str, **wanted: Any) -> list[PathRow]:
    return [row for row in rows if row.kind == kind and all(getattr(row, k) == v for k, v in wanted.items())]


def calls(rows: list[PathRow]) -> Counter[tuple[str, str, str, str]]:
    """Calls by kind, operator, phase and reason, whatever the line."""
    counted: Counter[tuple[str, str, str, str]] = Counter()
    for row in rows:
        if row.where == "device" or row.kind == "fallback":
            counted[row.kind, row.name, row.phase, row.detail] += row.count or 0
    return counted


@pytest.fixture(scope="module")
def left() -> tuple[list[PathRow], paths.Rows]:
    """One counted and one attributed step of a workload that leaves the device, in eager mode."""
    training, recorder = Training(leaving, NEURON), paths.recorder(NEURON)
    training.step(recorder)
    with recorder.step() as counted:
        training.step(recorder)
    with recorder.attributed(training.roots) as attributed:
        training.step(recorder)
    return counted, attributed


def test_what_left_the_device_has_phase_line_calls_bytes_and_time(left: Any) -> None:
    _, rows = left
    found = {(row.name, row.phase): row for row in of(rows, "fallback")}
    assert found.keys() == LEFT.keys()
    for key, (count, words) in LEFT.items():
        row = found[key]
        assert (row.count, row.line, row.where) == (count, line(leaving, words), "host")
        assert row.detail == "no lowering"
        assert row.seconds is not None
        assert 0 < row.seconds < rows.seconds
    itself = 4 * leaving.WIDTH * 2 * 4  # one activation, there and back
    assert found["leaving::squash", "forward"].nbytes == 2 * itself
    assert found["leaving::squash", "optimizer"].nbytes == 2 * 4 * (leaving.WIDTH**2 + leaving.WIDTH)


def test_operators_on_tensors_of_the_cpu_are_work_of_the_host(left: Any) -> None:
    counted, rows = left
    host = of(rows, "execute", where="host")
    assert {row.name for row in host} == {"aten::ones", "aten::tril", "aten::sum.dim_IntList", "aten::div.Tensor"}
    assert {row.phase for row in host} == {"forward"}
    assert line(leaving, "line of mask") in {row.line for row in host}
    assert all(row.seconds is not None and row.seconds >= 0 for row in host)
    assert sum(row.seconds or 0 for row in host) > 0
    assert not of(counted, "execute", where="host")  # the device cannot count what never comes to it


def test_lines_of_operators_on_the_device_forward_and_backward(left: Any) -> None:
    _, rows = left
    product = line(leaving, "line of product")
    assert {row.line for row in of(rows, "execute", name="aten::linear")} == {product}
    assert {row.line for row in of(rows, "execute", name="aten::linear_backward")} == {f"backward of {product}"}
    own = {row.line for row in of(rows, "execute", name="aten::mul.Tensor", phase="backward")}
    assert line(leaving, "line of slope") in own  # the backward pass of an autograd.Function is the user's own code
    assert {row.line for row in of(rows, "execute", phase="optimizer")} == {line(leaving, "line of descent")}
    (mask,) = [row for row in of(rows, "transfer", phase="forward") if row.line == product]
    assert (mask.name, mask.nbytes) == ("host-to-device", 4 * 4 * 4)


def test_attributing_a_step_counts_what_counting_alone_does(left: Any) -> None:
    counted, attributed = left
    assert calls(counted) == calls(attributed)
    assert all(row.seconds is not None for row in attributed if row.detail != "composite")
    assert all(row.seconds is None for row in of(counted, "execute"))  # not measured, and so not zero


def test_a_step_is_the_same_whether_it_is_attributed_or_not() -> None:
    losses = []
    for watched in (False, True):
        training, recorder = Training(leaving, NEURON), paths.recorder(NEURON)
        for _ in range(3):
            if watched:
                with recorder.attributed(training.roots):
                    losses.append(training.step(recorder))
            else:
                losses.append(training.step(recorder))
    assert losses[:3] == losses[3:]
    assert not torch.is_anomaly_enabled()
    with recorder.step() as rows:
        training.step(recorder)
    assert of(rows, "execute")  # tallies count on


def test_the_optimizer_that_the_workload_builds_stands_for_its_lines() -> None:
    training, recorder = Training(tiny, NEURON, (2, 8)), paths.recorder(NEURON)
    training.step(recorder)
    here = definition(tiny.build_optimizer, training.roots)
    with recorder.attributed([Path(leaving.__file__)], {"optimizer": here}) as rows:  # a root without the caller
        training.step(recorder)
    assert here == line(tiny, "def build_optimizer")
    optimizer = [row for row in rows if row.phase == "optimizer"]
    assert {row.line for row in optimizer} == {here}
    assert {row.name for row in optimizer if row.where == "host"} == {
        "aten::_foreach_add_.Tensor",
        "aten::_local_scalar_dense",
    }
    assert {row.line for row in rows if row.phase == "forward"} == {""}


def test_a_library_below_the_folder_of_the_workload_is_not_the_workload(tmp_path: Path) -> None:
    above = Path(torch.__file__).resolve().parents[5]
    lines = Lines([above])
    assert lines.name(torch.__file__) is None
    assert lines.name(paths.__file__) is None
    assert lines.name("<string>") is None
    assert Lines([Path(tiny.__file__).parent]).name(tiny.__file__) == "tiny.py"
    built_in = Path(targets.__file__).parent / "workloads"
    assert Lines([built_in]).name(str(built_in / "cnn.py")) == "cnn.py"


def test_a_compiled_graph_is_one_row_and_what_runs_between_its_programs_keeps_its_lines() -> None:
    whole, recorder = Training(tiny, NEURON, (2, 8), compiled=True), paths.recorder(NEURON)
    parts = Training(leaving, NEURON, compiled=True)
    with pytest.warns(UserWarning, match="splits graph"):
        parts.step(recorder)
    whole.step(recorder)
    with recorder.attributed(whole.roots) as rows:
        whole.step(recorder)
    (graph,) = of(rows, "execute", phase="forward")
    assert graph.name.startswith("graph::")
    assert graph.count == 1
    assert graph.seconds is not None
    with recorder.attributed(parts.roots) as rows:
        parts.step(recorder)
    lines = {(row.name, row.phase): row.line for row in of(rows, "fallback")}
    assert lines["leaving::squash", "forward"] == line(leaving, "line of squash")
    assert lines["leaving::slope", "backward"] == f"backward of {line(leaving, 'line of slope')}"


def test_counting_at_the_dispatcher_leaves_compiled_code_compiled() -> None:
    runs: list[int] = []

    def backend(module: Any, example: Any) -> Any:
        def run(*args: Any) -> Any:
            runs.append(1)
            return module(*args)

        return run

    fn = torch.compile(lambda x: (x * 2).sin().sum(), backend=backend, dynamic=False)
    x, recorder = torch.ones(3), paths.recorder(CPU)
    fn(x)
    with recorder.step() as rows:
        fn(x)
    with recorder.attributed([Path(__file__)]) as attributed:
        fn(x)
    assert len(runs) == 3  # without care, Dynamo steps aside for a dispatch mode, and something else is observed
    for seen in (rows, attributed):
        assert {row.name: row.count for row in seen} == {"aten::mul.Tensor": 1, "aten::sin": 1, "aten::sum": 1}
    assert isinstance(recorder, paths.DispatchCounts)
    assert recorder.compiles() is None


def test_on_the_cpu_nothing_leaves_and_views_are_no_operators() -> None:
    training, recorder = Training(tiny, CPU, (2, 8)), paths.recorder(CPU)
    with recorder.attributed(training.roots) as rows:
        training.step(recorder)
    assert {row.where for row in rows} == {"device"}
    assert not {"aten::view", "aten::t", "aten::transpose.int", "aten::detach"} & {row.name for row in rows}
    assert {row.line for row in rows if row.name == "aten::embedding_dense_backward"} == {
        f"backward of {line(tiny, 'x = self.tokens(ids)')}"
    }
    assert all(row.seconds is not None for row in rows)
    assert recorder.unobservable["fallbacks"].startswith("everything runs on the CPU")


def test_names_from_public_tracking_are_names_and_not_numbers() -> None:
    """The three functions that AWS's package offers are those of the embedded device's module."""
    training = Training(leaving, NEURON)
    recorder = paths.PublicTracking(NEURON, torch.neuron)  # type: ignore[arg-type]
    training.step()
    with recorder.step() as rows:
        training.step(recorder)
    found = of(rows, "fallback")
    assert {(row.name, row.phase) for row in found} == set(LEFT)
    assert {row.count for row in found} == {None}
    assert {row.seconds for row in found} == {None}
    assert "at most 2 calls" in next(row.detail for row in found if row.phase == "optimizer")
    # What fell back every time was no call on the device.
    (squash,) = of(rows, "execute", name="leaving::squash", phase="forward")
    assert (squash.where, squash.detail) == ("host", "ran on the CPU")
    assert {row.where for row in of(rows, "execute", name="aten::linear")} == {"device"}
    assert [row.nbytes for row in of(rows, "transfer", phase="logging")] == [4]
    assert "fallbacks" not in recorder.unobservable
    assert "compilations" in recorder.unobservable
    with recorder.attributed(training.roots) as attributed:
        training.step(recorder)
    linear = of(attributed, "execute", name="aten::linear")
    assert {row.line for row in linear} == {line(leaving, "line of product")}
    assert all(row.seconds is not None for row in linear)
    with recorder.step() as again:
        training.step(recorder)
    assert again == rows  # nothing of one step is left in the next


ADAPTIVE = """
import json, sys
from tests.readiness import leaving
from tests.readiness.stepping import Training
from shakedown.readiness import targets
from shakedown.readiness.observe import paths
target = targets.get("neuron")
training, recorder = Training(leaving, target), paths.recorder(target)
for _ in range(4):
    training.step(recorder)
with recorder.step() as counted:
    training.step(recorder)
with recorder.attributed(training.roots) as attributed:
    training.step(recorder)
print(json.dumps([[row.model_dump() for row in rows] for rows in (counted, attributed)]))
"""


def test_recorded_operators_have_the_line_that_recorded_them() -> None:
    environment = os.environ | NEURON.environment("adaptive")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ADAPTIVE],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    counted, attributed = ([PathRow.model_validate(row) for row in rows] for rows in json.loads(done.stdout))
    assert sum(row.count or 0 for row in of(counted, "flush")) > 0  # it was adaptive
    ran, seen = (
        {key: count for key, count in calls(rows).items() if key[0] in ("execute", "fallback")}
        for rows in (counted, attributed)
    )
    assert ran == seen
    (product,) = of(attributed, "execute", name="aten::linear")
    assert product.line == line(leaving, "line of product")
    assert product.seconds is None  # it was recorded there and ran later, in a flush
    flushed = [row for row in of(attributed, "flush") if row.detail.startswith("run")]
    assert sum(row.seconds or 0 for row in flushed) > 0
    assert {(row.name, row.phase): row.line for row in of(attributed, "fallback")} == {
        key: line(leaving, words) for key, (_, words) in LEFT.items()
    }


def test_an_operator_that_is_new_while_it_is_watched_is_counted(tmp_path: Path) -> None:
    """Its counter is made under the watch, and on the thread that runs it: a mistake there would end the process."""
    import shakedown.neuron as sn

    device = targets.open_device(NEURON)
    name = "a counter that nobody has made before"
    seen: list[str] = []
    with sn.events.watch(lambda tally: seen.append(tally.name)):
        made = sn.events.tally(name)
        made.runs += 1
    made.runs += 1
    assert seen == [name]
    assert made.runs == 2
    with paths.recorder(NEURON).attributed([tmp_path]) as rows:
        torch.special.log_ndtr(torch.ones(3, device=device))
    assert "aten::special_log_ndtr" in {row.name for row in rows if row.kind == "execute"}
