"""``generate`` of Transformers in its ways of decoding; a static cache is compiled by Transformers itself on this device."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ..comparing import Results
from ..families import DECODERS, VOCABULARY
from ..rows import Row, Way

NEW = 5


def _there(way: Way, layers: int = 1) -> tuple[Any, dict[str, torch.Tensor]]:
    model = DECODERS[0].build("sdpa", None, layers).eval()
    batch = DECODERS[0].batch(True)
    return copy.deepcopy(model).to(way.device), {n: batch[n].to(way.device) for n in ("input_ids", "attention_mask")}


def _decoded(**options: Any) -> Any:
    def recipe(way: Way) -> Results:
        model, prompt = _there(way)
        made = model.generate(
            **prompt,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        assert made.sequences.device.type == way.device
        scores = torch.stack([s.cpu() for s in made.scores])
        scores = torch.where(scores.isinf(), 0.0, scores)
        return {"tokens": made.sequences.cpu(), "scores": scores}

    return recipe


def _assisted(way: Way) -> Results:
    model, prompt = _there(way, layers=2)
    helper, _ = _there(way)
    one = {n: t[:1] for n, t in prompt.items()}  # assistance takes one sequence at a time
    made = model.generate(**one, assistant_model=helper, max_new_tokens=NEW, do_sample=False)
    return {"tokens": made.cpu()}


def _sampled(way: Way) -> Results:
    """First tokens of many samples: none outside the 5 most probable, and as often as their probability says (within 4
    standard deviations); and the same again from the same seed. Which token is drawn is each device's own."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
    )
    config.initializer_range = 0.3  # so that the probabilities are unlike
    model = LlamaForCausalLM(config).eval().to(way.device)
    prompt = torch.arange(3, 11).expand(512, -1).to(way.device)

    def drawn() -> torch.Tensor:
        torch.manual_seed(7)
        sampling = {"do_sample": True, "top_k": 5, "temperature": 0.8, "max_new_tokens": 1, "min_new_tokens": 1}
        return model.generate(prompt, **sampling, pad_token_id=0)[:, -1].cpu()

    tokens = drawn()
    with torch.no_grad():
        logits = model(prompt[:1]).logits[0, -1].cpu() / 0.8
    logits[2] = -torch.inf  # the end is not allowed before the first token
    best = logits.topk(5)
    probabilities = best.values.softmax(-1)
    counts = torch.stack([(tokens == t).sum() for t in best.indices]).float()
    spread = (512 * probabilities * (1 - probabilities)).sqrt()
    return {
        "the most probable": best.indices,
        "none outside": torch.tensor(int(counts.sum()) == 512),
        "as often as they should be": ((counts - 512 * probabilities).abs() < 4 * spread + 1).all(),
        "the same from the same seed": torch.tensor(torch.equal(tokens, drawn())),
    }


BOTH = ("eager", "adaptive")
ROWS = [
    Row("generate", "greedy", _decoded(do_sample=False), BOTH),
    Row("generate", "beam search", _decoded(do_sample=False, num_beams=3), BOTH),
    Row("generate", "sampling", _sampled, BOTH),
    Row("generate", "static cache", _decoded(do_sample=False, cache_implementation="static"), ("compile",)),
    Row(
        "generate",
        "repetition penalty, no repeated pairs",
        _decoded(repetition_penalty=1.3, no_repeat_ngram_size=2),
        ("eager",),
    ),
    Row("generate", "assisted by a smaller model", _assisted, ("eager",)),
]
