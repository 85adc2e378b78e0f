"""One walk over a module: names are resolved, kinds inferred, rules asked, and calls noted for the phases."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from . import kinds
from .kinds import Kind, infer, is_tensor, literal
from .project import Project
from .rule import Match, Rule
from .syntax import Function, Inside, asks_for_package, catches_import_error, children, is_training_loop, look_inside
from .walk import Module, import_bindings, local

CUDA_TESTS = ("torch.cuda.is_available", "torch.cuda.device_count")
_METHODS: dict[type[ast.AST], Callable[..., None] | None] = {}  # how each kind of node is walked; filled as they come
_OPAQUE = ""  # bound to something that has no dotted name


@dataclass
class Scope:
    """A module, class or function while it is walked."""

    key: str
    node: ast.AST
    names: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    owner: str = ""  # the class that `self` belongs to
    self_name: str = ""
    proven: set[str] = field(default_factory=set)  # variables that backward() is called on, hence tensors


@dataclass(frozen=True)
class Found:
    """A match before it is known who calls the function that it stands in."""

    rule: Rule
    match: Match
    node: ast.AST
    statement: tuple[int, int]
    function: str
    key: str
    guarded: bool
    optional: bool
    in_loop: bool


class Rules:
    """The rules by what they look at, so that each node meets the few that concern it."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.exact: dict[str, list[Rule]] = defaultdict(list)
        self.below: dict[str, list[Rule]] = defaultdict(list)
        self.methods: dict[str, list[Rule]] = defaultdict(list)
        self.imports: dict[str, list[Rule]] = defaultdict(list)
        self.nodes: dict[type[ast.AST], list[Rule]] = defaultdict(list)
        for rule in rules:
            for name in rule.names:
                (self.below[name[:-2]] if name.endswith(".*") else self.exact[name]).append(rule)
            for method in rule.methods:
                self.methods[method].append(rule)
            for package in rule.imports:
                self.imports[package].append(rule)
            for kind in rule.nodes:
                self.nodes[kind].append(rule)

    def for_name(self, dotted: str) -> list[Rule]:
        """Rules of exactly that name; without one, those of the nearest name above it."""
        return self._nearest(self.exact, self.below, dotted)

    def for_import(self, package: str) -> list[Rule]:
        return self._nearest(self.imports, self.imports, package)

    @staticmethod
    def _nearest(exact: dict[str, list[Rule]], below: dict[str, list[Rule]], dotted: str) -> list[Rule]:
        if dotted in exact:
            return exact[dotted]
        while "." in dotted:
            dotted = dotted.rpartition(".")[0]
            if dotted in below:
                return below[dotted]
        return []


