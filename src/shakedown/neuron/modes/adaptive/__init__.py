"""``torch.neuron.adaptive``: operators are recorded and run in fused programs that compile in the background.

On with ``SHAKEDOWN_ADAPTIVE=1``, read when Python starts. docs/adaptive.md says how it works.

Imported by ``import torch``: the recorder and all it needs wait for the device's first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import config
from ...errors import ConfigError

if TYPE_CHECKING:
    from .group import Group
    from .recorder import Recorder

_at_start: bool | None = None
_blocking = False  # operators are to be complete when their call returns: nothing is recorded
_recorder: Recorder | None = None


def note_start() -> None:
    """Read the setting, once and for all: when the device is registered."""
    global _at_start, _blocking
    if _at_start is None:
        _at_start, _blocking = config.ADAPTIVE(), config.LAUNCH_BLOCKING()


def enabled() -> bool:
    """Whether this process records operators: the setting, unless ``NEURON_LAUNCH_BLOCKING`` was on when Python started.

    Raises:
        ConfigError: the variable was changed after Python had started, where it has no effect.
    """
    now = config.ADAPTIVE()
    if _at_start is not None and now is not _at_start:
        raise ConfigError(
            f"{config.ADAPTIVE.name} was changed to {'on' if now else 'off'} after Python had started. Adaptive eager is "
            f"{'on' if _at_start else 'off'} in this process for good: set the variable before Python starts"
        )
    return now and not _blocking


def start() -> Recorder:
    """Make the recorder. Called once, when the device starts and :func:`enabled`."""
    global _recorder
    from .recorder import Recorder

    _recorder = Recorder()
    return _recorder


def flush(reason: str) -> None:
    """Run what is recorded, if anything is; `reason` is kept in the event stream."""
    if _recorder is not None:
        _recorder.flush(reason)


def submit(reason: str) -> None:
    """Run what is recorded, if anything is; an error is kept for the next synchronisation."""
    if _recorder is not None:
        _recorder.submit(reason)


def status() -> dict[str, Any]:
    """What has happened since the start or the last :func:`reset`.

    ``operators``: how many ran in fused programs, how many one by one, how many are recorded and wait; ``flushes``: how often,
    by reason; ``groups`` and ``programs``: distinct segments, and fused programs that are ready, compiling or failed;
    ``bytes_saved``: of results that fused programs did not have to return; ``compiler``: the background process.
    """
    found: dict[str, Any] = {"enabled": enabled()}
    if _recorder is None:
        return found
    groups = _recorder.groups.all()
    programs = [p for g in groups for p in g.programs]
    compiler = _recorder.compiler
    return found | {
        "operators": {
            "fused": _recorder.operators["fused"],
            "one_by_one": _recorder.operators["each"],
            "waiting": _recorder.waiting(),
        },
        "flushes": dict(_recorder.flushes),
        "groups": len(groups),
        "programs": {
            "ready": sum(p.run is not None for p in programs),
            "compiling": sum(p.run is None and p.error is None for p in programs),
            "failed": sum(p.error is not None for p in programs),
        },
        "bytes_saved": sum(g.bytes_saved for g in groups),
        "compiler": {"state": compiler.state(), "queued": compiler.waiting, "starts": compiler.starts},
    }


def groups() -> list[dict[str, Any]]:
    """Each distinct segment: its operators in order and how often it ran, the most often run first.

    ``lines`` (where each operator was recorded) are None unless ``SHAKEDOWN_STACK_TRACE=1``; ``first_seen`` is in
    seconds since the epoch; ``compile_seconds`` and ``errors`` have one item for each program of the group.
    """
    if _recorder is None:
        return []
    rows = [
        {
            "name": g.name,
            "operators": list(g.operators),
            "lines": list(g.lines),
            "runs_fused": g.runs_fused,
            "runs_one_by_one": g.runs_each,
            "first_seen": g.first_seen,
            "compile_seconds": [p.seconds for p in g.programs if p.run is not None],
            "errors": [p.error for p in g.programs if p.error is not None],
            "bytes_saved": g.bytes_saved,
        }
        for g in _recorder.groups.all()
    ]
    return sorted(rows, key=lambda row: -(row["runs_fused"] + row["runs_one_by_one"]))


def segments() -> list[tuple[tuple[Any, ...], Group]]:
    """Each group with the code of its segments, for whoever counts what programs cost."""
    return [] if _recorder is None else _recorder.groups.items()


def wait(seconds: float | None = None) -> bool:
    """Wait until no fused program is queued or being compiled; False if `seconds` were not enough."""
    return _recorder is None or _recorder.compiler.wait(seconds)


def reset() -> None:
    """Run what is recorded, then forget groups, fused programs and counts."""
    if _recorder is not None:
        _recorder.reset()
