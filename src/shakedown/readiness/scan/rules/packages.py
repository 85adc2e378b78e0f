"""Packages that bring CUDA kernels, kernels written by hand, and the older XLA product."""

from __future__ import annotations

import ast

from ..kinds import literal
from ..results import Grade, Kind, Severity
from ..rule import Match, Rule
from ..visit import View

KERNELS = "AWS article on TorchNeuron 2.33: custom kernels need their own backward, shape coverage and maintenance"


def _package(node: ast.AST, view: View) -> Match | None:
    """Name the package, which is what a requirement can declare as a kernel."""
    if isinstance(node, ast.ImportFrom):
        return Match(kernel=(node.module or "").split(".")[0])
    assert isinstance(node, ast.Import)
    return Match(kernel=node.names[0].name.split(".")[0])


def _plain(node: ast.AST, view: View) -> Match | None:
    return Match()


def package(
    name: str, modules: tuple[str, ...], what: str, instead: str, effort: Grade, severity: Severity = "blocks",
    kind: Kind = "package", kernels: bool = True, why: str = "",
) -> Rule:  # fmt: skip
    """A rule for imports of a package."""
    return Rule(
        id=f"package-{name}",
        kind=kind,
        severity=severity,
        effort=effort,
        looks_for=f"{', '.join(modules)}: {what}",
        why=why or "Its kernels are CUDA programs: importing or calling it fails where there is no CUDA.",
        source="the package's own documentation",
        instead=instead,
        imports=modules,
        check=_package if kernels else _plain,
    )


_SDPA = "torch.nn.functional.scaled_dot_product_attention"
PACKAGES = (
    package("flash-attn", ("flash_attn", "flash_attn_interface"), "fused attention", _SDPA, "small"),
    package("xformers", ("xformers",), "fused attention and layers", _SDPA, "small"),
    package("apex", ("apex",), "fused optimizers, norms and mixed precision",
            "torch.optim.AdamW, torch.nn.LayerNorm, torch.nn.RMSNorm, torch.autocast", "small"),
    package("bitsandbytes", ("bitsandbytes",), "8-bit optimizers and quantised layers",
            "torch.optim.AdamW in bfloat16; quantisation has no counterpart in this release", "medium"),
    package("triton", ("triton",), "kernels in Triton",
            "plain PyTorch, or a kernel in NKI with its own backward", "large"),
    package("cupy", ("cupy", "cupyx"), "arrays and kernels on CUDA", "torch, or NumPy on the host", "medium"),
    package("numba-cuda", ("numba.cuda",), "kernels in Numba", "plain PyTorch, or a kernel in NKI", "large"),
    package("pycuda", ("pycuda",), "kernels in CUDA", "plain PyTorch, or a kernel in NKI", "large"),
    package("nvml", ("pynvml", "py3nvml", "nvidia_smi", "GPUtil"), "NVIDIA's management library",
            "neuron-monitor, or nothing", "trivial", "changes needed", kernels=False,
            why="It asks NVIDIA's driver, which is not there."),
    package("deepspeed", ("deepspeed",), "fused operators, and ZeRO over NCCL",
            "FSDP2 (torch.distributed.fsdp.fully_shard) and torch.optim", "large"),
    package("transformer-engine", ("transformer_engine",), "FP8 layers for NVIDIA",
            "torch.nn layers in bfloat16", "medium"),
    package("tensorrt", ("tensorrt", "torch_tensorrt", "torch2trt"), "NVIDIA's inference compiler",
            'torch.compile(backend="neuron")', "medium"),
    package("dali", ("nvidia.dali",), "data loading on the GPU", "torchvision on the host", "medium"),
    package("rapids", ("cudf", "cuml", "cugraph"), "data frames on the GPU", "pandas, scikit-learn on the host", "medium"),
    package("graph-kernels", ("torch_scatter", "torch_sparse", "torch_cluster", "torch_spline_conv", "pyg_lib"),
            "extensions for graphs", "torch.Tensor.scatter_add, index_add; sizes fixed by padding", "medium"),
    package("state-space-kernels", ("mamba_ssm", "causal_conv1d", "fla", "selective_scan_cuda"),
            "kernels for state-space and linear attention models", "their reference implementation in PyTorch", "large"),
    package("liger", ("liger_kernel",), "Triton kernels for language models", "the torch.nn layers they replace", "small"),
    package("unsloth", ("unsloth",), "Triton kernels that replace a model's own", "the model as Transformers has it", "medium"),
    package("quantised-kernels", ("auto_gptq", "gptqmodel", "awq", "exllamav2", "hqq", "torchao"),
            "quantised layers", "bfloat16; TorchAO is not in this release", "medium"),
    package("vision-kernels", ("mmcv", "detectron2", "pytorch3d", "spconv", "MinkowskiEngine", "torchsparse", "nvdiffrast",
                               "tinycudann", "gsplat", "kaolin"),
            "extensions for vision and 3D", "the operators in plain PyTorch, or torchvision", "large"),
    package("fbgemm", ("fbgemm_gpu", "torchrec"), "embedding tables on CUDA", "torch.nn.EmbeddingBag", "large"),
    package("vllm", ("vllm", "sglang", "lmdeploy", "tensorrt_llm"), "serving engines with CUDA kernels",
            "the engine's own Neuron backend, as a project of its own", "large"),
    package("onnxruntime", ("onnxruntime",), "execution providers of ONNX Runtime",
            "the PyTorch model itself", "small", "note", kernels=False,
            why="A session with the CUDA provider runs outside PyTorch and does not move with it."),
)  # fmt: skip


