"""The directory of entries: looking up, writing, locking, bounding. Knows nothing of executables; its callers do.

::

    executables/
      3f/3f09...          one file an entry, by its key's digest; its time of modification is its last use
      tmp/                what is being written
      locks/              one lock file for 4,096th of all keys, and that of `usage`
      usage               entries and bytes in the directory
      misses.jsonl        the last keys that were not found, for `explain`

Trouble with the disk never stops the program: what cannot be read is a miss, what cannot be written is not kept, and each
sort of trouble is warned about once in a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from .. import events, log
from .entry import Header, Kind, Unusable, encode, header_of, payload_of
from .key import Key

_POLL = 0.02  # seconds between two looks at a lock that is held
_STALE = 600.0  # seconds after which what lies in tmp/ was left by a process that died: a write takes far less
_ROOM = 0.9  # of a cap: what eviction goes down to, so that it need not come back for each entry
_SYNCED_FROM = 1.0  # seconds of compiling that are worth waiting for the disk
_MISSES_BYTES = 1 << 20  # of misses.jsonl, before it is cut
_HEAD = 1 << 16  # bytes read at first of an entry whose header is wanted


class CacheWarning(RuntimeWarning):
    """The cache cannot be used in full; the program goes on without."""


@dataclass(frozen=True)
class Stored:
    """An entry in the directory. ``last_use`` is in seconds since the epoch, ``file_bytes`` the whole file's."""

    header: Header
    path: Path
    last_use: float
    file_bytes: int


