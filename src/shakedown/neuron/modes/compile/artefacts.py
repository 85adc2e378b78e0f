"""Files of what ``torch.compile`` made, for people to read: each stage from the captured graph to the executable.

Under the directory of ``SHAKEDOWN_DEBUG_DIR``, once ``SHAKEDOWN_PRESERVE_ARTIFACTS`` is on, each kind in a folder of its own
with ``proc_{rank}/`` in it, as TorchNeuron has them. Nothing here may disturb a run: a file that cannot be written is one
warning.
"""

from __future__ import annotations

import json
import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from ... import config, log
from .metrics import GraphMetrics, Stopwatch


def wanted() -> bool:
    return config.PRESERVE_ARTIFACTS()


def rank() -> int:
    """This process's rank among those of ``torch.distributed``; without it, the number of its device."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return torch.neuron.current_device()


def stamp() -> str:
    """The time as file names have it: fresh for each graph."""
    return f"{datetime.now():%Y%m%d_%H%M%S_%f}"


def captured(name: str, module: torch.fx.GraphModule) -> None:
    """The graph as Dynamo captured it, before AOTAutograd. Costs nothing where no artefacts are wanted."""
    if wanted():
        _write("fx_graphs", f"{name}_{stamp()}.fx.txt", _text_of(module))


def lowered(
    module: torch.fx.GraphModule, program: Any, run: Any, inputs: list[Any], record: GraphMetrics, took: Stopwatch
) -> None:
    """All stages of one program: the functional graph that it was made of, its steps, StableHLO, what XLA made of it."""
    if not wanted():
        return
    base = f"{record.graph_name}_{stamp()}"
    _write("transformed_fx", f"{base}.transformed.fx.txt", _text_of(module))
    _write("programs", f"{base}.program.txt", f"{program}\n")
    timings = {**vars(record), "executable_from": took.sources}
    _write("timings", f"{base}.timings.json", json.dumps(timings, indent=2) + "\n")
    try:
        # Lowered and compiled once more, so that nothing has to be kept for it otherwise: this is for people who look.
        stage = getattr(getattr(run, "runner", None), "jitted", run).lower(*inputs)
        _write("stablehlo", f"{base}.stablehlo.mlir", stage.as_text())
        compiled = stage.compile()
        _write("optimised_hlo", f"{base}.hlo.txt", compiled.as_text())
        if "compiled" in took.sources:  # one that was loaded has lost its functions
            _write("executables", f"{base}.pjrt", compiled.runtime_executable().serialize())
    except Exception as error:  # a debugging aid must not end the run that it is to explain
        _warn(f"the compiled stages of {record.graph_name} cannot be shown: {type(error).__name__}: {error}")


def _text_of(module: torch.fx.GraphModule) -> str:
    return module.print_readable(print_output=False, include_stride=True, include_device=True) + f"\n{module.graph}\n"


def _write(kind: str, name: str, content: str | bytes) -> None:
    folder = Path(config.DEBUG_DIR()) / kind / f"proc_{rank()}"
    data = content.encode() if isinstance(content, str) else content
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
            os.replace(temporary, folder / name)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        _warn(f"artefacts cannot be written to {folder}: {error}. Set {config.DEBUG_DIR.name} to a directory of yours")


def _warn(text: str) -> None:
    log.warn_once(f"{text}. The run goes on; this is said once.", key="artefacts", stacklevel=2)
