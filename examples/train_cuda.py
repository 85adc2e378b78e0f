"""A training script as it is written for one GPU, with CUDA named wherever people name it. It knows nothing of this project.

    shakedown exec --redirect-cuda examples/train_cuda.py --epochs 2

runs it on the device and lists each line that said "cuda" (docs/exec.md). Without the option, PyTorch refuses its third line
of training for want of CUDA, as it should.
"""

import argparse
import io
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self, words: int, width: int, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, tags)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        positions = torch.arange(words.shape[1], device="cuda" if words.is_cuda else "cpu")
        decay = torch.exp(-(positions[:, None] - positions[None, :]).abs().float())
        return self.out(self.norm(x + torch.relu(self.mix(decay @ x))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--amp", action="store_true", help="bfloat16 where autocast allows it")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    options = parser.parse_args()

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    words = torch.randint(0, 50, (64, 12))
    tags = (words * 7 + words.roll(1, dims=1)) % 5
    loader = DataLoader(TensorDataset(words, tags), batch_size=16, pin_memory=True)

    model = Tagger(50, 16, 5).cuda()
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    started = time.perf_counter()
    for epoch in range(options.epochs):
        for x, y in loader:
            x, y = x.cuda(non_blocking=True), y.to("cuda:0", non_blocking=True)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=options.amp):
                loss = nn.functional.cross_entropy(run(x).flatten(0, 1).float(), y.flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.6f}")
        torch.cuda.synchronize()
        print(f"epoch {epoch} after {time.perf_counter() - started:.1f} s on {torch.cuda.get_device_name(0)}")

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    again = torch.load(file, map_location="cuda:0")
    assert all(value.is_cuda for value in again.values())


if __name__ == "__main__":
    main()
