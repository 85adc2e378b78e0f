"""The CPU client with asynchronous dispatch, as a stand-in for an accelerator's: completion, times, late errors, blocking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

TIMES = """
    import json, time
    import torch

    neuron, said = torch.neuron, {}
    x = (torch.rand(800, 800) / 400).to("neuron")
    (x @ x), x + 1
    neuron.synchronize()
    start, end = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True)
    start.record()
    begin = time.perf_counter()
    y = x
    for _ in range(8):
        y = x @ y
    end.record()
    asked = time.perf_counter() - begin
    said["early"] = [end.query(), neuron.query()]
    try:
        said["elapsed early"] = start.elapsed_time(end) > 0
    except RuntimeError as error:
        said["elapsed early"] = str(error)
    end.synchronize()
    took = time.perf_counter() - begin
    elapsed = start.elapsed_time(end) / 1e3
    time.sleep(0.05)
    assert start.elapsed_time(end) / 1e3 == elapsed
    said["late"] = [end.query(), neuron.query()]
    said["asked in no time"] = asked < took / 2
    said["elapsed"] = took / 2 < elapsed <= took + 0.01
"""

ERRORS = """
    import pytest
    from tests.neuron.failing import lower_by, on_the_way

    patch, sick = pytest.MonkeyPatch(), [False]
    lower_by(patch, on_the_way(sick))
    torch.atan2(x[0] + 0, x[1] + 0) * 2
    neuron.synchronize()
    sick[0] = True
    busy = x
    for _ in range(30):
        busy = x @ busy
    lost = torch.atan2(busy[0] + 0, x[1] + 0)  # its input is not there yet, so it cannot have failed yet
    worse = torch.atan2(lost, x[1] + 0)
    fine = busy + 1
    calls = neuron.synchronize, neuron.synchronize, lost.cpu, (lost * 2).cpu, worse.cpu, fine.cpu
    said["errors"] = []
    for call in calls:
        try:
            call()
            said["errors"].append("fine")
        except RuntimeError as error:
            said["errors"].append(str(error))
    sick[0] = False
    again = torch.atan2(fine[0] + 0, x[1] + 0).cpu()
    said["usable"] = torch.allclose(again, torch.atan2(fine[0].cpu(), x[1].cpu()))
"""


def run(script: str, **variables: str) -> dict[str, Any]:
    """What `script` has said, in a process whose client is asynchronous."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script) + "\nprint(json.dumps(said))"],
        env=os.environ | {"TORCH_NEURONX_ENABLE_ASYNC_NRT": "1"} | variables,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


AFTER_JAX = """
    import jax

    jax.numpy.ones(2).block_until_ready()
    import json
    import torch

    x = (torch.rand(800, 800) / 400).to("neuron")
    x @ x
    torch.neuron.synchronize()
    for _ in range(8):
        y = x @ x
    said = {"early": torch.neuron.query()}
    torch.neuron.synchronize()
    said["late"] = torch.neuron.query()
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    return run(TIMES + ERRORS)


def test_events_and_streams_know_when_work_is_done(said: dict[str, Any]) -> None:
    assert said["asked in no time"]
    assert said["early"] == [False, False]
    assert said["elapsed early"] == "Both events must be completed before calculating elapsed time."
    assert said["late"] == [True, True]
    assert said["elapsed"]


def test_an_error_is_raised_by_the_next_synchronisation_once_and_by_whoever_reads(said: dict[str, Any]) -> None:
    first, second, *lost, fine = said["errors"]
    assert first.startswith("EXECUTION FAILED: ")
    assert "with NEURON_LAUNCH_BLOCKING=1 the call of the operator itself raises" in first
    assert second == fine == "fine"
    assert all("the core is gone" in text for text in lost)
    assert said["usable"]


def test_blocking_means_that_a_call_returns_with_its_work_done() -> None:
    said = run(TIMES, NEURON_LAUNCH_BLOCKING="1")
    assert said["early"] == [True, True]
    assert said["elapsed early"] is True
    assert not said["asked in no time"]
    assert said["elapsed"]


def test_a_client_that_others_made_is_waited_for_as_it_was_made() -> None:
    assert run(AFTER_JAX, TORCH_NEURONX_ENABLE_ASYNC_NRT="0") == {"early": False, "late": True}
