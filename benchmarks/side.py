"""One side of a comparison in a process of its own: adaptive eager is chosen when Python starts, once for a process.

The process does a work of :mod:`benchmarks.works` when it is told to, keeps the time itself, and otherwise waits for its pipe,
so that of several sides one is running at a time. It dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_SETTLED = 3  # rounds in a row without a new segment or program
_MOST_ROUNDS = 30
_LONGEST_WAIT = 600.0  # seconds, for the compiling process


class Child:
    """The work named `work`; a side for :func:`benchmarks.measure.compare`. A context manager.

    Args:
        adaptive: whether the device records operators.
        cache: directory for executables, instead of the usual one.

    Raises:
        RuntimeError: (any method) the process has ended; its traceback is on standard error.
    """

    def __init__(self, work: str, *, adaptive: bool = False, cache: str | None = None) -> None:
        self._name = f"{work}{', adaptive' if adaptive else ''}"
        environment = {**os.environ, "SHAKEDOWN_ADAPTIVE": str(int(adaptive))}
        if cache is not None:
            environment["SHAKEDOWN_CACHE_DIR"] = cache
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.side", work, self._name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parent.parent,
        )

    def seconds(self, repeats: int) -> float:
        """What `repeats` calls of the work took."""
        return self._ask("repeat", repeats)

    def settle(self) -> bool:
        """Do the work until it brings nothing new and nothing compiles any more; whether that was reached."""
        return self._ask("settle")

    def steps(self, count: int, *, wait: bool = False) -> list[dict[str, Any]]:
        """The ``seconds`` of each call of the work, and the state after it as in :func:`_state`.

        `wait` waits after each call, outside of its time, until the fused programs it asked for are there.
        """
        return self._ask("wait" if wait else "steps", count)

    def report(self) -> dict[str, Any]:
        """Adaptive eager's ``state`` (:func:`_state`), ``status``, ``compile_seconds``; ``fallbacks``; ``resident`` MiB."""
        return self._ask("report")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends by itself, and ends its compiler
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, what: str, count: int = 1) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([what, count]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"the process of the side {self._name!r} ended with {self._process.wait()}")
        return json.loads(answer)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.kill()  # it may be busy for long
        self.close()


# --- in the process -----------------------------------------------------------------------------------------------------


def _state() -> dict[str, int]:
    """Distinct segments, fused programs asked for and ready, and operators run in them and one by one so far."""
    import torch

    status = torch.neuron.adaptive.status()
    programs = status.get("programs", {})
    operators = status.get("operators", {})
    return {
        "groups": status.get("groups", 0),
        "programs": sum(programs.values()),
        "ready": programs.get("ready", 0),
        "fused": operators.get("fused", 0),
        "one_by_one": operators.get("one_by_one", 0),
    }


def _settle(work: Any, say: Any) -> bool:
    import torch

    states: list[tuple[int, int]] = []
    for round in range(_MOST_ROUNDS):
        work()
        done = torch.neuron.adaptive.wait(_LONGEST_WAIT)
        state = _state()
        say(f"warming up, round {round + 1}: {state['groups']} segments, {state['programs']} programs")
        states.append((state["groups"], state["programs"]))
        if done and len(states) >= _SETTLED and len(set(states[-_SETTLED:])) == 1:
            return True
    return False


def _report() -> dict[str, Any]:
    import torch

    from .processes import PROC, resident_mib, tree

    gc.collect()
    resident: dict[str, float] = {}
    if PROC.exists():
        here, *below = tree(os.getpid())
        resident = {"process": resident_mib(here), "compiler": sum(map(resident_mib, below))}
    return {
        "state": _state(),
        "compile_seconds": [s for g in torch.neuron.adaptive.groups() for s in g["compile_seconds"]],
        "status": torch.neuron.adaptive.status(),
        "fallbacks": torch.neuron.get_fallback_ops(),
        "resident": resident,
    }


def main() -> None:
    name, label = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints must not get between the answers

    def say(text: str) -> None:
        print(f"[{label}] {text}", file=sys.stderr, flush=True)

    import torch

    from .measure import seconds
    from .works import WORKS

    torch.set_num_threads(os.cpu_count() or 1)
    work = WORKS[name]()
    for line in sys.stdin:
        what, count = json.loads(line)
        answer: Any
        if what == "repeat":
            answer = seconds(work, count)
        elif what == "settle":
            answer = _settle(work, say)
        elif what in ("steps", "wait"):
            answer = []
            for _ in range(count):
                took = seconds(work, 1)
                if what == "wait":
                    torch.neuron.adaptive.wait(_LONGEST_WAIT)
                answer.append({"seconds": took, **_state()})
        elif what == "report":
            answer = _report()
        else:
            raise ValueError(f"told to {what!r}")
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
