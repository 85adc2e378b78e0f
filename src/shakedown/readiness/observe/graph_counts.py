"""What a watch on Dynamo has counted, and the document of what was added since a point in time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shakedown.dynamo import GivenUp, function_name, is_resumed

from ..evidence import graphs as documents
from ..evidence.graphs import GraphRecord


@dataclass
class CapturedGraph:
    compile_id: str
    operators: int
    place: tuple[str, str, int] | None = None  # function, file, line: known once Dynamo is done with it
    runs: int = 0


@dataclass
class Row:
    calls: int = 0
    compiled: int = 0
    ran_eager: int = 0
    without_graph: int = 0


@dataclass
class Seen:
    """Everything counted, ever growing; a case is the difference between two copies of its counts."""

    graphs: list[CapturedGraph] = field(default_factory=list)
    graph_runs: int = 0
    breaks: Counter[tuple[str, str, str, str, int, bool]] = field(default_factory=Counter)
    recompilations: Counter[tuple[str, str, int, str]] = field(default_factory=Counter)
    frames: dict[GivenUp, int | None] = field(default_factory=dict)  # calls as written, None where they are not counted
    splits: list[documents.SplitGraph] = field(default_factory=list)
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)


@dataclass
class Counts:
    """Where the counts stood."""

    graphs: int = 0
    runs: dict[int, int] = field(default_factory=dict)
    breaks: Counter[tuple[str, str, str, str, int, bool]] = field(default_factory=Counter)
    recompilations: Counter[tuple[str, str, int, str]] = field(default_factory=Counter)
    frames: dict[GivenUp, int | None] = field(default_factory=dict)
    splits: int = 0
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)

    @classmethod
    def of(cls, seen: Seen) -> Counts:
        return cls(
            graphs=len(seen.graphs),
            runs={number: graph.runs for number, graph in enumerate(seen.graphs)},
            breaks=seen.breaks.copy(),
            recompilations=seen.recompilations.copy(),
            frames=dict(seen.frames),
            splits=len(seen.splits),
            rows={shapes: replace(row) for shapes, row in seen.rows.items()},
        )

    def new_calls(self, seen: Seen) -> list[tuple[GivenUp, int | None]]:
        """Functions that were given up, with their calls since; one whose calls are not counted is given each time."""
        return [
            (frame, None if calls is None else calls - (self.frames.get(frame) or 0))
            for frame, calls in seen.frames.items()
        ]


def _limit(frame: GivenUp, calls: int | None) -> documents.LimitEvent:
    setting, allowed, guard = frame.limit or ("", 0, "")
    return documents.LimitEvent(
        function=function_name(frame.code.co_name),
        file=frame.code.co_filename,
        line=frame.code.co_firstlineno,
        limit=setting,
        allowed=allowed,
        guard=guard,
        ran_eager=calls or 0,
    )


def _skip(frame: GivenUp, calls: int | None) -> documents.SkippedFunction:
    failure, reason, at_line = frame.failure
    return documents.SkippedFunction(
        function=function_name(frame.code.co_name),
        file=frame.code.co_filename,
        line=frame.code.co_firstlineno,
        at_line=at_line,
        failure=failure,
        reason=reason,
        ran_eager=calls,
    )


def document(seen: Seen, base: Counts, regions: documents.Regions | None, unseen: list[str]) -> GraphRecord:
    """What was seen since `base`."""
    breaks, recompilations = seen.breaks - base.breaks, seen.recompilations - base.recompilations
    graphs = []
    for number, graph in enumerate(seen.graphs):
        runs = graph.runs - base.runs.get(number, 0)
        if number >= base.graphs or runs:
            function, file, line = graph.place or ("not known", "", 0)
            graphs.append(
                documents.CapturedGraph(
                    compile_id=graph.compile_id,
                    function=function_name(function),
                    file=file,
                    line=line,
                    resumed=is_resumed(function),
                    operators=graph.operators,
                    runs=runs,
                )
            )
    by_reason: Counter[str] = Counter()
    for (kind, *_), count in breaks.items():
        by_reason[kind] += count
    return GraphRecord(
        captured=len(seen.graphs) - base.graphs,
        calls=sum(graph.operators for graph in seen.graphs[base.graphs :]),
        breaks=dict(by_reason),
        captured_before=base.graphs,
        graphs=graphs,
        break_sites=[
            documents.GraphBreak(
                kind=kind, context=context, function=function, file=file, line=line, skipped=skipped, count=count
            )
            for (kind, context, function, file, line, skipped), count in breaks.items()
        ],
        recompilations=[
            documents.Recompilation(function=function, file=file, line=line, guard=guard, count=count)
            for (function, file, line, guard), count in recompilations.items()
        ],
        limits=[_limit(f, calls) for f, calls in base.new_calls(seen) if f.limit is not None and calls],
        skipped=[_skip(f, calls) for f, calls in base.new_calls(seen) if f.limit is None and calls != 0],
        by_operator=documents.run_by_operator(seen.splits[base.splits :]),
        splits=documents.in_pieces(seen.splits[base.splits :]),
        shapes=[
            documents.ShapeRow(
                shapes=shapes_text(shapes),
                calls=row.calls - old.calls,
                compiled=row.compiled - old.compiled,
                ran_eager=row.ran_eager - old.ran_eager,
                without_graph=row.without_graph - old.without_graph,
            )
            for shapes, row in seen.rows.items()
            if row.calls > (old := base.rows.get(shapes, Row())).calls
        ],
        regions=regions,
        unseen=unseen,
    )


def shapes_text(shapes: tuple[Any, ...]) -> str:
    """``ids 2x8, labels 2x8``; a number's shape is ``scalar``."""

    def one(shape: Any) -> str:
        return "x".join(str(int(size)) for size in shape) or "scalar"

    return ", ".join(one(s) if isinstance(s, torch.Size) else f"{s[0]} {one(s[1])}" for s in shapes) or "no tensors"
