"""Processes that end, hang or forget: what a restart loses, and what a crash leaves."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

from ..fault import By, Recipe, fault
from ..inject import Device

_GROUP: Final = "process"
_RESTART = Recipe(kinds=("restart",), demand={"variations.restart": "true"})


@fault(By("crashed", "out of device memory"), group=_GROUP)
def raises(device: Device) -> None:
    """An operator of the backward pass raises."""

    def wrap(kernel: Any) -> Any:
        def failing(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("out of device memory")

        return failing

    device.call("aten::gelu_backward", wrap)


@fault(By("crashed", "exit code 7"), group=_GROUP)
def exits(device: Device) -> None:
    """The process ends in the backward pass, with an exit code and without a word."""
    device.call("aten::gelu_backward", lambda kernel: lambda *args, **kwargs: os._exit(7))


@fault(By("killed", "SIGKILL"), group=_GROUP)
def killed(device: Device) -> None:
    """The process is killed from outside in the backward pass, as a system without memory does."""
    device.call("aten::gelu_backward", lambda kernel: lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))


@fault(By("timeout", "still running"), group=_GROUP, recipe=Recipe(demand={"run.timeout_seconds": "45"}))
def hangs(device: Device) -> None:
    """An operator of the backward pass never returns."""
    device.call("aten::gelu_backward", lambda kernel: lambda *args, **kwargs: time.sleep(3600))


@fault(By("killed", "SIGSEGV"), group=_GROUP)
def dies_at_the_end(device: Device) -> None:
    """The process dies when everything is done, while it closes down."""
    if device.role == "candidate":
        import atexit

        atexit.register(os.kill, os.getpid(), signal.SIGSEGV)


def _after(device: Device) -> bool:
    return device.role == "restart_after"


@fault(By("resume-broken(optimizer)", "state tensors differ or are missing"), group=_GROUP, recipe=_RESTART)
def optimizer_lost(device: Device) -> None:
    """After a restart the optimizer's state is empty."""
    if _after(device):
        empty: dict[str, Any] = {"state": {}}
        device.patch(
            "torch.optim.optimizer",
            "Optimizer.load_state_dict",
            lambda load: lambda self, kept: load(self, kept | empty),
        )


@fault(By("resume-broken(optimizer)", "settings differ"), group=_GROUP, recipe=_RESTART)
def rate_lost(device: Device) -> None:
    """After a restart the learning rate is the one of the source and not the one that was saved."""
    if not _after(device):

        def make(step: Any) -> Any:
            def scheduled(self: Any, *args: Any, **kwargs: Any) -> Any:
                for group in self.param_groups:
                    group["lr"] *= 0.9
                return step(self, *args, **kwargs)

            return scheduled

        device.patch("torch.optim.adamw", "AdamW.step", make)
        return

    def keep_rate(load: Any) -> Any:
        def loaded(self: Any, kept: Any) -> Any:
            rates = [group["lr"] for group in self.param_groups]
            load(self, kept)
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate

        return loaded

    device.patch("torch.optim.optimizer", "Optimizer.load_state_dict", keep_rate)


@fault(By("resume-broken(weights)"), group=_GROUP, recipe=_RESTART)
def checkpoint_rounded(device: Device) -> None:
    """A checkpoint keeps weights in bfloat16."""
    if not _after(device):

        def make(save: Any) -> Any:
            def rounded(kept: Any, *args: Any, **kwargs: Any) -> Any:
                model = {name: value.bfloat16().to(value.dtype) for name, value in kept["model"].items()}
                return save(kept | {"model": model}, *args, **kwargs)

            return rounded

        device.patch("torch", "save", make)


@fault(
    By("resume-broken(rng)"),
    group=_GROUP,
    recipe=Recipe("plain", cases=("4x6",), kinds=("restart",), demand={"variations.restart": "true"}),
)
def random_state_lost(device: Device) -> None:
    """After a restart the device's random numbers begin anew."""
    if _after(device):
        device.patch("shakedown.neuron.device", "set_rng_state", lambda put: lambda *args, **kwargs: None)


@fault(By("resume-broken(data)"), group=_GROUP, recipe=_RESTART)
def data_shifted(device: Device) -> None:
    """After a restart the data begin one batch too late."""
    if _after(device):

        def make(restore: Any) -> Any:
            def shifted(*args: Any, **kwargs: Any) -> Any:
                found = restore(*args, **kwargs)
                for batches in found.batches.values():
                    batches.append(batches.pop(0))
                return found

            return shifted

        device.patch("shakedown.readiness.snapshot", "restore", make)


@fault(By("crashed", "same device"), group=_GROUP, recipe=_RESTART)
def state_left_on_the_host(device: Device) -> None:
    """After a restart the optimizer's state stays on the CPU, where the checkpoint was loaded."""
    if _after(device):

        def make(load: Any) -> Any:
            def left(self: Any, kept: Any) -> Any:
                load(self, kept)
                for entries in self.state.values():
                    for name, value in entries.items():
                        if name != "step":
                            entries[name] = value.cpu()

            return left

        device.patch("torch.optim.optimizer", "Optimizer.load_state_dict", make)
