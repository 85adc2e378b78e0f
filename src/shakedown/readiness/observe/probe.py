"""A child process that opens the device, runs one operator on it and says who it is.

``python -m shakedown.readiness.observe.probe JOB.json``. It writes its answer twice: what is known before the device is
opened, and all of it afterwards, so that a device that hangs or crashes the process leaves the first. Exit code 0: both
were written, whatever they say.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from ..errors import BadInput
from ..evidence import Probe, write


def main() -> int:
    """Read the job, ask, write."""
    job = json.loads(Path(sys.argv[1]).read_text())
    out = Path(job["out"])
    from .. import targets
    from . import identity

    target = targets.get(job["target"])
    workload = Path(job["workload"]) if job["workload"] else None

    def note(opened: bool | None, reason: str, operation: str = "", seconds: float | None = None) -> None:
        who = identity.identify(target, workload, job["ec2"])
        write(Probe(identity=who, opened=opened, reason=reason, operation=operation, seconds=seconds), out)

    try:
        import torch
    except Exception as error:  # a backend that registers itself with `import torch` can make that raise anything
        note(False, f"import torch raised {type(error).__name__}: {_first_line(error)}")
        return 0
    note(None, "the device did not answer")
    start = time.perf_counter()
    operation = f"torch.arange(4.0, device={target.device!r}) * 2"
    try:
        device = targets.open_device(target)
        answer = (torch.arange(4.0, device=device) * 2).cpu().tolist()
        targets.wait(target)
    except BadInput as error:
        note(False, _first_line(error), operation)
        return 0
    except Exception as error:  # whatever a driver or a runtime raises is the answer
        note(False, f"{type(error).__name__}: {_first_line(error)}", operation)
        return 0
    right = answer == [0.0, 2.0, 4.0, 6.0]
    note(right, "" if right else f"it answered {answer}", operation, time.perf_counter() - start)
    return 0


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


if __name__ == "__main__":
    sys.exit(main())
