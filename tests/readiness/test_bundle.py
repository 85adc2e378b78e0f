"""A bundle holds what somebody else needs, nothing that is nobody's business, and equal bytes of equal input."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from shakedown import cli
from shakedown.readiness import record as records
from shakedown.readiness.bisect import child
from shakedown.readiness.bisect import run as bisection
from shakedown.readiness.bisect.job import BisectJob
from shakedown.readiness.bundle import Request, make, mask
from shakedown.readiness.errors import BadInput, OutputExists, RecordError
from shakedown.readiness.judge.results import Outcome
from shakedown.readiness.record import schemas
from shakedown.readiness.runner import Launch

from .resealed import KEPT, made, raw_of, rewrite

run = CliRunner()
CELL, CASE = "eager-float32", "2x3"
LOCALISED = KEPT.with_name("localised")
AWS = "AKIA" + "IOSFODNN7EXAMPLE"  # AWS's own example
GITHUB = "ghp_" + "x1Y2z3" * 6
PASSWORD = "correct-horse-battery-staple"
STDERR = f"""/home/marguerite/project/train.py:17: UserWarning: HF_TOKEN=hf_{"abcdefgh" * 4}
Traceback (most recent call last):
  File "/home/marguerite/project/train.py", line 3, in <module>
RuntimeError: https://marguerite:{PASSWORD}@pypi.acme.internal/simple and again {PASSWORD} for marguerite
connecting to gpu-box-17 at 10.3.4.5:8080 with {AWS}; git clone failed for {GITHUB}
\x1b[31mneuronx-cc 2.21.18209.0 on aws-neuronx-runtime-lib 2.28.23.0\x1b[0m
"""
SECRETS = (
    "hf_abc",
    PASSWORD,
    "marguerite",
    "gpu-box-17",
    "acme.internal",
    "10.3.4.5",
    AWS,
    GITHUB,
    "s3cr3t-value",
    "\x1b",
)


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record whose process said too much, and a localisation beside it."""
    root = tmp_path_factory.mktemp("bundles")
    folder = made(root / "run")
    before = records.load(folder)
    (folder / "logs" / f"{CELL}.stderr").write_text(STDERR)
    for path in (folder / "evidence").rglob("2x3.json"):
        raw = json.loads(path.read_text())
        raw["identity"]["fixed"]["host"] = "gpu-box-17"
        raw["identity"]["fixed"]["environment"] |= {
            "WANDB_API_KEY": "s3cr3t-value",
            "PYTHONPATH": "/home/marguerite/lib",
        }
        path.write_text(json.dumps(raw))
    for path in (folder / "evidence" / "truth").glob("*.json"):
        raw = json.loads(path.read_text())
        raw["identity"]["fixed"]["host"] = "gpu-box-17"
        raw["identity"]["fixed"]["environment"] |= {
            "WANDB_API_KEY": "s3cr3t-value",
            "PYTHONPATH": "/home/marguerite/lib",
        }
        path.write_text(json.dumps(raw))
    (folder / "record.json").unlink()
    record = records.seal(folder, dict(before.trial), before.cells)
    assert [c.verdict for c in record.judgement.cells] == ["match", "match"]
    localise(folder, root / "bisect-here")
    return folder


def localise(record: Path, folder: Path, **fields: Any) -> Path:
    """A localisation of the record's cell."""
    shutil.copytree(LOCALISED, folder)
    raw = json.loads((folder / "bisect.json").read_text())
    raw |= {"record_seal": raw_of(record)["seal"], "cell": CELL, "case": CASE, "target": "cpu", "label": "self-check"}
    (folder / "bisect.json").write_text(json.dumps(raw | fields))
    return folder


def unpacked(path: Path) -> dict[str, bytes]:
    """Members of an archive, without the folder that they are all in."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            found = {name: archive.read(name) for name in archive.namelist()}
    else:
        with tarfile.open(path) as archive:
            found = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
    assert {name.split("/")[0] for name in found} == {f"smallest-{CELL}"}
    return {name.partition("/")[2]: content for name, content in found.items()}


@pytest.fixture(scope="module")
def bundle(sealed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("out") / "case.zip"
    make(Request(sealed, CELL, path))
    return path


def test_it_holds_what_somebody_else_needs(bundle: Path) -> None:
    files = unpacked(bundle)
    assert set(files) == {
        "README.md",
        "manifest.json",
        "finding.json",
        "identity.json",
        "environment.json",
        "requirements.json",
        "numbers.json",
        "bisect.json",
        "case/case.py",
        "case/tensors.safetensors",
        "case/README.md",
        f"logs/{CELL}.stderr",
        f"evidence/{CELL}/2x3.json",
        f"evidence/{CELL}/2x3.memory.json",
        f"evidence/{CELL}/identity.json",
        f"evidence/{CELL}/outcome.json",
        f"evidence/{CELL}/self-test.json",
    }
    page = files["README.md"].decode()
    assert page.startswith(f"# smallest on cpu: {CELL}\n\n> **Self-check")
    for needed in ("The verdict on this cell is **match**", "aten::gelu is the first wrong operator", "python case.py"):
        assert needed in page
    assert "| torch | 2.13.0" in page
    assert "neuronx-cc 2.21.18209.0 on aws-neuronx-runtime-lib 2.28.23.0" in files[f"logs/{CELL}.stderr"].decode()
    assert json.loads(files["numbers.json"])[CASE][0]["name"].startswith("step1/")


def test_tensors_are_those_of_the_minimal_case_and_no_others(bundle: Path) -> None:
    files = unpacked(bundle)
    assert [name for name in files if name.endswith(".safetensors")] == ["case/tensors.safetensors"]
    assert files["case/tensors.safetensors"] == (LOCALISED / "case" / "tensors.safetensors").read_bytes()
    assert sum(len(content) for content in files.values()) < 200_000


def test_the_manifest_answers_for_every_file(bundle: Path, sealed: Path) -> None:
    files = unpacked(bundle)
    manifest = json.loads(files.pop("manifest.json"))
    jsonschema.validate(manifest, schemas.schema("bundle"))
    assert {f["name"]: (f["nbytes"], f["sha256"]) for f in manifest["files"]} == {
        name: (len(content), sha256(content).hexdigest()) for name, content in files.items()
    }
    record = records.load(sealed)
    own = [f for f in manifest["files"] if f["of_record_sha256"]]
    assert {f["of_record_sha256"] for f in own} == {record.files[f["name"]].sha256 for f in own}
    assert (manifest["record_seal"], manifest["verified"], manifest["label"]) == (record.seal, True, "self-check")


def test_the_minimal_case_runs_where_it_was_unpacked(bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / f"smallest-{CELL}" / "case"
    environment = {**os.environ, "DEVICE": "cpu"}
    done = subprocess.run([sys.executable, "case.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "relative L2 error" in done.stdout


def test_equal_input_gives_equal_bytes(sealed: Path, tmp_path: Path) -> None:
    for suffix in ("zip", "tar.gz"):
        made_of = []
        for place, when in (("here", 1_000_000_000), ("there/deeper", 1_700_000_000)):
            root = tmp_path / suffix / place
            copy = Path(shutil.copytree(sealed.parent, root)) / "run"
            for path in sorted(copy.rglob("*"), reverse=True):
                os.utime(path, (when, when))
            copy.chmod(0o700)
            make(Request(copy, CELL, root / f"out.{suffix}"))
            made_of.append((root / f"out.{suffix}").read_bytes())
        assert made_of[0] == made_of[1]
    assert unpacked(tmp_path / "zip" / "here" / "out.zip") == unpacked(tmp_path / "tar.gz" / "here" / "out.tar.gz")


def test_archives_hold_no_times_owners_or_modes_of_this_machine(sealed: Path, tmp_path: Path) -> None:
    make(Request(sealed, CELL, tmp_path / "a.zip"))
    make(Request(sealed, CELL, tmp_path / "a.tgz"))
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert {(i.date_time, i.external_attr >> 16) for i in archive.infolist()} == {((1980, 1, 1, 0, 0, 0), 0o644)}
    with tarfile.open(tmp_path / "a.tgz") as archive:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in archive.getmembers()} == {(0, 0, 0, "", 0o644)}
    assert (tmp_path / "a.tgz").read_bytes()[4:8] == b"\0\0\0\0"  # gzip's own time


# What must not leave


def test_nothing_of_a_person_or_a_secret_is_in_it(bundle: Path) -> None:
    files = unpacked(bundle)
    for name, content in files.items():
        for secret in SECRETS:
            assert secret.encode() not in content, (name, secret)
    assert json.loads(files["environment.json"])["WANDB_API_KEY"] == "<masked>"
    assert json.loads(files["environment.json"])["PYTHONPATH"] == "~/lib"
    assert json.loads(files["identity.json"])["fixed"]["host"] == "<host>"
    masked = {f["name"]: f["masked"] for f in json.loads(files["manifest.json"])["files"]}
    assert masked[f"logs/{CELL}.stderr"] >= 9


LEAKS = {  # text, what must not be left of it
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "wJalr",
    "aws_secret_access_key = wJalrXUtnFEMI": "wJalr",
    'export HF_TOKEN="hunter2 with blanks"': "hunter2",
    "password: hunter2": "hunter2",
    "Password = 'hunter two'": "hunter",
    '{"db_password": "hunter2", "x": 1}': "hunter2",
    "{'apiKey': 'hunter2'}": "hunter2",
    "api key: hunter2": "hunter2",
    "--token hunter2 --steps 3": "hunter2",
    "--api-key=hunter2": "hunter2",
    "client_secret => hunter2": "hunter2",
    "https://user:hunter2@example.com/x": "hunter2",
    "postgres://user:p@ss/w0rd@db.example.com/x".replace("/w0rd", "w0rd"): "p@ss",
    "git+https://hunter2@github.com/acme/x": "hunter2",
    "https://x.blob.example.com/c?sv=1&sig=hunter2%3D&se=2": "hunter2",
    "https://s3.example.com/x?X-Amz-Credential=hunter2&X-Amz-Signature=hunter3&y=1": "hunter",
    "Authorization: Bearer hunter2hunter2": "hunter2",
    "authorization: Basic dXNlcjpodW50ZXIyaHVudGVy": "dXNl",
    "Cookie: session=hunter2; theme=dark": "hunter2",
    "curl -H 'Authorization: token hunter2hunter2'": "hunter2",
    f"found {AWS} in the log": AWS,
    f"remote: {GITHUB}": GITHUB,
    "github_pat_11ABCDEFG0123456789abcdef": "11ABC",
    "glpat-abcdefghij0123456789": "abcdefghij",
    "sk-ant-api03-abcdefghij0123456789": "abcdefghij",
    "xoxb-123456789012-abcdefghij": "abcdefghij",
    "AIza" + "S" * 35: "SSSS",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N": "eyJzdWI",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2\nabc\n-----END RSA PRIVATE KEY-----": "hunter2",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blhunter2 cut": "hunter2",
    "/home/marguerite/x.py": "marguerite",
    "/Users/marguerite/x.py": "marguerite",
    "C:\\Users\\marguerite\\x.py": "marguerite",
    "C:\\\\Users\\\\marguerite\\\\x.py": "marguerite",
    'File "/root/train.py", line 3': "/root",
    "marguerite@gpu-box:~/x$ ls": "marguerite",
    "write to marguerite.d@acme.example.com": "marguerite",
    "ip-10-0-12-7.ec2.internal": "10-0-12-7",
    "node7.cluster.corp said": "node7",
    "http://203.0.113.9/x": "203.0.113.9",
    "listening on 203.0.113.9:29500": "203.0.113.9",
    "192.168.1.20 refused": "192.168",
    "ether 0a:1b:2c:3d:4e:5f": "0a:1b",
    "arn:aws:iam::123456789012:role/x": "123456789012",
    "i-0123456789abcdef0 is gone": "i-0123",
    "s3://acme-secret-project/weights": "acme",
}


@pytest.mark.parametrize("text", LEAKS)
def test_what_must_not_be_left_is_not(text: str) -> None:
    for shown, count in (mask.Mask().text(text), mask.Mask().text(f"before {text} after\n")):
        assert LEAKS[text] not in shown, shown
        assert count >= 1
    again, more = mask.Mask().text(shown)
    assert (again, more) == (shown, 0)


KEPT_TEXT = [
    "step1/gradient/tokens.weight: relative L2 error 2.00e-03, allowed 1.65e-06",
    "layers.0.attention.key.weight: row 3 is zero",
    "max_tokens=128, token_count 5, tokens: 12 per step",
    "neuronx-cc 2.21.18209.0, aws-neuronx-runtime-lib 2.28.23.0, torch 2.13.0+cpu",
    "NEURON_CC_FLAGS=--model-type=transformer -O1",
    "aten::_scaled_dot_product_attention at decoder.py:33",
    'File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1',
    "SHA-256 c0959d73a1aefd2cc173691b150d80552c8fa8805cd309ef4e87ac82aeaf4663",
    "a basic operation of the authorised kernel passes",
    "torch._dynamo.exc.Unsupported: call_method item [TensorVariable()]",
    "http://127.0.0.1:8080 and localhost:80",
    "12:34:56 2026-11-30T02:30:57+00:00",
]


@pytest.mark.parametrize("text", KEPT_TEXT)
def test_what_the_vendor_needs_is_left(text: str) -> None:
    assert mask.Mask().text(text) == (text, 0)


def test_a_value_that_a_name_calls_secret_is_hidden_wherever_it_stands() -> None:
    masking = mask.Mask(hosts=["trn-7"])
    document = {
        "environment": {"MY_DB_PASSWORD": "hunter2hunter2", "OMP_NUM_THREADS": "2", "AUTH": "0" * 64},
        "facts": [{"name": "WANDB_API_KEY", "value": "0123456789"}, {"name": "threads", "value": "2"}],
        "weights": {"attention.key": "a" * 64},
        "hunter2hunter2": ["x hunter2hunter2 y", 7, None],
        "host": "trn-7",
    }
    masking.learn(document)
    shown, count = masking.document(document)
    assert shown == {
        "environment": {"MY_DB_PASSWORD": "<masked>", "OMP_NUM_THREADS": "2", "AUTH": "<masked>"},
        "facts": [{"name": "WANDB_API_KEY", "value": "<masked>"}, {"name": "threads", "value": "2"}],
        "weights": {"attention.key": "a" * 64},
        "<masked>": ["x <masked> y", 7, None],
        "host": "<host>",
    }
    assert count == 6
    assert masking.text("trn-7 logs in with hunter2hunter2; trn-70 does not")[0] == (
        "<host> logs in with <masked>; trn-70 does not"
    )


def test_masking_takes_time_with_the_length_of_the_text() -> None:
    for odd in (
        "a.",
        "-",
        "--",
        "://",
        "@",
        "x@",
        "token",
        "password=",
        "\\Users\\",
        "eyJ",
        "-----BEGIN A PRIVATE KEY-----",
    ):
        before = time.process_time()
        mask.Mask().text(odd * (20_000 // len(odd)))
        assert time.process_time() - before < 5, odd


# Records and requests that are not as they should be


def test_a_record_that_does_not_verify_is_refused_unless_asked_for_and_then_says_so(
    sealed: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(sealed, tmp_path / "copy"))
    with (copy / "logs" / f"{CELL}.stderr").open("a") as file:
        file.write("nothing was wrong here\n")
    with pytest.raises(RecordError, match=rf"does not verify: logs/{CELL}.stderr was changed"):
        make(Request(copy, CELL, tmp_path / "a.zip"))
    assert not (tmp_path / "a.zip").exists()
    options = ["bundle", str(copy), CELL, "--out", str(tmp_path / "a.zip")]
    refused = run.invoke(cli.app, options)
    assert refused.exit_code == 1
    assert "--unverified" in refused.output
    done = run.invoke(cli.app, [*options, "--unverified"])
    assert done.exit_code == 0
    assert "does not verify" in done.output
    files = unpacked(tmp_path / "a.zip")
    assert "**THE RECORD DOES NOT VERIFY**" in files["README.md"].decode()
    manifest = json.loads(files["manifest.json"])
    assert manifest["verified"] is False
    assert manifest["problems"][0].startswith(f"logs/{CELL}.stderr was changed")


def test_without_localisation_it_says_how_to_get_one(sealed: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(sealed, tmp_path / "elsewhere" / "copy"))
    raw = raw_of(copy)
    raw["judgement"]["cells"][1]["verdict"] = raw["judgement"]["cells"][1]["cases"][0]["verdict"] = "mismatch"
    raw["judgement"]["cells"][1]["cases"][0]["findings"] = ["step1/gradient/weight: row 1 is zero"]
    rewrite(copy, raw)
    bundled = make(Request(copy, CELL, tmp_path / "a.zip", unverified=True))
    assert bundled.case == CASE  # the first that failed
    assert bundled.findings[0] == "2x3: step1/gradient/weight: row 1 is zero"
    assert f"`shakedown bisect RECORD {CELL} --case {CASE}`" in bundled.localised
    assert not bundled.has_minimal_case
    page = zipfile.ZipFile(tmp_path / "a.zip").read(f"smallest-{CELL}-{CASE}/README.md").decode()
    assert "There is no minimal case in here" in page


class Here:
    """Localisation's child without a process of its own."""

    def __init__(self, command: tuple[str, ...]) -> None:
        assert command == bisection.CHILD

    def run(self, launch: Launch) -> Outcome:
        launch.logs.mkdir(parents=True)
        assert isinstance(launch.job, BisectJob)
        child.leave(launch.job)
        return Outcome(status="finished", exit_code=0)


def test_localisation_can_be_run_on_the_way(sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bisection, "LocalProcesses", Here)
    copy = Path(shutil.copytree(sealed, tmp_path / "copy"))
    options = ["bundle", str(copy), CELL, "--out", str(tmp_path / "a.zip"), "--localise"]
    done = run.invoke(cli.app, options)
    assert done.exit_code == 0, done.output
    assert (tmp_path / f"bisect-{CELL}" / "bisect.json").exists()
    files = unpacked(tmp_path / "a.zip")
    assert json.loads(files["bisect.json"])["verdict"] == "nothing"
    assert "nothing to localise: " in files["README.md"].decode()
    assert "case/case.py" not in files


def test_a_localisation_of_something_else_is_not_taken(sealed: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(sealed, tmp_path / "place" / "copy"))
    for name, fields in {"seal": {"record_seal": "0" * 64}, "cell": {"cell": "eager-bfloat16"}}.items():
        localise(copy, tmp_path / "place" / name, **fields)
        with pytest.raises(BadInput, match="holds no bisect.json about"):
            make(Request(copy, CELL, tmp_path / "b.zip", bisect=tmp_path / "place" / name))
    assert not make(Request(copy, CELL, tmp_path / "b.zip")).has_minimal_case
    localise(copy, tmp_path / "place" / "mine")
    assert make(Request(copy, CELL, tmp_path / "c.zip")).has_minimal_case
    assert not make(Request(copy, "reference-float32", tmp_path / "d.zip")).has_minimal_case


def test_a_localisation_cannot_name_files_outside_itself(sealed: Path, tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text("a stranger's file")
    for case in ("..", "../..", str(tmp_path), "a/../.."):
        folder = localise(sealed, tmp_path / "evil")
        raw = json.loads((folder / "bisect.json").read_text())
        raw["stages"][-1]["case"] = case
        (folder / "bisect.json").write_text(json.dumps(raw))
        with pytest.raises(BadInput, match="not inside it"):
            make(Request(sealed, CELL, tmp_path / "a.zip", bisect=folder))
        shutil.rmtree(folder)
    folder = localise(sealed, tmp_path / "evil")
    (folder / "case" / "case.py").unlink()
    (folder / "case" / "case.py").symlink_to(tmp_path / "case.py")
    with pytest.raises(BadInput, match="links are not followed"):
        make(Request(sealed, CELL, tmp_path / "a.zip", bisect=folder))


def test_bad_input_is_one_sentence_and_leaves_nothing(sealed: Path, tmp_path: Path) -> None:
    (tmp_path / "there.zip").write_bytes(b"mine")
    for request, says in (
        (Request(sealed, "eager-float64", tmp_path / "a.zip"), "choose among reference-float32, eager-float32"),
        (Request(sealed, CELL, tmp_path / "a.zip", case="9x9"), "has no case '9x9'; choose among 2x3"),
        (Request(sealed, CELL, tmp_path / "a.rar"), r"must end in one of .zip, .tar.gz, .tgz"),
        (Request(tmp_path, CELL, tmp_path / "a.zip"), "give the directory of a finished trial"),
        (Request(sealed, CELL, tmp_path / "there.zip"), "exists and is left as it is"),
    ):
        with pytest.raises((BadInput, OutputExists), match=says):
            make(request)
    assert (tmp_path / "there.zip").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["there.zip"]
    assert run.invoke(cli.app, ["bundle", str(sealed), "x", "--out", str(tmp_path / "a.zip")]).exit_code == 2


def test_the_command_prints_what_is_in_it_and_needs_no_torch(sealed: Path, tmp_path: Path) -> None:
    done = run.invoke(cli.app, ["bundle", str(sealed), CELL, "--out", str(tmp_path / "a.tar.gz")])
    assert done.exit_code == 0, done.output
    size = (tmp_path / "a.tar.gz").stat().st_size
    for said in ("case/case.py", "README.md", f"{size:,} bytes", "not in it: weights", "(self-check)"):
        assert said in done.output
    code = (
        "import sys; from shakedown.cli import app; "
        f"app(['bundle', {str(sealed)!r}, {CELL!r}, '--out', {str(tmp_path / 'b.zip')!r}, '--json'], standalone_mode=False); "
        "assert not {'torch', 'jax'} & set(sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == json.loads(unpacked(tmp_path / "b.zip")["manifest.json"])


def test_a_cell_of_an_old_record_can_be_bundled(tmp_path: Path) -> None:
    made_of = make(Request(KEPT.with_name("version1"), CELL, tmp_path / "a.zip"))
    assert (made_of.verdict, made_of.verified) == ("match", True)
    with zipfile.ZipFile(io.BytesIO((tmp_path / "a.zip").read_bytes())) as archive:
        assert f"smallest-{CELL}/evidence/{CELL}/2x3.json" in archive.namelist()
