"""Greedy decoding with a static cache: one program for the prompt, one for every token after it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import StaticCache

from .families import LENGTH, Family


def on_cpu(family: Family, padded: bool, new: int) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor]:
    """The model, the prompt and mask, and the tokens (B, LENGTH + new) that its own ``generate`` decodes greedily."""
    model = family.build("sdpa", None, 1).eval()
    model.config.output_router_logits = False  # the loss that balances experts belongs to training
    prompt = {n: t for n, t in family.batch(padded).items() if n != "labels"}
    return model, prompt, model.generate(**prompt, **_greedy(new))


def generated(model: Any, prompt: dict[str, torch.Tensor], new: int) -> torch.Tensor:
    """The same by ``generate`` on the device, with the model's forward compiled and a static cache."""
    there = copy.deepcopy(model).to("neuron")
    there.forward = torch.compile(there.forward, backend="neuron", dynamic=False, fullgraph=True)
    given = {n: t.to("neuron") for n, t in prompt.items()}
    return there.generate(**given, **_greedy(new), cache_implementation="static").cpu()


def stepped(model: Any, prompt: dict[str, torch.Tensor], new: int) -> torch.Tensor:
    """The same by hand: the prompt, then one token at a time, the cache written in place by the compiled model."""
    there = copy.deepcopy(model).to("neuron")
    step = torch.compile(there, backend="neuron", dynamic=False, fullgraph=True)
    cache = StaticCache(config=there.config, max_cache_len=LENGTH + new)
    tokens = prompt["input_ids"].to("neuron")
    mask = torch.ones(tokens.shape[0], LENGTH + new, dtype=torch.int64)
    if "attention_mask" in prompt:
        mask[:, :LENGTH] = prompt["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0).to("neuron")
    mask, parts, start = mask.to("neuron"), [tokens], 0
    with torch.inference_mode():
        for _ in range(new):
            end = start + tokens.shape[1]
            logits = step(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions[:, start:end],
                past_key_values=cache,
                use_cache=True,
            ).logits
            tokens, start = logits[:, -1:].argmax(-1), end
            parts.append(tokens)
        return torch.cat(parts, 1).cpu()


def _greedy(new: int) -> dict[str, Any]:
    return {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False}
