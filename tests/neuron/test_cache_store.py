"""The directory of the executable cache: files that are whole or absent, locks, caps, and disks in trouble."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shakedown.neuron import config, events, log
from shakedown.neuron.cache.entry import Unusable, header_of
from shakedown.neuron.cache.key import Key, differences
from shakedown.neuron.cache.nearest import explained
from shakedown.neuron.cache.store import CacheWarning, Store
from shakedown.neuron.errors import ConfigError


def key(number: object = 0, **parts: str) -> Key:
    return Key({"computation": f"c{number}", "options": "a=1 b=2", "host": "x86", **parts})


def opened(root: Path, **settings: object) -> Store:
    return Store(root, **{"max_bytes": 1 << 30, "max_entries": 1000, "lock_timeout": 20.0, **settings})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(tmp_path / "executables")


@contextmanager
def warned(*words: str) -> Iterator[None]:
    """One warning, which says all of `words`."""
    log.forget()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    (one,) = [str(w.message) for w in seen if issubclass(w.category, CacheWarning)]
    assert all(word in one for word in words), one


@contextmanager
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        yield


# --- entries ------------------------------------------------------------------------------------------------------------


def test_what_is_put_comes_back_with_its_header(store: Store) -> None:
    payload = os.urandom(1000) * 50
    note = {"outputs": [[[2, 3], "float32", False]]}
    assert store.put(key(), payload, kind="executable", name="aten.add", seconds=0.25, note=note)
    header, found = store.get(key().digest)
    assert found == payload
    assert (header.name, header.kind, header.seconds, header.note) == ("aten.add", "executable", 0.25, note)
    assert header.parts == dict(key().parts)
    assert header.stored_bytes < header.payload_bytes == len(payload)
    assert abs(time.time() - header.created) < 60
    assert store.get(key(1).digest) is None
    (entry,) = store.entries()
    assert entry.header == header
    text = store.path_of(key().digest).read_bytes()
    assert text.startswith(b"shakedown cache entry 1\n")  # a person can look at it
    assert json.loads(text.split(b"\n")[2])["name"] == "aten.add"


def test_files_are_this_users_alone_and_spread_over_directories(store: Store) -> None:
    old = os.umask(0)
    try:
        for n in range(40):
            store.put(key(n), b"x", kind="executable", name="n")
    finally:
        os.umask(old)
    for path in [store.root, *store.root.rglob("*")]:
        mode = path.stat().st_mode & 0o777
        if path.is_dir() or len(path.name) == 40:
            assert mode & 0o077 == 0, path
    assert len({p.parent for p in store.root.rglob("*") if len(p.name) == 40}) > 20
    assert not list((store.root / "tmp").iterdir())


def test_the_digest_depends_on_every_part_and_not_on_their_order() -> None:
    assert Key({"a": "1", "b": "2"}).digest == Key({"b": "2", "a": "1"}).digest
    seen = {Key(parts).digest for parts in ({"a": "1"}, {"a": "2"}, {"b": "1"}, {"a": "1", "b": ""}, {"a": '1","b":"'})}
    assert len(seen) == 5


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("trouble", "change"),
    [
        ("damaged", lambda d: b""),
        ("damaged", lambda d: d[:10]),
        ("damaged", lambda d: d[:200]),
        ("damaged", lambda d: d[:-1]),
        ("damaged", lambda d: d + b"\0"),
        ("damaged", lambda d: b"\x80\x04" + d),  # as a pickle begins
        ("damaged", lambda d: _flip(d, len(d) - 5)),
        ("damaged", lambda d: _flip(d, 150)),
        ("damaged", lambda d: d.replace(b"aten.add", b"aten.sub", 1)),
        ("damaged", lambda d: d.replace(b"\n", b"\nx", 1)),
        ("version", lambda d: d.replace(b"entry 1\n", b"entry 2\n", 1)),
        ("version", lambda d: d.replace(b"entry 1\n", b"entry \xff\n", 1)),
    ],
)
def test_a_bad_file_is_a_miss_with_a_warning_and_is_replaced(store: Store, trouble: str, change: object) -> None:
    store.put(key(), b"payload" * 100, kind="executable", name="aten.add")
    path = store.path_of(key().digest)
    path.write_bytes(change(path.read_bytes()))
    events.clear("cache")
    with warned("entry", "replaced"):
        assert store.get(key().digest) is None
    with silent():
        assert store.get(key().digest) is None  # once for each sort of trouble
        assert list(store.entries()) == [] or trouble == "damaged"
    assert [r["detail"] for r in events.snapshot() if r["kind"] == "cache" and r["name"] == "refused"] == [trouble]
    store.put(key(), b"new", kind="executable", name="aten.add")
    assert store.get(key().digest)[1] == b"new"


def test_every_truncation_of_a_file_is_refused(store: Store) -> None:
    store.put(key(), b"p" * 50, kind="executable", name="aten.add")
    data = store.path_of(key().digest).read_bytes()
    assert header_of(data, key().digest)[0].name == "aten.add"
    from shakedown.neuron.cache.entry import payload_of

    for length in range(len(data)):
        with pytest.raises(Unusable):
            payload_of(data[:length], *header_of(data[:length], key().digest))


def test_an_entry_of_another_key_is_refused(store: Store) -> None:
    store.put(key(1), b"one", kind="executable", name="aten.add")
    store.put(key(2), b"two", kind="executable", name="aten.sub")
    store.path_of(key(2).digest).replace(store.path_of(key(1).digest))
    with warned("another key"):
        assert store.get(key(1).digest) is None


def test_a_payload_that_unpacks_to_more_than_it_claims_is_refused_before_it_is_unpacked(store: Store) -> None:
    import zlib
    from dataclasses import asdict, replace
    from hashlib import sha256

    from shakedown.neuron.cache.entry import payload_of

    bomb = zlib.compress(b"\0" * (64 << 20), 9)
    store.put(key(), b"x", kind="executable", name="aten.add")
    header, _ = header_of(store.path_of(key().digest).read_bytes(), key().digest)
    lying = replace(header, stored_bytes=len(bomb), payload_sha256=sha256(bomb).hexdigest())
    assert asdict(lying)["payload_bytes"] == 1
    with pytest.raises(Unusable, match="size"):
        payload_of(bomb, lying, 0)


def test_files_of_others_and_links_are_not_loaded(store: Store, tmp_path: Path) -> None:
    store.put(key(), b"x", kind="executable", name="aten.add")
    path = store.path_of(key().digest)
    path.chmod(0o666)
    with warned("others may write it", "native code", "SHAKEDOWN_CACHE_DIR"):
        assert store.get(key().digest) is None
    path.chmod(0o600)
    assert store.get(key().digest) is not None
    real = tmp_path / "elsewhere"
    path.rename(real)
    path.symlink_to(real)
    with warned("permissions"):
        assert opened(store.root).get(key().digest) is None
    if os.geteuid() == 0:
        path.unlink()
        real.rename(path)
        os.chown(path, 12345, 12345)
        with warned("belongs to somebody else"):
            assert opened(store.root).get(key().digest) is None


def test_a_directory_that_others_may_write_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with warned("chmod 700"):
        opened(tmp_path / "open").put(key(), b"x", kind="executable", name="n")


# --- a disk in trouble --------------------------------------------------------------------------------------------------


def test_a_disk_without_room_costs_persistence_and_one_warning(store: Store) -> None:
    store.put(key("before"), b"x", kind="executable", name="n")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (4096, limit[1])
    )  # what writing more gets is a real error of the system's
    try:
        with warned("nothing can be written", "SHAKEDOWN_CACHE=0"):
            assert store.put(key(), os.urandom(100_000), kind="executable", name="n") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    with silent():
        assert store.put(key(2), b"x", kind="executable", name="n") == 0
        store.note_miss(key(3), "n", "executable")
        with store.lock(key(3).digest, "n"):
            pass
        assert store.get(key("before").digest)[1] == b"x"
    assert not store.writable
    assert store.get(key().digest) is None
    assert not list((store.root / "tmp").iterdir())


def test_a_directory_that_cannot_be_made_costs_persistence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = opened(tmp_path / "file" / "executables")
    with warned("nothing can be written"):
        assert store.get(key().digest) is None
        assert store.put(key(), b"x", kind="executable", name="n") == 0
    with silent(), store.lock(key().digest, "n") as waited:
        assert not waited
    assert list(store.entries()) == []
    assert store.misses() == []
    assert store.prune() == 0


def test_locks_that_do_not_work_stop_nothing(store: Store) -> None:
    store.root.mkdir()
    (store.root / "locks").write_text("no directory")
    with warned("locks do not work", "local disk"):
        with pytest.raises(FileExistsError):
            store._open()
        (store.root / "tmp").mkdir(exist_ok=True)
        store._opened = True  # as where the directory broke later
        with store.lock(key().digest, "n") as waited:
            assert not waited
    assert store.put(key(), b"x", kind="executable", name="n")
    assert store.get(key().digest)[1] == b"x"


# --- one process at a time ----------------------------------------------------------------------------------------------

_WRITER = """
import os, random, sys
from pathlib import Path
from shakedown.neuron.cache.key import Key
from shakedown.neuron.cache.store import Store

