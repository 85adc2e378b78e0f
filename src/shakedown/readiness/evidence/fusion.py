"""What adaptive eager fused in a step."""

from __future__ import annotations

from .files import Frozen


class FusionGroup(Frozen):
    """A stretch of operators that repeats. Runs are those of the steady step, ``runs_before`` all earlier ones."""

    name: str
    operators: dict[str, int]
    length: int
    runs_fused: int
    runs_one_by_one: int
    runs_before: int
    compile_seconds: list[float]
    errors: list[str]


class SteadyStep(Frozen):
    """One step after fusing had settled.

    ``operators`` ran on the device, by name, whatever way; ``fused`` and ``one_by_one`` count those that were recorded,
    ``fallbacks`` those that left the device. ``flushes`` counts what made the recording run, by reason.
    """

    operators: dict[str, int]
    fused: int
    one_by_one: int
    fallbacks: dict[str, int]
    flushes: dict[str, int]
    groups: list[FusionGroup]


class Fusion(Frozen):
    """Whether operators that could be fused were. ``step`` is None where it cannot be seen, with the ``reason``.

    ``steps`` is how many steps were run until nothing changed any more; ``settled`` is False where steps or seconds ran
    out before. Programs and bytes are those of the process so far: ``bytes_saved`` did not have to be returned.
    """

    schema_version: str = "shakedown.fusion/1"
    source: str
    step: SteadyStep | None
    reason: str = ""
    steps: int = 0
    settled: bool = False
    seconds: float = 0.0  # spent on settling, the compiler's included
    programs: dict[str, int] | None = None  # ready, compiling, failed
    bytes_saved: int | None = None
    compiler: str = ""
