"""Time, memory and the cache of compiled programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ..fault import By, Recipe, fault
from ..inject import Device

_GROUP: Final = "time, memory, cache"
_SERIES = Recipe(demand={"timing.steps": "24"})
_CLOCK = Recipe("plain", cases=("4x6",), demand={"timing.scaling_tolerance": "0.1"})
_WARM = Recipe("plain", cases=("4x6",), warm=True, share=False)
_STORE = "shakedown.neuron.cache.store"
_HELD: list[Any] = []


@fault(By("untested(timing)", "reading a result after waiting"), group=_GROUP, recipe=_CLOCK)
def timer_does_not_wait(device: Device) -> None:
    """Calls return at once, and waiting for them does not wait."""

    def asynchronous(start: Any) -> Any:
        def begin() -> None:
            import sys

            config = sys.modules["jax"].config
            update = config.update
            config.update = lambda name, value: update(name, value or name == "jax_cpu_enable_async_dispatch")
            try:
                start()
            finally:
                config.update = update

        return begin

    device.patch("shakedown.neuron.runtime", "start", asynchronous)
    device.patch("shakedown.neuron.runtime", "synchronize", lambda wait: lambda reason: None)


def _slower(seconds: Any) -> Any:
    """A kernel that takes ``seconds(call)`` longer."""

    def wrap(kernel: Any) -> Any:
        calls = 0

        def slow(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            time.sleep(seconds(calls))
            return kernel(*args, **kwargs)

        return slow

    return wrap


@fault(By("untested(timing)", "drifts"), group=_GROUP, recipe=_SERIES)
def timing_drift(device: Device) -> None:
    """Each step takes 10 ms longer than the one before it."""
    device.call("aten::gelu", _slower(lambda call: max(0, call - 20) * 0.01))


@fault(By("lasting-change"), group=_GROUP, recipe=_SERIES)
def slower_for_good(device: Device) -> None:
    """From some step on, all steps take 200 ms longer."""
    device.call("aten::gelu", _slower(lambda call: 0.2 if call > 34 else 0.0))


def _forgetting(chosen: Any) -> Any:
    """A kernel that forgets its compiled program before a call."""

    def wrap(kernel: Any) -> Any:
        calls = 0

        def forgetful(*args: Any, **kwargs: Any) -> Any:
            import sys

            nonlocal calls
            calls += 1
            if chosen(calls):
                dispatch = sys.modules["shakedown.neuron.dispatch"]
                for operator in dispatch._operators.values():
                    if operator.name == "aten::gelu":
                        operator.plans.clear()
            return kernel(*args, **kwargs)

        return forgetful

    return wrap


@fault(By("late-compile"), group=_GROUP, recipe=_SERIES)
def late_compile(device: Device) -> None:
    """A program is compiled again in the middle of the timed steps."""
    device.call("aten::gelu", _forgetting(lambda call: call == 32))


@fault(By("untested(timing)", "compiled or loaded a program"), group=_GROUP, recipe=_SERIES)
def compiles_every_step(device: Device) -> None:
    """One operator is compiled again at every step."""
    device.call("aten::gelu", _forgetting(lambda call: True))


def _leaking(what: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A kernel that never lets go of what `what` makes of its first argument."""

    def wrap(kernel: Any) -> Any:
        def leaky(*args: Any, **kwargs: Any) -> Any:
            _HELD.append(what(args[0]))
            return kernel(*args, **kwargs)

        return leaky

    return wrap


@fault(By("memory-grows(device)"), group=_GROUP)
def device_leak(device: Device) -> None:
    """Every step leaves a tensor behind on the device."""
    device.call("aten::nll_loss_forward", _leaking(lambda first: first.repeat(64, 1)))


@fault(By("memory-grows(host)"), group=_GROUP)
def host_leak(device: Device) -> None:
    """Every step leaves 8 MiB behind in the process."""
    device.call("aten::nll_loss_forward", _leaking(lambda first: bytearray(b"\1") * (8 << 20)))


@fault(By("cache-not-warm"), group=_GROUP, recipe=_WARM)
def cache_never_hits(device: Device) -> None:
    """Compiled programs are written to the cache and never found there."""
    device.patch(_STORE, "Store.get", lambda get: lambda store, digest: None)


@fault(By("cache-not-warm", "0 files"), group=_GROUP, recipe=_WARM)
def cache_not_kept(device: Device) -> None:
    """Compiled programs are not written to the cache."""
    device.patch(_STORE, "Store._open", lambda _: _no_disk)


def _no_disk(store: Any) -> None:
    raise OSError("no disk")


@fault(By("mismatch(output)", phase="forward"), group=_GROUP, recipe=_WARM)
def stale_cache_entry(device: Device) -> None:
    """A warm cache gives the program of another operator."""

    def make(get: Any) -> Any:
        def wrong(store: Any, digest: str) -> Any:
            found = get(store, digest)
            other = {"aten.hypot": "aten.atan2", "aten.atan2": "aten.hypot"}.get(found[0].name) if found else None
            for entry in store.entries() if other else ():
                if entry.header.name == other and entry.header.kind == found[0].kind == "executable":
                    return found[0], get(store, entry.header.digest)[1]
            return found

        return wrong

    device.patch(_STORE, "Store.get", make)
