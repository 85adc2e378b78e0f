"""Draws adaptive_cuts.svg: where adaptive eager cuts a training step. Every operator and cut in it was recorded.

    SHAKEDOWN_ADAPTIVE=1 SHAKEDOWN_ADAPTIVE_TIMEOUT=60000 python -m docs.figures.adaptive_cuts

The long timeout keeps a busy machine out of the picture. Cuts depend on the operators alone, so that the file comes out
the same wherever it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.decoder import SMALL, Decoder, batch
from shakedown.neuron import events

adaptive = torch.neuron.adaptive
SETTLED = 6  # steps after which the cuts no longer change

# --- recording ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """Operators `begin` to `end` of the recording; they ran for `reason`."""

    begin: int
    end: int
    reason: str
    name: str
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """Where a training step began and where each of its phases ended."""

    begin: int
    phases: tuple[tuple[str, int], ...]

    @property
    def end(self) -> int:
        return self.phases[-1][1]


@dataclass
class Recording:
    """Positions count the operators recorded in this process."""

    segments: list[Segment] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    _runs: dict[str, int] = field(default_factory=dict)

    def note(self, event: events.Event) -> None:
        """Listens to the event stream. A flush has run one more time the group that it belongs to."""
        if event.kind != "flush":
            return
        ran = adaptive.status()["operators"]
        end = ran["fused"] + ran["one_by_one"]
        for group in adaptive.groups():
            runs = group["runs_fused"] + group["runs_one_by_one"]
            if runs != self._runs.get(group["name"], 0):
                self._runs[group["name"]] = runs
                operators = tuple(group["operators"])
                self.segments.append(Segment(end - len(operators), end, event.name, group["name"], operators))

    def operators(self, step: Step) -> list[str]:
        """The operators of `step`, in order."""
        found: dict[int, str] = {}
        for segment in self.segments:
            found.update(zip(range(segment.begin, segment.end), segment.operators))
        return [found[i] for i in range(step.begin, step.end)]


def recorded() -> int:
    counts = adaptive.status()["operators"]
    return sum(counts.values())


class Training:
    """The small decoder of the benchmarks. AdamW goes through its parameters one by one, which makes a step long."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Decoder(SMALL).to("neuron")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.ids, self.labels = (t.to("neuron") for t in batch(SMALL))

    def step(self, read: bool) -> Step:
        begin, ends = recorded(), []
        loss = self.model(self.ids, self.labels)
        ends.append(("forward", recorded()))
        if read:
            loss.item()
        loss.backward()
        ends.append(("backward", recorded()))
        self.optimizer.step()
        self.optimizer.zero_grad()
        ends.append(("optimizer", recorded()))
        return Step(begin, tuple(ends))


def record() -> tuple[Recording, list[tuple[str, Step]]]:
    """The recording, and the steps of it that are drawn."""
    training, recording = Training(), Recording()
    for _ in range(3):  # the first call of each operator is not recorded
        training.step(read=False)
    adaptive.reset()
    with events.subscribe(recording.note):
        plain = [training.step(read=False) for _ in range(SETTLED)]
        reading = [training.step(read=True) for _ in range(SETTLED)]
        again = [training.step(read=False) for _ in range(SETTLED)]
        torch.neuron.synchronize()
    assert not {"timeout", "memory", "length"} & {s.reason for s in recording.segments}
    return recording, [
        (f"step {SETTLED - 1}: the loss is not read", plain[-2]),
        (f"step {SETTLED + 1}: loss.item() after the forward pass, for the first time", reading[0]),
        (f"step {3 * SETTLED - 1}: again without reading the loss", again[-2]),
    ]


# --- drawing ------------------------------------------------------------------------------------------------------------

