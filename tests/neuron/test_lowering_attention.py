"""Fused attention and the layers that use it against the CPU."""

import pytest
import torch

from shakedown.neuron import events

from .agreement import agree

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional
B, H, L, S, E = 2, 4, 5, 7, 8
FULL = [(B, H, L, E), (B, H, S, E), (B, H, S, E)]
FUSED = "aten::_scaled_dot_product_fused_attention_overrideable"


def tensors(sizes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in sizes]


def masked_row():
    mask = torch.rand(L, S, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[1] = False
    return mask


def float_mask(dtype=torch.float32, *lead):
    bias = tensors([(*lead, L, S)], dtype, seed=2)[0]
    bias[..., 1, :] = -torch.inf
    return bias


CASES = {
    "plain": (FULL, {}),
    "causal": (FULL, {"is_causal": True}),
    "scale": (FULL, {"scale": 0.3}),
    "values of another width": ([*FULL[:2], (B, H, S, 3)], {}),
    "grouped heads": ([FULL[0], (B, 2, S, E), (B, 2, S, E)], {"enable_gqa": True, "is_causal": True}),
    "three dimensions": ([(B, L, E), (B, S, E), (B, S, E)], {}),
    "two dimensions": ([(L, E), (S, E), (S, E)], {}),
    "five dimensions": ([(2, *s) for s in FULL], {}),
    "heads broadcast": ([FULL[0], (B, 1, S, E), (B, 1, S, E)], {}),
    "no query": ([(B, H, 0, E), *FULL[1:]], {}),
    "no key": ([FULL[0], (B, H, 0, E), (B, H, 0, E)], {}),
    "no batch": ([(0, *s[1:]) for s in FULL], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention(name):
    sizes, named = CASES[name]
    agree(lambda *a: F.scaled_dot_product_attention(*a, **named), *tensors(sizes), gradients=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_dtypes(dtype, causal):
    agree(lambda *a: F.scaled_dot_product_attention(*a, is_causal=causal), *tensors(FULL, dtype), gradients=True)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("lead", [(), (B, 1), (1, H)], ids=str)
def test_gradient_of_a_mask(dtype, lead):
    """Float masks receive gradients; rows that see nothing give zeros and pass none."""
    agree(F.scaled_dot_product_attention, *tensors(FULL, dtype), float_mask(dtype, *lead), gradients=True)


def test_boolean_mask_with_an_empty_row():
    agree(lambda *a: F.scaled_dot_product_attention(*a[:3], attn_mask=a[3]), *tensors(FULL), masked_row())
    q, k, v = (t.to("neuron").requires_grad_() for t in tensors(FULL))
    out = F.scaled_dot_product_attention(q, k, v, masked_row().to("neuron"))
    assert (out[:, :, 1] == 0).all()
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert grad.isfinite().all()


def computed():
    """The operators that ran, without the one that only chooses among them."""
    return [n for n in torch.neuron.get_executed_ops() if n != "aten::scaled_dot_product_attention"]


def test_it_is_one_operator_each_way():
    q, k, v = (t.to("neuron").requires_grad_() for t in tensors(FULL))
    events.clear()
    out = F.scaled_dot_product_attention(q, k, v)
    assert computed() == [FUSED]
    events.clear()
    torch.autograd.grad(out, (q, k, v), out.detach())
    assert computed() == [f"{FUSED}_backward"]
    with torch.inference_mode():
        events.clear()
        F.scaled_dot_product_attention(q, k, v)
        assert computed() == [FUSED]


def test_the_plain_form_can_be_asked_for():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (t.to("neuron") for t in tensors(FULL))
    fused = F.scaled_dot_product_attention(q, k, v)
    events.clear()
    with sdpa_kernel(SDPBackend.MATH):
        plain = F.scaled_dot_product_attention(q, k, v)
    assert FUSED not in torch.neuron.get_executed_ops()
    torch.testing.assert_close(plain.cpu(), fused.cpu())


def test_dropout_is_the_same_forwards_and_backwards():
    """With the identity as values, the output is the dropped weights themselves, and so is the gradient of a sum."""
    q, k, _ = (t.to("neuron") for t in tensors([(B, H, L, E), (B, H, S, E), (B, H, S, E)]))
    eye = torch.eye(S, device="neuron").expand(B, H, S, S).contiguous().requires_grad_()
    out = F.scaled_dot_product_attention(q, k, eye, dropout_p=0.5)
    kept = (out != 0).float().mean().item()
    assert 0.35 < kept < 0.65
    (grad,) = torch.autograd.grad(out, eye, torch.ones_like(out))
    torch.testing.assert_close(grad.cpu(), out.detach().sum(2)[..., None].expand(grad.shape).cpu())
    again = F.scaled_dot_product_attention(q, k, eye, dropout_p=0.5)
    assert not torch.equal(again.cpu(), out.cpu())


def test_dropout_is_unbiased_and_reproducible():
    q, k, v = (t.to("neuron") for t in tensors([(8, 8, 32, 16)] * 3))
    plain = F.scaled_dot_product_attention(q, k, v)
    torch.manual_seed(3)
    first = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
    torch.manual_seed(3)
    assert torch.equal(first.cpu(), F.scaled_dot_product_attention(q, k, v, dropout_p=0.2).cpu())
    assert abs((first - plain).mean().item()) < 0.02


@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention(training, request):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(2, 6, 16)
    there = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    there.load_state_dict(layer.state_dict())
    there = there.to("neuron")
    layer.train(training), there.train(training)
    torch.set_grad_enabled(training)
    request.addfinalizer(lambda: torch.set_grad_enabled(True))  # without gradients, evaluation takes the fused operator
    for weights in (False, True):
        want = layer(x, x, x, need_weights=weights)
        y = x.to("neuron")
        events.clear()
        got = there(y, y, y, need_weights=weights)
        assert not torch.neuron.get_fallback_ops()
        torch.testing.assert_close(got[0].detach().cpu(), want[0].detach(), rtol=1e-4, atol=1e-5)
        if weights:
            torch.testing.assert_close(got[1].detach().cpu(), want[1].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder_layer_in_evaluation(norm_first):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first).eval()
    x = torch.randn(2, 6, 16)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    with torch.no_grad():
        want = layer(x), layer(x, src_key_padding_mask=padding)
        there = layer.to("neuron")
        events.clear()
        got = there(x.to("neuron")), there(x.to("neuron"), src_key_padding_mask=padding.to("neuron"))
        assert not torch.neuron.get_fallback_ops()
    torch.testing.assert_close(got[0].cpu(), want[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1].cpu()[0], want[1][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1].cpu()[1, :4], want[1][1, :4], rtol=1e-4, atol=1e-5)
