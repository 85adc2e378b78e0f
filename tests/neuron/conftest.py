"""What ran in one test is not counted in the next."""

from __future__ import annotations

import pytest

from shakedown.neuron import events


@pytest.fixture(autouse=True)
def _counts_of_its_own() -> None:
    events.clear()
