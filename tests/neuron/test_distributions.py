"""Every distribution of torch.distributions on the device: densities against the CPU, draws against their moments."""

import inspect

import pytest
import torch
import torch.distributions as D
from torch.distributions.kl import _KL_REGISTRY

from shakedown.neuron import events

RATES = torch.tensor([0.7, 1.5, 2.5])
PLACES = torch.tensor([-1.0, 0.0, 2.0])
CHANCES = torch.tensor([0.2, 0.5, 0.3])
FACTOR = torch.tensor([[1.0, 0.0, 0.0], [0.3, 1.2, 0.0], [-0.2, 0.5, 0.8]])
COVARIANCE = FACTOR @ FACTOR.T

# The arguments are tensors, and move; everything else stands in the function.
MAKE = {
    "Bernoulli": (lambda p: D.Bernoulli(p), CHANCES),
    "Beta": (lambda a: D.Beta(a, a + 1), RATES),
    "Binomial": (lambda p: D.Binomial(5, p), CHANCES),
    "Categorical": (lambda p: D.Categorical(p), CHANCES),
    "Cauchy": (lambda a, b: D.Cauchy(a, b), PLACES, RATES),
    "Chi2": (lambda a: D.Chi2(a), RATES),
    "ContinuousBernoulli": (lambda p: D.ContinuousBernoulli(p), CHANCES),
    "Dirichlet": (lambda a: D.Dirichlet(a), RATES),
    "Exponential": (lambda a: D.Exponential(a), RATES),
    "FisherSnedecor": (lambda a: D.FisherSnedecor(a + 5, a + 9), RATES),
    "Gamma": (lambda a: D.Gamma(a, a + 1), RATES),
    "GeneralizedPareto": (lambda a, b: D.GeneralizedPareto(a, b, b * 0 + 0.1), PLACES, RATES),
    "Geometric": (lambda p: D.Geometric(p), CHANCES),
    "Gumbel": (lambda a, b: D.Gumbel(a, b), PLACES, RATES),
    "HalfCauchy": (lambda a: D.HalfCauchy(a), RATES),
    "HalfNormal": (lambda a: D.HalfNormal(a), RATES),
    "Independent": (lambda a, b: D.Independent(D.Normal(a, b), 1), PLACES, RATES),
    "InverseGamma": (lambda a: D.InverseGamma(a + 3, a), RATES),
    "Kumaraswamy": (lambda a: D.Kumaraswamy(a, a + 1), RATES),
    "LKJCholesky": (lambda a: D.LKJCholesky(3, a), torch.tensor(1.5)),
    "Laplace": (lambda a, b: D.Laplace(a, b), PLACES, RATES),
    "LogNormal": (lambda a, b: D.LogNormal(a, b * 0.3), PLACES, RATES),
    "LogisticNormal": (lambda a, b: D.LogisticNormal(a, b), PLACES, RATES),
    "LowRankMultivariateNormal": (lambda a, f, b: D.LowRankMultivariateNormal(a, f, b), PLACES, FACTOR[:, :2], RATES),
    "MixtureSameFamily": (
        lambda p, a, b: D.MixtureSameFamily(D.Categorical(p), D.Normal(a, b)),
        CHANCES,
        PLACES,
        RATES,
    ),
    "Multinomial": (lambda p: D.Multinomial(4, p), CHANCES),
    "MultivariateNormal": (lambda a, c: D.MultivariateNormal(a, c), PLACES, COVARIANCE),
    "NegativeBinomial": (lambda p: D.NegativeBinomial(3.0, p), CHANCES),
    "Normal": (lambda a, b: D.Normal(a, b), PLACES, RATES),
    "OneHotCategorical": (lambda p: D.OneHotCategorical(p), CHANCES),
    "OneHotCategoricalStraightThrough": (lambda p: D.OneHotCategoricalStraightThrough(p), CHANCES),
    "Pareto": (lambda a: D.Pareto(a, a + 3), RATES),
    "Poisson": (lambda a: D.Poisson(a), RATES),
    "RelaxedBernoulli": (lambda t, p: D.RelaxedBernoulli(t, p), torch.tensor(0.7), CHANCES),
    "RelaxedOneHotCategorical": (lambda t, p: D.RelaxedOneHotCategorical(t, p), torch.tensor(0.7), CHANCES),
    "StudentT": (lambda a, b: D.StudentT(b + 4, a, b), PLACES, RATES),
    "TransformedDistribution": (
        lambda a, b: D.TransformedDistribution(
            D.Normal(a, b), [D.transforms.SigmoidTransform(), D.transforms.AffineTransform(1.0, 2.0)]
        ),
        PLACES,
        RATES,
    ),
    "Uniform": (lambda a, b: D.Uniform(a, a + b), PLACES, RATES),
    "VonMises": (lambda a, b: D.VonMises(a, b), PLACES, RATES),
    "Weibull": (lambda a: D.Weibull(a, a + 1), RATES),
    "Wishart": (lambda c: D.Wishart(torch.tensor(5.0, device=c.device), c), COVARIANCE),
}
DRAWS = 2000
# Densities and moments of these exist only for single draws, or are infinite.
WITHOUT_MOMENTS = {"Cauchy", "HalfCauchy", "LKJCholesky", "LogisticNormal", "RelaxedBernoulli"}
WITHOUT_MOMENTS |= {"RelaxedOneHotCategorical", "TransformedDistribution"}


def made(name: str, device: str, requires_grad: bool = False) -> tuple[D.Distribution, list[torch.Tensor]]:
    build, *arguments = MAKE[name]
    moved = [a.clone().to(device).requires_grad_(requires_grad) for a in arguments]
    return build(*moved), moved


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "neuron"
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=2e-4, atol=2e-4, equal_nan=True)


def test_no_distribution_is_missing():
    named = {n for n in D.__all__ if inspect.isclass(getattr(D, n)) and issubclass(getattr(D, n), D.Distribution)}
    assert named - {"Distribution", "ExponentialFamily"} == set(MAKE)


@pytest.mark.parametrize("name", MAKE)
def test_densities_match_the_cpu(name):
    torch.manual_seed(0)
    host, _ = made(name, "cpu")
    values = host.sample((5,))
    events.clear()
    device, _ = made(name, "neuron")
    for method in ("log_prob", "cdf"):
        try:
            expected = getattr(host, method)(values)
        except NotImplementedError:
            continue
        close(getattr(device, method)(values.to("neuron")), expected)
    for method in ("entropy", "icdf"):
        given = () if method == "entropy" else (torch.linspace(0.05, 0.95, 3),)
        try:
            expected = getattr(host, method)(*given)
        except NotImplementedError:
            continue
        close(getattr(device, method)(*(g.to("neuron") for g in given)), expected)
    assert not events.names("fallback")


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


def test_divergences_match_the_cpu():
    first = {name: made(name, "cpu")[0] for name in MAKE}
    failed = []
    events.clear()
    compared = 0
    for p_type, q_type in _KL_REGISTRY:
        names = [next((n for n, d in first.items() if type(d) is t), None) for t in (p_type, q_type)]
        if None in names:
            continue
        try:
            expected = D.kl_divergence(first[names[0]], first[names[1]])
        except NotImplementedError:
            continue
        actual = D.kl_divergence(made(names[0], "neuron")[0], made(names[1], "neuron")[0])
        compared += 1
        try:
            close(actual, expected)
        except AssertionError as error:
            failed.append((names, str(error)))
    assert not failed
    assert compared > 50
    assert not events.names("fallback")
