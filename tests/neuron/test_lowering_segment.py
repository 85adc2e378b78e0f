"""Segment reductions against the CPU: lengths, offsets, empty segments, ties, zeros, NaN, and gradients."""

import pytest
import torch

from .agreement import agree, example

pytestmark = pytest.mark.rotating(2, least=3)

NAN = torch.nan
REDUCTIONS = ["sum", "mean", "max", "min", "prod"]


def by(kind, reduce, **options):
    return lambda data, where: torch.segment_reduce(data, reduce, **{kind: where}, **options)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_lengths_and_offsets(reduce, dtype):
    data = example(dtype, 9, 4, low=-2, high=3)
    agree(by("lengths", reduce), data, torch.tensor([3, 0, 4, 2]), gradients=True)
    agree(by("offsets", reduce), data, torch.tensor([0, 3, 3, 7, 9]), gradients=True)
    agree(by("lengths", reduce, initial=1.5), data, torch.tensor([3, 0, 4, 2]), gradients=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_segments_of_an_inner_dimension(reduce):
    data = example(torch.float32, 2, 5, 3, low=-2, high=3)
    agree(by("lengths", reduce, axis=1), data, torch.tensor([[2, 3, 0], [1, 1, 3]]), gradients=True)
    agree(by("offsets", reduce, axis=1), data, torch.tensor([[0, 2, 5, 5], [0, 1, 2, 5]]), gradients=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_elements_outside_all_segments(reduce):
    data = example(torch.float32, 9, seed=2)
    agree(by("lengths", reduce, unsafe=True), data, torch.tensor([3, 1]), gradients=True)
    agree(by("offsets", reduce), data, torch.tensor([2, 3, 7]), gradients=True)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_ties_zeros_and_nan(reduce):
    data = torch.tensor([2.0, 2.0, 1.0, 0.0, 0.0, 3.0, 0.0, 5.0, NAN, 1.0, NAN, NAN, -1.0])
    agree(by("lengths", reduce), data, torch.tensor([3, 3, 2, 2, 3]), gradients=True)


@pytest.mark.parametrize("lengths", [[3, -1, 7], [3, 3], [9, 1]])
def test_errors_are_the_cpus(lengths):
    data, lengths = torch.ones(9), torch.tensor(lengths)
    with pytest.raises(RuntimeError) as expected:
        torch.segment_reduce(data, "sum", lengths=lengths)
    with pytest.raises(RuntimeError) as actual:
        torch.segment_reduce(data.to("neuron"), "sum", lengths=lengths.to("neuron"))
    assert str(actual.value) == str(expected.value)
