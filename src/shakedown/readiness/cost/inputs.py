"""What is asked of the user for a payback: a TOML file, options of the command, or both.

Each value is a number, a text ``low..high`` or ``low..likely..high``, or a table ``{ value = "...", source = "...",
date = 2026-11-01 }``, which makes it documented. What is left out is not given, and is never taken for zero.
"""

from __future__ import annotations

import datetime
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from ..errors import BadInput
from ..evidence import Frozen
from . import ranges
from .ranges import Range

Source = Literal["given", "measured", "documented"]


class Quantity(Frozen):
    """A value with where it comes from: ``said`` is the document or record, ``date`` when it was true."""

    value: Range
    source: Source = "given"
    said: str = ""
    date: datetime.date | None = None

    @property
    def from_where(self) -> str:
        """The source in words."""
        rest = f": {self.said}" if self.said else ""
        return f"{self.source}{rest}" + (f", {self.date}" if self.date else "")


def quantity(value: Any, name: str) -> Quantity:
    """Read a value of a file. Raises :class:`BadInput`."""
    if isinstance(value, Quantity):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("value"), Mapping):  # as a record has it
        return Quantity.model_validate(value)
    if not isinstance(value, Mapping):
        return Quantity(value=ranges.parse(value, name))
    known = {"value", "source", "date"}
    if "value" not in value or value.keys() - known:
        raise BadInput(f'{name}: a table holds value, source and date, as {{ value = "0.09", source = "price list" }}')
    said, when = value.get("source", ""), value.get("date")
    if not isinstance(said, str) or not said.strip():
        raise BadInput(f"{name}: a documented value names its source, a text")
    if when is not None and type(when) is not datetime.date:
        raise BadInput(f"{name}: date is a day without quotes, such as 2026-11-01")
    return Quantity(value=ranges.parse(value["value"], name), source="documented", said=said, date=when)


class Section(Frozen):
    """A table of quantities; None is not given."""

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, info: Any) -> Quantity | None:
        try:
            return None if value is None else quantity(value, info.field_name)
        except BadInput as error:
            raise ValueError(str(error).partition(": ")[2]) from None  # pydantic knows the whole place


Q = Quantity | None


class Port(Section):
    """The work of moving."""

    weeks: Q = Field(default=None, description="Calendar weeks that the port takes.", examples=["4..6..9"])
    engineers: Q = Field(default=None, description="People who work on it at the same time.", examples=["2"])
    hours_per_week: Q = Field(default=None, description="Hours a week that each of them spends on it.", examples=["40"])
    rate: Q = Field(default=None, description="What an hour of theirs costs.", examples=["100..120..150"])


class Compute(Section):
    """What the workload's machines cost."""

    monthly_before: Q = Field(default=None, description="A month of the fleet of today.", examples=["90000"])
    monthly_after: Q = Field(
        default=None,
        description="A month of the fleet that does the same work afterwards.",
        examples=["55000..60000..70000"],
    )


class Compilation(Section):
    """Instances that compile and do nothing else meanwhile: hours, or programs times seconds of each."""

    hours: Q = Field(default=None, description="Instance hours until everything is compiled once.", examples=["3..10"])
    programs: Q = Field(
        default=None, description="Programs to compile; with `seconds_per_program` instead of `hours`.", examples=["40"]
    )
    seconds_per_program: Q = Field(
        default=None,
        description="Seconds to compile one. `--record` takes it from a trial that ran on the device itself.",
        examples=["30..60..240"],
    )
    instance_hour: Q = Field(default=None, description="Price of an instance for an hour.", examples=["35.76"])
    per_month: Q = Field(
        default=None,
        description="How often a month everything is compiled again: releases, new shapes.",
        examples=["2"],
    )


class ParallelRun(Section):
    """Both fleets at once, until the old one may go: capacity that is paid and not needed."""

    months: Q = Field(default=None, description="Months in which both fleets run.", examples=["0.5..1..2"])
    monthly: Q = Field(
        default=None,
        description="What a month of the second fleet costs; left out, `compute.monthly_after`.",
        examples=["60000"],
    )


