"""Profile a few training steps on the device: what takes its time, which line caused it, and a trace for Perfetto.

    python examples/profile_step.py [DIRECTORY]

Nothing here is the device's own but the last import, which is there for the table by line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from shakedown.neuron.profiling import line_table


def main(directory: Path) -> Path:
    """Returns the path of the trace."""
    torch.manual_seed(0)
    device = torch.device("neuron")
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 64).to(device), torch.randint(0, 10, (32,)).to(device)

    def step() -> None:
        optimizer.zero_grad()
        with record_function("forward"):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        torch.accelerator.synchronize()  # so that the step's work is in the step

    directory.mkdir(parents=True, exist_ok=True)
    trace = directory / "trace.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1],
        schedule=schedule(wait=1, warmup=1, active=3),
        on_trace_ready=lambda done: done.export_chrome_trace(str(trace)),
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
    ) as prof:
        for _ in range(5):
            step()
            prof.step()
    print(prof.key_averages().table(sort_by="self_device_time_total", row_limit=12, max_name_column_width=40))
    print(line_table(prof))
    print(f"open {trace} in https://ui.perfetto.dev")
    return trace


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
