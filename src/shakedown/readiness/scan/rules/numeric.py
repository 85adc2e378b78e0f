"""Precision, and the parts of PyTorch's API that the device lacks."""

from __future__ import annotations

import ast

from ..kinds import is_float64, is_tensor, keyword, literal
from ..rule import Match, Rule
from ..visit import View

FLOAT64 = "AWS articles on TorchNeuron 2.33: float64 runs as float32, with a warning"
UNSUPPORTED = "AWS article on TorchNeuron 2.33, unsupported APIs"
TABLE = "AWS article on TorchNeuron 2.33, operator compatibility table"
_CONVERTERS = ("torch.from_numpy", "torch.as_tensor", "torch.tensor", "torch.Tensor.new_tensor", "torch.asarray")
_NARROWING = {"float", "half", "bfloat16", "int", "long", "bool"}


def _float64(node: ast.AST, view: View) -> Match | None:
    """``torch.float64`` as a value that something is made or turned into; a comparison only asks."""
    parent = view.parent()
    if isinstance(parent, (ast.Compare, ast.Tuple, ast.List, ast.Set)) or (
        isinstance(parent, ast.Dict) and node in parent.keys
    ):
        return None
    return Match()


def _double(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Call)
    return Match() if not node.args and not node.keywords else None


def _default(node: ast.AST, view: View) -> Match | None:
    call = view.call_of(node)
    if call is None or not call.args:
        return None
    wanted = call.args[0]
    if not (is_float64(wanted, view) or literal(wanted) in ("torch.DoubleTensor", "torch.cuda.DoubleTensor")):
        return None
    view.claim(wanted)
    return Match()


def _from_numpy(node: ast.AST, view: View) -> Match | None:
    """A tensor made of an array that is float64 because that is NumPy's default, and stays so."""
    call = view.call_of(node)
    if call is None or not call.args or view.kind(call.args[0]) != "array64":
        return None
    if keyword(call, "dtype") is not None or (len(call.args) > 1 and view.dotted(node) != "torch.from_numpy"):
        return None
    for distance in range(2, len(view.above)):  # torch.from_numpy(x).float() never leaves the host as float64
        above = view.parent(distance)
        if isinstance(above, ast.Attribute) and above.attr in _NARROWING:
            return None
        if isinstance(above, ast.Call):
            asked = [*above.args, *(k.value for k in above.keywords)]
            if (
                isinstance(above.func, ast.Attribute)
                and above.func.attr in ("to", "type", "view")
                and any(str(view.dotted(value)).startswith("torch.") and not is_float64(value, view) for value in asked)
            ):
                return None
        elif not isinstance(above, ast.Attribute):
            break
    return Match(detail=f"{ast.unparse(call.args[0])[:60]} is float64 because that is NumPy's default")


_TO_SPARSE = ("to_sparse", "to_sparse_csr", "to_sparse_bsr", "sparse_mask")


