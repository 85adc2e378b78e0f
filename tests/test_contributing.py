"""The recipe in CONTRIBUTING.md for adding an operator is run as it stands, in a process where nothing else lowers it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_recipe_adds_an_operator(tmp_path):
    recipe, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (tmp_path / "recipe.py").write_text(
        f"""
import torch
from shakedown.neuron import events
from shakedown.neuron.lowering import load, registry

load()
del registry._lowerings[torch.ops.aten.hypot.default]
{recipe}
torch.manual_seed(0)
a, b = torch.randn(4, 3), torch.randn(3)
device = [t.to("neuron").requires_grad_() for t in (a, b)]
host = [t.requires_grad_() for t in (a, b)]
for inputs in (device, host):
    torch.hypot(*inputs).sum().backward()
for d, h in zip(device, host):
    torch.testing.assert_close(d.grad.cpu(), h.grad)
half = a.detach().bfloat16()
assert torch.equal(torch.hypot(half.to("neuron"), half.to("neuron")).cpu(), torch.hypot(half, half))
target = a.detach().to("neuron")
target.hypot_(b.detach().to("neuron"))
torch.testing.assert_close(target.cpu(), torch.hypot(a, b).detach())
assert "aten::hypot" in events.names("execute") and not events.names("fallback")
print("added")
"""
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "recipe.py"], capture_output=True, text=True, cwd=tmp_path, timeout=1500
    )
    assert run.stdout.strip() == "added", run.stderr


def test_the_readme_examples_run(tmp_path):
    """In the order of the page, each with what those before it have made."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text("".join([*examples, "print(serve(x[:5]).shape)\n"]))
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "example.py"], capture_output=True, text=True, cwd=tmp_path, timeout=1500
    )
    assert run.returncode == 0, run.stderr
    executed, fallbacks, *_, served = run.stdout.splitlines()
    assert "aten::linear" in executed
    assert "aten::gelu" in executed
    assert fallbacks == "[]"
    assert served == "torch.Size([5, 4])"
