"""The report of ``shakedown exec`` in words. Computes nothing but sums."""

from __future__ import annotations

from pathlib import Path

from ..neuron.sizes import readable
from .document import Document, Process
from .job import Place

_MOST = 8  # rows of a kind on the screen; files hold all
_MOST_PLACES = 40


def summary(document: Document, most: int | None = _MOST) -> list[str]:
    """Lines of text; at most `most` rows of each kind, None for all."""
    what = " ".join(document.command[1:4]) + (" ..." if len(document.command) > 4 else "")
    lines = [
        f"shakedown exec: {document.label}",
        f"  {what}: {document.ended} after {document.seconds:.1f} s{_mode(document)}",
    ]
    main = document.main
    if main is None:
        lines.append(_row("", _without_report(document)))
    elif main.failure:
        lines.append(_row("report", f"could not be made: {main.failure.strip().splitlines()[-1]}"))
    elif not main.used:
        lines.append(_row("device", "was not used: no tensor was put on it"))
    else:
        lines += _process(main, document, most)
    lines += _others(document, most)
    if document.redirect_cuda:
        lines += _places(document.places, most and _MOST_PLACES)
    return lines


def _mode(document: Document) -> str:
    if document.mode is not None:
        return f"; mode {document.mode}"
    if document.main is None or not document.main.used:
        return ""
    return f"; mode {'adaptive' if document.main.adaptive else 'eager'}, as the environment says"


def _row(name: str, text: str) -> str:
    return f"  {name:<12}{text}"


def _without_report(document: Document) -> str:
    if document.silent:
        return f"the script's process left no report: it ended with {document.ended} before Python could"
    return "the script's own process did not import torch, so nothing ran on the device in it"


def _cut(rows: list[str], most: int | None) -> list[str]:
    if most is None or len(rows) <= most:
        return rows
    return [*rows[:most], f"... and {len(rows) - most} more (--report or --json has all)"]


def _process(main: Process, document: Document, most: int | None) -> list[str]:
    calls = sum(one.count for one in main.operators if not one.name.startswith("graph::"))
    kinds = sum(not one.name.startswith("graph::") for one in main.operators)
    lines = [_row("profile", main.profile), _row("on device", f"{kinds} operators, {calls} calls")]
    fell = sum(one.count for one in main.fallbacks)
    moved = sum(one.nbytes for one in main.fallbacks)
    lines.append(
        _row("on the CPU", f"{len({f.name for f in main.fallbacks})} operators, {fell} calls, {readable(moved)} moved")
        if fell
        else _row("on the CPU", "none: nothing fell back")
    )
    fallbacks = [
        f"{one.name}: {one.count} {_times(one.count)}, {readable(one.nbytes)}: {one.reason}" for one in main.fallbacks
    ]
    lines += [_row("", text) for text in _cut(fallbacks, most)]
    lines += [_row("copies", f"{one.name}: {one.count}, {readable(one.nbytes)}") for one in main.transfers]
    programs = main.programs
    lines.append(
        _row(
            "programs",
            f"{programs.compiled} compiled in {programs.compile_seconds:.1f} s, {programs.cached} from the cache",
        )
    )
    lines += _graphs(main, document, most)
    if main.memory.peak_bytes is not None:
        lines.append(_row("memory", f"at most {readable(main.memory.peak_bytes)} on the device"))
    return lines


def _graphs(main: Process, document: Document, most: int | None) -> list[str]:
    graphs = main.graphs.get("graphs", [])
    if not graphs:
        if document.mode != "compile":
            return []
        return [_row("graphs", "none: the script asks for no torch.compile, and this mode compiles nothing by itself")]
    breaks, recompiles = main.graphs.get("breaks", []), main.graphs.get("recompiles", [])
    runs = sum(one.count for one in main.operators if one.name.startswith("graph::"))
    lines = [_row("graphs", f"{len(graphs)} captured, {runs} runs, {len(breaks)} breaks, {len(recompiles)} recompiles")]
    told = [
        f"break at {_short(one['file'])}:{one['line']}: {one['kind']} ({one['count']} {_times(one['count'])})"
        for one in breaks
    ]
    return lines + [_row("", text) for text in _cut(told, most)]


def _others(document: Document, most: int | None) -> list[str]:
    lines = []
    if document.others:
        used = [one for one in document.others if one.used]
        calls = sum(ran.count for one in used for ran in one.operators)
        text = f"{len(document.others)} more imported torch, {len(used)} of them used the device"
        lines.append(_row("processes", text + (f" ({calls} calls)" if used else "")))
        if document.main is None or not document.main.used:  # a launcher: what it starts is what matters
            for one in used[:most]:
                lines.append(_row("process", f"{one.pid}: {' '.join(one.argv)[:100]}"))
                lines += _process(one, document, most)
    if document.silent and document.main is not None:
        lines.append(_row("processes", f"{len(document.silent)} ended without a report"))
    return lines


def _places(places: list[Place], most: int | None) -> list[str]:
    if not places:
        return [_row("cuda", "nothing named it")]
    lines = []
    for outcome in ("not redirected", "redirected", "answered", "ignored"):
        rows = [one for one in places if one.outcome == outcome]
        if not rows:
            continue
        lines.append(_row("cuda", f"{outcome}: {len(rows)} {'place' if len(rows) == 1 else 'places'}"))
        lines += [_row("", text) for text in _cut([_place(one) for one in rows], most)]
    return lines


def _place(one: Place) -> str:
    where = f"{_short(one.file)}:{one.line}" if one.file else "no line of Python"
    times = f" x{one.count}" if one.count > 1 else ""
    via = f" (by {one.via})" if one.via else ""
    return f"{where}  {one.call} -> {one.became}{times}{via}"


def _short(file: str) -> str:
    """A path below the working directory without it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


def _times(count: int) -> str:
    return "time" if count == 1 else "times"
