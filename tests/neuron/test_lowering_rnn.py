"""Recurrent modules against the CPU: layers as one program, cells, packed sequences, and what a layer's program refuses."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

T, B, F, H = 5, 3, 4, 6


def pair(kind, *sizes, **options):
    """The module on both devices, with the same weights."""
    torch.manual_seed(0)
    here, there = (getattr(torch.nn, kind)(*sizes, **options) for _ in range(2))
    there.load_state_dict(here.state_dict())
    return here, there.to("neuron")


def tensors(value):
    return [t for v in value for t in tensors(v)] if isinstance(value, (tuple, list)) else [value]


def trained(module, device, run, *inputs):
    """Outputs, and gradients of inputs and weights."""
    given = [x.to(device).detach().requires_grad_() for x in inputs]
    outputs = tensors(run(module, *given))
    sum((i + 1) * t.square().sum() for i, t in enumerate(outputs)).backward()
    return [t.detach().cpu() for t in (*outputs, *(x.grad for x in given), *(p.grad for p in module.parameters()))]


def agree(modules, run, *inputs):
    here, there = modules
    expected = trained(here, "cpu", run, *inputs)
    events.clear()
    actual = trained(there, "neuron", run, *inputs)
    assert not torch.neuron.get_fallback_ops()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def called(module, x):
    return module(x)


LAYERS = {
    "LSTM": ("LSTM", {}),
    "GRU": ("GRU", {}),
    "tanh": ("RNN", {}),
    "relu": ("RNN", {"nonlinearity": "relu"}),
    "LSTM, all ways": ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "GRU, all ways": ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "LSTM without bias": ("LSTM", {"bias": False}),
    "GRU without bias": ("GRU", {"bias": False, "bidirectional": True}),
}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    kind, options = LAYERS[name]
    agree(
        pair(kind, F, H, **options), called, torch.randn(B, T, F) if "batch_first" in options else torch.randn(T, B, F)
    )


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_projections():
    agree(pair("LSTM", F, H, proj_size=2, num_layers=2, bidirectional=True), called, torch.randn(T, B, F))


def test_given_states():
    states = torch.randn(1, B, H), torch.randn(1, B, H)
    agree(pair("LSTM", F, H), lambda m, x, h, c: m(x, (h, c)), torch.randn(T, B, F), *states)
    agree(pair("GRU", F, H), lambda m, x, h: m(x, h), torch.randn(T, F), states[0][:, 0])


@pytest.mark.rotating(2)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_packed_sequences(kind):
    def run(module, x):
        outputs, state = module(pack_padded_sequence(x, torch.tensor([5, 3, 1])))
        return pad_packed_sequence(outputs)[0], state

    agree(pair(kind, F, H, bidirectional=True), run, torch.randn(T, B, F))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells(kind, bias):
    agree(pair(kind, F, H, bias=bias), called, torch.randn(B, F))


def test_a_layer_is_one_program_each_way():
    _, module = pair("LSTM", F, H)
    x = torch.randn(T, B, F).to("neuron")
    events.clear()
    outputs, _ = module(x)
    outputs.sum().backward()
    ran = [r["name"] for r in events.snapshot() if r["kind"] == "execute"]
    assert "aten::_cudnn_rnn" in ran
    assert "aten::_cudnn_rnn_backward" in ran
    assert "aten::mm" not in ran


def test_dropout_between_layers():
    _, module = pair("GRU", F, H, num_layers=2, dropout=0.5)
    x = torch.randn(T, B, F).to("neuron")
    first, second = module(x)[0], module(x)[0]
    assert not torch.equal(first, second)
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])


def test_gradients_of_gradients():
    """Where PyTorch says that they are to be had: without the fused layer."""
    here, there = pair("GRU", F, H)
    x = torch.randn(T, B, F)
    found = []
    for module, device in ((here, "cpu"), (there, "neuron")):
        v = x.to(device).detach().requires_grad_()
        with torch.backends.cudnn.flags(enabled=False):
            (g,) = torch.autograd.grad(module(v)[0].square().sum(), v, create_graph=True)
        (gg,) = torch.autograd.grad(g.square().sum(), v)
        found.append(gg.cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_half_precision():
    here, there = pair("LSTM", F, H, dtype=torch.bfloat16)
    x = torch.randn(T, B, F).bfloat16()
    actual, expected = there(x.to("neuron"))[0].cpu(), here(x)[0]
    assert actual.dtype is torch.bfloat16
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_errors_are_the_cpus():
    here, there = pair("LSTM", F, H)
    with pytest.raises(RuntimeError) as expected:
        here(torch.zeros(T, B, F + 1))
    with pytest.raises(RuntimeError) as actual:
        there(torch.zeros(T, B, F + 1, device="neuron"))
    assert str(actual.value) == str(expected.value)


def test_inside_a_compiled_function():
    """Dynamo leaves recurrent modules to eager execution, and must leave the kernels underneath alone too."""
    here, there = pair("GRU", F, H)
    x = torch.randn(T, B, F)
    events.clear()
    actual = torch.compile(lambda v: there(v * 2)[0] + 1, backend="neuron")(x.to("neuron"))
    assert not torch.neuron.get_fallback_ops()
    torch.testing.assert_close(actual.detach().cpu(), (here(x * 2)[0] + 1).detach())
