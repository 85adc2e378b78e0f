"""Stage 1: the user's model, inputs and step, as one Python file.

The protocol, whole. Everything runs on the CPU and knows nothing of devices, precisions or execution modes::

    def build_model() -> torch.nn.Module                        # called once under a fixed seed
    def make_batch(size, length) -> dict[str, Tensor]           # one batch; called under a fixed seed per step
    def forward(model, batch) -> tuple[outputs, loss]           # outputs: a tensor or a dict of tensors; loss: a scalar
    def build_optimizer(parameters) -> torch.optim.Optimizer

    CASES = ("2x32", "1x128")         # batch x length, in the order they run
    DTYPES = ("float32", "bfloat16")  # optional: precisions of a default run
    DIMENSIONS = {"width": 64}        # optional: published in the record
    def reduction_length(size, length) -> int                   # optional: terms in the longest sum of a step
    def pad(batch, length) -> dict[str, Tensor]                 # optional: the batch padded to a longer length
    def hard_batch(size, length, kind) -> dict[str, Tensor]     # optional: kind is large, tiny or ties
    def score(outputs, batch) -> float                          # optional, any name: the task of a requirements file

Floating tensors of the batch take the precision of the run; integers and masks keep their dtype. ``pad`` and ``hard_batch``
return the names and dtypes of ``make_batch``. The built-in workloads are files of the same form.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from .errors import BadInput, WorkloadError

if TYPE_CHECKING:
    import torch

BUILT_IN = Path(__file__).parent / "workloads"
DTYPES = ("float32", "bfloat16", "float16")
_SHORT = {"fp32": "float32", "f32": "float32", "bf16": "bfloat16", "fp16": "float16", "f16": "float16"}
_REQUIRED = ("build_model", "make_batch", "forward", "build_optimizer")


# Changes of a case that every mode and precision meets alike; :mod:`.variations` makes them.
VARIATIONS = ("padding", "noncontiguous", "logging", "large", "tiny", "ties")


@dataclass(frozen=True)
class Case:
    """One batch/length pair, with a variation where it is not the plain one. For images the length is the side in pixels."""

    size: int
    length: int
    variation: str = ""

    def __str__(self) -> str:
        return f"{self.size}x{self.length}" + (f"~{self.variation}" if self.variation else "")

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read ``2x32`` or ``2x32~padding``. Raises :class:`BadInput` on anything else."""
        found = re.fullmatch(r"(\d+)x(\d+)(?:~(\w+))?", text.strip().lower())
        if not found or not int(found[1]) or not int(found[2]):
            raise BadInput(f"case {text!r} is not BATCHxLENGTH; write for example 2x32")
        if found[3] and found[3] not in VARIATIONS:
            raise BadInput(f"case {text!r} has an unknown variation; choose among {', '.join(VARIATIONS)}")
        return cls(int(found[1]), int(found[2]), found[3] or "")


def parse_dtype(text: str) -> str:
    """``bf16`` or ``bfloat16`` to ``bfloat16``. Raises :class:`BadInput` on an unknown name."""
    name = _SHORT.get(text.strip().lower(), text.strip().lower())
    if name not in DTYPES:
        raise BadInput(f"dtype {text!r} is unknown; choose among {', '.join(DTYPES)}")
    return name


@dataclass(frozen=True)
class Source:
    """Where a workload comes from, known without running it."""

    name: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class Workload:
    """A loaded workload file."""

    source: Source
    cases: tuple[Case, ...]
    dtypes: tuple[str, ...]
    dimensions: dict[str, Any]
    build_model: Callable[[], torch.nn.Module]
    make_batch: Callable[[int, int], dict[str, torch.Tensor]]
    forward: Callable[[torch.nn.Module, dict[str, torch.Tensor]], tuple[Any, torch.Tensor]]
    build_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
    reduction_length: Callable[[int, int], int] | None
    pad: Callable[[dict[str, torch.Tensor], int], dict[str, torch.Tensor]] | None = None
    hard_batch: Callable[[int, int, str], dict[str, torch.Tensor]] | None = None
    functions: dict[str, Callable[..., Any]] = field(
        default_factory=dict
    )  # of the file, by name: a task is one of them


def built_in() -> list[str]:
    """Names of the workloads that come with the package."""
    return sorted(p.stem for p in BUILT_IN.glob("*.py") if p.stem != "__init__")


def resolve(spec: str) -> Source:
    """Find the workload `spec`, a built-in name or a Python file. Raises :class:`WorkloadError`; runs none of its
    code.
    """
    path = BUILT_IN / f"{spec}.py" if spec in built_in() else Path(spec)
    if path.suffix != ".py":
        raise WorkloadError(
            f"unknown workload {spec!r}; give one of {', '.join(built_in())}, or a Python file (docs/trial.md)"
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"cannot read the workload {spec}: {error.strerror}") from None
    return Source(path.stem, path.resolve(), hashlib.sha256(content).hexdigest())


def load(source: Source) -> Workload:
    """Execute the workload file and check it against the protocol. Imports whatever the file imports.

    The file is executed where it lies, so that its own imports and data are found; the hash taken at the start of the
    trial must still hold, so that every process of the trial runs the same code.
    """
    if hashlib.sha256(source.path.read_bytes()).hexdigest() != source.sha256:
        raise WorkloadError(f"{source.path} changed during the trial; start again with the version you mean")
    name = f"shakedown_workload_{source.path.stem}"
    spec = importlib.util.spec_from_file_location(name, source.path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{source.path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up by name
    sys.path.insert(0, str(source.path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(source.path.parent))
    missing = [wanted for wanted in _REQUIRED if not callable(getattr(module, wanted, None))]
    if missing:
        raise WorkloadError(f"{source.path} defines no function {', '.join(missing)}; the protocol is in docs/trial.md")
    optional = {name: getattr(module, name, None) for name in ("reduction_length", "pad", "hard_batch")}
    for wrong in (name for name, value in optional.items() if value is not None and not callable(value)):
        raise WorkloadError(f"{source.path}: {wrong} is not a function; the protocol is in docs/trial.md")
    cases = getattr(module, "CASES", None)
    if not cases:
        raise WorkloadError(f"{source.path} defines no CASES; write for example CASES = ('2x32', '1x128')")
    return Workload(
        source=source,
        cases=tuple(Case.parse(case) for case in cases),
        dtypes=tuple(parse_dtype(name) for name in getattr(module, "DTYPES", ("float32",))),
        dimensions=dict(getattr(module, "DIMENSIONS", {})),
        build_model=module.build_model,
        make_batch=module.make_batch,
        forward=module.forward,
        build_optimizer=module.build_optimizer,
        reduction_length=optional["reduction_length"],
        pad=optional["pad"],
        hard_batch=optional["hard_batch"],
        functions={name: value for name, value in vars(module).items() if isinstance(value, FunctionType)},
    )
