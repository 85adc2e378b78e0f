"""Which commit a folder's code is, and whether it was changed since. Asks ``git``, and imports no torch."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import shakedown

from ..evidence.identity import Fact

_GIT_SECONDS = (
    10.0  # a status of a very large checkout on a slow disk takes this long; the trial does not wait for more
)


class _NoAnswer(Exception):
    """git is not there, knows no such thing, or takes too long; the message is the reason."""


def _git(folder: Path, *arguments: str) -> str:
    # Without optional locks, so that asking never writes into somebody's checkout.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_GIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise _NoAnswer(f"git {arguments[0]} took over {_GIT_SECONDS:.0f} s") from None
    except OSError as error:
        raise _NoAnswer(f"git cannot be started: {error.strerror}") from None
    if done.returncode:
        raise _NoAnswer((done.stderr.strip().splitlines() or [f"git {arguments[0]} failed"])[0])
    return done.stdout


@cache
def workload(path: Path) -> Fact:
    """The commit of the repository that holds the workload file, and what of it differs from that commit."""
    name = "workload commit"
    folder = path.parent
    try:
        commit = _git(folder, "rev-parse", "HEAD").strip()
        changed = _changed(folder)
        tracked = bool(_git(folder, "ls-files", "--", path.name).strip())
        itself = bool(_git(folder, "status", "--porcelain", "--", path.name).strip())
    except _NoAnswer as reason:
        return Fact(group="source", name=name, unknown=str(reason))
    state = "clean" if not changed else f"{changed} tracked files changed since"
    if not tracked:
        state += "; the workload file is not in it"
    elif itself:
        state += ", the workload file among them"
    return Fact(group="source", name=name, value=f"{commit} ({state})", source="git")


@cache
def package() -> Fact:
    """The commit of this package's own source: of its checkout, or of the one that pip installed it from."""
    name = "shakedown commit"
    folder = Path(shakedown.__file__).parent
    try:
        # A virtual environment inside somebody else's checkout is not a checkout of this package.
        if not _git(folder, "ls-files", "--", "__init__.py").strip():
            raise _NoAnswer(f"{folder} is in no checkout of this package")
        commit, changed = _git(folder, "rev-parse", "HEAD").strip(), _changed(folder)
    except _NoAnswer as reason:
        installed = _installed_commit()
        if installed:
            return Fact(group="source", name=name, value=installed, source="direct_url.json of the installation")
        return Fact(group="source", name=name, unknown=f"{reason}, and pip did not install it from a repository")
    state = f"{changed} tracked files changed since" if changed else "clean"
    return Fact(group="source", name=name, value=f"{commit} ({state})", source="git")


def _changed(folder: Path) -> int:
    return len(_git(folder, "status", "--porcelain", "--untracked-files=no").splitlines())


def _installed_commit() -> str:
    try:
        text = metadata.distribution("shakedown").read_text("direct_url.json")
        return str(json.loads(text or "{}").get("vcs_info", {}).get("commit_id", ""))
    except (metadata.PackageNotFoundError, ValueError):
        return ""
