"""Custom kernels on disk and in the trial: what a digest says, what a new process need not trace, what the scan finds."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from shakedown.neuron import config
from shakedown.neuron.kernels.identity import identity_of
from shakedown.readiness import scan, workload

from .test_kernels import EXAMPLES, attends, norms

FACTOR = 2.0
SECRET = object()


def helped(x):
    return x * FACTOR


def test_the_identity_of_a_kernel_is_what_it_computes(monkeypatch):
    def make(power):
        def kernel(x, *, eps=1e-6):
            return helped(x) ** power + eps

        return kernel

    first = identity_of(make(2))
    assert first is not None
    assert identity_of(make(2)) == first != identity_of(make(3))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert identity_of(make(2)) not in (None, first)
    monkeypatch.undo()
    assert identity_of(make(2)) == first
    monkeypatch.setitem(globals(), "helped", lambda x: x + FACTOR)
    assert identity_of(make(2)) not in (None, first)
    assert identity_of(partial(make(2), eps=1)) != identity_of(partial(make(2), eps=1.0))
    assert identity_of(partial(make(2), eps=np.vectorize(helped))) is None  # of the library, with the user's inside
    inits = [identity_of(partial(make(2), eps=jax.nn.initializers.constant(n))) for n in (1, 2)]
    assert inits == [None, None] or inits[0] != inits[1]
    assert identity_of(norms.rms_norm) is not None
    assert identity_of(attends.attention) is not None


@pytest.mark.parametrize(
    "kernel",
    [
        lambda x: x * id(SECRET),
        lambda x: x if SECRET else -x,
        lambda x: x + len(open.__doc__),
        lambda x: x * np.random.rand(),
        lambda x: x * json.loads("3"),
    ],
    ids=["address", "object", "file", "random", "module"],
)
def test_what_cannot_be_written_down_has_no_identity(kernel):
    assert identity_of(kernel) is None


SCRIPT = """
import json, sys
import torch, jax.numpy as jnp
from torch import Tensor
from torch_neuronx import nki_op, wrap_nki

found = []
for factor in map(float, sys.argv[1:]):
    def kernel(x, y):
        return jnp.tanh(x @ y) * factor

    kernel = wrap_nki(kernel)

    @nki_op(f"kept::op{int(factor)}")
    def op(x: Tensor, y: Tensor) -> Tensor:
        return kernel(x, y).sum(0)

    x = torch.eye(3, device="neuron")
    graph = torch.compile(lambda x: kernel(x, x).sum(0) + 1, backend="neuron", fullgraph=True)
    found.append([op(x, x).tolist(), graph(x).tolist()])
print(json.dumps([found, torch.neuron.cache.stats()]))
"""


def test_a_new_process_traces_no_kernel_that_was_traced_before_but_an_edited_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SHAKEDOWN_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)

    def run(*factors: float) -> Any:
        command = [sys.executable, str(file), *map(str, factors)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    package = Path(config.__file__).parent
    before = max(path.stat().st_mtime for path in package.rglob("*.py"))
    _, cold = run(2.0)
    assert cold["compiled"] >= 2
    assert cold["traces_saved"] == 0
    (same, edited), warm = run(2.0, 3.0)
    if max(path.stat().st_mtime for path in package.rglob("*.py")) > before:
        pytest.skip("the device's own source, which is a part of every key, was edited meanwhile")
    assert warm["compiled"] == 2
    assert warm["traces_saved"] >= 2
    for (eager, graph), factor in ((same, 2), (edited, 3)):
        expected = factor * np.tanh(np.eye(3)).sum(0)
        assert eager == pytest.approx(expected, rel=1e-6)
        assert graph == pytest.approx(expected + 1, rel=1e-6)


# --- the trial ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["torch_neuronx", "torch.neuron"])
def test_the_scan_finds_operators_and_kernels(tmp_path, place):
    source = (EXAMPLES / "kernels_rms_norm.py").read_text()
    file = tmp_path / "mine.py"
    file.write_text(source.replace("from torch_neuronx import", f"from {place} import"))
    found = scan.scan(workload.resolve(str(file)))
    lines = [n for n, line in enumerate(source.splitlines(), 1) if "@nki_op(" in line or "wrap_nki(" in line]
    assert [(h.rule, h.line) for h in found.hits] == [("nki-kernel", n) for n in lines]
    assert {"examples::rms_norm", "examples::rms_norm_backward"} <= {h.kernel for h in found.hits}
