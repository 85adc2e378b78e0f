"""The lengths that a service meets, from a file: one length a line, or how often each length came.

Three forms are read. Text: a length a line. CSV: ``length,count`` a line, with or without that heading. JSON: a list of
lengths, an object of counts by length, or a list of objects with ``length`` and ``count``. In text and CSV, empty lines and
what follows a ``#`` are left out. A count that is not whole is a weight: shares are known then, and how many requests is not.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .buckets import BadLengths, Frozen

LONGEST = 10_000_000  # a length above it is more likely to be a mistake, an identifier or a time
_MOST_BYTES = 64_000_000
_MOST_LENGTHS = 100_000
_LENGTH = re.compile(r"\d{1,12}", re.ASCII)


class Lengths(Frozen):
    """Weight of each length in ascending order; ``requests`` is their sum where all of them are whole numbers."""

    name: str
    sha256: str
    weights: dict[int, float]
    requests: int | None

    def quantile(self, share: float) -> int:
        """The shortest length that at least this share of the requests does not exceed."""
        return quantile(self.weights, share)


def quantile(weights: Mapping[int, float], share: float) -> int:
    """The shortest of the keys of `weights` that at least `share` of all weight does not exceed."""
    total, sum_ = math.fsum(weights.values()), 0.0
    for length in sorted(weights):
        sum_ += weights[length]
        if sum_ >= share * total * (1 - 1e-12):
            return length
    return max(weights)


def read(path: Path) -> Lengths:
    """Read the file at `path`.

    Raises:
        BadLengths: it cannot be read, is too large, is empty, or a line or an entry is no length. The message names file and
            line, or file and entry where it is JSON.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadLengths(f"{path} has more than {_MOST_BYTES // 10**6} MB; give how often each length came instead")
        data = path.read_bytes()
    except OSError as error:
        raise BadLengths(f"cannot read the lengths {path}: {error.strerror}") from None
    return parse(data, str(path), as_json=path.suffix.lower() == ".json")


def parse(data: bytes, name: str, as_json: bool = False) -> Lengths:
    """:func:`read` for bytes; `name` is what messages call them."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadLengths(f"{name}: not UTF-8 ({error.reason} at byte {error.start})") from None
    weights: dict[int, float] = {}
    for place, length, count in _json(text, name) if as_json else _lines(text, name):
        known = _length(length, place)
        weights[known] = weights.get(known, 0.0) + _count(count, place)
    weights = {length: weights[length] for length in sorted(weights) if weights[length]}
    if not weights:
        raise BadLengths(f"{name}: there is no length in it; write one a line, or `length,count`")
    if len(weights) > _MOST_LENGTHS:
        raise BadLengths(
            f"{name}: {len(weights):,} distinct lengths, and {_MOST_LENGTHS:,} are read; round them up to tens"
        )
    whole = all(weight.is_integer() for weight in weights.values())
    requests = int(math.fsum(weights.values())) if whole else None
    return Lengths(name=name, sha256=hashlib.sha256(data).hexdigest(), weights=weights, requests=requests)


def _lines(text: str, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Place, length and count of each line."""
    first = True
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        parts = [part.strip() for part in re.split(r"[,;\t]", content)]
        heading, first = first and parts[0].lower() == "length", False
        if heading:
            continue
        if len(parts) > 2:
            raise BadLengths(f"{name}:{number}: {content:.60}: write one length, or `length,count`")
        yield f"{name}:{number}", parts[0], parts[1] if len(parts) == 2 else "1"


def _json(text: str, name: str) -> Iterator[tuple[str, Any, Any]]:
    try:
        found = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise BadLengths(f"{name}:{error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise BadLengths(
            f"{name}: lists within lists; write a list of lengths, or an object of counts by length"
        ) from None
    if isinstance(found, _Pairs):
        for key, value in found:
            yield f"{name}: length {key!r:.40}", key, value
    elif isinstance(found, list):
        for number, entry in enumerate(found, 1):
            place = f"{name}: entry {number}"
            if isinstance(entry, _Pairs):
                keys = dict(entry)
                if keys.keys() != {"length", "count"} or len(entry) != 2:
                    raise BadLengths(f'{place}: write {{"length": 128, "count": 3}}, or a length alone')
                yield place, keys["length"], keys["count"]
            else:
                yield place, entry, 1
    else:
        raise BadLengths(f"{name}: write a list of lengths, or an object of counts by length")


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with every key it has: one that comes twice is not lost."""


def _length(value: Any, place: str) -> int:
    known = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and _LENGTH.fullmatch(value):
        known = int(value)
    if known is None or not 1 <= known <= LONGEST:
        raise BadLengths(f"{place}: {value!r:.40} is no length; write a whole number from 1 to {LONGEST:,}")
    return known


def _count(value: Any, place: str) -> float:
    try:
        known = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        known = math.nan
    if not 0 <= known <= 1e15:
        raise BadLengths(f"{place}: {value!r:.40} is no count; write a number of requests, or a share, from 0")
    return known
