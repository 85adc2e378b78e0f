"""One small instance of every distribution of torch.distributions, for tests."""

import torch
import torch.distributions as D

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


def made(name: str, device: str, requires_grad: bool = False) -> tuple[D.Distribution, list[torch.Tensor]]:
    build, *arguments = MAKE[name]
    moved = [a.clone().to(device).requires_grad_(requires_grad) for a in arguments]
    return build(*moved), moved
