"""The only reader of the environment in the device half: each variable once, with type, default and meaning."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .errors import ConfigError

T = TypeVar("T")


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("one of 1, true, yes, on, 0, false, no, off")


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise ValueError("a whole number above zero")
    return value


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(repr(a) for a in allowed)}")
        return text

    return parse


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable. ``setting()`` gives its value now; nothing is cached."""

    name: str
    default: T
    parse: Callable[[str], T]
    help: str

    def __call__(self) -> T:
        text = os.environ.get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError as allowed:
            raise ConfigError(f"{self.name}={text!r} cannot be used: it must be {allowed}") from None


DEVICE = Setting(
    "SHAKEDOWN_DEVICE",
    "auto",
    _choice("auto", "rehearsal", "off"),
    "auto: provide the `neuron` device unless torch-neuronx is installed; rehearsal: provide it even then; off: never",
)
CACHE_DIR = Setting(
    "SHAKEDOWN_CACHE_DIR",
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shakedown" / "executables",
    Path,
    "directory of the persistent executable cache",
)
CACHE = Setting("SHAKEDOWN_CACHE", True, _flag, "keep compiled executables on disk between processes")
PROFILE = Setting(
    "SHAKEDOWN_PROFILE",
    "native",
    str,
    "support profile: the name of a release whose documented limits are imitated, or the path of a TOML file",
)
MAX_PLANS = Setting(
    "SHAKEDOWN_MAX_PLANS", 20_000, _count, "operator programs kept in memory; the oldest half is dropped above it"
)
STRICT_FALLBACK = Setting(
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS",
    False,
    _flag,
    "an operator that has a lowering must not retreat to the CPU after an error; it raises instead",
)
