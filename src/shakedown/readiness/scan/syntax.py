"""Questions to the syntax tree that need no knowledge of names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

MOVES = {"to", "type_as", "cuda", "neuron"}  # methods that put a tensor on another tensor's device
_EMPTY = {"ctx", "op", "ops"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes directly in `node`, without contexts and operators, which no rule looks at: half of all nodes."""
    for field_name in node._fields:
        if field_name in _EMPTY:
            continue
        value = getattr(node, field_name, None)
        if isinstance(value, ast.AST):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Everything in `node` that is not in a function or class inside it."""
    waiting = list(children(node))
    while waiting:
        inner = waiting.pop()
        yield inner
        if not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting.extend(children(inner))


@dataclass
class Inside:
    """What a module or function binds itself. ``backward``: variables that ``backward()`` is called on; ``moved``: ``to()``."""

    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    assigned: set[str] = field(default_factory=set)
    backward: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)


def look_inside(node: ast.AST) -> Inside:
    """Read `node`, and not the functions inside it."""
    inside = Inside()
    declared: set[str] = set()
    for inner in own_nodes(node):
        if isinstance(inner, (ast.Import, ast.ImportFrom)):
            inside.imports.append(inner)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            inside.assigned.add(inner.id)
        elif isinstance(inner, (ast.Global, ast.Nonlocal)):
            declared |= set(inner.names)
        elif isinstance(inner, ast.Attribute) and inner.attr == "backward" and isinstance(inner.value, ast.Name):
            inside.backward.add(inner.value.id)
        elif isinstance(inner, ast.Attribute) and inner.attr in MOVES and isinstance(inner.value, ast.Name):
            inside.moved.add(inner.value.id)
    inside.imports.reverse()  # in the order of the text: the last import of a name counts
    inside.assigned -= declared
    return inside


def is_training_loop(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether the body of a loop, itself and not a function in it, calls ``backward()``."""
    return any(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "backward"
        for statement in loop.body
        for n in (statement, *own_nodes(statement))
    )


def catches_import_error(handler: ast.ExceptHandler) -> bool:
    """Whether an ``except`` makes an import optional."""
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return bool({ast.unparse(kind) for kind in caught} & {"ImportError", "ModuleNotFoundError", "Exception"})


def asks_for_package(test: ast.expr) -> bool:
    """Whether a condition asks if a package is installed, as in ``if is_apex_available():`` or ``if HAS_APEX:``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(asks_for_package(value) for value in test.values)
    called = test.func if isinstance(test, ast.Call) else test
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if isinstance(test, ast.Call):
        return name == "find_spec" or (name.startswith("is_") and name.endswith("_available"))
    return name.lower().startswith("has_")
