"""PEFT: adapters of a small Llama, trained, merged, saved and read again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from peft import IA3Config, LoHaConfig, LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model

from ..comparing import Results
from ..families import DECODERS
from ..rows import Row, Way, trained

TARGETS = ["q_proj", "v_proj", "down_proj"]


def _lora(**more: Any) -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS, task_type="CAUSAL_LM", **more)


def _adapted(config: Any, merge: bool = True, dtype: torch.dtype = torch.float32) -> Callable[[Way], Results]:
    def recipe(way: Way) -> Results:
        base = DECODERS[0].build("sdpa", None, 1).to(dtype if way.narrow else torch.float32)
        base.config.use_cache = False
        torch.manual_seed(2)  # adapters start from random numbers
        model = get_peft_model(copy.deepcopy(base), copy.deepcopy(config))
        batch = DECODERS[0].batch(True)
        kept: list[Any] = []

        def keep(there: Any, optimizer: Any) -> None:
            kept[:] = [there]

        found = trained(
            model,
            way,
            [batch] * 3,
            lambda call, given: call(**given).loss,
            lambda p: torch.optim.AdamW([q for q in p if q.requires_grad], lr=1e-2, eps=1e-4),
            keep,
        )
        there = kept[0].eval()
        given = {n: batch[n].to(way.device) for n in ("input_ids", "attention_mask")}
        with torch.no_grad():
            found["logits"] = there(**given).logits.float().cpu()
            there.save_pretrained(way.folder / "adapter")
            again = PeftModel.from_pretrained(copy.deepcopy(base).to(way.device), way.folder / "adapter").eval()
            assert {p.device.type for p in again.parameters()} == {way.device}
            found["logits of the adapter read again"] = again(**given).logits.float().cpu()
            if merge:
                merged = there.merge_and_unload()
                found["logits after merging"] = merged(**given).logits.float().cpu()
        return found

    return recipe


BOTH = ("eager", "adaptive")
ROWS = [
    Row("peft", "LoRA", _adapted(_lora()), (*BOTH, "compile")),
    Row(
        "peft",
        "LoRA of a bfloat16 model",
        _adapted(_lora(), merge=False, dtype=torch.bfloat16),
        ("eager",),
        torch.bfloat16,
    ),
    Row("peft", "DoRA", _adapted(_lora(use_dora=True)), BOTH),
    Row(
        "peft",
        "IA3",
        _adapted(
            IA3Config(
                target_modules=["k_proj", "v_proj", "down_proj"],
                feedforward_modules=["down_proj"],
                task_type="CAUSAL_LM",
            )
        ),
        ("eager",),
    ),
    Row("peft", "LoHa", _adapted(LoHaConfig(r=4, alpha=8, target_modules=TARGETS)), ("eager",)),
    Row(
        "peft",
        "prefix tuning",
        _adapted(PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), merge=False),
        ("eager",),
    ),
]
