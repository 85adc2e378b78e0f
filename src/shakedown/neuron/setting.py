"""One environment variable: its name, type, default and meaning. The lists of them are in :mod:`.config` and beside it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from .errors import ConfigError

T = TypeVar("T")


def variables() -> list[str]:
    """Names of all variables that are set."""
    return list(os.environ)


def text_of(name: str) -> str:
    """A variable as it is set; "" where it is not."""
    return os.environ.get(name, "")


def flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("one of 1, true, yes, on, 0, false, no, off")


def count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise ValueError("a whole number above zero")
    return value


def number(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise ValueError("a whole number, zero or more")
    return value


def level(text: str) -> int:
    """0, 1, 2 or 3"""
    if text.strip() not in {"0", "1", "2", "3"}:
        raise ValueError(level.__doc__)
    return int(text)


def choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(parse.__doc__)
        return text

    parse.__doc__ = f"one of {', '.join(repr(a) for a in allowed)}"
    return parse


def some_of(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(part.strip() for part in text.split(",") if part.strip())
        if not set(chosen) <= set(allowed):
            raise ValueError(parse.__doc__)
        return chosen

    parse.__doc__ = f"names with commas between them, out of {', '.join(repr(a) for a in allowed)}"
    return parse


def cores(text: str) -> tuple[int, ...]:
    """Cores as NEURON_RT_VISIBLE_CORES has them: numbers and inclusive ranges, ``0,2-4``."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found += _between(int(first), int(last) if dash else int(first))
    except ValueError:
        found = []
    if not found or min(found) < 0 or len(set(found)) != len(found):
        raise ValueError("numbers of cores and ranges of them, such as 0 or 0,2-4")
    return tuple(found)


_BYTES = (
    {"": 1, "b": 1}
    | {f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}
    | {f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}
)


def size(text: str) -> int:
    """bytes, such as 25769803776, 24GiB or 1.5 GB"""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    value = int(float(found[1]) * _BYTES.get(found[2], 0)) if found else 0
    if value <= 0:
        raise ValueError("bytes above zero, such as 25769803776, 24GiB or 1.5 GB")
    return value


def _between(first: int, last: int) -> range:
    if last < first:
        raise ValueError
    return range(first, last + 1)


_KINDS: dict[Any, str] = {
    flag: "0 or 1",
    count: "whole number above zero",
    number: "whole number",
    cores: "cores, as 0,2-4",
    Path: "path",
    str: "text",
}


@dataclass(frozen=True, eq=False, repr=False)  # each method that it writes is compiled on every `import torch`
class Setting(Generic[T]):
    """One environment variable. ``setting()`` gives its value now; nothing is cached.

    ``alias`` is TorchNeuron's variable of the same meaning, which counts where ours is not set, or empty; ``opposite`` one that
    switches off what ours switches on. ``source`` says where TorchNeuron's name is described ("" for a setting that only we
    have), ``effect`` whether it does something here or is only accepted, and ``differs`` how its meaning or default differs from
    TorchNeuron's. A value of ``lenient`` variables that cannot be read is a warning and the default, as it is there.
    """

    name: str
    default: T
    parse: Callable[[str], T]
    help: str
    alias: str | None = None
    opposite: str | None = None
    source: str = ""
    effect: Literal["honoured", "accepted"] = "honoured"
    differs: str = ""
    lenient: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The variables that are asked, in this order."""
        return tuple(n for n in (self.name, self.alias, self.opposite) if n is not None)

    @property
    def kind(self) -> str:
        """What a value looks like, in words."""
        return _KINDS.get(self.parse) or (self.parse.__doc__ or "text").splitlines()[0]

    def set_by(self) -> str | None:
        """The variable that gives the value now; None where it is the default. One that is empty is not set."""
        return next((n for n in self.names if os.environ.get(n)), None)

    def passed_over(self) -> dict[str, str]:
        """Variables that are set too, and do not count because another does."""
        counts = self.set_by()
        return {n: os.environ[n] for n in self.names if n != counts and os.environ.get(n)}

    def problem(self) -> str:
        """Why the value cannot be read; "" where it can."""
        name = self.set_by()
        if name is not None:
            try:
                self.parse(os.environ[name])
            except ValueError as allowed:
                return _cannot(name, allowed)
        return ""

    def __call__(self) -> T:
        name = self.set_by()
        if name is None:
            return self.default
        try:
            value = self.parse(os.environ[name])
        except ValueError as allowed:
            problem = _cannot(name, allowed)
            if name not in self.lenient:
                raise ConfigError(problem) from None
            if problem not in _warned:  # once: settings are read often
                _warned.add(problem)
                warnings.warn(f"{problem}; {self.default} is taken instead", stacklevel=2)
            return self.default
        return not value if name == self.opposite else value  # type: ignore[return-value]  # only flags have one


def _cannot(name: str, allowed: ValueError) -> str:
    return f"{name}={os.environ[name]!r} cannot be used: it must be {allowed}"


_warned: set[str] = set()
