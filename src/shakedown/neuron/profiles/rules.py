"""A profile at work: which calls leave the device, which dtypes are narrowed, what torch.compile may be asked for."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import jax
import torch

from .. import manual
from ..dtypes import TO_TORCH, to_numpy
from ..errors import ProfileError, UnsupportedByProfile
from ..lowering import registry
from ..operators import Operator
from ..views import View
from . import FOLDER, apis, shipped
from .document import ApiRule, CompileRule, Document, DtypeRule, Mode, OperatorRule, Source
from .document import read as read_document

OpOverload: TypeAlias = torch._ops.OpOverload


@functools.cache
def _known(path: Path, modified_ns: int) -> Profile:
    return Profile(*read_document(path))


def read(name: str) -> Profile:
    """The shipped profile `name`, or the one in the file at that path; an unchanged file gives the same object.

    Raises:
        ProfileError: there is none, or its file is wrong.
    """
    path = Path(name) if name.endswith(".toml") or "/" in name else FOLDER / f"{name}.toml"
    path = path.expanduser().resolve()
    try:
        modified_ns = path.stat().st_mtime_ns
    except OSError:
        raise ProfileError(
            f"there is no support profile {name!r}: give {', '.join(shipped())}, or the path of a TOML file"
        ) from None
    return _known(path, modified_ns)


@functools.cache
def _dispatched() -> frozenset[str]:
    """Names that the dispatcher knows. (TorchScript has overloads of its own, such as ``aten::sort.int`` on lists.)"""
    return frozenset(torch._C._dispatch_get_all_op_names())


def _overloads(name: str) -> list[OpOverload]:
    """``lerp.Scalar`` -> that one; ``lerp`` -> all overloads of ``lerp`` and ``lerp_``. Empty: no such operator."""
    base, dot, which = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None:
        return []
    in_place = None if dot else getattr(torch.ops.aten, f"{base}_", None)
    found = [getattr(p, o) for p in (packet, in_place) if p is not None for o in p.overloads() if not dot or o == which]
    return [op for op in found if op.name() in _dispatched()]


def _reaches_the_rules(op: OpOverload) -> bool:
    """Whether calls of `op` on the device come by where rules are consulted."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    lowering = registry.lowering_of(op)
    if lowering is not None and lowering.graph_only and registry.composite_of(op) is None:
        return False  # a view: PyTorch's metadata kernels answer
    if op._schema.name.split("::")[1] in {name.partition(".")[0] for name in manual.names()}:
        return False
    if not has(op.name(), "CompositeImplicitAutograd"):
        return True
    if registry.composite_of(op) is not None:
        return has(op.name(), "Autograd")  # else it runs above autograd, where going to the CPU would lose the gradient
    functional = registry.functional_of(op)
    return lowering is not None or (functional is not None and registry.lowering_of(functional) is not None)


