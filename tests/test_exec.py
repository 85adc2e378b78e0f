"""``shakedown exec``: an ordinary Python process, on the device, with CUDA redirected on request, and what it says at the end."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from shakedown.cli import app
from shakedown.exec import document, launch, words

from .processes import hear_interrupts

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "train_cuda.py"
COMMAND = (sys.executable, "-m", "shakedown.cli", "exec")


def run(folder: Path, *words: str | Path, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=600, check=False, **more
    )


def read(file: Path) -> document.Document:
    return document.Document.model_validate_json(file.read_text())


# --- the whole of it: one run, many assertions --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory):
    """tests/exec_script.py asserts on its side what a script relies on; it exits with 7."""
    folder = tmp_path_factory.mktemp("everything")
    options = ("--redirect-cuda", "--device-variable", "MY_DEVICE", "--device-variable", "OTHER=neuron:0")
    files = ("--json", folder / "out.json", "--report", folder / "out.txt")
    done = run(folder, *options, *files, HERE / "exec_script.py", "--json", "mine", "-m", "--")
    return done, read(folder / "out.json"), (folder / "out.txt").read_text()


def line_of(text: str) -> int:
    """Number of the only line of the script with `text` in it."""
    found = [i for i, line in enumerate((HERE / "exec_script.py").read_text().splitlines(), 1) if text in line]
    assert len(found) == 1, found
    return found[0]


def test_the_script_saw_python_and_the_device(everything):
    done, found, _ = everything
    assert done.stdout.splitlines() == ["all held", "the script's own last words"], done.stderr
    assert done.returncode == found.exit_code == 7
    assert found.ended == "exit code 7"
    assert found.environment == {"MY_DEVICE": "neuron", "OTHER": "neuron:0"}


def test_what_ran_is_told(everything, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # lines are shown from there
    done, found, text = everything
    main = found.main
    assert main is not None
    assert main.used
    assert not main.failure
    assert {"aten::linear", "aten::mul.Tensor"} <= {ran.name for ran in main.operators}
    assert main.profile == "native"
    assert (main.memory.peak_bytes or 0) > 0
    assert main.programs.compiled + main.programs.cached > 0
    assert {moved.name for moved in main.transfers} == {"device-to-host", "host-to-device"}
    assert sorted((one.forked, one.used) for one in found.others) == [(False, True), (True, False)]
    assert "rehearsal" in found.label
    assert "rehearsal" in done.stderr
    assert "exit code 7" in done.stderr
    assert text.splitlines() == words.summary(found, None)


@pytest.mark.parametrize(
    ("line", "call", "became", "outcome", "rule"),
    [
        ('host.to("cuda"),', ".to('cuda')", "neuron", "redirected", "cuda-device"),
        ('host.to(device="cuda:0")', ".to(device='cuda:0')", "neuron:0", "redirected", "cuda-device"),
        ("host.cuda(0)", ".cuda(0)", "neuron", "redirected", "cuda-method"),
        ("torch.nn.Linear(3, 3).cuda().weight", ".cuda()", "neuron", "redirected", "cuda-method"),
        ("zeros_like(host", "torch.zeros_like(device='cuda')", "neuron", "redirected", "cuda-device"),
        ("torch.ones(1, device=", "torch.ones(device='cuda')", "neuron", "redirected", "cuda-device"),  # a thread
        ("in a worker", "torch.device('cuda')", "neuron", "redirected", "cuda-device"),  # a forked worker
        ("queue.put(", "torch.ones(device='cuda')", "neuron", "redirected", "cuda-device"),  # a spawned process
        ("return gradient *", "torch.full(device='cuda')", "neuron", "redirected", "cuda-device"),  # the backward pass
        ("cuda.empty_cache", "torch.cuda.empty_cache()", "torch.neuron.empty_cache", "redirected", "cuda-synchronize"),
        ("assert on[0].is_cuda", ".is_cuda", "True", "answered", "cuda-attribute"),
        ("get_device_capability", "torch.cuda.get_device_capability()", "(0, 0)", "answered", "cuda-api"),
        ("cudnn.benchmark = ", "torch.backends.cudnn.benchmark = True", "nothing", "ignored", "cuda-backend-flags"),
        ("nvtx.range(", "torch.cuda.nvtx.range()", "nothing", "ignored", "cuda-profiling"),
        ('if torch.device("cuda")', 'if torch.device("cuda").type == "cuda":', "", "not redirected", "cuda-compare"),
    ],
)
def test_each_line_that_named_cuda_is_listed(everything, line, call, became, outcome, rule):
    _, found, _ = everything
    number = line_of(line)
    places = {(one.line, one.call): one for one in found.places if one.file == str(HERE / "exec_script.py")}
    place = places[number, call]
    assert place.became.startswith(became)
    assert (place.outcome, place.rule, place.library) == (outcome, rule, False)
    assert line in place.text
    assert place.count == 0 if rule == "cuda-compare" else place.count > 0


def test_a_line_is_listed_once_and_counted(everything):
    _, found, text = everything
    keys = [(p.file, p.line, p.call, p.became, p.via) for p in found.places]
    assert len(keys) == len(set(keys))
    worker = next(p for p in found.places if p.line == line_of("in a worker"))
    assert worker.count == 8
    assert f"{worker.line}  torch.device('cuda') -> neuron x8" in text


# --- the three modes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def losses_of_the_cpu():
    """The example's losses where every "cuda" is the CPU."""
    source = EXAMPLE.read_text().replace('"cuda:0"', '"cpu"').replace('"cuda"', '"cpu"').replace(".is_cuda", ".numel()")
    source = re.sub(r"\.cuda\([^)]*\)", "", source)
    source = re.sub(r"torch\.cuda\.\w+\([^)]*\)", "None", source)
    source = re.sub(
        r"torch\.backends\.cudnn\..*", "pass", source
    )  # PyTorch's own test helpers, once imported, forbid to set it
    assert "cuda" not in source.split('"""')[2]
    printed, argv = io.StringIO(), sys.argv
    sys.argv = ["train", "--epochs", "1"]
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "train_cpu.py", "exec"), {"__name__": "__main__"})
    finally:
        sys.argv = argv
    return losses(printed.getvalue())


