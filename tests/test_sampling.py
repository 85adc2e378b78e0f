"""How the suite itself runs: which cases of a test, and which file a worker takes next."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from . import order, sampling

ROOT = Path(__file__).parent.parent


def pytest_in(folder: Path, *options: str, plugins: str = "") -> subprocess.CompletedProcess[str]:
    """pytest on the tests in `folder`, with this package in reach and no plugins but `plugins`."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "--rootdir", str(folder)]
    return subprocess.run(
        [*command, "--confcutdir", str(folder), "-o", "markers=rotating\ncovering", str(folder)],
        cwd=folder,
        env={
            "PATH": "",
            "PYTHONPATH": f"{folder}:{ROOT}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": plugins,
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("count", "one_in"), [(40, 4), (7, 3), (2, 5), (1, 2)])
def test_rotating_cases_come_once_in_as_many_days_and_never_none(count, one_in):
    cases = [SimpleNamespace(nodeid=f"tests/a.py::test[{i}]") for i in range(count)]
    days = [sampling.rotated(cases, seed, one_in) for seed in range(739_950, 739_950 + min(one_in, count))]
    assert all(days)
    assert max(map(len, days)) - min(map(len, days)) <= 1
    assert Counter(case.nodeid for day in days for case in day) == Counter(case.nodeid for case in cases)


def test_rotating_over_a_product_shows_each_value_on_most_days():
    """Where the last axis has as many values as the rotation has days, every n-th case would be always the same value."""
    cases = [SimpleNamespace(nodeid=f"tests/a.py::test[{i}-{dtype}]") for i in range(20) for dtype in ("half", "float")]
    for seed in (1, 2):
        assert {case.nodeid.partition("-")[2] for case in sampling.rotated(cases, seed, 2)} == {"half]", "float]"}


def test_each_way_of_choosing_leaves_out_what_it_says(tmp_path):
    """A real collection: a product, a long table, a file's own share, single tests that take turns."""
    (tmp_path / "test_all.py").write_text(
        """
import pytest
pytestmark = pytest.mark.rotating(2, least=3)
numbers = pytest.mark.parametrize("n", range(6))
def test_single(): pass
@pytest.mark.parametrize("n", range(2))
def test_few(n): pass
@numbers
def test_half(n): pass
@pytest.mark.rotating(6)
@numbers
def test_one(n): pass
@pytest.mark.covering("x")
@pytest.mark.parametrize("name", ["x", "y", "z"])
@numbers
def test_product(n, name): pass
@pytest.mark.rotating(2, group="slow")
def test_slow_1(): pass
@pytest.mark.rotating(2, group="slow")
def test_slow_2(): pass
"""
    )
    (tmp_path / "conftest.py").write_text(
        "from tests import sampling\n"
        "def pytest_addoption(parser): sampling.add_options(parser)\n"
        "def pytest_configure(config): sampling.configure(config)\n"
        "def pytest_collection_modifyitems(config, items): sampling.select(config, items)\n"
    )

    def collected(*options: str) -> list[str]:
        run = pytest_in(tmp_path, "-q", "--collect-only", *options)
        return [line.partition("::")[2] for line in run.stdout.splitlines() if "::" in line]

    days = [collected("--sweep-seed", str(seed)) for seed in (0, 1)]
    for day in days:
        count = Counter(name.partition("[")[0] for name in day)
        product = count.pop("test_product")
        slow = count.pop("test_slow_1", 0) + count.pop("test_slow_2", 0)
        assert count == {"test_single": 1, "test_few": 2, "test_half": 3, "test_one": 1}
        assert 6 <= product <= 9
        assert slow == 1
    together = {name for day in days for name in day}
    assert {f"test_half[{n}]" for n in range(6)} | {f"test_product[{n}-x]" for n in range(6)} <= together
    assert {"test_slow_1", "test_slow_2"} <= together
    assert len(collected("--sweep", "all")) == 1 + 2 + 6 + 6 + 18 + 2


def test_the_files_in_the_order_are_there_and_the_dearest_comes_first():
    listed = order.seconds()
    assert [name for name in listed if not (ROOT / name).is_file()] == []
    assert list(listed.values()) == sorted(listed.values(), reverse=True)
    measured = order.text_of({"tests/test_doors.py": 1e6, "tests/gone.py": 7.0, "tests/test_exec.py": order.LEAST / 2})
    assert next(iter(json.loads(measured).items())) == ("tests/test_doors.py", 1_000_000)
    assert not json.loads(measured).keys() & {"tests/gone.py", "tests/test_exec.py"}


def test_a_worker_takes_the_dearest_file_that_is_left(tmp_path):
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(
            "import pytest\n" + "".join(f"def test_{i}(): pass\n" for i in range(3))
        )
    (tmp_path / "known.py").write_text(
        "from tests import order\n"
        "order.seconds = lambda: {'test_c.py': 9, 'test_a.py': 0}\n"
        "from tests.order import pytest_xdist_make_scheduler\n"
    )
    run = pytest_in(tmp_path, "-v", "-n", "1", "--dist", "loadfile", "-p", "known", plugins="xdist.plugin")
    assert run.returncode == 0, run.stdout + run.stderr
    ran = [line.split()[-1].partition("::")[0] for line in run.stdout.splitlines() if "PASSED" in line]
    assert list(dict.fromkeys(ran)) == ["test_c.py", "test_b.py", "test_d.py", "test_a.py"]
