"""Lazy conjugates and negatives at the edges of compiled graphs: inputs, results, what is saved, gradients that come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shakedown.neuron import compile_step

D = "neuron"


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Positions as complex factors, as DeepSeek's and the first Llama's attention have them: the conjugate is saved."""
    angles = torch.arange(3.0, device=x.device)[:, None] * torch.tensor([0.3, 1.7, 0.9], device=x.device)
    return torch.view_as_real(x * torch.polar(torch.ones_like(angles), angles)).flatten(1)


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rotary positions": _rotated,
    "a result": lambda x: (x * 2).conj(),
    "with what it is of": lambda x: (y := x * 2, y.conj()),
    "before what it is of": lambda x: ((y := x * 2).conj(), y),
    "two of one": lambda x: ((y := x * 2).conj(), y.conj()),
    "one result twice": lambda x: (y := (x * 2).conj(), y),
    "of the input": lambda x: x.conj(),
    "of the input, with it": lambda x: (x.conj(), x, x.conj()),
    "a part": lambda x: ((y := x * 2)[0].conj(), y),
    "transposed": lambda x: (x * 2).mH,
    "negative": lambda x: (x * 2).conj().imag,
    "parts with the whole": lambda x: ((y := (x * 2).conj()).imag, y, y.real),
    "negative of the input": lambda x: x.conj().imag,
    "a product": lambda x: x @ x.mH,
    "saved": lambda x: (x * x.conj()) * x.exp().conj(),
    "real pairs": lambda x: torch.view_as_real((x.exp().conj() * x).resolve_conj()),
    "a sum": lambda x: x.conj() + (x * 2).conj().sum(0),
    "outside of programs": lambda x: torch.linalg.eigvals((x * 2).conj()).abs().sort().values + x.conj().abs(),
}


def _results(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def _run(function: Callable[[torch.Tensor], Any], device: str, lazy: bool, differentiated: bool) -> list[Any]:
    """Values, marks and strides of the results, and the gradient, which comes in conjugated or negated lazily."""
    x = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).to(device)
    x.requires_grad_(differentiated)
    results = _results(function(x.conj() if lazy else x))
    seen: list[Any] = [(r.is_conj(), r.is_neg(), r.stride(), r.detach().cpu()) for r in results]
    if differentiated:
        seeds = [
            torch.randn(r.shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(5)).to(device)
            for r in results
        ]
        torch.autograd.backward(
            results, [s.conj() if r.is_complex() else s.conj().imag for r, s in zip(results, seeds)]
        )
        seen.append((x.grad.cpu(),))
    return seen


@pytest.mark.parametrize("lazy", [False, True], ids=["plain input", "lazy input"])
@pytest.mark.parametrize("differentiated", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*")
def test_functions(name: str, differentiated: bool, lazy: bool) -> None:
    compiled = torch.compile(FUNCTIONS[name], backend=D, dynamic=False)
    expected = _run(FUNCTIONS[name], "cpu", lazy, differentiated)
    for found, wanted in zip(_run(compiled, D, lazy, differentiated), expected, strict=True):
        assert found[:-1] == wanted[:-1]
        torch.testing.assert_close(
            found[-1].resolve_conj().resolve_neg(), wanted[-1].resolve_conj().resolve_neg(), rtol=1e-4, atol=1e-4
        )


def test_inputs_of_the_cpu() -> None:
    x = torch.randn(3, 3, dtype=torch.complex64)
    found = torch.compile(lambda a, b: a * b, backend=D, dynamic=False)(x.conj(), x.conj().imag)
    torch.testing.assert_close(found.cpu(), x.conj() * x.conj().imag)


def test_a_lazy_input_is_written() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2 + 1j)
        return x.conj() + 1

    host = torch.randn(3, dtype=torch.complex64)
    there = host.to(D)
    expected = function(host.conj())
    found = torch.compile(function, backend=D, dynamic=False)(there.conj())
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(there.cpu(), host)


def test_whole_steps() -> None:
    weight = torch.randn(3, 3, dtype=torch.complex64)
    x = torch.randn(3, 3, dtype=torch.complex64)
    updated = []
    for device in ("cpu", D):
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(weight.clone().to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
            return (_rotated(x @ model.weight) ** 2).sum() + (x.imag * x.conj().imag).sum()

        if device == "cpu":
            loss(model, x.conj()).backward()
            optimizer.step()
        else:
            compile_step(model, loss, optimizer)(x.to(D).conj())
        updated.append(model.weight.detach().cpu())
    torch.testing.assert_close(updated[1], updated[0], rtol=1e-4, atol=1e-4)
