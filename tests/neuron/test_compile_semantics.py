"""A compiled function means what it means in eager execution on the CPU: values, layouts, aliasing, gradients, randomness."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial

import pytest
import torch
import torch.utils.checkpoint as checkpointing
from torch import nn
from torch.nn import functional as F

from shakedown.neuron import events

from .twins import agree, close, compiled, on_device, randn

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def ones(*size: int, grad: bool = False) -> torch.Tensor:
    return torch.ones(*size, device="neuron", requires_grad=grad)


# --- gradients ----------------------------------------------------------------------------------------------------------


def test_gradients_through_parts_without_them():
    def function(x, w):
        with torch.no_grad():
            scale = (x * 2).sum()
        return (x @ w).detach() + x.sum(1, keepdim=True), (x * scale).sin()

    agree(function, randn(3, 4, grad=True), randn(4, 2, grad=True))


def test_the_gradient_of_a_gradient_is_refused_in_pytorchs_words():
    x = ones(3, grad=True)
    (grad,) = torch.autograd.grad(compiled(lambda x: x.sin().sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(grad.sum(), x)


def test_gradients_taken_inside():
    def function(x):
        (grad,) = torch.autograd.grad((x**3).sum(), x)
        return grad

    x = randn(3, grad=True)
    close(compiled(function, fullgraph=False)(on_device(x)), function(x))


def test_transforms_of_torch_func_inside():
    def function(x):
        tangent = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]
        return torch.func.grad(lambda a: (a**3).sum())(x), torch.func.vmap(torch.sum)(x[None]), tangent

    agree(function, randn(3))


def test_a_function_with_a_derivative_of_its_own():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 * x  # on purpose not the derivative

    agree(lambda x: Square.apply(x).sin(), randn(3, grad=True))


def test_hooks_on_tensors_and_modules():
    def function(x):
        y = x * 2
        y.register_hook(lambda grad: grad * 5)
        return y.sum()

    x = ones(3, grad=True)
    compiled(function, fullgraph=False)(x).backward()
    assert x.grad.tolist() == [10] * 3
    module, arrived = nn.Linear(3, 2).to("neuron"), []
    module.register_forward_hook(lambda module, given, result: result * 2)
    module.weight.register_post_accumulate_grad_hook(arrived.append)
    result = compiled(module)(ones(1, 3))
    close(result, 2 * F.linear(torch.ones(1, 3), module.weight.cpu(), module.bias.cpu()))
    result.sum().backward()
    assert arrived == [module.weight]
    assert module.weight.grad.tolist() == [[2] * 3] * 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    def function(x, w):
        return checkpointing.checkpoint(lambda a: torch.tanh(a @ w).sin(), x, use_reentrant=reentrant)

    agree(function, randn(4, 4, grad=True), randn(4, 4, grad=True))


def test_selective_checkpointing_keeps_what_the_policy_says():
    def policy(context, op, *args, **kwargs):
        keep = op is torch.ops.aten.mm.default
        return checkpointing.CheckpointPolicy.MUST_SAVE if keep else checkpointing.CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(checkpointing.create_selective_checkpoint_contexts, policy)

    def function(x, w):
        return checkpointing.checkpoint(lambda a: torch.tanh(a @ w).sin(), x, use_reentrant=False, context_fn=contexts)

    agree(function, randn(4, 4, grad=True), randn(4, 4, grad=True))


def test_an_optimizer_step_is_compiled():
    models = [nn.Linear(3, 2)]
    models.append(copy.deepcopy(models[0]).to("neuron"))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    steps = [optimizers[0].step, compiled(optimizers[1].step, fullgraph=False)]
    x = randn(4, 3)
    for _ in range(3):
        for model, optimizer, step in zip(models, optimizers, steps):
            optimizer.zero_grad()
            model(x.to(model.weight.device)).square().sum().backward()
            step()
    for ours, theirs in zip(models[1].parameters(), models[0].parameters()):
        close(ours, theirs)
    assert not events.names("fallback")


def test_backward_and_zero_grad_inside():
    module = nn.Linear(3, 2).to("neuron")

    def function(x):
        module.zero_grad()
        module(x).sum().backward()

    for _ in range(2):
        compiled(function, fullgraph=False)(ones(2, 3))
    assert module.weight.grad.tolist() == [[2] * 3] * 2


# --- memory -------------------------------------------------------------------------------------------------------------


def test_writing_into_parts_of_inputs():
    def function(x, y):
        x[1:3].copy_(y)
        x[0] = 7
        x.select(1, 0).add_(1)
        return x.sum()

    agree(function, randn(4, 3), randn(2, 3))


def test_writing_a_leaf_without_gradients():
    def function(parameter, grad):
        with torch.no_grad():
            parameter.sub_(grad)
        return (parameter * 2).sum()

    agree(function, randn(3, grad=True), randn(3))


@pytest.mark.parametrize("layout", [((4,), (1,), 0, (4,), (1,), 2), ((2, 2), (2, 1), 0, (2,), (2,), 1)])
def test_inputs_that_overlap_and_are_written(layout):
    size_a, stride_a, start_a, size_b, stride_b, start_b = layout

    def function(a, b):
        a.add_(1)
        return a * 2, b.sum()

    host = torch.arange(6.0)
    device = host.to("neuron")
    results = []
    for base, run in ((device, compiled(function)), (host, function)):
        a, b = base.as_strided(size_a, stride_a, start_a), base.as_strided(size_b, stride_b, start_b)
        results.append((*run(a, b), base))
    for ours, theirs in zip(*results):
        close(ours, theirs)


def test_one_tensor_given_twice():
    def function(a, b):
        a.mul_(2)
        return a + b

    x = torch.arange(4.0)
    mine = x.to("neuron")
    close(compiled(function)(mine, mine), function(x, x))
    close(mine, x)


def test_results_that_are_inputs_or_views_of_them():
    def function(x):
        return x, x.detach(), x.view(-1), x[1:]

    agree(function, randn(3, 2, grad=True))
    x = torch.zeros(3, 2, device="neuron")
    same, detached, flat, rest = compiled(function)(x)
    assert same is x
    flat.add_(1)
    assert rest.tolist() == [[1, 1], [1, 1]]
    assert detached.sum().item() == 6
    assert flat._version == x._version


def test_results_that_share_memory_with_each_other():
    def function(x):
        y = x * 2
        return y[0], y, y.t(), y.view(-1)

    x = randn(2, 3)
    actual, expected = compiled(function)(x.to("neuron")), function(x)
    for results in (actual, expected):
        results[3].add_(1)
        results[0].mul_(3)
    for ours, theirs in zip(actual, expected):
        close(ours, theirs)
        assert ours.stride() == theirs.stride()


def test_writing_a_result_that_the_backward_pass_needs_is_noticed():
    x = ones(3, grad=True)
    y = compiled(lambda x: x.exp())(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    z = compiled(lambda x: x.sin())(x)
    z.add_(1)  # its backward pass needs the input alone
    z.sum().backward()
    close(x.grad, torch.ones(3).cos())


def test_sizes_and_storages_that_change():
    def function(x, y):
        x.set_(y)
        z = x * 2
        z.resize_(2)
        return z

    host = (randn(3), randn(4))
    device = [v.to("neuron") for v in host]
    close(compiled(function, fullgraph=False)(*device), function(*host))
    close(device[0], host[0])


def test_no_input_costs_a_copy_for_its_layout():
    base = randn(6, 8).to("neuron")
    views = [base, base.t(), base[::2], base[:, 1:5], base[0].expand(3, 8)]
    run = compiled(lambda x: (x * 2).sum(1))
    for view in views:
        run(view)
    for view in views:
        events.clear()
        result = run(view)
        rows = [(r["kind"], r["name"].partition("::")[0]) for r in events.snapshot()]
        assert rows == [("execute", "graph")]
        close(result, (view.cpu() * 2).sum(1))


def test_a_profile_may_copy_strided_inputs_as_its_release_does():
    base = randn(6, 8).to("neuron")
    with torch.neuron.use_profile("neuron-2.33"):
        run = compiled(lambda x, y: (x * 2).sum(1) + y.sum())
        for _ in range(2):
            run(base.t(), base)
        events.clear()
        result = run(base.t(), base)
    rows = {r["name"].partition("_")[0]: r["count"] for r in events.snapshot() if r["kind"] == "execute"}
    assert rows == {"aten::clone": 1, "graph::model": 1}
    close(result, (base.cpu().t() * 2).sum(1) + base.cpu().sum())


# --- values -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float64], ids=str
)
def test_dtypes(dtype):
    agree(lambda x: (x + x, x * 2, x.sum(), x.flip(0)), (torch.arange(6) % 3).to(dtype))


def test_whole_numbers_beyond_32_bits_and_eight_bit_floats():
    agree(lambda x: x * 3, torch.tensor([2**40 + 1]))
    agree(lambda x: x.to(torch.float8_e4m3fn).to(torch.float32) * 2, randn(4))


def test_complex_numbers():
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    agree(lambda x: ((x * 2j).abs(), x.real * 2, torch.view_as_real(x) + 1), x)


def test_inputs_that_are_conjugated_or_negated_lazily():
    host = torch.randn(3, dtype=torch.complex64)
    device = host.to("neuron")
    run = compiled(lambda x: x * 2)
    for view in (lambda t: t.conj(), lambda t: t.conj().imag):
        close(run(view(device)), view(host) * 2)

    def function(x):
        x.add_(1 + 2j)

    ours, theirs = device.conj(), host.conj()
    compiled(function)(ours)
    function(theirs)
    close(ours, theirs)
    close(device, host)


def test_tensors_without_elements():
    agree(lambda x, w: (x @ w, x.sum(), torch.cat([x, x], 1)), randn(0, 3, grad=True), randn(3, 2, grad=True))


def test_graphs_without_operators_and_without_results():
    x = ones(2)
    assert compiled(lambda x: x)(x) is x
    assert compiled(lambda x: 3)(x) == 3
    assert compiled(lambda: None)() is None

    def function(x):
        x.add_(1)

    compiled(function)(x)
    assert x.tolist() == [2, 2]


def test_structures_in_and_out():
    @dataclasses.dataclass
    class Batch:
        tokens: torch.Tensor
        weight: float = 2.0

    def function(batch, table, nothing):
        return {"scaled": batch.tokens * batch.weight, "rest": (table["k"] + 1, nothing), "batch": Batch(batch.tokens)}

    result = compiled(function)(Batch(ones(2)), {"k": ones(1)}, None)
    assert result["scaled"].tolist() == [2, 2]
    assert result["rest"][0].tolist() == [2]
    assert result["rest"][1] is None
    assert result["batch"].tokens.tolist() == [1, 1]


def test_a_float_argument_that_changes_becomes_an_input():
    run = compiled(lambda x, factor: x * factor + factor**2)
    x = ones(2)
    compiles = []
    for step in range(1, 13):
        assert run(x, step / 8).tolist() == [step / 8 + (step / 8) ** 2] * 2
        compiles.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert len(set(compiles[2:])) == 1


def test_constants_attributes_and_buffers():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant, self.factor = torch.arange(3.0, device="neuron"), 2.5
            self.register_buffer("shift", torch.ones(3, device="neuron"))

        def forward(self, x):
            return x * self.factor + self.constant + self.shift

    module = Scale()
    run = compiled(module)
    assert run(ones(3)).tolist() == [3.5, 4.5, 5.5]
    module.shift.add_(1)
    module.factor = 1.0
    assert run(ones(3)).tolist() == [3, 4, 5]


def test_wrapper_subclasses_and_subclasses_of_parameters():
    from torch.testing._internal.two_tensor import TwoTensor

    a, b = randn(3), randn(3)
    result = compiled(lambda t: t.sin() + 1)(TwoTensor(a.to("neuron"), b.to("neuron")))
    assert type(result) is TwoTensor
    close(result.a, a.sin() + 1)
    close(result.b, b.sin() + 1)

    class Weight(nn.Parameter):
        pass

    weight = Weight(ones(3))
    compiled(lambda w: (w * 2).sum())(weight).backward()
    assert weight.grad.tolist() == [2, 2, 2]


def test_modules_are_copied_named_and_switched():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)).to("neuron")
    run = compiled(module)
    assert list(run.state_dict()) == [f"_orig_mod.{name}" for name in module.state_dict()]
    x = randn(4, 3).to("neuron")
    run.train()
    assert not torch.equal(run(x), run(x))
    run.eval()
    expected = run(x)
    assert torch.equal(run(x), expected)
    assert torch.equal(copy.deepcopy(run)(x), expected)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    run.train()(x)
    run.eval()(x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_inference_tensors():
    run = compiled(nn.Linear(3, 2).to("neuron"))
    with torch.inference_mode():
        assert run(ones(2, 3)).is_inference()
    result = run(ones(2, 3))
    assert not result.is_inference()
    result.sum().backward()
