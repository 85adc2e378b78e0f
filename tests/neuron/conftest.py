"""What ran in one test is not counted in the next, and what was warned of once is warned of again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from shakedown.neuron import events, log


@pytest.fixture(autouse=True)
def _counts_of_its_own() -> None:
    events.clear()
    log.forget()


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """What others compiled is forgotten before the test, and what it compiled after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