class Profile:
    """A profile that can be active. ``sha256`` is of its text, ``origin`` the file it came from."""

    def __init__(self, source: Source, document: Document) -> None:
        self.name, self.release = document.name, document.release
        self.origin = source.path
        self.rules = document.rule
        self.sha256 = hashlib.sha256(source.text.encode()).hexdigest()
        self._operators: dict[OpOverload, list[OperatorRule]] = {}
        self._narrow: dict[torch.dtype, torch.dtype] = {}
        self._exempt: dict[torch.dtype, set[str]] = {}
        self._dtype_rules: dict[torch.dtype, DtypeRule] = {}
        self._compile: dict[str, CompileRule] = {}
        self._apis: list[ApiRule] = []
        self._noticed: set[torch.dtype] = set()
        for number, rule in enumerate(document.rule):
            if isinstance(rule, OperatorRule):
                for op in _resolve(source, number, rule.operators, must_reach=True):
                    self._operators.setdefault(op, []).append(rule)
            elif isinstance(rule, DtypeRule):
                wide = getattr(torch, rule.dtype)
                self._narrow[wide] = getattr(torch, rule.to)
                self._dtype_rules[wide] = rule
                exempt = _resolve(source, number, rule.except_operators, must_reach=False)
                # A program calls the functional form: aten.copy for aten.copy_.
                self._exempt[wide] = {str(form) for op in exempt for form in (op, registry.functional_of(op))}
            elif isinstance(rule, CompileRule):
                self._compile[rule.what] = rule
            else:
                self._apis.append(rule)

    def says(self, rule: Any, what: str) -> str:
        """One sentence that names profile, rule and source."""
        return f"profile {self.name}, rule {rule.id}: {what} ({rule.source}, {rule.date})"

    # --- operators

    def reason(
        self, op: OpOverload, tensors: Iterable[torch.Tensor], outputs: Callable[[], list[torch.dtype]], mode: Mode
    ) -> str | None:
        """Why this call runs on the CPU; None when it does not. `outputs` gives its results' dtypes, if asked.

        Raises:
            UnsupportedByProfile: the call is refused.
        """
        rule = self._matching(op, tensors, outputs, mode)
        if rule is None:
            return None
        if rule.action == "refuse":
            raise UnsupportedByProfile(self.says(rule, f"{op} is not supported there"))
        return self.says(rule, "runs on the CPU there")

    def rule_for(
        self, op: OpOverload, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor], mode: Mode
    ) -> OperatorRule | None:
        """The rule that a call of `op` on tensors like these would meet, if any. Nothing is called."""
        return self._matching(op, inputs, lambda: [t.dtype for t in outputs], mode)

    def _matching(
        self, op: OpOverload, tensors: Iterable[torch.Tensor], outputs: Callable[[], list[torch.dtype]], mode: Mode
    ) -> OperatorRule | None:
        rules = self._operators.get(op)
        if rules is None:
            return None
        given = list(tensors)
        return next((rule for rule in rules if _holds(rule, given, outputs, mode)), None)

    def eager_reason(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """:meth:`reason` for an operator call with these arguments."""
        if operator.op not in self._operators:
            return None

        def outputs() -> list[torch.dtype]:
            from ..plan import example

            try:
                return [t.dtype for t in _tensors(example(operator, args, kwargs))]
            except Exception:  # wrong arguments, which the call itself will report, or no meta kernel
                return []

        return self.reason(operator.op, _tensors((args, kwargs)), outputs, "eager")

    def graph_reason(self, op: OpOverload, args: Any, kwargs: Any, result: Any) -> str | None:
        """:meth:`reason` for a node of a captured graph, whose arguments and result are example tensors."""
        return self.reason(op, _tensors((args, kwargs)), lambda: [t.dtype for t in _tensors(result)], "compile")

    def kept_whole(self, decompositions: dict[OpOverload, Any]) -> dict[OpOverload, Any]:
        """`decompositions` without those of operators with a rule for graphs, which must arrive there as themselves."""
        ruled = {op for op, rules in self._operators.items() if any("compile" in r.when.modes for r in rules)}
        return {op: fn for op, fn in decompositions.items() if op not in ruled}

    # --- dtypes

    def narrowed(self, name: str, lowering: Callable[..., Any], outputs: tuple[View, ...] | None) -> Callable[..., Any]:
        """`lowering` of the operator called `name`, computing in the narrower dtypes; the caller widens its results."""
        table = {wide: narrow for wide, narrow in self._narrow.items() if name not in self._exempt[wide]}
        if not table or outputs is None:
            return lowering
        concerned = {view.dtype for view in outputs} & set(table)

        def run(*args: Any, **kwargs: Any) -> Any:
            touched = set(concerned)
            new_args, new_kwargs = _narrow(args, table, touched), _narrow(kwargs, table, touched)
            if not touched:
                return lowering(*args, **kwargs)
            self._noticed |= touched
            return _narrow(lowering(*new_args, **new_kwargs), table, set())

        return run

    def announce(self) -> None:
        """Warn of dtypes that were narrowed for the first time in this process. Called after a program's first run."""
        while self._noticed:
            dtype = self._noticed.pop()
            if dtype not in _announced:
                _announced.add(dtype)
                rule = self._dtype_rules[dtype]
                said = self.says(rule, f"{rule.dtype} runs as {rule.to}; results keep their dtype")
                warnings.warn(said, stacklevel=4)  # past the first call and the operator's kernel, to its caller

    # --- torch.compile

    def restrict_compile(self, mode: str | None, options: dict[str, Any] | None, symbolic: list[Any]) -> set[str]:
        """Apply the rules on torch.compile's parameters; returns the names of those that a rule has dealt with.

        Raises:
            UnsupportedByProfile: a rule refuses the value.
        """
        asked = {
            "dynamic": [f"dynamic shapes ({len(symbolic)} symbolic sizes)"] if symbolic else [],
            "mode": [] if mode in (None, "default") else [mode],
            "options": sorted(options or {}),
        }
        for what, rule in self._compile.items():
            if what not in asked:
                continue
            values = [v for v in asked[what] if v not in rule.allowed]
            if not values:
                continue
            if rule.action == "refuse":
                raise UnsupportedByProfile(
                    self.says(rule, f"torch.compile refuses {what}: {', '.join(map(str, values))}; static shapes only")
                    if what == "dynamic"
                    else self.says(rule, f"torch.compile refuses {what} {', '.join(map(str, values))}")
                )
            warnings.warn(self.says(rule, f"torch.compile ignores {what} {', '.join(map(str, values))}"), stacklevel=3)
        return set(self._compile)

    @property
    def copies_strided_inputs(self) -> bool:
        """Whether a compiled graph makes a contiguous copy of each input that is not contiguous, on every call."""
        return "strided inputs" in self._compile

    # --- whole APIs

    def guards(self) -> AbstractContextManager[Any]:
        """While open, the APIs that the profile names refuse tensors of the device."""
        return apis.refusing({r.api: self.says(r, f"{r.api} is not supported there") for r in self._apis})


_announced: set[torch.dtype] = set()  # the release warns once per process


def _is_out(op: OpOverload) -> bool:
    return any(a.is_out for a in op._schema.arguments)


def _resolve(source: Source, number: int, names: Iterable[str], *, must_reach: bool) -> list[OpOverload]:
    found: list[OpOverload] = []
    for name in names:
        overloads = _overloads(name)
        if not overloads:
            raise source.error(source.line(number, name), f"PyTorch {torch.__version__} has no operator aten.{name}")
        usable = [op for op in overloads if _reaches_the_rules(op)] if must_reach else overloads
        # An `out=` form may have a kernel where the form that everybody calls has none.
        called = [op for op in overloads if not _is_out(op)] or overloads
        if not set(called) & set(usable):
            raise source.error(
                source.line(number, name),
                f"a rule on aten.{name} would never apply: it allocates, moves or views, or is made of other operators "
                "before the device sees it; name those",
            )
        found += usable
    return found


def _holds(
    rule: OperatorRule, tensors: list[torch.Tensor], outputs: Callable[[], list[torch.dtype]], mode: Mode
) -> bool:
    when = rule.when
    if mode not in when.modes:
        return False
    if when.dtypes is not None and not {t.dtype for t in tensors} & {getattr(torch, n) for n in when.dtypes}:
        return False
    if when.contiguous is not None and when.contiguous != all(t.is_contiguous() for t in tensors):
        return False
    return when.output_dtypes is None or bool(set(outputs()) & {getattr(torch, n) for n in when.output_dtypes})


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [t for item in tree for t in _tensors(item)]


def _narrow(tree: Any, table: dict[torch.dtype, torch.dtype], touched: set[torch.dtype]) -> Any:
    """`tree` with arrays, dtypes and views of the dtypes in `table` made narrower, noting which in `touched`.

    Weakly typed arrays are Python numbers, which do not widen what they meet.
    """
    if isinstance(tree, jax.Array):
        wide = None if tree.weak_type else TO_TORCH.get(tree.dtype)  # random keys have a dtype of JAX's own
        if wide is None or wide not in table:
            return tree
        touched.add(wide)
        return tree.astype(to_numpy(table[wide]))
    if isinstance(tree, torch.dtype):
        if tree in table:
            touched.add(tree)
        return table.get(tree, tree)
    if isinstance(tree, View):
        return dataclasses.replace(tree, dtype=_narrow(tree.dtype, table, touched))
    if isinstance(tree, dict):
        return {k: _narrow(v, table, touched) for k, v in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_narrow(v, table, touched) for v in tree)
    return tree
