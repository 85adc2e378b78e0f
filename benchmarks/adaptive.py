"""The rows of adaptive eager. It is chosen per process, so each side is a process of its own, and they take turns."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from .decoder import MEDIUM, SMALL
from .measure import QUIET, compare, quietest
from .processes import PROC
from .rows import Row, compared
from .side import Child

_EAGER = "the same in plain eager"
_STALL_STEPS, _STALL_MOST, _STALL_CHUNK = 200, 2000, 50
_GROUP_STEPS, _CONSTANT_FROM = 500, 10
_MEMORY_STEPS, _MEMORY_FROM, _MEMORY_CHUNK = 5000, 500, 500
_FLAT = 16  # MiB: what allocators keep varies by a few


def _fused_share(before: dict[str, int], after: dict[str, int]) -> float:
    """The share of the operators between two states that ran in fused programs."""
    fused, each = (after[k] - before[k] for k in ("fused", "one_by_one"))
    return fused / max(1, fused + each)


def _what_ran(child: Child, before: dict[str, int], settled: bool = True) -> dict[str, Any]:
    """For a row's detail: the share of operators since `before` that ran fused, and the state of adaptive eager."""
    report = child.report()
    return {
        "fused_share": _fused_share(before, report["state"]),
        "settled": settled,
        "programs_failed": report["status"]["programs"]["failed"],
        "compile_seconds": report["compile_seconds"],
        "fallbacks": report["fallbacks"],
        "status": report["status"],
    }


def _valid(row: Row) -> Row:
    """`row`, unless nothing in it ran fused: then it says nothing about adaptive eager."""
    if row.detail["fused_share"]:
        return row
    return replace(row, figure=f"invalid ({row.figure}): nothing ran fused", met=False)


def _settled(work: str, peers: dict[str, tuple[str, float]], name: str, repeats: int, blocks: int) -> Iterator[Row]:
    """`work` by adaptive eager against each of `peers`, (what it is called, limit) by work; all programs compiled before."""
    with ExitStack() as stack:
        ours = stack.enter_context(Child(work, adaptive=True))
        settled = ours.settle()
        for other, (label, limit) in peers.items():
            with Child(other) as peer:
                before = ours.report()["state"]
                found = compare(ours, peer, repeats=repeats, blocks=blocks)
                yield _valid(compared(name, label, limit, found, **_what_ran(ours, before, settled)))


def adds() -> Iterator[Row]:
    name = "adaptive, chain of 100 adds on 64x64, then synchronize"
    return _settled("adds", {"adds": (_EAGER, 0.70)}, name, repeats=50, blocks=11)


def small() -> Iterator[Row]:
    peers = {"small": (_EAGER, 0.55), "small on the CPU": ("CPU PyTorch eager", 1.5)}
    return _settled("small", peers, f"adaptive, step of the small decoder ({SMALL})", repeats=20, blocks=11)


def medium() -> Iterator[Row]:
    peers = {
        "medium, compiled": ("torch.compile's forward and backward, AdamW eager", 1.10),
        "medium on the CPU": ("CPU PyTorch eager", 0.85),
    }
    return _settled("medium", peers, f"adaptive, step of the medium decoder ({MEDIUM})", repeats=1, blocks=7)


