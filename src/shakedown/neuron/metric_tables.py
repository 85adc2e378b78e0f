"""Tables that are written when the process ends, once ``TORCH_NEURONX_ENABLED_METRIC_TABLES`` names them."""

from __future__ import annotations

import atexit
import csv
import os
import sys
import tempfile
import warnings
from dataclasses import fields

from . import config


def at_exit() -> None:
    """Arrange for the tables that are asked for; called when the device starts.

    Raises:
        ConfigError: (a ValueError) there is no table of such a name.
    """
    if "graph_stats" in config.METRIC_TABLES():
        atexit.register(graph_stats)


def graph_stats() -> None:
    """Write ``metric_table_graph_stats_rank{rank}.csv``: a row for each record of ``get_dynamo_metrics()``."""
    compiled = sys.modules.get("shakedown.neuron.modes.compile")
    if compiled is None:
        return  # nothing was compiled
    from .modes.compile import artefacts
    from .modes.compile.metrics import GraphMetrics, records

    folder = config.METRICS_DIR()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
        with os.fdopen(number, "w", newline="") as file:
            rows = csv.writer(file)
            names = [f.name for f in fields(GraphMetrics)]
            rows.writerow(names)
            rows.writerows([getattr(record, name) for name in names] for record in records)
        os.replace(temporary, folder / f"metric_table_graph_stats_rank{artefacts.rank()}.csv")
    except OSError as error:
        warnings.warn(f"the table graph_stats cannot be written to {folder}: {error}", stacklevel=2)
