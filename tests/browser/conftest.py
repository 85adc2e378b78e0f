"""A real Chromium, and the pages that it opens. Where there is none these tests are skipped, and on CI they fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shakedown.readiness import report
from shakedown.readiness.record import Record

from ..readiness import pages

NAMES = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


def absent(why: str) -> None:
    """Skip, or fail where CI should have provided what is missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}; CI installs it (.ci/run)")
    pytest.skip(why)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        absent("no Chromium here: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent("playwright is not installed: pip install -e .[dev]")
    with sync_playwright() as drive:
        running = drive.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    return pages.real(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def files(real: tuple[Path, Record], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by name: with every kind of result, hostile, and large."""
    folder = tmp_path_factory.mktemp("pages")
    made: dict[str, Callable[[Path, Record], Record]] = {
        "rich": lambda root, record: pages.rich(record),
        "hostile": lambda root, record: pages.hostile(root, pages.rich(record)),
        "large": pages.large,
    }
    found = {}
    for name, make in made.items():
        root = Path(shutil.copytree(real[0], folder / name))
        found[name] = root / "report.html"
        found[name].write_text(report.html(make(root, real[1]), root), errors="backslashreplace")
    return found


class Opened:
    """A page with everything that it said and asked for."""

    def __init__(self, page: Any, file: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))
        self.url = file.as_uri()
        page.goto(self.url)


@pytest.fixture
def opened(browser: Any, files: dict[str, Path]) -> Iterator[Callable[..., Opened]]:
    """Open one of the pages in a window of its own, which must stay silent and must ask for nothing but the page."""
    contexts, all_opened = [], []

    def make(name: str, width: int = 1440, height: int = 900, **options: Any) -> Opened:
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        all_opened.append(Opened(contexts[-1].new_page(), files[name]))
        return all_opened[-1]

    yield make
    for one in all_opened:
        assert not one.said
        assert {url.partition("#")[0] for url in one.asked} == {one.url}, "the page asked for something else"
    for context in contexts:
        context.close()
