"""Jagged nested tensors on the device, against the CPU: construction, operators, attention, gradients, training."""

import pytest
import torch
import torch.nn.functional as F

from shakedown.neuron import events

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*nested"),
    pytest.mark.rotating(2, least=3),
]

_draw = torch.Generator().manual_seed(0)
PARTS = [torch.randn(n, 4, generator=_draw) for n in (3, 1, 5, 2)]
WEIGHT = torch.randn(6, 4, generator=_draw)
OFFSETS = torch.tensor([0, 3, 4, 9, 11])
PAIRS = torch.arange(64.0).view(4, 4, 4) / 64


def jagged(device: str, requires_grad: bool = False) -> torch.Tensor:
    parts = [p.to(device) for p in PARTS]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device, requires_grad=requires_grad)


def same(actual, expected):
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected):
            same(a, e)
    elif isinstance(expected, torch.Tensor):
        assert actual.device.type == "neuron"
        assert (actual.layout, actual.dtype, actual.dim()) == (expected.layout, expected.dtype, expected.dim())
        if expected.is_nested:
            same((actual.values(), actual.offsets()), (expected.values(), expected.offsets()))
        else:
            torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4, equal_nan=True)
    else:
        assert actual == expected


def agree(fn):
    expected = fn("cpu")
    events.clear()
    actual = fn("neuron")
    assert not events.names("fallback")
    same(actual, expected)


MADE = {
    "of a list": jagged,
    "its parts": lambda v: (jagged(v).values(), jagged(v).offsets(), jagged(v).unbind()),
    "of values and offsets": lambda v: torch.nested.nested_tensor_from_jagged(torch.ones(11, 4).to(v), OFFSETS.to(v)),
    "of values and lengths": lambda v: torch.nested.nested_tensor_from_jagged(
        torch.ones(11, 4).to(v), lengths=OFFSETS.diff().to(v)
    ),
    "of tensors": lambda v: torch.nested.as_nested_tensor([p.to(v) for p in PARTS], layout=torch.jagged),
    "of a dense tensor": lambda v: torch.nested.as_nested_tensor(torch.ones(2, 3, 4).to(v), layout=torch.jagged),
    "narrowed": lambda v: torch.nested.narrow(
        torch.arange(24.0).view(2, 3, 4).to(v),
        1,
        torch.tensor([0, 1], device=v),
        torch.tensor([2, 1], device=v),
        layout=torch.jagged,
    ).contiguous(),
    "masked": lambda v: torch.nested.masked_select(
        torch.arange(12.0).view(3, 4).to(v), torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]]).bool().to(v)
    ),
    "moved": lambda v: jagged("cpu").to(v),
}
OPERATORS = {
    "unary": lambda x: [f(x) for f in (torch.sin, torch.exp, F.gelu, F.silu, torch.isnan, torch.neg, F.relu)],
    "with itself": lambda x: x * x + x,
    "with numbers": lambda x: (x * 2 - 1) / 3 > 0,
    "with a dense row": lambda x: x + torch.ones(4, device=x.device),
    "with a dense column": lambda x: x + torch.arange(4.0, device=x.device).view(4, 1, 1),
    "where": lambda x: torch.where(x > 0, x, x * 0),
    "in place": lambda x: x.mul_(2).add_(1),
    "linear": lambda x: F.linear(x, WEIGHT.to(x.device)),
    "matmul": lambda x: x @ WEIGHT.t().to(x.device),
    "batched matmul": lambda x: x @ PAIRS.to(x.device),
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(-1)),
    "softmax of the ragged dimension": lambda x: x.softmax(1),
    "sums": lambda x: (x.sum(), x.sum(1), x.sum(-1), x.sum(1, keepdim=True)),
    "means": lambda x: (x.mean(), x.mean(1), x.mean(-1, keepdim=True)),
    "extremes": lambda x: (x.amax(1), x.amax(-1), x.argmax(-1), (x > 0).any(1)),
    "padded": lambda x: (x.to_padded_tensor(0.0), x.to_padded_tensor(-1.0, output_size=(4, 7, 4))),
    "parts": lambda x: (x[1], x[..., 0], x[..., 1:3], x.chunk(2, -1), x.split([1, 3], -1)),
    "joined": lambda x: (torch.cat([x, x], -1), torch.stack([x, x], -1)),
    "reshaped": lambda x: x.unflatten(-1, [2, 2]).transpose(1, 2).transpose(1, 2).flatten(-2),
    "norms": lambda x: (F.layer_norm(x, (4,)), F.rms_norm(x, (4,))),
    "likes": lambda x: (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 3.0), x.clone(), x.double()),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
}
GRADIENTS = {
    "linear": lambda x, w: F.linear(x, w).tanh().values(),
    "softmax": lambda x, w: (x @ w.t()).softmax(-1).sin().values(),
    "ragged softmax": lambda x, w: F.linear(x, w).softmax(1).sin().values(),
    "padded": lambda x, w: F.linear(x, w).to_padded_tensor(0.0).sin(),
    "layer_norm": lambda x, w: F.layer_norm(F.linear(x, w), (6,)).sin().values(),
    "amax": lambda x, w: F.linear(x, w).amax(1).sin(),
    "unbind": lambda x, w: sum(t.sin().sum() for t in F.linear(x, w).unbind()),
}


