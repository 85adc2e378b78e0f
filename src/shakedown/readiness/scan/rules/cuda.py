"""``torch.cuda``, and what comes with it: pinned memory, random numbers and mixed precision."""

from __future__ import annotations

import ast
import re

from ..kinds import keyword, literal
from ..rule import Check, Match, Rule
from ..visit import View
from .device import ACCELERATOR, is_cuda


def _true(name: str) -> Check:
    def check(node: ast.AST, view: View) -> Match | None:
        assert isinstance(node, ast.Call)
        return Match() if literal(keyword(node, name)) is True else None

    return check


def _generator(node: ast.AST, view: View) -> Match | None:
    call = view.call_of(node)
    if call is None:
        return None
    device = keyword(call, "device") or (call.args[0] if call.args else None)
    if device is None or literal(device) == "cpu":
        return None
    view.claim(device)
    return Match(detail=ast.unparse(device)[:60])


def _fork_rng(node: ast.AST, view: View) -> Match | None:
    call = view.call_of(node)
    return Match() if call is not None and keyword(call, "device_type") is None else None


def _autocast(node: ast.AST, view: View) -> Match | None:
    call = view.call_of(node)
    if call is None:
        return None
    device = keyword(call, "device_type") or (call.args[0] if call.args else None)
    if not is_cuda(device):
        return None
    view.claim(device)
    return Match()


def _scaler(node: ast.AST, view: View) -> Match | None:
    call = view.call_of(node)
    if call is None:
        return None
    device = keyword(call, "device") or (call.args[0] if call.args else None)
    if device is not None and not is_cuda(device):
        return None
    view.claim(device)
    return Match(detail="" if device is not None else "the default device is cuda")


