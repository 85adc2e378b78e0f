"""The HTML report as a file: what stands where, what it may contain, and what becomes of odd values and hostile text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown.cli import app
from shakedown.readiness import record as records
from shakedown.readiness import report
from shakedown.readiness.record import Record
from shakedown.readiness.report import details, observed, overview
from shakedown.readiness.report.html import axes, charts
from shakedown.readiness.report.html import page as assembly
from shakedown.readiness.report.html.charts import Axis, Band, Bar, Dots, Line, Point

from . import pages

VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """Tags with their attributes, and the text, of a page; tags that are not closed in order are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.said: list[str] = []
        self.code: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.code:
            self.code[self.open[-1]].append(data)
        else:
            self.said.append(data)

    @property
    def text(self) -> str:
        return "".join(self.said)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    return pages.real(tmp_path_factory.mktemp("html"))


@pytest.fixture
def copy(real: tuple[Path, Record], tmp_path: Path) -> tuple[Path, Record]:
    return Path(shutil.copytree(real[0], tmp_path / "run")), real[1]


def rich(real: tuple[Path, Record]) -> str:
    return report.html(pages.rich(real[1]), real[0])


def test_a_trial_leaves_the_page_and_what_it_says_comes_verdict_first(real):
    root, record = real
    text = (root / "report.html").read_text()
    ids = [attrs["id"] for attrs in Page(text).all("section")]
    assert ids[:4] == ["verdict", "untested", "cells", "numbers"]
    assert set(ids[4:]) >= {
        "losses",
        "path",
        "graphs",
        "time",
        "break-even",
        "shapes",
        "memory",
        "projection",
        "findings",
    }
    found = Page(text[text.index("<main>") : text.index("</main>") + 7]).text
    decision = record.judgement.decision
    order = [record.label_text, decision.disposition.capitalize(), *(r.name.capitalize() for r in decision.results)]
    places = [found.index(words) for words in (*order, "What this rests on", "Nothing here passed", "Processes")]
    assert places == sorted(places)
    assert "report.html" not in record.files


def test_no_section_of_the_report_is_lost(real):
    record = pages.rich(real[1])
    found = Page(report.html(record, real[0])).text
    for section in (one for part in (overview, observed, details) for one in part.sections(record)):
        if section.title not in assembly._SAID_ABOVE:
            assert section.title in found
    assert all(statement.text.replace("`", "") in found for statement in record.judgement.decision.statements)


def test_the_page_needs_nothing_else_and_its_links_lead_to_sealed_files(real):
    root, _ = real
    page = Page(rich(real))
    for tag, attrs in page.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base", "audio", "video")
        assert not {name for name in attrs if name.startswith("on")} | {"src", "style", "srcset"} & attrs.keys()
    links = [attrs["href"] for attrs in page.all("a")]
    assert all(link.startswith(("#", "./")) for link in links)
    assert all((root / link).is_file() for link in links if link.startswith("./"))
    assert {attrs["href"] for attrs in page.all("link")} == {"data:,"}
    anchors = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {link[1:] for link in links if link.startswith("#")} <= anchors
    assert len(anchors) == sum("id" in attrs for _, attrs in page.tags), "an id is used twice"


def test_only_the_page_s_own_script_and_style_are_allowed(real):
    page = Page(rich(real))
    policy = next(
        attrs["content"] for attrs in page.all("meta") if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    for kind in ("script", "style"):
        (code,) = page.code[kind]
        found = "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"{kind}-src '{found}'" in policy
    assert "unsafe" not in policy
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|localStorage", page.code["script"][0]
    )


def test_every_figure_says_what_it_is_and_where_its_data_lie(real):
    text = rich(real)
    figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
    drawn = set(re.findall(r'id="chart-([a-z-]+?)(?:-\d+)?-title"', text))
    assert drawn >= {
        "numerics", "starts", "steady", "curve", "loss", "gap", "traffic", "waste", "bucket-seconds", "memory-host", "projection"
    }  # fmt: skip
    for one in figures:
        page = Page(one)
        (svg,) = page.all("svg")
        names = svg["aria-labelledby"].split()
        assert {attrs.get("id") for _, attrs in page.tags} >= set(names)
        assert page.all("table"), "no table of the same values"
        assert "Data:" in page.text
        assert re.search(r"\((sealed as )?[0-9a-f]{12}\)", page.text)
        assert re.search(r"\bn = |\bn of each|no interval, since|Seconds over|Share of computed", page.text), page.text[
            :300
        ]


