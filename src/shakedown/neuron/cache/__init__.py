"""``torch.neuron.cache``: compiled executables on disk, and what became of each look-up.

What is here is light: ``import torch`` loads it. The directory is opened with the first program.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import config, events

if TYPE_CHECKING:
    from .store import Store

__all__ = ["current", "directory", "explain", "misses", "stats"]
_stores: dict[str, tuple[tuple[Any, ...], Store]] = {}  # with the settings that each was opened by


def directory() -> Path:
    """Where executables are kept."""
    return config.CACHE_DIR() / "executables"


def current(kind: str = "executables") -> Store | None:
    """The store of this process for one `kind` of entries, by today's settings; None when nothing is kept on disk."""
    if not config.CACHE():
        return None
    settings = (
        config.CACHE_DIR() / kind,
        config.CACHE_MAX_SIZE() << 20,
        config.CACHE_MAX_ENTRIES(),
        config.CACHE_LOCK_TIMEOUT(),
        os.getpid(),
    )
    opened_by, store = _stores.get(kind, (None, None))
    if store is None or opened_by != settings:
        from .store import Store

        store = Store(settings[0], max_bytes=settings[1], max_entries=settings[2], lock_timeout=settings[3])
        _stores[kind] = settings, store
    return store


def stats() -> dict[str, Any]:
    """What became of this process's look-ups since ``events.clear()``, and where the cache is.

    ``hits`` were found on disk, ``misses`` not; ``compiled`` were compiled in ``compile_seconds``; ``traces_saved`` programs
    needed no tracing either; ``load_seconds`` went into reading and linking; ``bytes_read`` and ``bytes_written`` as they are on
    disk; ``evicted`` entries were removed for the caps by this process; ``refused`` ones could not be used, by reason;
    ``waited`` is how often, and ``waited_seconds`` how long, another process was waited for.
    """
    rows = [row for row in events.snapshot() if row["kind"] == "cache"]

    def total(name: str, what: str, detail: str | None = None) -> Any:
        return sum(r[what] for r in rows if r["name"] == name and (detail is None or r["detail"] == detail))

    refused: dict[str, int] = {}
    for row in rows:
        if row["name"] == "refused":
            refused[row["detail"]] = refused.get(row["detail"], 0) + row["count"]
    store = current()
    return {
        "enabled": store is not None,
        "directory": None if store is None else str(store.root),
        "writable": store is not None and store.writable,
        "hits": total("hit", "count") - total("hit", "count", "trace"),
        "misses": total("miss", "count"),
        "traces_saved": total("hit", "count", "trace"),
        "compiled": total("compiled", "count"),
        "compile_seconds": total("compiled", "seconds"),
        "load_seconds": total("hit", "seconds"),
        "bytes_read": total("hit", "nbytes"),
        "bytes_written": total("stored", "nbytes"),
        "evicted": total("evicted", "count"),
        "refused": refused,
        "waited": total("waited", "count"),
        "waited_seconds": total("waited", "seconds"),
    }


def misses() -> list[dict[str, Any]]:
    """What was not found lately, by any process that uses this directory, the latest last.

    Each with ``name``, ``kind``, ``when`` (seconds since the epoch) and the ``parts`` of its key.
    """
    store = current()
    return [] if store is None else store.misses()


def explain(name_or_key: str | None = None) -> list[dict[str, Any]]:
    """Why programs were compiled instead of found: for each of the last misses, how its key differs from the nearest entry.

    Args:
        name_or_key: a program's name, or its key's first digits. None: all misses that are on record.

    Returns:
        Rows with ``name``, ``digest``, ``kind``, ``when``, ``nearest`` (name, digest and time of the entry that is most alike,
        or None), and ``differences``: one line for each part of the key that differs.

    Raises:
        KeyError: neither a miss nor an entry has such a name or key.
    """
    from .nearest import explained

    store = current()
    return [] if store is None else explained(store, name_or_key)
