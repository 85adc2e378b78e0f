"""Operators that take graphs, lowered so that they stay in the program: ``cond``, ``while_loop``, ``scan`` and ``map`` are
XLA's own control flow, ``invoke_subgraph`` and its like are inlined, attention with a score function is traced into ATen.

docs/compile.md has the table of what is lowered, and of what breaks the graph or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.fx.node import map_arg
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from . import views
from .errors import LoweringError
from .lowering import registry
from .lowering.checks import Demand, require
from .program import Builder, Ref
from .views import View

if TYPE_CHECKING:
    from .graph import GraphLowering

_Handler: TypeAlias = Callable[["GraphLowering", torch.fx.Node, Any, dict[str, Any]], Any]
_handlers: dict[str, _Handler] = {}


def _lowers(*names: str) -> Callable[[_Handler], _Handler]:
    def register(fn: _Handler) -> _Handler:
        for name in names:
            _handlers[name] = fn
        return fn

    return register


def lower(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    """The value of `node`, a call of a higher-order operator; `args` and `kwargs` hold Refs for tensors.

    Raises:
        LoweringError: the operator is not lowered, or a graph that it takes is not.
    """
    name = node.target.name()
    handler = _handlers.get(name)
    if handler is None:
        raise LoweringError(f"{name}: no lowering of this higher-order operator")
    return handler(lowering, node, args, kwargs)


def _graphs(node: torch.fx.Node) -> list[torch.fx.GraphModule]:
    """The graphs that `node` takes as arguments."""
    found: list[torch.fx.GraphModule] = []

    def look(argument: torch.fx.Node) -> None:
        if argument.op == "get_attr" and isinstance(module := _graph_of(argument), torch.fx.GraphModule):
            found.append(module)

    map_arg((node.args, node.kwargs), look)
    return found


def is_random(node: torch.fx.Node) -> bool:
    """Whether this node of a graph draws from the device's random stream, itself or in a graph that it takes."""
    if isinstance(node.target, torch._ops.OpOverload):
        found = registry.lowering_of(node.target)
        return found is not None and found.takes_key(node.args, node.kwargs)
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    if node.target.name() == "run_with_rng_state":
        return False  # it draws what another one drew
    operators = [a for a in node.args if isinstance(a, torch._ops.OpOverload)]
    if any((found := registry.lowering_of(op)) is not None and found.random for op in operators):
        return True
    return any(is_random(inner) for graph in _graphs(node) for inner in graph.graph.nodes)


class _Body:
    """A graph as a function on arrays, for a branch or for the body of a loop.

    `given` are its arguments: a Ref becomes a parameter, in order; anything else is bound now. A call gives the tensors that
    the graph returns, in their dtypes, and the number of the first demand that its data did not meet (int32[], 0: none).
    """

    def __init__(self, outer: GraphLowering, graph: Any, given: Sequence[Any]) -> None:
        if not isinstance(graph, torch.fx.GraphModule):
            raise LoweringError(f"a graph was expected, not {type(graph).__name__}")
        from .graph import GraphLowering

        builder = Builder(f"{outer.builder.name}_body", outer.profile)
        values = [builder.parameter("number") if isinstance(g, Ref) else g for g in given]
        self.random = any(map(is_random, graph.graph.nodes))
        key = builder.parameter("key") if self.random else None
        inner = GraphLowering(builder, key, outer.profile, nested=True)
        returned = inner.run(graph.graph, values)
        if inner.has_mutations:
            raise LoweringError("a graph within the graph writes to its inputs")
        output = next(n for n in reversed(graph.graph.nodes) if n.op == "output")
        self.outputs: list[View] = []
        results: list[Ref] = []
        for value, given_node in zip(_leaves(returned), _leaves(output.args[0])):
            example = given_node.meta.get("val") if isinstance(given_node, torch.fx.Node) else None
            if value is None:
                continue
            if not isinstance(value, Ref) or not isinstance(example, torch.Tensor):
                raise LoweringError("a graph within the graph returns a Python number; make it a 0-d tensor")
            results.append(value)
            self.outputs.append(View.of(example))
        self.program = builder.finish(results)

    def __call__(self, arrays: Sequence[Any], key: Any) -> tuple[list[Any], Any]:
        out = self.program(*arrays, *([key] if self.random else []))
        values = list(out) if isinstance(out, list) else [out]
        broken = values.pop() if self.program.demands else jnp.int32(0)
        return [views.cast(jnp.asarray(v), o.dtype) for v, o in zip(values, self.outputs)], broken

    def require(self, broken: Any) -> None:
        """Demand of the whole program what the body demanded; `broken` is what its calls gave, 0 where all went well."""
        for number, demand in enumerate(self.program.demands, 1):
            require(broken != number, demand.error, demand.message)

    @property
    def demands(self) -> list[Demand]:
        return self.program.demands


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [leaf for item in tree for leaf in _leaves(item)]
    return [tree]


