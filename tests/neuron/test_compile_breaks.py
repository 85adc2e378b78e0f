"""Where compiled code ends: graphs split around operators without a program, graph breaks, recompilations, limits."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from shakedown.neuron import events
from shakedown.neuron.lowering import registry

CALLS: list[float] = []  # MiB alive on the device when the operator below is called


@torch.library.custom_op("breaks::twice", mutates_args=(), device_types="cpu")
def twice(x: Tensor) -> Tensor:
    """Without a program: the device knows nothing of it, so it runs on the CPU."""
    CALLS.append(torch.neuron.live_bytes() / 2**20)
    if x.numel() and x.flatten()[0] == 666:
        raise ValueError("not that number")
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


twice.register_autograd(lambda ctx, gradient: twice(gradient))


@torch.library.custom_op("breaks::bump_", mutates_args=("x",), device_types="cpu")
def bump_(x: Tensor) -> None:
    x.add_(1)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.neuron.reset_compile_report()
    torch.neuron.reset_dynamo_metrics()
    events.clear()
    yield
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, backend="neuron", dynamic=False, **options)


def split(function, *arguments, **options):
    """The result of the compiled function, with the texts of the warnings about splitting."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = compiled(function, **options)(*arguments)
    return result, [str(w.message) for w in said if "graph model_default" in str(w.message)]


def line_of(text: str) -> int:
    """The line of this file that ends with the remark `text`."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def programs() -> list[str]:
    """The compiled graphs that ran, in no order, without the model's number."""
    return sorted(n.split("_", 3)[-1] for n in events.names("execute") if n.startswith("graph::"))


# --- splitting ----------------------------------------------------------------------------------------------------------


def step(x, w):
    hidden = (x.clone() @ w).relu()
    left = twice(hidden) + 1  # left
    right = twice(hidden.sum(0))  # right
    x.add_(1)
    return left.sum() + right.sum(), left, x.t()


def test_a_graph_is_split_around_an_operator_forward_and_backward():
    host = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    x, w = host[0].to("neuron"), host[1].detach().to("neuron").requires_grad_()
    expected = step(*host)
    expected[0].backward()
    result, said = split(step, x, w)
    result[0].backward()
    for ours, theirs in zip((*result, x, w.grad), (*expected, host[0], host[1].grad), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())
        assert (ours.stride(), ours.dtype) == (theirs.stride(), theirs.dtype)
    assert result[2].untyped_storage() is x.untyped_storage()
    # Both calls can run after one program and before the other: independent operators share the cut.
    assert programs() == ["backward.0", "backward.1", "forward.0", "forward.1"]
    fallbacks = [r for r in events.snapshot() if r["kind"] == "fallback"]
    assert [(r["name"], r["detail"], r["count"]) for r in fallbacks] == [("breaks::twice", "no lowering", 4)]
    (text,) = said  # the backward pass warns when it runs
    assert "splits graph" in text
    assert "into 2 programs around breaks.twice.default (no lowering) called at" in text
    report = torch.neuron.compile_report()
    assert report["breaks"] == []  # a failing lowering is no failing capture
    forward, backward = report["splits"]
    places = [one["place"].partition(" (")[0] for one in forward["outside"]]
    assert places == [f"{__file__}:{line_of(name)}" for name in ("left", "right")]
    assert [one["operator"] for one in backward["outside"]] == ["breaks.twice.default"] * 2
    events.clear()
    compiled(step)(x, w)
    assert events.total("split") == 0  # said once


def test_operators_that_need_each_other_cut_once_each_and_one_alone_needs_no_program():
    x = torch.randn(5)
    result, (text,) = split(lambda x: twice(twice(x + 1) * 3) - 1, x.to("neuron"))
    torch.testing.assert_close(result.cpu(), (x + 1) * 12 - 1)
    assert "into 3 programs" in text
    torch._dynamo.reset()
    events.clear()
    result, (text,) = split(lambda x: twice(x), x.to("neuron"))
    torch.testing.assert_close(result.cpu(), x * 2)
    assert programs() == []
    assert "operator by operator" in text


