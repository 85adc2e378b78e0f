"""Prices of an instance for an hour, each with its date and source; :file:`prices.toml` comes with the package."""

from __future__ import annotations

import datetime
import tomllib
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from ..errors import BadInput
from ..evidence import Frozen

SCHEMA = "shakedown.prices/1"
OLD_AFTER_DAYS = 180  # half a year; list prices of accelerators have moved by a third within one


class Price(Frozen):
    """What an hour of one instance costs. ``accelerators``: so many are in it, None where that is not known."""

    name: str = Field(min_length=1)
    region: str = Field(min_length=1)
    term: str = Field(min_length=1)  # on-demand, capacity block, reserved, spot, or words of one's own
    price: Decimal = Field(gt=0)
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    date: datetime.date
    source: str = Field(min_length=1)
    accelerators: int | None = Field(default=None, ge=0)

    def age(self, today: datetime.date) -> int:
        """Days since it was true."""
        return (today - self.date).days

    def said(self, today: datetime.date, old_after: int = OLD_AFTER_DAYS) -> str:
        """The price in words, with everything that one must know about it."""
        age = self.age(today)
        old = f"; OLD: {age} days, more than {old_after}" if age > old_after else ""
        return f"{self.price} {self.currency} an hour, {self.name} {self.region} {self.term}, {self.date}{old} ({self.source})"


class PriceFile(Frozen):
    """The whole file."""

    schema_version: str = SCHEMA
    instance: list[Price] = Field(default=[])

    @field_validator("schema_version")
    @classmethod
    def _known(cls, value: str) -> str:
        if value != SCHEMA:
            raise ValueError(f"schema_version is {value!r:.40}; this version reads {SCHEMA}")
        return value


def load(path: Path | None) -> list[Price]:
    """The user's prices at `path`, if any, before those of the package.

    Raises:
        BadInput: the file cannot be read, is not TOML, or an entry is not a price.
    """
    shipped = _parsed(files(__package__).joinpath("prices.toml").read_text(encoding="utf-8"), "prices.toml").instance
    if path is None:
        return shipped
    try:
        own = _parsed(path.read_text(encoding="utf-8"), str(path)).instance
    except OSError as error:
        raise BadInput(f"cannot read the prices {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"cannot read the prices {path}: not UTF-8") from None
    replaced = {(p.name, p.region, p.term) for p in own}
    return own + [p for p in shipped if (p.name, p.region, p.term) not in replaced]


def _parsed(text: str, name: str) -> PriceFile:
    try:
        return PriceFile.model_validate(tomllib.loads(text, parse_float=Decimal))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{name} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{name}: {where}: {first['msg'].removeprefix('Value error, ')}") from None


def find(prices: list[Price], name: str, region: str | None, term: str | None, today: datetime.date) -> Price:
    """The one price that fits. Raises :class:`BadInput` when there is none or more than one, or it is of the future."""
    fit = [p for p in prices if p.name == name and region in (None, p.region) and term in (None, p.term)]
    asked = " ".join(part for part in (name, region, term) if part)
    if not fit:
        known = ", ".join(sorted({p.name for p in prices}))
        raise BadInput(f"the price of {asked} is not given; put it into a file for --prices (known: {known})")
    if len(fit) > 1:
        choices = "; ".join(f"--region {p.region} --term {p.term!r}" for p in fit)
        raise BadInput(f"{asked} has {len(fit)} prices; choose one with {choices}")
    if fit[0].age(today) < 0:
        raise BadInput(f"the price of {asked} is of {fit[0].date}, which is in the future")
    return fit[0]
