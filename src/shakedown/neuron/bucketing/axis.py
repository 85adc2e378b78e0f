"""One dimension that is padded (the length, or the batch): which tensors have it, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

from ..errors import BucketingError, ConfigError
from .edges import Fixed, Online
from .trees import Path, label, matches

Dims: TypeAlias = "int | tuple[int, ...]"


@dataclass
class Named:
    """A tensor of a call: its path, and the position of the argument that holds it."""

    path: Path
    position: int | None
    tensor: torch.Tensor

    def is_named(self, name: str | int) -> bool:
        return matches(self.path, self.position, name)


@dataclass
class Found:
    """What a call has of an axis: its size, the edge that it is padded to, and the dimensions of each tensor that follow it."""

    size: int
    edge: int
    dims: dict[Path, tuple[int, ...]]
    longer: bool = False


@dataclass
class Axis:
    """``dims`` is one dimension for every tensor that has the first one's size there, or the dimensions of each by name.

    Without names a size can agree by chance. What was seen of a tensor is remembered: one that differed once does not follow
    the axis; one that agreed and then differs is an error, because a call before may have padded it for nothing.
    """

    kind: Literal["length", "batch"]
    dims: int | Mapping[str | int, Dims]
    edges: Fixed | Online
    _inputs: dict[Path, bool] = field(default_factory=dict)
    _outputs: dict[Path, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = self.dims.values() if isinstance(self.dims, Mapping) else [self.dims]
        for dims in given:
            if not all(isinstance(d, int) and not isinstance(d, bool) for d in _several(dims)) or not _several(dims):
                raise ConfigError(f"bucketed: {dims!r} is no dimension; give a whole number, or several as a tuple")
        if not given:
            raise ConfigError("bucketed: no tensor is named whose dimension is to be padded")

    @property
    def main(self) -> int:
        """The dimension that results are cut at, where nothing else is said."""
        return self.dims if isinstance(self.dims, int) else _several(next(iter(self.dims.values())))[0]

    def sizes(self, tensors: list[Named]) -> tuple[int, dict[Path, tuple[int, ...]]]:
        """The size of this axis in a call, and the dimensions that follow it by tensor.

        Raises:
            BucketingError: no tensor has it, or two disagree.
        """
        found = self._by_name(tensors) if isinstance(self.dims, Mapping) else self._alike(tensors, self.dims)
        if not found:
            where = (
                f"named {', '.join(map(str, self.dims))}" if isinstance(self.dims, Mapping) else "with its dimension"
            )
            raise BucketingError(
                f"no tensor of this call is {where}, so its {self.kind} is not known; it has "
                + (", ".join(label(one.path) for one in tensors) or "no tensor at all")
            )
        by_path = {one.path: one for one in tensors}
        first, dims = next(iter(found.items()))
        size = by_path[first].tensor.shape[dims[0]]
        for path, dims in found.items():
            for dim in dims:
                if by_path[path].tensor.shape[dim] != size:
                    raise BucketingError(
                        f"the {self.kind} is not one: {label(first)} has {size}, and {label(path)} has "
                        f"{by_path[path].tensor.shape[dim]} at dimension {dim}"
                    )
        return size, found

    def _by_name(self, tensors: list[Named]) -> dict[Path, tuple[int, ...]]:
        assert isinstance(self.dims, Mapping)
        found: dict[Path, tuple[int, ...]] = {}
        for name, dims in self.dims.items():
            for one in tensors:
                if one.is_named(name):
                    found[one.path] = tuple(self._dim(one, dim) for dim in _several(dims))
        return found

    def _dim(self, one: Named, dim: int) -> int:
        if not -one.tensor.ndim <= dim < one.tensor.ndim:
            raise BucketingError(
                f"{label(one.path)} of shape {tuple(one.tensor.shape)} has no dimension {dim} to be padded at"
            )
        return dim % one.tensor.ndim

    def _alike(self, tensors: list[Named], dim: int) -> dict[Path, tuple[int, ...]]:
        having = [one for one in tensors if -one.tensor.ndim <= dim < one.tensor.ndim]
        found: dict[Path, tuple[int, ...]] = {}
        for one in having:
            size = having[0].tensor.shape[dim]
            own = one.tensor.shape[dim]
            if own != size and own != 1 and self._inputs.get(one.path):
                raise BucketingError(
                    f"{label(one.path)} has {own} at dimension {dim} and the {self.kind} is {size}; in a call before they were "
                    "equal, by chance or not, and it was padded: name the tensors to be padded, "
                    f"dim={{'{label(having[0].path)}': {dim}, ...}}"
                )
            if own != size:
                self._inputs[one.path] = False
            elif self._inputs.setdefault(one.path, True):
                found[one.path] = (dim % one.tensor.ndim,)
        return found

    def cuts(self, path: Path, tensor: torch.Tensor, edge: int) -> tuple[int, ...]:
        """The dimension of a result that follows this axis, going by its size alone; () where it does not."""
        dim = self.main
        if not -tensor.ndim <= dim < tensor.ndim:
            return ()
        agrees = tensor.shape[dim] == edge
        known = self._outputs.setdefault(path, agrees)
        if known and not agrees:
            raise BucketingError(
                f"{label(path)} has {tensor.shape[dim]} at dimension {dim} and was padded to a {self.kind} of {edge}; in a call "
                "before they were equal, by chance or not, and it was cut: say which results to cut, outputs={...}"
            )
        return (dim % tensor.ndim,) if known else ()


def _several(dims: Dims) -> tuple[int, ...]:
    return dims if isinstance(dims, tuple) else (dims,)
