"""Twins: the same weights, each changed by one unit roundoff of the declared precision."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..evidence.losses import Nudge
from ..judge.formats import roundoff

SEED = 20_000  # of the first twin; the others follow


class Nudger:
    """Changes each weight it meets once: w becomes w * (1 + u) or w * (1 - u), up or down by chance, rounded to the format in
    which w is stored. Zeros stay zero, since a relative error of zero is none.

    The chances come from a generator of their own: the random numbers of the training are not touched.
    """

    def __init__(self, dtype: str, number: int) -> None:
        self.roundoff = roundoff(dtype)
        self.seed = SEED + number
        self._generator = torch.Generator().manual_seed(self.seed)
        self._met: dict[int, Tensor] = {}  # kept alive, so that no other tensor gets the same id
        self.elements = self.changed = 0

    def __call__(self, weights: Iterable[Tensor]) -> None:
        """Nudge those of `weights` that are floating and were not met before."""
        with torch.no_grad():
            for weight in weights:
                if id(weight) in self._met or not weight.is_floating_point():
                    continue
                self._met[id(weight)] = weight
                sign = torch.randint(0, 2, weight.shape, generator=self._generator, dtype=torch.int8).double() * 2 - 1
                before = weight.detach().double().cpu()
                weight.copy_(before * (1 + self.roundoff * sign))
                self.elements += weight.numel()
                self.changed += int((weight.detach().double().cpu() != before).sum())

    def said(self, when: str) -> Nudge:
        """What was changed, for the evidence."""
        return Nudge(
            roundoff=self.roundoff,
            seed=self.seed,
            when=when,
            tensors=len(self._met),
            elements=self.elements,
            changed=self.changed,
        )
