"""What a bucketed function was asked for, and one call of it: the values that pass between its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from .axis import Dims, Found, Named
from .padding import Fill


@dataclass
class Settings:
    """What :func:`bucketed` was asked for."""

    pad: Fill | Mapping[str | int, Fill]
    mask: str | None
    mask_dtype: torch.dtype
    length_as: str | None
    outputs: Mapping[str | int, Dims | None] | None
    longer: Literal["error", "exact"]
    device: torch.device | None
    max_programs: int | None
    check: float | None  # the relative tolerance; None: no check


@dataclass
class Call:
    """The arguments of one call before and after padding."""

    named: dict[str, Any]
    tensors: list[Named]
    sizes: dict[str, Found] = field(default_factory=dict)
    first: tuple[int, int] = (0, 0)  # elements of the first padded tensor: real, computed
    real: tuple[int, ...] = ()  # its sizes before padding, up to the length: those of a mask
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # where the function runs

    @property
    def given(self) -> list[torch.Tensor]:
        return [one.tensor for one in self.tensors]
