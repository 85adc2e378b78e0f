"""What ran in one test is not counted in the next, and what was warned of once is warned of again."""

from __future__ import annotations

import sys

import pytest

from shakedown.neuron import events


@pytest.fixture(autouse=True)
def _counts_of_its_own() -> None:
    events.clear()
    if options := sys.modules.get("shakedown.neuron.modes.compile.options"):
        options._said.clear()
