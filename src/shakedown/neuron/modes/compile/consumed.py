"""Who else refers to a buffer that a program is about to consume.

A storage refers to its buffer, and so does the list of a call's inputs. Whatever comes on top may be another tensor with the
same value (a copy is the same buffer, and small buffers of zeros are shared): then the program gets a copy of its own.
"""

from __future__ import annotations

import sys
from typing import Any

from ...pending import Pending


def references(buffers: list[Any], i: int) -> int:
    """References to buffer `i`, and those that counting adds."""
    return sys.getrefcount(buffers[i])


class _Storage:
    buffer: Any


def _least() -> int:
    storage = _Storage()
    storage.buffer = Pending(0)
    return references([storage.buffer], 0)


OF_A_BUFFER = _least()  # of one that only its storage and the list refer to; counted, since versions of Python differ
