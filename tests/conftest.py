"""Executables compiled by the tests are kept beside pytest's own cache, so that a second run starts warm."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from . import costs, order, sampling

os.environ.setdefault("SHAKEDOWN_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "shakedown"))


def pytest_addoption(parser: pytest.Parser) -> None:
    costs.add_options(parser)
    sampling.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    # Workers share the machine: two OpenMP threads each, which spin for one another, make small operators very slow.
    torch.set_num_threads(1)
    sampling.configure(config)
    costs.configure(config)
    config.pluginmanager.register(order, "order")


def pytest_report_header(config: pytest.Config) -> str:
    return sampling.header(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sampling.select(config, items)


@pytest.fixture(scope="module", autouse=True)
def _plans_of_its_own() -> Iterator[None]:
    """A module finds no programs of the ones before it, and leaves none: a thousand of them hold more than a gigabyte."""
    yield
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    dispatch = sys.modules.get("shakedown.neuron.dispatch")
    if dispatch is not None:
        for operator in dispatch.known_operators():
            operator.plans.clear()
        dispatch.set_plans_aside(None, None)  # counts them again
    _set_aside()


@pytest.fixture(scope="module")
def cheap_collections() -> None:
    """For tests that collect often: what the first operator of a process loads is there, and is not looked at."""
    torch.ones(2, device="neuron") + 1
    _set_aside()


def pytest_collection_finish() -> None:
    _set_aside()


def _set_aside() -> None:
    """Spare the garbage collector the million objects of torch, JAX and pytest: a full collection, which each memory reading
    of a trial asks for, takes half a second with them, and a millisecond without."""
    gc.collect()
    gc.freeze()
