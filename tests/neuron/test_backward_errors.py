"""An error in a hook of the backward pass is the caller's, as on the CPU: PyTorch's engine runs hooks on a thread of its own."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shakedown.neuron import guard


def failing(*_):
    raise KeyError("mine")


def leaf() -> torch.Tensor:
    return torch.ones(4, device="neuron", requires_grad=True)


def tensor_hook():
    y = leaf().sin()
    y.register_hook(failing)
    return y


def leaf_hook():
    x = leaf()
    x.register_hook(failing)
    return x.sin()


def after_accumulation():
    x = leaf()
    x.register_post_accumulate_grad_hook(failing)
    return x.sin()


def node_hook():
    y = leaf().sin()
    y.grad_fn.register_hook(failing)
    return y


def node_prehook():
    y = leaf().sin()
    y.grad_fn.register_prehook(failing)
    return y


def saved_tensor():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, failing):
        return leaf().sin()


def module_hook():
    layer = nn.Linear(4, 4).to("neuron")
    layer.register_full_backward_hook(failing)
    return layer(leaf())


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        failing()


def function():
    return Failing.apply(leaf())


def reentrant():
    """The inner backward pass fails within the outer one."""
    return checkpoint(lambda x: Failing.apply(x.sin()), leaf(), use_reentrant=True)


def recomputed():
    calls = []

    def again(x):
        calls.append(x)
        if len(calls) == 2:
            failing()
        return x.sin().exp()

    return checkpoint(again, leaf(), use_reentrant=False)


PLACES = (tensor_hook, leaf_hook, after_accumulation, node_hook, node_prehook, saved_tensor, module_hook)
PLACES += (function, reentrant, recomputed)


@pytest.mark.parametrize("place", PLACES)
def test_an_error_reaches_the_caller(place):
    for run in (lambda y: y.sum().backward(), lambda y: torch.autograd.backward([y], [torch.ones_like(y)])):
        with pytest.raises(KeyError, match="mine") as caught:
            run(place())
        assert caught.traceback[-1].name == "failing"
    assert not guard._met
    x = leaf()
    (x * 3).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 3.0, device="neuron"))


def test_by_grad_and_in_a_thread():
    x = leaf()
    y = x.sin()
    y.register_hook(failing)
    with pytest.raises(KeyError, match="mine"):
        torch.autograd.grad(y.sum(), x)
    seen: list[BaseException] = []

    def run():
        try:
            tensor_hook().sum().backward()
        except KeyError as error:
            seen.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    assert not guard._met


def test_errors_of_the_engine_itself_are_as_they_were():
    y = leaf().sin().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1, device="neuron").backward()


def test_callbacks_are_still_queued():
    """DistributedDataParallel and others reach the engine by its old name."""
    x, called = leaf(), []
    y = x.sin()
    y.register_hook(lambda g: torch.autograd.Variable._execution_engine.queue_callback(lambda: called.append(1)))
    y.sum().backward()
    assert called == [1]
