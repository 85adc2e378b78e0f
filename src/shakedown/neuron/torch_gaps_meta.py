"""A patch of torch for :mod:`.torch_gaps`: PyTorch's meta kernels in Python do not import Dynamo.

Those of pointwise operators (``torch._refs``) are left out of captured graphs by ``torch._disable_dynamo``, which imports Dynamo
when one is first called: two fifths of what a process takes from ``import torch`` to the result of its first addition. Until
somebody else imports Dynamo nothing is captured, and they are called as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

_KEPT = "__dynamo_disable"  # where torch/_compile.py keeps the function to call instead, once it has made one
_MODULES = ("torch._refs", "torch._refs.special", "torch._refs.nn.functional", "torch._refs.linalg", "torch._refs.fft")


def call_without_dynamo() -> None:
    """Apply the patch, if Dynamo is not there yet; where torch wraps its meta kernels in another way, nothing is changed."""
    if "torch._dynamo" in sys.modules:
        return
    for name in _MODULES:
        if (module := sys.modules.get(name)) is not None:
            for function in _left_out(module):
                if not hasattr(function, _KEPT):
                    setattr(function, _KEPT, _until_dynamo(function))


def _left_out(module: ModuleType) -> Iterator[Any]:
    """The functions that ``torch._disable_dynamo`` has wrapped, under whatever was put around them later."""
    wrapper = torch._disable_dynamo(lambda: None).__code__
    if "fn" not in wrapper.co_freevars:
        return
    place = wrapper.co_freevars.index("fn")
    waiting, seen = [f for f in vars(module).values() if isinstance(f, FunctionType)], set[int]()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        # Through closures: `__wrapped__` may name what somebody says that a function stands for.
        cells = function.__closure__ or ()
        if function.__code__ is wrapper:
            yield cells[place].cell_contents
        inside = [cell.cell_contents for cell in cells if _filled(cell)]
        waiting += [one for one in inside if isinstance(one, FunctionType)]


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a name that is not bound
        return False


def _until_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)  # none while its import is under way
        if disable is None:
            return function(*args, **kwargs)
        there = disable(function, recursive=True, wrapping=False)
        setattr(function, _KEPT, there)
        return there(*args, **kwargs)

    return call
