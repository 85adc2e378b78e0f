"""What ``torch.compile`` captured as graphs, what it did not, and why."""

from __future__ import annotations

from pydantic import Field

from .files import Frozen


class CapturedGraph(Frozen):
    """One graph that Dynamo captured: the function it begins in, its operators, and how often its compiled form ran."""

    compile_id: str  # Dynamo's own, frame/compilation, as its logs have it
    function: str
    file: str
    line: int  # where the function begins; a resumed one keeps its function's name
    resumed: bool  # begins after a graph break
    operators: int
    runs: int


class GraphBreak(Frozen):
    """One place where capture stopped. ``kind`` is PyTorch's name for the reason, ``context`` what it saw there.

    ``skipped``: capture could not go on behind this place, so the whole function runs as written.
    """

    kind: str
    context: str
    function: str
    file: str
    line: int
    skipped: bool
    count: int


class Recompilation(Frozen):
    """A function was compiled again because a guard did not hold: PyTorch's text of that guard."""

    function: str
    file: str
    line: int
    guard: str
    count: int


class LimitEvent(Frozen):
    """Dynamo gave a function up after too many compilations.

    ``ran_eager`` counts its calls that ran as written from then on, the one that met the limit included.
    """

    function: str
    file: str
    line: int
    limit: str  # name of the setting in torch._dynamo.config
    allowed: int
    guard: str  # that failed last
    ran_eager: int


class SkippedFunction(Frozen):
    """A function that Dynamo does not compile at all. ``ran_eager`` is None where its calls cannot be counted."""

    function: str
    file: str
    line: int
    at_line: int
    failure: str  # type of PyTorch's exception
    reason: str
    ran_eager: int | None


class ByOperator(Frozen):
    """A graph that was captured and that the backend could not make one program of: it runs operator by operator."""

    graph: str
    reason: str


class OutsideOperator(Frozen):
    """An operator of a captured graph that is in no program. ``place`` is ``file:line (code)``, "" where it is not known."""

    operator: str
    reason: str
    place: str


class SplitGraph(Frozen):
    """A graph that was captured and that the backend split into several programs, around operators that it cannot lower.

    ``programs`` is 0 where nothing is left for a program, or where the graph runs operator by operator; then ``reason`` says
    why, unless an operator does.
    """

    graph: str
    programs: int
    outside: list[OutsideOperator]
    reason: str = ""


class ShapeRow(Frozen):
    """Calls of the compiled function with inputs of one shape, and the graphs that they compiled.

    ``ran_eager``: calls in which a function ran as written because of a limit or a skip. ``without_graph``: calls in
    which no graph ran at all, whatever the reason.
    """

    shapes: str
    calls: int
    compiled: int
    ran_eager: int
    without_graph: int


class Regions(Frozen):
    """Forward and backward pass of a few steps of their own, apart from timed steps.

    ``inside`` and ``outside`` count operators at PyTorch's dispatcher; a program that runs a whole graph shows none of
    those inside, so seconds tell more; ``inside_operators`` names them: what runs between the programs of a graph that was
    split, or all of one that runs operator by operator. ``engine`` are the autograd engine's own (the first gradient,
    accumulation).
    ``seconds`` and ``seconds_inside`` are wall time of each step, the device awaited at each end of a graph.
    """

    steps: int
    graph_runs: int
    backward_runs: int
    inside: int
    outside: dict[str, int]
    engine: int
    seconds: list[float]
    seconds_inside: list[float]
    inside_operators: dict[str, int] = Field(default={})


class Graphs(Frozen):
    """What ``torch.compile`` captured until the end of a case, cumulated over the process: graphs, operators in them, and
    graph breaks by PyTorch's reason.
    """

    captured: int
    calls: int
    breaks: dict[str, int]


class GraphRecord(Graphs):
    """What ``torch.compile`` did in one case: differences to the end of the case before it in the same process.

    ``unseen`` names what this version of PyTorch does not let one see.
    """

    schema_version: str = "shakedown.graphs/1"
    captured_before: int  # graphs of the process before this case
    graphs: list[CapturedGraph]
    break_sites: list[GraphBreak]
    recompilations: list[Recompilation]
    limits: list[LimitEvent]
    skipped: list[SkippedFunction]
    by_operator: list[ByOperator]
    splits: list[SplitGraph] = Field(default=[])
    shapes: list[ShapeRow]
    regions: Regions | None
    unseen: list[str]


class FullGraph(Frozen):
    """Whether ``fullgraph=True`` passes for forward and loss, found by asking for it; and the first reason why not.

    It may pass and still not be one program: ``by_operator`` names graphs that the backend runs operator by operator, ``splits``
    those that it splits.
    """

    schema_version: str = "shakedown.full-graph/1"
    passes: bool
    failure: str = ""  # type of PyTorch's exception
    reason: str = ""
    file: str = ""
    line: int = 0
    by_operator: list[ByOperator] = Field(default=[])
    splits: list[SplitGraph] = Field(default=[])


def _named(outside: list[OutsideOperator]) -> list[str]:
    return list(dict.fromkeys(f"{one.operator}: {one.reason}" for one in outside))


def run_by_operator(splits: list[SplitGraph]) -> list[ByOperator]:
    """Those of `splits` of which no program is left, with the reason."""
    return [
        ByOperator(graph=one.graph, reason="; ".join([*filter(None, [one.reason]), *_named(one.outside)]))
        for one in splits
        if not one.programs
    ]


def in_pieces(splits: list[SplitGraph]) -> list[SplitGraph]:
    """Those of `splits` that are several programs, or one with operators beside it."""
    return [one for one in splits if one.programs]
