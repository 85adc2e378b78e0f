"""Bags of embeddings against the CPU: modes, empty bags, padding, weights, and all gradients."""

import itertools

import pytest
import torch

from .agreement import agree, example

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional
INDICES = torch.tensor([1, 4, 4, 2, 0, 5, 3, 1, 1])
OFFSETS = torch.tensor([0, 2, 2, 3, 8])


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_modes(mode, dtype):
    for padding, last in itertools.product((None, 1), (False, True)):

        def fn(weight, indices, offsets):
            return F.embedding_bag(
                indices,
                weight,
                offsets,
                mode=mode,
                padding_idx=padding,  # noqa: B023
                include_last_offset=last,  # noqa: B023
            )

        offsets = torch.cat([OFFSETS, torch.tensor([9])]) if last else OFFSETS
        agree(fn, example(dtype, 6, 5), INDICES, offsets, gradients=True)


def test_gradients_by_frequency():
    """As documented; the CPU kernel looks frequencies up under the wrong index where some index repeats."""
    weight = example(torch.float32, 6, 5).to("neuron").requires_grad_()
    indices, offsets = INDICES.to("neuron"), OFFSETS.to("neuron")
    plain, scaled = (
        torch.autograd.grad(
            F.embedding_bag(indices, weight, offsets, mode="sum", scale_grad_by_freq=scale).square().sum(), weight
        )[0].cpu()
        for scale in (False, True)
    )
    torch.testing.assert_close(scaled, plain / INDICES.bincount(minlength=6)[:, None])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_rows_as_bags(mode):
    fn = lambda w, i: F.embedding_bag(i, w, mode=mode)  # noqa: E731
    agree(fn, example(torch.float32, 6, 5), INDICES.view(3, 3), gradients=True)
    agree(fn, example(torch.float32, 6, 5), INDICES.view(3, 3).int(), gradients=True)
    agree(fn, example(torch.float32, 6, 5), torch.empty(0, 3, dtype=torch.int64), gradients=True)


@pytest.mark.parametrize("padding", [None, 4])
def test_weights_of_indices(padding):
    def fn(weight, indices, offsets, factors):
        return F.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=factors, padding_idx=padding)

    agree(fn, example(torch.float32, 6, 5), INDICES, OFFSETS, example(torch.float32, 9, seed=3), gradients=True)


def test_nan_in_maxima():
    """It stays where it is the first of a bag."""
    weight = example(torch.float32, 6, 5)
    weight[1, 0] = weight[4, 1] = weight[0, 2] = torch.nan
    weight[2] = -torch.inf
    agree(lambda w, i, o: F.embedding_bag(i, w, o, mode="max"), weight, INDICES, OFFSETS)


def test_no_indices():
    empty = torch.empty(0, dtype=torch.int64)
    for mode in ("sum", "mean", "max"):
        agree(
            lambda w, i, o: F.embedding_bag(i, w, o, mode=mode),  # noqa: B023
            example(torch.float32, 6, 5),
            empty,
            torch.zeros(2, dtype=torch.int64),
            gradients=True,
        )


def test_sizes_of_bags():
    def fn(weight, indices, offsets):
        return torch._embedding_bag(weight, indices, offsets, mode=1, padding_idx=1)[:3]

    agree(fn, example(torch.float32, 6, 5), INDICES, OFFSETS)


def test_module_trains():
    torch.manual_seed(0)
    here = torch.nn.EmbeddingBag(6, 4, mode="mean")
    there = torch.nn.EmbeddingBag(6, 4, mode="mean").to("neuron")
    there.load_state_dict(here.state_dict())
    for module, device in ((here, "cpu"), (there, "neuron")):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        module(INDICES.to(device), OFFSETS.to(device)).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach())
    assert not torch.neuron.get_fallback_ops()


@pytest.mark.parametrize(("indices", "offsets"), [([1, 6], [0]), ([1, 2], [1]), ([1, 2], [0, 3])])
def test_errors_are_the_cpus(indices, offsets):
    weight, indices, offsets = example(torch.float32, 6, 5), torch.tensor(indices), torch.tensor(offsets)
    with pytest.raises(RuntimeError) as expected:
        F.embedding_bag(indices, weight, offsets, mode="sum")
    with pytest.raises(RuntimeError) as actual:
        # (Its value is read because adaptive eager raises no sooner, and then names the operator.)
        F.embedding_bag(indices.to("neuron"), weight.to("neuron"), offsets.to("neuron"), mode="sum").cpu()
    assert str(actual.value).partition(" (in aten::")[0].rstrip() == str(expected.value).rstrip()
