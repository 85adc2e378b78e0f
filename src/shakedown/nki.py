"""``torch.neuron.nki_op`` and ``torch.neuron.wrap_nki``: functions on JAX arrays as PyTorch operators; docs/kernels.md.

What is here may stand in a function that Dynamo captures, so that it must not lie in the device's own directory, which Dynamo
passes by. ``import torch`` loads it; what it needs comes with the first kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class WrappedKernel:
    """What :func:`wrap_nki` gives: call it with tensors, or index it by a grid first.

    ``kernel`` is the function on arrays (``__wrapped__`` too, for whoever reads signatures), ``grid`` what the index has set.
    """

    def __init__(
        self, kernel: Callable[..., Any], run: Callable[..., Any], named: dict[str, Any], grid: Any = None
    ) -> None:
        self.kernel, self.run, self.named, self.grid = kernel, run, named, grid
        self.__wrapped__ = kernel
        self.__name__ = named["__name__"]
        self.__module__ = named["__module__"]
        self.__globals__ = named["__globals__"]  # PyTorch evaluates annotations, to infer a schema, in them
        self.__annotations__ = named["__annotations__"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # By name: of a function, a captured graph's guards compare the code only, and kernels' differ in what they close over.
        if self.grid is not None:
            return self.run(self.__name__, *args, **kwargs, grid=self.grid)
        return self.run(self.__name__, *args, **kwargs)

    def __getitem__(self, grid: Any) -> WrappedKernel:
        """The same kernel with `grid`, which it gets as its parameter of that name.

        Raises:
            TypeError: it has no such parameter.
        """
        if not self.named["takes_grid"]:
            raise TypeError(
                f"kernel {self.__name__} has no parameter 'grid', so an index would mean nothing: give it one, and hand it to "
                "pallas_call (docs/kernels.md)"
            )
        return WrappedKernel(self.kernel, self.run, self.named, grid)

    def __repr__(self) -> str:
        return f"<kernel {self.__module__}.{self.__name__}{'' if self.grid is None else f'[{self.grid}]'}>"

    def __reduce__(self) -> Any:
        return _again, (self.kernel, self.grid)


def _again(kernel: Any, grid: Any) -> Any:
    made = wrap_nki(kernel)
    return made if grid is None else made[grid]


def wrap_nki(kernel: Callable[..., Any]) -> WrappedKernel:
    """`kernel`, a function on arrays, as a function on tensors. A grid may precede the call: ``wrap_nki(kernel)[4](x)``.

    It is called with tensors, alone or in lists, tuples and dicts, where the kernel takes arrays. Everything else must be a plain
    value (None, bool, int, float, complex, str, a dtype, or a list, tuple or dict of them); it is a constant of the compiled
    program and a part of its key. Arguments that are not given come from the kernel's defaults. It returns what the kernel
    returns, with tensors for arrays. One kernel is wrapped once: a second call gives the same object, so wrap named functions,
    not lambdas that are made anew each time.

    Raises:
        TypeError: `kernel` cannot be called, or (in a call) an argument is neither tensor nor plain value, or no argument is a
            tensor.
        KernelError: (in a call) the kernel does not accept the arguments; the message has the line and JAX's reason.
    """
    found = getattr(kernel, "_nki", None)
    if found is not None and found.kernel is kernel:
        return found
    from .neuron.kernels.wrapped import wrap

    return wrap(kernel)


def nki_op(
    name: str, fn: Callable[..., Any] | None = None, *, mutates_args: str | Iterable[str] = ()
) -> Callable[..., Any]:
    """Make the operator ``torch.ops.namespace.name`` of the typed function `fn`; as a decorator where `fn` is not given.

    `fn` is PyTorch code: it takes and returns tensors, and calls kernels (:func:`wrap_nki`) and other operators. Its annotations
    give the schema as for ``torch.library.custom_op``, whose object is returned: ``register_autograd``, ``register_fake``,
    ``register_kernel`` and the like are PyTorch's own. On the device the whole function is one program in every mode. Its fake
    kernel is the function itself. Tensors of the CPU run it as it is written, the kernels in it compiled by XLA for the CPU.

    Args:
        name: ``"namespace::name"``.
        fn: the function; numbers, strings, dtypes and the like among its arguments are constants of the compiled program.
        mutates_args: names of the tensors that it writes in place (``x.copy_(...)``).

    Raises:
        ValueError: the name has another form, or the annotations are no schema.
    """
    from .neuron.kernels.operator import define

    def make(function: Callable[..., Any]) -> Any:
        return define(name, function, mutates_args)

    return make if fn is None else make(fn)
