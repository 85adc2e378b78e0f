"""A Hugging Face decoder as a workload: Llama at reduced size with random weights, nothing to download.

    pip install 'shakedown[clients]'
    shakedown run examples/llama.py

Change `CONFIG` for another size, or the two classes for another family (docs/clients.md lists those that were tried).
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CASES = ("4x32", "2x64")
DTYPES = ("float32", "bfloat16")
CONFIG = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
DIMENSIONS = {"width": CONFIG["hidden_size"], "vocabulary": CONFIG["vocab_size"]}


def build_model():
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


def make_batch(size, length):
    lengths = torch.randint(length // 2, length + 1, (size,))
    mask = (torch.arange(length) < lengths.unsqueeze(1)).long()
    tokens = torch.randint(3, CONFIG["vocab_size"], (size, length)) * mask
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def forward(model, batch):
    out = model(**batch)
    return out.logits, out.loss


def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)
