"""The end of a program while the timer runs what it recorded."""

from __future__ import annotations

import subprocess
import sys

from shakedown.neuron.modes.adaptive import wire

from .running import python


def test_a_program_may_end_while_the_timer_runs_what_it_recorded() -> None:
    python(
        """
        import time, torch

        x = torch.ones(1000, 1000, device="neuron")
        for _ in range(2):
            x @ x
        torch.neuron.synchronize()
        for _ in range(12):
            y = x @ x
        deadline = time.monotonic() + 300
        while torch.neuron.adaptive.status()["operators"]["waiting"]:
            assert time.monotonic() < deadline, "the timer did not begin to run it"
            time.sleep(0.002)
        """,
        SHAKEDOWN_ADAPTIVE_TIMEOUT="10",
    )


def test_the_compiling_process_ends_in_silence_when_nobody_waits_for_its_answer() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "shakedown.neuron.modes.adaptive.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert worker.stdout is not None
    worker.stdout.close()
    wire.send(worker.stdin, b"not a program, which is an answer too")
    assert worker.stderr is not None
    assert worker.stderr.read() == b""
    assert worker.wait(timeout=300) == 0