class Store:
    """The entries under `root`, which is made when the first of them is written."""

    def __init__(self, root: Path, *, max_bytes: int, max_entries: int, lock_timeout: float) -> None:
        self.root = root
        self.max_bytes, self.max_entries, self.lock_timeout = max_bytes, max_entries, lock_timeout
        self.writable = True
        self.locks = True
        self._guard = threading.Lock()
        self._opened = False
        self.used: set[str] = set()  # digests of what this process has found or written

    # --- reading --------------------------------------------------------------------------------------------------------

    def path_of(self, digest: str) -> Path:
        return self.root / digest[:2] / digest

    def get(self, digest: str) -> tuple[Header, bytes] | None:
        """Header and payload of an entry; None when there is none that can be used."""
        path = self.path_of(digest)
        try:
            data = _read(path)
            header, start = header_of(data, digest)
            payload = payload_of(data, header, start)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Unusable as error:
            self.refuse(digest, error)
            return None
        except OSError as error:
            self.refuse(digest, Unusable("unreadable", error.strerror or str(error)))
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        self.used.add(digest)
        return header, payload

    def file_of(self, digest: str) -> bytes | None:
        """The whole file of an entry, as it is; None when it cannot be read."""
        try:
            return _read(self.path_of(digest))
        except (OSError, Unusable):
            return None

    def refuse(self, digest: str, error: Unusable) -> None:
        """Say that an entry is there and cannot be used: it counts as a miss, and will be replaced."""
        events.record("cache", "refused", detail=error.trouble)
        advice = {
            "damaged": "It is compiled again and replaced. If it happens often, look at the disk.",
            "version": "It was written by another version of shakedown, and is compiled again and replaced.",
            "owner": "An entry is native code, so only files that belong to you (or root) and that nobody else may write "
            "are loaded. Set SHAKEDOWN_CACHE_DIR to a directory of your own.",
            "unreadable": "It is compiled again. Check the permissions of the directory.",
        }[error.trouble]
        self.warn(error.trouble, f"entry {digest[:12]} cannot be used: {error}. {advice}")

    def entries(self) -> Iterator[Stored]:
        """All entries that can be used, in no order. Damaged ones are left out without a word."""
        for path, found in self._files():
            try:
                with open(_opened(path), "rb") as file:
                    data = file.read(_HEAD)
                    try:
                        header, _ = header_of(data, path.name)
                    except Unusable:
                        header, _ = header_of(data + file.read(), path.name)
            except (OSError, Unusable):
                continue
            yield Stored(header, path, found.st_mtime, found.st_size)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for shard in _listed(self.root):
            if len(shard.name) == 2 and shard.is_dir(follow_symlinks=False):
                for item in _listed(Path(shard.path)):
                    with contextlib.suppress(OSError):
                        yield Path(item.path), item.stat(follow_symlinks=False)

    # --- writing --------------------------------------------------------------------------------------------------------

    def put(
        self,
        key: Key,
        payload: bytes,
        *,
        kind: Kind,
        name: str,
        seconds: float = 0.0,
        note: Mapping[str, Any] | None = None,
    ) -> int:
        """Write an entry, replacing one of the same key; bytes of its file, 0 when it could not be kept.

        A reader sees the old entry, none, or the whole new one: it is written beside and renamed.
        """
        if not self.writable:
            return 0
        data = encode(key, kind, name, payload, created=time.time(), seconds=seconds, note=note or {})
        if len(data) > self.max_bytes:
            self.warn(
                "cap", f"{name} takes {len(data) >> 20} MiB, more than SHAKEDOWN_CACHE_MAX_SIZE_MB: it is not kept"
            )
            return 0
        path = self.path_of(key.digest)
        try:
            self._open()
            before = _size(path)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._place(data, path, synced=seconds >= _SYNCED_FROM)
        except OSError as error:
            self.stop_writing(error)
            return 0
        self._account(len(data) - (before or 0), 0 if before is not None else 1)
        events.record("cache", "stored", nbytes=len(data), detail=kind)
        self.used.add(key.digest)
        return len(data)

    def stop_writing(self, error: OSError) -> None:
        """Nothing more is kept by this process. What is there is still read."""
        self.writable = False
        self.warn(
            "write",
            f"nothing can be written ({error.strerror or error}). Programs compiled from now on are not kept. Make room, "
            "set SHAKEDOWN_CACHE_DIR to a directory that can be written, or SHAKEDOWN_CACHE=0 to do without.",
        )

    def _open(self) -> None:
        """Make the directory, and remove what processes that died have left in tmp/. Once in a process."""
        with self._guard:
            if self._opened:
                return
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in ("tmp", "locks"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)
            if self.root.stat().st_mode & 0o022:
                self.warn("mode", "other users may write into the directory. Run: chmod 700 " + str(self.root))
            self.sweep()
            self._opened = True

    def sweep(self, older: float = _STALE) -> int:
        """Remove files in tmp/ that are `older` seconds old; how many."""
        removed = 0
        for item in _listed(self.root / "tmp"):
            with contextlib.suppress(OSError):
                if time.time() - item.stat(follow_symlinks=False).st_mtime >= older:
                    os.unlink(item.path)
                    removed += 1
        return removed

    def _place(self, data: bytes, path: Path, synced: bool) -> None:
        """Write `data` to a temporary file and rename it to `path`.

        The disk is waited for only where compiling took long: after a power failure, an entry whose bytes did not reach it
        has a wrong checksum, so that waiting saves a compilation and nothing else.
        """
        handle, temporary = tempfile.mkstemp(prefix=f"{path.name[:12]}-", dir=self.root / "tmp")  # mode 0600
        try:
            with open(handle, "wb") as file:
                file.write(data)
                if synced:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    # --- one process at a time ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self, digest: str, name: str) -> Iterator[bool]:
        """Hold the lock of a key while it is compiled; False when another process or thread had it first.

        The kernel frees the lock of a process that ends, however it ends. Keys share 4,096 files, so that there is nothing
        to clean up. After the timeout, or where locks do not work, work goes on without.
        """
        lock = None
        waited = False
        start = time.monotonic()
        if self.writable and self.locks:
            try:
                self._open()
                lock = filelock.FileLock(self.root / "locks" / digest[:3], mode=0o600, thread_local=False)
                try:
                    lock.acquire(timeout=0)
                except filelock.Timeout:
                    waited = True
                    lock.acquire(timeout=self.lock_timeout, poll_interval=_POLL)
            except filelock.Timeout:
                lock = None
                self.warn(
                    "timeout",
                    f"another process has been compiling {name} for more than {self.lock_timeout:g} s: it is compiled here "
                    "as well. SHAKEDOWN_CACHE_LOCK_TIMEOUT sets the seconds to wait.",
                )
            except (OSError, NotImplementedError) as error:
                lock, self.locks = None, False
                self.warn(
                    "lock",
                    f"locks do not work there ({error}), so processes that start together may compile the same programs. "
                    "Set SHAKEDOWN_CACHE_DIR to a directory on a local disk.",
                )
        if waited:
            waited_ns = int((time.monotonic() - start) * 1e9)
            events.record("cache", "waited", duration_ns=waited_ns, detail="" if lock else "timeout")
        try:
            yield waited
        finally:
            if lock is not None:
                lock.release()

    # --- caps -----------------------------------------------------------------------------------------------------------

    def _account(self, more_bytes: int, more_entries: int) -> None:
        """Add to `usage`, and evict when a cap is passed. A directory is listed only then, or where `usage` is lost."""
        try:
            with self._usage_lock():
                known = self._usage()
                if known is None:
                    entries, size = self._count()
                else:
                    entries, size = known[0] + more_entries, known[1] + more_bytes
                if entries > self.max_entries or size > self.max_bytes:
                    self._shrink(self.max_bytes, self.max_entries, _ROOM)
                else:
                    self._write_usage(entries, size)
        except (OSError, filelock.Timeout):
            pass  # the caps are passed by a little, until somebody can count again

    def _usage_lock(self) -> filelock.BaseFileLock:
        return filelock.FileLock(self.root / "locks" / "usage", timeout=10, mode=0o600, poll_interval=0.005)

    def _usage(self) -> tuple[int, int] | None:
        try:
            entries, size = (self.root / "usage").read_text().split()
            return int(entries), int(size)
        except (OSError, ValueError):
            return None

    def _write_usage(self, entries: int, size: int) -> None:
        (self.root / "usage").write_text(f"{entries} {size}\n")  # torn by a crash: it is counted anew

    def _count(self) -> tuple[int, int]:
        sizes = [found.st_size for _, found in self._files()]
        return len(sizes), sum(sizes)

    def _shrink(self, max_bytes: int, max_entries: int, room: float = 1.0, unused_since: float | None = None) -> int:
        """Remove entries until the rest is within `room` of both caps, the least recently used first; how many."""
        found = sorted(((s.st_mtime, s.st_size, p) for p, s in self._files()), key=lambda f: f[0])
        entries, size, removed = len(found), sum(f[1] for f in found), 0
        over = entries > max_entries or size > max_bytes
        for last_use, nbytes, path in found:
            too_many = over and (entries > max_entries * room or size > max_bytes * room)
            if not too_many and (unused_since is None or last_use >= unused_since):
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            entries, size, removed = entries - 1, size - nbytes, removed + 1
            events.record("cache", "evicted", nbytes=nbytes)
        self._write_usage(entries, size)
        return removed

    def prune(
        self, *, max_bytes: int | None = None, max_entries: int | None = None, unused_since: float | None = None
    ) -> int:
        """Remove entries that were last used before `unused_since` (seconds since the epoch), then the least recently used
        ones until the rest is within the caps; how many. Also sweeps tmp/.

        Raises:
            OSError: the directory cannot be written.
        """
        if not self.root.is_dir():
            return 0
        self.sweep()
        no_cap = 1 << 62
        with self._usage_lock():
            return self._shrink(
                no_cap if max_bytes is None else max_bytes,
                no_cap if max_entries is None else max_entries,
                unused_since=unused_since,
            )

    def clear(self) -> int:
        """Remove all entries, temporary files and the record of misses; how many entries.

        Raises:
            OSError: the directory cannot be written.
        """
        removed = self.prune(max_entries=0)
        self.sweep(0)
        for name in ("misses.jsonl", "usage"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.root / name)
        return removed

    # --- what was not found ---------------------------------------------------------------------------------------------

    def note_miss(self, key: Key, name: str, kind: Kind) -> None:
        """Keep the key of something that was not found, for :mod:`.nearest`."""
        if not self.writable:
            return
        line = json.dumps({"name": name, "kind": kind, "when": round(time.time(), 3), "parts": dict(key.parts)})
        path = self.root / "misses.jsonl"
        try:
            self._open()
            if (_size(path) or 0) > _MISSES_BYTES:
                kept = path.read_bytes()[-_MISSES_BYTES // 2 :].partition(b"\n")[2]
                self._place(kept, path, synced=False)
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            with open(handle, "ab") as file:
                file.write(line.encode() + b"\n")
        except OSError as error:
            self.stop_writing(error)

    def misses(self) -> list[dict[str, Any]]:
        """What was not found lately, the latest last: ``name``, ``kind``, ``when`` (seconds since the epoch), ``parts``."""
        try:
            lines = _read(self.root / "misses.jsonl").decode(errors="replace").splitlines()
        except (OSError, Unusable):
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                row = json.loads(line)
                found.append(
                    {
                        "name": str(row["name"]),
                        "kind": str(row["kind"]),
                        "when": float(row["when"]),
                        "parts": {str(k): str(v) for k, v in row["parts"].items()},
                    }
                )
        return found

    def warn(self, trouble: str, text: str) -> None:
        """One warning for each sort of trouble in a process."""
        text = f"executable cache {self.root}: {text}"
        log.warn_once(text, CacheWarning, key=f"{self.root}: {trouble}", stacklevel=3)


def _opened(path: Path) -> int:
    """A file to read, through no link.

    Raises:
        OSError: it cannot be read.
        Unusable: it belongs to somebody else, or somebody else may write it.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    found = os.fstat(handle)
    ours = not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)
    if stat.S_ISREG(found.st_mode) and ours and not found.st_mode & 0o022:
        return handle
    os.close(handle)
    if not stat.S_ISREG(found.st_mode):
        raise Unusable("damaged", "it is no regular file")
    raise Unusable("owner", "it belongs to somebody else" if not ours else "others may write it")


def _read(path: Path) -> bytes:
    with open(_opened(path), "rb") as file:
        return file.read()


def _size(path: Path) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return None


def _listed(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return list(found)
    except OSError:
        return []