def _autograd_function(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.ClassDef)
    full = {view.dotted(base) for base in node.bases}
    if not full & {"torch.autograd.Function", "torch.autograd.function.Function"}:
        return None
    return Match(kernel=node.name)


def _first_text(node: ast.AST, view: View) -> Match | None:
    """The name that a call gives its operator, extension or library."""
    call = view.call_of(node)
    text = None
    if call is not None:
        wanted = [k.value for k in call.keywords if k.arg in ("name", "lib", "qualname")] + call.args[:1]
        text = next((literal(value) for value in wanted if isinstance(literal(value), str)), None)
    return Match(detail=str(text or ""), kernel=str(text or view.dotted(node)))


def _decorated(node: ast.AST, view: View) -> Match | None:
    """The function that a kernel decorator stands on."""
    for above in reversed(view.above):
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
            node in ast.walk(decorator) for decorator in above.decorator_list
        ):
            named = _first_text(node, view)
            qualified = named is not None and "::" in named.kernel
            return named if qualified else Match(detail=above.name, kernel=above.name)
        if isinstance(above, ast.stmt):
            break
    return _first_text(node, view)


def _custom_op(node: ast.AST, view: View) -> Match | None:
    """``torch.ops.namespace.name`` of a namespace that PyTorch does not bring."""
    parts = str(view.dotted(node)).split(".")
    if len(parts) < 4 or parts[2] in ("aten", "prims", "prim", "higher_order", "c10d", "_c10d_functional", "quantized"):
        return None
    if parts[2] in ("load_library", "loaded_libraries"):
        return None
    return Match(kernel=f"{parts[2]}::{parts[3]}")


