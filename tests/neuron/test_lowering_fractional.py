"""Fractional max pooling against the CPU, with the random numbers given."""

import pytest
import torch

from .agreement import agree, example

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional
NAN = torch.nan


def numbers(dtype, batch, planes, rank):
    return torch.rand(batch, planes, rank, generator=torch.Generator().manual_seed(1)).to(dtype)


def pool(rank, kernel, out):
    fn = getattr(F, f"fractional_max_pool{rank}d")

    def run(x, u):
        return fn(x, kernel, output_size=out, return_indices=True, _random_samples=u.detach())

    return run


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rank", "kernel", "out", "size"),
    [
        (2, 2, (4, 5), (2, 3, 9, 11)),
        (2, (3, 2), (1, 6), (3, 8, 13)),
        (2, 3, (5, 5), (2, 1, 17, 7)),
        (3, 2, (3, 4, 2), (2, 2, 7, 9, 5)),
        (3, (1, 2, 3), (3, 2, 1), (2, 5, 6, 7)),
        (3, 2, (2, 2, 2), (0, 1, 4, 5, 4)),
    ],
)
def test_against_the_cpu(rank, kernel, out, size, dtype):
    batch = size[0] if len(size) == rank + 2 else 1
    x = example(dtype, *size)
    agree(pool(rank, kernel, out), x, numbers(dtype, batch, size[-rank - 1], rank), gradients=True)
    x.flatten()[::7] = NAN
    agree(pool(rank, kernel, out), x, numbers(dtype, batch, size[-rank - 1], rank))


def test_numbers_from_the_device():
    x = torch.randn(2, 3, 12, 12).to("neuron").requires_grad_()
    torch.manual_seed(3)
    first = F.fractional_max_pool2d(x, 3, output_ratio=(0.5, 0.4))
    torch.manual_seed(3)
    assert torch.equal(first, F.fractional_max_pool2d(x, 3, output_ratio=(0.5, 0.4)))
    first.sum().backward()
    assert x.grad.sum().item() == first.numel()
    assert not torch.neuron.get_fallback_ops()


def test_errors_are_the_cpus():
    for device in ("cpu", "neuron"):
        with pytest.raises(RuntimeError, match="too large relative"):
            F.fractional_max_pool2d(torch.zeros(1, 1, 4, 4, device=device), 3, output_size=3)
