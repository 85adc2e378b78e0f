"""Transformers' ``Trainer``: it finds the device by itself, as it does where TorchNeuron is installed."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

from examples.clients_trainer import DeviceRandomState

from ..comparing import Results
from ..families import DECODERS, VOCABULARY
from ..rows import Row, Way, changes

STEPS = 4


def _sentences(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(3, VOCABULARY, (12,), generator=generator) for _ in range(count)]
    return [{"input_ids": r, "attention_mask": torch.ones_like(r), "labels": r.clone()} for r in rows]


def _accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def _trainer(way: Way, model: Any, **options: Any) -> Trainer:
    """A trainer on the way's device. The device is not named: only the CPU is, where that is meant."""
    AcceleratorState._reset_state(True)  # Accelerate decides once in a process, and rows follow each other
    PartialState._reset_state()
    chosen = {
        "output_dir": str(way.folder / "runs"),
        "use_cpu": way.device == "cpu",
        "per_device_train_batch_size": 2,
        "max_steps": STEPS,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "adam_epsilon": 1e-5,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        **options,
    }
    callbacks = chosen.pop("callbacks", [])
    trainer = Trainer(
        model,
        TrainingArguments(**chosen),
        train_dataset=_sentences(8),
        eval_dataset=_sentences(4),
        compute_metrics=_accuracy,
        callbacks=callbacks,
    )
    assert next(trainer.model.parameters()).device.type == way.device, "the trainer did not choose the device"
    return trainer


def _logged(trainer: Trainer, start: dict[str, torch.Tensor]) -> Results:
    """Every number that was logged, and the change of the weights."""
    found: Results = {}
    for entry in trainer.state.log_history:
        for name, value in entry.items():
            if "runtime" not in name and "per_second" not in name:
                found[f"{name} at {entry['step']}"] = torch.tensor(value, dtype=torch.float64)
    return found | changes(trainer.accelerator.unwrap_model(trainer.model), start)


def _training(**options: Any) -> Any:
    def recipe(way: Way) -> Results:
        chosen = {k: v for k, v in options.items() if way.narrow or k != "bf16"}
        if chosen.pop("torch_compile", False):  # on the CPU the same graphs, run as captured
            chosen["torch_compile_backend"] = "aot_eager" if way.device == "cpu" else "neuron"
        model = DECODERS[0].build("sdpa", None, 1)
        start = {n: t.clone() for n, t in model.state_dict().items()}
        trainer = _trainer(way, model, **chosen)
        trainer.train()
        return _logged(trainer, start)

    return recipe


_SCHEDULE = {"lr_scheduler_type": "cosine", "warmup_steps": 2, "label_smoothing_factor": 0.1, "max_grad_norm": 0.5}
_EVALUATION = {"eval_strategy": "steps", "eval_steps": 2}


class _Stop(TrainerCallback):
    """Ends training after `step`, as an interruption does, and leaves the schedule as long as it was."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step


def _resumed(way: Way) -> Results:
    """What a run that was interrupted and resumed differs from one that was not, with dropout: nothing at all."""

    def model() -> Any:
        set_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
        )
        config.attention_dropout = 0.3
        return LlamaForCausalLM(config)

    def state(trainer: Trainer) -> dict[str, torch.Tensor]:
        return {n: t.detach().cpu() for n, t in trainer.model.state_dict().items()}

    saving = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "linear"}
    keep = [DeviceRandomState()] if way.device != "cpu" else []  # Trainer keeps the CPU's itself
    whole = _trainer(way, model(), **saving, callbacks=keep)
    whole.train()
    expected = state(whole)
    interrupted = _trainer(way, model(), **saving, callbacks=[*keep, _Stop(2)])
    interrupted.train()
    differs = max((state(interrupted)[n] - t).abs().max().item() for n, t in expected.items())
    again = _trainer(way, model(), **saving, callbacks=keep)
    again.train(resume_from_checkpoint=str(way.folder / "runs" / "checkpoint-2"))
    found = state(again)
    equal = all(torch.equal(found[n], t) for n, t in expected.items())
    return {"resumed equals unbroken": torch.tensor(equal), "two steps did something": torch.tensor(differs > 0)}


def _predicted(way: Way) -> Results:
    trainer = _trainer(way, DECODERS[0].build("sdpa", None, 1), per_device_eval_batch_size=3)
    made = trainer.predict(_sentences(5))
    return {"logits": torch.from_numpy(made.predictions), "labels": torch.from_numpy(made.label_ids)}


BOTH = ("eager", "adaptive")
ROWS = [
    Row("trainer", "AdamW, evaluation, metrics", _training(**_EVALUATION), BOTH),
    Row("trainer", "warm-up and cosine, label smoothing, clipping", _training(**_SCHEDULE), BOTH),
    Row("trainer", "bf16=True", _training(bf16=True), BOTH, torch.bfloat16),
    Row(
        "trainer",
        "accumulation, checkpointing",
        _training(gradient_accumulation_steps=2, gradient_checkpointing=True, max_steps=2),
        BOTH,
    ),
    Row("trainer", "two data workers", _training(dataloader_num_workers=2, max_steps=2), ("eager",)),
    Row("trainer", "Adafactor", _training(optim="adafactor"), ("eager",)),
    Row("trainer", "SGD", _training(optim="sgd", learning_rate=0.1), ("eager",)),
    Row("trainer", "torch_compile=True", _training(torch_compile=True), ("compile",)),
    Row(
        "trainer",
        "torch_compile=True, bf16=True",
        _training(torch_compile=True, bf16=True),
        ("compile",),
        torch.bfloat16,
    ),
    Row("trainer", "interrupted and resumed, with dropout", _resumed, BOTH, how="examples/clients_trainer.py"),
    Row("trainer", "predict", _predicted, ("eager",)),
]