NATIVE_SOURCE = Rule(
    id="cuda-source",
    kind="kernel",
    severity="blocks",
    effort="large",
    looks_for="CUDA or HIP source files",
    why="They are compiled for NVIDIA or AMD hardware.",
    source=KERNELS,
    instead="plain PyTorch, or a kernel in NKI with its own backward",
)
RULES: tuple[Rule, ...] = (
    *PACKAGES,
    Rule(
        id="cpp-extension",
        kind="kernel",
        severity="blocks",
        effort="large",
        looks_for="torch.utils.cpp_extension: load, load_inline, CUDAExtension, CppExtension",
        why="The extension knows CUDA or the CPU, and not this device. One for the CPU makes every call a trip to the host.",
        source=KERNELS,
        instead="plain PyTorch, or a kernel in NKI with its own backward",
        names=tuple(
            f"torch.utils.cpp_extension.{name}"
            for name in ("load", "load_inline", "CUDAExtension", "CppExtension", "SyclExtension")
        ),
        check=_first_text,
    ),
    Rule(
        id="native-library",
        kind="kernel",
        severity="blocks",
        effort="large",
        looks_for="libraries that are loaded at run time: torch.ops.load_library, ctypes",
        why="Compiled operators know the devices they were compiled for; ctypes on a device pointer reads host memory.",
        source=KERNELS,
        instead="plain PyTorch; what must stay native runs on the host, outside the step",
        names=(
            "torch.ops.load_library", "torch.classes.load_library", "ctypes.CDLL", "ctypes.cdll.LoadLibrary",
            "ctypes.PyDLL", "ctypes.WinDLL",
        ),
        check=_first_text,
    ),
    Rule(
        id="custom-op-definition",
        kind="kernel",
        severity="changes needed",
        effort="medium",
        looks_for="operators defined with torch.library",
        why="The device knows them only if they have an implementation for it, or one made of known operators, and the "
        "compiler needs a fake kernel; the trial's gradients are no better than the backward that is registered.",
        source=KERNELS,
        instead="register a CompositeImplicitAutograd implementation, a fake kernel and a backward; declare it in [[kernels]]",
        names=("torch.library.custom_op", "torch.library.Library", "torch.library.define", "torch.library.impl"),
        check=_decorated,
    ),
    Rule(
        id="kernel-function",
        kind="kernel",
        severity="blocks",
        effort="large",
        looks_for="kernels written in Python: @triton.jit, triton_op, @numba.cuda.jit, cupy.RawKernel",
        why="They are compiled for CUDA.",
        source=KERNELS,
        instead="plain PyTorch, or a kernel in NKI with its own backward",
        names=(
            "triton.jit", "triton.autotune", "torch.library.triton_op", "torch.library.wrap_triton", "numba.cuda.jit",
            "cupy.RawKernel", "cupy.RawModule", "cupy.ElementwiseKernel", "torch.cuda._compile_kernel",
        ),
        check=_decorated,
    ),
    Rule(
        id="nki-kernel",
        kind="kernel",
        severity="note",
        effort="none",
        looks_for="custom kernels: nki.jit; nki_op, wrap_nki of torch_neuronx or torch.neuron",
        why="What is written in NKI runs on the real device only, so a rehearsal cannot judge it; what is written for JAX or "
        "Pallas runs in the rehearsal only, and has to be written in NKI. Each needs a backward, shapes it is proved for, an "
        "owner, and something to run where it does not apply.",
        source=KERNELS,
        instead="declare each in [[kernels]] with owner and fallback",
        names=(
            "nki.jit", "neuronxcc.nki.jit", "torch_neuronx.nki_op", "torch_neuronx.wrap_nki", "torch.neuron.nki_op",
            "torch.neuron.wrap_nki",
        ),
        check=_decorated,
    ),
    Rule(
        id="autograd-function",
        kind="kernel",
        severity="note",
        effort="none",
        looks_for="subclasses of torch.autograd.Function",
        why="What its forward and backward call runs on the device like any other code. Truth uses the same backward, so a "
        "wrong formula is wrong on both sides and the trial cannot see it.",
        source="how the trial computes truth (docs/trial.md)",
        instead="torch.autograd.gradcheck in float64 on the CPU; declare it in [[kernels]] if it replaces a kernel",
        nodes=(ast.ClassDef,),
        check=_autograd_function,
    ),
    Rule(
        id="custom-op-call",
        kind="kernel",
        severity="changes needed",
        effort="medium",
        looks_for="calls of torch.ops.<namespace>.<name> outside PyTorch's own namespaces",
        why="Somebody's extension must define it, and that extension must know this device.",
        source=KERNELS,
        instead="plain PyTorch, or the extension's own implementation for the device",
        names=("torch.ops.*",),
        check=_custom_op,
    ),
    package("torch-xla", ("torch_xla",), "PyTorch/XLA, which the older Neuron product is built on",
            "the native device: no torch_xla import at all", "medium", "blocks", "legacy", kernels=False,
            why="TorchNeuron is not built on PyTorch/XLA: its device is `neuron`, and nothing is traced lazily."),
    package("torch-neuron-old", ("torch_neuron", "neuronx_distributed", "optimum.neuron"),
            "packages of the older Neuron products", "their native counterparts, where there are any", "large",
            "changes needed", "legacy", kernels=False,
            why="They were written for the XLA-based product that has the same distribution name."),
    Rule(
        id="xla-call",
        kind="legacy",
        severity="changes needed",
        effort="small",
        looks_for="calls into torch_xla: mark_step, xla_device, optimizer_step, MpDeviceLoader",
        why="A lazy device needs marks where a step ends; the native device runs or queues each operator as it comes.",
        source="AWS articles on TorchNeuron 2.33; AWS Neuron documentation, migration",
        instead='device "neuron", optimizer.step(), a plain DataLoader; no mark_step',
        names=("torch_xla.*",),
        check=lambda node, view: Match(detail=str(view.dotted(node))),
    ),
    Rule(
        id="neuron-trace",
        kind="legacy",
        severity="changes needed",
        effort="small",
        looks_for="torch_neuronx.trace and its companions of the older product",
        why="Ahead-of-time tracing belongs to the XLA-based product; the native one compiles with torch.compile.",
        source="AWS articles on TorchNeuron 2.33",
        instead='torch.compile(model, backend="neuron")',
        names=("torch_neuronx.trace", "torch_neuronx.analyze", "torch_neuronx.dynamic_batch", "torch_neuronx.xla_impl.*"),
    ),
)  # fmt: skip
