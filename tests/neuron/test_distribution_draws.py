"""Draws of every distribution of torch.distributions on the device: sizes, support, moments, reparametrised gradients."""

import pytest
import torch

from shakedown.neuron import events

from .distributions import MAKE, made

DRAWS = 2000
# Densities and moments of these exist only for single draws, or are infinite.
WITHOUT_MOMENTS = {"Cauchy", "HalfCauchy", "LKJCholesky", "LogisticNormal", "RelaxedBernoulli"}
WITHOUT_MOMENTS |= {"RelaxedOneHotCategorical", "TransformedDistribution", "VonMises"}  # (its moments are circular)


@pytest.mark.rotating(3)
@pytest.mark.parametrize("name", MAKE)
def test_draws_have_the_moments(name):
    torch.manual_seed(1)
    host, _ = made(name, "cpu")
    device, arguments = made(name, "neuron", requires_grad=host.has_rsample)
    events.clear()
    draws = device.sample((DRAWS,))
    assert draws.device.type == "neuron"
    expected = host.sample((DRAWS,))
    assert (draws.shape, draws.dtype) == (expected.shape, expected.dtype)
    assert bool(device.support.check(draws).all())
    if name in WITHOUT_MOMENTS:  # the two samples' quartiles instead
        fractions = torch.tensor([0.25, 0.5, 0.75])
        a, b = (torch.quantile(t.flatten(1), fractions, dim=0) for t in (draws.cpu(), expected))
        spread = (b[2] - b[0]).clamp(min=1e-6)
        assert bool(((a - b).abs() <= 10 * spread / DRAWS**0.5).all())
    elif name != "Categorical":  # whose values are names, not numbers
        error = (host.variance / DRAWS).sqrt()
        assert bool(((draws.mean(0).cpu() - host.mean).abs() <= 5 * error + 1e-6).all())
        if name in ("Normal", "Uniform", "Gamma", "Beta", "Poisson", "Binomial", "Exponential", "Laplace"):
            assert bool(((draws.var(0).cpu() / host.variance - 1).abs() <= 0.25).all())
    if (
        host.has_rsample and name != "Wishart"
    ):  # which repairs its draws in place, and loses the gradient on the CPU too
        device.rsample((3,)).sum().backward()
        for argument in arguments:
            assert argument.grad is None or bool(torch.isfinite(argument.grad).all())
        assert any(argument.grad is not None for argument in arguments)
    assert not events.names("fallback")