store = Store(Path(sys.argv[1]), max_bytes=1 << 30, max_entries=1000, lock_timeout=20.0)
payload = random.Random(7).randbytes(300_000)
print("ready", flush=True)
while True:
    for n in range(4):
        key = Key({"computation": f"c{n}", "options": "a=1 b=2", "host": "x86"})
        with store.lock(key.digest, "n"):
            store.put(key, payload, kind="executable", name=f"n{n}")
            store.note_miss(key, f"n{n}", "executable")
"""


def _light(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    """A process that loads the store and neither torch nor JAX."""
    environment = {**os.environ, "SHAKEDOWN_DEVICE": "off"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, env=environment
    )


def test_kill_at_any_moment_leaves_no_bad_entry_and_no_lock(store: Store) -> None:
    moments = random.Random(5)
    payload = random.Random(7).randbytes(300_000)
    for _ in range(12):
        writer = _light(_WRITER, store.root)
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(moments.random() * 0.08)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        begun = time.monotonic()
        with silent():
            for n in range(4):
                with store.lock(key(n).digest, "n") as waited:
                    assert not waited
                found = store.get(key(n).digest)
                assert found is None or found[1] == payload
            assert all(row["name"].startswith("n") for row in store.misses())
        assert time.monotonic() - begun < 10
        with silent():
            assert store.put(key("after"), b"x", kind="executable", name="n")
    for left in (store.root / "tmp").iterdir():
        os.utime(left, (1, 1))
    opened(store.root).put(key("later"), b"x", kind="executable", name="n")
    assert list((store.root / "tmp").iterdir()) == []


_ONCE = """
import sys, time
from pathlib import Path
from shakedown.neuron.cache.key import Key
from shakedown.neuron.cache.store import Store

