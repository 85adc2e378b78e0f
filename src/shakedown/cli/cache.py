"""``shakedown cache``: what is in the cache of executables, why something was not, and making room."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..neuron.sizes import readable
from .common import BAD_INPUT, FAILED, fail, failures

if TYPE_CHECKING:
    from shakedown.neuron.cache.store import Store, Stored

app = typer.Typer(
    no_args_is_help=True, help="The cache of compiled executables: what is there, why not, and making room."
)

_Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="The caches' root. Default: SHAKEDOWN_CACHE_DIR, or shakedown/ in the user's cache directory."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _store(root: Path | None, as_json: bool) -> Store:
    from shakedown.neuron import cache, config
    from shakedown.neuron.cache.store import Store
    from shakedown.neuron.errors import ConfigError

    try:
        directory = cache.directory() if root is None else root / "executables"
        size, entries = config.CACHE_MAX_SIZE() << 20, config.CACHE_MAX_ENTRIES()
        timeout = config.CACHE_LOCK_TIMEOUT()
    except ConfigError as error:
        raise fail(str(error), BAD_INPUT, as_json) from None
    if root is not None and not root.is_dir():
        raise fail(f"{root} is no directory; name the caches' root, which holds executables/", BAD_INPUT, as_json)
    return Store(directory, max_bytes=size, max_entries=entries, lock_timeout=timeout)


@contextlib.contextmanager
def _changing(store: Store, as_json: bool) -> Iterator[None]:
    try:
        with failures(as_json):
            yield
    except (OSError, TimeoutError) as error:
        raise fail(f"{store.root} cannot be changed: {error}", FAILED, as_json) from None


def _host_of_here() -> str:
    """The processor part of a key made on this computer. Loads JAX, which stats alone need."""
    from shakedown.neuron.executables import host

    return host()


@app.command()
def stats(directory: _Dir = None, as_json: _Json = False) -> None:
    """Entries, bytes and caps of the cache, and how much of it this computer can use."""
    store = _store(directory, as_json)
    entries = list(store.entries())
    here = _host_of_here() if entries else ""
    now = time.time()
    executables = [e for e in entries if e.header.kind != "trace"]
    found: dict[str, Any] = {
        "directory": str(store.root),
        "entries": len(entries),
        "executables": len(executables),
        "traces": len(entries) - len(executables),
        "bytes": sum(e.file_bytes for e in entries),
        "max_bytes": store.max_bytes,
        "max_entries": store.max_entries,
        "compile_seconds": round(sum(e.header.seconds for e in executables), 3),
        "for_this_computer": sum(e.header.parts.get("host") == here for e in entries),
        "oldest_use_seconds": round(now - min((e.last_use for e in entries), default=now), 1),
        "newest_use_seconds": round(now - max((e.last_use for e in entries), default=now), 1),
    }
    if as_json:
        print(json.dumps(found, indent=1))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("directory", escape(found["directory"]))
    table.add_row("entries", f"{found['entries']} of at most {found['max_entries']}")
    table.add_row("", f"{found['executables']} executables, {found['traces']} traces")
    table.add_row("size", f"{readable(found['bytes'])} of at most {readable(found['max_bytes'])}")
    table.add_row("took to compile", f"{found['compile_seconds']:.1f} s")
    table.add_row("for this computer", f"{found['for_this_computer']} of {found['entries']}")
    if entries:
        table.add_row(
            "last used", f"between {_age(found['oldest_use_seconds'])} and {_age(found['newest_use_seconds'])} ago"
        )
    Console(soft_wrap=True).print(table, highlight=False)


@app.command("list")
def list_(
    directory: _Dir = None,
    sort: Annotated[str, typer.Option(help="use, size, seconds or name.")] = "use",
    limit: Annotated[int, typer.Option(min=0, help="Entries to print; 0: all.")] = 50,
    as_json: _Json = False,
) -> None:
    """Each entry: its key, name, kind, size, the seconds that it took to compile, and its last use."""
    orders: dict[str, Any] = {
        "use": lambda e: -e.last_use,
        "size": lambda e: -e.file_bytes,
        "seconds": lambda e: -e.header.seconds,
        "name": lambda e: e.header.name,
    }
    if sort not in orders:
        raise fail(f"--sort {sort!r} is none of {', '.join(orders)}", BAD_INPUT, as_json)
    entries = sorted(_store(directory, as_json).entries(), key=orders[sort])
    shown = entries[: limit or None]
    if as_json:
        print(json.dumps([_plain(e) for e in shown], indent=1))
        return
    table = Table("key", "kind", "name", "size", "compiled in", "last use", box=None, pad_edge=False)
    for e in shown:
        h = e.header
        compiled = "" if h.kind == "trace" else f"{h.seconds:.3f} s"
        when = datetime.fromtimestamp(e.last_use).isoformat(" ", "seconds")
        table.add_row(h.digest[:12], h.kind, escape(h.name), readable(e.file_bytes), compiled, when)
    console = Console(soft_wrap=True)
    console.print(table, highlight=False)
    if len(shown) < len(entries):
        console.print(f"{len(shown)} of {len(entries)} entries; --limit 0 prints all", highlight=False)


def _plain(entry: Stored) -> dict[str, Any]:
    header = asdict(entry.header)
    header.pop("note")
    return header | {"last_use": entry.last_use, "file_bytes": entry.file_bytes, "path": str(entry.path)}


@app.command()
def explain(
    name_or_key: Annotated[
        str | None, typer.Argument(help="A program's name, or the first digits of a key. Default: the last misses.")
    ] = None,
    directory: _Dir = None,
    limit: Annotated[int, typer.Option(min=1, help="Misses to explain, the latest.")] = 20,
    as_json: _Json = False,
) -> None:
    """Why a program was compiled: which named part of its key differs from the nearest entry."""
    from shakedown.neuron.cache.nearest import explained

    store = _store(directory, as_json)
    try:
        rows = explained(store, name_or_key)[-limit:]
    except KeyError:
        raise fail(
            f"{name_or_key!r} is neither the name nor the key of a miss or an entry in {store.root}; "
            "`shakedown cache list` has the entries",
            BAD_INPUT,
            as_json,
        ) from None
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    console = Console(soft_wrap=True)
    if not rows:
        console.print(f"no misses are on record in {store.root}", highlight=False, markup=False)
    for row in rows:
        when = datetime.fromtimestamp(row["when"]).isoformat(" ", "seconds")
        near = row["nearest"]
        beside = "" if near is None else f", beside {near['name']} ({near['digest'][:12]})"
        console.print(f"{row['name']} ({row['digest'][:12]}), {when}{beside}", highlight=False, markup=False)
        for line in row["differences"]:
            console.print(f"  {line}", highlight=False, markup=False)


@app.command()
def prune(
    directory: _Dir = None,
    older_than: Annotated[str | None, typer.Option(help="Remove what was not used for so long: 12h, 30d, 8w.")] = None,
    max_size: Annotated[int | None, typer.Option(min=0, help="MiB to keep, the most recently used.")] = None,
    as_json: _Json = False,
) -> None:
    """Remove entries by age or size, and what processes that died have left. Default: what the caps ask for."""
    store = _store(directory, as_json)
    unused_since = None
    if older_than is not None:
        parsed = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", older_than)
        if parsed is None:
            raise fail(f"--older-than {older_than!r} is no duration; write 12h, 30d or 8w", BAD_INPUT, as_json)
        unused_since = time.time() - float(parsed[1]) * _UNITS[parsed[2]]
    plain = older_than is None and max_size is None
    with _changing(store, as_json):
        removed = store.prune(
            max_bytes=store.max_bytes if plain else None if max_size is None else max_size << 20,
            max_entries=store.max_entries if plain else None,
            unused_since=unused_since,
        )
    _removed(removed, store, as_json)


@app.command()
def clear(
    directory: _Dir = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: _Json = False,
) -> None:
    """Remove all executables. A program that is running goes on, and compiles what it still needs."""
    store = _store(directory, as_json)
    if not yes:
        if as_json:
            raise fail("clear asks before it removes anything; add --yes", BAD_INPUT, as_json)
        if not typer.confirm(f"Remove all executables in {store.root}?", default=False, err=True):
            raise fail("nothing was removed", FAILED, as_json)
    with _changing(store, as_json):
        removed = store.clear()
    _removed(removed, store, as_json)


def _removed(count: int, store: Store, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"removed": count, "directory": str(store.root)}))
    else:
        Console(soft_wrap=True).print(f"removed {count} entries from {store.root}", highlight=False, markup=False)


def _age(seconds: float) -> str:
    for unit, size in reversed(_UNITS.items()):
        if seconds >= 2 * size and unit != "w":
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
