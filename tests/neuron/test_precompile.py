"""The precompile cache: a new process traces nothing, what fails a check is not unpickled, what cannot be packed runs."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch._dynamo import package

from shakedown.neuron import events, log
from shakedown.neuron.cache.store import CacheWarning
from shakedown.neuron.modes.compile import precompile
from shakedown.neuron.modes.compile.backend import neuron

MODEL = """
import torch
from helper import scaled

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 5)
        self.drop = torch.nn.Dropout(0.0)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        return scaled(self.drop(y)).square().mean()
"""
HELPER = "import torch\n\n\ndef scaled(x):\n    return x * {factor}\n"


def write(folder: Path, factor: float) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(MODEL)
    (folder / "helper.py").write_text(HELPER.format(factor=factor))
    return folder


def process(folder: Path, cache: Path, *more: str) -> dict[str, Any]:
    script = Path(__file__).with_name("precompile_process.py")
    environment = {**os.environ, "SHAKEDOWN_CACHE_DIR": str(cache), "SHAKEDOWN_PRECOMPILE": "1"}
    ended = subprocess.run(
        [sys.executable, str(script), str(folder), *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A process with empty caches, and what it left: a cache, and artefacts in a file."""
    root = tmp_path_factory.mktemp("precompile")
    source = write(root / "source", 2.0)
    said = process(source, root / "cache", "--save", str(root / "artefacts"), "--unnameable")
    return SimpleNamespace(root=root, source=source, said=said, cache=root / "cache", artefacts=root / "artefacts")


def test_the_first_process_traces_and_keeps(first):
    assert first.said["frames"] > 0
    assert first.said["aot"] == 6  # training, evaluation, and four functions that cannot be packed
    assert first.said["compiled"] > 0
    assert "miss Net.forward" in first.said["precompile"]
    assert {"precompile", "aot_autograd", "neuron_neff"} <= set(first.said["saved"])


def test_what_cannot_be_packed_runs_as_without_the_cache(first):
    assert first.said["unnameable"] == [3.0, 3.0, 5.0, -1.0]
    assert any(line.startswith("left out") for line in first.said["precompile"])
    assert not first.said["warnings"]


def test_a_function_that_a_graph_was_made_for_is_not_taken_for_another(first):
    assert first.said["activated"] == [0.0, 6.0]
    assert "left out it depends on the identity of L['self'].activation" in first.said["precompile"]


def test_a_new_process_traces_nothing_and_a_new_shape_is_traced(first):
    again = process(first.source, first.cache, "--other-shape")
    seen, others = again["results"][:3], again["results"][3:]
    assert seen == first.said["results"]
    assert len(others) == 3
    assert "hit Net.forward" in again["precompile"]
    assert again["aot"] == 2  # of the other shape: training and evaluation
    assert again["graphs"] == sorted(
        [*(g for g in first.said["graphs"] if "inference" not in g), *new_names(first.said["graphs"])]
    )


def new_names(taken: list[str]) -> list[str]:
    """Names that graphs of a process get after those it found in the cache, whose numbers are taken."""
    numbers = {int(name.rsplit("_", 2)[-2]) for name in taken if "inference" not in name}
    following = max(numbers) + 1
    return [f"graph::model_default_{n}_{part}" for n in (following, following + 1) for part in ("backward", "forward")]


def test_another_machine_starts_warm_from_artefacts(first):
    there = process(first.source, first.root / "elsewhere", "--load", str(first.artefacts))
    assert there["loaded"] == sorted(first.said["saved"])
    assert there["results"] == first.said["results"]
    assert (there["frames"], there["aot"], there["compiled"]) == (0, 0, 0)
    assert there["found"] > 0


def test_a_changed_source_file_is_a_miss_with_one_warning(first):
    changed = process(write(first.root / "source", 3.0), first.cache)
    write(first.root / "source", 2.0)
    assert changed["aot"] == 2
    assert changed["results"][0][0] == pytest.approx(first.said["results"][0][0] * 9 / 4)
    assert len(changed["warnings"]) == 1
    assert "the source of helper has changed" in changed["warnings"][0]


