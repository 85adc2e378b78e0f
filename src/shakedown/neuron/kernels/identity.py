"""What a kernel computes, as a digest: its bytecode, and all that it reaches by global names, closures and defaults.

A program that holds a kernel is stored under its digest, so that a new process need not trace it, and an edited kernel is
another program. Where something that it reaches cannot be written down (an object of the user's, a module of theirs, a random
source), there is no digest: such a program is traced in each process, and found by its StableHLO then.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from ...nki import WrappedKernel

# Libraries whose functions are decided by their version, as far as a kernel has business with them.
_KNOWN = {
    "jax",
    "jaxlib",
    "numpy",
    "ml_dtypes",
    "torch",
    "math",
    "functools",
    "itertools",
    "operator",
    "typing",
    "builtins",
}
_KNOWN |= {"collections", "einops", "opt_einsum", "__future__"}
_OURS = (f"{WrappedKernel.__module__}", f"{__package__}.")
# What looks at the process or the world instead of its arguments.
_WORLDLY = {
    "open",
    "input",
    "eval",
    "exec",
    "compile",
    "globals",
    "locals",
    "vars",
    "id",
    "hash",
    "__import__",
    "breakpoint",
}


class _Unclear(Exception):
    pass


def identity_of(function: Any) -> str | None:
    """The digest of `function`, 40 hexadecimal digits; None: something in it has no meaning that could be written down."""
    walk = _Walk()
    try:
        text = walk.value(function)
    except (_Unclear, RecursionError, ValueError):
        return None
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _root(name: str | None) -> str:
    return (name or "").partition(".")[0]


def _is_found(module: str, name: str, value: Any) -> bool:
    """Whether the name leads to the value: it does not where a library has made it out of something else."""
    owner: Any = sys.modules.get(module)
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return owner is value


class _Walk:
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}  # functions: they may call each other
        self.modules: set[str] = set()  # of the user, that functions come from

    def value(self, value: Any) -> str:
        if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes):
            return repr(value)
        if type(value) is float:
            return value.hex()
        if type(value) is complex:
            return f"c{value.real.hex()},{value.imag.hex()}"
        if type(value) in (tuple, list, torch.Size):
            return f"{type(value).__name__}({','.join(map(self.value, value))})"
        if type(value) in (set, frozenset):
            return f"set({','.join(sorted(map(self.value, value)))})"
        if type(value) is dict:
            return f"dict({','.join(f'{self.value(k)}:{self.value(v)}' for k, v in value.items())})"
        if isinstance(value, (torch.dtype, np.dtype)):
            return f"dtype:{value}"
        if isinstance(value, np.generic) or (type(value) is np.ndarray and value.dtype.kind in "biufc"):
            return f"array({value.dtype},{value.shape},{hashlib.blake2b(value.tobytes()).hexdigest()})"
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, functools.partial):
            return f"partial({self.value(value.func)},{self.value(value.args)},{self.value(value.keywords)})"
        if type(value) is CodeType:
            return self._code(value)
        if type(value) is FunctionType:
            return self._function(value)
        return self._object(value)

    def _module(self, module: ModuleType) -> str:
        if _root(module.__name__) not in _KNOWN:
            raise _Unclear
        return f"module:{module.__name__} {getattr(sys.modules.get(_root(module.__name__)), '__version__', '')}"

    def _object(self, value: Any) -> str:
        if isinstance(value, WrappedKernel):
            return f"kernel({self.value(value.kernel)},{self.value(value.grid)})"
        if isinstance(value, torch._library.custom_ops.CustomOpDef):
            from .operator import body_of

            if (body := body_of(value)) is None:
                raise _Unclear
            return f"operator({value._qualname},{self.value(body)})"
        wrapped = getattr(value, "__wrapped__", None)
        if type(value).__name__ == "PjitFunction" and type(wrapped) is FunctionType:
            return f"jit({self.value(wrapped)})"
        module = getattr(value, "__module__", None) or type(value).__module__
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        known = callable(value) and isinstance(name, str) and _root(module) in _KNOWN and _is_found(module, name, value)
        if known and name not in _WORLDLY and "random" not in f"{module}.{name}":
            return f"{module}.{name}"
        raise _Unclear

    def _function(self, function: FunctionType) -> str:
        module = function.__module__ or ""
        name = f"{module}.{function.__qualname__}"
        # The device's own source is a part of every key, and a library's version says what its functions do.
        if (module.startswith(_OURS) or _root(module) in _KNOWN) and _is_found(module, function.__qualname__, function):
            if "random" in module and not module.startswith("jax."):
                raise _Unclear
            return name
        if id(function) in self.seen:
            return f"function {self.seen[id(function)]}"
        self.seen[id(function)] = len(self.seen)
        if _root(module) not in _KNOWN:
            self.modules.add(module)
        reached: dict[str, Any] = {}
        for name in sorted(_globals(function.__code__)):
            if name in function.__globals__:
                reached[name] = function.__globals__[name]
            elif name in _WORLDLY:
                raise _Unclear
        cells = [c.cell_contents for c in function.__closure__ or ()]
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__, cells, reached)
        return f"function({','.join(map(self.value, parts))})"

    def _code(self, code: CodeType) -> str:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        table = getattr(code, "co_exceptiontable", b"")
        return f"code({code.co_code!r},{table!r},{names},{numbers},{self.value(code.co_consts)})"


@functools.lru_cache(maxsize=4096)
def _globals(code: CodeType) -> frozenset[str]:
    """Names that the code, and the functions within it, read as globals.

    Raises:
        _Unclear: it imports something that is not known, or reaches a random source of numpy's.
    """
    found: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(step.argval)
            continue
        imports = step.opname == "IMPORT_NAME" and _root(step.argval) not in _KNOWN
        reads = step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval == "random" and "jax" not in code.co_names
        if imports or reads:
            raise _Unclear
    for constant in code.co_consts:
        if type(constant) is CodeType:
            found |= _globals(constant)
    return frozenset(found)


# --- into the process that compiles ---------------------------------------------------------------------------------------

_pickling = threading.Lock()


def pickled(kernel: Callable[..., Any]) -> bytes:
    """`kernel` with the functions of the user's that it calls, for a process that cannot import their modules."""
    import cloudpickle

    walk = _Walk()
    try:
        walk.value(kernel)
    except (_Unclear, RecursionError, ValueError):
        walk.modules.add(getattr(inspect.unwrap(kernel), "__module__", "") or "")
    with _pickling:
        held = [sys.modules[m] for m in walk.modules if m in sys.modules and m != "__main__"]
        held = [m for m in held if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
        for module in held:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(kernel))
        finally:
            for module in held:
                cloudpickle.unregister_pickle_by_value(module)
