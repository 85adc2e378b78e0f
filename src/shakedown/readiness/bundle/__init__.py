"""An archive about one cell that can be sent to somebody else: the minimal case, what was found, with what, and what to run.

:mod:`.mask` takes out what is nobody else's business, :mod:`.contents` chooses the files, :mod:`.page` writes the README,
:mod:`.archive` makes equal bytes of equal files, :mod:`.make` is the whole path. Imports neither torch nor JAX.
"""

from .make import Request, make
from .results import Bundle, Bundled

__all__ = ["Bundle", "Bundled", "Request", "make"]
