"""``shakedown env``: every variable of the device and of TorchNeuron, its value now, and what it does here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from .common import BAD_INPUT, PASSED


def env(
    set_only: Annotated[bool, typer.Option("--set-only", help="Only variables that are set.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Variables of the device and of TorchNeuron: value, default, effect, source. Exit code 2 if one cannot be read."""
    rows, strange = table(), _strange()
    shown = [row for row in rows if row["set_by"] is not None or not set_only]
    wrong = [row["problem"] for row in rows if row["problem"] and not row["lenient"]]
    code = BAD_INPUT if wrong else PASSED
    if as_json:
        print(json.dumps({"variables": shown, "unknown": strange, "exit_code": code}, indent=1))
        raise typer.Exit(code)
    console = Console(soft_wrap=True)
    for title, effect in (("Honoured", "honoured"), ("Accepted, without an effect here", "accepted")):
        chosen = [row for row in shown if row["effect"] == effect]
        if chosen:
            _print(console, title, chosen)
    if not shown:
        console.print("none of these variables is set")
    for name, meant in strange.items():
        hint = f"; did you mean {meant}?" if meant else "; `shakedown env` lists those that are"
        console.print(f"[yellow]{escape(name)}[/] is set, and is no variable of ours or TorchNeuron's known here{hint}")
    errors = Console(stderr=True, soft_wrap=True)
    for problem in wrong:
        errors.print(f"[bold red]shakedown:[/] {escape(problem)}")
    raise typer.Exit(code)


def table() -> list[dict[str, Any]]:
    """One row for each setting, as plain values.

    ``names``: the variables that are asked, in this order; ``set_by``: the one that gives the value, None for the default;
    ``passed_over``: those that are set as well, and do not count;
    ``source``: where TorchNeuron's name is described, "ours" for a name that only this package has; ``problem``: why the
    value cannot be read, in which case ``value`` is None, or the default for ``lenient`` variables, which only warn.
    """
    from shakedown.neuron import config_listing

    rows = []
    for setting in config_listing.every():
        name = setting.set_by()
        problem = setting.problem()
        lenient = bool(problem) and name in setting.lenient
        value = setting.default if lenient else None if problem else setting()
        rows.append(
            {
                "names": list(setting.names),
                "opposite": setting.opposite,
                "set_by": name,
                "passed_over": setting.passed_over(),
                "value": _plain(value),
                "default": _plain(setting.default),
                "kind": setting.kind,
                "effect": setting.effect,
                "source": f"TorchNeuron ({setting.source})" if setting.source else "ours",
                "differs": setting.differs,
                "help": setting.help,
                "problem": problem,
                "lenient": lenient,
            }
        )
    return rows


def _strange() -> dict[str, str | None]:
    from shakedown.neuron import config_listing

    return config_listing.unknown()


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)


def _print(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    console.print(f"[bold underline]{title}[/]\n", highlight=False)
    for row in rows:
        first, *others = row["names"]
        value = "[bold red]cannot be read[/]" if row["problem"] and not row["lenient"] else escape(_text(row["value"]))
        by = f", set by {row['set_by']}" if row["set_by"] is not None else ""
        facts = f"default {_text(row['default']) or 'empty'}; {row['kind']}; {row['source']}"
        console.print(f"[bold]{first}[/] = {value}[bold]{by}[/]  [dim]({escape(facts)})[/]", highlight=False)
        for other in others:
            switch = ", the other way round" if other == row["opposite"] else ""
            given = row["passed_over"].get(other)
            unused = "" if given is None else f"; {other}={given} is set as well, and does not count"
            console.print(f"    or {other}{switch}[yellow]{escape(unused)}[/]", highlight=False)
        console.print(f"    {escape(row['help'])}", highlight=False)
        if row["differs"]:
            console.print(f"    unlike TorchNeuron: {escape(row['differs'])}", highlight=False)
        if row["lenient"]:
            console.print(f"    [yellow]{escape(row['problem'])}: the default counts[/]", highlight=False)
    console.print()
