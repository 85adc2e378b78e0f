"""The record: its published form, and the seal over all of it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record as records
from shakedown.readiness.record import schemas, sealing

from .resealed import made, raw_of, rewrite

run = CliRunner()
PUBLISHED = Path(__file__).parents[2] / "docs" / "schema"
SOURCE = Path(schemas.__file__).parents[1]


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("record") / "run")


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "copy"))


def problems(folder: Path) -> list[str]:
    return records.verify(folder).problems


def valid(name: str, document: Any) -> list[str]:
    """What the published schema has against a document."""
    schema = json.loads((PUBLISHED / f"{name}.schema.json").read_text())
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)]


# The published form


def test_the_published_schemas_are_those_of_the_models() -> None:
    names = {path.name.removesuffix(".schema.json") for path in PUBLISHED.glob("*.json")}
    assert names == set(schemas.documents())
    for name in names:
        on_disk = (PUBLISHED / f"{name}.schema.json").read_text()
        assert on_disk == schemas.text(name), f"stale: run `shakedown schema --write {PUBLISHED}`"


def test_every_document_of_the_source_has_a_schema() -> None:
    found = set()
    for text in (path.read_text() for path in SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(text if "schema_version" in text else "")):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "schema_version" for line in node.body
            ):
                found.add(node.name)
    have = {model.__name__ for model in schemas.documents().values()}
    # SnapshotInfo imports torch: the record holds the same document, as Snapshot. Instances is read, and never written.
    assert found - have == {"SnapshotInfo", "Snapshot", "Instances"}


@pytest.mark.parametrize("name", sorted(schemas.documents()))
def test_a_schema_is_one_of_draft_2020_12_and_can_be_read(name: str) -> None:
    schema = schemas.schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    silent = [
        title for title, part in schema.get("$defs", {}).items() if "enum" not in part and not part.get("description")
    ]
    assert silent == []
    assert schema["description"]


def test_every_field_of_the_record_is_described() -> None:
    schema = schemas.schema("record")
    for field, part in schema["properties"].items():
        target = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        assert len(part.get("description") or target["description"]) > 20, field
    assert schema["properties"]["schema_version"]["const"] == records.SCHEMA


def test_a_real_record_and_its_evidence_are_valid(sealed: Path) -> None:
    assert valid("record", raw_of(sealed)) == []
    checked = 0
    for path in sorted(sealed.rglob("*.json")):
        document = json.loads(path.read_text())
        version = document.get("schema_version", "") if isinstance(document, dict) else ""
        name = re.sub(r"shakedown\.(.*)/\d+", r"\1", version)
        name = name or {f"{n}.json": n for n in ("outcome", "self-test", "vectors")}.get(path.name, "")
        if name in schemas.documents():
            assert valid(name, document) == [], path
            checked += 1
    assert checked >= 15


@pytest.mark.parametrize(
    "change",
    [
        {"label": "measured"},
        {"seal": 7},
        {"surprise": 1},
        {"schema_version": "shakedown.record/2"},
        {"files": {"../out": {"nbytes": 1, "sha256": "0" * 64}}},
        {"files": {"a": {"nbytes": -1, "sha256": "0" * 64}}},
    ],
)
def test_the_schema_refuses_what_is_no_record(sealed: Path, change: dict[str, Any]) -> None:
    raw = raw_of(sealed)
    assert valid("record", raw | change) != []


def test_the_command_prints_schemas_without_torch() -> None:
    code = (
        "import sys; from shakedown.cli import app; app(['schema', 'record'], standalone_mode=False); "
        "assert not {'torch', 'jax'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["$id"] == "urn:shakedown:record:3"
    assert run.invoke(cli.app, ["schema", "--json"]).stdout == json.dumps(list(schemas.documents())) + "\n"
    wrong = run.invoke(cli.app, ["schema", "recrod"])
    assert wrong.exit_code == 2
    assert "choose among" in wrong.output


def test_the_command_writes_all_schemas(tmp_path: Path) -> None:
    done = run.invoke(cli.app, ["schema", "--write", str(tmp_path / "schemas")])
    assert done.exit_code == 0
    assert len(list((tmp_path / "schemas").iterdir())) == len(schemas.documents())


# The seal


def test_a_record_that_was_just_sealed_verifies(sealed: Path) -> None:
    found = records.verify(sealed)
    assert (found.verified, found.problems, found.notes) == (True, [], [])
    assert found.decision_in_record == found.decision_judged_again == "suitable for the tested path"
    assert found.files_checked == len(records.load(sealed).files)


def test_the_record_answers_for_every_file_but_itself_and_what_is_made_from_it(sealed: Path) -> None:
    on_disk = {path.relative_to(sealed).as_posix() for path in sealed.rglob("*") if path.is_file()}
    left = on_disk - records.load(sealed).files.keys()
    assert {"record.json"} < left <= {"record.json", "report.md", "report.html"}


def leaves(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of everything in a document that holds nothing else; of the members of a list, the last."""
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[-1:] if isinstance(value, list) else ()
    return [deeper for key, part in inner for deeper in leaves(part, (*place, key))] or [place]


