"""Stage 8: words from a record. Nothing is judged here: every number was sealed before.

``overview`` is what a reader needs to decide, and all that a terminal shows; ``details`` is the rest, for the file. ``html`` is
the page that holds all of it, with charts.
"""

from __future__ import annotations

from .html import html
from .render import decision_panel, markdown, terminal

__all__ = ["decision_panel", "html", "markdown", "terminal"]
