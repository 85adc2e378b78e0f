"""The migration ledger: an append-only chain of hashes, and effects that are taken from two records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record as records
from shakedown.readiness import trial
from shakedown.readiness.cost import effect, ledger, ranges
from shakedown.readiness.errors import BadInput
from shakedown.readiness.evidence import write_atomic

from .support import TINY, InProcess, quick

run = CliRunner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ledger of three entries."""
    path = tmp_path / "ledger.jsonl"
    for kind, what, hours in (
        ("padding", "lengths are padded to 128", "3"),
        ("graph-break", "no print in forward", "0.5"),
        ("padding", "and to 512", "1.25"),
    ):
        ledger.add(path, kind, what, Decimal(hours), None)
    return path


def invoke(*arguments: object) -> tuple[int, str, str]:
    done = run.invoke(cli.app, ["ledger", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


# --- the file -----------------------------------------------------------------------------------------------------------


def test_entries_are_appended_listed_and_added_up(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    code, said, _ = invoke(
        "add", "--kind", "layout", "--what", "weights are transposed once", "--hours", "2", "--file", path
    )
    assert code == 0
    assert "weights are transposed once" in said
    first = path.read_bytes()
    assert invoke("add", "--kind", "other", "--what", "[bold]ümläut[/]", "--hours", "0.1", "--file", path)[0] == 0
    assert path.read_bytes().startswith(first)  # nothing that was written is touched
    code, said, _ = invoke("list", "--file", path)
    assert code == 0
    assert "[bold]ümläut[/]" in said
    code, said, _ = invoke("sum", "--rate", "100..150", "--currency", "EUR", "--file", path, "--json")
    total = ledger.LedgerSum.model_validate_json(said)
    assert code == 0
    assert [(one.kind, one.entries, one.hours) for one in total.kinds] == [
        ("layout", 1, 2),
        ("other", 1, Decimal("0.1")),
    ]
    assert total.hours == Decimal("2.1")  # not 2.0999...
    assert total.cost is not None
    assert (total.cost.low, total.cost.likely, total.cost.high) == (210, Decimal("262.5"), 315)
    assert "EUR" in invoke("sum", "--rate", "100", "--currency", "EUR", "--file", path)[1]
    assert "cost not given" in invoke("sum", "--file", path)[1]


def test_hours_by_kind(file: Path) -> None:
    total = ledger.total(ledger.read(file), ranges.parse("100", "rate"), "USD")
    assert {one.kind: one.hours for one in total.kinds} == {"padding": Decimal("4.25"), "graph-break": Decimal("0.5")}
    assert total.cost == ranges.exactly(Decimal("475"))


def edited(path: Path, change: str) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "hours":
        lines[1] = lines[1].replace(b'"0.5"', b'"5"')
    elif change == "last":
        lines[2] = lines[2].replace(b"512", b"256")
    elif change == "removed":
        del lines[1]
    elif change == "moved":
        lines[0], lines[1] = lines[1], lines[0]
    elif change == "first removed":
        del lines[0]
    elif change == "no entry":
        lines[1] = b"these are not the hours\n"
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("change", ["hours", "last", "removed", "moved", "first removed", "no entry"])
def test_edits_show_and_nothing_is_added_to_them(file: Path, change: str) -> None:
    assert ledger.read(file).problems == []
    edited(file, change)
    found = ledger.read(file)
    assert found.problems, change
    code, said, _ = invoke("list", "--file", file)
    assert code == 1
    assert "problem" in said
    assert invoke("sum", "--file", file)[0] == 1
    before = file.read_bytes()
    code, _, said = invoke("add", "--kind", "other", "--what", "x", "--hours", "1", "--file", file)
    assert code == 2
    assert "its chain is broken" in said
    assert file.read_bytes() == before


def test_an_edit_with_its_own_hash_made_right_still_shows(file: Path) -> None:
    lines = file.read_text().splitlines()
    entry = json.loads(lines[1])
    entry["hours"] = "50"
    entry["sha256"] = ledger._content(entry)
    lines[1] = json.dumps(entry)
    file.write_text("\n".join(lines) + "\n")
    assert ledger.read(file).problems == [
        "line 3 (entry 3) does not follow the line before it: something was removed or moved"
    ]


@pytest.mark.parametrize("keep", [1, 40, 200])
def test_a_torn_last_line_is_told_and_survives(file: Path, keep: int) -> None:
    whole = file.read_bytes()
    torn = whole[: whole.rstrip(b"\n").rfind(b"\n") + 1 + keep]
    file.write_bytes(torn)
    found = ledger.read(file)
    assert (len(found.entries), found.problems) == (2, [])
    assert found.torn == [f"the last line was left unfinished ({keep} bytes) and is not counted"]
    assert "unfinished" in invoke("list", "--file", file)[1]
    ledger.add(file, "other", "after the crash", Decimal(1), None)
    assert file.read_bytes().startswith(torn)
    found = ledger.read(file)
    assert [entry.what for entry in found.entries][-1] == "after the crash"
    assert (len(found.entries), found.problems) == (3, [])
    assert found.torn == [f"line 3 was left unfinished ({keep} bytes) and is not counted"]
    file.write_bytes(file.read_bytes().replace(torn[-keep:] + b"\n", b"", 1))
    assert "unfinished line that is not there" in ledger.read(file).problems[0]


def test_a_last_line_that_lacks_only_its_end_is_whole(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    assert len(ledger.read(file).entries) == 3
    ledger.add(file, "other", "next", Decimal(1), None)
    found = ledger.read(file)
    assert (len(found.entries), found.problems, found.torn) == (4, [], [])


def test_only_a_ledger_is_added_to(tmp_path: Path) -> None:
    for text in ("dear diary", "dear diary\n", "a,b\n1,2\n", '{"schema_version": "other/1"}\n'):
        path = tmp_path / "notes.txt"
        path.write_text(text)
        with pytest.raises(BadInput, match="is not a ledger"):
            ledger.add(path, "other", "x", Decimal(1), None)
        assert path.read_text() == text


def test_text_from_a_ledger_is_no_command_to_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.add(path, "other", "clear \x1b[2J the screen", Decimal(1), None)
    entry = json.loads(path.read_text())
    entry["what"] = "clear \x1b[2J the screen"  # as another program may write it, with a hash that fits
    entry["sha256"] = ledger._content(entry)
    for text in (path.read_text(), json.dumps(entry) + "\n"):
        path.write_text(text)
        code, said, _ = invoke("list", "--file", path)
        assert code == 0
        assert "\x1b" not in said
        assert r"clear \x1b[2J the screen" in said


def test_only_regular_files_of_some_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="it is a link"):
        ledger.add(tmp_path / "link", "other", "x", Decimal(1), None)
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(BadInput, match="cannot read the ledger"):
        ledger.read(tmp_path)


WRITER = """
import sys
from decimal import Decimal
from pathlib import Path
from shakedown.readiness.cost import ledger
for number in range(15):
    ledger.add(Path(sys.argv[1]), "other", f"{sys.argv[2]} {number}", Decimal(1), None, wait=60)
"""


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    found = ledger.read(path)
    assert found.problems == []
    assert [entry.number for entry in found.entries] == list(range(1, 31))
    assert sorted(entry.what for entry in found.entries) == sorted(f"{name} {n}" for name in "ab" for n in range(15))


def test_a_writer_that_does_not_finish_is_named(file: Path) -> None:
    with FileLock(str(file) + ".lock"):
        began = time.monotonic()
        with pytest.raises(BadInput, match=r"another process has been writing to .* try again"):
            ledger.add(file, "other", "x", Decimal(1), None, wait=0.2)
        assert time.monotonic() - began < 60
    assert len(ledger.read(file).entries) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kind", "magic", "--what", "x", "--hours", "1"], "use one of device, padding, layout"),
        (["--kind", "other", "--what", "x", "--hours", "-1"], "--hours: '-1' is negative"),
        (["--kind", "other", "--what", "x", "--hours", "1..2"], "one number"),
        (["--kind", "other", "--what", "x", "--hours", "1e6"], "--hours"),
        (["--kind", "other", "--what", "  ", "--hours", "1"], "--what"),
        (["--kind", "other", "--what", "x", "--hours", "1", "--before", "somewhere"], "both --before and --after"),
        (["--kind", "other", "--what", "x", "--hours", "1", "--mode", "eager"], "give --before and --after"),
        (["--kind", "other", "--what", "x", "--hours", "1", "--before", "no", "--after", "no"], "there is no record"),
    ],
)
def test_mistakes_are_named_and_write_nothing(tmp_path: Path, arguments: list[str], says: str) -> None:
    path = tmp_path / "ledger.jsonl"
    code, _, said = invoke("add", *arguments, "--file", path)
    assert code == 2
    assert says in said
    assert not path.exists()


def test_a_ledger_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    for command in ("list", "sum"):
        code, _, said = invoke(command, "--file", tmp_path / "none.jsonl")
        assert code == 2
        assert "there is no ledger" in said


# --- effects ------------------------------------------------------------------------------------------------------------


def tried(folder: Path, workload: Path, name: str) -> Path:
    """A trial of two processes a side on the CPU, timed whatever else the machine does."""
    demand = quick(folder)
    text = demand.read_text().replace("processes = 1", "processes = 2")
    demand.write_text(text.replace("[timing]\n", "[timing]\nrefuse_foreign_load = 1e9\nrefuse_spread = 1e9\n"))
    request = trial.Request(
        str(workload),
        folder / name,
        target="cpu",
        modes=("eager",),
        dtypes=("float32",),
        cases=("2x8",),
        requirements=demand,
    )
    running = trial.Trial(trial.check(request), lambda what, share: None, InProcess())
    for stage in (running.prepare, running.references, running.candidates, running.truth, running.finish):
        stage()
    return folder / name


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Records of the tiny workload, and of the same with an edit that changes neither weights nor batches."""
    folder = tmp_path_factory.mktemp("effects")
    before = tried(folder, TINY, "before")
    edit = folder / "tiny.py"
    edit.write_text(TINY.read_text().replace("x = self.tokens(ids)", "x = self.tokens(ids).contiguous()"))
    return before, tried(folder, edit, "after")


def test_the_effect_is_taken_from_two_records(pair: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = pair
    path = tmp_path / "ledger.jsonl"
    code, said, errors = invoke(
        *("add", "--kind", "layout", "--what", "one copy more", "--hours", "2"),
        *("--before", before, "--after", after / "record.json", "--file", path),
    )
    assert code == 0, errors
    (entry,) = ledger.read(path).entries
    found = entry.effect
    assert found is not None
    assert found.source_changed
    assert (found.before.seal, found.after.seal) == (records.load(before).seal, records.load(after).seal)
    assert found.after.label == "self-check"
    (row,) = found.rows
    assert (row.mode, row.dtype, row.case) == ("eager", "float32", "2x8")
    assert (row.verdict_before, row.verdict_after) == ("match", "match")
    medians = [
        next(t.median for t in records.load(folder).judgement.timings if t.mode == "eager")
        for folder in (before, after)
    ]
    assert (row.step_before, row.step_after) == tuple(medians)
    assert row.ratio == pytest.approx(medians[1] / medians[0], rel=1e-6)
    assert row.low is not None
    assert row.high is not None
    assert row.low <= row.ratio <= row.high
    assert row.claim == "none"  # two processes a side do not carry one
    assert "processes" in row.why
    assert row.fallbacks_before is None  # nothing falls back on a CPU, and nothing counts it
    assert "verdict match > match; step time x" in said
    assert "self-check" in said
    code, said, _ = invoke("sum", "--file", path)
    assert "Measured effects" in said
    assert "whose source was edited" in said


def test_unlike_records_have_no_effect(pair: tuple[Path, Path], tmp_path: Path) -> None:
    before, after = pair
    with pytest.raises(BadInput, match="are the same record"):
        effect.measured(before, before)
    with pytest.raises(
        BadInput, match=r"have no compiled in common: eager float32 2x8 before, eager float32 2x8 after"
    ):
        effect.measured(before, after, mode="compiled")
    with pytest.raises(BadInput, match="have no eager float32 9x9 in common"):
        effect.measured(before, after, "eager", "float32", "9x9")

    def changed(name: str, **update: object) -> Path:
        """The second record with other values and a seal that fits."""
        record = records.load(after).model_copy(update=update)
        sealed = record.model_copy(update={"seal": records.seal_of(record)})
        folder = tmp_path / name
        write_atomic(folder / "record.json", sealed.model_dump_json().encode())
        return folder

    record = records.load(after)
    other = changed("workload", trial=record.trial | {"workload": "decoder"})
    with pytest.raises(BadInput, match=r"not of the same workload: one is about tiny and the other about decoder"):
        effect.measured(before, other)
    grown = changed("weights", snapshot=record.snapshot | {"dimensions": {"width": 32}}, snapshot_sha256="0" * 64)
    with pytest.raises(BadInput, match="not of the same workload: they start from different snapshots: dimensions"):
        effect.measured(before, grown)
    rehearsed = changed("target", label="rehearsal", trial=record.trial | {"target": "neuron"})
    with pytest.raises(BadInput, match=r"is a self-check on cpu and .* a rehearsal on neuron"):
        effect.measured(before, rehearsed)
    tampered = tmp_path / "weights" / "record.json"
    tampered.write_text(tampered.read_text().replace('"tiny"', '"tinY"'))
    with pytest.raises(BadInput, match="changed after it was sealed"):
        effect.measured(before, tampered.parent)
    with pytest.raises(BadInput, match="there is no record"):
        effect.measured(before, tmp_path / "nowhere")
