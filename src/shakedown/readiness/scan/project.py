"""What is known about the workload's own code as a whole: who calls whom, and what functions take and return.

Filled by walking every module a few times; each walk knows a little more than the one before.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from .kinds import Kind, infer, literal, merge
from .syntax import Function, Inside
from .walk import Class, Finder, Module, import_bindings, local

if TYPE_CHECKING:
    from .visit import Scope, View

# Method names that many classes have: seeing one says nothing about whose it is.
_COMMON = {
    "forward", "backward", "step", "update", "get", "add", "append", "items", "keys", "values", "copy", "close",
    "read", "write", "train", "eval", "reset", "load", "save", "run", "log", "state_dict", "load_state_dict", "to",
    "cuda", "cpu", "size", "view", "sum", "mean", "max", "min", "pop", "sort", "index", "count", "split", "join",
    "format", "extend", "insert", "clear", "start", "stop", "put", "set", "apply", "map", "filter", "next", "fit",
    "predict", "call", "build", "create", "init", "setup",
}  # fmt: skip
_PLAIN_ANNOTATIONS = {"int", "float", "bool", "str", "bytes", "int | None", "float | None", "bool | None", "str | None"}
PROTOCOL = ("forward", "make_batch", "build_model", "build_optimizer")


class Project:
    """Modules by relative path, and what was learned about them."""

    def __init__(self, root: Path, finder: Finder) -> None:
        self.root, self.finder = root, finder
        self.modules: dict[str, Module] = {}
        self.variables: dict[str, Kind] = {}
        self.calls: dict[str, set[str]] = defaultdict(set)  # function -> functions that it calls or passes on
        self.in_loops: set[str] = set()  # functions that a training loop calls
        self.inside: dict[ast.AST, Inside] = {}
        self._trains: dict[str, bool] = {}
        self._attributes: dict[tuple[str, str], Kind] = {}
        self._made_by: dict[tuple[str, str], str] = {}
        self._returns: dict[str, Kind] = {}
        self._parameters: dict[str, dict[str, Kind]] = defaultdict(dict)
        self._methods: dict[str, list[str]] = defaultdict(list)
        self._is_module: dict[str, bool] = {}

    def add(self, module: Module) -> None:
        """Index the functions and classes of a module."""
        self.modules[module.name] = module
        self._index(module, module.tree, "")
        for node in module.tree.body:
            for statement in ast.walk(node) if isinstance(node, (ast.If, ast.Try, ast.With)) else (node,):
                if isinstance(statement, (ast.Import, ast.ImportFrom)):
                    module.top |= dict(import_bindings(statement, self.finder, module.path, self.root))
        for qualified in (*module.functions, *module.classes):
            if "." not in qualified:
                module.top[qualified] = local(module.name, qualified)

    def _index(self, module: Module, node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                module.functions[prefix + child.name] = child
                self._index(module, child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                key = local(module.name, prefix + child.name)
                methods = {n.name for n in child.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
                module.classes[prefix + child.name] = Class(key, child, methods=methods)
                for method in methods:
                    self._methods[method].append(f"{key}.{method}")
                self._index(module, child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.stmt):
                self._index(module, child, prefix)

    def bind_definitions(self, module: Module, scope: Scope) -> None:
        """Bind the functions and classes that are defined inside a function."""
        prefix = scope.key.partition("::")[2] + "."
        for qualified in (*module.functions, *module.classes):
            if qualified.startswith(prefix) and "." not in qualified[len(prefix) :]:
                scope.names[qualified[len(prefix) :]] = local(module.name, qualified)

    def canonical(self, dotted: str) -> str:
        """Follow a name that a module of the workload only passes on."""
        for _ in range(8):
            name, separator, inner = dotted.partition("::")
            module = self.modules.get(name) if separator else None
            head, _, rest = inner.partition(".")
            if module is None or not head or head in module.functions or head in module.classes:
                return dotted
            target = module.top.get(head)
            if target is None or target == dotted:
                return dotted
            dotted = target + ("" if not rest else rest if target.endswith("::") else f".{rest}")
        return dotted

    def klass(self, dotted: str) -> Class | None:
        """The workload's own class of that dotted name."""
        name, _, inner = dotted.partition("::")
        module = self.modules.get(name)
        return module.classes.get(inner) if module else None

    def function(self, dotted: str) -> Function | None:
        """The workload's own function of that dotted name."""
        name, _, inner = dotted.partition("::")
        module = self.modules.get(name)
        return module.functions.get(inner) if module else None

    def bases(self, klass: Class) -> list[str]:
        """Dotted names of the bases of a class, as far as the top of its module tells."""
        if klass.bases is not None:
            return klass.bases
        module = self.modules[klass.key.partition("::")[0]]
        found: list[str] = []
        for base in klass.node.bases:
            head, _, rest = ast.unparse(base).partition(".")
            full = module.top.get(head, head)
            found.append(self.canonical(full + ("" if not rest else rest if full.endswith("::") else f".{rest}")))
        klass.bases = found
        return found

    def is_module(self, key: str) -> bool:
        """Whether a class of the workload is a ``torch.nn.Module``: by its bases, or by having a ``forward``."""
        if key not in self._is_module:
            self._is_module[key] = False  # a class that is its own ancestor is nobody's module
            klass = self.klass(key)
            if klass is not None:
                bases = self.bases(klass)
                known = any(base.startswith("torch.nn.") or self.is_module(base) for base in bases)
                own = "forward" in klass.methods and bool(bases) and not self.is_function(klass)
                self._is_module[key] = known or own
        return self._is_module[key]

    def is_function(self, klass: Class) -> bool:
        """Whether a class is a ``torch.autograd.Function``."""
        return any(
            base in ("torch.autograd.Function", "torch.autograd.function.Function") for base in self.bases(klass)
        )

    def trains(self, module: Module) -> bool:
        """Whether ``backward`` is called anywhere in a module; most loops need not be looked at."""
        if module.name not in self._trains:
            self._trains[module.name] = any(".backward(" in line for line in module.lines)
        return self._trains[module.name]

    # Calls.

    def _add_call(self, caller: str, callee: str, in_loop: bool) -> None:
        self.calls[caller].add(callee)
        if in_loop:
            self.in_loops.add(callee)

    def refer(self, caller: str, dotted: str, in_loop: bool) -> None:
        """`caller` names the workload's own function or class `dotted`."""
        if "::" not in dotted:
            return
        klass = self.klass(dotted)
        if klass is not None:
            for method in ("__init__", "__post_init__", "__call__"):
                if method in klass.methods:
                    self._add_call(caller, f"{klass.key}.{method}", in_loop)
        elif self.function(dotted) is not None:
            self._add_call(caller, dotted, in_loop)

    def refer_own(self, scope: Scope, name: str, in_loop: bool) -> None:
        """A method or property of ``self``."""
        found = self.find_method(scope.owner, name)
        if found:
            self._add_call(scope.key, found, in_loop)

    def refer_method(self, scope: Scope, func: ast.Attribute, in_loop: bool) -> None:
        """A method of something: of an attribute whose class is known, or the only method of that name."""
        found = self.method_of(scope, func)
        if found is None and func.attr not in _COMMON and len(self._methods[func.attr]) == 1:
            found = self._methods[func.attr][0]
        if found:
            self._add_call(scope.key, found, in_loop)

    def method_of(self, scope: Scope, func: ast.Attribute) -> str | None:
        """The method that ``self.m()`` or ``self.attribute.m()`` calls."""
        value = func.value
        if isinstance(value, ast.Name) and value.id == scope.self_name and scope.owner:
            made = self._made_by.get((scope.owner, func.attr))
            return f"{made}.forward" if made else self.find_method(scope.owner, func.attr)
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id == scope.self_name:
            made = self._made_by.get((scope.owner, value.attr))
            return self.find_method(made, func.attr) if made else None
        return None

    def find_method(self, owner: str, name: str) -> str | None:
        """`name` in the class `owner` or in its bases."""
        for key in self._family(owner):
            klass = self.klass(key)
            if klass and name in klass.methods:
                return f"{key}.{name}"
        return None

    def _family(self, owner: str) -> list[str]:
        """A class of the workload and its bases, nearest first."""
        order: list[str] = []
        waiting = [owner]
        while waiting:
            key = waiting.pop(0)
            klass = self.klass(key)
            if klass and key not in order:
                order.append(key)
                waiting += self.bases(klass)
        return order

    # Kinds.

    def attribute(self, owner: str, name: str) -> Kind:
        """What ``self.name`` is."""
        for key in self._family(owner):
            if (key, name) in self._attributes:
                return self._attributes[key, name]
        return "unknown"

    def set_attribute(self, owner: str, name: str, kind: Kind, made: str | None) -> None:
        """``self.name = ...`` was seen; `made` is the class or function that made the value."""
        before = self._attributes.get((owner, name), kind)
        self._attributes[owner, name] = merge(before, kind)
        if made and self.klass(made):
            self._made_by[owner, name] = made

    def returns(self, key: str, kind: Kind) -> None:
        self._returns[key] = merge(self._returns.get(key, kind), kind)

    def returned(self, dotted: str) -> Kind:
        """What calling the workload's own function or class gives."""
        if self.klass(dotted):
            return "module" if self.is_module(dotted) else "unknown"
        return self._returns.get(dotted, "unknown")

    def called(self, dotted: str, positional: list[Kind], named: dict[str, Kind]) -> None:
        """A call was seen with arguments of these kinds."""
        owner = self.klass(dotted.rpartition(".")[0])
        if dotted.endswith(".apply") and owner and self.is_function(owner):
            dotted, positional = f"{owner.key}.forward", ["unknown", *positional]  # the context comes first
        key = f"{dotted}.__init__" if self.klass(dotted) else dotted
        function = self.function(key)
        if function is None:
            return
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if (
            self.klass(key.rpartition(".")[0])
            and names
            and not any(getattr(d, "id", "") == "staticmethod" for d in function.decorator_list)
        ):
            names = names[1:]
        known = self._parameters[key]
        for name, kind in (*zip(names, positional, strict=False), *named.items()):
            known[name] = merge(known.get(name, kind), kind)

    def parameters(self, key: str, node: Function, view: View) -> dict[str, Kind]:
        """What each parameter of a function is: from its annotation, its role, its default, or its callers."""
        owner = key.rpartition(".")[0]
        klass = self.klass(owner)
        arguments = [*node.args.posonlyargs, *node.args.args]
        defaults: dict[str, ast.expr] = dict(
            zip([a.arg for a in arguments[len(arguments) - len(node.args.defaults) :]], node.args.defaults)
        )
        defaults |= {a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults) if d is not None}
        found: dict[str, Kind] = {}
        takes_tensors = klass is not None and (
            (node.name == "forward" and self.is_module(owner)) or (node.name == "backward" and self.is_function(klass))
        )
        first = klass is not None and node.name == "forward" and self.is_function(klass)  # after the context
        for position, argument in enumerate([*arguments, *node.args.kwonlyargs]):
            kind = _annotated(argument, view)
            default = defaults.get(argument.arg)
            if kind == "unknown" and default is not None:
                kind = (
                    "plain" if literal(default) is not None else infer(default, view) if literal(default) else "unknown"
                )
            bare = kind == "unknown" and default is None and argument.annotation is None
            if bare and ((takes_tensors and position) or (first and position == 1)):
                kind = "tensor"
            if kind == "unknown" and not klass and self.is_protocol(key):
                kind = {"forward": ("module", "tensors")}.get(node.name, ("plain", "plain"))[min(position, 1)]
            if kind == "unknown":
                kind = self._parameters[key].get(argument.arg, "unknown")
            found[argument.arg] = kind
        if node.args.vararg:
            found[node.args.vararg.arg] = "tensors" if takes_tensors else "unknown"
        if node.args.kwarg:
            found[node.args.kwarg.arg] = "unknown"
        return found

    def is_protocol(self, key: str) -> bool:
        """Whether a function is one of the four that a workload file defines for the trial."""
        name, _, function = key.partition("::")
        return function in PROTOCOL and all(wanted in self.modules[name].functions for wanted in PROTOCOL)


def _annotated(argument: ast.arg, view: View) -> Kind:
    if argument.annotation is None:
        return "unknown"
    text = ast.unparse(argument.annotation).strip("'\"")
    if text in _PLAIN_ANNOTATIONS:
        return "plain"
    full = view.dotted(argument.annotation) or text
    if full.rpartition(".")[2] in ("Tensor", "FloatTensor", "LongTensor", "BoolTensor"):
        return "mask" if full.endswith("BoolTensor") else "tensor"
    if full in ("torch.nn.Module", "nn.Module"):
        return "module"
    if (
        "Tensor" in text
        and "|" not in text
        and "Union" not in text
        and text.lower().startswith(("dict[", "list[", "tuple[", "sequence[", "mapping["))
    ):
        return "tensors"
    if full.endswith("ndarray"):
        return "array"
    return "unknown"
