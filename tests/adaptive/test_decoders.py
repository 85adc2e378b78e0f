"""Hugging Face decoders under adaptive eager: nothing falls back, and the numbers are the CPU's."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from tests.clients.families import DECODERS
from tests.clients.running import Case, run


@pytest.mark.parametrize(
    ("family", "dtype"),
    [(DECODERS[2], torch.float32), (DECODERS[3], torch.bfloat16)],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_a_decoder_trains_as_on_the_cpu(family, dtype):
    outcome = run(Case(family, "adaptive", dtype))
    assert outcome.fallbacks == ()
    assert outcome.error <= 1, outcome.worst
