"""What is wrong with a row, and the rows as tables of docs/clients.md."""

from __future__ import annotations

from typing import Any

BEGIN, END = "<!-- made by: python -m tests.clients --write docs/clients.md -->", "<!-- end -->"


def problem_of(row: dict[str, Any]) -> str:
    """What is wrong with a row, "" when nothing is."""
    if "problem" in row:
        return str(row["problem"])
    if "package" in row:
        return _problem_of_package(row)
    if row["mode"] == "decode":
        for way in ("generated", "stepped"):
            if not row[way]["right"] or row[way]["fallbacks"] or len(row[way]["graphs"]) != 2:
                return f"{way}: {row[way]}"
        return ""
    if row["error"] > 1:
        return f"{row['worst']} is {row['error']:.2f} times as far off as it may be"
    if row["fallbacks"]:
        return f"falls back: {', '.join(row['fallbacks'])}"
    if row["last_step_compiles"]:
        return "still compiles in the last step"
    if row["mode"] == "compile" and (row["programs"], row["breaks"]) != (2, 0):
        return f"{row['programs']} graphs, {row['breaks']} breaks"
    return ""


def _problem_of_package(row: dict[str, Any]) -> str:
    if row["error"] > 1:
        return f"{row['worst']} is {row['error']:.2f} times as far off as it may be"
    if row["fallbacks"] != sorted(row["expected_fallbacks"]):
        return f"falls back: {', '.join(row['fallbacks']) or 'nothing'}"
    if not row["executed"]:
        return "nothing ran on the device"
    if row["mode"] == "compile" and (row["breaks"] or not row["graphs"]):
        return f"{row['graphs']} graphs, {row['breaks']} breaks"
    return ""


def _package(row: dict[str, Any]) -> list[str]:
    about = [row["package"], row["what"], row["mode"], row["dtype"]]
    if problem := problem_of(row):
        return [*about, "", problem.replace("|", "/"), "", row["how"]]
    graphs = str(row["graphs"]) if row["mode"] == "compile" else "-"
    return [*about, graphs, ", ".join(row["fallbacks"]) or "0", f"{row['error']:.2f}", row["how"]]


def _training(row: dict[str, Any]) -> list[str]:
    if "problem" in row:
        return [*_head(row), row["problem"].replace("|", "/"), "", "", "", ""]
    compiled = row["mode"] == "compile"
    return [
        *_head(row),
        str(row["programs"]) if compiled else "-",
        str(row["breaks"]) if compiled else "-",
        ", ".join(row["fallbacks"]) or "0",
        f"{row['error']:.2f}",
        str(row["compiles"]),
    ]


def _head(row: dict[str, Any]) -> list[str]:
    how = [row["attention"], row["experts"], "checkpointing" if row["checkpointing"] else None]
    return [row["model"], row["mode"], ", ".join(filter(None, how)), row["dtype"], row["mask"]]


def _decoding(row: dict[str, Any]) -> list[str]:
    if "problem" in row:
        return [row["model"], row["problem"].replace("|", "/"), "", ""]
    made = [row["model"]]
    for way in ("generated", "stepped"):
        found = row[way]
        made.append(f"{len(found['graphs'])} programs, {'equal' if found['right'] else 'NOT EQUAL'}")
    return [*made, str(len(row["generated"]["fallbacks"]) + len(row["stepped"]["fallbacks"]))]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables(rows: list[dict[str, Any]]) -> str:
    packages = [_package(r) for r in rows if "package" in r]
    rows = [r for r in rows if "package" not in r]
    training = [_training(r) for r in rows if r["mode"] != "decode"]
    decoding = [_decoding(r) for r in rows if r["mode"] == "decode"]
    head = [
        "model",
        "mode",
        "attention, experts",
        "dtype",
        "padding",
        "graphs",
        "breaks",
        "fallbacks",
        "error",
        "compiles",
    ]
    first = _table(head, training)
    second = _table(["model", "`generate`", "by hand", "fallbacks"], decoding)
    third = _table(
        ["package", "what", "mode", "dtype", "graphs", "fallbacks", "error", "what is written for it"], packages
    )
    return (
        f"{first}\n\nGreedy decoding with a static cache, 5 new tokens after 12, against `generate` on the CPU:\n\n{second}"
        f"\n\nWhat packages do with models:\n\n{third}"
    )


def written(page: str, rows: list[dict[str, Any]]) -> str:
    """`page` with its tables made of `rows`.

    Raises:
        ValueError: the page has no place for them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the tables: they stand between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables(rows)}\n\n{END}{after}"
