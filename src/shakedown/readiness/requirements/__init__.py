"""The requirements file: its keys with defaults and reasons (:mod:`.model`, :mod:`.numbers`), reading and locking it."""

from .file import Locked, changed, differences, load, lock, parse, reasons, unlock
from .model import (
    SCHEMA,
    AcceptedFallback,
    Budgets,
    CaseDemand,
    Demanded,
    Kernel,
    Operation,
    Requirements,
    Task,
    Variations,
)
from .numbers import Criterion, Numerics, Resampling, Run, Timing
from .parity import Parity
from .traffic import Traffic, copied

__all__ = [
    "SCHEMA",
    "AcceptedFallback",
    "Budgets",
    "CaseDemand",
    "Criterion",
    "Demanded",
    "Kernel",
    "Locked",
    "Numerics",
    "Operation",
    "Parity",
    "Requirements",
    "Resampling",
    "Run",
    "Task",
    "Timing",
    "Traffic",
    "Variations",
    "changed",
    "copied",
    "differences",
    "load",
    "lock",
    "parse",
    "reasons",
    "unlock",
]
