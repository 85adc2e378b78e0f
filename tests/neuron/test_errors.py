"""Mistakes raise on the device what they raise on the CPU: PyTorch's own table of them, and kinds it does not list."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch

from shakedown.conformance import databases
from shakedown.neuron import events

pytestmark = pytest.mark.rotating(2, least=3)

# Names whose mistakes only CPU kernels notice: meta kernels accept them. (The command sweeps the whole table.)
FROM_THE_TABLE = (
    *("complex", "polar", "kthvalue", "masked_scatter", "masked_select", "aminmax", "gather", "take", "scatter"),
    *("bucketize", "searchsorted", "linspace", "logspace", "multinomial", "uniform", "nn.functional.conv3d", "cat"),
    *("heaviside", "isclose", "histc", "bincount", "where", "normal"),
)
CASES = [e for e in databases.entries("op_db") if e.info.name in FROM_THE_TABLE and e.info.error_inputs_func]


def raised(fn: Any, *args: Any, **kwargs: Any) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fn(*args, **kwargs)
    except Exception as error:
        return error
    return None


class Moved:
    """Copies of tensors on the device; what shares a storage on the CPU shares one there, one tensor has one copy."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.Tensor] = {}
        self.copies: dict[int, torch.Tensor] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            key = value.untyped_storage()._cdata
            if key not in self.storages:
                count = value.untyped_storage().nbytes() // value.dtype.itemsize
                whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage(), 0, (count,), (1,))
                self.storages[key] = whole.to("neuron")
            there = self.storages[key].as_strided(value.shape, value.stride(), value.storage_offset())
            return self.copies.setdefault(id(value), there)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self, value))
        if isinstance(value, dict):
            return {k: self(v) for k, v in value.items()}
        return value


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_the_mistakes_of_the_table(entry):
    for case in databases.mistakes(entry):
        sample = case.sample_input
        given = (sample.input, sample.args, sample.kwargs)
        if isinstance(sample.input, torch.Tensor) and sample.input.numel() > 1 << 20:
            continue  # "too many categories" takes its time
        try:
            input, args, kwargs = Moved()(given)
        except RuntimeError:
            continue  # a storage that is too small for its tensor cannot be copied
        there = raised(entry.info.op, input, *args, **kwargs)
        here = raised(entry.info.op, sample.input, *sample.args, **sample.kwargs)
        assert type(there) is type(here), (given, there, here)
        assert str(there) == str(here) or re.search(case.error_regex, str(there)), (there, here)


def hold(fn: Any, *args: Any) -> None:
    """`fn` raises for copies of `args` on the device what it raises on the CPU, and it does raise."""
    here, there = raised(fn, *args), raised(fn, *Moved()(args))
    assert here is not None
    assert type(there) is type(here), (there, here)
    assert str(there) == str(here)


