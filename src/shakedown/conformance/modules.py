"""One entry of ``module_db``: the module built on the CPU, a copy moved to the device, forward and backward compared."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from shakedown.neuron import events

from . import databases
from .checks import Bench, described, ran
from .compare import GRADIENT_SCALE, Difference, compare, structure, widened
from .databases import mapped, tensors
from .results import Row


class ModuleBench(Bench):
    """Runs the checks of one module in one dtype and mode: in training and, where it differs, in evaluation."""

    def inputs(self) -> list[tuple[bool, Any]]:
        """(training, ``ModuleInput``) of every sample."""
        made = []
        for training in (True, False) if self.info.train_and_eval_differ else (True,):
            databases.seed()
            found = self.info.module_inputs_func(
                self.info, device="cpu", dtype=self.dtype, requires_grad=True, training=training
            )
            made += [(training, m) for m in found]
        return made

    def module(self, number: int, training: bool, given: Any) -> Iterator[Row]:
        """Forward, and backward to every parameter and input."""
        if given.forward_input is None:
            return
        call = ((), given.forward_input.args, given.forward_input.kwargs)
        try:
            databases.seed()
            built = self.info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
            host = built.to("cpu", self.dtype).train(training)
            if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in host.parameters()):
                host(*call[1], **call[2])  # a lazy module draws its weights now, which the copy is to have too
            device = copy.deepcopy(host).to("neuron")
            there = databases.moved((call[1], call[2]))
            databases.seed()
            expected = host(*call[1], **call[2])
        except Exception as error:
            yield self.row("forward", number, "skipped", call, message=f"the CPU raises {described(error)}")
            return
        free = training and any(type(m).__name__ in _RANDOM for m in host.modules() if getattr(m, "p", 1))
        events.clear()
        try:
            databases.seed()
            run = torch.compile(device, backend="neuron", dynamic=False) if self.mode == "compile" else device
            actual = run(*there[0], **there[1])
        except Exception as error:
            yield self.raised("forward", number, call, error)
            return
        path = ran()
        found = Difference(structure(actual, expected)) if free else compare(actual, expected)
        if found.problem and not free and not structure(actual, expected):
            found = compare(actual, expected, truth=_true(host, call)[0])
        yield self.judged("forward", number, call, found, path)
        yield from self._backward(number, (host, call, expected), (device, there, actual), free)

    def _backward(self, number: int, here: Any, away: Any, free: bool) -> Iterator[Row]:
        host, call, expected = here
        device, there, actual = away
        outs = [t for t in tensors(expected) if t.requires_grad]
        ins = [*host.parameters(), *(t for t in tensors(list(call)) if t.requires_grad)]
        ins = [t for t in ins if t.requires_grad]
        if not outs or not ins:
            return
        seeds = [torch.randn_like(t.detach()) for t in outs]
        wanted = torch.autograd.grad(outs, ins, seeds, allow_unused=True)
        events.clear()
        try:
            outs_there = [t for t in tensors(actual) if t.requires_grad]
            ins_there = [*device.parameters(), *(t for t in tensors(list(there)) if t.requires_grad)]
            ins_there = [t for t in ins_there if t.requires_grad]
            got = torch.autograd.grad(outs_there, ins_there, databases.moved(seeds), allow_unused=True)
        except Exception as error:
            yield self.raised("gradient", number, call, error)
            return
        path = ran()
        if free:
            found = Difference(structure(got, wanted))
        else:
            found = compare(got, wanted, scale=GRADIENT_SCALE)
            if found.problem and not structure(got, wanted):
                found = compare(got, wanted, scale=GRADIENT_SCALE, truth=_true(host, call, seeds)[1])
        yield self.judged("gradient", number, call, found, path)


# Modules that draw random numbers in training.
_RANDOM = {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"} | {
    *("FractionalMaxPool2d", "FractionalMaxPool3d", "MultiheadAttention", "Transformer"),
    *("TransformerEncoderLayer", "TransformerDecoderLayer", "TransformerEncoder"),
}


def _true(host: torch.nn.Module, call: Any, seeds: list[torch.Tensor] | None = None) -> tuple[Any, Any]:
    """Outputs, and gradients when `seeds` are given, computed in float64; None where the module has none."""
    try:
        wide = copy.deepcopy(host).double()
        args, kwargs = widened(list(call[1])), widened(dict(call[2]))
        args, kwargs = mapped(args, _leaf), mapped(kwargs, _leaf)
        databases.seed()
        out = wide(*args, **kwargs)
        if seeds is None:
            return out, None
        outs = [t for t in tensors(out) if t.requires_grad]
        ins = [t for t in [*wide.parameters(), *tensors([args, kwargs])] if t.requires_grad]
        grads = torch.autograd.grad(outs, ins, [s.to(o.dtype) for s, o in zip(seeds, outs)], allow_unused=True)
        return out, grads
    except Exception:
        return None, None


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)
