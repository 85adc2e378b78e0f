"""One entry as a file: two lines of text, a header in JSON, then the compressed payload.

::

    shakedown cache entry 1
    <bytes of the header> <SHA-256 of the header>
    {"digest": ..., "kind": ..., "name": ..., "parts": {...}, "created": ..., "seconds": ..., ...}
    <payload, zlib>

Checksums tell damage, not malice: a payload is native code, and whoever can write it can run code (docs/caches.md). Reading
decodes JSON and decompresses to a length that is known before; it never unpickles.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .key import Key

FORMAT = 1  # 1: the first
_MAGIC = b"shakedown cache entry "
_HEADER_LIMIT = 4 << 20  # bytes
_PAYLOAD_LIMIT = 1 << 32  # bytes, decompressed
_LEVEL = 1  # of zlib, the fastest: a cold start compresses each of its programs

Kind = Literal["executable", "segment", "trace", "frame"]
Trouble = Literal["damaged", "version", "owner", "unreadable"]


class Unusable(Exception):
    """An entry that is there and cannot be used; `trouble` says of which sort, the text what is wrong."""

    def __init__(self, trouble: Trouble, text: str) -> None:
        super().__init__(text)
        self.trouble: Trouble = trouble


@dataclass(frozen=True)
class Header:
    """What an entry says of itself.

    Attributes:
        digest: of the key; also the file's name.
        kind: ``executable`` of one program, fused ``segment`` of adaptive eager, or ``trace``: what was learnt by tracing
            a program, with the digest of its executable.
        name: the first program that was stored under this key (the same computation may have several names).
        parts: of the key.
        created: seconds since the epoch.
        seconds: that compiling took.
        stored_bytes, payload_bytes: of the payload, compressed and not.
        payload_sha256: of the compressed payload.
        note: whatever the caller wants back, in plain JSON.
    """

    digest: str
    kind: Kind
    name: str
    parts: dict[str, str]
    created: float
    seconds: float
    stored_bytes: int
    payload_bytes: int
    payload_sha256: str
    note: dict[str, Any] = field(default_factory=dict)


def encode(
    key: Key, kind: Kind, name: str, payload: bytes, *, created: float, seconds: float, note: Mapping[str, Any]
) -> bytes:
    """The bytes of an entry's file."""
    stored = zlib.compress(payload, _LEVEL)
    header = Header(
        key.digest,
        kind,
        name,
        dict(key.parts),
        created,
        round(seconds, 6),
        len(stored),
        len(payload),
        hashlib.sha256(stored).hexdigest(),
        dict(note),
    )
    text = json.dumps(asdict(header), separators=(",", ":"), allow_nan=False).encode()
    first = f"{FORMAT}\n{len(text)} {hashlib.sha256(text).hexdigest()}\n".encode()
    return b"".join((_MAGIC, first, text, b"\n", stored))


def header_of(data: bytes, digest: str) -> tuple[Header, int]:
    """The header at the beginning of `data`, and where the payload begins.

    Raises:
        Unusable: the header is damaged, of another format, or not that of `digest`.
    """
    first, _, rest = data[:256].partition(b"\n")
    if not first.startswith(_MAGIC):
        raise Unusable("damaged", "it is no cache entry")
    if first != _MAGIC + str(FORMAT).encode():
        raise Unusable("version", f"its format is {first[len(_MAGIC) :][:20].decode(errors='replace')}, not {FORMAT}")
    second, newline, _ = rest.partition(b"\n")
    try:
        length, checksum = int(second.split(b" ")[0]), second.split(b" ")[1].decode()
    except (ValueError, IndexError):
        raise Unusable("damaged", "its second line is damaged") from None
    start = len(first) + 1 + len(second) + 1
    if not newline or not 0 < length <= _HEADER_LIMIT:
        raise Unusable("damaged", "its second line is damaged")
    text = data[start : start + length]
    if len(text) < length:
        raise Unusable("damaged", "it is truncated")
    if hashlib.sha256(text).hexdigest() != checksum:
        raise Unusable("damaged", "its header is not what was written")
    try:
        header = Header(**json.loads(text))
        right = header.digest == Key(header.parts).digest == digest
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Unusable("damaged", "its header is no header") from None
    if not right:
        raise Unusable("damaged", "it is the entry of another key")
    return header, start + length + 1


def payload_of(data: bytes, header: Header, start: int) -> bytes:
    """The payload of a whole file.

    Raises:
        Unusable: it is damaged.
    """
    stored = data[start:]
    if len(stored) != header.stored_bytes:
        raise Unusable("damaged", "it is truncated" if len(stored) < header.stored_bytes else "it is too long")
    if hashlib.sha256(stored).hexdigest() != header.payload_sha256:
        raise Unusable("damaged", "its payload is not what was written")
    if not 0 <= header.payload_bytes <= _PAYLOAD_LIMIT:
        raise Unusable("damaged", "it claims an impossible size")
    try:
        unpacker = zlib.decompressobj()
        payload = unpacker.decompress(stored, header.payload_bytes + 1)  # never more than it claims
    except zlib.error as error:
        raise Unusable("damaged", f"its payload cannot be unpacked ({error})") from None
    if len(payload) != header.payload_bytes:
        raise Unusable("damaged", "its payload has another size than it claims")
    return payload
