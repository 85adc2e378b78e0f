"""Run by tests/test_exec.py under ``shakedown exec --redirect-cuda``: asserts what a script would rely on. Not a test itself."""

import atexit
import multiprocessing
import os
import pickle
import sys
import threading
import warnings
from dataclasses import dataclass
from io import BytesIO

import torch
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")  # what is deprecated is used as well


@dataclass
class Point:
    x: int


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        assert torch.device("cuda").type == "neuron"  # in a worker, which was forked
        return torch.tensor(float(i))


class Doubled(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.cuda.amp.custom_bwd
    def backward(ctx, gradient):
        return gradient * torch.full((), 2.0, device="cuda")


def in_spawned(queue):
    queue.put((__name__, torch.ones(2, device="cuda").device.type))


def process():
    assert __name__ == "__main__"
    assert sys.argv[1:] == ["--json", "mine", "-m", "--"]
    assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))
    assert sys.modules["__main__"].Point is Point
    assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
    assert os.environ["MY_DEVICE"] == "neuron"
    assert os.environ["OTHER"] == "neuron:0"
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1, pin_memory=True)
    assert [x.cuda(non_blocking=True).sum().item() for x in loader] == [6.0, 22.0]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=in_spawned, args=(queue,))
    child.start()
    assert queue.get() == ("__mp_main__", "neuron")
    child.join()
    assert child.exitcode == 0


def devices():
    assert isinstance(torch.device("cuda:0"), torch.device)
    assert torch.device("cuda:0") == torch.device("cuda", 0) == torch.device(type="cuda", index=0)
    assert str(torch.device("cuda")) == "neuron"
    host = torch.arange(6.0).reshape(2, 3)
    on = [
        host.to("cuda"),
        host.to(device="cuda:0"),
        host.to(torch.device("cuda"), torch.float64),
        host.cuda(),
        host.cuda(0),
        host.type("torch.cuda.DoubleTensor"),
        host.type(torch.cuda.FloatTensor),
        host.new_tensor([1.0], device="cuda"),
        torch.zeros_like(host, device="cuda"),
        torch.tensor([1.0], device="cuda"),
        torch.as_tensor(host, device="cuda"),
        torch.randint(3, (2,), device="cuda"),
        torch.cuda.FloatTensor([1.0, 2.0]),
        torch.nn.Linear(3, 3, device="cuda").weight,
        torch.nn.Linear(3, 3).to("cuda").weight,
        torch.nn.Linear(3, 3).cuda().weight,
        torch.randn(2, generator=torch.Generator(device="cuda"), device="cuda"),
    ]
    assert [t.device for t in on] == [torch.device("neuron", 0)] * len(on)
    assert on[0].is_cuda
    assert not host.is_cuda
    assert on[0].to("cuda") is on[0]
    assert on[5].dtype is on[2].dtype is torch.float64
    assert isinstance(on[0], torch.cuda.FloatTensor)
    assert not isinstance(on[2], torch.cuda.FloatTensor)
    assert not isinstance(host, torch.cuda.FloatTensor)
    assert torch.equal(on[4].cpu(), host)
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(1, device="cuda").device.type))
    thread.start()
    thread.join()
    assert found == ["neuron"]
    with torch.device("cuda"):
        assert torch.ones(1).device.type == "neuron"
    torch.set_default_device("cuda")
    assert torch.ones(1).device.type == "neuron"
    torch.set_default_device("cpu")
    assert host.to(0).device == torch.nn.DataParallel(torch.nn.Linear(3, 3)).cuda()(on[0]).device


def module():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == torch.neuron.device_count()
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device("cuda:0")
    torch.cuda.empty_cache()
    torch.cuda.synchronize(torch.device("cuda"))
    kept = torch.ones(8, device="cuda")
    assert torch.cuda.memory_allocated() == torch.neuron.memory_allocated() >= kept.nbytes
    assert torch.cuda.max_memory_allocated("cuda") >= torch.cuda.memory_allocated(0)
    assert torch.cuda.get_device_capability() == (0, 0)
    assert torch.cuda.get_device_name(0) == "neuron:0"
    about = torch.cuda.get_device_properties("cuda:0")
    assert (about.name, about.major, about.total_memory > 0) == ("neuron:0", 0, True)
    torch.cuda.manual_seed_all(5)
    state = torch.cuda.get_rng_state()
    one = torch.randn(4, device="cuda")
    torch.cuda.set_rng_state_all([state])
    assert torch.equal(one, torch.randn(4, device="cuda"))
    with torch.random.fork_rng(devices=[0]):
        torch.randn(1, device="cuda")
    with torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.range_push("inner")
    side, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    start.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.cuda.device(0), torch.cuda.device_of(one):
        one.mul_(2).record_stream(side)
    torch.cuda.current_stream().wait_stream(side)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.backends.cudnn.benchmark
    for refused in (torch.cuda.CUDAGraph, torch.cuda.cudart, lambda: torch.distributed.init_process_group("nccl")):
        try:
            refused()
        except RuntimeError as error:
            assert "cannot be redirected" in str(error)
        else:
            raise AssertionError(refused)


def training():
    layer = torch.nn.Linear(3, 2).cuda()
    x = torch.ones(4, 3, device="cuda", requires_grad=True)
    for amp in (torch.autocast("cuda", dtype=torch.bfloat16), torch.cuda.amp.autocast(dtype=torch.bfloat16)):
        with amp:
            assert layer(x).dtype is torch.bfloat16
            assert torch.is_autocast_enabled()
    for scaler in (torch.amp.GradScaler("cuda"), torch.amp.GradScaler(), torch.cuda.amp.GradScaler()):
        assert scaler.is_enabled()
    assert scaler.scale(torch.ones((), device="cuda")).item() == 65536.0
    Doubled.apply(x).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((4, 3), 2.0))
    x.grad = None
    checkpoint(lambda v: v * torch.full((), 3.0, device="cuda"), x, use_reentrant=False).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((4, 3), 3.0))
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as profiled:
        (x * 2).sum().item()
    assert any(event.device_type == torch._C._autograd.DeviceType.PrivateUse1 for event in profiled.events())
    file = BytesIO()
    torch.save(layer.state_dict(), file)
    for where in ("cuda", "cuda:0", torch.device("cuda"), {"neuron:0": "cuda:0"}, lambda s, _: s.cuda()):
        file.seek(0)
        assert torch.load(file, map_location=where)["weight"].device.type == "neuron", where
    saved_elsewhere = torch.serialization.default_restore_location(torch.ones(2).untyped_storage(), "cuda:0")
    assert saved_elsewhere.device == torch.device("neuron", 0)
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    assert (torch.ones(1).dtype, torch.ones(1).device.type) == (torch.float64, "neuron")
    torch.set_default_tensor_type(torch.FloatTensor)
    assert (torch.ones(1).dtype, torch.ones(1).device.type) == (torch.float32, "cpu")


if __name__ == "__main__":
    process()
    devices()
    module()
    training()
    if torch.device("cuda").type == "cuda":
        raise AssertionError("documented as false")
    atexit.register(print, "the script's own last words")
    print("all held")
    sys.exit(7)
