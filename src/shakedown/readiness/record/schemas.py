"""JSON Schemas (draft 2020-12) of the record and of every document beside it, made from the models that write them."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, RootModel
from pydantic.json_schema import GenerateJsonSchema

from .. import evidence
from ..evidence import SelfTest, write_atomic
from ..evidence.failure import Failure
from ..judge.numerics import Vector
from ..judge.results import Outcome

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Modules with documents of their own beside those in the package `evidence`, none of which imports torch.
_ELSEWHERE = (
    "bisect.result",
    "bundle.results",
    "compare.results",
    "compiling",
    "cost.ledger",
    "cost.payback",
    "cost.prices",
    "cost.work",
    "parity.document",
    "parity.job",
    "plan.forecast",
    "plan.operators",
    "plan.preflight",
    "plan.trace",
    "record.document",
    "requirements.file",
    "scan.results",
    "selftest.results",
    "state",
)


class Vectors(RootModel[dict[str, dict[str, list[Vector]]]]):
    """``vectors.json``: the numbers of every judged tensor, by cell and case.

    Errors are relative L2 norms against float64 truth, ``margin`` and ``row_margin`` shares of the allowance (above 1 fails),
    ``ulp_*`` in units of the last place of the tensor's dtype, None where there is no such number.
    """


# Documents that are too small to have a version of their own: they belong to the record that names them.
_UNVERSIONED: dict[str, type[BaseModel]] = {
    "outcome": Outcome,
    "failure": Failure,
    "self-test": SelfTest,
    "vectors": Vectors,
}


@cache
def documents() -> dict[str, type[BaseModel]]:
    """The model of every document that a trial leaves or a command prints, by name, sorted."""
    found = dict(_UNVERSIONED)
    for model in _models():
        name = _split(_version(model))[0]
        if name in found:
            raise TypeError(f"{model.__qualname__} and {found[name].__qualname__} are both called {_version(model)}")
        found[name] = model
    return dict(sorted(found.items()))


def _models() -> Iterator[type[BaseModel]]:
    """Models with a version that are defined in the modules of documents."""
    package = __name__.rpartition(".record.")[0]
    names = [f"{package}.evidence.{module.name}" for module in pkgutil.iter_modules(evidence.__path__)]
    for module in map(importlib.import_module, [*names, *(f"{package}.{name}" for name in _ELSEWHERE)]):
        for model in vars(module).values():
            own = isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == module.__name__
            if own and _version(model):
                yield model


class _WithoutTitles(GenerateJsonSchema):
    """A title that repeats the field's name tells a reader nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _version(model: type[BaseModel]) -> str:
    field = model.model_fields.get("schema_version")
    return field.default if field is not None and isinstance(field.default, str) else ""


def _split(version: str) -> tuple[str, str]:
    name, number = re.fullmatch(r"shakedown\.([a-z-]+)/(\d+)", version).groups()  # type: ignore[union-attr]
    return name, number


def schema(name: str) -> dict[str, Any]:
    """The schema of one document as it is written. Raises KeyError for a name that is not in :func:`documents`."""
    model = documents()[name]
    version = _version(model)
    made = model.model_json_schema(mode="serialization", schema_generator=_WithoutTitles)
    head = {"$schema": DIALECT, "$id": f"urn:shakedown:{name}" + (f":{_split(version)[1]}" if version else "")}
    if version:
        made["properties"]["schema_version"]["const"] = version
    return head | made


def text(name: str) -> str:
    """The schema as a file."""
    return json.dumps(schema(name), indent=1, ensure_ascii=False) + "\n"


def write(folder: Path) -> list[Path]:
    """Write the schema of every document into `folder` as ``<name>.schema.json``."""
    written = []
    for name in documents():
        path = folder / f"{name}.schema.json"
        write_atomic(path, text(name).encode())
        written.append(path)
    return written
