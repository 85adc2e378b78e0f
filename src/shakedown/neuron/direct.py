"""An executable called as it is, past ``jax.jit``'s look at every input.

On each call ``jax.jit`` asks every input for its sharding, its layout and the device that it lies on, some 0.2 us each, before it
finds the executable. Buffers of this device all lie on the one device in the one layout, so what decides is the inputs'
abstract values (sizes, dtype, weakly typed or not), which JAX interns: one look-up of their identities. What is called then, and
what makes arrays of the results, is what ``jax.jit`` calls too.

Reaches into JAX as :mod:`.linking` does, for the same reason; where JAX has changed, calls go through ``jax.jit``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from operator import attrgetter
from typing import Any

from jax import Array

try:
    from jax._src import core, dispatch, tree_util
    from jax._src.interpreters import pxla

    _REPLICATED = pxla.ExecuteReplicated
    _SINGLE = tree_util.tree_structure(0)
    # Interned, so that identity is equality and hashing one is hashing its address.
    _KNOWN = core.ShapedArray.__hash__ is object.__hash__ and callable(dispatch.needs_check_special)
except (ImportError, AttributeError):
    _KNOWN = False

_aval_of = attrgetter("aval")
# What runs the executable; what makes an array of each result; which inputs it takes (None: all); whether it gives one
# result, not a list.
_Launch = tuple[Callable[..., Any], list[Any], list[bool] | None, bool]
_BY_JIT = ()


def past_jit(run: Callable[..., Any], compiled_for: Callable[[Any], Any]) -> Callable[..., Any]:
    """`run`, a jitted program or a compiled one, which is asked the first time for each signature of inputs.

    `compiled_for` gives the ``jax.stages.Compiled`` that has run for a signature (:data:`.executables.Aval` of each input).
    """
    if not _KNOWN:
        return run
    ready: dict[tuple[Any, ...], Any] = {}  # by abstract values: a _Launch, or _BY_JIT

    def call(*inputs: Any) -> Any:
        try:
            avals = tuple(map(_aval_of, inputs))
        except AttributeError:  # a Python number
            return run(*inputs)
        found = ready.get(avals)
        if not found:
            return first(avals, inputs) if found is None else run(*inputs)
        execute, handlers, taken, single = found
        made = execute(inputs if taken is None else tuple(compress(inputs, taken))).consume_with_handlers(handlers)
        return made[0] if single else made

    def first(avals: tuple[Any, ...], inputs: tuple[Any, ...]) -> Any:
        results = run(*inputs)
        if all(isinstance(x, Array) for x in inputs) and core.trace_state_clean():
            signature = tuple((tuple(a.shape), a.dtype, bool(a.weak_type)) for a in avals)
            ready[avals] = _launch(compiled_for(signature), len(inputs))
        return results

    return call


def of_compiled(compiled: Any) -> Callable[..., Any]:
    """A ``jax.stages.Compiled`` in the same way; ``compiled`` is its attribute. TypeError for inputs of another signature."""
    run: Any = past_jit(compiled, lambda signature: compiled)
    if run is not compiled:
        run.compiled = compiled
    return run


def _launch(compiled: Any, count: int) -> _Launch | tuple[()]:
    """How to call a ``jax.stages.Compiled`` of `count` inputs; _BY_JIT where more belongs to a call than its arrays."""
    try:
        executable, parameters = compiled._executable, compiled._params
        call, tree = executable.unsafe_call, parameters.out_tree
        more = call.ordered_effects or call.has_unordered_effects or call.has_host_callbacks or call.mut
        several = len(executable.xla_executable.local_devices()) != 1
        listed = tree == tree_util.tree_structure([0] * tree.num_leaves)
        if type(call) is not _REPLICATED or more or several or parameters.const_args or dispatch.needs_check_special():
            return _BY_JIT
        if not (tree == _SINGLE or listed):
            return _BY_JIT
        kept = [i in executable._kept_var_idx for i in range(count)]
        taken = None if all(kept) else kept
        return executable.xla_executable.execute_sharded, call.out_handler.handlers, taken, tree == _SINGLE
    except AttributeError:
        return _BY_JIT