# --- which entries are read: without processes, by the store's own calls ------------------------------------------------------


class Bomb:
    """Unpickling it leaves a trace."""

    went_off: ClassVar[list[str]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Bomb.went_off.append, ("unpickled",)


def function(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.fixture
def frames(tmp_path, monkeypatch):
    """Dynamo's store as it is while `function` is wrapped for our backend, with caches of its own."""
    monkeypatch.setenv("SHAKEDOWN_CACHE_DIR", str(tmp_path))
    Bomb.went_off.clear()
    log.forget()
    events.clear()
    with precompile.wrapping(SimpleNamespace(callback=neuron, fullgraph=False)):
        yield precompile.Frames(str(tmp_path / "pytorch"))


def keep(content: bytes, **other: str) -> Path:
    """An entry for `function`, made by `other` versions; its file."""
    ident = precompile._id_of(function)
    parts = {**precompile.surroundings(), **other}
    store = precompile.store()
    assert store is not None
    assert ident is not None
    key = precompile._frame_key(ident, parts)
    assert store.put(key, precompile._head(parts) + content, kind="frame", name=ident)
    return store.path_of(key.digest)


def test_a_good_entry_is_unpickled(frames):
    keep(pickle.dumps(package.PrecompileCacheEntry(dynamo="frame", backends={})))
    assert frames.load(function).dynamo == "frame"
    assert [r["name"] for r in events.snapshot() if r["kind"] == "precompile"] == ["hit"]


def test_the_directory_is_the_users_alone(frames, tmp_path):
    path = keep(b"")
    for folder in (path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["flipped", "truncated", "writable by others", "a link"])
def test_an_entry_that_fails_a_check_is_not_unpickled(frames, damage, tmp_path):
    path = keep(pickle.dumps(Bomb()))
    data = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    elif damage == "truncated":
        path.write_bytes(data[:-7])
    elif damage == "writable by others":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(CacheWarning):
        assert frames.load(function) is None
    assert Bomb.went_off == []


@pytest.mark.parametrize("part", ["versions", "sources", "profile"])
def test_what_other_versions_made_is_a_miss_with_one_warning(frames, part):
    keep(pickle.dumps(Bomb()), **{part: "torch=1.0"})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert frames.load(function) is None
        assert frames.load(function) is None
    assert [w.category for w in warned] == [CacheWarning]
    assert "function is traced again" in str(warned[0].message)
    assert Bomb.went_off == []


def test_other_options_and_other_code_have_entries_of_their_own(frames):
    def other(x):
        return x + 2

    pair = (lambda x: x * 2), (lambda x: x * 3)  # the same name, line and instructions
    assert precompile._id_of(pair[0]) != precompile._id_of(pair[1])
    mine = precompile._id_of(function)
    assert mine == precompile._id_of(function)
    assert precompile._id_of(other) != mine
    asked = SimpleNamespace(compiler_fn=neuron, kwargs={"options": {"fallback_execution": False}})
    with precompile.wrapping(SimpleNamespace(callback=asked, fullgraph=False)):
        assert precompile._id_of(function) not in (mine, None)
    with precompile.wrapping(SimpleNamespace(callback=neuron, fullgraph=True)):
        assert precompile._id_of(function) not in (mine, None)
    with precompile.wrapping(SimpleNamespace(callback=lambda *_: None)):
        assert precompile._id_of(function) is None  # another backend's: PyTorch's own business


def test_a_graph_of_other_versions_is_refused_where_pytorch_unpickles_it(monkeypatch):
    code = precompile.GraphCode(print, {"name": "model_default_7_forward"}, b"packed")
    content = pickle.dumps(code)
    assert isinstance(pickle.loads(content), precompile.GraphCode)
    monkeypatch.setattr(precompile, "surroundings", lambda: {"versions": "torch=1.0"})
    with pytest.raises(precompile.NotHere, match="versions"):
        pickle.loads(content)


def test_off_by_default():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        precompile.switch_on()
    assert not precompile.is_on()
