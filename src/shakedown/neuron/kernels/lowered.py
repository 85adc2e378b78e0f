"""A kernel as a lowering, the same for every mode: :class:`KernelLowering` calls a function on arrays, :class:`BodyLowering`
inlines the function of an operator, which is PyTorch code around kernels.

Both are objects, because a program that holds one must say what it computes (``text``), and go to the process that compiles for
adaptive eager.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import KernelError
from .arguments import decode, described
from .failure import blaming
from .identity import identity_of, pickled

_MOST = 1024  # kinds of arguments that a kernel remembers


@dataclass(frozen=True)
class Returned:
    """What a kernel returns for arguments of certain sizes and dtypes."""

    tree: Any  # jax.tree_util.PyTreeDef
    leaves: tuple[tuple[tuple[int, ...], torch.dtype], ...]  # sizes and dtype of each array

    def rebuilt(self, tensors: Sequence[Any]) -> Any:
        return self.tree.unflatten(tensors)


class KernelLowering:
    """`kernel`, a function on arrays, as the lowering of ``nki::<name>``."""

    def __init__(self, kernel: Callable[..., Any], name: str) -> None:
        self.kernel, self.name = kernel, name
        try:
            self.signature: inspect.Signature | None = inspect.signature(kernel)
        except (TypeError, ValueError):
            self.signature = None
        self.parameters = tuple(self.signature.parameters) if self.signature else ()
        self._returned: dict[Any, Returned] = {}
        self._hosts: dict[str, Callable[..., Any]] = {}

    def __call__(self, tensors: Sequence[Any], given: str) -> list[Any]:
        with blaming(self.name, lambda: described(self.parameters, given, tensors)):
            return self._evaluated(given, tensors)[1]

    def _evaluated(self, given: str, arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
        import jax
        import jax.numpy as jnp

        args, kwargs = decode(given, arrays)
        leaves, tree = jax.tree_util.tree_flatten(self.kernel(*args, **kwargs))
        return tree, [jnp.asarray(leaf) for leaf in leaves]

    def bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """The arguments with the kernel's defaults for those that are missing.

        Raises:
            TypeError: they do not fit the kernel's parameters.
        """
        if self.signature is None:
            return args, kwargs
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"kernel {self.name}{self.signature}: {error}") from None
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def returns(self, tensors: Sequence[Any], given: str) -> Returned:
        """What the kernel returns for such tensors; it is traced the first time, not run.

        Raises:
            KernelError: it does not accept them.
        """
        key = (given, tuple([(tuple(map(int, t.shape)), t.dtype) for t in tensors]))
        found = self._returned.get(key)
        if found is None:
            import jax

            from ..device import _start
            from ..dtypes import to_numpy, to_torch

            _start()
            shaped = [jax.ShapeDtypeStruct(shape, to_numpy(dtype)) for shape, dtype in key[1]]
            trees: list[Any] = []

            def traced(*arrays: Any) -> list[Any]:
                tree, leaves = self._evaluated(given, arrays)
                trees.append(tree)
                return leaves

            with blaming(self.name, lambda: described(self.parameters, given, shaped)):
                leaves = jax.eval_shape(traced, *shaped)
                found = Returned(trees[0], tuple((tuple(a.shape), to_torch(a.dtype)) for a in leaves))
            if len(self._returned) >= _MOST:
                self._returned.clear()
            self._returned[key] = found
        return found

    def fake(self, tensors: Sequence[torch.Tensor], given: str) -> list[torch.Tensor]:
        """Tensors without values, for capture."""
        device = tensors[0].device
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.returns(tensors, given).leaves]

    def on_host(self, tensors: Sequence[torch.Tensor], given: str) -> list[torch.Tensor]:
        """The same function for tensors of the CPU.

        Raises:
            ShakedownError: this process was forked from one that had started JAX, whose threads it lacks: it would wait for ever.
        """
        from .. import runtime

        runtime.check_process()
        self.returns(tensors, given)
        run = self._hosts.get(given)
        if run is None:
            if len(self._hosts) >= _MOST:
                self._hosts.clear()
            run = self._hosts[given] = runtime.host_function(lambda *arrays: self(arrays, given))
        return run(tensors)

    def text(self) -> str | None:
        """What the kernel computes, as a part of a key."""
        found = identity_of(self.kernel)
        return None if found is None else f"kernel:{found}"

    def __reduce__(self) -> Any:
        return _unpickled, (pickled(self.kernel), self.name)


def _unpickled(kernel: bytes, name: str) -> KernelLowering:
    import cloudpickle

    return KernelLowering(cloudpickle.loads(kernel), name)


class BodyLowering:
    """The function of an operator, `body`, as its lowering: traced for each kind of arguments, and inlined.

    ``programs`` are the traced ones by the arguments' sizes, dtypes and constants; in another process there is no body.
    """

    def __init__(
        self,
        body: Callable[..., Any] | None,
        name: str,
        parameters: tuple[str, ...] = (),
        written: tuple[str, ...] = (),
    ) -> None:
        self.body, self.name, self.parameters, self.written = body, name, parameters, written
        self.programs: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: Any, outputs: tuple[Any, ...] = (), **kwargs: Any) -> list[Any]:
        from .. import profiles
        from ..lowering.checks import require
        from .body import flattened, traced

        arrays, call = flattened(args, kwargs, self.name)
        key = (call.key, tuple((a.shape, str(a.dtype)) for a in arrays), profiles.name())
        with self._lock:
            program = self.programs.get(key)
            if program is None:
                if self.body is None:
                    raise KernelError(f"{self.name}: this process knows no program for these arguments")
                if len(self.programs) >= _MOST:
                    self.programs.clear()
                program = self.programs[key] = traced(self, call, arrays)
        values = program(*arrays)
        values = list(values) if isinstance(values, list) else [values]
        if program.demands:
            broken = values.pop()
            for number, demand in enumerate(program.demands, 1):
                require(broken != number, demand.error, demand.message)
        self._compare(values, outputs)
        return values

    def _compare(self, values: list[Any], outputs: tuple[Any, ...]) -> None:
        """The operator's fake kernel says what it returns; a registered one may be wrong."""
        from .. import profiles
        from ..dtypes import to_torch

        if not outputs:
            return
        real = [(tuple(v.shape), to_torch(v.dtype)) for v in values]
        said = [(tuple(o.size), o.dtype) for o in outputs]
        if real != said and profiles.active is None:

            def listed(kinds: list[Any]) -> str:
                return "; ".join(f"{str(d).removeprefix('torch.')}{list(s)}" for s, d in kinds)

            raise KernelError(
                f"{self.name} returns or writes {listed(real)}, but its fake kernel (register_fake) says {listed(said)}"
            )

    def text(self) -> str | None:
        found = None if self.body is None else identity_of(self.body)
        return None if found is None else f"operator:{self.name}:{found}"

    def __reduce__(self) -> Any:
        return _with_programs, (self.name, dict(self.programs))


def _with_programs(name: str, programs: dict[Any, Any]) -> BodyLowering:
    made = BodyLowering(None, name)
    made.programs.update(programs)
    return made
