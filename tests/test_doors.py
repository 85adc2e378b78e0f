"""Each outside thing has one door: the environment, the PJRT client, torch's patches, and a judge without torch or JAX."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "shakedown"
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Names of the modules that `path` imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def rooms(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", FILES, ids=rooms)
def test_only_the_door_touches_what_is_outside(path):
    here = rooms(path)
    tree = ast.parse(path.read_text())
    attributes = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    roots = {name.split(".")[0] for name in imports(path)}

    if here.startswith("neuron/") and here not in {"neuron/config.py", "neuron/setting.py"}:
        assert not {"os.environ", "os.getenv"} & attributes, "read settings through neuron/config.py"
    if here != "neuron/runtime.py":
        assert not {a for a in attributes if a.startswith(("jax.devices", "jax.config", "jax.jit", "jax.device_put"))}
    if here.startswith("readiness/judge/"):
        assert not roots & {"torch", "jax", "shakedown"}, "judgement needs neither torch nor JAX"
    if here.startswith("readiness/"):
        assert "jax" not in roots
        if here != "readiness/observe/paths.py":
            assert not {i for i in imports(path) if i.startswith("shakedown.neuron")}, "observe/paths.py is the door"
    if here in {
        "neuron/autoload.py",
        "neuron/cache/__init__.py",
        "neuron/device.py",
        "neuron/device_properties.py",
        "neuron/streams.py",
        "neuron/torch_gaps_streams.py",
        "neuron/__init__.py",
        "neuron/events.py",
        "neuron/config.py",
        "neuron/setting.py",
        "__init__.py",
    }:
        top = {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
        assert not top & {"jax", "numpy"}, "imported by `import torch`: keep it light"


def test_files_can_be_read_in_one_sitting():
    long = {rooms(p): n for p in FILES if (n := len(p.read_text().splitlines())) > 500}
    assert not long
