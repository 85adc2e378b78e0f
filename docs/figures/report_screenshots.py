"""Screenshots of an HTML report for docs/report.md: ``python docs/figures/report_screenshots.py RECORD``.

Needs a Chromium and playwright (``pip install -e .[dev]``). RECORD is the directory of a finished trial of the decoder.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from shakedown.readiness import record, report

HERE = Path(__file__).parent
# Name, width, height, colour scheme, and what is scrolled to the top.
SHOTS = (
    ("report-verdict.png", 1200, 860, "light", "body"),
    ("report-cells.png", 1200, 860, "dark", "#cells"),
    ("report-numbers.png", 1200, 860, "light", "#numbers"),
    ("report-time.png", 1200, 860, "dark", "#time"),
    ("report-phone.png", 390, 844, "light", "body"),
)


def main(root: Path) -> None:
    """Write the page anew and take all pictures."""
    page_file = root / "report.html"
    page_file.write_text(report.html(record.load(root), root), errors="backslashreplace")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as drive:
        browser = drive.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, width, height, scheme, target in SHOTS:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(page_file.resolve().as_uri())
            page.locator(target).evaluate("one => one.scrollIntoView()")
            page.screenshot(path=HERE / name)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
