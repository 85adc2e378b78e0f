"""Older versions of the record, one step at a time: each function takes the document of one version to the next.

Nothing is invented. What a version did not have is None or empty afterwards, and :func:`not_recorded` names it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import is_typeddict

from ..judge.disposition import INCONCLUSIVE

Raw = dict[str, Any]


def from_1(raw: Raw) -> Raw:
    """``/1`` judged numbers, paths and timings of single processes; later kinds of evidence did not exist."""
    absent: Raw = {"timings": [], "memory": [], "graphs": {}, "fusion": {}, "probes": [], "traces": {}, "findings": []}
    return raw | {
        "schema_version": "shakedown.record/2",
        "trial": {"varied": {}} | raw["trial"],
        "judgement": absent | raw["judgement"],
    }


def from_2(raw: Raw) -> Raw:
    """``/2`` ended in a verdict with a sentence, which is kept as such: a decision asks for more than it knew."""
    judgement = {"scan": None} | raw["judgement"]  # its first records had no reading of the source
    older = {name: judgement.pop(name) for name in ("verdict", "sentence", "statements")}
    decision = {
        "disposition": INCONCLUSIVE,
        "sentence": f"this version had a verdict and no decision; the verdict was {older['verdict']!r}: "
        f"{older['sentence']}",
        "results": [],
        "changes": [],
        "blocked_by": [],
        "next": ["have its evidence judged by today's rules: shakedown judge"],
    }
    return raw | {
        "schema_version": "shakedown.record/3",
        "judgement": judgement | {"decision": decision, "older": older},
    }


STEPS: dict[str, Callable[[Raw], Raw]] = {"shakedown.record/1": from_1, "shakedown.record/2": from_2}


def upgraded(raw: Raw) -> Raw:
    """`raw`, of whatever version, as the newest. Raises KeyError or TypeError where it is not what its version says."""
    while (step := STEPS.get(raw["schema_version"])) is not None:
        raw = step(raw)
    return raw


def not_recorded(model: type[BaseModel], raw: Any, place: str = "") -> list[str]:
    """Dotted names of the model's fields that `raw` does not have; ``[]`` stands for every member of a list or table."""
    return list(dict.fromkeys(_missing(model, raw, place)))


def _missing(model: type[BaseModel], raw: Any, place: str) -> Iterator[str]:
    if not isinstance(raw, dict):
        return
    for name, field in model.model_fields.items():
        if name in raw:
            yield from _inside(field.annotation, raw[name], f"{place}{name}")
        else:
            yield f"{place}{name}"


def _inside(annotation: Any, value: Any, place: str) -> Iterator[str]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _missing(annotation, value, f"{place}.")
    elif is_typeddict(annotation) and isinstance(value, dict):
        yield from (f"{place}.{name}" for name in annotation.__annotations__ if name not in value)
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _inside(member, value, place)
    elif get_origin(annotation) is list and isinstance(value, list):
        for inner in value:
            yield from _inside(get_args(annotation)[0], inner, f"{place}[]")
    elif get_origin(annotation) is dict and isinstance(value, dict):
        for inner in value.values():
            yield from _inside(get_args(annotation)[1], inner, f"{place}[]")