class Storage(Section):
    """Data, checkpoints and compiled programs that are kept in addition."""

    gigabytes: Q = Field(default=None, description="Gigabytes that are kept in addition.", examples=["5000"])
    gigabyte_month: Q = Field(default=None, description="Price of a gigabyte for a month.", examples=["0.023"])


class Network(Section):
    """Data that leaves a network where leaving costs (egress)."""

    gigabytes_once: Q = Field(default=None, description="Gigabytes moved once, for the port.", examples=["20000"])
    gigabytes_monthly: Q = Field(default=None, description="Gigabytes moved each month in addition.", examples=["500"])
    gigabyte: Q = Field(default=None, description="Price of a gigabyte that leaves.", examples=["0.09"])


class Observability(Section):
    """Dashboards, alerts and log storage for a second kind of machine."""

    once: Q = Field(default=None, description="What setting them up costs, once.", examples=["8000"])
    monthly: Q = Field(default=None, description="What they cost each month in addition.", examples=["600"])


class KernelUpkeep(Section):
    """The owner's time for kernels and work-arounds that only the new device needs."""

    hours_per_month: Q = Field(default=None, description="Hours a month that its owner spends.", examples=["4..10..30"])
    rate: Q = Field(default=None, description="What such an hour costs; left out, `port.rate`.", examples=["150"])


class Costs(Frozen):
    """What the migration costs and saves, for its payback; without [port] and [compute] there is none."""

    currency: str = Field(default="USD", description="Three letters of the currency; nothing is converted.")
    horizon_months: int = Field(
        default=24, ge=1, le=600, description="Months after the switch by which it should have paid back."
    )
    port: Port = Port()
    compute: Compute = Compute()
    compilation: Compilation = Compilation()
    parallel_run: ParallelRun = ParallelRun()
    storage: Storage = Storage()
    network: Network = Network()
    observability: Observability = Observability()
    kernel_upkeep: KernelUpkeep = KernelUpkeep()

    @field_validator("currency")
    @classmethod
    def _three_letters(cls, value: str) -> str:
        try:
            return ranges.currency(value, "currency")
        except BadInput as error:
            raise ValueError(str(error).partition(": ")[2]) from None


def load(path: Path | None, options: Mapping[str, Any]) -> Costs:
    """The file at `path`, if any, with `options` (``section.key`` or a key of the top) over it; None is no option.

    Raises:
        BadInput: the file cannot be read, is not TOML, or a key or value is not allowed.
    """
    raw: dict[str, Any] = {}
    if path is not None:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
        except OSError as error:
            raise BadInput(f"cannot read {path}: {error.strerror}; `shakedown payback --init` writes one") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path} is not TOML: {error}") from None
    for name, value in options.items():
        if value is None:
            continue
        section, _, key = name.rpartition(".")
        table = raw.setdefault(section, {}) if section else raw
        if not isinstance(table, dict):
            raise BadInput(f"{path}: {section} is a table of its own, [{section}]")
        table[key] = value
    try:
        return Costs.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        known = first["type"] == "extra_forbidden"
        said = "there is no such key" if known else first["msg"].removeprefix("Value error, ")
        raise BadInput(f"{path or 'options'}: {where}: {said}") from None


def template(command: str) -> str:
    """A file with every key in it, under what it means, and every value still to be filled in."""
    intro = (
        f'Costs of a migration, written by `{command}`. A value is 6, "4..9" or "4..6..9" (low..likely..high), or '
        '{ value = "0.09", source = "where it is documented", date = 2026-11-01 }. Remove the # of what you know. What stays '
        "out is said to be not given; the keys of [port] and [compute] are needed. "
        f"Run it with `shakedown payback --file THIS`. {ranges.MIDDLE_RULE}"
    )
    lines = [*_comment(intro), ""]
    for name, field in Costs.model_fields.items():
        value = field.get_default()
        if not isinstance(value, Section):
            lines += [*_comment(field.description or ""), f"{name} = {value!r}".replace("'", '"'), ""]
            continue
        lines += [*_comment((type(value).__doc__ or "").strip()), f"[{name}]"]
        for key, inner in type(value).model_fields.items():
            example = (inner.examples or [""])[0]
            lines += [*_comment(inner.description or ""), f'#{key} = "{example}"']
        lines.append("")
    return "\n".join(lines)


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text, 110, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )
