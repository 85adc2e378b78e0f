"""What of the large products of cases ``make test`` runs: each value of each axis, not each combination. ``make sweep`` runs all.

``@pytest.mark.covering`` on a test whose parametrisations multiply (operators, dtypes, layouts): a few of the cases, in which
every value of every axis occurs, spread evenly; ``covering("torch.float32")`` also keeps half of the cases with that id.
``@pytest.mark.rotating(40)`` on a test over a long table: one in 40 of its cases, and never none.
``pytestmark = pytest.mark.rotating(2, least=3)`` in a file whose cases compile: half of the cases of its other parametrised
tests, if they have three. The half changes with the seed, so that two days see all.
``@pytest.mark.rotating(2, group="processes")`` on several tests of a file, which need no parameters: one in two of them.

``--sweep tenth`` keeps all cases with such an id, and adds a tenth of the rest, another tenth with every seed and each case
in one of ten consecutive seeds (the seed is the day's number, if none is given; it is printed); ``--sweep all`` runs
everything. So does naming a test with ``::``. The choice depends on nothing but the collected cases and the seed, so that all
pytest-xdist workers agree.
"""

from __future__ import annotations

import datetime
import itertools
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

SHARES = ("cover", "tenth", "all")
Case = TypeVar("Case", bound=pytest.Item)


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("sweep", "cases of large products")
    group.addoption(
        "--sweep", choices=SHARES, default="cover", help="how many cases of large products (default: cover)"
    )
    group.addoption("--sweep-seed", type=int, help="which tenth and which rotating cases (default: the day's number)")


def configure(config: pytest.Config) -> None:
    # Settled here, before workers are started with these options: they may start on both sides of midnight.
    if config.option.sweep_seed is None:
        config.option.sweep_seed = datetime.date.today().toordinal()


def header(config: pytest.Config) -> str:
    return f"cases of large products: --sweep {config.option.sweep} --sweep-seed {config.option.sweep_seed}"


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the options leave out."""
    if config.option.sweep == "all" or any("::" in argument for argument in config.args):
        return
    groups: dict[Any, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function):
            mark = _mark(item)
            if mark is not None and "group" in mark.kwargs:
                groups[item.path, mark.kwargs["group"]].append(item)
            elif hasattr(item, "callspec"):
                groups[item.path, item.parent and item.parent.nodeid, item.originalname].append(item)
    left_out: set[pytest.Item] = set()
    tenth = config.option.sweep == "tenth"
    for cases in groups.values():
        mark = _mark(cases[0])
        seed = config.option.sweep_seed
        if mark is None or len(cases) < mark.kwargs.get("least", 2):
            continue
        if mark.name == "rotating":
            one_in = min(10, *mark.args) if tenth else mark.args[0]
            left_out |= set(cases) - set(rotated(cases, seed, one_in))
        else:
            kept = cover(cases, mark.args, mark.kwargs.get("strength", 1), None if tenth else seed)
            left_out |= {case for case in cases if case not in kept and not (tenth and chosen(case.nodeid, seed, 10))}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def _mark(item: pytest.Item) -> pytest.Mark | None:
    """The nearest of our marks: a test's own comes before its file's."""
    return next((mark for mark in item.iter_markers() if mark.name in ("rotating", "covering")), None)


def chosen(nodeid: str, seed: int, one_in: int) -> bool:
    """Whether a case belongs to the part of `seed`: one of each `one_in` consecutive seeds says yes."""
    return (zlib.crc32(nodeid.encode()) + seed) % one_in == 0


def rotated(cases: Sequence[Case], seed: int, one_in: int) -> list[Case]:
    """One in so many of the cases of a test, at least one, and each in one of `one_in` consecutive seeds.

    Shuffled, so that of a product no day has one value of an axis only; and tests begin at different places, so that not all
    have their few cases on the same day.
    """
    one_in = min(one_in, len(cases))
    shuffled = sorted(cases, key=lambda case: zlib.crc32(case.nodeid.encode()))
    return shuffled[(zlib.crc32(cases[0].nodeid.partition("[")[0].encode()) + seed) % one_in :: one_in]


def cover(
    cases: list[pytest.Function], always: Sequence[str] = (), strength: int = 1, seed: int | None = None
) -> set[pytest.Function]:
    """Few cases in which every value of every axis occurs, and those with a value whose id is in `always`: all of them, or
    with a `seed` the half that has its turn.

    With `strength` 2 every pair of values of two axes occurs, which is the whole product where there are two axes.
    """
    seen = {case: set(itertools.combinations(enumerate(_ids(case)), min(strength, len(_ids(case))))) for case in cases}
    asked = [case for case in cases if any(one in always for one in _ids(case))]
    kept = set(asked if seed is None or not asked else rotated(asked, seed, 2))
    used = Counter(value for case in kept for value in seen[case])
    wanted = {value for values in seen.values() for value in values} - used.keys()
    while wanted:
        # The case with the most new values; among equals the one whose values were used least, then the first.
        best = max(
            (case for case in cases if case not in kept),
            key=lambda case: (len(wanted & seen[case]), -sum(used[value] for value in seen[case])),
        )
        kept.add(best)
        used.update(seen[best])
        wanted -= seen[best]
    return kept


def _ids(case: pytest.Function) -> Sequence[str]:
    """One id for each ``parametrize`` of the test. pytest keeps them apart in a private list only; without it a case is a
    value of its own, and nothing is left out."""
    return getattr(case.callspec, "_idlist", None) or [case.callspec.id]
