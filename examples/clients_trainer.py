"""Transformers' Trainer on the device, interrupted and resumed bit for bit: python examples/clients_trainer.py

Trainer chooses the device by itself. Its checkpoints hold the random state of the CPU and of some accelerators, but not of
this device, so a resumed run with dropout would draw other masks; the callback below keeps that state beside them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed


class DeviceRandomState(TrainerCallback):
    """Saves the device's random state with each checkpoint, and restores it where training resumes from one."""

    def __init__(self) -> None:
        self._resumed: Path | None = None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.save(torch.neuron.get_rng_state(), self._file(args, state))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._resumed = self._file(args, state) if state.global_step else None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._resumed is not None and self._resumed.exists():
            torch.neuron.set_rng_state(torch.load(self._resumed))
        self._resumed = None

    @staticmethod
    def _file(args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / "rng_state_neuron.pth"


def main() -> None:
    set_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    tokens = torch.randint(3, 64, (16, 12))
    data = [{"input_ids": t, "labels": t.clone()} for t in tokens]
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for resume in (False, True):
            set_seed(0)
            model = LlamaForCausalLM(LlamaConfig(**sizes, attention_dropout=0.2))
            arguments = TrainingArguments(
                folder, max_steps=6, save_steps=3, logging_steps=1, report_to="none", per_device_train_batch_size=4
            )
            trainer = Trainer(model, arguments, train_dataset=data, callbacks=[DeviceRandomState()])
            trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-3" if resume else None)
            losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    print(f"on {trainer.args.device}: {losses[0]}")
    print(f"the resumed run went on with the same losses: {losses[0] == losses[1]}")


if __name__ == "__main__":
    main()