@pytest.mark.parametrize("name", MADE)
def test_construction(name):
    agree(MADE[name])


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    agree(lambda device: OPERATORS[name](jagged(device)))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    def fn(device):
        x, w = jagged(device, True), WEIGHT.clone().to(device).requires_grad_()
        GRADIENTS[name](x, w).sum().backward()
        return x.grad, w.grad

    agree(fn)


@pytest.mark.filterwarnings("ignore")  # PyTorch warns about each faster kernel that the device lacks
def test_attention_and_its_gradients():
    generator = torch.Generator().manual_seed(2)
    values = [torch.randn(11, 2, 4, generator=generator) for _ in range(3)]

    def fn(device):
        leaves = [v.clone().to(device).requires_grad_() for v in values]
        q, k, v = (torch.nested.nested_tensor_from_jagged(x, OFFSETS.to(device)).transpose(1, 2) for x in leaves)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        out.values().sin().sum().backward()
        return [out.detach(), *(x.grad for x in leaves)]

    agree(fn)


class _Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = torch.nn.Embedding(20, 8), torch.nn.LayerNorm(8)
        self.qkv, self.head = torch.nn.Linear(8, 24), torch.nn.Linear(8, 3)

    def forward(self, tokens):
        x = self.embed(tokens)
        heads = (t.contiguous().unflatten(-1, [2, 4]).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return self.head(x + F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)).values()


@pytest.mark.filterwarnings("ignore")
def test_a_small_model_trains():
    sentences = [torch.tensor(s) for s in ([1, 2, 3], [4], [5, 6, 7, 8, 9])]
    labels = torch.arange(9) % 3

    def fn(device):
        torch.manual_seed(0)
        model = _Tagger().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        tokens = torch.nested.nested_tensor(sentences, layout=torch.jagged, device=device)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    agree(fn)


def test_strided_nested_tensors():
    def fn(device):
        x = torch.nested.nested_tensor([p.to(device) for p in PARTS], device=device)
        assert x.layout is torch.strided
        products = torch.matmul(x, x.transpose(1, 2)).softmax(-1)
        return [*products.unbind(), (x + x).to_padded_tensor(0.0), *(x.to(device) * 2).unbind()]

    agree(fn)


def test_what_strided_nested_tensors_lack_is_said():
    x = torch.nested.nested_tensor([p.to("neuron") for p in PARTS])
    with pytest.raises(NotImplementedError):
        torch.cumsum(x, 1)
