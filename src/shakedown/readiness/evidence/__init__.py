"""Stage 5: what one process saw, as files that are written at once and never changed. Nothing here imports torch.

:mod:`.documents` is the evidence of one case, the other files are kinds of evidence of their own; :mod:`.files` writes
and reads all of them.
"""

from .documents import (
    SCHEMA,
    TRUTH_SCHEMA,
    Evidence,
    Role,
    TensorInfo,
    Truth,
    blendable,
    tensors,
)
from .files import Frozen, canonical, finite, leave_if_forked, own, read, sha256, write, write_atomic
from .fusion import Fusion
from .graphs import FullGraph, GraphRecord, Graphs
from .identity import Fact, Family, Identity, Installation, Probe
from .lines import FileLines, Lines
from .losses import Losses, LossEvent, LossRuns, Nudge
from .memory import Memory, MemorySpan, Meter
from .paths import PathRow, Paths
from .probes import CallProbe, Canary, Comparison, Float64Tensor, OrderDependent, Probes, TaskScore
from .programs import ProgramCost, Programs, StateBytes
from .timing import CacheState, SelfTest, Startup, StepSeries, Timings, Training
from .traces import Trace
from .untrusted import FileName, RelativePath, load_tensors, printable

__all__ = [
    "SCHEMA",
    "TRUTH_SCHEMA",
    "CacheState",
    "CallProbe",
    "Canary",
    "Comparison",
    "Evidence",
    "Fact",
    "Family",
    "FileLines",
    "FileName",
    "Float64Tensor",
    "Frozen",
    "FullGraph",
    "Fusion",
    "GraphRecord",
    "Graphs",
    "Identity",
    "Installation",
    "Lines",
    "LossEvent",
    "LossRuns",
    "Losses",
    "Memory",
    "MemorySpan",
    "Meter",
    "Nudge",
    "OrderDependent",
    "PathRow",
    "Paths",
    "Probe",
    "Probes",
    "ProgramCost",
    "Programs",
    "RelativePath",
    "Role",
    "SelfTest",
    "Startup",
    "StateBytes",
    "StepSeries",
    "TaskScore",
    "TensorInfo",
    "Timings",
    "Trace",
    "Training",
    "Truth",
    "blendable",
    "canonical",
    "finite",
    "leave_if_forked",
    "load_tensors",
    "own",
    "printable",
    "read",
    "sha256",
    "tensors",
    "write",
    "write_atomic",
]
