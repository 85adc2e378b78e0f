"""Four Hugging Face decoders compiled in full: one graph forward, one backward, nothing else, and the CPU's numbers.

A sample of ``python -m tests.clients``, which runs every combination.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from . import decoding, running
from .families import DECODERS
from .running import Case, Outcome

LLAMA, QWEN, GPT2, MIXTRAL = DECODERS
FLOAT, HALF = torch.float32, torch.bfloat16


def whole(outcome: Outcome) -> None:
    """Assert that forward and backward were a program each, and that what they computed is right."""
    assert (outcome.programs, outcome.breaks, outcome.fallbacks) == (2, 0, ())
    assert outcome.last_step_compiles == 0
    assert set(outcome.outside) <= {"aten::ones_like", "aten::zeros"}  # autograd's seed, and gradients nobody gave
    assert outcome.error <= 1, outcome.worst


COMPILED = [
    Case(LLAMA, dtype=FLOAT),
    Case(LLAMA, dtype=HALF, checkpointing=True),
    Case(QWEN, dtype=FLOAT, attention="flex_attention"),
    Case(GPT2, dtype=HALF, attention="eager", padded=False),
    Case(MIXTRAL, dtype=FLOAT, experts="grouped_mm"),
]


def named(case: Case) -> str:
    mask = "padded" if case.padded else "full"
    return "-".join(map(str, (case.family.name, case.dtype, case.attention, case.experts or "", mask)))


@pytest.mark.rotating(len(COMPILED))
@pytest.mark.parametrize("case", COMPILED, ids=named)
def test_training_is_one_graph_forward_and_one_backward(case):
    whole(running.run(case))


def test_what_is_compared_with_moves_in_float64_too():
    """It is the truth for what exceeds its allowance: a change of nothing there would pass whatever the device computes."""
    narrow, wide = (running._expected(Case(GPT2, "cpu"), w) for w in (False, True))
    assert all(t.dtype is torch.float64 for name, t in wide.items() if name.startswith("gradient"))
    for name, change in wide.items():
        if name.startswith("change"):
            assert (change - narrow[name]).norm() <= 0.1 * change.norm(), name
            assert change.norm() > 1e-3, name


def test_eager_execution_falls_back_for_nothing():
    outcome = running.run(Case(MIXTRAL, "eager"))
    assert outcome.fallbacks == ()
    assert outcome.last_step_compiles == 0
    assert outcome.error <= 1, outcome.worst


@pytest.mark.rotating(2)
@pytest.mark.parametrize("by", [decoding.generated, decoding.stepped], ids=["generate", "by hand"])
def test_decoding_with_a_static_cache_is_two_programs(by):
    torch._dynamo.reset()
    model, prompt, expected = decoding.on_cpu(LLAMA, padded=True, new=4)
    seen = running.Counts()
    assert torch.equal(by(model, prompt, 4), expected)
    assert seen.graphs() == [1, 3]  # the prompt, and every token after the first
    assert seen.fallbacks() == []
