"""Stage 8: words from a record. Nothing is judged here: every number was sealed before.

``overview`` is what a reader needs to decide, and all that a terminal shows; ``details`` is the rest, for the file.
"""

from __future__ import annotations

from .render import markdown, terminal

__all__ = ["markdown", "terminal"]
