"""From a functional FX graph of ATen operators to steps of a program, through the same lowerings as eager calls.

Used for an operator that has only a decomposition, and by ``torch.compile``.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator as python_operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import torch
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from . import compile_only, config, graph_higher_order
from .buffer import is_device_tensor, storage_nbytes
from .errors import KernelError, LoweringError, UnsupportedByProfile, said_by
from .graph_higher_order import is_random
from .lowering import registry
from .lowering.checks import require
from .pending import value_of
from .program import Builder, Ref
from .transfer import to_device
from .views import View, cast, read

if TYPE_CHECKING:
    from .profiles.rules import Profile

RANDOM_NUMBER = "shakedown_random_number"  # in a node's meta: its number among the graph's random operators
_RESTRIDE = (torch.ops.aten.as_strided.default,)
_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
# What capture does with Python numbers that are not known before the call.
_ON_NUMBERS = {
    getattr(python_operator, n) for n in ("add", "sub", "mul", "neg", "lt", "le", "gt", "ge", "eq", "ne", "and_", "or_")
}


def _holds_refs(values: Sequence[Any]) -> bool:
    return any(isinstance(v, Ref) for v in values)


def _without_masked(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any], example: Any) -> Any:
    """What `op` returns, without the results that its ``output_mask`` asks it not to compute. (Meta kernels give them.)"""
    given = {**dict(zip((a.name for a in op._schema.arguments), args)), **kwargs}
    mask = given.get("output_mask")
    if mask is None or not isinstance(example, (list, tuple)) or len(mask) != len(example):
        return example
    return type(example)(e if wanted else None for e, wanted in zip(example, mask))


def _tensor_leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensor_leaves(v)]
    return []


def _assert(value: Any, message: str = "Expected Tensor with single nonzero value, but got zero") -> None:
    require(jnp.all(value != 0), RuntimeError, message)


def _numbered(key: Any, number: int) -> Any:
    """The key of random operator number `number` in a graph whose key is `key` (both uint32[4]).

    It is the one that the operator would take in eager execution, where each takes the next offset.
    """
    low = key[2] + jnp.uint32(number)
    return jnp.stack([key[0], key[1], low, key[3] + (low < key[2]).astype(jnp.uint32)])


def fold_in(key: Any, number: Any) -> Any:
    """A key of its own for draw number `number` within a loop, or within a graph of a graph, whose key is `key`."""
    mixed = jax.random.fold_in(jax.random.wrap_key_data(key[:2], impl="threefry2x32"), key[2])
    return jnp.concatenate([jax.random.key_data(jax.random.fold_in(mixed, number)), key[2:]])


class GraphLowering:
    """Inlines the nodes of one graph into `builder`. `key` is the Ref of the graph's random key, when it has one.

    With `profile`, operators that this support profile keeps off the device stop the lowering. `nested`: the graph is an
    argument of an operator of another one, so that its random operators share that operator's key.
    """

    def __init__(
        self, builder: Builder, key: Ref | None = None, profile: Profile | None = None, *, nested: bool = False
    ) -> None:
        self.builder = builder
        self.profile = profile
        self.key, self.nested = key, nested
        self.random_operators = 0
        self.values: dict[torch.fx.Node, Any] = {}  # of the nodes inlined so far
        self._mutated: dict[torch.fx.Node, Any] = {}
        # Number of the first value of each node, ascending; None: of what belongs to no node.
        self._begins: list[tuple[int, torch.fx.Node | None]] = []

    def mutations(self, placeholders: Sequence[torch.fx.Node]) -> dict[int, Ref]:
        """Number of each placeholder that the graph writes (its trailing ``copy_`` nodes) -> its new value."""
        return {placeholders.index(node): value for node, value in self._mutated.items()}

    @property
    def has_mutations(self) -> bool:
        return bool(self._mutated)

    def run(self, graph: torch.fx.Graph, inputs: Sequence[Any]) -> Any:
        """Inline `graph`; `inputs` stand for its placeholders. Returns the structure of its outputs (Refs, constants).

        Raises:
            LoweringError: naming the first operator that has no lowering.
        """
        env = self.values
        given = iter(inputs)
        for node in graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "get_attr":
                env[node] = self._constant(graph, node)
            elif node.op == "call_function":
                self._begins.append((self.builder.next_index(), node))
                env[node] = self._blaming(node, env)
            elif node.op == "output":
                self._begins.append((self.builder.next_index(), None))
                return map_arg(node.args[0], env.__getitem__)
            else:
                raise LoweringError(f"graph node of kind {node.op}: {node.format_node()}")
        raise LoweringError("graph without an output")

    def _blaming(self, node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> Any:
        """The node's value; whatever goes wrong names the node. (As in eager execution, a lowering may have a gap.)"""
        try:
            return self._node(node, env)
        except (KernelError, UnsupportedByProfile):
            raise
        except LoweringError as error:
            error.node = node  # of this graph, where a graph within it has blamed one of its own
            raise
        except Exception as error:
            if config.STRICT_FALLBACK():
                from . import failures

                failures.refuse_node(node, error)
            raise LoweringError(f"{node.target}: {said_by(error)}", node) from error

    def node_of(self, index: int) -> torch.fx.Node | None:
        """The node that value number `index` of the program was made for."""
        found = bisect.bisect_right(self._begins, index, key=lambda pair: pair[0])
        return self._begins[found - 1][1] if found else None

    def _constant(self, graph: torch.fx.Graph, node: torch.fx.Node) -> Any:
        value = functools.reduce(getattr, str(node.target).split("."), graph.owning_module)
        if isinstance(value, torch.fx.GraphModule):
            return value  # an operator takes it
        if isinstance(value, torch._subclasses.FakeTensor) and value.constant is not None:
            value = value.constant
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            raise LoweringError(f"graph constant {node.target} of type {type(value).__name__}")
        with _disable_current_modes():  # AOTAutograd calls under its fake mode, which refuses a real tensor of the host
            held = value if is_device_tensor(value) else to_device(value)
            view = View.of(held)
            array = read(compile_only.constant(value_of(held.untyped_storage(), "compiled graph")), view)
        whole = self.builder.call(f"constant {node.target}", lambda: array, (), {}, (view,))
        return self.builder.get(whole, 0)

    def _node(self, node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> Any:
        target = node.target
        args = map_arg(node.args, env.__getitem__)
        kwargs = map_arg(node.kwargs, env.__getitem__)
        if target is python_operator.getitem:
            return args[0][args[1]]
        if target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
            self._mutated[node.args[0]] = args[1]
            return args[1]
        if target is torch.ops.prims.convert_element_type.default:
            return self.builder.call("convert", cast, (args[0], args[1]), {}, None)
        if target in _ASSERTIONS:
            self.builder.call(str(target), _assert, tuple(args), {}, ())
            return None
        if target in _RESTRIDE:
            return self._as_strided(node, args)
        if target is torch.ops.higher_order.with_effects:
            return self._with_effects(node, args, kwargs)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return graph_higher_order.lower(self, node, args, kwargs)
        if target in _ON_NUMBERS:
            return (
                self.builder.call(target.__name__, target, tuple(args), {}, None)
                if _holds_refs(args)
                else target(*args)
            )
        if not isinstance(target, torch._ops.OpOverload):
            raise LoweringError(f"{target} is no ATen operator")
        if self.profile is not None:
            positional, named = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            reason = self.profile.graph_reason(target, positional, named, node.meta.get("val"))
            if reason is not None:
                raise LoweringError(f"{target}: {reason}")
        lowering = registry.lowering_of(target)
        if lowering is None:
            raise LoweringError(f"{target}: no lowering")
        example = _without_masked(target, args, kwargs, node.meta["val"])
        outputs = tuple(View.of(t) for t in _tensor_leaves(example))
        if any(isinstance(s, torch.SymInt) for view in outputs for s in view.size):
            raise LoweringError(f"{target}: sizes that depend on data")
        extra: dict[str, Any] = {}
        if lowering.takes_key(args, kwargs):
            extra["key"] = self._next_key(node)
        if lowering.takes_outputs:
            extra["outputs"] = outputs
        if lowering.takes_inputs:
            given = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            extra["inputs"] = tuple(View.of(t) for t in _tensor_leaves([*given[0], *given[1].values()]))
        kwargs = {n: v for n, v in kwargs.items() if n != "generator"}
        whole = self.builder.call(str(target), lowering.fn, tuple(args), {**kwargs, **extra}, outputs)
        return self.structured(whole, example)

    def structured(self, whole: Ref, example: Any) -> Any:
        """The tensors of a call, a flat list of values, in the structure of `example`."""
        numbers = itertools.count()

        def structure(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.builder.get(whole, next(numbers))
            if isinstance(value, (list, tuple)):
                return [structure(v) for v in value]
            return value

        return structure(example)

    def emit(self, node: torch.fx.Node, fn: Callable[..., Any], args: Sequence[Any], key: Ref | None) -> Any:
        """Call `fn` on the values `args` for `node`; with a key, it is the keyword ``key``."""
        outputs = tuple(View.of(t) for t in _tensor_leaves(node.meta["val"]))
        whole = self.builder.call(str(node.target), fn, tuple(args), {} if key is None else {"key": key}, outputs)
        return self.structured(whole, node.meta["val"])

    def key_for(self, node: torch.fx.Node) -> Ref | None:
        """The random key of an operator that takes graphs; None when nothing in it draws."""
        return self._next_key(node) if is_random(node) else None

    def inline(self, node: torch.fx.Node, module: Any, inputs: Sequence[Any]) -> list[Any]:
        """Inline a graph that `node` takes, or was traced into; returns the structure of its outputs.

        Raises:
            LoweringError: naming the first operator that has no lowering.
        """
        if not isinstance(module, torch.fx.GraphModule):
            raise LoweringError(f"{node.target}: a graph was expected, not {type(module).__name__}")
        inner = GraphLowering(self.builder, self.key_for(node), self.profile, nested=True)
        returned = inner.run(module.graph, inputs)
        if inner.has_mutations:
            raise LoweringError(f"{node.target}: a graph within the graph writes to its inputs")
        return returned

    def _with_effects(self, node: torch.fx.Node, args: Any, kwargs: Any) -> list[Any]:
        """A check of values, which PyTorch keeps in order by a token: a demand of the program, which returns nothing."""
        token, target, *given = args
        lowering = registry.lowering_of(target) if isinstance(target, torch._ops.OpOverload) else None
        if lowering is None or target._schema.returns:
            raise LoweringError(f"{target}: an effect on the host, in an order that PyTorch keeps")
        self.builder.call(str(target), lowering.fn, tuple(given), kwargs, ())
        return [token, None]

    def _next_key(self, node: torch.fx.Node) -> Ref:
        if self.key is None:
            raise LoweringError("a random operator in a graph without a random key")
        # In a piece of a graph it keeps the number that it has in the whole one.
        number = node.meta.get(RANDOM_NUMBER, self.random_operators)
        self.random_operators += 1
        return self.builder.call("random key", fold_in if self.nested else _numbered, (self.key, number), {}, None)

    def _as_strided(self, node: torch.fx.Node, args: Any) -> Ref:
        """Sizes, strides and offset speak of the storage, of which a functional graph has only the source's elements."""
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        layout = View.of(source.meta["val"])
        size, stride = tuple(args[1]), tuple(args[2])
        offset = args[3] if len(args) > 3 and args[3] is not None else layout.offset
        wanted = View(layout.dtype, size, stride, offset - layout.offset)
        room = storage_nbytes(layout.dtype, layout.size, layout.stride)
        end = wanted.offset * layout.dtype.itemsize + storage_nbytes(layout.dtype, size, stride)
        if wanted.offset < 0 or end > room:
            raise LoweringError("as_strided reaches elements of the storage that its source does not hold")
        return self.builder.read(self.builder.pack(args[0], layout), wanted)


def inline_decomposition(
    builder: Builder, operator: Any, example: tuple[list[Any], dict[str, Any]], args: list[Any], kwargs: dict[str, Any]
) -> list[Ref]:
    """Trace PyTorch's decomposition of `operator` on meta tensors and inline it. `args`/`kwargs` hold Refs for tensors.

    Raises:
        LoweringError: the decomposition needs something that has no lowering, or cannot be traced.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    tensors: list[torch.Tensor] = []
    refs: list[Ref] = []

    def collect(value: Any, ref: Any) -> None:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            refs.append(ref)
        elif isinstance(value, (list, tuple)):
            for v, r in zip(value, ref):
                collect(v, r)

    for value, ref in zip(example[0], args):
        collect(value, ref)
    for name, value in example[1].items():
        collect(value, kwargs[name])

    def rebuilt(tree: Any, supply: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return next(supply)
        if isinstance(tree, (list, tuple)):
            return type(tree)(rebuilt(t, supply) for t in tree)
        return tree

    decomposition: Callable[..., Any] = operator.decomposition

    def on_tensors(*given: torch.Tensor) -> Any:
        supply = iter(given)
        call_args = rebuilt(example[0], supply)
        call_kwargs = {n: rebuilt(v, supply) for n, v in example[1].items()}
        return _tensor_leaves(decomposition(*call_args, **call_kwargs))

    traced = torch.func.functionalize(on_tensors, remove="mutations_and_views")
    try:
        module = make_fx(traced, decomposition_table=registry.decomposition_table())(*tensors)
    except Exception as error:
        raise LoweringError(f"its decomposition cannot be traced: {type(error).__name__}: {error}") from error
    outputs = GraphLowering(builder).run(module.graph, refs)
    return [r for r in outputs if isinstance(r, Ref)]
