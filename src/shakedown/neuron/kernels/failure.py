"""What a kernel raises while JAX traces it, as one error that says which kernel, which arguments, and which line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import KernelError, LoweringError

_OURS = str(Path(__file__).parent.parent)
_LIBRARIES = ("jax", "jaxlib", "torch", "numpy")


@contextmanager
def blaming(kernel: str, describe: Callable[[], str]) -> Iterator[None]:
    """Turn whatever goes wrong inside into a :class:`~..errors.KernelError`; `describe` gives the arguments in words.

    The original error is its ``__cause__``, without the frames of JAX's tracing.
    """
    try:
        yield
    except (KernelError, LoweringError):
        raise
    except Exception as error:
        place = _place(error)
        lines = str(error).strip().splitlines() or [""]
        said = (
            f"kernel {kernel}({describe()}) failed{f' at {place}' if place else ''}: {type(error).__name__}: {lines[0]}"
        )
        error.__traceback__ = error.__cause__ = error.__context__ = None
        error.__notes__ = [n for n in getattr(error, "__notes__", ()) if "JAX has removed" not in n]
        raise KernelError(said) from error


def _place(error: Exception) -> str:
    """``file.py:12 (`y = x @ w`)``: the innermost line that is neither JAX's nor ours, "" where there is none."""
    roots = [_OURS]
    for name in _LIBRARIES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            roots.append(str(Path(file).parent))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*roots, "<")):
            return f"{frame.filename}:{frame.lineno}" + (f" (`{frame.line}`)" if frame.line else "")
    return ""
