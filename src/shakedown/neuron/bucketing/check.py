"""``check=True``: the first call of each bucket without padding too, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import PaddingChangesResults
from . import hazards
from .calls import Call, Settings
from .trees import Path, label, tensors

ROUNDINGS = 64  # unit roundoffs of the largest element: what summing in another order comes to, with room


def compare(
    run_padded: Callable[[], Any],
    run_plain: Callable[[], Any],
    modules: Sequence[nn.Module],
    call: Call,
    settings: Settings,
    dim: int,
) -> None:
    """Run both, and compare their results, and their gradients where they have any.

    Random streams, buffers and ``.grad`` are as they were afterwards. Gradients are of all results, weighted element by
    element, with respect to parameters and to the arguments that require one.

    Raises:
        PaddingChangesResults: a shape, or a value beyond the tolerance.
    """
    buffers, parameters = hazards.tensors_of(modules)
    leaves = [*parameters, *(one for one in call.given if one.requires_grad)]
    with _kept(buffers):
        padded, padded_gradients = _with_gradients(run_padded, leaves)
    with _kept(buffers):
        plain, plain_gradients = _with_gradients(run_plain, leaves)
    size = call.sizes["length"]
    where = f"between a call of length {size.size} padded to {size.edge} and the same call unpadded"
    if padded.keys() != plain.keys():
        raise PaddingChangesResults(
            f"other results {where}: {', '.join(map(label, padded))}, and {', '.join(map(label, plain))}"
        )
    for path, ours in padded.items():
        theirs = plain[path]
        if ours.shape != theirs.shape:
            raise PaddingChangesResults(
                f"{label(path)} has another shape {where}: {tuple(ours.shape)}, and {tuple(theirs.shape)}. Say which results to "
                "cut, and where: outputs={...}"
            )
        found = _difference(ours, theirs, settings.check or 0.0)
        if found is None:
            continue
        has_length = -theirs.ndim <= dim < theirs.ndim and theirs.shape[dim] == size.size
        first = _first_position(ours, theirs, dim, found[1]) if has_length else None
        cause = hazards.guess(modules, has_length, first, size.size, size.edge, settings.mask)
        raise PaddingChangesResults(f"{label(path)} differs by {found[0]} {where}. Probably: {cause}")
    for number, (ours, theirs) in enumerate(zip(padded_gradients, plain_gradients)):
        found = None if ours is None or theirs is None else _difference(ours, theirs, settings.check or 0.0)
        if found is not None or (ours is None) != (theirs is None):
            name = _name_of(leaves[number], modules)
            how = found[0] if found else "being there and not being there"
            raise PaddingChangesResults(
                f"the gradient of {name} differs by {how} {where}, although the results agree. Probably: values at padded "
                "positions are infinite or no numbers (a softmax over nothing but -inf), or padded positions take part in it"
            )


@contextmanager
def _kept(buffers: Sequence[torch.Tensor]) -> Iterator[None]:
    """Buffers and random streams are afterwards what they were."""
    saved = [one.detach().clone() for one in buffers]
    host = torch.get_rng_state()
    device = getattr(torch, "neuron", None)
    remote = device.get_rng_state() if device is not None and device.is_initialized() else None
    try:
        yield
    finally:
        with torch.no_grad():
            for one, before in zip(buffers, saved):
                one.copy_(before)
        torch.set_rng_state(host)
        if device is not None and remote is not None:
            device.set_rng_state(remote)


def _with_gradients(
    run: Callable[[], Any], leaves: Sequence[torch.Tensor]
) -> tuple[dict[Path, torch.Tensor], list[torch.Tensor | None]]:
    """Results on the CPU by path, and the gradient of each leaf; no gradients where nothing asks for any."""
    results = tensors(run())
    host = {path: one.detach().cpu() for path, one in results.items()}
    wanted = [one for one in results.values() if one.requires_grad]
    if not wanted or not leaves or not torch.is_grad_enabled():
        return host, []
    weights = [_weights(one) for one in wanted]
    gradients = torch.autograd.grad(wanted, list(leaves), weights, allow_unused=True)
    return host, [None if one is None else one.detach().cpu() for one in gradients]


def _weights(result: torch.Tensor) -> torch.Tensor:
    """One for a number; for others values that differ, so that nothing cancels as it would in a plain sum."""
    if result.ndim == 0:
        return torch.ones_like(result)
    made = torch.arange(1, result.numel() + 1, dtype=torch.float64).cos().reshape(result.shape)
    return made.to(result.dtype).to(result.device)


def _difference(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> tuple[str, float] | None:
    """The largest difference in words, and the one that is allowed; None where nothing is beyond it."""
    if not ours.numel() or torch.equal(ours, theirs):
        return None
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    exact = not (theirs.is_floating_point() or theirs.is_complex())
    left, right = ours.to(wide), theirs.to(wide)
    both = left.isfinite() & right.isfinite()
    other = ~both & ~((left == right) | (left.isnan() & right.isnan()))
    if other.any():
        return f"{int(other.sum())} elements that are finite on one side only", 0.0
    largest = float(right[both].abs().max()) if both.any() else 0.0
    allowed = 0.0 if exact else max(tolerance, ROUNDINGS * torch.finfo(theirs.dtype).eps) * largest
    worst = float((left - right)[both].abs().max()) if both.any() else 0.0
    return (f"up to {worst:.3g} (elements are up to {largest:.3g})", allowed) if worst > allowed else None


def _first_position(ours: torch.Tensor, theirs: torch.Tensor, dim: int, allowed: float) -> int | None:
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    far = ~((ours.to(wide) - theirs.to(wide)).abs() <= allowed)
    rows = far.movedim(dim, 0).reshape(far.shape[dim], -1).any(1)
    return int(rows.nonzero()[0]) if rows.any() else None


def _name_of(leaf: torch.Tensor, modules: Sequence[nn.Module]) -> str:
    return next(
        (name for module in modules for name, one in module.named_parameters() if one is leaf),
        f"an argument of shape {tuple(leaf.shape)}",
    )
