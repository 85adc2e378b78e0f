"""What each package is tried with. A package that is not installed, or does not fit the installed torch, has no rows."""

from __future__ import annotations

import importlib
import sys

from ..rows import Row

FILES = {  # file of rows: the package that it imports, and what the names of its rows begin with
    "trainer": ("transformers", ("trainer",)),
    "generation": ("transformers", ("generate",)),
    "files": ("safetensors", ("transformers", "safetensors")),
    "accelerated": ("accelerate", ("accelerate",)),
    "lit": ("lightning", ("lightning",)),
    "adapters": ("peft", ("peft",)),
    "vision": ("torchvision", ("torchvision",)),
    "timms": ("timm", ("timm",)),
}
PREFIXES = tuple(prefix for _, prefixes in FILES.values() for prefix in prefixes)


def usable(package: str) -> str:
    """Why `package` cannot be used here, "" if it can: missing, or built for another torch (torchvision's operators)."""
    try:
        importlib.import_module(package)
        if package in ("transformers", "peft"):
            importlib.import_module("transformers.modeling_utils")  # imports torchvision where there is one
    except Exception as error:
        return f"{package}: {type(error).__name__}: {error}".splitlines()[0]
    return ""


def sample(file: str, modes: tuple[str, ...], seed: int | None) -> list[tuple[Row, str]]:
    """One of the rows of `file` in one of `modes`, another with every `seed`; all of them with None."""
    cases = [(row, mode) for row in rows(FILES[file][1]) for mode in row.modes if mode in modes]
    return cases if seed is None or not cases else [cases[seed % len(cases)]]


def rows(beginnings: tuple[str, ...] = ("",)) -> list[Row]:
    """The rows of all files of which a name may begin so, in the order of the table; what cannot be used is told."""
    made: list[Row] = []
    for file, (package, prefixes) in FILES.items():
        if not any(p.startswith(b) or b.startswith(p) for p in prefixes for b in beginnings):
            continue
        if reason := usable(package):
            print(f"left out: {reason}", file=sys.stderr)
        else:
            made += importlib.import_module(f"{__name__}.{file}").ROWS
    return made
