"""TorchNeuron's variables that mean nothing here: accepted, with one debug message that says why, when the device starts.

Their ``help`` is that reason. What has a meaning is in :mod:`.config`.
"""

from __future__ import annotations

from .setting import Setting, count, flag, number

_ONE_LOWERING = "an operator has one lowering here, to StableHLO"
_RUNTIME = "AWS's runtime is not part of a rehearsal"
_COLLECTIVE = "there are no collectives on this device yet"

MLIR_ATEN_OPS = Setting(
    "TORCH_NEURONX_MLIR_ATEN_OPS",
    True,
    flag,
    f"{_ONE_LOWERING}; utils.use_mlir_aten_ops() tells the value",
    source="snapshot",
    effect="accepted",
)
STABLEHLO = Setting("TORCH_NEURONX_ENABLE_STABLEHLO", True, flag, _ONE_LOWERING, source="snapshot", effect="accepted")
PROLOGUE = Setting(
    "TORCH_NEURONX_ENABLE_PROLOGUE",
    True,
    flag,
    "views of inputs are always part of the operator's program",
    source="snapshot",
    effect="accepted",
)
GMM_ALIGN = Setting(
    "TORCH_NEURONX_ATEN_GMM_ALIGN",
    128,
    count,
    "grouped matrix products need no alignment here",
    source="snapshot",
    effect="accepted",
)
QUEUE_LOW = Setting(
    "TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD",
    15,
    count,
    "adaptive eager flushes by a timer and not by the depth of the runtime's queue (docs/adaptive.md)",
    source="snapshot",
    effect="accepted",
    lenient=("TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD",),
)
HOST_CC = Setting("TORCH_NEURONX_ENABLE_HOST_CC", False, flag, _RUNTIME, source="docs Aug", effect="accepted")
RT_HOST_CC = Setting("NEURON_RT_ENABLE_HOST_CC", False, flag, _RUNTIME, source="snapshot", effect="accepted")
COMPLEX_DECOMPOSE = Setting(
    "TORCH_NEURONX_COMPLEX_DECOMPOSE",
    True,
    flag,
    "complex operators are lowered as they are: XLA has complex numbers",
    source="docs",
    effect="accepted",
)
NKI_SDPA = Setting(
    "TORCH_NEURONX_ENABLE_NKI_SDPA",
    True,
    flag,
    "attention has one lowering, in which no kernel of NKI takes part",
    source="snapshot",
    effect="accepted",
)
CC_TIMEOUT = Setting(
    "TORCH_NEURONX_NEURONX_CC_TIMEOUT",
    None,
    count,
    "there is no neuronx-cc here; TorchNeuron's snapshot does not use it either",
    source="snapshot",
    effect="accepted",
)
LOCAL_CACHE_DIR = Setting(
    "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR",
    "/tmp/local_cache",
    str,
    "locks lie beside the entries of the cache that they are for",
    source="snapshot",
    effect="accepted",
)
ROOT_COMM_ID = Setting("NEURON_RT_ROOT_COMM_ID", "", str, _COLLECTIVE, source="snapshot", effect="accepted")
SPLIT_ALLGATHER = Setting("NEURON_USE_SPLIT_ALLGATHER", True, flag, _COLLECTIVE, source="snapshot", effect="accepted")
SPLIT_REDUCE_SCATTER = Setting(
    "NEURON_USE_SPLIT_REDUCE_SCATTER", True, flag, _COLLECTIVE, source="snapshot", effect="accepted"
)
BUCKET_SIZE = Setting("COLLECTIVE_BUCKETSIZE_IN_MB", 512, count, _COLLECTIVE, source="snapshot", effect="accepted")
MIN_BUCKETS = Setting("COLLECTIVE_MIN_BUCKETS", 0, number, _COLLECTIVE, source="snapshot", effect="accepted")
