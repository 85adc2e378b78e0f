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
        time.sleep(0.1)
        waiting = torch.neuron.adaptive.status()["operators"]["waiting"]
        assert waiting == 0, "the timer did not begin to run it"
        """,
        SHAKEDOWN_ADAPTIVE_TIMEOUT="10",
    )