def test_a_split_graph_draws_what_eager_execution_draws():
    def function(x):
        first = nn.functional.dropout(x, 0.5)
        second = nn.functional.dropout(twice(first), 0.5)
        return first, second, torch.rand_like(x)

    x = torch.ones(64, device="neuron")
    torch.manual_seed(5)
    expected = function(x)
    after = torch.rand(1, device="neuron")
    torch.manual_seed(5)
    result, said = split(function, x)
    assert said
    for ours, theirs in zip(result, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(torch.rand(1, device="neuron"), after)


def test_an_operator_whose_lowering_fails_when_it_is_traced_runs_outside(monkeypatch):
    op = torch.ops.aten.atan2.default
    torch.atan2(torch.ones(1, device="neuron"), torch.ones(1, device="neuron"))  # eager keeps the lowering that it has

    def broken(*args, **kwargs):
        raise TypeError("no such thing")

    monkeypatch.setitem(registry._lowerings, op, dataclasses.replace(registry.lowering_of(op), fn=broken))

    def function(x, y):
        z = torch.atan2(nn.functional.dropout(x, 0.5), y)
        y.mul_(2)
        return z + 1

    x, y = torch.rand(32), torch.rand(32).to("neuron")
    expected_y = y.clone()
    torch.manual_seed(2)
    expected = function(x.to("neuron"), expected_y), torch.rand(1, device="neuron")
    events.clear()
    torch.manual_seed(2)
    result, (text,) = split(function, x.to("neuron"), y)
    torch.testing.assert_close(result, expected[0])
    torch.testing.assert_close(y, expected_y)
    assert torch.equal(torch.rand(1, device="neuron"), expected[1])  # no random key was lost
    assert "into 2 programs around aten.atan2.default (its lowering fails: TypeError: no such thing)" in text
    assert programs() == ["inference.0", "inference.1"]
    assert events.total("fallback") == 0  # the eager kernel has a program

    torch._dynamo.reset()
    monkeypatch.setenv("TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS", "1")
    with pytest.raises(RuntimeError, match="LOWERING FAILED: aten::atan2: TypeError: no such thing") as caught:
        compiled(function)(x.to("neuron"), y)
    assert "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS=1" in str(caught.value)
    assert "arguments: self: float32[32] on neuron:0, other: float32[32] on neuron:0" in str(caught.value)
    assert f"called at {__file__}:" in str(caught.value)


def test_with_one_program_it_is_an_error_that_names_operator_and_line():
    def function(x):
        return twice(x + 1)  # refused

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="one_program asks for that") as caught:
        compiled(function, options={"one_program": True})(torch.ones(2, device="neuron"))
    assert f"breaks.twice.default (no lowering) called at {__file__}:{line_of('refused')}" in str(caught.value)


def test_fullgraph_splits_natively_and_is_an_error_under_a_profile():
    def function(x):
        return twice(x + 1) * 2

    x = torch.ones(2, device="neuron")
    result, said = split(function, x, fullgraph=True)
    assert said
    assert result.tolist() == [8, 8]
    with torch.neuron.use_profile("neuron-2.33"):
        result, said = split(function, x)
        assert said
        assert result.tolist() == [8, 8]
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="fullgraph=True is an error where"):
            compiled(function, fullgraph=True)(x)


def test_nothing_is_written_when_a_later_part_raises():
    def function(x, index):
        y = twice(x)
        x.add_(1)
        return y[index]

    run = compiled(function)
    x, good = torch.tensor([1.0, 2.0], device="neuron"), torch.tensor([1], device="neuron")
    with pytest.warns(UserWarning, match="splits graph"):
        assert run(x, good).tolist() == [4]
    with pytest.raises(IndexError, match="out of bounds"):
        run(x, good + 7)
    assert x.tolist() == [2, 3]
    bad = torch.tensor([666.0, 1.0], device="neuron")
    with pytest.raises(ValueError, match="not that number"):
        run(bad, good)
    assert bad.tolist() == [666, 1]


def test_values_of_an_input_before_it_is_written_stay_what_they_were():
    def function(x):
        old = x.reshape(-1)
        kept = twice(old)
        flat = (x + 0).t()
        x.mul_(3)
        return old, kept, flat, x[0]

    host, device = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3).to("neuron")
    result, said = split(function, device)
    assert said
    for ours, theirs in zip((*result, device), (*function(host), host), strict=True):
        assert torch.equal(ours.cpu(), theirs)
        assert ours.stride() == theirs.stride()


def test_what_nobody_needs_any_more_is_freed_on_the_way():
    def function(x):
        big = x.expand(256, 1024) * 2.0  # 1 MiB
        small = twice(big).sum(0)
        return twice(small)

    x = torch.ones(1, 1024, device="neuron")
    before = torch.neuron.live_bytes() / 2**20
    del CALLS[:]
    result, said = split(function, x)
    assert said
    assert result[0].item() == 2048
    first, second = CALLS
    assert first - before > 0.9
    assert second - before < 0.5


def test_more_pieces_than_allowed_run_operator_by_operator(monkeypatch):
    monkeypatch.setenv("SHAKEDOWN_MAX_PIECES", "2")
    x = torch.ones(3, device="neuron")
    result, (text,) = split(lambda x: twice(twice(x + 1) * 3) - 1, x)
    assert result.tolist() == [23] * 3
    assert "operator by operator" in text
    assert "3 programs, more than SHAKEDOWN_MAX_PIECES=2" in text
    (one,) = torch.neuron.compile_report()["splits"]
    assert one["programs"] == 0
    assert [o["operator"] for o in one["outside"]] == ["breaks.twice.default"] * 2


def test_cpu_tensors_given_to_a_split_graph_are_moved_and_written():
    def function(x, y):
        z = twice(x + y)
        x.add_(1)
        return z * 2

    x, y = torch.ones(3), torch.ones(3)
    result, said = split(function, x, y)
    assert said
    assert (result.device.type, result.tolist()) == ("neuron", [8, 8, 8])
    assert x.tolist() == [2, 2, 2]


