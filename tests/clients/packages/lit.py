"""Lightning, with the accelerator of examples/clients_lightning.py: its list of devices is fixed, its registry is open."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, WeightAveraging
from torch.utils.data import DataLoader, TensorDataset

from examples.clients_lightning import neuron_trainer

from ..comparing import Results
from ..rows import Row, Way, changes

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class _Module(pl.LightningModule):
    def __init__(self, way: Way, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        first = torch.nn.Linear(8, 16, bias=False)  # before a normalisation, a bias's gradient is nothing but rounding
        last = torch.nn.Linear(16, 4)
        self.net = torch.nn.Sequential(
            first, torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(dropout), last
        )
        self.call = [way.compile(self.net)]  # in a list, so that its weights are not listed twice
        self.seen: Results = {}

    def _loss(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.cross_entropy(self.call[0](x), y)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self._loss(batch)
        self.log("loss", loss)
        self.seen[f"loss {len(self.seen)}"] = loss.detach().float().cpu()
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("validation", self._loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, eps=1e-4)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def _loader() -> DataLoader:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 8, generator=generator), torch.randint(0, 4, (12,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4)


def _trainer(way: Way, precision: str = "32-true", **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    chosen = {**quiet, "enable_checkpointing": False, "max_epochs": 2, **options}
    if way.device == "cpu":
        return pl.Trainer(accelerator="cpu", precision=precision if way.narrow else "32-true", **chosen)
    return neuron_trainer(precision, **chosen)


def _fitted(precision: str = "32-true", averaged: bool = False, **options: Any) -> Any:
    def recipe(way: Way) -> Results:
        callbacks = [_Average()] if averaged else []
        module = _Module(way)
        start = {n: t.clone() for n, t in module.state_dict().items()}
        trainer = _trainer(way, precision, callbacks=callbacks, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, _loader(), _loader())
        assert trainer.strategy.root_device.type == way.device
        metrics = {n: torch.as_tensor(v).float().cpu() for n, v in trainer.callback_metrics.items()}
        return module.seen | metrics | changes(module, start)

    return recipe


class _Average(WeightAveraging):
    """The exponential moving average of PyTorch, kept by Lightning."""

    def __init__(self) -> None:
        super().__init__(multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))


class _DeviceRandomState(Callback):
    """Lightning's checkpoints hold no random state."""

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["neuron"] = torch.neuron.get_rng_state()

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        torch.neuron.set_rng_state(checkpoint["neuron"])


def _resumed(way: Way) -> Results:
    def fit(path: Any = None, epochs: int = 2) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        keep = [_DeviceRandomState()] if way.device != "cpu" else []
        kept = ModelCheckpoint(way.folder, filename="epoch-{epoch}", save_top_k=-1)
        trainer = _trainer(way, enable_checkpointing=True, callbacks=[*keep, kept], max_epochs=epochs)
        module = _Module(way, dropout=0.0 if way.device == "cpu" else 0.5)  # the CPU's state is not in the checkpoint
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(module, _loader(), ckpt_path=path)
        return {n: t.detach().cpu().clone() for n, t in module.state_dict().items()}

    whole, half = fit(), fit(epochs=1)
    again = fit(str(next(way.folder.glob("*epoch=0*.ckpt"))))
    return {
        "resumed equals unbroken": torch.tensor(all(torch.equal(again[n], t) for n, t in whole.items())),
        "the second epoch did something": torch.tensor(not torch.equal(whole["net.0.weight"], half["net.0.weight"])),
    }


HOW = "examples/clients_lightning.py"
ALL = ("eager", "adaptive", "compile")
ROWS = [
    Row("lightning", "fit, validation, logging, schedule", _fitted(), ALL, how=HOW),
    Row("lightning", "bf16-mixed", _fitted("bf16-mixed"), ALL, torch.bfloat16, how=f"{HOW}: the device of autocast"),
    Row(
        "lightning",
        "accumulation, clipping",
        _fitted(accumulate_grad_batches=2, gradient_clip_val=0.5),
        ("eager",),
        how=HOW,
    ),
    Row("lightning", "moving average of weights", _fitted(averaged=True), ("eager",), how=HOW),
    Row(
        "lightning",
        "checkpoint and resume, with dropout",
        _resumed,
        ("eager", "adaptive"),
        how=f"{HOW}, and a callback for the random state",
    ),
]
