"""The key of an entry: named parts, so that a person can ask why something was not found and get an answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

# What each part says, for :func:`differences`. A part without a line here is called by its name.
MEANING = {
    "computation": "the computation itself (its StableHLO)",
    "signature": "inputs and results",
    "program": "the program that was to be traced",
    "options": "compiler options",
    "flags": "compiler variables (XLA_FLAGS and others)",
    "versions": "versions of jax, jaxlib and the PJRT plugin",
    "sources": "the device's own source",
    "tracing": "versions and settings that tracing depends on",
    "device": "kind and number of devices",
    "host": "this computer's processor",
}


@dataclass(frozen=True)
class Key:
    """Parts by name, each a short text: a value that can be read, or a digest of something long."""

    parts: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """40 hexadecimal digits; names the entry's file."""
        text = json.dumps(dict(self.parts), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def digest_of(data: bytes) -> str:
    """A part made of something long."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """One line for each part that is not the same: "compiler options: A, was B"."""
    lines = []
    for name in sorted({*ours, *theirs}, key=lambda n: (list(MEANING).index(n) if n in MEANING else 99, n)):
        now, was = ours.get(name), theirs.get(name)
        if now == was:
            continue
        what = MEANING.get(name, name)
        if name in ("computation", "program", "sources"):  # digests say nothing to anybody
            lines.append(f"{what} is another")
        else:
            lines.append(f"{what}: {_changed(now, was)}")
    return lines


def _changed(now: str | None, was: str | None) -> str:
    """Only the words that changed, where both are lists of words."""
    if now is None or was is None:
        return f"{now or 'none'}, was {was or 'none'}"
    new, old = now.split(), was.split()
    only_new = [w for w in new if w not in old]
    only_old = [w for w in old if w not in new]
    return f"{' '.join(only_new) or 'none'}, was {' '.join(only_old) or 'none'}"
