"""The requirements file of a workload with every key in it: default, reason, and what the workload says about itself."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .model import CaseDemand, Demanded, Requirements

if TYPE_CHECKING:
    from ..workload import Workload

_WIDTH = 110


def defaults(workload: Workload) -> Requirements:
    """The defaults for `workload`: those of the trial, with the workload's own precisions and cases spelt out."""
    return Requirements(
        workload=Demanded(dtypes=list(workload.dtypes)),
        cases=[CaseDemand(size=case.size, length=case.length) for case in workload.cases if not case.variation],
    )


def template(workload: Workload, command: str) -> str:
    """TOML text that loads as :func:`defaults`: each key under its reason, lists without members and what has no default as
    commented examples.

    `command` is how the file was made, for its first line.
    """
    values = defaults(workload)
    parts = ["\n".join(_head(workload, command))]
    for name, field in Requirements.model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            parts += _table(value, name)
        else:
            parts.append("\n".join(_tables(value, field, name)))
    return "\n\n".join(parts) + "\n"


def _head(workload: Workload, command: str) -> Iterator[str]:
    yield f"# Requirements of the workload {_line(workload.source.name)}, written by `{_line(command)}`."
    yield f"# The workload file had SHA-256 {workload.source.sha256}."
    yield from _comment(
        "Every key is here with its default and the reason for it; a key that is left out has the default. The file is "
        "locked and hashed before the first result, and a run does not go on under another one: change it now, not after."
    )
    if workload.dimensions:
        said = ", ".join(f"{_line(str(name))} {_line(str(value))}" for name, value in workload.dimensions.items())
        yield from _comment(f"The workload's dimensions: {said}.")


def _table(value: BaseModel, path: str, said: str | None = None) -> list[str]:
    """One ``[table]`` with its keys under what is `said` of it (None: by its model), then the tables inside it."""
    lines = [*_comment(_first_sentence(type(value)) if said is None else said), f"[{path}]"]
    inner: list[str] = []
    for name, field in type(value).model_fields.items():
        held = getattr(value, name)
        here = f"{path}.{_key(name)}"
        if isinstance(held, BaseModel):
            inner += _table(held, here)
        elif isinstance(held, dict) and held and all(isinstance(v, BaseModel) for v in held.values()):
            parts = [part for key, member in held.items() for part in _table(member, f"{here}.{_key(key)}", "")]
            parts[0] = "\n".join([*_comment(field.description or ""), parts[0]])
            inner += parts
        elif held is None:  # not given, which TOML has no word for
            lines += [*_comment(field.description or ""), f"#{_key(name)} = {_value(_example(field))}"]
        else:
            lines += [*_comment(field.description or ""), f"{_key(name)} = {_value(held)}"]
    return ["\n".join(lines), *inner]


def _tables(members: list[BaseModel], field: FieldInfo, path: str) -> Iterator[str]:
    """``[[tables]]``: the members, or one commented example where there are none."""
    (kind,) = get_args(field.annotation)
    yield from _comment(field.description or "")
    for name, inner in kind.model_fields.items():
        yield from _comment(f"{name}: {inner.description}", "  ")
    if not members:
        yield f"#[[{path}]]"
        for name, inner in kind.model_fields.items():
            yield f"#{_key(name)} = {_value(_example(inner))}"
    for member in members:
        yield f"[[{path}]]"
        for name in kind.model_fields:
            yield f"{_key(name)} = {_value(getattr(member, name))}"


def _example(field: FieldInfo) -> Any:
    """A value that the key could have: the model's own example, or its default."""
    if field.examples:
        return field.examples[0]
    if not field.is_required():
        return field.get_default(call_default_factory=True)
    kinds: dict[Any, Any] = {str: "...", int: 1, float: 1.0, bool: False}
    return kinds.get(field.annotation, [])


def _first_sentence(model: type[BaseModel]) -> str:
    text = " ".join((model.__doc__ or "").split()).replace("``", "`")
    return re.split(r"(?<=[.:;])\s", text, maxsplit=1)[0].rstrip(":;")


def _comment(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"# {indent}",
        subsequent_indent=f"# {indent}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _line(text: str) -> str:
    """`text` on one line, whatever is in it: it goes into a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    """A TOML value. (TOML's basic strings escape as JSON's do, floats are written as Python writes them.)"""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(member) for member in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_value(member)}" for name, member in value.items()) + "}"
    raise TypeError(f"{type(value).__name__} has no form in TOML")