INTEGERS, TRUTHS, COMPLEX = torch.tensor([[3, 4]]), torch.tensor([[True, False]]), torch.ones(1, 2) * 1j
REFUSED = {
    "softmax of integers": (lambda x: torch.softmax(x, 0), INTEGERS),
    "logaddexp of integers": (torch.logaddexp, INTEGERS, INTEGERS),
    "hardswish of integers": (torch.nn.functional.hardswish, INTEGERS),
    "group norm of integers": (lambda x: torch.nn.functional.group_norm(x, 1), INTEGERS),
    "interpolation of integers": (lambda x: torch.nn.functional.interpolate(x[None], 3), INTEGERS),
    "floor of booleans": (torch.floor, TRUTHS),
    "product of boolean matrices": (lambda x: x @ x.t(), TRUTHS),
    "median of booleans": (torch.median, TRUTHS),
    "remainder of booleans": (torch.remainder, TRUTHS, TRUTHS),
    "difference with booleans": (torch.sub, torch.ones(1, 2), TRUTHS),
    "shift of floats": (torch.bitwise_left_shift, torch.ones(2), torch.ones(2)),
    "clamp of complex numbers": (lambda x: x.clamp(max=1), COMPLEX),
    "order of complex numbers": (torch.lt, torch.ones(1, 2), COMPLEX),
    "order with a complex number": (lambda x: x < 1j, torch.ones(2)),
    "distinct complex numbers": (torch.unique, COMPLEX),
    "distinct complex rows": (lambda x: torch.unique(x, dim=0), COMPLEX),
    "counts of booleans": (lambda x: torch.bincount(x[0]), TRUTHS),
    "maximum of complex numbers": (torch.maximum, COMPLEX, COMPLEX),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_dtypes_that_the_cpu_kernel_refuses(case):
    hold(*case)


def test_asking_about_dtypes_leaves_no_trace():
    before = torch.random.get_rng_state()
    x = torch.zeros(5, dtype=torch.int16, device="neuron")
    events.clear()
    x.random_(3)
    assert (x // torch.tensor([1, 2, 3, 4, 5], dtype=torch.int16, device="neuron")).max() < 3
    assert not [r for r in events.snapshot() if r["kind"] in ("fallback", "transfer") and r["nbytes"] > 10]
    assert torch.equal(before, torch.random.get_rng_state())


VALUES, OTHER = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([2, 0, 1])
OUTS = {
    "neg": (lambda x, out: torch.neg(x, out=out), torch.empty(3, dtype=torch.float64)),
    "isin": (lambda x, out: torch.isin(x, x, out=out), torch.empty(3)),
    "nan_to_num": (lambda x, out: torch.nan_to_num(x, out=out), torch.empty(3, dtype=torch.float64)),
    "cross": (lambda x, out: torch.cross(x, x, out=out), torch.empty(3, dtype=torch.float64)),
    "argmax": (lambda x, out: torch.argmax(x, out=out), torch.empty((), dtype=torch.int32)),
    "floats to integers": (lambda x, out: torch.add(x, 1, out=out), torch.empty(3, dtype=torch.int64)),
    "nonzero": (lambda x, out: torch.nonzero(x, out=out), torch.empty(3, 1)),
    "sort": (lambda x, out: torch.sort(x, out=(out, OTHER.to(x.device))), torch.empty(3, dtype=torch.float64)),
}


@pytest.mark.parametrize("case", OUTS.values(), ids=OUTS.keys())
def test_an_out_of_a_dtype_that_the_operator_does_not_convert_to(case):
    hold(case[0], VALUES, case[1])


def test_an_out_of_a_dtype_that_it_converts_to():
    out = torch.empty(3, dtype=torch.float64, device="neuron")
    events.clear()
    torch.add(VALUES.to("neuron"), 1, out=out)
    torch.tanh(OTHER.to("neuron"), out=out)
    assert not [r for r in events.snapshot() if r["kind"] == "fallback"]
    torch.testing.assert_close(out.cpu(), torch.tanh(OTHER).double())


IN_PLACE = {
    "sizes that broadcast": (lambda x, y: x.eq_(y), torch.ones(1, 3), torch.ones(2, 3)),
    "sizes of a product": (lambda x, y: x.addr_(y, y), torch.zeros(()), torch.ones(3)),
    "division of integers": (lambda x, y: x.div_(y), INTEGERS, INTEGERS),
    "ldexp of integers": (lambda x, y: x.ldexp_(y), INTEGERS, INTEGERS),
    "a float into integers": (lambda x, y: x.add_(y), INTEGERS, torch.ones(1, 2)),
}


@pytest.mark.parametrize("case", IN_PLACE.values(), ids=IN_PLACE.keys())
def test_in_place_results_that_do_not_fit(case):
    hold(*case)


def test_memory_that_is_read_and_written():
    x, index = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0, 1])
    hold(lambda x, index: torch.take(x, index, out=x), x, index)
    hold(lambda x, index: torch.gather(x, 0, index, out=x), x, index)
    hold(lambda x: torch.cat([x, x[:0]], out=x), x)
    hold(lambda x, index: torch.masked_select(x, x > 1, out=x), x, index)
    there = x.to("neuron")
    torch.mul(there, there, out=there)
    there.add_(there)
    assert there.tolist() == [2.0, 8.0, 18.0]


@pytest.mark.parametrize("bound", [300, -300, 2**40])
def test_bounds_and_exponents_that_do_not_fit(bound):
    bytes = torch.tensor([1, 2], dtype=torch.uint8)
    hold(lambda x: x.clamp_(max=bound), bytes)
    if bound > 0:
        hold(lambda x: x**bound, bytes)


def test_a_resized_out_warns_every_time():
    x = torch.ones(3, device="neuron")
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"resized since it had shape \[2\], .* required output shape \[3\]"):
            torch.add(x, 1, out=torch.zeros(2, device="neuron"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.add(x, 1, out=torch.empty(0, device="neuron")).tolist() == [2.0, 2.0, 2.0]


def test_bounds_of_a_sequence_may_live_on_the_device():
    start = torch.tensor(1.0, device="neuron")
    assert torch.linspace(start, 3, 3).tolist() == [1.0, 2.0, 3.0]
    assert torch.linspace(start, 3, 3).device.type == "cpu"
    assert torch.logspace(start, 2, 2, device="neuron").tolist() == [10.0, 100.0]
