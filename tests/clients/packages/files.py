"""Safetensors files, and models that Transformers reads onto the device."""

from __future__ import annotations

import copy

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model

from ..comparing import Results
from ..families import DECODERS
from ..rows import Row, Way

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]


def _values(way: Way) -> dict[str, torch.Tensor]:
    base = torch.arange(12).reshape(3, 4)
    return {str(d): base.to(d).to(way.device) for d in DTYPES} | {"transposed": base.t().to(way.device).contiguous()}


def _place(way: Way) -> str | int:
    """Safetensors knows names of some devices, and takes a number for the current accelerator."""
    return "cpu" if way.device == "cpu" else 0


def _plain(tensors: dict[str, torch.Tensor]) -> Results:
    """Bits, as integers where there is no arithmetic."""
    return {n: t.cpu() if t.dtype is not torch.float8_e4m3fn else t.cpu().view(torch.uint8) for n, t in tensors.items()}


def _saved(way: Way) -> Results:
    save_file(_values(way), way.folder / "x.safetensors")
    read = load_file(way.folder / "x.safetensors", device=_place(way))
    assert {t.device.type for t in read.values()} == {way.device}
    with safe_open(way.folder / "x.safetensors", framework="pt", device=_place(way)) as file:
        part = file.get_slice("transposed")[1:3, ::1]
        one = file.get_tensor("torch.bfloat16")
    assert {part.device.type, one.device.type} == {way.device}
    return _plain({n: read[n] for n in sorted(read)} | {"a slice": part, "one": one})


def _tied(way: Way) -> Results:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(layer, torch.nn.ReLU(), layer).to(way.device)
    save_model(model, str(way.folder / "m.safetensors"))
    other = torch.nn.Linear(3, 3)
    read = torch.nn.Sequential(other, torch.nn.ReLU(), other).to(way.device)
    missing, unexpected = load_model(read, str(way.folder / "m.safetensors"), device=_place(way))
    assert not missing
    assert not unexpected
    read[0].weight.data.mul_(2)
    return {"weight": read[2].weight.detach().cpu(), "still tied": torch.tensor(read[0].weight is read[2].weight)}


def _from_pretrained(way: Way) -> Results:
    model = DECODERS[0].build("sdpa", None, 1).eval()
    there = copy.deepcopy(model).to(way.device)
    there.save_pretrained(way.folder / "whole")
    there.save_pretrained(way.folder / "parts", max_shard_size="20KB")
    prompt = DECODERS[0].batch(False)["input_ids"].to(way.device)
    found: Results = {}
    for name in ("whole", "parts"):
        read = type(model).from_pretrained(way.folder / name, device_map=way.device).eval()
        assert {t.device.type for t in read.state_dict().values()} == {way.device}
        found[name] = read(prompt).logits.detach().cpu()
    read = type(model).from_pretrained(way.folder / "whole", device_map={"": way.device}, dtype=torch.bfloat16)
    return found | {"weights": read.lm_head.weight.detach().cpu()}


HOW = 'device=0: "neuron" is not in its list of devices'
ROWS = [
    Row("safetensors", "save_file, load_file, safe_open, slices", _saved, ("eager",), how=HOW),
    Row("safetensors", "save_model, load_model of tied weights", _tied, ("eager",), how=HOW),
    Row("transformers", 'save_pretrained, from_pretrained(device_map="neuron")', _from_pretrained, ("eager",)),
]
