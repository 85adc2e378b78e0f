"""The requirements file: mistakes with their lines, contradictions, ``shakedown init``, and locking."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import requirements, workload
from shakedown.readiness.errors import BadInput, EvidenceError
from shakedown.readiness.requirements.positions import lines, nearest
from shakedown.readiness.requirements.template import defaults, template

from .support import TINY

run = CliRunner()


def mistakes(text: str) -> list[str]:
    with pytest.raises(BadInput) as raised:
        requirements.parse(text, "r.toml")
    return str(raised.value).splitlines()


CASES_OF_TWO = "[[cases]]\nsize = 1\nlength = 8\n\n[[cases]]\n# the long one\nsize = 2\nlength = 16\n"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("[numerics]\n\nstepz = 2\n", "r.toml:3: numerics.stepz: unknown key; did you mean steps"),
        (CASES_OF_TWO + "lenght = 9\n", "r.toml:9: cases[1].lenght: unknown key; did you mean length"),
        ("[workloads]\n", "r.toml:1: workloads: unknown key; did you mean workload"),
        (
            "[numerics.criteria.float32]\nabsolute = 1e-5\nrelative = 1e-4\ndecide = true\n",
            "r.toml:4: numerics.criteria.float32.decide: unknown key; did you mean decides",
        ),
        ("[timing]\nsteps = 0\n", "r.toml:2: timing.steps: 0 is not allowed; it must be at least 1"),
        ("[timing]\nsteps = '30'\n", "r.toml:2: timing.steps: '30' is not allowed; write a whole number"),
        ("[timing]\nsteps = true\n", "r.toml:2: timing.steps: True is not allowed; write a whole number"),
        (
            '[workload]\nboundary = "loss"\n',
            "r.toml:2: workload.boundary: 'loss' is not allowed; choose 'forward and loss' or 'step'",
        ),
        ('[workload]\nfloat64 = "yes"\n', "r.toml:2: workload.float64: 'yes' is not allowed; write true or false"),
        ('[[kernels]]\nname = "k"\n', "r.toml:1: kernels[0].owner: this key is missing"),
        (
            "cases = [\n  { size = 1, length = 2 },\n  { size = 1 },\n]\n",
            "r.toml:3: cases[1].length: this key is missing",
        ),
        ("[numerics\n", "r.toml:1: not TOML: Expected ']' at the end of a table declaration (at line 1, column 10)"),
    ],
)
def test_a_mistake_is_told_with_line_and_key(text: str, first: str) -> None:
    assert mistakes(text) == [first]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    text = '[timing]\nsteps = 0\nspeed = 1\n[workload]\nmodes = [\n  "eager",\n  "fast",\n]\n[run]\nthreads = -1\n'
    assert mistakes(text) == [
        "r.toml:2: timing.steps: 0 is not allowed; it must be at least 1",
        "r.toml:3: timing.speed: unknown key; known here: " + ", ".join(requirements.Timing.model_fields),
        "r.toml:7: workload.modes[1]: mode 'fast' is unknown; choose among eager, compiled, adaptive",
        "r.toml:10: run.threads: -1 is not allowed; it must be at least 0",
    ]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (
            '[workload]\ndtypes = ["bf16"]\n',
            "r.toml:2: workload.dtypes[0]: dtype 'bf16' is unknown; did you mean bfloat16",
        ),
        ("[workload]\nmodes = []\n", "r.toml:2: workload.modes: no mode is left to try"),
        (
            '[workload]\nmodes = ["eager"]\nexpected_programs = 2\n',
            "r.toml:3: workload.expected_programs: it is about torch.compile",
        ),
        (
            CASES_OF_TWO + '[variations]\nmaximum = "2x8"\n',
            "r.toml:5: cases[1]: 2x16 is larger than variations.maximum = 2x8",
        ),
        ('[variations]\nmaximum = "big"\n', "r.toml:2: variations.maximum: 'big' is not BATCHxLENGTH"),
        (CASES_OF_TWO + "padded_to = 8\n", "r.toml:9: cases[1].padded_to: a length of 16 cannot be padded to 8"),
        (CASES_OF_TWO + "share = 1.0\n", "r.toml:1: cases[0]: it has no share of the traffic"),
        (CASES_OF_TWO + "share = 0.5\n", "r.toml:1: cases: the shares of the cases add up to 0.50"),
        ("[task]\nlimit = 0.1\n", "r.toml:2: task.limit: a limit without task.function"),
        (
            '[[fallbacks]]\noperator = "multinomial"\ncalls = 1\nreason = "small"\n',
            "r.toml:2: fallbacks[0].operator: 'multinomial' is no full name; write for example aten::multinomial",
        ),
        (
            '[[fallbacks]]\noperator = "aten::take"\nphase = "forwards"\ncalls = 1\nreason = "small"\n',
            "r.toml:3: fallbacks[0].phase: phase 'forwards' is unknown; did you mean forward",
        ),
        (
            "[numerics.criteria.float64]\nabsolute = 0.0\nrelative = 1e-3\n",
            "r.toml:1: numerics.criteria.float64: float64 has no",
        ),
        (
            '[numerics.criteria."float32/gradients"]\nabsolute = 0.0\nrelative = 1e-3\n',
            "r.toml:1: numerics.criteria.\"float32/gradients\": class of tensor 'gradients' is unknown; did you mean gradient",
        ),
        ("[timing]\nwarn_spread = 0.5\n", "r.toml:2: timing.warn_spread: timing.warn_spread would warn above"),
        (
            "[budgets]\ncold_start = 5.0\nwarm_start = 9.0\n",
            "r.toml:3: budgets.warm_start: a warm start may take longer",
        ),
    ],
)
def test_contradictions_are_errors(text: str, first: str) -> None:
    assert [line for line in mistakes(text) if line.startswith(first)]


def test_the_command_says_it_and_measures_nothing(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("[numerics]\nstepz = 2\n")
    out = tmp_path / "out"
    done = run.invoke(cli.app, ["run", str(TINY), "--target", "cpu", "--requirements", str(file), "--out", str(out)])
    assert done.exit_code == 2
    assert f"{file}:2: numerics.stepz: unknown key; did you mean steps" in done.stderr
    assert not out.exists()


# --- lines ----------------------------------------------------------------------------------------------------------------

_AWKWARD = '''# a comment = 1
top = """
[not.a.table]
key = "no" # no comment
"""
"quoted key".'inner' = 'lite"ral'  # = [
list = [ # [
  "a]", 'b#', """c