FAMILIES = {  # name: colour, and what the names of its operators contain
    "matrix product": ("#4c78a8", ("linear",)),
    "attention": ("#b279a2", ("attention",)),
    "norm, softmax": ("#e4802b", ("norm", "softmax")),
    "elementwise": ("#54a24b", ("add", "gelu")),
    "embedding, loss, copies": ("#9a9a9a", ("",)),
    "optimizer (elementwise)": ("#49a5a5", ()),
}
LEFT, PITCH, BAR, ROW, TOP = 12, 3, 30, 118, 14
STYLE = """
.paper { fill: #ffffff } text { fill: #24292f; font-size: 13px; font-family: sans-serif }
.small { font-size: 11px; fill: #57606a }
.name { font-size: 11px; font-family: monospace } .bracket, .phase { stroke: #57606a; fill: none }
.cut { stroke: #cf222e; stroke-width: 1.5 }
.reason { font-size: 11px; fill: #cf222e; text-anchor: middle } .middle { text-anchor: middle }
@media (prefers-color-scheme: dark) {
.paper { fill: #0d1117 } text { fill: #e6edf3 } .small { fill: #9da7b1 }
.bracket, .phase { stroke: #9da7b1 }
.cut { stroke: #ff7b72 } .reason { fill: #ff7b72 }
}
"""


def family_of(operator: str, phase: str) -> str:
    if phase == "optimizer":
        return "optimizer (elementwise)"
    return next(name for name, (_, parts) in FAMILIES.items() if any(part in operator for part in parts))


def bars(step: Step, operators: list[str], y: int) -> Iterator[str]:
    """One bar for each operator, as one path for each family."""
    paths: dict[str, str] = {}
    begin = step.begin
    for phase, end in step.phases:
        left, right = (LEFT + PITCH * (i - step.begin) for i in (begin, end))
        yield f'<path class="phase" d="M{left + 1} {y - 5}H{right - 2}"/>'
        yield f'<text class="small middle" x="{(left + right) / 2:g}" y="{y - 9}">{phase}, {end - begin}</text>'
        for i in range(begin, end):
            family = family_of(operators[i - step.begin], phase)
            paths[family] = paths.get(family, "") + f"M{LEFT + PITCH * (i - step.begin) + 1} {y}v{BAR}"
        begin = end
    for family, path in paths.items():
        yield f'<path stroke="{FAMILIES[family][0]}" stroke-width="2" d="{path}"/>'


def cuts(step: Step, segments: list[Segment], y: int) -> Iterator[str]:
    """Below the bars that begin at `y`: each segment with its name, and the cuts between them with their reasons."""
    low = y + BAR + 6
    for segment in segments:
        if segment.end <= step.begin or segment.begin >= step.end:
            continue
        left = LEFT + PITCH * (max(segment.begin, step.begin) - step.begin)
        right = LEFT + PITCH * (min(segment.end, step.end) - step.begin)
        start = f"M{left + 1} {low - 4}v4" if segment.begin >= step.begin else f"M{left - 6} {low}"
        stop = f"H{right - 2}v-4" if segment.end <= step.end else f"H{right + 6}"
        yield f'<path class="bracket" d="{start}{stop}"/>'
        yield f'<text class="name middle" x="{(left + right) / 2:g}" y="{low + 14}">{segment.name}</text>'
        if segment.end <= step.end:
            yield f'<path class="cut" stroke-dasharray="3 2" d="M{right - 0.5} {y - 3}V{low + 18}"/>'
            yield f'<text class="reason" x="{right}" y="{low + 30}">{segment.reason}</text>'


def draw(recording: Recording, rows: list[tuple[str, Step]]) -> str:
    width = 2 * LEFT + PITCH * max(step.end - step.begin for _, step in rows)
    height = TOP + ROW * len(rows) + 22
    parts = []
    for n, (title, step) in enumerate(rows):
        y = TOP + ROW * n
        parts.append(f'<text x="{LEFT}" y="{y + 4}">{title}</text>')
        parts += bars(step, recording.operators(step), y + 30)
        parts += cuts(step, recording.segments, y + 30)
    x = LEFT
    for family, (colour, _) in FAMILIES.items():
        parts.append(f'<path stroke="{colour}" stroke-width="9" d="M{x} {height - 16}h9"/>')
        parts.append(f'<text class="small" x="{x + 14}" y="{height - 12}">{family}</text>')
        x += 14 + 6 * len(family) + 18
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", paper, *parts, "</svg>", ""])


if __name__ == "__main__":
    if not adaptive.enabled():
        raise SystemExit("adaptive eager is off: set SHAKEDOWN_ADAPTIVE=1")
    Path(__file__).with_suffix(".svg").write_text(draw(*record()))
