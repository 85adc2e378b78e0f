"""What is known to go wrong when elements are added, told once, before anybody wonders."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from .calls import Call
from .padding import Fill

_LABELS = ("label", "labels", "target", "targets")
_POOLS = (
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
)  # fmt: skip


def of_modules(modules: Sequence[nn.Module]) -> Iterator[str]:
    """Why padded results of these modules differ from unpadded ones, one sentence a kind of module."""
    for module in {id(one): one for outer in modules for one in outer.modules()}.values():
        kind = type(module).__name__
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            yield f"{kind} takes its statistics over padded positions too"
        elif isinstance(module, nn.modules.instancenorm._InstanceNorm):
            yield f"{kind} normalises over the length, and padding is part of it"
        elif isinstance(module, nn.GroupNorm):
            yield f"{kind} normalises over all positions, and padding is among them"
        elif isinstance(module, nn.RNNBase) and module.bidirectional:
            yield f"the backward direction of {kind} begins in the padding"
        elif isinstance(module, _POOLS):
            yield f"{kind} pools over the padding too"


def of_modes(modules: Sequence[nn.Module]) -> Iterator[str]:
    """Why even two calls with the same arguments would differ."""
    for module in (one for outer in modules for one in outer.modules()):
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            yield f"{type(module).__name__} draws another mask for another shape; compare with dropout off"


def warn(modules: Sequence[nn.Module], call: Call, pad: Fill | Mapping[str | int, Fill]) -> None:
    """Warn of what the modules and the paddings of a function's first padded call are known to do."""
    said = list(dict.fromkeys(of_modules(modules)))
    for one in call.tensors:
        if one.path[-1] in _LABELS and any(one.path in found.dims for found in call.sizes.values()):
            fills = [fill for name, fill in pad.items() if one.is_named(name)] if isinstance(pad, Mapping) else [pad]
            if not one.tensor.is_floating_point() and not any(isinstance(f, int) and f < 0 for f in fills):
                name = ".".join(one.path)
                said.append(
                    f"{name} is padded with {fills[0] if fills else 0!r}, which a loss counts as a target: "
                    f"pad={{'{one.path[-1]}': -100}}"
                )
    for text in said:
        warnings.warn(f"bucketed: results depend on the padding, because {text} (docs/bucketing.md)", stacklevel=4)


def guess(
    modules: Sequence[nn.Module], has_length: bool, position: int | None, length: int, edge: int, mask: str | None
) -> str:
    """The likely cause of a difference: `position` is the first that differs in a result that `has_length`."""
    said = list(dict.fromkeys([*of_modules(modules), *of_modes(modules)]))
    if not said and not has_length:
        said.append(
            f"it is taken over the whole length (a mean, a sum, a maximum, or the last position), of which {edge - length} of "
            f"{edge} positions are padding: use the mask, ignore_index=-100, or the length (length_as=)"
        )
    elif not said and position is not None and position > 0:
        said.append(
            f"positions before {position} agree, so it looks ahead by some positions (a convolution, a backward direction) and "
            "meets the padding"
        )
    elif not said:
        said.append(
            "every position sees the padding: attention that is neither causal nor masked, or a normalisation over the length"
        )
        if mask is None:
            said.append('no mask is given (mask="attention_mask")')
    return "; ".join(said)


def tensors_of(modules: Sequence[nn.Module]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Buffers, and parameters that are trained, each once."""
    buffers = {id(b): b for module in modules for b in module.buffers()}
    parameters = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
    return list(buffers.values()), list(parameters.values())
