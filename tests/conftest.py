"""Executables compiled by the tests are kept beside pytest's own cache, so that a second run starts warm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from . import costs, sampling

os.environ.setdefault("SHAKEDOWN_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "executables"))


def pytest_addoption(parser: pytest.Parser) -> None:
    costs.add_options(parser)
    sampling.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    sampling.configure(config)
    costs.configure(config)


def pytest_report_header(config: pytest.Config) -> str:
    return sampling.header(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sampling.select(config, items)