def test_what_is_missing_says_why(copy):
    root, record = copy
    found = Page(report.html(record, root)).text
    assert "not measured: no long run was compared" in found
    assert "not measured: the requirements name no distribution of lengths" in found
    (root / "vectors.json").write_text("{}")
    assert "withheld: vectors.json is not the file that was sealed" in Page(report.html(record, root)).text
    (root / "vectors.json").unlink()
    assert "withheld: vectors.json cannot be read" in Page(report.html(record, root)).text
    odd = pages.put(
        root, record, "vectors.json", b'{"a": [1], "reference-float32": {"2x8": [{"name": 1, "margin": "x"}, 7]}}'
    )
    assert "not finite" in Page(report.html(odd, root)).text
    nested = pages.put(root, record, "vectors.json", b"[" * 100_000)
    assert "withheld: vectors.json is not JSON" in Page(report.html(nested, root)).text


def test_a_graph_break_shows_its_line_of_the_source(real):
    page = Page(rich(real))
    at = page.text.index("tiny.py:30")
    line = (real[0] / "workload.py").read_text().splitlines()[29].strip()
    assert line in page.text[at:]
    assert "this line: " in page.text[at:]


def test_a_projection_never_looks_like_a_measurement(real):
    text = rich(real)
    (figure,) = [one for one in re.findall(r"<figure.*?</figure>", text, re.DOTALL) if 'class="projection"' in one]
    assert "PROJECTION" in figure
    assert "nothing was measured there" in figure
    assert "projection, not a measurement" in text


@pytest.mark.parametrize("label", ["rehearsal", "measurement", "self-check"])
def test_the_label_comes_before_everything(real, label):
    record = real[1].model_copy(update={"label": label, "label_text": records.LABELS[label]})
    text = report.html(record, real[0])
    assert text.index(f'class="label {label}"') < text.index("<h1")


def test_hostile_text_stays_text(copy):
    root, record = copy
    text = report.html(pages.hostile(root, pages.rich(record)), root)
    page = Page(text)  # tags are balanced, so nothing broke out
    assert len(page.all("script")) == 1
    for tag, attrs in page.tags:
        assert tag not in ("img", "iframe", "object", "embed", "base")
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "style")]
        assert re.match(r"$|#|\./|data:,$", attrs.get("href", ""))
    assert "<script>window.hacked=1</script>" in page.text
    assert "{{ 7*7 }}" in page.text
    assert "\u202e" not in text, "a character that reorders text was not written out"
    assert "\x1b" not in text
    assert "\\u202e" in page.text


def test_a_large_record_stays_usable(copy):
    root, record = copy
    text = report.html(pages.large(root, record), root)
    assert len(text) < 6_000_000  # 200 processes, 16,000 tensors, 10,000 findings
    page = Page(text)
    assert sum("data-verdicts" in attrs for attrs in page.all("details")) == len(record.cells) + 200
    assert "9,800 more rows are in record.json" in page.text


def test_links_of_a_page_elsewhere_lead_back(real, tmp_path):
    text = report.html(real[1], real[0], tmp_path)
    links = [attrs["href"] for attrs in Page(text).all("a") if not attrs["href"].startswith("#")]
    assert links
    assert all((tmp_path / link).is_file() for link in links)


