"""Which tensors of a workload are float64 as it is built, and whether anybody asked for that.

NumPy's default is float64, so a constant that came through NumPy brings a precision that nobody chose. The origin of each
tensor is followed while the model and a batch are made; what is computed from such a tensor inherits its origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..evidence.probes import Float64Tensor
from ..observe.lines_of_user import Lines
from ..snapshot import SEED, seed_everything
from ..workload import Workload

ASKED, NUMPY, DEFAULT = "asked for", "NumPy default", "default dtype of the process"


class _Origins(TorchFunctionMode):
    """Remembers where each float64 storage came from. Tensors are held, so that no address is used twice."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self.lines = lines
        self.known: dict[int, tuple[str, str]] = {}
        self.held: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.note(func, args, kwargs, result)
        return result

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.dtype == torch.float64]
        for value in made:
            address = value.data_ptr()
            if not value.numel() or address in self.known:
                continue
            inputs = tree_leaves((args, kwargs))
            named = any(i is torch.float64 for i in inputs)
            parents = [self.known[i.data_ptr()] for i in inputs if isinstance(i, Tensor) and i.data_ptr() in self.known]
            if any(isinstance(i, (np.ndarray, np.generic)) for i in inputs) and not named:
                origin = NUMPY, self.lines.now("")
            elif parents:
                origin = parents[0]
            elif torch.get_default_dtype() == torch.float64 and not named:
                origin = DEFAULT, self.lines.now("")
            else:
                origin = ASKED, self.lines.now("")
            self.known[address] = origin
            self.held.append(value)


@contextmanager
def _watched(lines: Lines) -> Iterator[_Origins]:
    origins, original = _Origins(lines), torch.from_numpy

    def from_numpy(array: Any) -> Tensor:  # no function mode sees this one
        result = original(array)
        origins.note(original, (array,), {}, result)
        return result

    torch.from_numpy = from_numpy
    try:
        with origins:
            yield origins
    finally:
        torch.from_numpy = original


def float64_tensors(loaded: Workload) -> list[Float64Tensor]:
    """Parameters, buffers, plain tensor attributes and inputs that are float64 before the trial rounds anything."""
    case = loaded.cases[0]
    with _watched(Lines([loaded.source.path.parent])) as origins:
        seed_everything(SEED)
        model = loaded.build_model()
        batch = loaded.make_batch(case.size, case.length)
    found: dict[str, Tensor] = dict(model.named_parameters()) | dict(model.named_buffers())
    for prefix, module in model.named_modules():
        attributes = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
        found |= {f"{prefix}.{name}".lstrip("."): value for name, value in attributes.items()}
    found |= {f"batch[{name!r}]": value for name, value in batch.items()}
    listed = []
    for name, value in found.items():
        if value.dtype == torch.float64:
            origin, line = origins.known.get(value.data_ptr(), (ASKED, ""))
            listed.append(Float64Tensor(name=name, origin=origin, line=line))
    return listed
