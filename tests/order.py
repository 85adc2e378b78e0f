"""Which file a worker of pytest-xdist takes next: the dearest of those left, so that no worker has a long one at the end.

``tests/seconds.json`` has the processor seconds of the files that take some; ``pytest --costs --costs-order`` writes it. It only
has to be roughly right: a file that it does not know counts by its number of tests, and one that is gone by nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("seconds.json")
LEAST = 3.0  # seconds; what takes less comes last anyway
_FOR_A_TEST = 0.1  # seconds, of a file that is not listed


def seconds() -> dict[str, float]:
    """Processor seconds of each dear file, by its name as in test ids."""
    return json.loads(FILE.read_text())


def text_of(measured: dict[str, float]) -> str:
    """What `FILE` says of `measured` seconds: whole ones, the dearest first, together with files that were not measured now."""
    known = {name: taken for name, taken in {**seconds(), **measured}.items() if (FILE.parent.parent / name).is_file()}
    dear = sorted(
        ((name, round(taken)) for name, taken in known.items() if taken >= LEAST), key=lambda one: (-one[1], one[0])
    )
    return json.dumps(dict(dear), indent=1) + "\n"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist loadfile``; None leaves the others to xdist."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    known = seconds()

    class DearestFirst(LoadFileScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            dearest = max(self.workqueue, key=lambda file: known.get(file, _FOR_A_TEST * len(self.workqueue[file])))
            self.workqueue.move_to_end(dearest, last=False)
            super()._assign_work_unit(node)

    return DearestFirst(config, log)
