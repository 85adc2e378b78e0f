"""What packages do with models under adaptive eager: a sample of ``python -m tests.clients``, another one every day."""

from __future__ import annotations

import pytest

from tests.clients import packages, rows
from tests.clients.table import problem_of


@pytest.mark.rotating(4)
@pytest.mark.parametrize("file", ["trainer", "generation", "accelerated", "lit", "adapters", "vision"])
def test_what_packages_do(file, pytestconfig):
    if reason := packages.usable(packages.FILES[file][0]):
        pytest.skip(reason)
    seed = None if pytestconfig.option.sweep == "all" else pytestconfig.option.sweep_seed
    cases = packages.sample(file, ("adaptive",), seed)
    assert cases
    assert [problem_of(rows.run(row, mode)) for row, mode in cases] == [""] * len(cases)