def losses(printed: str) -> list[float]:
    return [float(text) for text in re.findall(r"loss ([\d.]+)", printed)]


@pytest.mark.rotating(2, group="modes")
def test_compiled_by_default_and_captured_where_cuda_is_named(tmp_path, losses_of_the_cpu):
    done = run(
        tmp_path, "--mode", "compile", "--redirect-cuda", "--json", "out.json", EXAMPLE, "--epochs", "1", "--compile"
    )
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(losses_of_the_cpu, rel=2e-5)
    assert len(losses_of_the_cpu) == 4
    found = read(tmp_path / "out.json")
    assert found.main is not None
    assert len(found.main.graphs["graphs"]) == 1
    assert found.main.graphs["breaks"] == []
    assert any(ran.name.startswith("graph::") for ran in found.main.operators)
    named = EXAMPLE.read_text().splitlines()
    captured = {p.call: p.became for p in found.places if "arange" in named[p.line - 1]}
    assert captured == {".is_cuda": "True", "(in torch.compile)": "neuron"}
    assert "1 captured" in done.stderr


@pytest.mark.rotating(2, group="modes")
def test_adaptive_and_as_a_module(tmp_path, losses_of_the_cpu):
    options = ("--mode", "adaptive", "--memory-limit", "1GiB", "--redirect-cuda", "--quiet")
    done = run(tmp_path, *options, "--json", "out.json", "-m", "train_cuda", "--epochs", "1", env=_with_example())
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(losses_of_the_cpu, rel=2e-5)
    found = read(tmp_path / "out.json")
    assert found.main is not None
    assert found.main.adaptive
    assert found.environment["SHAKEDOWN_MEMORY_LIMIT"] == "1GiB"
    assert "rehearsal" not in done.stderr


