"""What an expression is, as far as its text tells: a tensor, a module, a NumPy array, a number read from a device...

This decides whether ``float(x)``, ``if x:`` or ``x[:n]`` makes the host wait. An expression is called a tensor only with
positive evidence (it comes from torch, from a layer, from a batch, or ``backward()`` is called on it); what is not known
stays ``unknown`` and is not reported by rules that would be wrong as often as right.
"""

from __future__ import annotations

import ast
from typing import Any, Protocol

# tensor; mask: a tensor of truth values; tensors: a container of them; module: a callable that returns tensors;
# array and array64: NumPy, the latter float64 because that is NumPy's default; rng64: a NumPy generator;
# host: a number that was read from a tensor; plain: anything else that is known; unknown.
Kind = str | tuple[Any, ...]  # of kinds, one for each part of a tuple

SAME_SHAPE_ATTRIBUTES = {"T", "mT", "H", "mH", "data", "grad", "real", "imag", "values", "indices"}
PLAIN_ATTRIBUTES = {
    "shape",
    "dtype",
    "device",
    "ndim",
    "is_cuda",
    "requires_grad",
    "itemsize",
    "layout",
    "is_leaf",
    "nbytes",
}
PLAIN_METHODS = {
    "size", "dim", "numel", "nelement", "stride", "element_size", "data_ptr", "get_device", "is_contiguous",
    "is_floating_point", "is_complex", "storage_offset", "untyped_storage", "storage", "backward", "register_hook",
    "ndimension", "is_set_to", "type_as_string", "has_names",
}  # fmt: skip
MASK_METHODS = {
    "bool", "isnan", "isinf", "isfinite", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not",
    "logical_xor", "isclose", "signbit", "isin",
}  # fmt: skip
READS = {"item", "tolist"}
_TORCH_PLAIN = {
    "device", "is_tensor", "numel", "finfo", "iinfo", "Size", "Generator", "manual_seed", "no_grad", "enable_grad",
    "inference_mode", "is_grad_enabled", "is_floating_point", "save", "load", "seed", "initial_seed", "typename",
    "promote_types", "result_type", "autocast", "use_deterministic_algorithms", "set_float32_matmul_precision",
    "get_default_dtype", "set_default_dtype", "set_num_threads", "get_num_threads", "is_storage", "Stream", "Event", "where",
}  # fmt: skip
_TORCH_SPACES = ("torch.nn.functional", "torch.special", "torch.linalg", "torch.fft", "torch.ops")
_NUMPY_FLOAT64 = {
    "zeros", "ones", "empty", "linspace", "logspace", "geomspace", "eye", "identity", "hanning", "hamming", "blackman",
    "kaiser",
}  # fmt: skip
_NUMPY_KEEPS = {
    "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "abs", "square", "reciprocal", "concatenate",
    "stack", "power", "outer", "dot", "matmul", "cumsum", "mean", "std", "var", "transpose", "reshape", "tile", "repeat",
    "expand_dims", "clip", "where", "ascontiguousarray",
}  # fmt: skip
_NUMPY_FLOATS = {"sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "reciprocal", "mean", "std", "var"}
_GENERATOR_FLOAT64 = {
    "random", "rand", "randn", "normal", "uniform", "standard_normal", "exponential", "beta", "gamma", "random_sample",
}  # fmt: skip
_BUILTIN_PLAIN = {
    "len", "range", "str", "repr", "isinstance", "hasattr", "getattr", "id", "type", "open", "hash", "ord", "chr", "format",
    "callable", "issubclass", "input", "print",
}  # fmt: skip


class Names(Protocol):
    """What inference asks of the place where an expression stands."""

    def dotted(self, node: ast.AST) -> str | None: ...
    def variable(self, name: str) -> Kind: ...
    def attribute(self, node: ast.Attribute) -> Kind: ...
    def returned(self, dotted: str, call: ast.Call) -> Kind: ...


def is_tensor(kind: Kind) -> bool:
    return kind in ("tensor", "mask")


def element(kind: Kind) -> Kind:
    """What iterating or unpacking gives."""
    if isinstance(kind, tuple):
        return kind[0] if len(set(kind)) == 1 else "unknown"
    return "tensor" if kind == "tensors" else ("plain", "tensor") if kind == "items" else kind


def merge(one: Kind, other: Kind) -> Kind:
    """What a value is that may be either."""
    if one == other:
        return one
    for kind in ("tensor", "mask", "tensors"):
        if kind in (one, other):
            return "tensor" if kind == "mask" else kind
    return "unknown"


def literal(node: ast.AST | None) -> Any:
    """The constant that `node` is, or None."""
    return node.value if isinstance(node, ast.Constant) else None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The argument given as ``name=``, or None."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def is_float64(node: ast.AST | None, names: Names) -> bool:
    """Whether `node` is a way to write the dtype float64."""
    if node is None:
        return False
    if literal(node) in ("float64", "double", "f8", "<f8"):
        return True
    return names.dotted(node) in {
        "torch.float64", "torch.double", "numpy.float64", "numpy.double", "numpy.float_", "float"
    } or (isinstance(node, ast.Name) and node.id == "float" and names.dotted(node) is None)  # fmt: skip


def infer(node: ast.AST | None, names: Names) -> Kind:
    """The kind of the expression `node`."""
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        return "plain"
    if isinstance(node, ast.Name):
        return names.variable(node.id)
    if isinstance(node, ast.Attribute):
        return _attribute(node, names)
    if isinstance(node, ast.Call):
        return _call(node, names)
    if isinstance(node, ast.Subscript):
        base = infer(node.value, names)
        index = literal(node.slice)
        if isinstance(base, tuple):
            return base[index] if isinstance(index, int) and -len(base) <= index < len(base) else element(base)
        return element(base)
    if isinstance(node, ast.BinOp):
        return _combined(
            infer(node.left, names), infer(node.right, names), isinstance(node.op, (ast.BitAnd, ast.BitOr))
        )
    if isinstance(node, ast.UnaryOp):
        return "plain" if isinstance(node.op, ast.Not) else infer(node.operand, names)
    if isinstance(node, ast.Compare):
        if isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            return "plain"
        sides = [infer(side, names) for side in (node.left, *node.comparators)]
        if any(map(is_tensor, sides)):
            return "mask"
        return "host" if "host" in sides else "unknown" if "unknown" in sides else "plain"
    if isinstance(node, ast.IfExp):
        return merge(infer(node.body, names), infer(node.orelse, names))
    if isinstance(node, ast.BoolOp):
        return merge(infer(node.values[0], names), infer(node.values[-1], names))
    if isinstance(node, ast.Tuple):
        return tuple(infer(item, names) for item in node.elts)
    if isinstance(node, (ast.List, ast.Set)):
        return _container([infer(item, names) for item in node.elts])
    if isinstance(node, ast.Dict):
        return _container([infer(item, names) for item in node.values])
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        return _container([infer(node.elt, names)])
    if isinstance(node, ast.DictComp):
        return _container([infer(node.value, names)])
    if isinstance(node, (ast.NamedExpr, ast.Starred, ast.Await)):
        return infer(node.value, names)
    return "unknown"


def _container(kinds: list[Kind]) -> Kind:
    if any(map(is_tensor, kinds)) or "tensors" in kinds:
        return "tensors"
    return "unknown" if "unknown" in kinds else "plain"


def _combined(left: Kind, right: Kind, bitwise: bool) -> Kind:
    if "mask" in (left, right) and bitwise:
        return "mask"
    for kind in ("tensor", "mask"):
        if kind in (left, right):
            return "tensor"
    for kind in ("array64", "array", "unknown", "host"):
        if kind in (left, right):
            return kind
    return "plain" if left == right == "plain" else "unknown"


def _attribute(node: ast.Attribute, names: Names) -> Kind:
    known = names.attribute(node)
    if known != "unknown":
        return known
    if names.dotted(node) is not None:
        return "unknown"
    base = infer(node.value, names)
    if is_tensor(base):
        return (
            "tensor" if node.attr in SAME_SHAPE_ATTRIBUTES else "plain" if node.attr in PLAIN_ATTRIBUTES else "unknown"
        )
    if base == "module":
        return "tensor" if node.attr in ("weight", "bias") else "unknown"
    if base in ("array", "array64"):
        return base if node.attr in ("T", "real") else "plain"
    return "plain" if node.attr in ("shape", "dtype", "device", "ndim") else "unknown"


def _call(node: ast.Call, names: Names) -> Kind:
    dotted = names.dotted(node.func)
    if dotted is not None:
        if "::" in dotted:
            return names.returned(dotted, node)
        if dotted.startswith("torch."):
            return _torch_call(dotted, node, names)
        if dotted.startswith("numpy."):
            return _numpy_call(dotted.removeprefix("numpy."), node, names)
        return "plain" if dotted.split(".")[0] in ("math", "os", "time", "json", "random", "re") else "unknown"
    if isinstance(node.func, ast.Name):
        first = infer(node.args[0], names) if node.args else "plain"
        if node.func.id in ("float", "int", "bool", "complex"):
            return "host" if is_tensor(first) else first if first in ("host", "unknown") else "plain"
        if node.func.id in _BUILTIN_PLAIN:
            return "plain"
        if node.func.id in ("min", "max", "sum", "sorted", "list", "tuple", "reversed", "abs"):
            return first if node.func.id == "abs" or first != "tensors" else "tensors"
        if names.variable(node.func.id) == "module":
            return "tensor"
        return "unknown"
    if isinstance(node.func, ast.Attribute):
        return _method(node, node.func, names)
    return "tensor" if infer(node.func, names) == "module" else "unknown"


def _method(node: ast.Call, func: ast.Attribute, names: Names) -> Kind:
    method = func.attr
    if names.attribute(func) == "module":
        return "tensor"
    base = infer(func.value, names)
    if is_tensor(base):
        if method in READS:
            return "host"
        if method == "numpy":
            return "array"
        return "plain" if method in PLAIN_METHODS else "mask" if method in MASK_METHODS else "tensor"
    if base == "module":
        if method in ("parameters", "buffers"):
            return "tensors"
        return (
            "module"
            if method in ("to", "train", "eval", "cuda", "cpu", "half", "float", "double", "bfloat16")
            else "unknown"
        )
    if base in ("array", "array64"):
        if method == "astype":
            return "array64" if node.args and is_float64(node.args[0], names) else "array"
        return "plain" if method in ("item", "tolist") else base
    if base == "rng64":
        return "array64" if method in _GENERATOR_FLOAT64 and keyword(node, "dtype") is None else "array"
    if base == "tensors":
        if method == "items":
            return "items"
        return "tensors" if method in ("values", "copy") else "tensor" if method in ("get", "pop") else "unknown"
    if method in READS and base == "unknown":
        return "host" if method == "item" else "unknown"
    if base == "plain":
        return "plain"
    return "unknown"


def _torch_call(dotted: str, node: ast.Call, names: Names) -> Kind:
    path, _, name = dotted.rpartition(".")
    if path == "torch":
        if name == "where" and len(node.args) >= 3:
            return "tensor"
        if name in _TORCH_PLAIN or name.startswith(("is_", "get_", "set_", "are_")):
            return "plain"
        if name.startswith("_"):
            return "unknown"
        if name == "compile":
            return "module"
        return "mask" if name in MASK_METHODS else "tensor"
    if path.startswith(_TORCH_SPACES) or dotted in ("torch.nn.Parameter", "torch.autograd.grad"):
        return "tensor"
    if path.startswith("torch.nn") and name[:1].isupper() and "utils" not in path:
        return "module"
    return "plain" if path in ("torch.cuda", "torch.accelerator", "torch.backends") else "unknown"


def _numpy_call(name: str, node: ast.Call, names: Names) -> Kind:
    dtype = keyword(node, "dtype")
    if dtype is not None:
        return "array64" if is_float64(dtype, names) else "array"
    base = name.rpartition(".")[2]
    if base == "default_rng" or name == "random.RandomState":
        return "rng64"
    if name.startswith("random."):
        return "array64" if base in _GENERATOR_FLOAT64 else "array"
    if base in _NUMPY_FLOAT64:
        return "array" if base in ("zeros", "ones", "empty") and len(node.args) > 1 else "array64"
    first = infer(node.args[0], names) if node.args else "plain"
    if isinstance(first, tuple):
        first = "plain" if set(first) == {"plain"} else "unknown"
    if base in ("array", "asarray", "full", "arange", "asanyarray"):
        return "array64" if first == "array64" or (first == "plain" and _has_float(node, names)) else "array"
    if base in _NUMPY_KEEPS:
        if first == "array64" or any(infer(arg, names) == "array64" for arg in node.args):
            return "array64"
        return "array64" if base in _NUMPY_FLOATS and first == "plain" else "array"
    return "array"


def _has_float(call: ast.Call, names: Names) -> bool:
    """Whether a constructor's arguments hold a float literal: that makes an array float64."""
    return any(isinstance(literal(n), float) for argument in call.args for n in ast.walk(argument))
