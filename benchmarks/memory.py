"""What it costs that storages are counted, and how the figures stand beside the values that live on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .decoder import SMALL
from .measure import compare
from .rows import Row, compared
from .works import Training, adds, decoder

_COUNTED = 1.02  # at most


def _uncounted(template: Any, value: Any) -> torch.Tensor:
    """:meth:`Template.new` of the device without the counting, and nothing else left out."""
    from shakedown.neuron import buffer

    idle = template._idle
    try:
        entry = idle.pop()
        buffer._rename_capsule(entry[1], buffer._FRESH_NAME)
    except IndexError:
        entry = template._capsule()
    capsule, _, address = entry
    address.value = buffer._large_address(template.nbytes) if template.large else next(buffer._small_addresses)
    made = buffer._from_dlpack(capsule)
    idle.append(entry)
    made.untyped_storage().buffer = value
    return made


def _made_by(new: Callable[..., torch.Tensor], work: Callable[[], object]) -> Callable[[], None]:
    """`work`, with the device's tensors made by `new`."""
    from shakedown.neuron.buffer import Template

    counted = Template.new

    def run() -> None:
        Template.new = new  # type: ignore[method-assign]
        try:
            work()
        finally:
            Template.new = counted  # type: ignore[method-assign]

    return run


def counting() -> Iterator[Row]:
    """Both sides in one process; a storage that was made uncounted is not counted when it ends either."""
    from shakedown.neuron.buffer import Template

    step = Training(*decoder(SMALL), "neuron").step
    for name, work, repeats, blocks in (
        ("100 adds on 64x64", adds("neuron"), 20, 41),
        (f"eager step of the small decoder ({SMALL})", step, 5, 41),
    ):
        found = compare(_made_by(Template.new, work), _made_by(_uncounted, work), repeats=repeats, blocks=blocks)
        yield compared(f"memory: {name}", "the same without counting storages", _COUNTED, found)


def figures() -> Iterator[Row]:
    """``memory_allocated`` beside ``live_bytes`` where the phases of a step end, and the peak beside the most of these."""
    neuron, training = torch.neuron, Training(*decoder(SMALL), "neuron")
    for _ in range(3):
        training.step()
    allocated, live = [], []

    def look() -> None:
        neuron.synchronize()
        allocated.append(neuron.memory_allocated())
        live.append(neuron.live_bytes())

    neuron.reset_peak_memory_stats()
    look()
    training.optimizer.zero_grad(set_to_none=True)
    loss = training.forward(*training.data)
    look()
    loss.backward()
    look()
    training.optimizer.step()
    look()
    peak = neuron.max_memory_allocated()
    ratios = [a / b for a, b in zip(allocated, live)]
    yield Row(
        f"memory: eager step of the small decoder ({SMALL}), allocated bytes where phases end",
        "bytes of the values that live (live_bytes)",
        "none",
        f"{min(ratios):.3f}x to {max(ratios):.3f}x; peak {peak / max(allocated):.3f}x",
        None,
        {"allocated": allocated, "live": live, "peak": peak},
    )


def memory() -> Iterator[Row]:
    yield from figures()
    yield from counting()


CASES = {"memory": memory}
