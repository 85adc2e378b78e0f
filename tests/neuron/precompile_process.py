"""A process of the precompile tests: imports ``model.py`` from a folder, trains it, and says as JSON what was traced.

Usage: ``python precompile_process.py FOLDER [--load FILE] [--save FILE] [--other-shape] [--unnameable]``
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--load", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--other-shape", action="store_true")
    parser.add_argument("--unnameable", action="store_true")
    given = parser.parse_args()
    sys.path.insert(0, given.folder)
    said: dict[str, Any] = {}
    if given.load:
        found = torch.compiler.load_cache_artifacts(given.load.read_bytes())
        said["loaded"] = sorted(found.artifacts) if found else None
    model = import_module("model")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        said["results"] = train(model, [(4, 6), (3, 6)] if given.other_shape else [(4, 6)])
        said["unnameable"] = unnameable() if given.unnameable else None
        said["activated"] = activated() if given.unnameable else None
    said["warnings"] = [str(w.message) for w in warned if "precompile" in str(w.message)]
    from torch._dynamo.utils import counters

    from shakedown.neuron import events

    said["frames"] = counters["frames"]["total"] + counters["stats"]["unique_graphs"]
    said["aot"] = counters["aot_autograd"]["total"]
    said["compiled"] = events.total("compile", "compiled")
    said["found"] = events.total("compile") - said["compiled"]
    said["precompile"] = [f"{r['name']} {r['detail']}" for r in events.snapshot() if r["kind"] == "precompile"]
    said["graphs"] = sorted(n for n in events.names("execute") if n.startswith("graph::"))
    if given.save:
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        given.save.write_bytes(saved[0])
        said["saved"] = {name: len(keys) for name, keys in saved[1].artifacts.items()}
    print(json.dumps(said))


def train(model: Any, shapes: list[tuple[int, int]]) -> list[Any]:
    """Losses and gradients of two steps with each shape, then of one in evaluation mode (gradients are there by then)."""
    torch.manual_seed(0)
    net = model.Net().to("neuron")
    step = torch.compile(net, backend="neuron")
    results: list[Any] = []
    for shape in shapes:
        x = torch.linspace(-1, 1, shape[0] * shape[1]).reshape(shape).to("neuron")
        for training in (True, True, False):
            net.train(training)
            loss = step(x)
            loss.backward()
            results.append([loss.item(), net.first.weight.grad.cpu().sum().item()])
    return results


class Activated(torch.nn.Module):
    """Its graph depends on the identity of a function that it was given, which no name leads to."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x) * 2


def activated() -> list[float]:
    """Two modules of one class and shape: PyTorch's precompile alone would run the first one's graph for both."""
    x = torch.full((2,), -3.0, device="neuron")
    return [torch.compile(Activated(f), backend="neuron")(x)[0].item() for f in (torch.relu, torch.abs)]


def unnameable() -> list[float]:
    """Guards on an object of a class that no other process could name cannot be packed, and the functions run all the same, ours
    and another backend's."""

    class Settings:
        def __init__(self) -> None:
            self.factor = 2.0

    settings = Settings()

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * settings.factor + 1

    def by_another(x: torch.Tensor) -> torch.Tensor:
        return x - settings.factor

    ours = torch.compile(scaled, backend="neuron")(torch.ones(2, device="neuron")).tolist()
    partly = functools.partial(torch.add, other=4)
    ours += torch.compile(partly, backend="neuron")(torch.ones(1, device="neuron")).tolist()
    return ours + torch.compile(by_another, backend="eager")(torch.ones(1)).tolist()


if __name__ == "__main__":
    main()
