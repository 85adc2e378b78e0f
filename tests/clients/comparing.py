"""How far what the device computed is from what the CPU computed, in units of what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from shakedown.conformance.compare import GRADIENT_SCALE

Results = dict[str, torch.Tensor]
KINDS = ("gradient", "change")  # first words of names


def errors_of(
    found: Results,
    expected: Results,
    relative: float,
    truth: Callable[[], Results] | None = None,
    floor: float = 0.0,
) -> dict[str, float]:
    """The error of each tensor in units of what it is allowed; integers and booleans are equal or infinitely far off.

    The error is the largest of an element; of changes of weights it is the root of the sum of squares, since the first
    steps of AdamW move an element by the sign of its gradient, which is anybody's where the gradient is nothing but
    rounding. Allowed is `relative`, four of it behind a gradient, times the same of the tensor itself. What exceeds it is
    measured against `truth` instead (the same computed wider), and is allowed twice the CPU's own distance from there: of a
    sum that cancels nobody knows more. Elements of a change whose gradient is not larger than twice the CPU's own worst
    error in that gradient are left out there: rounding decides which way they go. A gradient, and a change, counts as at
    least `floor` of the largest of its kind: that of a bias in front of a normalisation is nothing but rounding.

    Raises:
        AssertionError: tensors, sizes or dtypes are not the CPU's.
    """
    assert list(found) == list(expected), set(found) ^ set(expected)
    made = {}
    largest = {kind: floor * _largest_of(expected, kind) for kind in KINDS} if floor else {}
    for name, e in expected.items():
        a = found[name]
        assert (a.dtype, a.shape) == (e.dtype, e.shape), f"{name}: {a.dtype} {a.shape}, expected {e.dtype} {e.shape}"
        if not e.dtype.is_floating_point:
            made[name] = 0.0 if torch.equal(a, e) else float("inf")
            continue
        size = _size_of(name)
        chain = 1.0 if name in ("logits", "loss") else GRADIENT_SCALE
        allowed = relative * chain * max(size(e), largest.get(name.partition(" ")[0], 0.0))
        off = size(a.double() - e.double())
        if not off <= allowed and truth is not None:
            wide, known = truth()[name].double(), _known(name, expected, truth())
            off = size((a.double() - wide)[known])
            allowed = max(allowed, 2 * size((e.double() - wide)[known]))
        made[name] = off / allowed if allowed else (float("inf") if off > 0 or off != off else 0.0)
    return made


def _known(name: str, expected: Results, truth: Results) -> torch.Tensor:
    """Where the direction of a change is known: everywhere, unless `name` is a change and its gradient is there."""
    gradient = name.replace("change", "gradient", 1)
    if gradient == name or gradient not in expected:
        return torch.ones_like(expected[name], dtype=torch.bool)
    wide = truth[gradient].double()
    return wide.abs() > 2 * _largest(expected[gradient].double() - wide)


def _size_of(name: str) -> Callable[[torch.Tensor], float]:
    return _norm if name.startswith("change") else _largest


def _largest_of(results: Results, kind: str) -> float:
    found = [_size_of(n)(t) for n, t in results.items() if n.startswith(kind) and t.dtype.is_floating_point]
    return max(found, default=0.0)


def _largest(a: torch.Tensor) -> float:
    if not a.numel():
        return 0.0
    return float("inf") if a.isnan().any() else a.abs().max().item()


def _norm(a: torch.Tensor) -> float:
    return float("inf") if a.isnan().any() else a.double().norm().item()
