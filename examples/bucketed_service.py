"""A service that meets every length: a decoder compiled for a few of them, and how much of its work is padding.

    python examples/bucketed_service.py

Prints the edges, the programs that were compiled, and the share of padding, for edges that are opened as requests come and for
edges that are planned from known lengths.
"""

from __future__ import annotations

import random

import torch
from torch import nn

from shakedown.neuron import bucketed, events, plan_buckets

LONGEST, REQUESTS, PROGRAMS = 128, 200, 4


class Decoder(nn.Module):
    """Embedding, causal attention over real positions, projection to the next token."""

    def __init__(self, vocabulary: int = 64, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """int64 [batch, length], and 1 where a position is real -> logits, float32 [batch, length, vocabulary]."""
        x = self.embedding(input_ids)
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        attended, _ = self.attention(x, x, x, attn_mask=ahead, key_padding_mask=attention_mask == 0, need_weights=False)
        return self.out(x + attended)


def main() -> None:
    torch.manual_seed(0)
    dice = random.Random(0)
    lengths = [min(LONGEST, 1 + int(dice.expovariate(1 / 30))) for _ in range(REQUESTS)]
    model = Decoder().to("neuron").eval()
    compiled = torch.compile(model, backend="neuron", dynamic=False, fullgraph=True)

    plan = plan_buckets(lengths, max_programs=PROGRAMS, longest=LONGEST)
    print(f"planned: {plan.reason}")
    ways = {
        "opened as requests come": bucketed(
            compiled, max_programs=PROGRAMS, longest=LONGEST, mask="attention_mask", device="neuron"
        ),
        "planned from lengths": bucketed(compiled, buckets=plan, mask="attention_mask", device="neuron", check=True),
    }
    for name, serve in ways.items():
        events.clear("compile")
        with torch.no_grad():
            for length in lengths:
                logits = serve(torch.randint(0, 64, (1, length)))
                assert logits.shape == (1, length, 64)
        found = serve.stats()
        print(
            f"{name}: {found.requests} requests, {len(found.lengths)} lengths, buckets {list(serve.buckets)}, "
            f"{found.programs} programs, {found.waste:.0%} of the work is padding"
        )


if __name__ == "__main__":
    main()