def _refs(values: Sequence[Any]) -> list[Ref]:
    return [v for v in values if isinstance(v, Ref)]


def _step_key(key: Any, number: Any) -> Any:
    """The key of round `number` of a loop whose key is `key`; 0 where there is none."""
    from .graph import fold_in

    return fold_in(key, number) if key is not None else jnp.int32(0)


# --- control flow -------------------------------------------------------------------------------------------------------


@_lowers("cond")
def _cond(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    predicate, if_true, if_false, *rest = args
    operands = list(rest[0]) if rest else []
    branches = [_Body(lowering, graph, operands) for graph in (if_true, if_false)]
    if [o.size for o in branches[0].outputs] != [o.size for o in branches[1].outputs]:
        raise LoweringError("the branches of cond return other sizes")

    def fn(predicate: Any, *arrays: Any, key: Any = None) -> Any:
        def branch(number: int) -> Callable[[], Any]:
            def run() -> Any:
                values, broken = branches[number](arrays, key)
                return values, [broken if i == number else jnp.int32(0) for i in range(2)]

            return run

        taken = jnp.asarray(predicate).reshape(()) != 0
        values, broken = jax.lax.cond(taken, branch(0), branch(1))
        for body, number in zip(branches, broken):
            body.require(number)
        return values

    return lowering.emit(node, fn, [predicate, *_refs(operands)], lowering.key_for(node))


@_lowers("while_loop")
def _while_loop(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    condition, body, carried, *rest = args
    more = list(rest[0]) if rest else []
    if not all(isinstance(c, Ref) for c in carried):
        raise LoweringError("while_loop carries a Python number; make it a 0-d tensor")
    check = _Body(lowering, condition, [*carried, *more])
    step = _Body(lowering, body, [*carried, *more])
    count = len(carried)

    def fn(*arrays: Any, key: Any = None) -> Any:
        start, fixed = arrays[:count], arrays[count:]

        def goes_on(state: Any) -> Any:
            values, _ = check((*state[0], *fixed), _step_key(key, 2 * state[2]))
            if check.demands:
                raise LoweringError("the condition of while_loop may refuse its data")
            return (values[0].reshape(()) != 0) & (state[1] == 0)

        def once(state: Any) -> Any:
            values, broken = step((*state[0], *fixed), _step_key(key, 2 * state[2] + 1))
            return values, broken, state[2] + jnp.int32(1)

        values, broken, _ = jax.lax.while_loop(
            goes_on,
            once,
            ([views.cast(jnp.asarray(v), o.dtype) for v, o in zip(start, step.outputs)], jnp.int32(0), jnp.int32(0)),
        )
        step.require(broken)
        return values

    return lowering.emit(node, fn, [*carried, *_refs(more)], lowering.key_for(node))


@_lowers("scan")
def _scan(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    combine, init, xs, *rest = args
    return _loop(lowering, node, combine, list(init), list(xs), list(rest[0]) if rest else [])


@_lowers("map_impl")
def _map(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    fn, xs, *rest = args
    return _loop(lowering, node, fn, [], list(xs), list(rest[0]) if rest else [])


def _loop(
    lowering: GraphLowering, node: torch.fx.Node, graph: Any, init: list[Any], xs: list[Any], more: list[Any]
) -> Any:
    """``graph(*carry, *slices, *more) -> (*carry, *results)`` over the first dimension of `xs`; results are stacked."""
    if not all(isinstance(v, Ref) for v in (*init, *xs)):
        raise LoweringError("a loop carries a Python number; make it a 0-d tensor")
    body = _Body(lowering, graph, [*init, *xs, *more])
    carries, sliced = len(init), len(xs)

    def fn(*arrays: Any, key: Any = None) -> Any:
        start, over, fixed = arrays[:carries], arrays[carries : carries + sliced], arrays[carries + sliced :]

        def once(state: Any, slices: Any) -> Any:
            carry, broken, number = state
            values, new = body((*carry, *slices, *fixed), _step_key(key, number))
            first = jnp.where(broken != 0, broken, new)
            return (values[:carries], first, number + jnp.int32(1)), values[carries:]

        begin = [views.cast(jnp.asarray(v), o.dtype) for v, o in zip(start, body.outputs)]
        (carry, broken, _), stacked = jax.lax.scan(once, (begin, jnp.int32(0), jnp.int32(0)), over)
        body.require(broken)
        return [*carry, *stacked]

    return lowering.emit(node, fn, [*init, *xs, *_refs(more)], lowering.key_for(node))


# --- graphs that are inlined --------------------------------------------------------------------------------------------


@_lowers("invoke_subgraph")
def _invoke_subgraph(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    graph, _identifier, *operands = args
    return lowering.inline(node, graph, operands)


@_lowers("wrap", "foreach_map", "tag_activation_checkpoint", "wrap_activation_checkpoint", "invoke_quant")
def _wrap(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    graph, *operands = args
    return lowering.inline(node, graph, operands)


@_lowers("strict_mode", "hints_wrapper")
def _strict_mode(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    graph, operands = args[:2]
    return lowering.inline(node, graph, list(operands))


# --- random operators that activation checkpointing repeats ------------------------------------------------------------


def _bytes_of(key: Any) -> Any:
    return jax.lax.bitcast_convert_type(key, np.uint8).reshape(-1)


def _key_of(state: Any) -> Any:
    return jax.lax.bitcast_convert_type(state.reshape(4, 4), np.uint32)


@_lowers("run_and_save_rng_state")
def _run_and_save_rng_state(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operator's results, and its key as the state: 16 bytes, from which the backward pass draws the same."""
    key = lowering.key_for(node)
    if key is None:
        raise LoweringError(f"{args[0]} draws no random numbers here")
    state = lowering.builder.call("rng_state", _bytes_of, (key,), {}, None)
    return [state, _random(lowering, node, args[0], args[1:], kwargs, key)]


@_lowers("run_with_rng_state")
def _run_with_rng_state(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    state, operator, *given = args
    key = lowering.builder.call("key_of_state", _key_of, (state,), {}, None)
    return _random(lowering, node, operator, given, kwargs, key)


def _random(lowering: GraphLowering, node: torch.fx.Node, op: Any, given: Any, kwargs: dict[str, Any], key: Ref) -> Any:
    found = registry.lowering_of(op)
    if found is None or not found.random:
        raise LoweringError(f"{op}: no lowering that draws random numbers")
    example = node.meta["val"]
    if node.target.name() == "run_and_save_rng_state":
        example = example[1]
    outputs = tuple(View.of(t) for t in _leaves(example) if isinstance(t, torch.Tensor))
    extra: dict[str, Any] = {"key": key} | ({"outputs": outputs} if found.takes_outputs else {})
    kwargs = {n: v for n, v in kwargs.items() if n != "generator"}
    whole = lowering.builder.call(str(op), found.fn, tuple(given), {**kwargs, **extra}, outputs)
    return lowering.structured(whole, example)


def settle_rng_states(graph: torch.fx.Graph) -> None:
    """Give the random states that a checkpointed graph hands on the form they have here: 16 bytes, on the device.

    (PyTorch's partitioner describes them as states of the CPU's generator, and not the operators' results at all.)
    """

    def settle(state: torch.fx.Node) -> Any:
        mode = state.meta["val"].fake_mode
        with mode:
            state.meta["val"] = torch.empty(16, dtype=torch.uint8, device="neuron")
        return mode

    def result(mode: Any, node: torch.fx.Node, op: Any, args: Sequence[Any]) -> Any:
        given, named = map_arg((tuple(args), node.kwargs), lambda n: n.meta["val"])
        with mode, torch.no_grad():
            return op(*given, **named)

    for node in graph.nodes:
        name = node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""
        if name == "run_and_save_rng_state":
            state = next(user for user in node.users if user.args[1] == 0)
            mode = settle(state)
            node.meta["val"] = (state.meta["val"], result(mode, node, node.args[0], node.args[1:]))
        elif name == "run_with_rng_state":
            mode = settle(node.args[0])
            node.meta["val"] = result(mode, node, node.args[1], node.args[2:])


# --- operators that are traced into ATen -------------------------------------------------------------------------------


@_lowers("flex_attention", "flex_attention_backward", "out_dtype")
def _traced(lowering: GraphLowering, node: torch.fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
    """PyTorch's own dense form of the operator, traced on the examples of its arguments and inlined.

    The private part is the table of an operator's kernels (``py_kernels``), in which that form stands.
    """
    from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    dense = node.target.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if dense is None:
        raise LoweringError(f"{node.target}: PyTorch {torch.__version__} has no dense form of it")

    def example_of(argument: torch.fx.Node) -> Any:
        return argument.meta["val"] if "val" in argument.meta else _graph_of(argument)

    examples, spec = tree_flatten((map_arg(node.args, example_of), map_arg(node.kwargs, example_of)))
    values, _ = tree_flatten((tuple(args), kwargs))
    tensors = [e for e in examples if isinstance(e, torch.Tensor)]
    refs = [v for v, e in zip(values, examples) if isinstance(e, torch.Tensor)]
    mode = next((t.fake_mode for t in tensors if isinstance(t, torch._subclasses.FakeTensor)), None)
    if mode is None:
        raise LoweringError(f"{node.target}: captured without examples of its arguments")

    given_back: list[bool] = []  # which of the results the dense form computes

    def on_tensors(*given: torch.Tensor) -> Any:
        supply = iter(given)
        filled = [next(supply) if isinstance(e, torch.Tensor) else e for e in examples]
        positional, named = tree_unflatten(filled, spec)
        results = _leaves(dense(*positional, **named))
        given_back[:] = [isinstance(r, torch.Tensor) for r in results]
        return [r for r in results if isinstance(r, torch.Tensor)]

    # Not torch.func.functionalize, whose tensors forget who requires a gradient.
    functional = dispatch_functionalize(on_tensors, FunctionalTensorMode())
    try:
        with mode, torch.no_grad():
            # Which gradients the dense form computes depends on who requires one.
            asking = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
            module = make_fx(functional, decomposition_table=registry.decomposition_table())(*asking)
    except Exception as error:
        raise LoweringError(f"{node.target} cannot be traced: {type(error).__name__}: {error}") from error
    computed = iter(lowering.inline(node, module, refs))
    returned = iter([next(computed) if given else None for given in given_back])
    return tree_map(lambda e: next(returned), node.meta["val"], is_leaf=lambda e: e is None)


def _graph_of(argument: torch.fx.Node) -> Any:
    value: Any = argument.graph.owning_module
    for part in str(argument.target).split("."):
        value = getattr(value, part)
    return value
