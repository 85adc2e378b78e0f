"""Reads figures of instances, each with its source. A user's file has the same form and is laid over the shipped one."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from ..errors import BadInput
from ..evidence import Frozen

SCHEMA = "shakedown.instances/1"
SHIPPED = Path(__file__).parents[2] / "instances.toml"  # which the device reads too


class Figure(Frozen):
    """One published number: ``value`` in ``unit``, of one ``per``, found in ``source`` on the day ``date``."""

    value: float = Field(gt=0, allow_inf_nan=False)
    unit: str
    per: Literal["logical core", "chip", "instance"]
    source: str = Field(min_length=1)
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


class Chip(Frozen):
    """Figures of one chip. ``family`` names the instances that carry it.

    ``peak`` has dense rates of matrix products by dtype. None: not published.
    """

    title: str
    family: str = ""
    physical_cores: Figure
    physical_cores_per_logical_core: Figure
    peak: dict[str, Figure] = Field(default={})
    memory: Figure | None = None
    memory_bandwidth: Figure | None = None
    host_link: Figure | None = None

    @property
    def logical_cores(self) -> float:
        """Logical cores of one chip."""
        return self.physical_cores.value / self.physical_cores_per_logical_core.value


class Instance(Frozen):
    """An instance type: how many of which chip."""

    chip: str
    chips: Figure


class Instances(Frozen):
    """The whole file."""

    schema_version: Literal["shakedown.instances/1"] = Field(alias="schema")
    dated: str
    chips: dict[str, Chip]
    instances: dict[str, Instance]

    def chip_of(self, name: str) -> Chip:
        """The chip of the instance `name`.

        Raises:
            BadInput: there is no such instance, with those that there are.
        """
        if name not in self.instances:
            raise BadInput(
                f"no figures of an instance {name!r}: choose among {', '.join(self.instances)}, or give your own file with "
                "--instances"
            )
        return self.chips[self.instances[name].chip]


def load(own: Path | None = None) -> Instances:
    """The shipped figures, with those of the file `own` laid over them, key by key.

    Raises:
        BadInput: `own` cannot be read, is not TOML, or has a key or a value that is wrong; the message names it.
    """
    values = tomllib.loads(SHIPPED.read_text())
    if own is not None:
        try:
            values = _over(values, tomllib.loads(own.read_text()))
        except OSError as error:
            raise BadInput(f"{own} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise BadInput(f"{own} is not TOML: {error}") from None
    try:
        made = Instances.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BadInput(f"{own or SHIPPED}: {place}: {first['msg']}") from None
    for name, instance in made.instances.items():
        if instance.chip not in made.chips:
            raise BadInput(f"{own or SHIPPED}: instances.{name}.chip: no chip {instance.chip!r} is described")
    return made


def _over(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: _over(below.get(key), value) for key, value in above.items()}
    return above
