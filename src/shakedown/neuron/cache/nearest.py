"""Why a program was compiled: the key that was not found beside the entry whose key is nearest."""

from __future__ import annotations

from typing import Any

from .key import Key, differences
from .store import Store, Stored


def explained(store: Store, name_or_key: str | None = None) -> list[dict[str, Any]]:
    """See :func:`shakedown.neuron.cache.explain`; for a name or key that only an entry has, its own row comes alone."""
    entries = list(store.entries())
    wanted = [
        (row["name"], Key(row["parts"]), row["kind"], row["when"])
        for row in store.misses()
        if name_or_key is None or _meant(name_or_key, row["name"], Key(row["parts"]).digest)
    ]
    if not wanted and name_or_key is not None:
        wanted = [
            (e.header.name, Key(e.header.parts), e.header.kind, e.header.created)
            for e in entries
            if _meant(name_or_key, e.header.name, e.header.digest)
        ]
        if not wanted:
            raise KeyError(name_or_key)
    last: dict[str, tuple[str, Key, str, float]] = {
        key.digest: (name, key, kind, when) for name, key, kind, when in wanted
    }
    return [_row(entries, *found) for found in sorted(last.values(), key=lambda f: f[3])]


def _meant(asked: str, name: str, digest: str) -> bool:
    return asked == name or (len(asked) >= 4 and digest.startswith(asked))


def _row(entries: list[Stored], name: str, key: Key, kind: str, when: float) -> dict[str, Any]:
    nearest = _nearest([e for e in entries if e.header.created <= when], name, key, kind)
    lines = ["no entry was there to compare it with: it is the first of its name"]
    if nearest is not None:
        lines = differences(key.parts, nearest.header.parts)
    return {
        "name": name,
        "digest": key.digest,
        "kind": kind,
        "when": when,
        "nearest": None
        if nearest is None
        else {"name": nearest.header.name, "digest": nearest.header.digest, "created": nearest.header.created},
        "differences": lines,
    }


def _nearest(entries: list[Stored], name: str, key: Key, kind: str) -> Stored | None:
    """Of the entries that are the same program or compute the same, the one with the most equal parts, then the newest."""

    def same(entry: Stored, part: str) -> bool:
        return part in key.parts and entry.header.parts.get(part) == key.parts[part]

    def near(entry: Stored) -> tuple[bool, int, float]:
        equal = sum(same(entry, part) for part in key.parts)
        return same(entry, "computation") or same(entry, "program"), equal, entry.header.created

    found = [
        e
        for e in entries
        if e.header.digest != key.digest
        and e.header.kind == kind
        and (e.header.name == name or same(e, "computation") or same(e, "program"))
    ]
    return max(found, key=near, default=None)
