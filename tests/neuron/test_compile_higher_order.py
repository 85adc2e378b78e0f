"""Operators that take graphs: their control flow stays in the program, and they mean what they mean on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from shakedown.neuron import events
from shakedown.neuron.errors import UnsupportedCompileOption

from .twins import agree, close, compiled, on_device, randn

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


# --- control flow -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1], ids=["true", "false"])
def test_cond(sign):
    def function(x, w):
        return torch.cond(x.sum() > 0, lambda a, b: (a @ b).sin(), lambda a, b: (a * 2) @ b, (x, w))

    agree(function, (sign * torch.ones(3, 4)).requires_grad_(), randn(4, 2, grad=True))


def test_both_ways_of_cond_are_one_program():
    run = compiled(lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)))
    x = torch.ones(2, device="neuron")
    assert run(x).tolist() == [2, 2]
    events.clear()
    assert run(-x).tolist() == [-2, -2]
    assert [r["kind"] for r in events.snapshot() if r["kind"] == "compile" and "model_default" in r["name"]] == []
    assert [n for n in events.names("execute") if n.startswith("graph::")]


def test_while_loop_runs_as_often_as_the_data_says():
    def function(x, limit):
        return while_loop(
            lambda i, a: (a.sum() < limit) & (i < 50),
            lambda i, a: (i + 1, a * 2),
            (torch.zeros((), dtype=torch.int64, device=x.device), x),
        )

    agree(function, torch.ones(3), torch.tensor(100.0))
    run = compiled(function)
    device = torch.ones(3, device="neuron")
    for limit in (1.0, 10.0, 200.0):
        bound = torch.tensor(limit)
        for ours, theirs in zip(run(device, bound.to("neuron")), function(torch.ones(3), bound)):
            close(ours, theirs)


def test_a_loop_that_carries_a_number_runs_outside_the_program():
    def function(x):
        return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 2), (0, x))

    with pytest.warns(UserWarning, match="while_loop carries a Python number; make it a 0-d tensor"):
        count, result = compiled(function)(torch.ones(2, device="neuron"))
    assert count == 5
    assert result.tolist() == [32, 32]


def test_the_gradient_of_while_loop_is_refused():
    def function(x):
        return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.sin()), (torch.tensor(0, device=x.device), x))

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(function)(randn(2).to("neuron").requires_grad_())
    assert isinstance(caught.value.inner_exception, UnsupportedCompileOption)
    assert "while_loop_stack_output" in str(caught.value)


def test_scan_and_its_gradients():
    def function(start, xs, w):
        return scan(lambda carry, x: (torch.tanh(carry @ w + x), carry * x), start, xs, dim=0)

    agree(function, randn(4, grad=True), randn(5, 4, grad=True), randn(4, 4, grad=True))
    agree(lambda c, xs: scan(lambda c, x: (c * x, c + x), c, xs, dim=1, reverse=True), randn(4), randn(4, 5))


def test_cond_within_scan():
    def function(start, xs):
        def step(carry, x):
            return torch.cond(carry.sum() > 0, lambda a: a - x, lambda a: a + x, (carry,)), carry * 1

        return scan(step, start, xs, dim=0)

    agree(function, randn(4), randn(5, 4))


def test_associative_scan_and_map():
    agree(lambda x: associative_scan(torch.mul, x, dim=0, combine_mode="generic"), randn(6, 3, grad=True))
    agree(lambda xs, w: map_over(lambda x, w: x.sin() @ w, xs, w), randn(3, 2, 4, grad=True), randn(4, 2, grad=True))


def test_data_that_a_branch_refuses_raises_pytorchs_error():
    def function(table, index):
        return torch.cond(index.sum() > 3, lambda t, i: t[i] + 1, lambda t, i: t[i] * 2, (table, index))

    run, table = compiled(function), torch.arange(4.0, device="neuron")
    assert run(table, torch.tensor([1, 2], device="neuron")).tolist() == [2, 4]
    for index in ([9, 0], [-9, 0]):  # one for each branch
        with pytest.raises(IndexError, match="out of range|out of bounds"):
            run(table, torch.tensor(index, device="neuron"))
    assert run(table, torch.tensor([3, 3], device="neuron")).tolist() == [4, 4]


def test_random_numbers_in_branches_and_loops_follow_the_seed():
    def function(x, xs):
        kept = torch.cond(x.sum() > 0, lambda a: F.dropout(a, 0.5), lambda a: a * 1, (x,))
        total, _ = scan(lambda c, x: (c + F.dropout(x, 0.5), c * 1), torch.zeros_like(x), xs, dim=0)
        return kept, total

    run, x, xs = compiled(function), torch.ones(100, device="neuron"), torch.ones(4, 100, device="neuron")
    torch.manual_seed(0)
    kept, total = run(x, xs)
    assert set(kept.tolist()) == {0.0, 2.0}
    assert set(total.tolist()) == {0.0, 2.0, 4.0, 6.0, 8.0}  # every round drew a mask of its own
    assert not torch.equal(run(x, xs)[0], kept)
    torch.manual_seed(0)
    again = run(x, xs)
    assert torch.equal(again[0], kept)
    assert torch.equal(again[1], total)


# --- graphs that are inlined --------------------------------------------------------------------------------------------


def test_nested_compile_regions_and_the_like():
    region = torch.compiler.nested_compile_region(lambda x, w: (x @ w).sin())
    agree(lambda x, w: region(region(x, w), w), randn(4, 4, grad=True), randn(4, 4, grad=True))
    from torch._higher_order_ops.out_dtype import out_dtype
    from torch._higher_order_ops.strict_mode import strict_mode

    agree(lambda x: strict_mode(lambda a: a.sin(), (x,)), randn(3))
    agree(
        lambda a: out_dtype(torch.ops.aten.mm.default, torch.int32, a, a), torch.randint(-5, 5, (3, 3)).to(torch.int8)
    )


# --- attention ----------------------------------------------------------------------------------------------------------


def test_flex_attention_is_one_program():
    mask = {d: create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device=d) for d in ("cpu", "neuron")}

    def function(q, k, v):
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: s + (i - j) * 0.1, mask[q.device.type], enable_gqa=True, return_lse=True
        )

    inputs = [randn(1, 4, 16, 8), randn(1, 2, 16, 8), randn(1, 2, 16, 8)]
    agree(function, *inputs, whole=False)  # while it is compiled, PyTorch makes the mask's constant on the device
    run, device = compiled(function), [t.to("neuron") for t in inputs]
    run(*device)
    events.clear()
    run(*device)
    assert [name.partition("::")[0] for name in events.names("execute")] == ["graph"]
    assert not events.names("fallback")


def test_gradients_of_flex_attention_reach_what_the_score_function_reads():
    """PyTorch has no gradient for it on the CPU, so the formula is written out."""
    length, width = 16, 8
    host = [randn(1, 2, length, width, grad=True) for _ in range(3)] + [randn(2, length, grad=True)]
    device = [on_device(t) for t in host]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device="neuron", BLOCK_SIZE=16)

    def function(q, k, v, bias):
        return flex_attention(q, k, v, lambda s, b, h, i, j: s * 1.5 + bias[h, j] + (i - j) * 0.1, mask)

    def formula(q, k, v, bias):
        place = torch.arange(length)
        scores = q @ k.transpose(-1, -2) / width**0.5 * 1.5
        scores = scores + bias[None, :, None, :] + (place[:, None] - place) * 0.1
        return torch.softmax(scores.masked_fill(place[:, None] < place, -float("inf")), -1) @ v

    actual, expected = compiled(function)(*device), formula(*host)
    close(actual, expected)
    actual.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(device, host):
        close(ours.grad, theirs.grad, 1e-4)
    kinds = {name.partition("::")[0] for name in events.names("execute")}
    assert "graph" in kinds
    assert not events.names("fallback")


# --- operators of users, and effects ------------------------------------------------------------------------------------


@torch.library.custom_op("shakedown_tests::twice_into", mutates_args=("out",), device_types="cpu")
def _twice_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


@torch.library.custom_op("shakedown_tests::twice", mutates_args=(), device_types="cpu")
def _twice(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2)


_twice.register_fake(torch.empty_like)
_twice.register_autograd(lambda ctx, grad: grad * 2)


def test_an_operator_with_a_cpu_kernel_falls_back_visibly():
    with pytest.warns(UserWarning, match="shakedown_tests.twice"):
        agree(lambda x: _twice(x * 2) + 1, randn(3, grad=True), whole=False)
    assert events.names("fallback") == ["shakedown_tests::twice"]


def test_an_operator_that_writes_its_argument():
    def function(x, out):
        _twice_into(x + 1, out)
        return out + x

    with pytest.warns(UserWarning, match="auto_functionalized"):
        agree(function, randn(3), randn(3), whole=False)
    assert events.names("fallback") == ["shakedown_tests::twice_into"]


def test_printing_inside_a_graph(capsys):
    def function(x):
        torch._higher_order_ops.print("the value is {v}", v=x)
        return x + 1

    with pytest.warns(UserWarning, match="print: an effect on the host"):
        assert compiled(function)(torch.ones(2, device="neuron")).tolist() == [2, 2]
    assert "the value is tensor([1., 1.]" in capsys.readouterr().out


def test_a_demand_on_values():
    def function(x):
        torch._assert_async((x > 0).all(), "must be positive")
        return x + 1

    run = compiled(function, options={"one_program": True})
    assert run(torch.ones(2, device="neuron")).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="must be positive"):
        run(-torch.ones(2, device="neuron"))


def test_what_has_no_lowering_says_its_name():
    class Constant(nn.Module):
        def forward(self, x):
            return torch.ops.higher_order.inline_asm_elementwise(x, asm_str="", constraints="", dtype=torch.float32)

    with pytest.raises(Exception, match="inline_asm_elementwise"):
        compiled(Constant(), options={"one_program": True})(torch.ones(2, device="neuron"))