def _first_steps(adaptive: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """At least the first steps of a new process after one that is not counted, and more until some were fused; its report."""
    with Child("small", adaptive=adaptive) as child:
        child.seconds(1)
        steps = child.steps(_STALL_STEPS)
        while adaptive and len(steps) < _STALL_MOST and not _fused_share(steps[-_STALL_CHUNK], steps[-1]):
            steps += child.steps(_STALL_CHUNK)
        return steps, child.report()


def stall() -> Iterator[Row]:
    """The first steps, while fused programs compile in the background and are swapped in.

    Eager's executables come from the persistent cache (its side runs first) and plans from one step that is not counted. The
    two do not take turns by the step: adaptive eager's background work would run in eager's turn, and be free.
    """
    ((eager, _), (ours, report)), foreign = quietest(lambda: (_first_steps(False), _first_steps(True)))
    median = statistics.median(s["seconds"] for s in eager)
    slowest = sorted(((s["seconds"] / median, number) for number, s in enumerate(ours, 1)), reverse=True)
    noise = sorted((s["seconds"] / median for s in eager), reverse=True)
    ready = [s["ready"] for s in ours]
    detail = {
        "foreign": foreign,
        "noisy": foreign > QUIET,
        "steps": len(ours),
        "eager_median_seconds": median,
        "slowest": [{"eager_medians": ratio, "step": number} for ratio, number in slowest[:5]],
        "eager_slowest": noise[:5],
        "last_50_median": statistics.median(s["seconds"] for s in ours[-50:]) / median,
        "programs_arrived": {n: count for n, (count, old) in enumerate(zip(ready, [0, *ready]), 1) if count != old},
        "compile_seconds": report["compile_seconds"],
        "programs_failed": report["status"]["programs"]["failed"],
        "fused_share": _fused_share(ours[0], ours[-1]),
        "fused_share_of_last_step": _fused_share(ours[-2], ours[-1]),
        "seconds": {"ours": [s["seconds"] for s in ours], "eager": [s["seconds"] for s in eager]},
    }
    worst = slowest[0][0]
    figure = f"{worst:.2f}x; 2nd {slowest[1][0]:.2f}x, 5th {slowest[4][0]:.2f}x"
    peer = f"eager's median step (eager's own slowest: {noise[0]:.2f}x)"
    name = f"adaptive, slowest of the first {len(ours)} steps of the small decoder"
    yield _valid(Row(name, peer, "<= 2.00x", figure, worst <= 2, detail, worst))


def fresh() -> Iterator[Row]:
    """Nothing repeats and nothing is cached, so nothing is fused: what recording costs where it cannot pay."""
    with ExitStack() as stack:
        sides = []
        for adaptive in (True, False):
            cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="shakedown-benchmark-"))
            sides.append(stack.enter_context(Child("new shapes", adaptive=adaptive, cache=cache)))
        ours, peer = sides
        before = ours.report()["state"]
        found = compare(ours, peer, repeats=10, blocks=6, warmup=1)
        name = "adaptive, small MLP whose batch has a new size each step, nothing cached"
        yield compared(name, _EAGER, 1.10, found, **_what_ran(ours, before))


def groups() -> Iterator[Row]:
    """Steps that are the same ask for the same programs. Each is awaited, so that the count is not one of time."""
    with Child("small", adaptive=True) as child:
        states = child.steps(_GROUP_STEPS, wait=True)
        counts = [(s["groups"], s["programs"]) for s in states]
        last_change = max((n for n in range(1, len(counts)) if counts[n] != counts[n - 1]), default=0) + 1
        segments, programs = counts[-1]
        detail = {
            "constant_from_step": last_change,
            "changes": {n + 1: counts[n] for n in range(len(counts)) if n == 0 or counts[n] != counts[n - 1]},
            **_what_ran(child, states[_CONSTANT_FROM - 1]),
        }
    figure = f"step {last_change}: {segments} segments, {programs} programs"
    name = f"adaptive, {_GROUP_STEPS} equal steps of the small decoder: segments and programs constant"
    target = f"from step {_CONSTANT_FROM} on"
    yield _valid(Row(name, "none", target, figure, last_change <= _CONSTANT_FROM, detail))


def memory() -> Iterator[Row]:
    """Resident memory while nothing new comes any more."""
    name = f"adaptive, memory from step {_MEMORY_FROM} to {_MEMORY_STEPS} of the small decoder"
    target = f"<= +{_FLAT} MiB in both processes"
    if not PROC.exists():
        yield Row(name, "none", target, "not measured: no /proc", None, {})
        return
    with Child("small", adaptive=True) as child:
        settled = child.settle()  # a program that arrives is memory too, but not a leak
        start = child.report()
        held, before = {0: start["resident"]}, start["state"]
        for step in range(_MEMORY_CHUNK, _MEMORY_STEPS + 1, _MEMORY_CHUNK):
            child.seconds(_MEMORY_CHUNK)
            held[step] = child.report()["resident"]
        grown = {who: held[_MEMORY_STEPS][who] - held[_MEMORY_FROM][who] for who in ("process", "compiler")}
        detail = {"resident_mib": held, "grown_mib": grown, **_what_ran(child, before, settled)}
    figure = ", ".join(f"{who} {held[_MEMORY_FROM][who]:.0f} {mib:+.1f} MiB" for who, mib in grown.items())
    yield _valid(Row(name, "none", target, figure, max(grown.values()) <= _FLAT, detail))


CASES: dict[str, Callable[[], Iterator[Row]]] = {
    "adaptive-adds": adds,
    "adaptive-small": small,
    "adaptive-medium": medium,
    "adaptive-stall": stall,
    "adaptive-fresh": fresh,
    "adaptive-groups": groups,
    "adaptive-memory": memory,
}
