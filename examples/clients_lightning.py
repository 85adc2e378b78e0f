"""Lightning on the device: python examples/clients_lightning.py

Lightning has a fixed list of devices, and a class to extend it with. Three things have to be said: the accelerator, the
strategy (Lightning takes the CPU for one device of an accelerator that it does not know), and, for mixed precision, the
device of autocast (it takes CUDA).
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.accelerators.accelerator import Accelerator
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy


class NeuronAccelerator(Accelerator):
    """The ``neuron`` device as Lightning's accelerator; ``Trainer(accelerator="neuron")`` once it is registered."""

    def setup_device(self, device: torch.device) -> None:
        if device.type != "neuron":
            raise ValueError(f"the device should be neuron, got {device}")
        torch.neuron.set_device(device)

    def teardown(self) -> None:
        torch.neuron.synchronize()

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {"bytes": torch.neuron.live_bytes()}

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return list(range(devices)) if isinstance(devices, int) else [int(d) for d in devices]

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("neuron", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        return torch.neuron.device_count()

    @staticmethod
    def is_available() -> bool:
        return hasattr(torch, "neuron") and torch.neuron.is_available()

    @staticmethod
    def name() -> str:
        return "neuron"


AcceleratorRegistry.register("neuron", NeuronAccelerator, "AWS Trainium, or the host in its place")


def neuron_trainer(precision: Any = "32-true", **options: Any) -> pl.Trainer:
    """``Trainer(**options)`` on the device; `precision` "32-true", "bf16-true" or "bf16-mixed"."""
    if precision.endswith("-mixed"):
        options["plugins"] = [MixedPrecision(precision, device="neuron"), *options.pop("plugins", [])]
    else:
        options["precision"] = precision
    return pl.Trainer(accelerator="neuron", strategy=SingleDeviceStrategy(torch.device("neuron", 0)), **options)


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    pl.seed_everything(0)
    x = torch.randn(32, 8)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    trainer = neuron_trainer(
        "bf16-mixed", max_epochs=2, enable_checkpointing=False, logger=False, enable_progress_bar=False
    )
    model = Regression()
    trainer.fit(model, data)
    print(f"trained on {trainer.strategy.root_device}, loss {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    main()