def test_an_operator_that_writes_its_argument_is_run_on_the_cpu_and_the_write_arrives():
    def function(x):
        y = x * 2
        bump_(y)
        bump_(x)
        return y + x

    host = torch.ones(3)
    device = host.to("neuron")
    result, said = split(function, device)
    assert torch.equal(result.cpu(), function(host))
    assert torch.equal(device.cpu(), host)
    assert "bump_" in said[0]
    assert events.names("fallback") == ["breaks::bump_"]


def test_a_number_that_is_read_under_fullgraph_is_passed_on_and_sizes_of_data_are_refused():
    def reads(x):
        scale = x.sum().item()
        return x * scale + 1

    x = torch.tensor([1.0, 2.0, -1.0], device="neuron")
    result, _ = split(reads, x, fullgraph=True)
    assert result.tolist() == [3, 5, -1]

    def selects(x):
        return x[x > 0] * 2  # selects

    torch._dynamo.reset()
    assert compiled(selects)(x).tolist() == [2, 4]  # Dynamo ends the graph there
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="depends on data") as caught:
        compiled(selects, fullgraph=True)(x)
    assert f"{__file__}:{line_of('selects')}" in str(caught.value)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), pytest.raises(Exception, match="Hint"):
        compiled(lambda x: torch.nonzero(x) + 1)(x)


# --- breaks, recompilations, limits -------------------------------------------------------------------------------------


def prints(x):
    y = x + 1
    print("a step")
    return y * 2


def test_breaks_and_what_ran_between_two_graphs():
    def function(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    @torch.compiler.disable
    def outside(y):
        return y.cos() + torch.tril(y)

    def calls(x):
        return (outside(x * 2) + 1).sum()

    x = torch.ones(2, 2, device="neuron")
    compiled(function)(x)
    run = compiled(calls)
    with torch.neuron.operators_between_graphs() as rows:
        run(x)
        run(x)
    report = torch.neuron.compile_report()
    begins = inspect.getsourcelines(function)[1]
    first, second = report["breaks"]
    assert (first["line"], first["function"], first["skipped"], first["count"]) == (begins + 2, "function", False, 1)
    assert "graph_break()" in first["kind"]
    assert second["function"] == "calls"
    assert [g["function"] for g in report["graphs"]] == ["function", "function", "calls", "calls"]
    assert [g["resumed"] for g in report["graphs"]] == [False, True, False, True]
    (between,) = [row for row in rows if row["operators"]]
    assert between["operators"] == {"aten::cos": 2, "aten::tril": 2, "aten::add.Tensor": 2}
    names = [f"{graph['graph']}_inference" for graph in report["graphs"][2:]]
    assert [between["after"], between["before"]] == names
    assert events.total("break") == 2


def test_past_the_limit_there_is_one_warning_and_eager_calls_are_counted():
    def body(x):
        return (x * 2 + 1).sum(-1)

    run = compiled(body)
    with warnings.catch_warnings(record=True) as said, torch._dynamo.config.patch(recompile_limit=2):
        warnings.simplefilter("always")
        for length in (2, 3, 4, 5, 4, 2):
            result = run(torch.ones(length, device="neuron"))
            assert result.item() == 3 * length
    (one,) = [w for w in said if "compiles body" in str(w.message)]
    text, begins = str(one.message), inspect.getsourcelines(body)[1]
    assert (one.filename, one.lineno) == (__file__, begins)
    assert f"({__file__}:{begins})" in text
    assert "recompile_limit = 2" in text
    assert "tensor 'x' size mismatch at index 0. expected 3, actual 4" in text
    assert "shakedown.neuron.bucketed" in text
    report = torch.neuron.compile_report()
    (limit,) = report["limits"]
    assert (limit["function"], limit["line"], limit["limit"], limit["allowed"]) == (
        "body",
        begins,
        "recompile_limit",
        2,
    )
    assert limit["ran_eager"] == 3
    assert [(again["guard"], again["count"]) for again in report["recompiles"]] == [
        ("tensor 'x' size mismatch at index 0. expected 2, actual 3", 1)
    ]
    assert {row["detail"]: row["count"] for row in events.snapshot() if row["kind"] == "limit"} == {
        "recompile_limit=2": 1,
        "ran eager": 2,
    }


def test_a_function_that_cannot_be_compiled_is_in_the_report():
    def loops(x):
        for _ in range(2):
            x = x + 1
            print("a step")
        return x

    run = compiled(loops)
    for _ in range(3):
        run(torch.ones(2, device="neuron"))
    report = torch.neuron.compile_report()
    (skip,) = report["skipped"]
    assert (skip["function"], skip["ran_eager"], skip["failure"]) == ("loops", 3, "Unsupported")
    assert report["breaks"][0]["skipped"]
    assert report["graphs"] == []


def test_other_backends_are_not_in_the_report():
    torch.compile(prints, backend="aot_eager")(torch.ones(2))
    compiled(lambda x: x + 1)(torch.ones(2, device="neuron"))
    report = torch.neuron.compile_report()
    assert report["breaks"] == []
    assert len(report["graphs"]) == 1
    assert report["unseen"] == []
    torch.neuron.reset_compile_report()
    assert torch.neuron.compile_report()["graphs"] == []
