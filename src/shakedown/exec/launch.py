"""The script's process: its environment, its start, the signals that are passed on, its end."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import FrameType
from typing import Literal

from shakedown.neuron import autoload, config
from shakedown.neuron.errors import ConfigError

from . import document, job

Mode = Literal["eager", "adaptive", "compile"]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Those that a terminal sends to the whole group, and so to the script already, and those that only this process gets.
_OF_A_TERMINAL = ("SIGINT", "SIGQUIT")
_OTHERS = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


class BadRequest(ValueError):
    """The run cannot be started: what is wrong, and what to do."""


@dataclass(frozen=True)
class Request:
    """What to run, and how. ``target`` is ``SCRIPT`` or ``-m MODULE``, as Python takes it, with the script's arguments."""

    target: tuple[str, ...]
    mode: Mode | None = None
    profile: str | None = None
    cache: str | None = None
    memory_limit: str | None = None
    device_variables: tuple[str, ...] = ()
    redirect_cuda: bool = False
    default_device: bool = False
    strict: bool = False
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


def check(request: Request) -> None:
    """Whether the script can be started at all.

    Raises:
        BadRequest: it is not there, it is not Python, or this process would not get the device.
    """
    if request.environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        raise BadRequest("TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps the device out of `import torch`; unset it")
    try:
        choice = config.DEVICE()
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    if choice == "off":
        raise BadRequest("SHAKEDOWN_DEVICE=off keeps the device away; unset it")
    if choice == "auto" and autoload._vendor_package_installed():
        raise BadRequest(
            "torch-neuronx is installed, so `python SCRIPT` runs on its device; SHAKEDOWN_DEVICE=rehearsal runs it on this one"
        )
    if request.target[0] == "-m":
        _check_module(request.target[1])
    elif request.target[0] != "-":
        _check_script(Path(request.target[0]))


