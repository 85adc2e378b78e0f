"""The command that makes the tables of docs/clients.md, the page itself, and the example."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from shakedown.readiness.workload import load, resolve

from . import packages
from .__main__ import cases, main, name_of
from .families import DECODERS
from .table import BEGIN, END, problem_of, tables

ROOT = Path(__file__).parents[2]


def test_a_row_is_run_once_and_put_into_the_page(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    request = ["--only", "gpt2-eager-sdpa-float32", "--out", str(tmp_path / "rows"), "--write", str(page)]
    assert main(request) == 0
    (row,) = (json.loads(f.read_text()) for f in (tmp_path / "rows").iterdir())
    assert (row["model"], row["mode"], row["fallbacks"], problem_of(row)) == ("gpt2", "eager", [], "")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert f"| gpt2 | eager | sdpa | float32 | padded | - | - | 0 | {row['error']:.2f} |" in text
    capsys.readouterr()
    assert main(request) == 0
    assert capsys.readouterr().err == ""  # nothing ran


def test_an_unknown_row_is_a_bad_request(tmp_path, capsys):
    assert main(["--only", "lama", "--out", str(tmp_path)]) == 2
    assert "no row's name begins with 'lama'" in capsys.readouterr().err


def test_a_wrong_row_is_named_and_fails_the_command(tmp_path):
    case = next(c for c in cases() if not c.padded)  # whose name begins no other
    row = {"name": name_of(case), "model": "llama", "mode": "compile", "error": 3.0, "worst": "logits", "fallbacks": []}
    (tmp_path / f"{name_of(case)}.json").write_text(json.dumps(row))
    assert main(["--only", name_of(case), "--out", str(tmp_path)]) == 1
    assert problem_of(row) == "logits is 3.00 times as far off as it may be"
    right = {**row, "error": 0.5, "programs": 2, "breaks": 0, "last_step_compiles": 0}
    assert problem_of(right) == ""
    assert problem_of({**right, "fallbacks": ["aten::x"]}) == "falls back: aten::x"
    assert problem_of({**right, "programs": 3}) == "3 graphs, 0 breaks"
    assert problem_of({**right, "last_step_compiles": 1}) == "still compiles in the last step"


def test_the_page_shows_every_model_in_every_mode_and_nothing_wrong():
    _, _, rest = (ROOT / "docs" / "clients.md").read_text().partition(BEGIN)
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in rest.partition(END)[0].splitlines() if "|" in line]
    training, decoding = ([c for c in cells if len(c) == n and c[0] not in ("model", "---")] for n in (10, 4))
    assert {(c[0], c[1]) for c in training} == {(c.family.name, c.mode) for c in cases()}
    assert {c[0] for c in decoding} == {f.name for f in DECODERS}
    for _, mode, _, _, _, graphs, breaks, fallbacks, error, _ in training:
        assert (graphs, breaks, fallbacks) == (*(("2", "0") if mode == "compile" else ("-", "-")), "0")
        assert float(error) <= 1
    assert all(c[1:] == ["2 programs, equal", "2 programs, equal", "0"] for c in decoding)


def test_the_page_shows_every_package_and_nothing_wrong():
    _, _, rest = (ROOT / "docs" / "clients.md").read_text().partition(BEGIN)
    lines = [line.split("|")[1:-1] for line in rest.partition(END)[0].splitlines() if line.count("|") == 9]
    rows = [[cell.strip() for cell in line] for line in lines[2:]]
    assert {row[0] for row in rows} == set(packages.PREFIXES)
    for package, what, mode, _, graphs, fallbacks, error, _ in rows:
        assert float(error) <= 1, what
        assert (graphs != "-") == (mode == "compile"), what
        assert fallbacks == "0" or package == "torchvision", what


def test_tables_say_what_went_wrong():
    row = {"model": "m", "mode": "compile", "attention": "sdpa", "experts": None, "dtype": "float32", "mask": "none"}
    text = tables([{**row, "checkpointing": False, "problem": "LoweringError: a | b"}])
    assert "| m | compile | sdpa | float32 | none | LoweringError: a / b |" in text


def test_the_example_is_a_workload():
    source = load(resolve(str(ROOT / "examples" / "llama.py")))
    torch.manual_seed(0)
    model, batch = source.build_model(), source.make_batch(2, 16)
    scores, loss = source.forward(model, batch)
    assert scores.shape == (2, 16, 256)
    loss.backward()
    source.build_optimizer(model.parameters()).step()
    assert source.forward(model, batch)[1] < loss