def test_the_seal_is_over_everything(sealed: Path) -> None:
    raw = raw_of(sealed)
    places = [place for place in leaves(raw) if place != ("seal",)]
    assert len(places) > 200
    assert {place[0] for place in places} == records.Record.model_fields.keys() - {"seal"}
    assert sealing.digest(raw) == raw["seal"]
    for place in places:
        holder = raw
        for key in place[:-1]:
            holder = holder[key]
        before = holder[place[-1]]
        holder[place[-1]] = f"{before}0"
        assert sealing.digest(raw) != raw["seal"], place
        holder[place[-1]] = before


def test_a_changed_field_is_found(copy: Path) -> None:
    raw = raw_of(copy)
    rewrite(copy, raw | {"label_text": "Measured on Trainium."}, seal=False)
    assert problems(copy) == ["record.json was changed after it was sealed"]
    done = run.invoke(cli.app, ["verify", str(copy)])
    assert done.exit_code == 1
    assert "changed after it was sealed" in done.output


def test_what_is_wrong_is_said_file_by_file(copy: Path) -> None:
    (copy / "snapshot" / "weights.safetensors").unlink()
    with (copy / "workload.py").open("a") as file:
        file.write("# as it should have been\n")
    log = copy / "logs" / "declared.json"
    log.write_bytes(log.read_bytes().swapcase())
    (copy / "evidence" / "eager-float32" / "other.json").write_text("{}")
    (copy / "notes.txt").write_text("a reader's own file is no problem")
    found = problems(copy)
    assert "snapshot/weights.safetensors is missing" in found
    assert any(p.startswith("workload.py was changed: it has ") for p in found)
    assert "logs/declared.json was changed" in found
    assert "evidence/eager-float32/other.json is not in the record" in found
    assert not any("notes.txt" in p for p in found)


def test_tensors_are_what_their_name_says(copy: Path) -> None:
    """Somebody who swaps tensors and seals again, hashes and all, is found by the name."""
    raw = raw_of(copy)
    name = next(n for n in raw["files"] if n.startswith("evidence/tensors/"))
    path = copy / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    raw["files"][name]["sha256"] = sha256(data).hexdigest()
    rewrite(copy, raw)
    assert any(p.startswith(f"{name} does not hold what its name says") for p in problems(copy))


def test_a_verdict_cannot_be_edited_even_under_a_new_seal(copy: Path) -> None:
    raw = raw_of(copy)
    raw["judgement"]["decision"]["disposition"] = "blocked"
    raw["judgement"]["cells"][1]["cases"][0]["verdict"] = "mismatch"
    rewrite(copy, raw)
    found = problems(copy)
    assert "the decision was 'blocked' and is 'suitable for the tested path' when judged again" in found
    assert "eager-float32/2x3 was 'mismatch' and is 'match' when judged again" in found


def test_a_cell_cannot_be_left_out(copy: Path) -> None:
    raw = raw_of(copy)
    raw["judgement"]["cells"].pop()
    rewrite(copy, raw)
    assert any("judges other cells or cases than it has" in p for p in problems(copy))


def test_what_is_returned_is_what_a_reader_gets(copy: Path) -> None:
    before = records.load(copy)
    (copy / "record.json").unlink()
    assert records.seal(copy, dict(before.trial), before.cells) == records.load(copy)


def test_a_file_whose_name_no_record_can_hold_does_not_cost_the_trial(copy: Path) -> None:
    before = records.load(copy)
    (copy / "record.json").unlink()
    for name in (
        ".hidden/x.json",
        "logs/a:b",
        "logs/.part",
        "x" * 240 + ".txt",
        "evidence/eager-float32/2x3.json.part",
    ):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("left by a workload")
    sealed_again = records.seal(copy, dict(before.trial), before.cells)
    assert set(sealed_again.files) - set(before.files) == {"x" * 240 + ".txt"}
    assert problems(copy) == []
