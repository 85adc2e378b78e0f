"""What ``torch.neuron.count_programs`` counts, against counts made by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shakedown.neuron import costs, dispatch, events
from shakedown.neuron.plan import Plan

D = "neuron"


def counted(function):
    """Rows of one call of `function`, which has run before."""
    function()
    with torch.neuron.count_programs() as rows:
        function()
    return rows


def only(function):
    (row,) = counted(function)
    return row


def matrix(rows):
    return sum(count * row["calls"] for row in rows for count in row["matrix_flops"].values())


def test_a_product_is_two_operations_a_multiply_add():
    a, b = torch.randn(24, 40, device=D), torch.randn(40, 16, device=D)
    row = only(lambda: a @ b)
    assert row["name"] == "aten::mm"
    assert row["calls"] == 1
    assert row["flops"] == 2 * 24 * 40 * 16  # XLA counts the same
    assert row["matrix_flops"] == {"float32": 2 * 24 * 40 * 16}
    assert row["least_bytes"] == row["bytes_accessed"] == 4 * (24 * 40 + 40 * 16 + 24 * 16)
    assert (row["argument_bytes"], row["output_bytes"]) == (4 * (24 * 40 + 40 * 16), 4 * 24 * 16)


def test_half_precision_is_counted_as_such_although_this_machine_widens_it():
    a, b = torch.randn(24, 40, device=D).bfloat16(), torch.randn(40, 16, device=D).bfloat16()
    row = only(lambda: a @ b)
    assert row["matrix_flops"] == {"bfloat16": 2 * 24 * 40 * 16}
    assert row["least_bytes"] == 2 * (24 * 40 + 40 * 16 + 24 * 16)
    assert row["bytes_accessed"] > row["least_bytes"]


def test_a_linear_layer_its_bias_and_its_gradients():
    layer, x = nn.Linear(40, 16).to(D), torch.randn(24, 40, device=D)
    row = only(lambda: layer(x))
    assert row["matrix_flops"] == {"float32": 2 * 24 * 40 * 16}
    assert row["flops"] >= 2 * 24 * 40 * 16 + 24 * 16  # and the bias
    assert row["least_bytes"] == 4 * (24 * 40 + 40 * 16 + 16 + 24 * 16)

    def step():
        layer.zero_grad()
        layer(x).sum().backward()

    assert matrix(counted(step)) == 2 * 2 * 24 * 40 * 16  # x needs no gradient: the product, and the weight's


def test_attention():
    q = torch.randn(2, 3, 12, 8, device=D)
    rows = counted(lambda: F.scaled_dot_product_attention(q, q, q))
    assert matrix(rows) == 2 * 2 * (2 * 3 * 12 * 12 * 8)  # scores, and what they weigh
    assert sum(row["transcendentals"] for row in rows) >= 2 * 3 * 12 * 12  # an exponential a score


def test_elementwise_operators_have_no_products():
    x = torch.randn(1000, device=D)
    row = only(lambda: torch.exp(x))
    assert row["matrix_flops"] == {}
    assert row["transcendentals"] == 1000
    assert row["least_bytes"] == 8000
    assert only(lambda: x + x)["least_bytes"] == 8000  # x is read once


def test_a_convolution_multiplies_no_padding():
    layer, x = nn.Conv2d(3, 5, 3, padding=1).to(D), torch.randn(2, 3, 8, 8, device=D)
    met = (8 * 3 - 2) ** 2  # in each direction two of 24 pairs of positions fall on padding
    assert matrix(counted(lambda: layer(x))) == 2 * 2 * 5 * 3 * met


def test_a_loop_of_known_length_is_counted_in_full_and_named():
    layer, x = nn.RNN(4, 6).to(D), torch.randn(7, 2, 4, device=D)
    rows = counted(lambda: layer(x))
    assert matrix(rows) == 2 * 7 * 2 * (4 * 6 + 6 * 6)
    assert any("loop (XLA counts one turn)" in row["unseen"] for row in rows)


def test_what_has_no_figure_is_named():
    x = torch.randn(64, device=D)
    assert only(lambda: torch.sort(x))["unseen"] == {"sort": 1}
    square = torch.eye(6, device=D)
    assert any(row["unseen"] for row in counted(lambda: torch.linalg.cholesky(square)))


def test_only_the_rows_that_are_looked_up_must_be_read():
    table, ids = nn.Embedding(1000, 8).to(D), torch.arange(5, device=D)
    row = only(lambda: table(ids))
    assert row["least_bytes"] < 1000
    assert row["argument_bytes"] > 32_000


def test_only_the_part_that_is_replaced_must_be_written():
    table = torch.zeros(1000, 8, device=D)
    rows, value = torch.arange(5, device=D), torch.ones(5, 8, device=D)

    def a_view():
        table[5:10].copy_(value)

    def by_index():
        table.index_put_((rows,), value)

    assert only(a_view)["least_bytes"] == 2 * 160
    assert only(by_index)["least_bytes"] < 1000
    assert only(lambda: table[5:10] * 2)["least_bytes"] < 2 * 160 + 16


def test_copies_are_read_and_written():
    x = torch.randn(30, 20, device=D)
    assert only(lambda: x.clone())["least_bytes"] == 4800
    assert only(lambda: x.t().contiguous())["least_bytes"] == 4800


def test_compiled_graphs_and_phases():
    layer = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(D)
    compiled, x = torch.compile(layer, backend="neuron"), torch.randn(6, 8, device=D)

    def step():
        layer.zero_grad()
        with events.phase("forward"):
            out = compiled(x).sum()
        with events.phase("backward"):
            out.backward()

    step()
    rows = counted(step)  # a graph knows the program of its last call by heart
    products = 2 * 6 * (8 * 16 + 16 * 4)
    by_phase = {phase: matrix([row for row in rows if row["phase"] == phase]) for phase in ("forward", "backward")}
    assert by_phase == {"forward": products, "backward": products + 2 * 6 * 16 * 4}  # x needs no gradient
    assert {row["name"].partition("::")[0] for row in rows} == {"graph", "aten"}


def test_nothing_is_compiled_for_it_and_nothing_is_left_behind():
    x = torch.randn(6, 8, device=D)

    def step():
        return (x @ x.t()).relu().sum()

    step()
    events.clear()
    with torch.neuron.count_programs() as rows:
        step()
    assert len(rows) == 3
    assert events.total("compile") == 0
    with pytest.raises(ZeroDivisionError), torch.neuron.count_programs():
        raise ZeroDivisionError
    plans = [plan for op in dispatch.known_operators() for plan in op.plans.values() if type(plan) is Plan]
    assert plans
    assert not any(isinstance(plan.run, costs._Counted) for plan in plans)


def test_calls_of_one_program_are_one_row():
    x = torch.randn(5, device=D)

    def step():
        for _ in range(3):
            torch.exp(x)

    assert only(step)["calls"] == 3
