"""A training script as people have them, comparable with `shakedown parity`.

    python examples/train_tagger.py --steps 100
    shakedown parity examples/train_tagger.py --steps 100 -- --steps 100

What makes it comparable are the two variables: the device it uses, and the file that it appends the loss of each step to.
The third is optional: a script that reads it can also be compared in bfloat16.
"""

import argparse
import os

import torch
from tagger import build_model, build_optimizer, forward, make_batch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--save-at", type=int, default=0, help="step after which to save and to go on from what was saved")
options = parser.parse_args()

device = os.environ.get("SHAKEDOWN_PARITY_DEVICE", "cpu")
dtype = getattr(torch, os.environ.get("SHAKEDOWN_PARITY_DTYPE", "float32"))
losses = os.environ.get("SHAKEDOWN_PARITY_LOSSES", os.devnull)


def note(line):
    with open(losses, "a") as file:
        file.write(line + "\n")


torch.manual_seed(0)
model = build_model().to(device, dtype)
optimizer = build_optimizer(model.parameters())
for step in range(1, options.steps + 1):
    batch = {
        name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
        for name, value in make_batch(8, 40).items()
    }
    _, loss = forward(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    note(f"{step} {loss.item()!r}")
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
    if step == options.save_at:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        model.load_state_dict(saved["model"])
        optimizer = build_optimizer(model.parameters())
        optimizer.load_state_dict(saved["optimizer"])
        note(f"event restart {step + 1} from the state after step {step}")
