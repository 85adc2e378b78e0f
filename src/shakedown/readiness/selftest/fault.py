"""What a fault is: a name, what it does to a process, the smallest trial that can show it, and what must catch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .inject import Device

Group = Literal[
    "numbers", "one place only", "decisions and dtypes", "paths and graphs", "time, memory, cache", "process"
]
# wrong: must be caught. legal: right in another way, and nothing may fail. Both are tried in the same manner.
Nature = Literal["wrong", "legal"]


@dataclass(frozen=True)
class By:
    """What must catch a fault: a check's fixed word, in a cell of `mode`, and `says`, a part of what the finding says.

    ``phase`` is the part of a step that is to be blamed, for the reader.
    """

    word: str
    says: str = ""
    mode: str = ""
    phase: str = ""


@dataclass(frozen=True)
class Recipe:
    """The smallest trial that can show a fault. ``kinds`` are the kinds of cells that are run; the others are left out.

    ``warm``: each mode runs on a cold and then on a warm cache. ``share``: the process may find compiled programs of other
    trials, which takes nothing away from what is judged. ``demand`` are requirements by dotted key, as TOML has the value.
    """

    workload: str = "block"
    modes: tuple[str, ...] = ("eager",)
    dtypes: tuple[str, ...] = ("float32",)
    cases: tuple[str, ...] = ("2x8",)
    kinds: tuple[str, ...] = ("sequence",)
    warm: bool = False
    share: bool = True
    demand: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """One named change. ``hidden_in`` are precisions of the recipe whose own rounding is larger than the fault."""

    name: str
    what: str
    group: Group
    apply: Callable[[Device], None]
    by: tuple[By, ...]
    recipe: Recipe = field(default=Recipe())
    nature: Nature = "wrong"
    hidden_in: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


FAULTS: dict[str, Fault] = {}


def fault(
    *by: By,
    group: Group,
    recipe: Recipe = Recipe(),
    nature: Nature = "wrong",
    hidden_in: tuple[str, ...] = (),
) -> Callable[[Callable[[Device], None]], Callable[[Device], None]]:
    """Register the decorated function as a fault of its own name; its docstring is what the table says of it."""

    def register(apply: Callable[[Device], None]) -> Callable[[Device], None]:
        name = apply.__name__
        if name in FAULTS:
            raise ValueError(f"there are two faults called {name}")
        what = " ".join((apply.__doc__ or "").split())
        FAULTS[name] = Fault(name, what, group, apply, by, recipe, nature, hidden_in)
        return apply

    return register
