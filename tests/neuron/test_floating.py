"""Half and double precision where CPU kernels have choices: dtypes of statistics, rounding of sums, random draws."""

import math

import pytest
import torch

from shakedown.conformance import checks, databases
from shakedown.conformance.compare import compare
from shakedown.neuron import events, rng

from .agreement import example

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional
HALVES = [torch.bfloat16, torch.float16]
fused_attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable


def copies(tensors, device, dtype=None):
    return [None if t is None else t.detach().clone().to(dtype or t.dtype).to(device) for t in tensors]


def judged_by_truth(fn, *tensors):
    """Values and gradients of ``fn(*tensors)``: no farther from float64's than twice the CPU's, where they differ."""
    results = []
    for device, dtype in (("neuron", None), ("cpu", None), ("cpu", torch.float64)):
        leaves = [t.requires_grad_() for t in copies(tensors, device, dtype)]
        events.clear()
        out = fn(*leaves)
        seed = example(torch.float32, *out.shape, seed=9).to(out.dtype).to(device)
        results.append([out, *torch.autograd.grad(out, leaves, seed)])
        assert not [r for r in events.snapshot() if r["kind"] == "fallback"]
    for actual, expected, truth in zip(*results):
        assert not compare(actual, expected, truth=truth).problem


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_layer_norm_gradients(dtype, biased):
    x, w, b = example(dtype, 6, 4), example(dtype, 4, seed=1) / 4 + 1, example(dtype, 4, seed=2)
    if biased:
        judged_by_truth(lambda x, w, b: F.layer_norm(x, (4,), w, b), x, w, b)
    else:
        judged_by_truth(lambda x, w: F.layer_norm(x, (4,), w), x, w)


@pytest.mark.parametrize("parameters", [None, torch.bfloat16, torch.float32], ids=str)
def test_norms_save_statistics_in_the_dtype_of_the_cpu(parameters):
    x = example(torch.bfloat16, 2, 4, 3)

    def of(size, value=1.0):
        return None if parameters is None else torch.full((size,), value, dtype=parameters)

    calls = {
        "layer": (torch.native_layer_norm, (x, (3,), of(3), of(3), 1e-5)),
        "group": (torch.native_group_norm, (x, of(4), of(4), 2, 4, 3, 2, 1e-5)),
        "batch": (torch.native_batch_norm, (x, of(4), of(4), of(4, 0.0), of(4), True, 0.1, 1e-5)),
        "update": (torch.ops.aten._batch_norm_with_update, (x, of(4), of(4), of(4, 0.0), of(4), 0.1, 1e-5)),
    }
    if parameters is None:
        del calls["update"]  # it needs running statistics
    for name, (fn, args) in calls.items():
        there = [t.to("neuron") if isinstance(t, torch.Tensor) else t for t in args]
        expected, actual = fn(*args), fn(*there)
        assert [(t.dtype, t.shape) for t in actual] == [(t.dtype, t.shape) for t in expected], name
        assert not compare(actual, expected).problem, name


@pytest.mark.parametrize("form", ["native_batch_norm", "_native_batch_norm_legit", "_batch_norm_no_update"])
def test_batch_norm_saves_nothing_without_training(form):
    x, w = example(torch.float32, 2, 4, 3), torch.ones(4)
    training = () if form == "_batch_norm_no_update" else (False,)
    op = getattr(torch.ops.aten, form)
    expected = op(x, w, w, w, w, *training, 0.1, 1e-5)
    there = x.to("neuron"), *(w.to("neuron") for _ in range(4))
    actual = op(*there, *training, 0.1, 1e-5)
    assert not compare(actual, expected).problem
    assert actual[1].numel() == 0


@pytest.mark.parametrize("form", ["native_batch_norm", "_native_batch_norm_legit"])
def test_batch_norm_into_given_tensors(form):
    x = example(torch.float32, 2, 4, 3)
    written = []
    for device in ("cpu", "neuron"):
        mean, var = torch.zeros(4, device=device), torch.ones(4, device=device)
        names = ("out", "save_mean", "save_invstd")
        outs = {n: torch.zeros(*size, device=device) for n, size in zip(names, ((2, 4, 3), (4,), (4,)))}
        events.clear()
        getattr(torch.ops.aten, form).out(x.to(device), None, None, mean, var, True, 0.1, 1e-5, **outs)
        assert not [r for r in events.snapshot() if r["kind"] == "fallback"]
        written.append([mean, var, *outs.values()])
    assert not compare(written[1], written[0]).problem


def attention_inputs(dtype, length=3):
    return [example(dtype, 2, 4, n, 8, seed=s) / 2 for s, n in enumerate((length, 6, 6))]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_attention_gradients_of_a_row_with_one_key(dtype):
    """The first row of causal attention has one probability, of one: its gradients are zeros, not rounding errors."""
    q, k, v = attention_inputs(dtype)
    judged_by_truth(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
    leaves = [t.requires_grad_() for t in copies((q, k, v), "neuron")]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True)
    (grad,) = torch.autograd.grad(out, leaves[0], torch.full_like(out, 3.0))
    assert grad[:, :, 0].count_nonzero().item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_logsumexp(dtype, causal):
    q, k, v = attention_inputs(dtype)
    found = fused_attention(*copies((q, k, v), "neuron"), None, 0.0, causal)[1]
    scores = q.double() @ k.double().mT / math.sqrt(8)
    if causal:
        scores = scores.masked_fill(~torch.ones(3, 6).bool().tril(), -math.inf)
    torch.testing.assert_close(found.cpu().double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_attention_draws_only_for_dropout():
    torch.manual_seed(3)
    here = copies(attention_inputs(torch.float32), "neuron")
    before = rng.state()
    F.scaled_dot_product_attention(*here)
    compiled = torch.compile(lambda q, k, v, p: F.scaled_dot_product_attention(q, k, v, dropout_p=p), backend="neuron")
    compiled(*here, 0.0)
    assert rng.state() == before
    F.scaled_dot_product_attention(*here, dropout_p=0.5)
    compiled(*here, 0.5)
    assert rng.state() == (before[0], before[1] + 2)
    leaves = [t.requires_grad_() for t in here]
    out = F.scaled_dot_product_attention(*leaves, dropout_p=0.5)
    # Output and gradient see the same mask: the gradient by the values is the kept weights, whose row sums out shows.
    ones = torch.autograd.grad(out.sum(), leaves[2])[0]
    torch.testing.assert_close((ones * leaves[2]).sum().cpu(), out.sum().cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_gradients_of_sums_of_exponentials_that_are_far_apart(dtype):
    entry = databases.entry("op_db", "logcumsumexp")
    sample = databases.samples(entry, dtype, gradients=True)[0]
    assert sample.input.abs().max() > 1e3
    rows = list(checks.Bench(entry, dtype, "eager").sample(0, sample, gradients=True, variants=False))
    assert [(r.check, r.status) for r in rows] == [("forward", "native"), ("gradient", "native")]
