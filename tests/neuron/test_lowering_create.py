"""Tensors made from sizes and numbers, against the CPU."""

import pytest
import torch

from shakedown.neuron import events

from .agreement import agree, example

pytestmark = pytest.mark.rotating(2, least=3)

FLOATS = [torch.float32, torch.bfloat16, torch.float64]
DTYPES = [*FLOATS, torch.int64, torch.uint8, torch.bool]

FILLED = {
    "zeros": lambda d, t: torch.zeros(2, 3, dtype=t, device=d),
    "ones": lambda d, t: torch.ones(2, 0, 3, dtype=t, device=d),
    "full": lambda d, t: torch.full((3,), 2, dtype=t, device=d),
    "eye": lambda d, t: torch.eye(3, 5, dtype=t, device=d),
    "scalar_tensor": lambda d, t: torch.scalar_tensor(1.5, dtype=t, device=d),
}
SEQUENCES = {
    "arange": lambda d, t: torch.arange(7, dtype=t, device=d),
    "arange with a step": lambda d, t: torch.arange(1, 9, 2, dtype=t, device=d),
    "arange downwards": lambda d, t: torch.arange(10, 0, -3, dtype=t, device=d),
    "linspace": lambda d, t: torch.linspace(50, 1, 50, dtype=t, device=d),
    "linspace of one": lambda d, t: torch.linspace(3, 9, 1, dtype=t, device=d),
    "linspace of none": lambda d, t: torch.linspace(3, 9, 0, dtype=t, device=d),
    "logspace": lambda d, t: torch.logspace(0, 3, 4, base=2, dtype=t, device=d),
}


def made(fn, dtype: torch.dtype) -> None:
    """Hold a factory to the CPU's result. A tensor is passed along only to say where."""
    agree(lambda x: fn(x.device, dtype), torch.zeros(()))


@pytest.mark.covering
@pytest.mark.parametrize("name", FILLED)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64], ids=str)
def test_one_value(name, dtype):
    made(FILLED[name], dtype)


@pytest.mark.covering
@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("dtype", [t for t in DTYPES if t is not torch.bool], ids=str)
def test_sequences(name, dtype):
    made(SEQUENCES[name], dtype)


def test_default_dtypes():
    made(
        lambda d, _: (torch.arange(3, device=d), torch.arange(3.0, device=d), torch.arange(0, 1, 0.3, device=d)),
        torch.int64,
    )
    made(
        lambda d, _: (torch.full((2,), 1, device=d), torch.full((2,), True, device=d), torch.full((2,), 1j, device=d)),
        torch.int64,
    )


def test_ends_of_sequences_are_exact():
    made(lambda d, t: torch.linspace(-0.3, 0.7, 11, dtype=t, device=d)[[0, -1]], torch.float32)
    made(lambda d, t: torch.arange(2**40, 2**40 + 3, dtype=t, device=d), torch.int64)
    made(lambda d, t: torch.arange(2**24, 2**24 + 8, 2, dtype=t, device=d), torch.float32)
    agree(
        lambda a: (torch.linspace(a[0], a[1], 5, device=a.device), torch.linspace(a[0], 3, 5, device=a.device)),
        torch.tensor([1.0, 2.0]),
    )


def test_indices_of_triangles():
    made(lambda d, _: (torch.tril_indices(4, 3, 1, device=d), torch.triu_indices(3, 5, -1, device=d)), torch.int64)
    made(lambda d, _: torch.tril_indices(0, 3, device=d), torch.int64)
    agree(lambda x: torch.vander(x, 4), example(torch.float32, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_like_another(dtype):
    x = example(dtype, 2, 3, 4)
    agree(lambda x: (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 1)), x)
    agree(lambda x: (x.new_zeros(3), x.new_ones(2, 2), x.new_full((2,), 1), x.new_zeros(2, dtype=torch.int32)), x)
    agree(lambda x: torch.zeros_like(x, dtype=torch.float64), x)


def test_layouts_of_what_is_like_another():
    x = torch.ones(2, 3, 4, 5, device="neuron")
    assert torch.zeros_like(x.permute(0, 3, 1, 2)).stride() == (60, 1, 20, 5)
    assert torch.ones_like(x, memory_format=torch.channels_last).stride() == (60, 1, 15, 3)
    assert torch.full_like(x[:, ::2], 2).is_contiguous()
    assert torch.zeros_like(x[:1].expand(7, 3, 4, 5)).shape == (7, 3, 4, 5)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_like_another_on_another_device(device):
    x = torch.ones(2, 3, device="neuron").t()
    events.clear()
    for fresh in (
        torch.zeros_like(x, device=device),
        torch.full_like(x, 3, device=device),
        x.new_ones(2, device=device),
    ):
        assert fresh.device.type == device
    assert torch.zeros_like(x, device=device).stride() == (1, 3)
    assert not [r for r in events.snapshot() if r["kind"] in ("fallback", "transfer", "compile")]
    on_device = torch.zeros_like(torch.ones(2, 3), device="neuron")
    assert on_device.device.type == "neuron"


def test_into_a_given_tensor():
    def out(d: torch.device, t: torch.dtype) -> list[torch.Tensor]:
        a, b, c, e = (torch.empty(0, dtype=t, device=d) for _ in range(4))
        torch.arange(2, 8, 2, out=a)
        torch.linspace(0, 1, 4, out=b)
        torch.zeros(2, 2, out=c)
        torch.eye(3, out=e)
        return [a, b, c, e]

    made(out, torch.float32)


def test_another_fill_value_compiles_nothing_new():
    x = torch.full((4,), 1.5, device="neuron")
    torch.full_like(x, 2.5)
    events.clear()
    assert (torch.full((4,), 7.25, device="neuron") + torch.full_like(x, 0.5)).tolist() == [7.75] * 4
    assert not [n for n in events.names("compile") if "full" in n]


def test_wrong_arguments_raise_what_the_cpu_raises():
    with pytest.raises(RuntimeError, match="upper bound and lower bound inconsistent"):
        torch.arange(0, 5, -1, device="neuron")
    with pytest.raises(RuntimeError, match="number of steps must be non-negative"):
        torch.linspace(0, 1, -1, device="neuron")
    with pytest.raises(RuntimeError, match="n must be greater or equal to 0"):
        torch.eye(-1, device="neuron")
