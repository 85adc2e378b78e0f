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
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-n",
        "1",
        "--dist",
        "loadfile",
        "-p",
        "known",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "--confcutdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={
            "PATH": "",
            "PYTHONPATH": f"{tmp_path}:{ROOT}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist.plugin",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    ran = [line.split()[-1].partition("::")[0] for line in run.stdout.splitlines() if "PASSED" in line]
    assert list(dict.fromkeys(ran)) == ["test_c.py", "test_b.py", "test_d.py", "test_a.py"]
