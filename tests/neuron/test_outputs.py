"""Results as PyTorch's CPU kernels leave them: the rounding and layout of ``out=``, what aliases an argument, what does not."""

import pytest
import torch
import torch.nn.functional as F

from shakedown.conformance.databases import moved

pytestmark = pytest.mark.rotating(2, least=3)

aten = torch.ops.aten
LAST = torch.linspace(0.1, 2.0, 120).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
HALVES = torch.linspace(1, 3, 20).to(torch.bfloat16)
BYTES = torch.tensor([100, 2, -3], dtype=torch.int8)


def both(fn, *args):
    return fn(*args), fn(*moved(args))


@pytest.mark.parametrize(
    ("fn", "args", "dtype"),
    [
        (torch.acosh, (HALVES,), torch.complex64),
        (torch.exp, (HALVES,), torch.float32),
        (torch.mul, (HALVES, HALVES), torch.float64),
        (torch.div, (BYTES, BYTES + 3), torch.float64),
        (torch.add, (BYTES, BYTES), torch.int64),
    ],
)
def test_a_wider_out_holds_what_the_operator_rounds_to(fn, args, dtype):
    def into(*given):
        return fn(*given, out=torch.empty(given[0].shape, dtype=dtype, device=given[0].device))

    wanted, found = both(into, *args)
    assert found.dtype is dtype
    torch.testing.assert_close(found.cpu(), wanted)
    assert torch.equal(found.cpu().to(fn(*args).dtype).to(dtype), found.cpu())


def test_a_reduction_computes_in_the_dtype_of_its_out():
    def into(x):
        return torch.sum(x, 1, out=torch.empty(3, device=x.device))

    wanted, found = both(into, torch.full((3, 5000), 1.1, dtype=torch.float16))
    torch.testing.assert_close(found.cpu(), wanted)


@pytest.mark.parametrize("fn", [torch.sum, torch.prod])
def test_a_reduction_into_integers_truncates_first(fn):
    def into(x):
        return fn(x, 1, out=torch.empty(2, dtype=torch.int16, device=x.device))

    wanted, found = both(into, torch.tensor([[1.9, 2.9, -3.9], [0.5, 7.0, 2.0]]))
    assert found.cpu().tolist() == wanted.tolist()


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "expanded"])
@pytest.mark.parametrize("fn", [torch.sigmoid, torch.neg, lambda x, **k: torch.remainder(x, 0.7, **k)])
def test_an_empty_out_gets_the_layout_of_the_inputs(fn, layout):
    x = {"channels_last": LAST, "transposed": LAST[0, 0].t(), "expanded": LAST[:1, :1, :1].expand(2, 3, 4, 5)}[layout]
    wanted, found = both(lambda x: fn(x, out=torch.empty(0, device=x.device)), x)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found.cpu(), wanted)


def test_fresh_results_of_expanded_tensors_do_not_overlap_themselves():
    for result in aten.native_dropout(torch.ones(3, 1, device="neuron").expand(3, 4), 0.5, True):
        assert result.stride() == (4, 1)
        result.zero_()
        result[0, 0] = True
        assert result.count_nonzero().item() == 1


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_dropout_that_drops_nothing_returns_its_argument(p, training):
    x = torch.ones(3, device="neuron")
    assert F.dropout(x, p, training) is x


@pytest.mark.parametrize("name", ["unique_dim", "unique_dim_consecutive"])
def test_unique_rows_come_with_inverse_and_counts(name):
    rows = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 5.0]])
    wanted, found = both(lambda x: getattr(aten, name)(x, 0), rows)
    for a, b in zip(found, wanted):
        assert a.cpu().tolist() == b.tolist()


def test_range_without_a_step_writes_its_out():
    for size in (1, 3):
        wanted, found = both(lambda out: aten.range.out_(1, 3.0, out=out.clone()), torch.full((size,), 3.75))
        assert found.cpu().tolist() == wanted.tolist()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float16])
def test_logspace_of_one_value_does_not_round_its_exponent(dtype):
    for start in (-0.5, 1.7):
        wanted = torch.logspace(start, 2, 1, dtype=dtype)
        torch.testing.assert_close(torch.logspace(start, 2, 1, dtype=dtype, device="neuron").cpu(), wanted)
