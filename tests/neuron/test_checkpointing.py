"""``torch.utils.checkpoint`` on the device: what is computed again draws the same masks, in the same precision, in every mode."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

checkpoint = checkpointing.checkpoint


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.second(F.dropout(torch.relu(self.first(x)), 0.3)), 0.2)


@pytest.fixture(scope="module")
def blocks() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Block() for _ in range(3)).to("neuron")


def saves_products():
    """Products are kept, all else is computed again."""
    return create_selective_checkpoint_contexts([torch.ops.aten.linear.default, torch.ops.aten.addmm.default])


def _policy(ctx, op, *args, **kwargs):
    keep = op in (torch.ops.aten.linear.default, torch.ops.aten.native_dropout.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


WAYS = {
    "plain": lambda block: block,
    "reentrant": lambda block: partial(checkpoint, block, use_reentrant=True),
    "not reentrant": lambda block: partial(checkpoint, block, use_reentrant=False),
    "nested": lambda block: partial(
        checkpoint, lambda x: checkpoint(block, x, use_reentrant=False) * 1.0, use_reentrant=False
    ),
    "selective": lambda block: partial(checkpoint, block, use_reentrant=False, context_fn=saves_products),
    "by a policy": lambda block: partial(
        checkpoint, block, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, _policy)
    ),
}


def _trained(blocks: nn.ModuleList, forward, *, mixed: bool = False) -> list[torch.Tensor]:
    """The loss, all gradients, and the state of the random stream after the backward pass."""
    blocks.zero_grad()
    x = torch.linspace(-1, 1, 32).view(4, 8).to("neuron").requires_grad_()
    torch.manual_seed(3)
    with torch.autocast("neuron", dtype=torch.bfloat16) if mixed else nullcontext():
        loss = forward(x)
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in blocks.parameters()), torch.neuron.get_rng_state()]


def _loss(blocks: nn.ModuleList, way: str, x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = WAYS[way](block)(x)
    return x.square().mean()


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("way", [w for w in WAYS if w != "plain"])
def test_gradients_are_those_without_a_checkpoint(blocks, way, mixed):
    """Bit by bit, masks of dropout and the random stream's end included."""
    expected = _trained(blocks, partial(_loss, blocks, "plain"), mixed=mixed)
    events.clear()
    actual = _trained(blocks, partial(_loss, blocks, way), mixed=mixed)
    assert not torch.neuron.get_fallback_ops()
    for ours, theirs in zip(actual, expected):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_sequence_in_segments(blocks, reentrant):
    def forward(x):
        x = checkpointing.checkpoint_sequential(list(blocks), 2, x, use_reentrant=reentrant)
        return x.square().mean()

    expected = _trained(blocks, partial(_loss, blocks, "plain"))
    for ours, theirs in zip(_trained(blocks, forward), expected):
        assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("way", ["reentrant", "not reentrant", "selective"])
def test_compiled(blocks, way):
    expected = _trained(blocks, partial(_loss, blocks, "plain"), mixed=way == "not reentrant")
    run = torch.compile(partial(_loss, blocks, way), backend="neuron")
    actual = _trained(blocks, run, mixed=way == "not reentrant")
    assert torch.equal(actual[-1], expected[-1])
    for ours, theirs in zip(actual, expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_stream_can_be_left_to_run_on(reentrant):
    """``preserve_rng_state=False``: the second computation draws other masks, so gradients are not the loss's."""
    x = torch.ones(64, device="neuron", requires_grad=True)
    for preserves in (True, False):
        x.grad = None
        torch.manual_seed(1)
        y = checkpoint(lambda x: F.dropout(x * 1.0, 0.5) * x, x, use_reentrant=reentrant, preserve_rng_state=preserves)
        y.sum().backward()
        assert torch.equal(x.grad, 2 * y.detach()) is preserves


def test_the_backward_pass_draws_from_where_the_forward_pass_ended():
    """A checkpoint puts the stream back after it has computed again."""
    x = torch.ones(8, device="neuron", requires_grad=True)
    torch.manual_seed(1)
    y = checkpoint(lambda x: F.dropout(x, 0.5), x, use_reentrant=False)
    between = torch.rand(3, device="neuron")
    y.sum().backward()
    after = torch.rand(3, device="neuron")
    torch.manual_seed(1)
    F.dropout(x, 0.5)
    assert torch.equal(torch.rand(3, device="neuron"), between)
    assert torch.equal(torch.rand(3, device="neuron"), after)


def test_what_is_computed_again_is_checked():
    x = torch.ones(4, device="neuron", requires_grad=True)
    sizes = iter((4, 2))

    def other_sizes(x):
        return x[: next(sizes)].sin().exp()

    y = checkpoint(other_sizes, x, use_reentrant=False)
    with pytest.raises(checkpointing.CheckpointError, match="different metadata"):
        y.sum().backward()
    sizes = iter((4, 2))
    y = checkpoint(other_sizes, x, use_reentrant=False, determinism_check="none")
    with pytest.raises(RuntimeError, match="shape|size"):
        y.sum().backward()


def test_it_stops_early():
    """What comes after the last value that is needed is not computed again."""
    x, calls = torch.ones(4, device="neuron", requires_grad=True), []

    def function(x):
        y = x.sin()
        calls.append("needed")
        y = y.exp()
        y = y + 1
        calls.append("after")
        return y

    for stops, expected in ((True, ["needed", "after", "needed"]), (False, ["needed", "after"] * 2)):
        calls.clear()
        with checkpointing.set_checkpoint_early_stop(stops):
            checkpoint(function, x, use_reentrant=False).sum().backward()
        assert calls == expected


def test_memory_is_given_back_between():
    """Only the inputs of a checkpointed stretch are kept until it is computed again."""

    def kept(way):
        x = torch.ones(1000, device="neuron", requires_grad=True)
        before = torch.neuron.live_bytes()

        def stretch(x):
            for _ in range(10):
                x = x.sin()
            return x

        y = way(stretch)(x)
        held = torch.neuron.live_bytes() - before
        y.sum().backward()
        return held

    everything, little = (kept(WAYS[way]) for way in ("plain", "not reentrant"))
    assert everything >= 10 * 4000
    assert little <= 2 * 4000
