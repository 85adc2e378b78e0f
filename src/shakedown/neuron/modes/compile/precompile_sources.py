"""Source code as part of a captured function: what it was traced from, and whether that is still so."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from importlib import import_module
from typing import Any

from torch._dynamo import package

from ...cache.key import digest_of


class NotHere(Exception):
    """An entry cannot be used in this process; the text says why."""


def code_text(code: Any) -> str:
    """What `code` does: two lambdas of one line differ in nothing else, and nothing guards a constant."""
    inner = [
        code_text(c) if inspect.iscode(c) else repr(sorted(c, key=repr) if isinstance(c, frozenset) else c)
        for c in code.co_consts
    ]
    return "\0".join([code.co_code.hex(), repr(code.co_names), *inner])


def _is_pytorch(module: str) -> bool:
    return module.partition(".")[0] == "torch"  # its version is part of the key


def with_digests(entry: Any) -> Any:
    """`entry` with a digest in the place of each module's source: PyTorch keeps whole texts, and compares some lines."""
    sources = {
        dataclasses.replace(s, content="" if _is_pytorch(s.module) else digest_of(s.content.encode()))
        if len(s.content) != 40
        else s
        for s in entry.source_info.inlined_sources
    }
    slim = dataclasses.replace(entry, source_info=package.SourceInfo(inlined_sources=sources))
    slim.pinned = entry.pinned
    return slim


def check_sources(entry: Any) -> None:
    """Compare the files that the traced code came from with those of today.

    Raises:
        NotHere: one of them has changed.
    """
    for source in entry.source_info.inlined_sources:
        if not _is_pytorch(source.module):
            module = sys.modules.get(source.module) or import_module(source.module)
            if digest_of(inspect.getsource(module).encode()) != source.content:
                raise NotHere(f"the source of {source.module} has changed")
