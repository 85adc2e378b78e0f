"""The end of a program while the timer runs what it recorded."""

from __future__ import annotations

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
