"""A sample of PyTorch's module database: each module built on the CPU, copied to the device, forward and backward.

``shakedown ops conformance --suite module_db`` runs all of it.
"""

import copy

import pytest
import torch
from torch.nn.parameter import is_lazy
from torch.testing._internal.common_modules import module_db

from shakedown.conformance.compare import GRADIENT_SCALE, compare, structure, tensors
from shakedown.conformance.databases import moved
from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

CHOSEN = [info for info in module_db if torch.float64 in info.dtypes][3::6]
RANDOM = ("Dropout", "RReLU")


def example_of(info, training):
    """The first input of the entry with a forward call, or None."""
    torch.manual_seed(1)
    found = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True, training=training)
    return next((m for m in found if m.forward_input is not None), None)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("info", CHOSEN, ids=lambda i: i.module_cls.__name__)
def test_module(info, training):
    if not training and not info.train_and_eval_differ:
        pytest.skip("evaluation is training")
    given = example_of(info, training)
    if given is None:
        pytest.skip("no input with a forward call")
    args, kwargs = given.forward_input.args, given.forward_input.kwargs
    host = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).train(training)
    host = host.to(torch.float64)
    if any(is_lazy(p) for p in host.parameters()):
        host(*args, **kwargs)  # gives it its parameters, which would be drawn anew on the device
    device = copy.deepcopy(host).to("neuron")
    there = moved((args, kwargs))
    events.clear()
    expected, actual = host(*args, **kwargs), device(*there[0], **there[1])
    if training and any(word in type(m).__name__ for m in host.modules() for word in RANDOM):
        assert not structure(actual, expected)
        return
    assert not compare(actual, expected).problem
    results = []
    for out, module, call in ((actual, device, there), (expected, host, (args, kwargs))):
        outs = [t for t in tensors(out) if t.requires_grad]
        ins = [*module.parameters(), *(t for t in tensors(list(call)) if t.requires_grad)]
        if outs and ins:
            seeds = [torch.linspace(-1, 1, max(t.numel(), 1), dtype=t.dtype)[: t.numel()].view(t.shape) for t in outs]
            grads = torch.autograd.grad(outs, ins, [s.to(outs[0].device) for s in seeds], allow_unused=True)
            results.append([g for g in grads if g is not None])
    if results:
        assert not compare(*results, scale=GRADIENT_SCALE).problem
    assert not compare(list(device.buffers()), list(host.buffers())).problem
    assert not [(r["name"], r["detail"]) for r in events.snapshot() if r["kind"] == "fallback"]


def test_lazy_modules_move_before_they_know_their_sizes():
    layers = [torch.nn.LazyConv2d(4, 3), torch.nn.LazyBatchNorm2d(), torch.nn.Flatten(), torch.nn.LazyLinear(2)]
    module = torch.nn.Sequential(*layers).double()
    before = list(module.parameters())
    module.to("neuron")
    assert all(is_lazy(p) and p.requires_grad and p.device.type == "neuron" for p in module.parameters())
    assert all(a is b for a, b in zip(module.parameters(), before))
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    out = module(x.to("neuron"))
    out.square().sum().backward()
    parameters = list(module.parameters())
    assert not any(is_lazy(p) for p in parameters)
    assert all(p.grad.device.type == "neuron" and p.grad.shape == p.shape for p in parameters)
    host = copy.deepcopy(module).cpu()
    assert not compare(out, host(x)).problem
    unsized = torch.nn.LazyLinear(3, device="neuron").half().cpu()
    assert (unsized.weight.dtype, unsized.weight.device.type) == (torch.float16, "cpu")
    assert unsized.float()(torch.ones(2, 4)).shape == (2, 3)


def test_loss_of_one_sample_has_no_dimension():
    x, target = torch.randn(4, dtype=torch.float64), torch.tensor([1, 2, -1, 0])
    results = []
    for device in ("neuron", "cpu"):
        leaf = x.clone().to(device).requires_grad_()
        events.clear()
        loss = torch.nn.functional.multilabel_margin_loss(leaf, target.to(device), reduction="none")
        results.append([loss, torch.autograd.grad(loss, leaf)[0]])
        assert not [r for r in events.snapshot() if r["kind"] == "fallback"]
    assert not compare(*results).problem


def test_unpooling_keeps_the_format_of_its_input():
    x, places = torch.randn(2, 3, 2, 2), torch.arange(4).view(1, 1, 2, 2).repeat(2, 3, 1, 1) * 2
    for form in (torch.contiguous_format, torch.channels_last):
        here = x.contiguous(memory_format=form)
        expected = torch.nn.functional.max_unpool2d(here, places, 2)
        actual = torch.nn.functional.max_unpool2d(here.to("neuron"), places.to("neuron"), 2)
        assert actual.stride() == expected.stride()
        assert not compare(actual, expected).problem