def test_the_command_writes_each_format(copy, tmp_path):
    root, _ = copy
    run = CliRunner().invoke
    (root / "report.html").unlink()
    made = run(app, ["report", str(root / "record.json"), "--json"])
    assert made.exit_code == 0
    assert json.loads(made.stdout) == {
        "format": "html", "file": str(root / "report.html"), "bytes": (root / "report.html").stat().st_size
    }  # fmt: skip
    out = tmp_path / "elsewhere.md"
    assert run(app, ["report", str(root), "--format", "markdown", "--out", str(out)]).exit_code == 0
    assert out.read_text().startswith("# Trial of tiny")
    shown = run(app, ["report", str(root), "--format", "terminal"])
    assert shown.exit_code == 0
    assert records.load(root).judgement.decision.disposition in shown.stdout
    assert records.verify(root).verified, "writing a report changed the record"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{run}/evidence"], "there is no record"),
        (["{run}", "--out", "{run}"], "is a directory"),
        (["{run}", "--out", "{run}/record.json/x.html"], "cannot write"),
        (["{run}", "--format", "terminal", "--out", "x"], "is printed"),
    ],
)
def test_bad_input_is_one_line(copy, arguments, said):
    made = CliRunner().invoke(app, ["report", *(one.format(run=copy[0]) for one in arguments), "--json"])
    assert made.exit_code == 2
    assert said in json.loads(made.stdout)["error"]


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_a_record_that_no_trial_wrote_is_bad_input(copy, form):
    root, record = copy
    fewer = pages.judged(record, cells=record.judgement.cells[1:])
    (root / "record.json").write_text(fewer.model_dump_json())
    made = CliRunner().invoke(app, ["report", str(root), "--format", form, "--json"])
    assert made.exit_code == 2
    assert "lacks what a report needs" in json.loads(made.stdout)["error"]


@pytest.mark.parametrize(
    "values",
    [[], [0.0], [5.0], [math.nan, None], [-3.0, 4.0], [1e-9, 1e12], [1e300, 1e308], [3, 3, 3], [0.1 + 0.2], [-1e-12]],
)
@pytest.mark.parametrize("log", [False, True])
def test_axes_are_sane_for_any_values(values, log):
    made = Axis("x", log=log).scale(values, 10, 700)
    ticks = made.ticks()
    assert 2 <= len(ticks) <= 14
    assert ticks == sorted(set(ticks))
    places = [made(tick) for tick in ticks]
    assert all(place is not None and 9.9 <= place <= 700.1 for place in places)
    words, _ = Axis("x", log=log).words(ticks)
    assert len(set(words)) == len(words)
    for value in values:
        place = made(value)
        if value is not None and math.isfinite(value) and not (log and value <= 0):
            assert place is not None
            assert 9.9 <= place <= 700.1


def test_ticks_carry_the_unit_that_suits_them():
    assert Axis("time", "seconds").words([0, 0.001, 0.002]) == (["0", "1", "2"], "time, ms")
    assert Axis("time", "seconds", log=True).words([1e-3, 1.0]) == (["1 ms", "1 s"], "time")
    assert Axis("memory", "bytes").words([0, 2e9]) == (["0", "2"], "memory, GB")
    assert axes.said(0.31, "share") == "31%"
    assert axes.said(None, "seconds") == "–"
    assert axes.said(math.inf, "") == "not finite"


def test_a_chart_shows_or_tells_every_value():
    drawn = charts.dots(
        "d",
        "t",
        [Dots("a", [0.0, 0.5, 1.0, 3.0, None, math.inf], frozenset({1})), Dots("b", [])],
        Axis("x", log=True),
        1.0,
        "b",
    )
    assert drawn.table.rows[0] == ("a", "6", "3", "1", "1", "3", "1", "2")
    assert drawn.svg.count('class="stroke failed"') == 3  # beyond the bound, not finite, and by something else
    curve = charts.lines(
        "l", "t", [Line("a", [Point(1, 1.0), Point(2, None), Point(3, 2.0, 1.5, 2.5)])], Axis("x"), Axis("y", log=True),
        [Band("twins", [Point(1, None, 0.0, 2.0), Point(3, None, 1.0, 3.0)])], [(2, "restart")], [(1.5, "allowed")],
    )  # fmt: skip
    assert [row[2] for row in curve.table.rows] == ["1", "not finite", "2", "–", "–"]
    assert "1 value has no place" in curve.notes[0]
    assert all(word in curve.svg for word in ("restart", "allowed", "twins"))
    bar = charts.bars(
        "b",
        "t",
        [Bar("a", (("p", 1.0), ("q", 2.0)), 2.5, 3.5), Bar("c", missing="withheld: noise")],
        Axis("s", "seconds"),
    )
    assert bar.table.rows[0] == ("a", "1 s", "2 s", "3 s", "2.5 s", "3.5 s", "–")
    assert "withheld: noise" in bar.svg
    single = charts.lines("s", "t", [Line("a", [Point(1, 0.0)])], Axis("x"), Axis("y"))
    assert "nan" not in single.svg.lower()