@pytest.mark.rotating(2, group="modes")
def test_a_script_that_names_no_device_under_a_profile(tmp_path):
    script = "import torch\nx = torch.ones(2)\nprint((x + x).device)\ntorch.ones(1, device='cuda')\n"
    options = ("--default-device", "--profile", "neuron-2.33", "--strict", "--cache", "kept", "--json", "out.json")
    done = run(tmp_path, *options, "-", input=script)
    assert done.stdout == "neuron:0\n"
    assert done.returncode == 1  # CUDA is CUDA without --redirect-cuda
    without = "Found no NVIDIA driver" if torch.version.cuda else "Torch not compiled with CUDA enabled"
    assert without in done.stderr
    found = read(tmp_path / "out.json")
    assert found.main is not None
    assert found.main.profile == "neuron-2.33"
    assert found.places == []
    assert list((tmp_path / "kept" / "executables").iterdir())


def _with_example() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLE.parent), os.environ.get("PYTHONPATH", "")])}


# --- the process: no torch, so that these are cheap ---------------------------------------------------------------------


def test_a_module_is_run_as_python_runs_it(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text(
        "import sys\nfrom . import __name__ as outer\nprint(__name__, outer, sys.argv[1:], __spec__.name, sys.path[0])\n"
        "def f():\n    raise SystemExit('a message')\nf()\n"
    )
    ours = run(tmp_path, "-m", "package.tool", "--mode", "x", "--", "y")
    python = subprocess.run(
        [sys.executable, "-m", "package.tool", "--mode", "x", "--", "y"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ours.stdout, ours.returncode) == (python.stdout, python.returncode)
    assert ours.stderr.startswith(python.stderr)
    assert "did not import torch" in ours.stderr


def test_a_script_from_standard_input_and_its_traceback(tmp_path):
    text = "import sys\nprint(sys.argv)\ndef f():\n    1 / 0\nf()\n"
    ours = run(tmp_path, "-", "a", input=text)
    python = subprocess.run(
        [sys.executable, "-", "a"], input=text, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ours.stdout, ours.returncode) == (python.stdout, 1)
    assert ours.stderr.startswith(python.stderr)
    assert "ZeroDivisionError" in python.stderr


WAITING = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("told", flush=True))
try:
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted once", flush=True)
    raise
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_reach_the_script(tmp_path, number, code):
    (tmp_path / "waiting.py").write_text(WAITING)
    running = subprocess.Popen(
        [*COMMAND, "waiting.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
        start_new_session=True,  # no terminal, as in CI: whoever signals this process means the script
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGUSR1)
    assert running.stdout.readline() == "told\n"
    running.send_signal(number)
    out, told = running.communicate(timeout=120)
    assert running.returncode == code
    assert out == ("interrupted once\n" if number == signal.SIGINT else "")
    assert f"signal {number.name}" in told
    if number == signal.SIGINT:
        assert told.count("KeyboardInterrupt") == 1


@pytest.mark.timeout(600)
def test_a_terminals_ctrl_c_comes_once(tmp_path):
    (tmp_path / "waiting.py").write_text(WAITING)
    pid, terminal = pty.fork()
    if pid == 0:
        hear_interrupts()
        os.execv(sys.executable, [*COMMAND, str(tmp_path / "waiting.py")])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1 << 10)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # what a terminal says when nobody holds its other end any more
        while more := os.read(terminal, 1 << 16):
            said += more
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert said.count(b"interrupted once") == 1
    assert said.count(b"KeyboardInterrupt") == 1


# --- what cannot be started ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.py"], "cannot read the script missing.py: No such file or directory"),
        (["wrong.py"], "wrong.py, line 2: SyntaxError"),
        (["null.py"], "null.py"),
        (["folder"], "a directory without __main__.py"),
        (["-m", "no_such_module_here"], "no module named 'no_such_module_here'"),
        (["-m", "json.no_such_part"], "no module named 'json.no_such_part'"),
        (["-m", "this.part"], "'this' is no package"),
        (["-m", "folder"], "'folder' is a package without __main__"),
        (["-m"], "-m needs the name of a module"),
        (["--redirct-cuda", "fine.py"], "there is no option --redirct-cuda"),
        (["--memory-limit", "lots", "fine.py"], "--memory-limit 'lots' must be bytes"),
        (["--profile", "neuron-0", "fine.py"], "--profile 'neuron-0' is neither a file nor one of native"),
        (["--device-variable", "1=x", "fine.py"], "--device-variable '1=x' names no variable"),
        (["--json", "folder", "fine.py"], "folder is a directory"),
    ],
)
def test_one_clear_error_and_exit_code_2(tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text("x = 1\ndef broken(:\n")
    Path("null.py").write_bytes(b"x = 1\0")
    Path("fine.py").write_text("raise AssertionError('started')\n")
    Path("folder").mkdir()
    done = CliRunner().invoke(app, ["exec", *arguments])
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SHAKEDOWN_DEVICE", "off"), ("SHAKEDOWN_DEVICE", "on"), ("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")],
)
def test_an_environment_without_the_device_is_refused(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(launch.BadRequest, match=variable):
        launch.check(launch.Request(target=("-",)))


def test_options_are_variables():
    wanted = {
        ("eager", None): {"SHAKEDOWN_ADAPTIVE": "0"},
        ("adaptive", None): {"SHAKEDOWN_ADAPTIVE": "1"},
        ("compile", None): {"SHAKEDOWN_ADAPTIVE": "0", "SHAKEDOWN_DEFAULT_BACKEND": "neuron"},
        (None, "off"): {"SHAKEDOWN_CACHE": "0"},
        (None, "kept"): {"SHAKEDOWN_CACHE": "1", "SHAKEDOWN_CACHE_DIR": str(Path("kept").absolute())},
    }
    for (mode, cache), variables in wanted.items():
        assert launch.settings(launch.Request(target=("-",), mode=mode, cache=cache)) == variables
    strict = launch.settings(launch.Request(target=("-",), strict=True, profile="native"))
    assert strict == {"TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": "1", "SHAKEDOWN_PROFILE": "native"}


def test_processes_of_one_run_are_put_together(tmp_path):
    place = {
        "file": "a.py",
        "line": 3,
        "call": ".cuda()",
        "became": "neuron",
        "outcome": "redirected",
        "rule": "cuda-method",
        "library": False,
        "via": "",
        "count": 2,
    }
    for pid in (11, 12):
        (tmp_path / f"{pid}.report.json").write_text(json.dumps({"pid": pid, "argv": ["a.py"], "places": [place]}))
        (tmp_path / f"{pid}.started").touch()
    (tmp_path / "13.started").touch()
    processes, places, silent = document.gather(tmp_path)
    assert sorted(processes) == [11, 12]
    assert [one.count for one in places] == [4]
    assert silent == [13]


def test_of_a_launcher_what_it_started_is_told():
    worker = document.Process(
        pid=11,
        argv=["train.py", "--rank", "0"],
        used=True,
        profile="native",
        operators=(document.Ran(name="aten::mul.Tensor", count=3),),
        fallbacks=(document.FellBack(name="aten::take", reason="no lowering", count=2, nbytes=2048, seconds=0.1),),
    )
    found = document.Document(
        command=["python", "launcher.py"],
        environment={},
        mode=None,
        redirect_cuda=True,
        ended="exit code 0",
        exit_code=0,
        seconds=1.0,
        main=None,
        others=[worker],
        silent=[12],
        places=[],
    )
    told = "\n".join(words.summary(found))
    for part in (
        "left no report",
        "train.py --rank 0",
        "1 operators, 3 calls",
        "1 operators, 2 calls, 2.00 KiB moved",
        "aten::take: 2 times, 2.00 KiB: no lowering",
        "nothing named it",
    ):
        assert part in told
