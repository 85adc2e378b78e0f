"""Files that somebody else may have made: limits, strict JSON, names that stay inside the record, headers that are sane.

Whoever opens a record reads through here. Everything raises ``ValueError`` (or ``OSError``) with one sentence; callers say
which document it was. There is no pickle: documents are JSON and tensors are safetensors.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file

# Bytes and counts. A trial of a large model stays far below each of them: tensors are not limited, their headers are.
MAX_DOCUMENT = 64 << 20
MAX_TENSOR_HEADER = 16 << 20
MAX_FILES = 100_000
MAX_FOLDERS_DEEP = 8
MAX_DEPTH = 48  # of JSON, arrays and objects together; documents of the trial have under 20
MAX_DIGITS = 20  # of an integer: 64 bits and a sign

_PART = r"[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*"
_LONGEST_PATH = 1000
# One component of a path: no separator, no drive letter, and it does not begin with a dot, so it is neither `.` nor `..`.
FileName = Annotated[str, Field(pattern=f"^{_PART}$", max_length=200)]
# A file below the record's directory, in POSIX form.
RelativePath = Annotated[str, Field(pattern=f"^{_PART}(/{_PART})*$", max_length=_LONGEST_PATH)]

# What a terminal obeys, what XML forbids, and what makes text read in another order than it is written.
_UNSEEN = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_CONTROL = re.compile(f"[{_UNSEEN}]")
_MAY_HOLD_CONTROL = re.compile(rf"\\u|\\[bfr]|[{_UNSEEN}]")


def printable(text: str) -> str:
    """`text` with control characters written out (``\\x1b``), line feeds and tabs apart; carriage returns become line
    feeds. What this returns can be sent to a terminal, and is legal XML and UTF-8.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(lambda found: _written_out(ord(found.group())), text)


def _written_out(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def is_relative_path(name: str) -> bool:
    """Whether a record can name this file, see :data:`RelativePath`."""
    return len(name) <= _LONGEST_PATH and re.fullmatch(f"{_PART}(/{_PART})*", name) is not None


def read_bytes(path: Path, limit: int = MAX_DOCUMENT) -> bytes:
    """The bytes of a regular file. Links are not followed, and neither pipes nor devices are opened for reading."""
    with _open(path) as descriptor:
        size = os.fstat(descriptor.fileno()).st_size
        if size > limit:
            raise ValueError(f"it has {size:,} bytes, and {limit:,} are the most that are read")
        return bytes(descriptor.read(size))


def _open(path: Path) -> Any:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        if path.is_symlink():
            raise ValueError("it is a link, and links are not followed") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path, limit: int = MAX_DOCUMENT) -> Any:
    """The value in a file of JSON, see :func:`parse`."""
    return parse(read_bytes(path, limit))


def parse(data: bytes) -> Any:
    """JSON as :func:`parse_exactly` takes it, with control characters in strings written out: nothing that is read from a
    record reaches a terminal as a command to it.
    """
    value = parse_exactly(data)
    return shown(value) if _MAY_HOLD_CONTROL.search(data.decode("utf-8")) else value


def parse_exactly(data: bytes) -> Any:
    """JSON as its standard has it: UTF-8, no key twice, no NaN or infinity, integers of 64 bits, bounded nesting."""
    text = data.decode("utf-8")
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_integer, parse_float=_float
        )
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    _check_depth(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {printable(twice)[:60]!r} is there twice")
    return made


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS or abs(value := int(text)) >= 2**64:
        raise ValueError(f"{text[:24]}... has more than 64 bits")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:24]} is too large for a float64")
    return value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]


def shown(value: Any) -> Any:
    """Parsed JSON with every string in it :func:`printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [shown(inner) for inner in value]
    return _unique([(printable(k), shown(v)) for k, v in value.items()]) if isinstance(value, dict) else value


def load_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, by printable name, after a look at its header."""
    _check_header(path)
    try:
        return {printable(name): value for name, value in load_file(path).items()}
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"its tensors cannot be read: {printable(str(error))[:200]}") from None


def _check_header(path: Path) -> None:
    """The header must fit in the file, be strict JSON, and describe bytes that are there: a shape costs nothing to claim."""
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(MAX_TENSOR_HEADER, size - 8):
            raise ValueError(f"its header claims {length:,} bytes; the file has {size:,}")
        header = parse(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape = entry.get("shape") if isinstance(entry, dict) else None
        if not isinstance(shape, list) or any(type(n) is not int or not 0 <= n < 2**48 for n in shape):
            raise ValueError(f"{name[:60]!r} has no shape that can be")
        if math.prod(shape) > 8 * size or (0 in shape and math.prod(n for n in shape if n) >= 2**48):
            raise ValueError(f"{name[:60]!r} claims more elements than the file has room for")


def inventory(root: Path) -> Iterator[tuple[str, int]]:
    """Name and size of every file below `root`, sorted by folder.

    Raises ValueError at anything that is neither a regular file nor a folder (a link above all, which could point out of
    the record), and where there is more of it than a trial leaves.
    """
    waiting = [(root, "", 0)]
    count = 0
    while waiting:
        folder, prefix, depth = waiting.pop()
        if depth > MAX_FOLDERS_DEEP:
            raise ValueError(f"{printable(prefix)} lies deeper than {MAX_FOLDERS_DEEP} folders")
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                name = prefix + entry.name
                count += 1
                if count > MAX_FILES:
                    raise ValueError(f"it holds more than {MAX_FILES:,} files")
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), f"{name}/", depth + 1))
                elif entry.is_file(follow_symlinks=False):
                    yield name, entry.stat(follow_symlinks=False).st_size
                else:
                    raise ValueError(f"{printable(name)} is neither a file nor a folder (links are not followed)")
