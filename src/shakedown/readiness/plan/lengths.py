"""A file of lengths, read for a trial: what is wrong with it is wrong with the request."""

from __future__ import annotations

from pathlib import Path

from ... import lengths
from ...buckets import BadLengths
from ..errors import BadInput


def read(path: Path) -> lengths.Lengths:
    """:func:`shakedown.lengths.read`.

    Raises:
        BadInput: the file cannot be read, or is no list of lengths.
    """
    try:
        return lengths.read(path)
    except BadLengths as error:
        raise BadInput(str(error)) from None