def _environment(node: ast.AST, view: View) -> Match | None:
    value = literal(node)
    if not isinstance(value, str) or isinstance(view.parent(), ast.Expr):
        return None
    known = value in (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
        "PYTORCH_CUDA_ALLOC_CONF",
        "CUBLAS_WORKSPACE_CONFIG",
    )
    return Match(detail=value) if known or re.fullmatch(r"NCCL_[A-Z_]+", value) else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="cuda-synchronize",
        kind="cuda",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.cuda functions that torch.accelerator has as well: synchronize, device counts, memory, streams, events",
        why="They raise without CUDA. A synchronize that does nothing has made timings 65 times too fast.",
        source=ACCELERATOR,
        instead="the same name in torch.accelerator; torch.Stream and torch.Event",
        names=tuple(
            f"torch.cuda.{name}"
            for name in (
                "synchronize",
                "current_device",
                "set_device",
                "empty_cache",
                "memory_allocated",
                "max_memory_allocated",
                "memory_reserved",
                "max_memory_reserved",
                "reset_peak_memory_stats",
                "memory_stats",
                "current_stream",
                "set_stream",
                "stream",
                "Stream",
                "Event",
                "device",
                "mem_get_info",
            )
        ),
    ),
    Rule(
        id="cuda-graphs",
        kind="cuda",
        severity="blocks",
        effort="medium",
        looks_for="CUDA graphs: torch.cuda.CUDAGraph, torch.cuda.graph, make_graphed_callables",
        why="They record CUDA kernels. The counterpart is a compiled program, with static shapes and no host reads.",
        source="PyTorch documentation, CUDA graphs",
        instead='torch.compile(step, backend="neuron")',
        names=("torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.make_graphed_callables", "torch.cuda.graphs.*"),
    ),
    Rule(
        id="cuda-profiling",
        kind="cuda",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.cuda.nvtx and torch.cuda.profiler",
        why="They annotate NVIDIA's profiler.",
        source="AWS Neuron documentation 2.33, profiler",
        instead="torch.profiler.record_function; ProfilerActivity.PrivateUse1 for the device",
        names=("torch.cuda.nvtx.*", "torch.cuda.nvtx", "torch.cuda.profiler.*", "torch.cuda.cudart"),
    ),
    Rule(
        id="cuda-api",
        kind="cuda",
        severity="changes needed",
        effort="small",
        looks_for="anything else in torch.cuda",
        why="It raises without CUDA, and has no counterpart that works for every device.",
        source="PyTorch documentation, torch.cuda",
        instead="remove it, or put it behind a test for CUDA",
        names=("torch.cuda.*",),
    ),
    Rule(
        id="cuda-backend-flags",
        kind="cuda",
        severity="note",
        effort="none",
        looks_for="settings in torch.backends.cudnn and torch.backends.cuda",
        why="They do nothing here. A baseline made with TF32 or cuDNN's autotuner is not the float32 that it is compared with.",
        source="PyTorch documentation, torch.backends",
        instead="leave them for CUDA; switch TF32 off in a baseline that the trial's numbers are compared with",
        names=("torch.backends.cudnn.*", "torch.backends.cuda.*", "torch.set_float32_matmul_precision"),
    ),
    Rule(
        id="attention-backend",
        kind="cuda",
        severity="changes needed",
        effort="trivial",
        looks_for="a choice of attention kernel: sdpa_kernel, SDPBackend, sdp_kernel",
        why="It names CUDA's kernels; which one runs on the device depends on shapes and has no such switch.",
        source="torch-neuronx development snapshot, scaled dot product attention",
        instead="torch.nn.functional.scaled_dot_product_attention without the choice",
        names=(
            "torch.nn.attention.sdpa_kernel",
            "torch.backends.cuda.sdp_kernel",
            "torch.backends.cuda.enable_flash_sdp",
        ),
    ),
    Rule(
        id="cuda-environment",
        kind="cuda",
        severity="note",
        effort="none",
        looks_for="environment variables of CUDA and NCCL",
        why="Nothing reads them; which cores a process sees is NEURON_RT_VISIBLE_CORES's business.",
        source="AWS Neuron documentation 2.33, runtime configuration",
        instead="NEURON_RT_VISIBLE_CORES, or torchrun, which gives each rank its core",
        nodes=(ast.Constant,),
        check=_environment,
    ),
    Rule(
        id="pin-memory",
        kind="pinned memory",
        severity="note",
        effort="none",
        looks_for="pinned memory: pin_memory=True, .pin_memory()",
        why="Pinning is for copies to CUDA. Host tensors may be pinned where the device has an allocator for it; pinning a "
        "tensor that is on the device raises.",
        source="torch-neuronx development snapshot, pinned memory",
        instead="pin_memory=False until a measurement says otherwise",
        methods=("pin_memory",),
        nodes=(ast.Call,),
        check=lambda node, view: (
            Match()
            if getattr(getattr(node, "func", None), "attr", "") == "pin_memory"
            else _true("pin_memory")(node, view)
        ),
    ),
    Rule(
        id="non-blocking",
        kind="pinned memory",
        severity="note",
        effort="none",
        looks_for="non_blocking=True",
        why="A copy to the host that does not wait may be read before it is complete.",
        source="torch-neuronx development snapshot, copies",
        instead="non_blocking only towards the device, or torch.accelerator.synchronize() before the value is read",
        nodes=(ast.Call,),
        check=_true("non_blocking"),
    ),
    Rule(
        id="cuda-seed",
        kind="random",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.cuda.manual_seed, seed_all, get_rng_state and the rest",
        why="They reach CUDA's generators only. torch.manual_seed seeds the device as well.",
        source="torch-neuronx development snapshot, random numbers",
        instead="torch.manual_seed; torch.neuron.get_rng_state where a state is saved",
        names=tuple(
            f"torch.cuda.{name}"
            for name in (
                "manual_seed",
                "manual_seed_all",
                "seed",
                "seed_all",
                "initial_seed",
                "get_rng_state",
                "set_rng_state",
                "get_rng_state_all",
                "set_rng_state_all",
                "default_generators",
            )
        ),
    ),
    Rule(
        id="device-generator",
        kind="random",
        severity="note",
        effort="none",
        looks_for="torch.Generator on a device that is not the CPU",
        why="Each device has its own stream: the same seed gives other numbers, so results differ from CUDA's by design.",
        source="PyTorch documentation, reproducibility",
        instead="draw on the CPU and move, where numbers must be the same everywhere",
        names=("torch.Generator",),
        check=_generator,
    ),
    Rule(
        id="fork-rng",
        kind="random",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.random.fork_rng without device_type",
        why="Its default is cuda, so the device's own generator is not kept.",
        source="PyTorch documentation, torch.random.fork_rng",
        instead="torch.random.fork_rng(device_type=device.type)",
        names=("torch.random.fork_rng",),
        check=_fork_rng,
    ),
    Rule(
        id="cuda-amp",
        kind="mixed precision",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.cuda.amp",
        why="It is autocast for CUDA alone: on another device it warns and casts nothing.",
        source="PyTorch documentation, torch.amp",
        instead='torch.autocast(device_type="neuron", dtype=torch.bfloat16)',
        names=("torch.cuda.amp.*", "torch.cuda.amp"),
        check=lambda node, view: None if view.dotted(node) == "torch.cuda.amp.GradScaler" else Match(),
    ),
    Rule(
        id="autocast-cuda",
        kind="mixed precision",
        severity="changes needed",
        effort="trivial",
        looks_for='autocast("cuda")',
        why="It is autocast for CUDA alone: on another device it warns and casts nothing.",
        source="PyTorch documentation, torch.amp",
        instead="torch.autocast(device_type=device.type, dtype=torch.bfloat16)",
        names=("torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"),
        check=_autocast,
    ),
    Rule(
        id="grad-scaler",
        kind="mixed precision",
        severity="changes needed",
        effort="small",
        looks_for="GradScaler for CUDA",
        why="It scales gradients for float16 on CUDA; elsewhere it switches itself off with a warning. It also reads an "
        "overflow flag in every step, for which the host waits.",
        source="PyTorch documentation, torch.amp",
        instead="bfloat16, which needs no scaling",
        names=("torch.cuda.amp.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler"),
        check=lambda node, view: Match() if str(view.dotted(node)).startswith("torch.cuda") else _scaler(node, view),
    ),
)
