"""Special functions over their regions and poles, and the gradients of random draws, against the CPU."""

import pytest
import torch

from shakedown.neuron import events

from .agreement import agree

pytestmark = pytest.mark.rotating(2, least=3)

INF, NAN = torch.inf, torch.nan

FUNCTIONS = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "spherical_bessel_j0",
]


def line(dtype):
    """Both signs and all magnitudes, the ends of the regions of the formulas, and what is no number."""
    regions = torch.tensor([0, -0.0, 2, -2.09, 2.09, 5, -5, 8.3203353, 103.892, 104, 0.5, INF, -INF, NAN], dtype=dtype)
    wide = torch.logspace(-8, 2, 150, dtype=dtype)
    return torch.cat([torch.linspace(-12, 12, 200, dtype=dtype), wide, -wide, regions])


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bessel_functions(name, dtype):
    fn = getattr(torch.special, name)
    x = line(dtype)
    events.clear()
    actual, expected = fn(x.to("neuron")).cpu(), fn(x)
    assert not events.names("fallback")
    digits = 2e-6 if dtype is torch.float32 else 1e-11
    torch.testing.assert_close(actual, expected, rtol=digits, atol=digits, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers_become_floats(name):
    agree(getattr(torch.special, name), torch.arange(-3, 12))


def positive(*size, seed):
    return torch.exp(2 * torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


def test_gradient_of_gamma_samples():
    """Both arguments over all four regions of the approximation."""
    alpha, x = positive(3000, seed=1), positive(3000, seed=2)
    x[:1000] = alpha[:1000] * (1 + torch.linspace(-0.2, 0.2, 1000))
    agree(torch._standard_gamma_grad, alpha, x)


def test_gradient_of_dirichlet_samples():
    alpha = positive(3000, 3, seed=3)
    total = alpha.sum(-1, keepdim=True).expand_as(alpha)
    agree(torch._dirichlet_grad, torch._sample_dirichlet(alpha, torch.Generator().manual_seed(4)), alpha, total)


N = 30_000


@pytest.mark.rotating(2)
@pytest.mark.parametrize(("n", "p"), [(40, 0.3), (5, 0.9), (1000, 0.02), (1000, 0.5), (7, 0.0), (7, 1.0), (0, 0.4)])
def test_binomial_moments(n, p):
    torch.manual_seed(3)
    events.clear()
    x = torch.binomial(torch.full((N,), float(n), device="neuron"), torch.full((N,), p, device="neuron")).cpu()
    assert not events.names("fallback")
    assert x.min() >= 0
    assert x.max() <= n
    assert torch.equal(x, x.round())
    deviation = (n * p * (1 - p)) ** 0.5
    assert abs(x.mean().item() - n * p) <= 5 * deviation / N**0.5 + 1e-3 * (deviation == 0)
    assert abs(x.std().item() - deviation) <= 0.03 * deviation


def test_binomial_of_nan():
    assert torch.binomial(torch.ones(2, device="neuron"), torch.full((2,), NAN, device="neuron")).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dirichlet_moments(dtype):
    torch.manual_seed(3)
    alpha = torch.tensor([0.5, 2.0, 4.0], dtype=dtype)
    events.clear()
    x = torch._sample_dirichlet(alpha.to("neuron").expand(N, 3)).cpu()
    assert not events.names("fallback")
    assert x.dtype is dtype
    assert x.min() > 0
    assert x.max() < 1
    torch.testing.assert_close(x.sum(-1), torch.ones(N, dtype=dtype))
    mean = alpha / alpha.sum()
    variance = mean * (1 - mean) / (alpha.sum() + 1)
    assert ((x.mean(0) - mean).abs() < 5 * (variance / N).sqrt()).all()
    torch.testing.assert_close(x.var(0), variance, rtol=0.05, atol=0)


def test_reparameterised_samples_have_gradients():
    torch.manual_seed(0)
    events.clear()
    alpha = torch.tensor([2.0, 3.0, 0.5], device="neuron", requires_grad=True)
    torch.distributions.Dirichlet(alpha).rsample((N,))[:, 0].mean().backward()
    assert not events.names("fallback")
    # The mean is a0 / sum, whose derivatives are known.
    torch.testing.assert_close(alpha.grad.cpu(), torch.tensor([3.5, -2.0, -2.0]) / 5.5**2, rtol=0.1, atol=2e-3)
