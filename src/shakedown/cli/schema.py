"""``shakedown schema``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .common import BAD_INPUT, fail


def schema(
    name: Annotated[
        str, typer.Argument(help="record, evidence, probes...; without a name, all of them are listed.")
    ] = "",
    write: Annotated[Path | None, typer.Option(help="Write every schema into this folder instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list of names as JSON.")] = False,
) -> None:
    """Print the JSON Schema (draft 2020-12) of a document that Shakedown writes."""
    from shakedown.readiness.record import schemas

    known = schemas.documents()
    if name and write is not None:
        raise fail("a name prints one schema and --write writes all of them; give one of the two", BAD_INPUT, as_json)
    if name:
        if name not in known:
            raise fail(f"there is no document {name!r}; choose among {', '.join(known)}", BAD_INPUT, as_json)
        print(schemas.text(name), end="")
    elif write is not None:
        try:
            written = schemas.write(write)
        except OSError as error:
            raise fail(f"cannot write into {write}: {error.strerror}", BAD_INPUT, as_json) from None
        print(json.dumps([str(path) for path in written]) if as_json else f"{len(written)} schemas are in {write}")
    else:
        print(json.dumps(list(known)) if as_json else "\n".join(known))
