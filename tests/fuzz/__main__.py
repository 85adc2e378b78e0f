"""``python -m tests.fuzz``: random calls on the CPU and on the device, in worker processes that may die.

Every call has a number; the same seed and number give the same call in every process. Exit status 1 when a call crashed
or gave something else without saying so.
"""

from __future__ import annotations

import argparse
import collections
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .calls import WRONG, Outcome

_PATIENCE = 60.0  # seconds for one step of a call


class Worker:
    """A child process that runs calls of one seed; started again when it dies or does not answer."""

    def __init__(self, seed: int, only: str, noise: Any = subprocess.DEVNULL) -> None:
        self.seed, self.only, self.noise = seed, only, noise
        self.process: Any = None
        self.answers: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", str(self.seed), self.only],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.noise,
            text=True,
        )
        answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.answers = answers

        def read(stream: Any) -> None:
            for line in stream:
                answers.put(json.loads(line))
            answers.put(None)

        threading.Thread(target=read, args=(self.process.stdout,), daemon=True).start()
        if self.answers.get(timeout=180) is None:
            raise RuntimeError("the worker does not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def run(self, number: int) -> Outcome:
        if self.process is None:
            self._start()
        try:
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died between two calls, which the reader below will notice
        name, shown, phase = "", "", "cpu"
        while True:
            try:
                message = self.answers.get(timeout=_PATIENCE)
            except queue.Empty:
                self.stop()
                return Outcome(number, name, "CPU slow" if phase == "cpu" else "slow", f"> {_PATIENCE} s", shown)
            if message is None:
                status = self.process.wait()
                self.stop()
                return Outcome(number, name, "CPU crash" if phase == "cpu" else "crash", f"status {status}", shown)
            if "outcome" in message:
                return Outcome(**message["outcome"])
            phase = message["phase"]
            name, shown = message.get("name", name), message.get("call", shown)


def sweep(seed: int, numbers: Any, *, minutes: float, only: str, verbose: bool) -> list[Outcome]:
    """Run the calls `numbers` until the time is over. What went wrong is run again, alone in a fresh process."""
    noise = None if verbose else subprocess.DEVNULL  # what dying processes say on standard error
    worker, end = Worker(seed, only, noise), time.monotonic() + 60 * minutes
    outcomes: list[Outcome] = []
    try:
        for number in numbers:
            if time.monotonic() > end:
                break
            outcome = worker.run(number)
            if outcome.kind == "crash":
                # A kernel of an earlier call, the CPU's too, may have damaged the process: only a second death counts.
                again = Worker(seed, only)
                second = again.run(number)
                again.stop()
                if second.kind != "crash":
                    outcome = second
            outcomes.append(outcome)
            if verbose or outcome.kind in WRONG:
                print(f"{seed}:{number} {outcome.kind}: {outcome.detail}\n    {outcome.call}", flush=True)
    finally:
        worker.stop()
    return outcomes


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="number of the first call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--replay", metavar="SEED:N", nargs="+", help="run calls of one seed again and show them")
    parser.add_argument("--json", type=Path, help="where to write every outcome")
    parser.add_argument("--verbose", action="store_true", help="show every call")
    options = parser.parse_args(given)
    seed = options.seed
    numbers: Sequence[int] = range(options.start, options.start + options.calls)
    if options.replay:
        seed = int(options.replay[0].partition(":")[0])
        numbers, options.verbose = [int(r.partition(":")[2]) for r in options.replay], True
    outcomes = sweep(seed, numbers, minutes=options.minutes, only=options.only, verbose=options.verbose)
    counts = collections.Counter(o.kind for o in outcomes)
    print(f"{len(outcomes)} calls of seed {seed}")
    for kind, count in counts.most_common():
        print(f"{count:7} {kind}")
    if options.json:
        rows = [o.__dict__ for o in outcomes]
        options.json.write_text(json.dumps({"seed": seed, "counts": counts, "calls": rows}, indent=1))
    return 1 if any(counts[kind] for kind in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
