"""Accelerate: the loop of its documentation, mixed precision, saved states, and models dispatched from checkpoints."""

from __future__ import annotations

import json
from typing import Any

import torch
from accelerate import Accelerator, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import set_seed
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

from ..comparing import Results
from ..rows import Row, Way, changes


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers)


def _data(count: int = 22) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(count, 8, generator=generator), torch.randint(0, 4, (count,), generator=generator))


def _accelerator(way: Way, **options: Any) -> Accelerator:
    """The device is not named: only the CPU is, where that is meant."""
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    made = Accelerator(cpu=way.device == "cpu", **options)
    assert made.device.type == way.device, f"Accelerate chose {made.device}"
    return made


def _loop(**options: Any) -> Any:
    def recipe(way: Way) -> Results:
        accelerator = _accelerator(way, **(options if way.narrow else {**options, "mixed_precision": "no"}))
        net = way.compile(_net())
        start = {n: t.clone() for n, t in getattr(net, "_orig_mod", net).state_dict().items()}
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, eps=1e-4)
        loader = DataLoader(_data(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
        net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
        found: Results = {}
        for step, (x, y) in enumerate(loader):
            assert x.device.type == way.device
            with accelerator.accumulate(net):
                loss = torch.nn.functional.cross_entropy(net(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(net.parameters(), 0.5)
                    found[f"norm {step}"] = torch.as_tensor(norm).cpu()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            found[f"loss {step}"] = loss.detach().float().cpu()
        scores, labels = [], []
        net.eval()
        tests = accelerator.prepare(DataLoader(_data(10), batch_size=4))
        for x, y in tests:
            with torch.no_grad():
                given = accelerator.gather_for_metrics((net(x), y))
            scores.append(given[0].float().cpu())
            labels.append(given[1].cpu())
        found |= {"scores": torch.cat(scores), "labels": torch.cat(labels)}
        return found | changes(accelerator.unwrap_model(net, keep_torch_compile=False), start)

    return recipe


def _state(way: Way) -> Results:
    """What a run resumed from ``save_state`` differs from one that went on, with dropout: nothing at all."""
    set_seed(0)
    accelerator = _accelerator(way)
    net = torch.nn.Sequential(_net(), torch.nn.Dropout(0.5))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(_data(8), batch_size=4))

    def steps() -> dict[str, torch.Tensor]:
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(net(x), y))
            optimizer.step()
        return {n: t.detach().cpu().clone() for n, t in net.state_dict().items()}

    first = steps()
    accelerator.save_state(str(way.folder / "state"))
    gone_on = steps()
    accelerator.load_state(str(way.folder / "state"))
    again = steps()
    return {
        "resumed equals unbroken": torch.tensor(all(torch.equal(again[n], t) for n, t in gone_on.items())),
        "the steps did something": torch.tensor(not torch.equal(first["0.0.weight"], gone_on["0.0.weight"])),
    }


def _dispatched(way: Way) -> Results:
    """A model made without memory, its weights read from two files, each part placed where the map says."""
    full = _net()
    weights = full.state_dict()
    names = sorted(weights)
    parts = {"part-1.safetensors": names[:3], "part-2.safetensors": names[3:]}
    for file, there in parts.items():
        save_file({n: weights[n].contiguous() for n in there}, way.folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {n: file for file, there in parts.items() for n in there}}
    (way.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with init_empty_weights():
        empty = _net()
    where: Any = "cpu" if way.device == "cpu" else 0  # safetensors reads onto the current accelerator by its number
    placed = {"": where}
    model = load_checkpoint_and_dispatch(empty, str(way.folder / "model.safetensors.index.json"), device_map=placed)
    assert {p.device.type for p in model.parameters()} == {way.device}
    x = _data()[:5][0]
    found = {"logits": model(x.to(way.device)).detach().cpu()}
    if way.device == "cpu":
        return found | {"logits of a model partly kept on the CPU": found["logits"]}
    with init_empty_weights():
        empty = _net()
    placed = {"0": 0, "1": 0, "2": 0, "3": "cpu"}  # the last is moved to the device when it is its turn
    model = load_checkpoint_and_dispatch(empty, str(way.folder / "model.safetensors.index.json"), device_map=placed)
    return found | {"logits of a model partly kept on the CPU": model(x.to(way.device)).detach().cpu()}


BOTH = ("eager", "adaptive")
ALL = (*BOTH, "compile")
ROWS = [
    Row("accelerate", "prepare, clip_grad_norm_, gather_for_metrics", _loop(), ALL),
    Row("accelerate", "mixed_precision bf16", _loop(mixed_precision="bf16"), ALL, torch.bfloat16),
    Row("accelerate", "accumulate 3 batches", _loop(gradient_accumulation_steps=3), BOTH),
    Row("accelerate", "save_state and load_state, with dropout", _state, BOTH),
    Row(
        "accelerate",
        "init_empty_weights, load_checkpoint_and_dispatch",
        _dispatched,
        ("eager",),
        how='device_map of 0, not of "neuron": safetensors',
    ),
]
