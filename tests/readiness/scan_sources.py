"""Sources for the scan: ``#! rule`` ends a line on which exactly these rules must be found, and no other line may be."""

SOURCES = {
    "names of devices": '''
"""Nothing here: "cuda:0", x.cuda(), torch.cuda.synchronize()."""
import argparse
import torch
import torch as t
from torch import device as make_device

DEVICE = "cuda"  #! cuda-device
device = "cuda" if torch.cuda.is_available() else "cpu"  #! cuda-available
other = t.device("cuda:1")  #! cuda-device
third = make_device(f"cuda:{3}")  #! cuda-device
CHOICES = ["cpu", "cuda"]
pairs = {("cuda", torch.float16): 1, "cuda": 2}
several = ["cuda:0", "cuda:1"]  #! cuda-device, cuda-device
message = "use cuda or cpu"
parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")  #! cuda-device
parser.add_argument("--kind", choices=["cuda", "cpu"])


def place(model, x, device: str = "cuda"):  #! cuda-device
    """Not .cuda() here."""
    if x.is_cuda:  #! cuda-attribute
        model.cuda()  #! cuda-method
    if device == "cuda":  #! cuda-compare
        return x
    if "cuda" in device or device.startswith("cuda"):  #! cuda-compare, cuda-prefix
        x = x.to("cuda", non_blocking=True)  #! cuda-device, non-blocking
    kind = torch.cuda.FloatTensor  #! cuda-types
    y = x.type("torch.cuda.HalfTensor")  #! cuda-types
    z = torch.load("a.pt", map_location="cuda:0")  #! map-location
    z = torch.load("a.pt", map_location=lambda storage, place: storage)
    m = load(device_map="auto", other=1)  #! device-map
    m = load(device_map=None)
    return x.to(device), x.pin_memory()  #! pin-memory


def load(**options):
    return options


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(4)

    def forward(self, x):
        a = torch.arange(4)  #! factory-without-device
        b = torch.arange(4, device=x.device)
        c = torch.zeros(2, 2).to(x)
        d = torch.ones(2)
        d = d.to(x.device)
        return x + a + b + c + d, x.new_zeros(2), torch.tensor(0.5)
''',
    "torch.cuda": """
import os
import torch
from torch import cuda
from torch.cuda import synchronize as wait, nvtx
from torch.cuda.amp import GradScaler, autocast
from torch.nn.attention import sdpa_kernel
from torch.utils.data import DataLoader
import torch.backends.cudnn as cudnn

cudnn.benchmark = True  #! cuda-backend-flags
torch.backends.cuda.matmul.allow_tf32 = True  #! cuda-backend-flags
torch.set_float32_matmul_precision("high")  #! cuda-backend-flags
os.environ["CUDA_VISIBLE_DEVICES"] = "0"  #! cuda-environment
os.environ.setdefault("NCCL_DEBUG", "INFO")  #! cuda-environment


def seeds():
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)  #! cuda-seed
    torch.Generator().manual_seed(1)
    torch.Generator(device="cpu")
    torch.Generator(device="cuda")  #! device-generator
    with torch.random.fork_rng():  #! fork-rng
        pass
    with torch.random.fork_rng(device_type="neuron"):
        pass


def measure(loss, x):
    wait()  #! cuda-synchronize
    cuda.empty_cache()  #! cuda-synchronize
    torch.cuda.get_device_capability()  #! cuda-api
    nvtx.range_push("a")  #! cuda-profiling
    with torch.autocast("cuda", dtype=torch.float16):  #! autocast-cuda
        pass
    with torch.autocast(device_type=x.device.type):
        pass
    with autocast():  #! cuda-amp
        pass
    scaler = GradScaler()  #! grad-scaler
    scaler = torch.amp.GradScaler("neuron")
    scaler = torch.amp.GradScaler()  #! grad-scaler
    with sdpa_kernel([]):  #! attention-backend
        pass
    graph = torch.cuda.CUDAGraph()  #! cuda-graphs
    if torch.cuda.is_available():  #! cuda-available
        torch.cuda.synchronize()  #! cuda-synchronize
    return DataLoader([], pin_memory=True)  #! pin-memory


def mine(cuda):
    return cuda.synchronize()
""",
    "packages": """
from __future__ import annotations
from typing import TYPE_CHECKING
import apex  #! package-apex
import cupy as cp  #! package-cupy
import numba
from numba import cuda  #! package-numba-cuda
from flash_attn.modules import mha  #! package-flash-attn
import torch_xla.core.xla_model as xm  #! package-torch-xla
import torch_neuronx
try:
    import triton  #! package-triton
    import triton.language as tl  #! package-triton
except ImportError:
    triton = None
import pynvml  #! package-nvml
if TYPE_CHECKING:
    import bitsandbytes


@triton.jit  #! kernel-function
def add(x):
    pass


@cuda.jit  #! kernel-function
def twice(x):
    pass


def go():
    import deepspeed  #! package-deepspeed
    from xformers import ops  #! package-xformers

    xm.mark_step()  #! xla-call
    torch_neuronx.trace(go, ())  #! neuron-trace
""",
    "kernels": """
import ctypes
import torch
from torch.autograd import Function
from torch.library import custom_op
from torch.utils.cpp_extension import CUDAExtension, load
import nki

fast = load(name="fast_norm", sources=["a.cu"])  #! cpp-extension
library = ctypes.CDLL("libfast.so")  #! native-library
torch.ops.load_library("liba.so")  #! native-library
lib = torch.library.Library("mine", "DEF")  #! custom-op-definition


@custom_op("mine::scale", mutates_args=())  #! custom-op-definition
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@nki.jit  #! nki-kernel
def kernel(x):
    return x


class Square(Function):  #! autograd-function
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def use(x):
    torch.ops.aten.add(x, x)
    torch.ops.theirs.norm(x)  #! custom-op-call
    return torch.ops.mine.scale(x)  #! custom-op-call
""",
    "numbers": """
import math
import numpy as np
import torch
from torch import nn

torch.set_default_dtype(torch.float64)  #! float64-default
torch.set_default_dtype(torch.float32)
WIDE = torch.float64  #! float64


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        grid = np.linspace(0, 1, 8)
        noise = np.random.default_rng(0).normal(size=8)
        self.register_buffer("a", torch.from_numpy(grid))  #! float64-numpy
        self.register_buffer("b", torch.tensor(np.array([0.5, 1.0])))  #! float64-numpy
        self.register_buffer("c", torch.as_tensor(np.sqrt(grid) * 2 + 1))  #! float64-numpy
        self.register_buffer("d", torch.from_numpy(noise))  #! float64-numpy
        self.register_buffer("e", torch.from_numpy(grid).float())
        self.register_buffer("f", torch.from_numpy(grid.astype(np.float32)))
        self.register_buffer("g", torch.as_tensor(grid, dtype=torch.float32))
        self.register_buffer("h", torch.from_numpy(np.arange(8)))
        self.register_buffer("i", torch.from_numpy(np.zeros(8, dtype=np.float32)))
        self.register_buffer("j", torch.tensor([0.5, 1.0]))
        self.register_buffer("k", torch.from_numpy(grid).to(torch.float32))
        self.register_buffer("l", torch.from_numpy(np.full(8, 0.5)))  #! float64-numpy
        self.double_up = nn.Embedding(4, 4, sparse=True)  #! sparse

    def forward(self, x):
        y = x.double()  #! float64-method
        y = y.to(torch.float64)  #! float64
        if x.dtype == torch.float64:
            y = y + 1
        s = torch.sparse.mm(x, y)  #! sparse
        s = x.to_sparse()  #! sparse
        v = torch.vmap(torch.sin)(x)  #! func-transforms
        f = torch.func.functional_call(self, {}, x)
        g = torch.func.grad(math.sin)  #! func-transforms
        n = torch.nested.nested_tensor([x])  #! nested
        d = torch.distributions.Normal(0, 1)  #! distributions
        q = torch.quantize_per_channel(x, x, x, 0, torch.qint8)  #! quantisation
        z = torch.fft.rfft(x)  #! fft
        m = torch.multinomial(x, 2)  #! fallback-operator
        t = x.take(m)  #! fallback-operator
        w = torch.linalg.svd(x)  #! host-linear-algebra
        j = torch.autograd.functional.jvp(torch.sin, x)  #! forward-ad
        return y
""",
    "the host waits": """
import logging
import math
import torch
from torch import nn
from torch.nn import functional as F

logger = logging.getLogger(__name__)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(1))
        self.width, self.table = width, {"a": 1}
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, mask=None, flag=False, count: int = 2):
        y = self.layer(x)
        if flag or self.width > 3 or mask is not None or self.training or y.shape[0] > 4 or len(x) > 2 or y.dim() == 2:
            y = y + 1
        if torch.is_floating_point(y) and "a" in self.table and count:
            y = y * math.sqrt(y.size(-1)) * float(self.width) * int(y.shape[0])
        if y.sum() > 0:  #! data-branch
            y = -y
        y = y if (y < 0).any() else y + 1  #! data-branch
        assert torch.isfinite(y).all()  #! data-branch
        peak = y.max().item()  #! host-item
        if peak > 3:  #! data-branch
            y = y / peak
        n = int((y > 0).sum())  #! host-number
        z = y[:n]  #! shape-read-slice
        z = y[:count] + y[: y.shape[0] // 2].sum() + y[None, :, 0].mean()
        for _ in range(n):  #! data-loop
            z = z + torch.arange(n, device=x.device).sum()  #! shape-read-size
        for _ in range(count):
            z = z + torch.zeros(y.shape[0], device=x.device).sum()
        w = y[y > 0]  #! shape-mask-index
        y[y > 9] = 9.0  #! shape-mask-index
        i = torch.nonzero(y), torch.where(y > 0), y.nonzero()  #! shape-nonzero, shape-where, shape-nonzero
        k = torch.where(y > 0, y, -y)
        u = y.unique(), torch.masked_select(y, y > 1)  #! shape-unique, shape-masked-select
        r = torch.repeat_interleave(y, 2), torch.repeat_interleave(y, i[0], output_size=8)
        r = y.repeat_interleave((y > 0).sum(1))  #! shape-repeat-interleave
        y.resize_(4)  #! resize
        a = y.detach().cpu().numpy()  #! host-numpy
        b = y.to("cpu"), y.cpu(), y.tolist()  #! host-to-cpu, host-cpu, host-tolist
        print("shape", y.shape, self.width)
        print("mean", y.mean())  #! host-print
        print(f"{self.scale:.3f} {self.seen}")  #! host-print
        logger.info("norm %s", y.norm())  #! host-log
        logger.info("width %d", self.width)
        loss = F.mse_loss(y, x)
        while loss:  #! data-branch
            break
        return self.helper(loss)

    def helper(self, value):
        bool(value)  #! host-number
        return not_a_tensor(self.width), value


def not_a_tensor(width):
    import numpy as np

    best = np.mean([1, 2]).item()
    rows = np.unique(np.arange(width)).tolist()
    return [1, 2][: int(best)] if width > 2 else rows
""",
    "processes and compiling": """
import functools
import multiprocessing as mp
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader

BACKENDS = ["gloo", "nccl"]


def main(model):
    dist.init_process_group("nccl")  #! nccl
    dist.init_process_group(backend="cpu:gloo,cuda:nccl")  #! nccl
    dist.init_process_group("gloo")
    mp.set_start_method("fork")  #! fork
    mp.get_context("spawn")
    os.fork()  #! fork
    DataLoader([], multiprocessing_context="fork")  #! fork
    a = torch.compile(model, mode="max-autotune")  #! compile-mode
    b = torch.compile(model, mode="default", backend="neuron", dynamic=False)
    c = torch.compile(model, dynamic=True)  #! compile-dynamic
    d = torch.compile(model, options={"triton.cudagraphs": True})  #! compile-options
    e = torch.compile(model, options={"fallback_execution": False})
    f = torch.compile(model, backend="inductor")  #! compile-backend
    g = functools.partial(torch.compile, mode="reduce-overhead")  #! compile-mode
    torch._dynamo.mark_dynamic(a, 0)  #! compile-dynamic
    torch._inductor.config.triton.cudagraphs = True  #! compile-options
    if isinstance(model, torch.nn.DataParallel):
        model = model.module
    model = torch.nn.DataParallel(model)  #! data-parallel
    return FSDP(model)  #! fsdp-1
""",
}