def _sparse(node: ast.AST, view: View) -> Match | None:
    """A name in torch.sparse, a method that makes a tensor sparse, or an embedding with sparse gradients."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") in _TO_SPARSE:
        return Match()
    if literal(keyword(node, "sparse")) is not True:
        return None
    return Match(detail="sparse=True") if str(view.dotted(node.func)).startswith("torch.nn.Embedding") else None


def _func(node: ast.AST, view: View) -> Match | None:
    name = str(view.dotted(node))
    return None if name.endswith(("functional_call", "stack_module_state")) else Match(detail=name)


def _named(node: ast.AST, view: View) -> Match | None:
    return Match(detail=str(view.dotted(node)))


def _on_tensor(node: ast.AST, view: View) -> Match | None:
    """A method whose name others have too: only on what is known to be a tensor."""
    if not isinstance(node, ast.Call):
        return Match(detail=str(view.dotted(node)))
    assert isinstance(node.func, ast.Attribute)
    return Match(detail=node.func.attr) if is_tensor(view.kind(node.func.value)) else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="float64",
        kind="precision",
        severity="changes needed",
        effort="small",
        looks_for="torch.float64, torch.double, DoubleTensor, complex128",
        why="Results keep the dtype and have the precision of float32. What was asked for is not there.",
        source=FLOAT64,
        instead="float32 if that is enough (the trial tells); else this part on the CPU, where float64 is true",
        names=("torch.float64", "torch.double", "torch.DoubleTensor", "torch.complex128", "torch.cdouble"),
        check=_float64,
    ),
    Rule(
        id="float64-method",
        kind="precision",
        severity="changes needed",
        effort="small",
        looks_for="x.double()",
        why="Results keep the dtype and have the precision of float32. What was asked for is not there.",
        source=FLOAT64,
        instead="float32 if that is enough (the trial tells); else this part on the CPU, where float64 is true",
        methods=("double",),
        check=_double,
    ),
    Rule(
        id="float64-default",
        kind="precision",
        severity="changes needed",
        effort="small",
        looks_for="set_default_dtype(torch.float64), set_default_tensor_type",
        why="Every tensor made without a dtype becomes one that the device computes in float32.",
        source=FLOAT64,
        instead="leave the default at float32, and say float64 where it is meant",
        names=("torch.set_default_dtype", "torch.set_default_tensor_type"),
        check=_default,
    ),
    Rule(
        id="float64-numpy",
        kind="precision",
        severity="changes needed",
        effort="trivial",
        looks_for="a tensor made from a NumPy array that nobody asked to be float64",
        why="NumPy's default is float64, torch keeps it, and the device computes it in float32 with a warning.",
        source=FLOAT64,
        instead="dtype=np.float32 where the array is made, or torch.as_tensor(array, dtype=torch.float32)",
        names=_CONVERTERS,
        check=_from_numpy,
    ),
    Rule(
        id="sparse",
        kind="unsupported api",
        severity="blocks",
        effort="medium",
        looks_for="torch.sparse, to_sparse, sparse_coo_tensor, Embedding(sparse=True), SparseAdam",
        why="Sparse tensors are not supported.",
        source=UNSUPPORTED,
        instead="dense tensors with masks, index_add, scatter_add",
        names=(
            "torch.sparse.*", "torch.sparse_coo_tensor", "torch.sparse_csr_tensor", "torch.sparse_bsr_tensor",
            "torch.sparse_compressed_tensor", "torch.optim.SparseAdam",
        ),
        methods=_TO_SPARSE,
        nodes=(ast.Call,),
        check=_sparse,
    ),
    Rule(
        id="func-transforms",
        kind="unsupported api",
        severity="blocks",
        effort="medium",
        looks_for="torch.func transforms (vmap, grad, jacrev...), functorch, torch.vmap",
        why="They are not supported. functional_call transforms nothing and works.",
        source=UNSUPPORTED,
        instead="batch dimensions written out; torch.autograd.grad",
        names=("torch.func.*", "functorch.*", "torch.vmap"),
        check=_func,
    ),
    Rule(
        id="nested",
        kind="unsupported api",
        severity="blocks",
        effort="medium",
        looks_for="torch.nested",
        why="Nested tensors are not supported.",
        source=UNSUPPORTED,
        instead="padding and a mask",
        names=("torch.nested.*",),
    ),
    Rule(
        id="distributions",
        kind="unsupported api",
        severity="blocks",
        effort="small",
        looks_for="torch.distributions",
        why="Distributions are not supported on the device.",
        source=UNSUPPORTED,
        instead="the formula itself (randn, rand, log_softmax), or sampling on the CPU",
        names=("torch.distributions.*",),
    ),
    Rule(
        id="forward-ad",
        kind="unsupported api",
        severity="blocks",
        effort="medium",
        looks_for="forward-mode autograd: torch.autograd.forward_ad, functional.jvp",
        why="Forward-mode derivatives are missing on the device.",
        source="AWS article on TorchNeuron 2.33, list of what is missing",
        instead="reverse mode; or finite differences where they are enough",
        names=("torch.autograd.forward_ad.*", "torch.autograd.functional.jvp"),
    ),
    Rule(
        id="fft",
        kind="unsupported api",
        severity="costs time",
        effort="small",
        looks_for="torch.fft, stft, istft",
        why="FFT is limited; what is missing runs on the CPU.",
        source=UNSUPPORTED,
        instead="look at the trial's fallbacks; a transform of fixed size is a matrix product",
        names=("torch.fft.*", "torch.stft", "torch.istft"),
        on_device=True,
    ),
    Rule(
        id="quantisation",
        kind="unsupported api",
        severity="blocks",
        effort="medium",
        looks_for="quantised tensors: torch.ao.quantization, quantize_per_channel",
        why="Per-channel quantisation is missing, and TorchAO is not in this release.",
        source="AWS article on TorchNeuron 2.33, list of what is missing",
        instead="bfloat16",
        names=("torch.ao.quantization.*", "torch.quantization.*", "torch.quantize_per_channel", "torch.quantize_per_tensor"),
    ),
    Rule(
        id="fallback-operator",
        kind="operator",
        severity="costs time",
        effort="small",
        looks_for="operators that run on the CPU: multinomial, take, scatter_reduce, range, logspace",
        why="Inputs and result travel through host memory, and the host waits.",
        source=TABLE,
        instead="take: index_select or gather; multinomial: argmax of logits plus Gumbel noise; or accept it in [[fallbacks]]",
        names=(
            "torch.multinomial", "torch.take", "torch.scatter_reduce", "torch.range", "torch.logspace",
        ),
        methods=("multinomial", "take", "scatter_reduce", "scatter_reduce_"),
        check=_on_tensor,
        on_device=True,
    ),
    Rule(
        id="host-linear-algebra",
        kind="operator",
        severity="costs time",
        effort="medium",
        looks_for="decompositions: qr, svd, eigh, cholesky, inv, solve, det",
        why="They run on the CPU in every version that could be looked at.",
        source="torch-neuronx development snapshot, list of operators that always run on the CPU",
        instead="an iteration of products (Newton-Schulz), or outside the step",
        names=tuple(
            f"torch.linalg.{name}"
            for name in ("qr", "svd", "svdvals", "eigh", "eigvalsh", "cholesky", "inv", "solve", "det", "slogdet", "pinv")
        ) + ("torch.linalg.lstsq", "torch.svd", "torch.qr", "torch.cholesky", "torch.inverse", "torch.det", "torch.svd_lowrank"),
        check=_named,
        on_device=True,
    ),
)  # fmt: skip