store = Store(Path(sys.argv[1]), max_bytes=1 << 30, max_entries=1000, lock_timeout=20.0)
print("ready", flush=True)
sys.stdin.readline()
made = 0
for n in range(5):
    key = Key({"computation": f"c{n}"})
    if store.get(key.digest) is None:
        with store.lock(key.digest, "n"):
            if store.get(key.digest) is None:
                time.sleep(0.05)
                made += store.put(key, b"x" * 1000, kind="executable", name="n") > 0
assert all(store.get(Key({"computation": f"c{n}"}).digest)[1] == b"x" * 1000 for n in range(5))
print(made)
"""


def test_eight_processes_make_each_entry_once(store: Store) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _ONCE, str(store.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    made = [int(child.communicate(timeout=60)[0]) for child in children]
    assert sum(made) == 5
    assert len(list(store.entries())) == 5


def test_after_the_timeout_work_goes_on_alone(store: Store) -> None:
    impatient = opened(store.root, lock_timeout=0.2)
    with store.lock(key().digest, "aten.add"):
        with warned("aten.add", "SHAKEDOWN_CACHE_LOCK_TIMEOUT"):
            with impatient.lock(key().digest, "aten.add") as waited:
                assert waited
        with silent(), impatient.lock(key(1).digest, "aten.add") as waited:  # others are not held up
            assert not waited
    with silent(), impatient.lock(key().digest, "aten.add") as waited:
        assert not waited


def test_threads_wait_for_each_other_too(store: Store) -> None:
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with store.lock(key().digest, "n"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.002)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


# --- caps ---------------------------------------------------------------------------------------------------------------


def _used(store: Store, number: int, when: float) -> None:
    os.utime(store.path_of(key(number).digest), (when, when))


def test_above_a_cap_the_least_recently_used_go(tmp_path: Path) -> None:
    store = opened(tmp_path / "executables", max_entries=10)
    for n in range(10):
        store.put(key(n), b"x", kind="executable", name="n")
        _used(store, n, 1000.0 + n)
    assert store.get(key(0).digest) is not None  # used now
    events.clear("cache")
    store.put(key(10), b"x", kind="executable", name="n")
    kept = {n for n in range(11) if store.path_of(key(n).digest).exists()}
    assert kept == {0, 3, 4, 5, 6, 7, 8, 9, 10}  # nine tenths of the cap
    assert events.total("cache") > 0
    assert [r["count"] for r in events.snapshot() if r["kind"] == "cache" and r["name"] == "evicted"] == [2]


def test_the_cap_in_bytes_counts_what_is_on_disk(tmp_path: Path) -> None:
    store = opened(tmp_path / "executables", max_bytes=100_000)
    for n in range(30):
        store.put(key(n), os.urandom(9_000), kind="executable", name="n")
        _used(store, n, 1000.0 + n)
        assert sum(e.file_bytes for e in store.entries()) <= 100_000
    assert store.path_of(key(29).digest).exists()
    assert not store.path_of(key(0).digest).exists()
    with warned("SHAKEDOWN_CACHE_MAX_SIZE_MB"):
        assert store.put(key("huge"), os.urandom(200_000), kind="executable", name="n") == 0


def test_a_put_does_not_list_the_directory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(key(0), b"x", kind="executable", name="n")
    listed = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scan(path))
    for n in range(20):
        store.put(key(n), b"x" * 1000, kind="executable", name="n")
    assert listed == []
    assert store._usage() == (20, sum(e.file_bytes for e in store.entries()))
    (store.root / "usage").write_text("torn")
    store.put(key(20), b"x", kind="executable", name="n")
    assert store._usage() == (21, sum(e.file_bytes for e in store.entries()))


def test_prune_by_age_and_by_size_and_clear(store: Store) -> None:
    for n in range(6):
        store.put(key(n), os.urandom(1000), kind="executable", name="n")
        _used(store, n, 1000.0 + n)
    assert store.prune(unused_since=1002.0) == 2
    assert store.prune(max_entries=3) == 1
    assert not store.path_of(key(2).digest).exists()
    assert store.prune(max_bytes=sum(e.file_bytes for e in store.entries())) == 0
    store.note_miss(key(9), "n", "executable")
    assert store.clear() == 3
    assert list(store.entries()) == []
    assert store.misses() == []
    assert store.put(key(1), b"x", kind="executable", name="n")
    assert store._usage()[0] == 1


# --- why ----------------------------------------------------------------------------------------------------------------


def test_a_miss_is_explained_by_the_part_that_differs(store: Store) -> None:
    store.put(key("other"), b"x", kind="executable", name="aten.add")
    store.put(key(options="a=1 b=3"), b"x", kind="executable", name="aten.add")
    store.note_miss(key(), "aten.add", "executable")
    store.note_miss(key("new"), "aten.mul", "executable")
    store.put(key(), b"x", kind="executable", name="aten.add")  # what was missing is there by now
    first, second = explained(store)
    assert first["name"] == "aten.add"
    assert first["nearest"]["digest"] == key(options="a=1 b=3").digest
    assert first["differences"] == ["compiler options: b=2, was b=3"]
    assert second["nearest"] is None
    assert "first of its name" in second["differences"][0]
    assert explained(store, "aten.add") == [first]
    assert explained(store, first["digest"][:8]) == [first]
    with pytest.raises(KeyError):
        explained(store, "aten.sub")


def test_each_part_has_words_of_its_own() -> None:
    ours = {
        "computation": "1",
        "options": "o=1",
        "flags": "XLA_FLAGS:--a",
        "versions": "jax=2",
        "host": "a b",
        "device": "x",
    }
    theirs = {"computation": "2", "options": "o=2", "flags": "none", "versions": "jax=1", "host": "a c", "device": "x"}
    assert differences(ours, theirs) == [
        "the computation itself (its StableHLO) is another",
        "compiler options: o=1, was o=2",
        "compiler variables (XLA_FLAGS and others): XLA_FLAGS:--a, was none",
        "versions of jax, jaxlib and the PJRT plugin: jax=2, was jax=1",
        "this computer's processor: b, was c",
    ]


def test_the_record_of_misses_is_bounded_and_may_be_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from shakedown.neuron.cache import store as module

    monkeypatch.setattr(module, "_MISSES_BYTES", 4000)
    for n in range(100):
        store.note_miss(key(n), f"n{n}", "executable")
    assert (store.root / "misses.jsonl").stat().st_size < 5000
    assert store.misses()[-1]["name"] == "n99"
    with open(store.root / "misses.jsonl", "ab") as file:
        file.write(b'{"name": 1}\n[[[\n\xff\xfe\n' + b"[" * 100_000 + b"\n")
    assert store.misses()[-1]["name"] == "n99"


# --- settings -----------------------------------------------------------------------------------------------------------


def test_settings_have_torchneurons_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHAKEDOWN_CACHE", "SHAKEDOWN_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert config.CACHE_LOCK_TIMEOUT() == 1200
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT", "7")
    monkeypatch.setenv("NEURON_COMPILATION_CACHE_MAX_SIZE_MB", "8")
    monkeypatch.setenv("NEURON_COMPILATION_CACHE_MAX_ENTRIES", "9")
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "/somewhere")
    assert (config.CACHE_LOCK_TIMEOUT(), config.CACHE_MAX_SIZE(), config.CACHE_MAX_ENTRIES()) == (7, 8, 9)
    assert Path("/somewhere") == config.CACHE_DIR()
    monkeypatch.setenv("TORCH_NEURONX_NEFF_DISABLE_CACHE", "1")
    assert config.CACHE() is False
    monkeypatch.setenv("SHAKEDOWN_CACHE", "1")  # ours counts first
    assert config.CACHE() is True
    monkeypatch.setenv("NEURON_COMPILATION_CACHE_MAX_SIZE_MB", "many")
    with pytest.raises(ConfigError, match="NEURON_COMPILATION_CACHE_MAX_SIZE_MB='many'"):
        config.CACHE_MAX_SIZE()


def test_the_page_has_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "caches.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in page.splitlines()
        if line.startswith("| `SHAKEDOWN_CACHE")
    ]
    found = {row[0].strip("`"): row for row in rows}
    settings = [
        s for s in vars(config).values() if isinstance(s, config.Setting) and s.name.startswith("SHAKEDOWN_CACHE")
    ]
    assert set(found) == {s.name for s in settings}
    for setting in settings:
        _, default, alias, meaning = found[setting.name]
        assert meaning == setting.help
        assert (setting.alias or setting.opposite) in alias
        if setting.name != "SHAKEDOWN_CACHE_DIR":
            assert default == str(int(setting.default))
