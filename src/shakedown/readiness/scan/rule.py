"""What a rule is. The rules themselves stand in :mod:`.rules`, one block each."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .results import Grade, Kind, RuleText, Severity

if TYPE_CHECKING:
    from .visit import View


@dataclass(frozen=True)
class Match:
    """Why this place matches, where the rule alone does not say it; ``severity`` and ``effort`` replace the rule's."""

    detail: str = ""
    severity: Severity | None = None
    effort: Grade | None = None
    kernel: str = ""


Check = Callable[[ast.AST, "View"], Match | None]


def always(node: ast.AST, view: View) -> Match | None:
    """The name alone decides."""
    return Match()


@dataclass(frozen=True)
class Rule:
    """One thing to look for, and what to do about it.

    A rule looks at uses of ``names`` (dotted; ``torch.sparse.*`` means everything below), at calls of ``methods`` on
    anything that is not a module, at imports of ``imports`` (packages), and at syntax ``nodes``; ``check`` then sees the
    node and may decline. The node is the name, the method call, the import statement, or the syntax node.

    ``on_device``: the place matters only where tensors are on the device, so it is not reported in the functions that
    the trial runs on the host (``make_batch``, ``build_model``) and is a note where it is not known who calls it.
    ``only_in_step``: it is right anywhere but in the forward and backward pass.
    """

    id: str
    kind: Kind
    severity: Severity
    effort: Grade
    looks_for: str
    why: str
    source: str
    instead: str
    names: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    nodes: tuple[type[ast.AST], ...] = ()
    check: Check = always
    on_device: bool = False
    only_in_step: bool = False

    def text(self) -> RuleText:
        """The rule in words, for documents."""
        return RuleText(
            kind=self.kind,
            looks_for=self.looks_for,
            why=self.why,
            source=self.source,
            instead=self.instead,
            effort=self.effort,
        )