def _check_script(path: Path) -> None:
    try:
        if path.is_dir():
            if not (path / "__main__.py").is_file():
                raise BadRequest(f"{path} is a directory without __main__.py; name a script")
            return
        content = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"cannot read the script {path}: {error.strerror}") from None
    if content.startswith(MAGIC_NUMBER) or zipfile.is_zipfile(path):
        return
    try:
        compile(content, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadRequest(f"{path}, line {error.lineno}: {type(error).__name__}: {error.msg}") from None
    except ValueError as error:
        raise BadRequest(f"{path} is not a Python script: {error}") from None


def _check_module(name: str) -> Path | None:
    """The file that ``python -m NAME`` runs, None where it is no file. Nothing of it is imported.

    Raises:
        BadRequest: there is no such module.
    """
    top, *rest = name.split(".")
    found = _top_level(top)
    for part in rest:
        if found is None:
            break
        if found.submodule_search_locations is None:
            raise BadRequest(f"{found.name!r} is no package, so {name!r} is no module")
        found = PathFinder.find_spec(f"{found.name}.{part}", list(found.submodule_search_locations))
    if found is None:
        raise BadRequest(f"no module named {name!r} is on Python's path")
    if found.submodule_search_locations is not None:
        found = PathFinder.find_spec(f"{name}.__main__", list(found.submodule_search_locations))
        if found is None:
            raise BadRequest(f"{name!r} is a package without __main__; name one of its modules")
    return Path(found.origin) if found.has_location and found.origin else None


def _top_level(name: str) -> ModuleSpec | None:
    """Where Python would find the module `name`, which has no dot, with the working directory first, as ``-m`` has it."""
    before = list(sys.path)
    sys.path[:1] = [os.getcwd()]
    try:
        return importlib.util.find_spec(name)
    except (ValueError, ImportError):
        return None
    finally:
        sys.path[:] = before


def settings(request: Request) -> dict[str, str]:
    """The variables that the options stand for.

    Raises:
        BadRequest: an option's value cannot be used.
    """
    found: dict[str, str] = {}
    if request.mode is not None:
        found[config.ADAPTIVE.name] = "1" if request.mode == "adaptive" else "0"
        if request.mode == "compile":
            found[config.DEFAULT_BACKEND.name] = "neuron"
    if request.profile is not None:
        _check_profile(request.profile)
        found[config.PROFILE.name] = request.profile
    if request.cache == "off":
        found[config.CACHE.name] = "0"
    elif request.cache is not None:
        found[config.CACHE.name] = "1"
        found[config.CACHE_DIR.name] = str(Path(request.cache).absolute())
    if request.memory_limit is not None:
        found[config.MEMORY_LIMIT.name] = _memory(request.memory_limit)
    if request.strict:
        found[config.STRICT_FALLBACK.name] = "1"
    for text in request.device_variables:
        name, equals, value = text.partition("=")
        if not _NAME.fullmatch(name):
            raise BadRequest(f"--device-variable {text!r} names no variable; write NAME, or NAME=value")
        found[name] = value if equals else "neuron"
    return found


def _check_profile(name: str) -> None:
    """A profile is read by the process that uses it; here only whether there is one, since reading it loads JAX."""
    from shakedown.neuron import profiles

    if name not in profiles.shipped() and not Path(name).is_file():
        raise BadRequest(f"--profile {name!r} is neither a file nor one of {', '.join(profiles.shipped())}")


def _memory(text: str) -> str:
    try:
        config.MEMORY_LIMIT.parse(text)
        return text
    except ValueError as allowed:
        raise BadRequest(f"--memory-limit {text!r} must be {allowed}") from None


def run(request: Request) -> document.Document:
    """Run the script to its end, with this process's standard streams, and say what happened in it and its children.

    Raises:
        BadRequest: it cannot be started.
    """
    check(request)
    chosen = settings(request)
    with tempfile.TemporaryDirectory(prefix="shakedown-exec-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        job.Job(folder, request.redirect_cuda, request.default_device).write()
        environment = {**request.environment, **chosen, config.EXEC.name: folder}
        started = time.monotonic()
        with _signals_to_the_script() as child_is:
            try:
                child = subprocess.Popen([sys.executable, *request.target], env=environment)
            except OSError as error:
                raise BadRequest(f"cannot start {sys.executable}: {error.strerror}") from None
            child_is(child)
            code = child.wait()
        processes, places, silent = document.gather(root)
        if request.redirect_cuda:
            places = document.merged([*places, *_comparisons(request.target)])
    return document.Document(
        command=[sys.executable, *request.target],
        environment=chosen,
        mode=request.mode,
        redirect_cuda=request.redirect_cuda,
        ended=f"signal {_signal_name(-code)}" if code < 0 else f"exit code {code}",
        exit_code=128 - code if code < 0 else code,
        seconds=round(time.monotonic() - started, 3),
        main=processes.pop(child.pid, None),
        others=sorted(processes.values(), key=lambda p: p.pid),
        silent=silent,
        places=places,
    )


_COMPARISONS = ("cuda-compare", "cuda-prefix")


def _comparisons(target: tuple[str, ...]) -> list[job.Place]:
    """Places of the script's source, and of what it imports of its own, that compare something with "cuda".

    What they compare is a string of Python's, which nothing can redirect; so they are found as ``shakedown scan`` finds them,
    whether they ran or not.
    """
    from shakedown.readiness.errors import BadInput
    from shakedown.readiness.scan import RULES, root_of, scan
    from shakedown.readiness.workload import resolve

    why = {rule.id: rule.instead for rule in RULES}
    script = _check_module(target[1]) if target[0] == "-m" else Path(target[0])
    if script is None or not script.is_file() or script.suffix != ".py":
        return []
    try:
        found = scan(resolve(str(script)))
    except (BadInput, OSError, RecursionError):  # the script ran; what its source says is extra
        return []
    return [
        job.Place(
            file=str(root_of(script.resolve()) / hit.path),
            line=hit.line,
            call=hit.text[:200],
            became=f"false on the device; write {why[hit.rule]}",
            outcome="not redirected",
            rule=hit.rule,
            library=False,
            count=0,
        )
        for hit in found.hits
        if hit.rule in _COMPARISONS
    ]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


@contextmanager
def _signals_to_the_script() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """While open, signals to this process go to the script, once. Handlers are not inherited, as ignoring a signal would be."""
    script: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if not script:
            early.append(number)
        elif not (_signal_name(number) in _OF_A_TERMINAL and _in_foreground()):
            script[0].send_signal(number)

    def child_is(child: subprocess.Popen[bytes]) -> None:
        script.append(child)
        for number in early:
            child.send_signal(number)

    before = {}
    for name in (*_OF_A_TERMINAL, *_OTHERS):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield child_is
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether a terminal's Ctrl-C reaches this process, and with it the script, which is of the same group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
