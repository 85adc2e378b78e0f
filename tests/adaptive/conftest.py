"""Adaptive eager is decided when Python starts, so these tests have a pytest of their own: ``make test`` starts it.

Without ``SHAKEDOWN_ADAPTIVE=1`` they are skipped, and say so.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from shakedown.neuron import config, events

_ON = config.ADAPTIVE()
if _ON:
    # A busy machine must not cut a recording where the test does not: who tests the timer asks for a short one.
    os.environ.setdefault(config.ADAPTIVE_TIMEOUT.name, "60000")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _ON:
        return
    why = pytest.mark.skip(reason=f"needs {config.ADAPTIVE.name}=1 when Python starts: `make test` runs these too")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(why)


@pytest.fixture(autouse=True)
def _counts_of_its_own() -> None:
    """Nothing recorded, counted or compiled by an earlier test is left."""
    assert torch.neuron.adaptive.enabled()
    torch.ones(1, device="neuron")
    torch.neuron.adaptive.reset()
    torch.neuron.adaptive.wait(60)
    events.clear()
