"""The README of a bundle: what somebody who has never heard of the trial needs to know, in the order they need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .contents import LEFT_OUT
from .results import Bundle

_MOST = 12  # findings that a page lists: they come nearest to the cause first


def readme(made: Bundle, versions: dict[str, Any]) -> str:
    """Markdown. The caller masks it."""
    of = f", case {made.case}" if made.case else ""
    lines = [f"# {made.workload} on {made.target}: {made.cell}{of}", "", f"> **{made.label_text}**", ""]
    if not made.verified:
        lines += ["**THE RECORD DOES NOT VERIFY**, and nothing here can be relied on before that is understood:", ""]
        lines += [*_listed(made.problems), ""]
    lines += ["## What was found", "", f"The verdict on this cell is **{made.verdict}**.", ""]
    lines += [made.localised, ""]
    lines += [*_listed(made.findings[:_MOST] or ["no check found anything"])]
    if len(made.findings) > _MOST:
        lines.append(f"- and {len(made.findings) - _MOST} more, in `finding.json`")
    lines.append("")
    lines += ["## What to run", "", *_to_run(made), ""]
    lines += ["## With what", "", "| what | version |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in versions.items()]
    lines += ["", "## What is in here", "", "| file | bytes | what | masked |", "| --- | ---: | --- | ---: |"]
    lines += [f"| `{file.name}` | {file.nbytes:,} | {file.what} | {file.masked} |" for file in made.files]
    lines += ["", "Not in here: " + "; ".join(LEFT_OUT) + ".", ""]
    lines += [
        "What looks like a secret, a person or a machine was replaced (`<masked>`, `~`, `<user>`, `<host>`, `<ip>`). A password "
        "in running prose looks like any word: read the files before you send them.",
        "",
        f"From the record that was sealed on {made.record_created} as `{made.record_seal}`"
        + (", which verifies." if made.verified else ", which does NOT verify."),
    ]
    return "\n".join(lines) + "\n"


def _to_run(made: Bundle) -> list[str]:
    if made.has_minimal_case:
        return [
            "```",
            "cd case",
            f"python case.py                 # on {made.target}: exits 1 where it differs from float64, 0 where it does not",
            "DEVICE=cpu python case.py      # the same on the CPU",
            "```",
            "",
            "It needs PyTorch, safetensors and the device, and Shakedown where its imports say so.",
        ]
    return ["There is no minimal case in here; the findings above name what differs, and `numbers.json` by how much."]


def _listed(texts: Sequence[str]) -> list[str]:
    return [f"- {' '.join(text.split())}" for text in texts]


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")
