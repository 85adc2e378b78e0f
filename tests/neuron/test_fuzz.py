"""The fuzzer finds what it is made for, says the same twice, and survives its workers; a short run finds nothing."""

import pytest
import torch

from tests.fuzz.__main__ import Worker, sweep
from tests.fuzz.calls import WRONG, Call, describe, generate, judge, run
from tests.fuzz.tensors import Twins


def verdict(call, wrong):
    """What the fuzzer says when the device computes `wrong` instead of the call's own function."""
    cpu = run(call, 0, "cpu")
    return judge(call, cpu, run(Call(call.name, wrong, call.versions, call.stay), 0, "neuron"))[0]


def call_of(function, *args, **kwargs):
    return Call("tested", function, [(list(args), kwargs)])


def refuse(error):
    def function(*_):
        raise error

    return function


X = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    ("right", "wrong", "kind"),
    [
        (torch.neg, torch.neg, "same"),
        (torch.neg, torch.abs, "value differs"),
        (torch.neg, lambda x: -x.double(), "value differs"),
        (torch.neg, lambda x: -x[:1], "value differs"),
        (torch.neg, lambda x: -x.t().contiguous().t(), "stride differs"),
        (torch.neg, lambda x: x.mul_(-1).clone(), "argument differs"),
        (lambda x: x[0], lambda x: x[0].clone(), "alias differs"),
        (refuse(ValueError("no")), torch.neg, "only the CPU raised"),
        (torch.neg, refuse(ValueError("no")), "only the device raised"),
        (refuse(ValueError("no")), refuse(IndexError("no")), "error differs"),
        (refuse(ValueError("no")), refuse(ValueError("neither")), "both raised"),
        (refuse(NotImplementedError("no kernel")), torch.neg, "wider"),
    ],
)
def test_every_kind_of_difference_is_seen(right, wrong, kind):
    assert verdict(call_of(right, X), wrong) == kind


def test_writes_outside_the_view_are_seen():
    def whole(x):
        base = x.as_strided((6,), (1,), 0)
        base.add_(1)
        return x.neg()

    def part(x):
        x.add_(1)
        return x.neg()

    assert verdict(call_of(part, X.clone()[:1]), whole) == "argument differs"


def test_copies_keep_aliases_and_layouts():
    base = torch.arange(12.0)
    views = [base.view(3, 4).t(), base[3:9], base[:1].expand(5), torch._neg_view(base), base]
    for device in ("cpu", "neuron"):
        twins = Twins(device)
        made = [twins.of(v) for v in views]
        for copy, view in zip(made, views):
            assert (copy.shape, copy.stride(), copy.storage_offset()) == (
                view.shape,
                view.stride(),
                view.storage_offset(),
            )
            assert copy.cpu().tolist() == view.tolist()
        made[4].zero_()
        assert not any(copy.cpu().count_nonzero() for copy in made)
    assert base[11] == 11


def test_a_number_gives_the_same_call_in_every_process():
    for number in range(20):
        once, again = generate(7, number), generate(7, number)
        assert [describe(once, v) for v in range(len(once.versions))] == [
            describe(again, v) for v in range(len(again.versions))
        ]


def test_a_dead_worker_is_reported_and_replaced():
    worker = Worker(0, "")
    try:
        first = worker.run(1)
        worker.process.kill()
        worker.process.wait()
        assert worker.run(1).kind in ("CPU crash", "crash")
        assert worker.run(1).kind == first.kind
    finally:
        worker.stop()


def test_a_short_run_finds_nothing():
    outcomes = sweep(11, range(40), minutes=4, only="", verbose=False)
    assert outcomes
    assert [(o.number, o.kind, o.detail, o.call) for o in outcomes if o.kind in WRONG] == []
