"""What the commands share: exit codes, options with several values, one way to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.markup import escape

PASSED, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def many(values: list[str] | None) -> tuple[str, ...]:
    """Options may be repeated or hold several values with commas."""
    return tuple(part.strip() for value in values or [] for part in value.split(",") if part.strip())


def fail(message: str, code: int, as_json: bool) -> typer.Exit:
    """Say what went wrong, once: as JSON on standard output, or in words on standard error."""
    if as_json:
        print(json.dumps({"error": message, "exit_code": code}))
    else:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]shakedown:[/] {escape(message)}")
    return typer.Exit(code)


@contextmanager
def failures(as_json: bool) -> Iterator[None]:
    """Every way in which work on a trial can end early becomes one message and its exit code."""
    from shakedown.readiness import errors

    try:
        yield
    except errors.BadInput as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    except (errors.Interrupted, KeyboardInterrupt) as error:
        raise fail(str(error) or "interrupted", INTERRUPTED, as_json) from None
    except errors.TrialError as error:
        raise fail(str(error), FAILED, as_json) from None