class View:
    """The walk itself, and what rules may ask about the place they look at."""

    def __init__(self, project: Project, module: Module, rules: Rules | None) -> None:
        self.project, self.module, self.rules = project, module, rules
        self.found: list[Found] = []
        self.scopes: list[Scope] = []
        self.above: list[ast.AST] = []
        self.claimed: set[int] = set()
        self._statement = (1, 1)
        self._guarded = self._optional = self._in_loop = 0

    # What rules ask.

    def dotted(self, node: ast.AST) -> str | None:
        """The full name of `node` ("torch.cuda.synchronize"), None for what is no name of a module's."""
        if isinstance(node, ast.Name):
            for scope in reversed(self.scopes):
                if isinstance(scope.node, ast.ClassDef) and scope is not self.scopes[-1]:
                    continue
                if node.id in scope.names:
                    return scope.names[node.id] or None
            return None
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            if base is None:
                return None
            return self.project.canonical(f"{base}{node.attr}" if base.endswith("::") else f"{base}.{node.attr}")
        return None

    def kind(self, node: ast.AST | None) -> Kind:
        return infer(node, self)

    def tensor(self, node: ast.AST | None) -> bool:
        """Whether `node` is known to be a tensor."""
        return is_tensor(infer(node, self))

    def parent(self, distance: int = 1) -> ast.AST | None:
        """The syntax node around the one that is looked at."""
        return self.above[-distance] if len(self.above) >= distance else None

    def moved(self) -> bool:
        """Whether the value that is made here is assigned to a variable that is moved to a device in the same function."""
        assigned = next((node for node in reversed(self.above) if isinstance(node, ast.Assign)), None)
        names = {target.id for target in assigned.targets if isinstance(target, ast.Name)} if assigned else set()
        return bool(names & self._inside(self.scopes[-1].node).moved)

    def claim(self, node: ast.AST | None) -> None:
        """Keep more general rules away from `node` and everything in it."""
        if node is not None:
            self.claimed |= {id(inner) for inner in ast.walk(node)}

    def is_self(self, node: ast.AST) -> bool:
        """Whether `node` is the instance that a method works on."""
        scope = self.scopes[-1]
        return isinstance(node, ast.Name) and bool(scope.owner) and node.id == scope.self_name

    def call_of(self, node: ast.AST) -> ast.Call | None:
        """The call whose function is `node`, when the walk is at `node`."""
        parent = self.parent()
        return parent if isinstance(parent, ast.Call) and parent.func is node else None

    # What inference asks.

    def variable(self, name: str) -> Kind:
        for scope in reversed(self.scopes):
            if name in scope.kinds:
                return scope.kinds[name]
        found = self.dotted(ast.Name(name, ast.Load()))
        return self.project.variables.get(found, "unknown") if found else "unknown"

    def attribute(self, node: ast.Attribute) -> Kind:
        return self.project.attribute(self.scopes[-1].owner, node.attr) if self.is_self(node.value) else "unknown"

    def returned(self, dotted: str, call: ast.Call) -> Kind:
        return self.project.returned(dotted)

    # The walk.

    def run(self) -> list[Found]:
        """Walk the whole module."""
        self.scopes = [Scope(local(self.module.name), self.module.tree, dict(self.module.top))]
        inside = self._inside(self.module.tree)
        self._bind_imports(inside, self.scopes[0])
        self._prove(inside, self.scopes[0])
        self._body(self.module.tree.body)
        top = self.scopes[0].kinds
        self.project.variables |= {local(self.module.name, name): kind for name, kind in top.items()}
        return self.found

    def _bind_imports(self, inside: Inside, scope: Scope) -> None:
        finder, root = self.project.finder, self.project.root
        for statement in inside.imports:
            for name, target in import_bindings(statement, finder, self.module.path, root):
                scope.names[name] = self.project.canonical(target)

    def _prove(self, inside: Inside, scope: Scope) -> None:
        scope.proven = inside.backward
        for name in inside.backward:
            if scope.kinds.get(name, "unknown") == "unknown":
                scope.kinds[name] = "tensor"

    def _inside(self, node: ast.AST) -> Inside:
        """What `node` binds; the walks over a module share the answer."""
        if node not in self.project.inside:
            self.project.inside[node] = look_inside(node)
        return self.project.inside[node]

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._visit(statement)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body and isinstance(body, list) else node.end_lineno or node.lineno
            before, self._statement = self._statement, (node.lineno, max(node.lineno, last))
        self._ask(node)
        self.above.append(node)
        kind = type(node)
        if kind not in _METHODS:
            _METHODS[kind] = getattr(View, f"_on_{kind.__name__}", None)
        method = _METHODS[kind]
        if method:
            method(self, node)
        else:
            self._children(node)
        self.above.pop()
        if isinstance(node, ast.stmt):
            self._statement = before

    def _children(self, node: ast.AST) -> None:
        for child in children(node):
            self._visit(child)

    def _ask(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            parent = self.parent()
            if not (isinstance(parent, ast.Attribute) and parent.value is node and self.dotted(parent)):
                dotted = self.dotted(node)
                if dotted:
                    self.project.refer(self.scopes[-1].key, dotted, self._in_loop > 0)
                    self._try(self.rules.for_name(dotted) if self.rules else (), node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self.dotted(node.func) is None:
            self.project.refer_method(self.scopes[-1], node.func, self._in_loop > 0)
            self._try(self.rules.methods.get(node.func.attr, ()) if self.rules else (), node)
        if isinstance(node, ast.Attribute) and self.is_self(node.value):  # a method passed on, or a property
            self.project.refer_own(self.scopes[-1], node.attr, self._in_loop > 0)
        if isinstance(node, ast.Call):
            self._note_buffer(node)
            self._note_arguments(node)
        if self.rules is None:
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for package in self._packages(node):
                self._try(self.rules.for_import(package), node)
        self._try(self.rules.nodes.get(type(node), ()), node)

    def _packages(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        if isinstance(node, ast.ImportFrom) and node.level:
            return []
        wanted = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):  # `from numba import cuda` imports numba.cuda
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name for name in wanted if not self.project.finder.find(name.split(".")[0], 0, self.module.path)]

    def _try(self, rules: Iterable[Rule], node: ast.AST) -> None:
        for rule in rules:
            if id(node) in self.claimed:
                return
            match = rule.check(node, self)
            if match is not None:
                scope = self.scopes[-1]
                self.found.append(
                    Found(
                        rule,
                        match,
                        node,
                        self._statement,
                        scope.key.partition("::")[2],
                        scope.key,
                        guarded=self._guarded > 0,
                        optional=self._optional > 0,
                        in_loop=self._in_loop > 0,
                    )
                )

    def _note_buffer(self, node: ast.Call) -> None:
        """``self.register_buffer("scale", ...)`` makes ``self.scale`` a tensor."""
        func, owner = node.func, self.scopes[-1].owner
        if isinstance(func, ast.Attribute) and func.attr in ("register_buffer", "register_parameter") and node.args:
            name = literal(node.args[0])
            if owner and isinstance(name, str) and self.is_self(func.value):
                self.project.set_attribute(owner, name, "tensor", None)

    def _note_arguments(self, node: ast.Call) -> None:
        """Learn what the parameters of the workload's own functions are from who calls them."""
        dotted = self.dotted(node.func)
        if dotted is None and isinstance(node.func, ast.Attribute):
            dotted = self.project.method_of(self.scopes[-1], node.func)
        if dotted and "::" in dotted:
            positional = [infer(argument, self) for argument in node.args]
            named = {k.arg: infer(k.value, self) for k in node.keywords if k.arg}
            self.project.called(dotted, positional, named)

    # Syntax with a meaning of its own.

    def _on_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring is no use of what it mentions
            self._children(node)

    def _on_ClassDef(self, node: ast.ClassDef) -> None:
        for child in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self._visit(child)
        key = self._inner_key(node.name)
        self.scopes.append(Scope(key, node, owner=key))
        self._body(node.body)
        self.scopes.pop()

    def _inner_key(self, name: str) -> str:
        outer = self.scopes[-1].key
        return f"{outer}{name}" if outer.endswith("::") else f"{outer}.{name}"

    def _on_FunctionDef(self, node: Function) -> None:
        arguments = node.args
        for child in (*node.decorator_list, *arguments.defaults, *(d for d in arguments.kw_defaults if d)):
            self._visit(child)
        outer = self.scopes[-1]
        scope = Scope(self._inner_key(node.name), node, owner=outer.owner, self_name=outer.self_name)
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        if isinstance(outer.node, ast.ClassDef):
            static = any(getattr(decorator, "id", "") == "staticmethod" for decorator in node.decorator_list)
            scope.self_name = every[0].arg if every and not static else ""
        inside = self._inside(node)
        scope.names = dict.fromkeys(inside.assigned, _OPAQUE)
        self.project.bind_definitions(self.module, scope)
        self._bind_imports(inside, scope)
        for argument in (*every, *(a for a in (arguments.vararg, arguments.kwarg) if a)):
            scope.names[argument.arg] = _OPAQUE
        scope.kinds = self.project.parameters(scope.key, node, self)
        self._prove(inside, scope)
        loop, self._in_loop = self._in_loop, 0
        self.scopes.append(scope)
        self._body(node.body)
        self.scopes.pop()
        self._in_loop = loop

    _on_AsyncFunctionDef = _on_FunctionDef

    def _on_Lambda(self, node: ast.Lambda) -> None:
        scope = self.scopes[-1]
        inner = Scope(scope.key, node, owner=scope.owner, self_name=scope.self_name)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            inner.names[argument.arg] = _OPAQUE
            inner.kinds[argument.arg] = "unknown"
        self.scopes.append(inner)
        self._visit(node.body)
        self.scopes.pop()

    def _on_Return(self, node: ast.Return) -> None:
        self._children(node)
        self.project.returns(self.scopes[-1].key, infer(node.value, self))

    def _on_Assign(self, node: ast.Assign) -> None:
        self._visit(node.value)
        kind = infer(node.value, self)
        for target in node.targets:
            self._visit(target)
            self._bind(target, kind, node.value)

    def _on_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit(node.target)
        if node.value is not None:
            self._visit(node.value)
            self._bind(node.target, infer(node.value, self), node.value)

    def _on_AugAssign(self, node: ast.AugAssign) -> None:
        self._visit(node.value)
        self._visit(node.target)
        whole = ast.BinOp(node.target, node.op, node.value)
        self._bind(node.target, infer(whole, self), None)

    def _on_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit(node.value)
        self._bind(node.target, infer(node.value, self), node.value)

    def _on_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._visit(node.iter)
        kind = infer(node.iter, self)
        self._bind(node.target, self._iterated(node.iter, kind), None)
        trains = self.project.trains(self.module) and is_training_loop(node)
        self._in_loop += trains
        self._body(node.body)
        self._in_loop -= trains
        self._body(node.orelse)

    _on_AsyncFor = _on_For

    def _on_While(self, node: ast.While) -> None:
        trains = self.project.trains(self.module) and is_training_loop(node)
        self._in_loop += trains
        self._children(node)
        self._in_loop -= trains

    def _iterated(self, node: ast.expr, kind: Kind) -> Kind:
        """What a loop over `node` binds."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            inner = [kinds.element(infer(argument, self)) for argument in node.args]
            if node.func.id == "enumerate" and inner:
                return ("plain", inner[0])
            if node.func.id == "zip":
                return tuple(inner)
            if node.func.id == "range":
                return "plain"
        return kinds.element(kind)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        scope = self.scopes[-1]
        inner = Scope(scope.key, node, owner=scope.owner, self_name=scope.self_name)
        self.scopes.append(inner)
        for generator in node.generators:
            self._visit(generator.iter)
            for name in ast.walk(generator.target):
                if isinstance(name, ast.Name):
                    inner.names[name.id] = _OPAQUE
            self._bind(generator.target, self._iterated(generator.iter, infer(generator.iter, self)), None)
            for condition in generator.ifs:
                self._visit(condition)
        for part in ("key", "value", "elt"):
            if hasattr(node, part):
                self._visit(getattr(node, part))
        self.scopes.pop()

    _on_ListComp = _on_SetComp = _on_GeneratorExp = _on_DictComp = _comprehension

    def _bind(self, target: ast.AST, kind: Kind, value: ast.expr | None) -> None:
        scope = self.scopes[-1]
        if isinstance(target, ast.Name):
            scope.kinds[target.id] = "tensor" if kind == "unknown" and target.id in scope.proven else kind
            full = self.dotted(value) if value is not None else None
            if full and not scope.names.get(target.id):  # `dev = torch.cuda`
                scope.names[target.id] = full
        elif isinstance(target, ast.Attribute):
            if self.is_self(target.value):
                made = self.dotted(value.func) if isinstance(value, ast.Call) else None
                self.project.set_attribute(scope.owner, target.attr, kind, made)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, part in enumerate(target.elts):
                known = isinstance(kind, tuple) and len(kind) == len(target.elts)
                self._bind(part, kind[index] if known else kinds.element(kind), None)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, "unknown", None)

    def _on_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            return
        self._visit(node.test)
        guard, optional = self.tests_cuda(node.test), asks_for_package(node.test)
        self._guarded += guard
        self._optional += optional
        self._body(node.body)
        self._guarded -= guard
        self._optional -= optional
        self._body(node.orelse)

    def _on_IfExp(self, node: ast.IfExp) -> None:
        self._visit(node.test)
        guard = self.tests_cuda(node.test)
        self._guarded += guard
        self._visit(node.body)
        self._guarded -= guard
        self._visit(node.orelse)

    def tests_cuda(self, test: ast.expr) -> bool:
        """Whether a condition holds only where CUDA is available."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return False
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return any(self.tests_cuda(value) for value in test.values)
        if isinstance(test, ast.Call):
            return self.dotted(test.func) in CUDA_TESTS
        if isinstance(test, ast.Attribute):
            return test.attr == "is_cuda"
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.In)):
            return "cuda" in (literal(test.left), literal(test.comparators[0]))
        return False

    def _on_Try(self, node: ast.Try) -> None:
        optional = any(catches_import_error(handler) for handler in node.handlers)
        self._optional += optional
        self._body(node.body)
        self._optional -= optional
        for handler in node.handlers:
            self._body(handler.body)
        self._body(node.orelse)
        self._body(node.finalbody)

    _on_TryStar = _on_Try

    def _on_arg(self, node: ast.arg) -> None:
        return  # annotations compute nothing
