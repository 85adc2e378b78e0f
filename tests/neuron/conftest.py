"""What ran in one test is not counted in the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shakedown.neuron import events


@pytest.fixture(autouse=True)
def _counts_of_its_own() -> Iterator[None]:
    events.clear()
    yield
