"""Where the host waits for the device, and where shapes or control flow depend on data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..kinds import Kind, is_tensor, keyword, literal
from ..rule import Check, Match, Rule
from ..visit import View

WAITS = "torch-neuronx development snapshot, synchronisation points; AWS article on TorchNeuron 2.33"
STATIC = "AWS Neuron documentation 2.33, torch.compile: static shapes only; a new shape is a new compile"
_READS = {"item", "tolist", "cpu", "numpy"}
_LOGGING = {
    "info", "debug", "warning", "log", "log_metric", "log_metrics", "set_postfix", "set_postfix_str", "set_description",
    "add_scalar", "add_scalars", "write",
}  # fmt: skip
_NUMBERS = {"float", "int", "bool", "complex"}


def _read(name: str) -> Check:
    """``x.item()`` and the like: of a tensor, or of something that is not known to be anything else."""

    def check(node: ast.AST, view: View) -> Match | None:
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Attribute)
        if _inside_a_read(view):
            return None
        kind = view.kind(node.func.value)
        certain = is_tensor(kind) or kind == "tensors"
        if name == "tolist":
            return Match() if certain else None
        if not certain and kind != "unknown":
            return None
        if name == "item" and node.args:
            return None if not certain else Match()
        return Match() if certain else Match(detail="if this is a tensor")

    return check


def _inside_a_read(view: View) -> bool:
    """Whether the value is read by a call further out, so that ``x.cpu().numpy()`` is one read and not two."""
    for distance in range(1, len(view.above), 1):
        above = view.parent(distance)
        if isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute) and above.func.attr in _READS:
            return True
        if not isinstance(above, (ast.Attribute, ast.Call)):
            return False
    return False


def _to_cpu(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Attribute)
    device = keyword(node, "device") or (node.args[0] if node.args else None)
    return _read("cpu")(node, view) if literal(device) == "cpu" else None


def _number(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Call)
    if not (isinstance(node.func, ast.Name) and node.func.id in _NUMBERS and len(node.args) == 1):
        return None
    return Match() if view.dotted(node.func) is None and view.tensor(node.args[0]) else None


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The expressions whose truth a condition asks for."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _parts(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _parts(node.operand)
    else:
        yield node


def _branch(node: ast.AST, view: View) -> Match | None:
    """``if``, ``while``, ``assert`` and the ternary, on a tensor or on a number that was read from one."""
    assert isinstance(node, (ast.If, ast.While, ast.Assert, ast.IfExp))
    if view.tests_cuda(node.test):
        return None
    for part in _parts(node.test):
        kind = view.kind(part)
        if is_tensor(kind):
            return Match(detail=ast.unparse(part)[:80])
        if kind == "host" and not isinstance(node, ast.Assert):
            return Match(detail=f"{ast.unparse(part)[:60]} was read from a tensor")
    return None


def _counted_loop(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.For)
    call = node.iter
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"):
        return None
    counted = any(view.kind(argument) == "host" or view.tensor(argument) for argument in call.args)
    return Match(detail=ast.unparse(call)[:80]) if counted else None


def _shown(node: ast.AST) -> Iterator[ast.AST]:
    """Values that a call prints: its arguments, and what f-strings in them hold."""
    assert isinstance(node, ast.Call)
    for argument in (*node.args, *(k.value for k in node.keywords)):
        inner = argument.value if isinstance(argument, ast.Starred) else argument
        if isinstance(inner, ast.JoinedStr):
            yield from (part.value for part in inner.values if isinstance(part, ast.FormattedValue))
        elif isinstance(inner, ast.Dict):
            yield from inner.values
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "format":
            yield from inner.args
        elif isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mod):
            yield from inner.right.elts if isinstance(inner.right, ast.Tuple) else [inner.right]
        else:
            yield inner


def _print(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Call)
    if isinstance(node.func, ast.Name) and node.func.id == "print":
        shown = next((value for value in _shown(node) if view.tensor(value)), None)
        return Match(detail=ast.unparse(shown)[:60]) if shown is not None else None
    return None


def _log(node: ast.AST, view: View) -> Match | None:
    shown = next((value for value in _shown(node) if view.tensor(value)), None)
    return Match(detail=ast.unparse(shown)[:60]) if shown is not None else None


def _log_function(node: ast.AST, view: View) -> Match | None:
    call = view.call_of(node)
    return _log(call, view) if call is not None else None


def _of_tensor(node: ast.AST, view: View) -> Match | None:
    """A method whose name others have too: only on what is known to be a tensor."""
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Attribute)
    return Match() if view.tensor(node.func.value) else None


def _one_argument(node: ast.AST, view: View) -> Match | None:
    call = view.call_of(node)
    return Match() if call is not None and len(call.args) == 1 and not call.keywords else None


def _repeat_interleave(node: ast.AST, view: View) -> Match | None:
    call = node if isinstance(node, ast.Call) else view.call_of(node)
    if call is None or keyword(call, "output_size") is not None:
        return None
    repeats = keyword(call, "repeats") or (call.args[-1] if call.args else None)
    return Match() if view.tensor(repeats) else None


def _index_parts(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _mask_index(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Subscript)
    if not any(view.kind(part) == "mask" for part in _index_parts(node)):
        return None
    base: Kind = view.kind(node.value)
    if not is_tensor(base) and base != "unknown":
        return None
    if isinstance(node.ctx, ast.Store):
        return Match(detail="writing through a mask: torch.where or masked_fill keeps the shape", effort="trivial")
    return Match()


def _read_slice(node: ast.AST, view: View) -> Match | None:
    """``x[:n]`` where n was read from a tensor."""
    assert isinstance(node, ast.Subscript)
    if not view.tensor(node.value):
        return None
    for part in _index_parts(node):
        bounds = (part.lower, part.upper) if isinstance(part, ast.Slice) else ()
        if any(bound is not None and (view.kind(bound) == "host" or view.tensor(bound)) for bound in bounds):
            return Match(detail=ast.unparse(part)[:60])
    return None


def _read_size(node: ast.AST, view: View) -> Match | None:
    """``torch.zeros(n)`` where n was read from a tensor."""
    call = view.call_of(node)
    if call is None:
        return None
    sizes = [inner for a in call.args for inner in (a.elts if isinstance(a, (ast.Tuple, ast.List)) else [a])]
    found = next((size for size in sizes if view.kind(size) == "host"), None)
    return Match(detail=ast.unparse(found)[:60]) if found is not None else None


RULES: tuple[Rule, ...] = (
    *(
        Rule(
            id=f"host-{name}",
            kind="host read",
            severity="costs time",
            effort="small",
            looks_for=f"x.{name}()",
            why="The host waits until everything queued is done, and the queue is empty afterwards. Under torch.compile it "
            "also splits the graph.",
            source=WAITS,
            instead="keep the value as a tensor; read it every so many steps, or outside the step",
            methods=(name,),
            check=_read(name),
            on_device=True,
        )
        for name in ("item", "tolist", "cpu", "numpy")
    ),
    Rule(
        id="host-to-cpu",
        kind="host read",
        severity="costs time",
        effort="small",
        looks_for='x.to("cpu")',
        why="The host waits until everything queued is done.",
        source=WAITS,
        instead="keep the value on the device; read it outside the step",
        methods=("to",),
        check=_to_cpu,
        on_device=True,
    ),
    Rule(
        id="host-number",
        kind="host read",
        severity="costs time",
        effort="small",
        looks_for="float(x), int(x), bool(x) of a tensor",
        why="It is item() by another name: the host waits.",
        source=WAITS,
        instead="keep the value as a tensor",
        nodes=(ast.Call,),
        check=_number,
        on_device=True,
    ),
    Rule(
        id="host-print",
        kind="host read",
        severity="costs time",
        effort="trivial",
        looks_for="print of a tensor",
        why="Printing needs the values: the host waits, and adaptive eager ends its segment there.",
        source=WAITS,
        instead="print every so many steps",
        nodes=(ast.Call,),
        check=_print,
        on_device=True,
    ),
    Rule(
        id="host-log",
        kind="host read",
        severity="costs time",
        effort="trivial",
        looks_for="a tensor given to a logger, a progress bar, TensorBoard or Weights & Biases",
        why="They turn it into a number or a text: the host waits in every step.",
        source=WAITS,
        instead="log every so many steps; collect detached tensors and read them together",
        methods=tuple(sorted(_LOGGING)),
        names=(
            "wandb.log",
            "mlflow.log_metric",
            "mlflow.log_metrics",
            *(f"logging.{n}" for n in ("info", "debug", "warning")),
        ),
        check=lambda node, view: _log(node, view) if isinstance(node, ast.Call) else _log_function(node, view),
        on_device=True,
    ),
    Rule(
        id="data-branch",
        kind="control flow",
        severity="costs time",
        effort="medium",
        looks_for="if, while, assert or a ternary whose condition is a tensor",
        why="The host waits for the value; under torch.compile the graph is split there, and each side is compiled.",
        source=WAITS,
        instead="torch.where, or a decision from sizes that are known; torch.cond does not lower",
        nodes=(ast.If, ast.While, ast.Assert, ast.IfExp),
        check=_branch,
        on_device=True,
    ),
    Rule(
        id="data-loop",
        kind="control flow",
        severity="costs time",
        effort="medium",
        looks_for="a loop whose count is read from a tensor",
        why="The host waits for the count, and under torch.compile each count is another graph.",
        source=STATIC,
        instead="a fixed number of turns with masked updates",
        nodes=(ast.For,),
        check=_counted_loop,
        on_device=True,
    ),
    Rule(
        id="shape-nonzero",
        kind="data-dependent shape",
        severity="costs time",
        effort="medium",
        looks_for="nonzero, argwhere, where with one argument",
        why="The size of the result is in the data: the host waits for it, and every new size is a new compile.",
        source=STATIC,
        instead="torch.nonzero_static(size=...), a mask with torch.where, topk",
        names=("torch.nonzero", "torch.argwhere"),
        methods=("nonzero", "argwhere"),
        on_device=True,
    ),
    Rule(
        id="shape-where",
        kind="data-dependent shape",
        severity="costs time",
        effort="medium",
        looks_for="torch.where with one argument",
        why="It is nonzero by another name.",
        source=STATIC,
        instead="torch.where with three arguments",
        names=("torch.where",),
        check=_one_argument,
        on_device=True,
    ),
    Rule(
        id="shape-masked-select",
        kind="data-dependent shape",
        severity="costs time",
        effort="small",
        looks_for="masked_select",
        why="The size of the result is in the data: the host waits for it, and every new size is a new compile.",
        source=STATIC,
        instead="keep the full shape, and put zeros or weights where the mask is false",
        names=("torch.masked_select",),
        methods=("masked_select",),
        on_device=True,
    ),
    Rule(
        id="shape-unique",
        kind="data-dependent shape",
        severity="costs time",
        effort="medium",
        looks_for="unique, unique_consecutive",
        why="The size of the result is in the data: the host waits for it, and every new size is a new compile.",
        source=STATIC,
        instead="do it in the data pipeline; or sort and compare neighbours",
        names=("torch.unique", "torch.unique_consecutive"),
        methods=("unique", "unique_consecutive"),
        check=lambda node, view: _of_tensor(node, view) if isinstance(node, ast.Call) else Match(),
        on_device=True,
    ),
    Rule(
        id="shape-repeat-interleave",
        kind="data-dependent shape",
        severity="costs time",
        effort="small",
        looks_for="repeat_interleave with a tensor of repeats and without output_size",
        why="The size of the result is the sum of a tensor.",
        source=STATIC,
        instead="output_size=, with padding to a fixed number",
        names=("torch.repeat_interleave",),
        methods=("repeat_interleave",),
        check=_repeat_interleave,
        on_device=True,
    ),
    Rule(
        id="shape-mask-index",
        kind="data-dependent shape",
        severity="costs time",
        effort="small",
        looks_for="x[mask] with a tensor of truth values",
        why="The size of the result is in the data: the host waits for it, and every new size is a new compile.",
        source=STATIC,
        instead="multiply by the mask, torch.where, or a loss with ignore_index",
        nodes=(ast.Subscript,),
        check=_mask_index,
        on_device=True,
    ),
    Rule(
        id="shape-read-slice",
        kind="data-dependent shape",
        severity="costs time",
        effort="medium",
        looks_for="x[:n] with n read from a tensor",
        why="The host waits for n, and every n is a new shape and a new compile.",
        source=STATIC,
        instead="keep the full length and mask it, or choose among a few lengths in the data pipeline",
        nodes=(ast.Subscript,),
        check=_read_slice,
        on_device=True,
    ),
    Rule(
        id="shape-read-size",
        kind="data-dependent shape",
        severity="costs time",
        effort="medium",
        looks_for="a tensor whose size was read from a tensor: torch.zeros(n), torch.arange(n)",
        why="The host waits for n, and every n is a new shape and a new compile.",
        source=STATIC,
        instead="the largest size, with a mask",
        names=tuple(f"torch.{name}" for name in ("zeros", "ones", "empty", "full", "arange", "randn", "rand")),
        check=_read_size,
        on_device=True,
    ),
    Rule(
        id="resize",
        kind="data-dependent shape",
        severity="costs time",
        effort="small",
        looks_for="tensors that are resized in place: resize_, resize_as_, set_, storage().resize_",
        why="A graph's tensors have one shape: this splits it, and eager must allocate anew.",
        source=STATIC,
        instead="a new tensor, or one of the largest size and a view of it",
        methods=("resize_", "resize_as_"),
        on_device=True,
    ),
)
