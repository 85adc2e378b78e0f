"""Bodies of operators that no program can do as written: errors that say so, in every mode, with nothing written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.neuron import nki_op, wrap_nki

from shakedown.neuron import runtime
from shakedown.neuron.errors import KernelError, ShakedownError

from .test_kernels import compiled


def times(x: Any, factor: float) -> Any:
    return x * factor


@nki_op("kernels_refused::writes")
def writes(x: Tensor, others: list[Tensor]) -> Tensor:
    others[1][0].add_(1)  # through a view, and in a list
    return wrap_nki(times)(x, 2.0)


@nki_op("kernels_refused::writes_its_own")
def writes_its_own(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = 5
    return wrap_nki(times)(y.add_(1), 2.0)


@pytest.mark.parametrize("mode", [lambda fn: fn, compiled], ids=["eager", "compile"])
def test_what_is_written_has_a_name_in_mutates_args(mode, fresh_dynamo):
    x, y = torch.ones(2, device="neuron"), torch.zeros(2, device="neuron")
    with pytest.raises(Exception, match="kernels_refused::writes writes to 'others', which mutates_args does not name"):
        mode(lambda x, y: writes(x, [x, y]))(x, y)
    assert y.tolist() == [0, 0]
    assert mode(lambda x: writes_its_own(x))(x).tolist() == [12, 6]
    assert x.tolist() == [1, 1]


@nki_op("kernels_refused::by_item")
def by_item(x: Tensor) -> Tensor:
    return wrap_nki(times)(x, 2.0) * x.sum().item()


@nki_op("kernels_refused::by_branch")
def by_branch(x: Tensor) -> Tensor:
    return wrap_nki(times)(x, 2.0) if x.sum() > 0 else x.clone()


@pytest.mark.parametrize("op", [by_item, by_branch], ids=["item", "branch"])
def test_a_number_that_is_read_from_a_tensor(op):
    with pytest.raises(KernelError, match=f"{op._qualname} cannot be a program of the device: it decides by"):
        op(torch.ones(2, device="neuron"))
    assert op(torch.ones(2)).shape == (2,)


def test_a_forked_child_is_told_instead_of_waiting(monkeypatch):
    kernel = wrap_nki(times)
    assert kernel(torch.ones(2), 3.0).tolist() == [3, 3]
    monkeypatch.setattr(runtime, "_forked", True)  # what a child finds; a real one would end pytest twice
    with pytest.raises(ShakedownError, match="'spawn'"):
        kernel(torch.ones(2), 3.0)


def test_a_kernel_that_fails_while_a_graph_is_captured_is_named(fresh_dynamo, caplog):
    def fails(x: Any) -> Any:
        return x.no_such_attribute

    kernel = wrap_nki(fails)
    with pytest.raises(torch._dynamo.exc.Unsupported):  # whatever was the matter
        compiled(lambda x: kernel(x))(torch.ones(2, device="neuron"))
    said = [r.getMessage() for r in caplog.records if r.name == "shakedown.neuron.compile"]
    assert said
    assert "kernel fails" in said[0]
    assert "no_such_attribute" in said[0]
