"""The report in a real browser: it renders, filters, prints, is kind to keyboards and screen readers, and runs no other code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from . import conftest

UNFOLD = "() => document.querySelectorAll('details').forEach((one) => { one.open = true })"
VISIBLE = "() => [...document.querySelectorAll('#processes > details')].filter((one) => !one.hidden).length"
LUMINANCE = """() => {
    const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number);
    return (r + g + b) / 765;
}"""
# Everything that the keyboard should reach: controls, links, folds, and regions that scroll.
REACHABLE = """() => [...document.querySelectorAll('a[href], button, select, input, summary, [tabindex="0"]')]
    .filter((one) => one.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true}))
    .map((one, i) => { one.dataset.stop = i; return i; })"""
FOCUSED = """() => {
    const at = document.activeElement, style = getComputedStyle(at);
    return [at.dataset.stop ?? null, style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2];
}"""
# Charts, tables and source that do not fit what holds them, in print.
CUT = """() => [...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.getAttribute('aria-label'))"""


def test_it_renders_and_says_the_verdict_first(opened):
    page = opened("rich").page
    heading = page.locator("h1")
    assert heading.inner_text() == "Trial of tiny on cpu (self-check)"
    assert page.locator("p.label").inner_text().upper().startswith("SELF-CHECK: THE CPU")
    seen = page.locator(".disposition .word")
    assert "Needs a named change" in seen.inner_text()
    for first in (heading, seen, page.locator(".results li").last):
        assert first.bounding_box()["y"] < 700, "not on the first screen"
    for chart in page.locator("svg.chart").all():
        box = chart.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 60


def test_words_of_a_chart_stay_inside_it(opened):
    page = opened("rich").page
    outside = page.evaluate(
        """() => [...document.querySelectorAll('svg.chart')].flatMap((svg) => {
            const edge = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter((text) => {
                const box = text.getBoundingClientRect();
                return box.left < edge.left - 1 || box.right > edge.right + 1 || box.bottom > edge.bottom + 1;
            }).map((text) => `${svg.querySelector('title').textContent}: ${text.textContent}`);
        })"""
    )
    assert not outside


def test_filters_narrow_processes_and_matrix(opened):
    page = opened("large").page
    everything = page.evaluate(VISIBLE)
    assert page.locator("#shown").inner_text() == f"{everything} of {everything} processes shown"
    page.select_option("[name=mode]", "compiled")
    assert page.evaluate(VISIBLE) == 200
    assert page.locator("#matrix thead th:visible").all_inner_texts() == ["case", "compiled bfloat16"]
    page.fill("[name=text]", "BFLOAT16-17")
    assert page.evaluate(VISIBLE) == 11  # 17 and 170 to 179
    assert page.locator("#matrix a.mark:visible").count() == 22
    page.select_option("[name=verdict]", "match")
    assert page.evaluate(VISIBLE) == 0
    assert page.locator("#matrix tbody tr:visible").count() == 0
    page.click("text=Clear")
    page.wait_for_function(f"({VISIBLE})() === {everything}")
    page.select_option("[name=verdict]", "mismatch")
    assert page.evaluate(VISIBLE) == everything - 1
    page.select_option("[name=dtype]", "float32")
    assert page.evaluate(VISIBLE) == 1


def test_a_sign_of_the_matrix_leads_to_its_process(opened):
    page = opened("rich").page
    mark = page.locator("a.mark").last
    target = mark.get_attribute("href")
    assert not page.locator(f"{target}[open]").count()
    mark.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{target}[open]")
    page.wait_for_function(f"document.activeElement.parentElement?.id === '{target[1:]}'")
    page.keyboard.press("Enter")
    assert not page.locator(f"{target}[open]").count()


def test_the_keyboard_reaches_and_shows_everything(opened):
    page = opened("rich").page
    wanted = {str(one) for one in page.evaluate(REACHABLE)}
    reached = []
    for _ in range(len(wanted) + 1):
        page.keyboard.press("Tab")
        stop, shown = page.evaluate(FOCUSED)
        if stop is None or stop in reached:
            break
        assert shown, f"focus on {page.evaluate('document.activeElement.outerHTML')[:200]} cannot be seen"
        reached.append(stop)
    assert set(reached) == wanted
    assert reached == sorted(reached, key=int), "the order of the keyboard is not that of the page"
    page.goto(page.url.partition("#")[0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.url.endswith("#verdict")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme_follows_the_system_and_the_reader(opened, scheme):
    page = opened("rich", color_scheme=scheme).page
    assert (page.evaluate(LUMINANCE) > 0.5) == (scheme == "light")
    other = "dark" if scheme == "light" else "light"
    page.select_option("#theme", other)
    assert (page.evaluate(LUMINANCE) > 0.5) == (other == "light")
    page.select_option("#theme", "")
    assert (page.evaluate(LUMINANCE) > 0.5) == (scheme == "light")


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1440)])
def test_axe_finds_nothing(opened, scheme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = opened("rich", width=width, color_scheme=scheme).page
    page.evaluate(UNFOLD)
    found = Axe().run(page).response
    said = [(v["id"], v["help"], [node["html"][:150] for node in v["nodes"][:3]]) for v in found["violations"]]
    assert not said
    assert {"color-contrast", "region", "document-title", "svg-img-alt"} <= {rule["id"] for rule in found["passes"]}


@pytest.mark.parametrize("width", [360, 768, 1440])
@pytest.mark.parametrize("name", ["rich", "hostile"])
def test_no_width_makes_the_page_scroll_sideways(opened, name, width):
    page = opened(name, width=width).page
    page.evaluate(UNFOLD)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_it_prints_whole_with_the_verdict_on_the_first_page(opened, tmp_path):
    from pypdf import PdfReader

    page = opened("rich", width=703).page  # A4 less its margins, at 96 pixels an inch
    page.pdf(path=str(tmp_path / "report.pdf"), prefer_css_page_size=True)
    printed = PdfReader(tmp_path / "report.pdf").pages
    first = printed[0].extract_text()
    assert "Needs a named change" in first
    assert "SELF-CHECK" in first.upper()
    everything = " ".join(one.extract_text() for one in printed).replace("\n", " ")
    assert "Tensors nearest to their bounds" in everything
    assert "step1/gradient" in everything, "what is folded on the screen is missing on paper"
    page.emulate_media(media="print")
    page.evaluate(UNFOLD)
    assert page.evaluate(CUT) == []


def test_hostile_text_neither_runs_nor_hides(opened):
    page = opened("hostile").page
    page.evaluate(UNFOLD)
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('img, iframe, object, base').length") == 0
    assert page.evaluate("document.scripts.length") == 1
    heading = page.locator("h1").inner_text()
    assert "<script>window.hacked=1</script>" in heading
    assert "\\u202egnp.exe" in heading
    page.select_option("[name=mode]", "eager")
    assert page.evaluate(VISIBLE) == 1


def test_a_large_record_is_usable(opened):
    page = opened("large").page
    took = page.evaluate(
        """() => {
            const before = performance.now(), field = document.querySelector('[name=text]');
            field.value = 'no such process';
            field.dispatchEvent(new Event('input', {bubbles: true}));
            document.body.getBoundingClientRect();
            return performance.now() - before;
        }"""
    )
    assert page.evaluate(VISIBLE) == 0
    assert took < 10_000  # ms; some 30 on a quiet machine
    assert page.evaluate("document.querySelectorAll('*').length") < 120_000


def test_it_can_be_read_without_scripts(opened):
    page = opened("rich", java_script_enabled=False).page
    assert page.locator(".disposition .word").is_visible()
    assert not page.locator("#filters").is_visible()
    one = page.locator("#processes > details").first
    one.locator("summary").first.click()
    assert one.locator(".facts").first.is_visible()


def test_a_missing_browser_fails_only_where_it_should_be_there(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        conftest.absent("no Chromium here")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        conftest.absent("no Chromium here")


def test_the_screenshots_of_the_docs_are_there():
    docs = Path(__file__).parent.parent.parent / "docs"
    named = [
        line.split("](")[1].split(")")[0] for line in (docs / "report.md").read_text().splitlines() if "![" in line
    ]
    assert named
    for name in named:
        assert (docs / name).stat().st_size < 600_000, json.dumps(name)
