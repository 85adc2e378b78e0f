"""Files of each program's StableHLO, for people to read (``TORCH_NEURONX_DUMP_HLO_PB``)."""

from __future__ import annotations

import itertools
import os
from typing import Any

from . import config
from .log import warn_once

_number = itertools.count()


def stablehlo(name: str, computation: Any) -> None:
    """Write the module `computation` of the program `name` as ``tn_op_dumps/{pid}_{number}_{name}.mlir``.

    Costs one look at a variable where no dump is asked for. Files that cannot be written are one warning.
    """
    if not config.DUMP():
        return
    folder = config.DUMP_DIR() / "tn_op_dumps"
    plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:120]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{os.getpid()}_{next(_number):05}_{plain}.mlir"
        path.write_text(f"{computation.operation}\n")
    except OSError as error:
        warn_once(f"StableHLO cannot be written to {folder}: {error}", key=f"dump {folder}")
