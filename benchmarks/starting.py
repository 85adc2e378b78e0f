"""The first training step of a new process, by what the caches hold: nothing, executables, captured graphs as well.

Each sample is a process of its own, which builds the decoder and its optimizer, moves it, and then times everything until the
first step is complete: ``torch.compile``, capture, compiling or loading, the optimizer's state, and the step itself. What no
cache changes comes before the clock, as in the trial's start-up: importing PyTorch and JAX, and its compiler front end,
which the first optimizer imports. ``process`` in the details is the whole process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .rows import Row

_SAMPLES = 5  # in turns, so that a machine that grows slower does so for all of them
_LIMIT = 0.30


def compiled() -> Iterator[Row]:
    yield from _rows(compiled=True, label="compiled")


def eager() -> Iterator[Row]:
    yield from _rows(compiled=False, label="eager")


def _rows(*, compiled: bool, label: str) -> Iterator[Row]:
    """Warm against cold, in turns; the pair's ratio is taken, and the median of these."""
    from .decoder import COMPILED

    ways = ("executables", "captured as well") if compiled else ("executables",)
    with tempfile.TemporaryDirectory(prefix="shakedown-start-") as root:
        filled = {way: Path(root, way.replace(" ", "-")) for way in ways}
        for way, cache in filled.items():
            _sample(cache, compiled, precompile=way != "executables")  # fills it
        samples: dict[str, list[dict[str, Any]]] = {"cold": [], **{way: [] for way in ways}}
        for number in range(_SAMPLES):
            samples["cold"].append(_sample(Path(root, f"cold-{number}"), compiled, precompile=False))
            for way, cache in filled.items():
                samples[way].append(_sample(cache, compiled, precompile=way != "executables"))
    for way in ways:
        ratios = [w["first_step"] / c["first_step"] for w, c in zip(samples[way], samples["cold"], strict=True)]
        ratio = statistics.median(ratios)
        limit = _LIMIT if way == ways[-1] else None  # the best that a user can switch on is what the target is for
        yield Row(
            f"first step of a new process, {label} decoder ({COMPILED}): caches hold {way}",
            "the same with empty caches",
            "none" if limit is None else f"<= {limit:.2f}x",
            f"{ratio:.2f}x",
            None if limit is None else ratio <= limit,
            {"ratios": ratios, "cold": samples["cold"], "warm": samples[way]},
            ratio,
        )


def _sample(cache: Path, compiled: bool, *, precompile: bool) -> dict[str, Any]:
    """One process with the caches in `cache`: seconds, and counts that prove which start it was."""
    environment = {
        **os.environ,
        "SHAKEDOWN_CACHE_DIR": str(cache),
        "SHAKEDOWN_PRECOMPILE": str(int(precompile)),
        "SHAKEDOWN_ADAPTIVE": "0",
    }
    begun = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.starting", str(int(compiled))]
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parent.parent
    )
    return {**json.loads(ended.stdout.splitlines()[-1]), "process": time.perf_counter() - begun}


# --- in the process -----------------------------------------------------------------------------------------------------


def main(compiled: bool) -> None:
    import torch
    from torch._dynamo.utils import counters

    from shakedown.neuron import events

    from .decoder import COMPILED
    from .works import decoder

    module, data = decoder(COMPILED)
    module.to("neuron")
    on_device = tuple(t.to("neuron") for t in data)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    torch.neuron.synchronize()
    start, spent = time.perf_counter(), time.process_time()
    forward: Callable[..., Any] = module
    if compiled:
        forward = torch.compile(module, backend="neuron", dynamic=False, fullgraph=True)
    forward(*on_device).backward()
    optimizer.step()
    torch.neuron.synchronize()
    said = {
        "first_step": time.perf_counter() - start,
        "processor": time.process_time() - spent,
        "programs_compiled": events.total("compile", "compiled"),
        "programs_found": events.total("compile") - events.total("compile", "compiled"),
        "graphs_captured": counters["stats"]["unique_graphs"],
        "graphs_traced": counters["aot_autograd"]["total"],
    }
    print(json.dumps(said))


CASES: dict[str, Callable[[], Iterator[Row]]] = {"start": compiled, "start-eager": eager}

if __name__ == "__main__":
    main(sys.argv[1] == "1")