""", [1, 2],
  { x = 1, y = [3] },
]
[a.b]
when = 2026-11-30T01:02:03
  [[a.list]]
  name = "one"
  [a.list.sub]
  deep.er = 1
  [[a.list]]
  name = """two"""""
  [[a.list.sub2]]
  z = -1.5e3
[ "a b" . c ]
last = { p.q = 1 }
'''


def leaves(value: object, place: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], object]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {place: value} if place else {}
    for key, inner in pairs:
        found |= leaves(inner, (*place, key))
    return found


def test_every_key_and_element_has_its_line() -> None:
    found = lines(_AWKWARD)
    assert set(found) == set(leaves(tomllib.loads(_AWKWARD)))
    assert [found["list", 0], found["list", 2], found["list", 3], found["list", 4, "y", 0]] == [8, 8, 9, 10]
    assert found["a", "list", 0, "sub", "deep", "er"] == 17
    assert found["a", "list", 1] == 18
    assert found["a", "list", 1, "sub2", 0, "z"] == 21
    assert found["a b", "c", "last", "p", "q"] == 23
    assert nearest(found, ("a", "list", 1, "nonesuch", "deeper")) == 18
    assert nearest(found, ("nonesuch",)) == 1


_VALUES = st.recursive(
    st.integers() | st.booleans() | st.text(st.characters(blacklist_categories=("Cs", "Cc"))),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=6), _VALUES, max_size=5))
def test_lines_agree_with_the_reader_of_values(table: dict[str, object]) -> None:
    text = "".join(
        f"{json.dumps(k, ensure_ascii=False)} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in table.items()
    )
    text = text.replace("\x7f", "")  # JSON leaves it, TOML forbids it
    found = lines(text)
    assert set(found) == set(leaves(tomllib.loads(text)))
    assert [found[key,] for key in tomllib.loads(text)] == list(range(1, len(table) + 1))


# --- shakedown init -------------------------------------------------------------------------------------------------------


def init(*arguments: str):  # type: ignore[no-untyped-def]
    return run.invoke(cli.app, ["init", *arguments])


@pytest.mark.parametrize("name", ["decoder", "cnn", str(TINY)])
def test_the_written_file_loads_as_the_workloads_defaults(name: str, tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    done = init(name, "--out", str(file))
    assert done.exit_code == 0, done.output
    loaded = workload.load(workload.resolve(name))
    found = requirements.load(file)
    assert found == defaults(loaded)
    assert tuple(found.workload.dtypes) == loaded.dtypes
    assert tuple(workload.Case(case.size, case.length) for case in found.cases) == loaded.cases
    assert all(str(value) in file.read_text() for value in loaded.dimensions.values())


def test_every_key_stands_under_its_reason_and_examples_can_be_used(tmp_path: Path) -> None:
    text = template(workload.load(workload.resolve("decoder")), "shakedown init decoder")
    for path, reason in requirements.reasons(requirements.Requirements).items():
        assert reason.split()[-1] in text, path
        key = path.rpartition(".")[2]
        assert re.search(rf"(?m)^#?\s*(\[+)?({re.escape(path)}|{re.escape(key)})(\]| =|\.)", text), path
    uncommented = requirements.parse(re.sub(r"(?m)^#(?! )", "", text), "r.toml")
    assert uncommented.fallbacks
    assert uncommented.kernels
    for model in (uncommented.fallbacks[0], uncommented.kernels[0]):
        assert isinstance(model, BaseModel)
        assert model.model_fields_set == set(type(model).model_fields)


def test_init_overwrites_nothing_by_accident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert init("decoder").exit_code == 0
    file = tmp_path / "decoder.requirements.toml"
    file.write_text("# my numbers\n")
    done = init("decoder")
    assert done.exit_code == 2
    assert "exists and is left as it is (it begins with: my numbers)" in done.stderr
    assert file.read_text() == "# my numbers\n"
    done = init("decoder", "--force", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["file"] == "decoder.requirements.toml"
    assert requirements.load(file).workload.dtypes == ["float32", "bfloat16"]
    mine = tmp_path / "mine.py"
    mine.write_text(TINY.read_text() + "\nprint('hello')\n")
    kept = mine.read_text()
    for out, words in (
        (mine, "is the workload itself"),
        (tmp_path, "is a directory"),
        (tmp_path / "no" / "r.toml", "no directory"),
    ):
        done = init(str(mine), "--force", "--out", str(out))
        assert done.exit_code == 2
        assert words in done.stderr
    assert mine.read_text() == kept
    done = init(str(mine), "--json")
    assert json.loads(done.stdout)["workload"] == "mine"  # what the workload prints is not in it
    (tmp_path / "mine.requirements.toml").unlink()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["decoder.requirements.toml", "mine.py"]


def test_a_file_that_is_called_like_a_built_in_workload_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decoder.py").write_text(TINY.read_text())
    done = init("decoder", "--json")
    assert json.loads(done.stdout)["note"] == "decoder is the built-in workload; for the file here say decoder.py"
    built_in = defaults(workload.load(workload.resolve("decoder")))
    assert requirements.load(tmp_path / "decoder.requirements.toml") == built_in
    assert built_in != defaults(workload.load(workload.resolve("decoder.py")))
    done = init("decoder.py")
    assert done.exit_code == 2
    assert "exists" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [("raise OSError('tape jammed')", "cannot be imported: OSError: tape jammed"), ("x = 1", "defines no function")],
)
def test_a_workload_at_fault_writes_nothing(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    done = init(str(file), "--out", str(tmp_path / "r.toml"), "--json")
    assert done.exit_code == 2
    assert words in json.loads(done.stdout)["error"]
    assert not (tmp_path / "r.toml").exists()


# --- locking --------------------------------------------------------------------------------------------------------------


def test_the_lock_keeps_the_files_hash_and_says_what_was_changed_after_it(tmp_path: Path) -> None:
    file, locked = tmp_path / "r.toml", tmp_path / "requirements.json"
    file.write_text(CASES_OF_TWO + "[numerics]\nrounding_factor = 4.0\n")
    loaded = requirements.load(file)
    sha256 = requirements.lock(loaded, locked, file)
    kept = json.loads(locked.read_text())
    assert kept["file"] == "r.toml"
    assert len(kept["file_sha256"]) == 64
    assert requirements.unlock(locked) == loaded
    assert requirements.changed(file, locked) == requirements.changed(loaded, locked) == ""

    file.write_text("# a comment more\n" + file.read_text())
    assert requirements.changed(file, locked) == ""

    file.write_text(file.read_text().replace("4.0", "40.0").replace("length = 16", "length = 32"))
    said = requirements.changed(file, locked)
    assert "numerics.rounding_factor: 4.0 -> 40.0" in said
    assert "cases[1].length: 16 -> 32" in said
    assert "start a new record with another --out" in said
    assert "timing" not in said
    file.write_text("[numerics]\nstepz = 1\n")
    with pytest.raises(BadInput, match="did you mean steps"):
        requirements.changed(file, locked)

    assert sha256 != requirements.lock(loaded, tmp_path / "other.json")
    locked.write_text("{")
    with pytest.raises(EvidenceError, match="not a readable requirements lock"):
        requirements.unlock(locked)


def test_a_removed_list_is_a_change(tmp_path: Path) -> None:
    old = requirements.parse('[[kernels]]\nname = "k"\nowner = "us"\n', "r.toml")
    assert list(requirements.differences(old, requirements.Requirements())) == [
        "kernels[0].name: 'k' -> (not there)",
        "kernels[0].owner: 'us' -> (not there)",
        "kernels[0].fallback: '' -> (not there)",
        "kernels: (not there) -> []",
    ]
