"""Every distribution of torch.distributions on the device: densities and divergences against the CPU's on the same values."""

import inspect

import pytest
import torch
import torch.distributions as D
from torch.distributions.kl import _KL_REGISTRY

from shakedown.neuron import events

from .distributions import MAKE, made

pytestmark = pytest.mark.rotating(2, least=3)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "neuron"
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=2e-4, atol=2e-4, equal_nan=True)


def test_no_distribution_is_missing():
    named = {n for n in D.__all__ if inspect.isclass(getattr(D, n)) and issubclass(getattr(D, n), D.Distribution)}
    assert named - {"Distribution", "ExponentialFamily"} == set(MAKE)


@pytest.mark.rotating(2)
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
