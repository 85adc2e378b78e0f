"""Products of groups of rows (mixture-of-experts layers): PyTorch's operator, and the one that Transformers defines."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from shakedown.neuron import events

from .agreement import agree, example

pytestmark = pytest.mark.rotating(2, least=3)

ENDS = torch.tensor([4, 4, 12], dtype=torch.int32)  # three groups of 12 rows, one of them empty


def _operands(
    form: str, dtype: torch.dtype, columns: int = 8
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    if form == "rows":
        return example(dtype, 12, 16), example(dtype, 3, 16, columns, seed=1), ENDS
    if form == "rows, transposed":
        return example(dtype, 12, 16), example(dtype, 3, columns, 16, seed=1).transpose(1, 2), ENDS
    if form == "inner":
        return example(dtype, 12, 16).t(), example(dtype, 12, columns, seed=1), ENDS
    if form == "columns":
        return example(dtype, 3, 5, 8), example(dtype, 8, 16, seed=1), torch.tensor([4, 4, 16], dtype=torch.int32)
    return example(dtype, 3, 5, 16), example(dtype, 3, 16, columns, seed=1), None


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("rows", torch.float32),
        ("rows", torch.bfloat16),
        ("rows, transposed", torch.float16),
        ("inner", torch.float32),
        ("columns", torch.float32),
        ("batch", torch.float16),
    ],
    ids=str,
)
def test_grouped_products_and_their_gradients(form, dtype):
    a, b, ends = _operands(form, dtype)
    moved = [] if ends is None else [ends]
    agree(lambda x, y, *o: F.grouped_mm(x, y, offs=o[0] if o else None), a, b, *moved, gradients=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_the_result_are_padded_as_on_the_cpu(dtype):
    a, b, ends = _operands("rows, transposed", dtype, columns=6)
    expected = torch._grouped_mm(a, b, ends)
    actual = torch._grouped_mm(a.to("neuron"), b.to("neuron"), ends.to("neuron"))
    assert actual.stride() == expected.stride() == (8, 1)
    torch.testing.assert_close(actual.cpu(), expected)


def test_what_the_cpu_refuses_is_refused():
    a, b, ends = _operands("rows", torch.float32, columns=6)
    for device in ("cpu", "neuron"):
        with pytest.raises(RuntimeError, match="strides should be multiple of 16 bytes"):
            torch._grouped_mm(a.to(device), b.to(device), ends.to(device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_product_that_transformers_defines_stays_in_the_graph(dtype):
    pytest.importorskip("transformers.integrations.moe")
    torch._dynamo.reset()
    a, b, _ = _operands("rows", dtype)
    ends = torch.tensor([4, 4, 9], dtype=torch.int32)  # rows after the last group are left at zero

    def product(x, y, offs):
        return torch.ops.transformers.grouped_mm_fallback(x, y, offs)

    run = torch.compile(product, backend="neuron", dynamic=False, fullgraph=True)
    host = [t.requires_grad_() for t in (a, b)]
    device = [t.detach().to("neuron").requires_grad_() for t in (a, b)]
    expected = product(host[0], host[1], ends)
    events.clear()
    actual = run(device[0], device[1], ends.to("neuron"))
    seed = example(dtype, *expected.shape, seed=2)
    expected.backward(seed)
    actual.backward(seed.to("neuron"))
    ran = [n for n in events.names("execute") if not n.startswith("graph::")]
    assert (ran, events.names("fallback")) == ([], [])
    assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for d, h in [(actual.detach(), expected.detach()), *((d.grad, h.grad) for d, h in zip(device, host))]:
        torch.testing.assert_close(d.cpu(), h, rtol=tolerance, atol=tolerance)


def test_a_small_constant_of_the_host_becomes_part_of_the_program():
    run = torch.compile(lambda x: x + torch.tensor(8), backend="neuron", dynamic=False, fullgraph=True)
    events.clear()
    assert run(torch.ones(2, device="neuron")).tolist() == [9, 9]
    assert any(n.startswith("graph::") for n in events.names("execute"))
