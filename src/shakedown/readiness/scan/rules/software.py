"""Options of ``torch.compile``, processes and process groups."""

from __future__ import annotations

import ast

from ..kinds import keyword, literal
from ..rule import Match, Rule
from ..visit import View

COMPILE = "AWS Neuron documentation 2.33, torch.compile parameters"
_NEUTRAL = {"neuron", "eager", "aot_eager"}


def _compile_call(node: ast.AST, view: View) -> ast.Call | None:
    """The call that holds the options: ``torch.compile(...)``, or ``partial(torch.compile, ...)``."""
    call = view.call_of(node)
    if call is not None:
        return call
    parent = view.parent()
    return parent if isinstance(parent, ast.Call) and node in parent.args else None


def _mode(node: ast.AST, view: View) -> Match | None:
    call = _compile_call(node, view)
    mode = literal(keyword(call, "mode")) if call is not None else None
    return Match(detail=f"mode={mode!r}") if isinstance(mode, str) and mode != "default" else None


def _dynamic(node: ast.AST, view: View) -> Match | None:
    call = _compile_call(node, view)
    return Match() if call is not None and literal(keyword(call, "dynamic")) is True else None


def _options(node: ast.AST, view: View) -> Match | None:
    call = _compile_call(node, view)
    options = keyword(call, "options") if call is not None else None
    if not isinstance(options, ast.Dict):
        return None
    names = sorted({str(literal(key)) for key in options.keys} - {"fallback_execution", "model_name", "None"})
    return Match(detail=", ".join(names)) if names else None


def _backend(node: ast.AST, view: View) -> Match | None:
    call = _compile_call(node, view)
    backend = literal(keyword(call, "backend")) if call is not None else None
    return Match(detail=str(backend)) if isinstance(backend, str) and backend not in _NEUTRAL else None


def _start_method(node: ast.AST, view: View) -> Match | None:
    call = view.call_of(node)
    if call is None:
        return None
    method = keyword(call, "method") or (call.args[0] if call.args else None)
    return Match() if literal(method) == "fork" else None


def _fork_context(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Call)
    return Match() if literal(keyword(node, "multiprocessing_context")) == "fork" else None


def _nccl(node: ast.AST, view: View) -> Match | None:
    """The string "nccl", also as in "cpu:gloo,cuda:nccl"; not in a list of choices."""
    value = literal(node)
    parent = view.parent()
    if not isinstance(value, str) or "nccl" not in value.replace(":", ",").split(","):
        return None
    if isinstance(parent, (ast.List, ast.Tuple, ast.Set)) and any(literal(item) == "gloo" for item in parent.elts):
        return None
    if isinstance(parent, ast.IfExp) and view.tests_cuda(parent.test):
        return Match(detail="only where CUDA is available")
    return Match()


def _made(node: ast.AST, view: View) -> Match | None:
    """The class is used, and not only asked about."""
    parent = view.parent()
    asked = isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in ("isinstance", "issubclass")
    return None if asked or isinstance(parent, (ast.Tuple, ast.BinOp)) else Match()


RULES: tuple[Rule, ...] = (
    Rule(
        id="compile-mode",
        kind="compile",
        severity="note",
        effort="none",
        looks_for='torch.compile(mode=...) other than "default"',
        why="It is ignored, with a warning: what reduce-overhead and max-autotune do belongs to Inductor and CUDA graphs.",
        source=COMPILE,
        instead="leave it out",
        names=("torch.compile",),
        check=_mode,
    ),
    Rule(
        id="compile-dynamic",
        kind="compile",
        severity="blocks",
        effort="medium",
        looks_for="torch.compile(dynamic=True), mark_dynamic",
        why="It is refused: shapes are static, and each new one is compiled.",
        source=COMPILE,
        instead="dynamic=False and a few fixed lengths to pad to",
        names=("torch.compile", "torch._dynamo.mark_dynamic", "torch._dynamo.maybe_mark_dynamic"),
        check=lambda node, view: _dynamic(node, view) if view.dotted(node) == "torch.compile" else Match(),
    ),
    Rule(
        id="compile-options",
        kind="compile",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.compile(options={...}) with Inductor's options, torch._inductor.config",
        why="Inductor is not part of this path; its options do not apply.",
        source=COMPILE,
        instead="leave them out; fallback_execution is the option that is documented",
        names=("torch.compile", "torch._inductor.config.*"),
        check=lambda node, view: _options(node, view) if view.dotted(node) == "torch.compile" else Match(),
    ),
    Rule(
        id="compile-backend",
        kind="compile",
        severity="changes needed",
        effort="trivial",
        looks_for='torch.compile(backend=...) that names another backend, such as "inductor" or "cudagraphs"',
        why="It compiles for another device.",
        source=COMPILE,
        instead='backend="neuron"',
        names=("torch.compile",),
        check=_backend,
    ),
    Rule(
        id="fork",
        kind="process",
        severity="changes needed",
        effort="small",
        looks_for="processes that are forked: set_start_method, get_context, DataLoader(multiprocessing_context), os.fork",
        why="After the device has started, a forked child may not use it: it raises and asks for spawn.",
        source="torch-neuronx development snapshot, fork",
        instead='"spawn", or processes that are started before the device is touched and never touch it',
        names=(
            "os.fork", "multiprocessing.set_start_method", "multiprocessing.get_context",
            "torch.multiprocessing.set_start_method", "torch.multiprocessing.get_context",
        ),
        nodes=(ast.Call,),
        check=lambda node, view: (
            _fork_context(node, view) if isinstance(node, ast.Call)
            else Match() if view.dotted(node) == "os.fork" else _start_method(node, view)
        ),
    ),
    Rule(
        id="nccl",
        kind="process",
        severity="changes needed",
        effort="trivial",
        looks_for='the process group backend "nccl"',
        why="NCCL is NVIDIA's. The device brings its own collectives.",
        source="AWS Neuron documentation 2.33, distributed training",
        instead='torch.distributed.init_process_group("neuron"), before the device is used',
        names=("torch.distributed.is_nccl_available", "torch.distributed.ProcessGroupNCCL", "torch.cuda.nccl.*"),
        nodes=(ast.Constant,),
        check=lambda node, view: _nccl(node, view) if isinstance(node, ast.Constant) else Match(),
    ),
    Rule(
        id="data-parallel",
        kind="process",
        severity="changes needed",
        effort="small",
        looks_for="torch.nn.DataParallel",
        why="It drives several CUDA devices from one process; here each process has one device.",
        source="AWS Neuron documentation 2.33, distributed training",
        instead="torch.nn.parallel.DistributedDataParallel under torchrun",
        names=("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"),
        check=_made,
    ),
    Rule(
        id="fsdp-1",
        kind="process",
        severity="changes needed",
        effort="medium",
        looks_for="FullyShardedDataParallel (FSDP1)",
        why="It works in eager; FSDP2 is what is supported under torch.compile.",
        source="AWS Neuron documentation, August 2026, distributed training",
        instead="torch.distributed.fsdp.fully_shard",
        names=("torch.distributed.fsdp.FullyShardedDataParallel",),
        check=_made,
    ),
)  # fmt: skip
