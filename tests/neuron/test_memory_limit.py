"""A limit on what the device holds: what is refused has changed nothing, and after letting go of something it works."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

from shakedown.neuron import compile_step, config, core_memory, memory_limit
from shakedown.neuron.errors import ConfigError
from shakedown.neuron.sizes import readable
from shakedown.readiness import projection

pytestmark = pytest.mark.usefixtures("cheap_collections")
n = torch.neuron
KIB = 1024


@pytest.fixture(autouse=True)
def _no_limit_afterwards():
    yield
    n.set_per_process_memory_fraction(1.0)
    n.set_memory_limit(None)


def kib(count: int) -> torch.Tensor:
    return torch.ones(count, 256, device="neuron")


def leave(nbytes: int) -> None:
    """Only so much more than now; no garbage that making room would free."""
    gc.collect()
    n.set_memory_limit(n.memory_allocated() + nbytes)


def refused(fn, *args):
    """Call, and see that it is refused and that nothing is left of it."""
    held, ooms = n.memory_allocated(), n.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fn(*args)
    error = str(caught.value)
    del caught
    assert n.memory_allocated() == held
    assert n.memory_stats()["num_ooms"] == ooms + 1
    return error


def test_the_message_is_cudas():
    x = kib(2048)
    n.set_memory_limit(n.memory_allocated() + 1024 * KIB)
    held, limit = n.memory_allocated(), n.memory_limit()
    error = refused(lambda: x + 1)
    assert error.startswith(
        "Neuron out of memory. Tried to allocate 2.00 MiB. Device 0 has a total capacity of "
        f"{readable(limit)} of which 1.00 MiB is free. {readable(held)} is allocated by PyTorch."
    )
    assert "torch.neuron.set_memory_limit" in error
    assert issubclass(torch.OutOfMemoryError, RuntimeError)


OPERATORS = {
    "pointwise": lambda x: x + 1,
    "new sizes": lambda x: x[:, :1] * x[:1],
    "two results": lambda x: x.sort(),
    "list": lambda x: torch._foreach_mul([x, x], 2.0),
    "factory": lambda x: torch.zeros(8, 256, device="neuron"),
    "empty": lambda x: torch.empty(8, 256, device="neuron"),
    "huge": lambda x: torch.empty(1 << 50, device="neuron"),
    "upload": lambda x: torch.ones(8, 256).to("neuron"),
    "upload of a module": lambda x: nn.Linear(256, 8).to("neuron"),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.t().contiguous(),
    "resized": lambda x: torch.empty(0, device="neuron").resize_(8, 256),
    "out": lambda x: torch.add(x, 1, out=torch.empty(0, device="neuron")),
    "random": lambda x: torch.rand(8, 256, device="neuron"),
    "dropout": lambda x: nn.functional.dropout(x),
    "fallback": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
}


@pytest.mark.parametrize("fn", OPERATORS.values(), ids=OPERATORS)
def test_operators(fn):
    x = kib(8)
    if fn is not OPERATORS["huge"]:
        assert len(_flat(fn(x)))  # so that a plan is known, and nothing new is compiled below
    leave(KIB)
    state = n.get_rng_state()
    refused(fn, x)
    assert torch.equal(n.get_rng_state(), state)
    assert torch.equal(x.cpu(), torch.ones(8, 256))
    if fn is not OPERATORS["huge"]:
        leave(64 * KIB)
        assert len(_flat(fn(x)))


def _flat(value):
    if isinstance(value, nn.Module):
        return list(value.parameters())
    return list(value) if isinstance(value, (list, tuple)) else [value]


def test_a_first_call_is_refused_and_does_not_fall_back():
    x = torch.ones(7, 259, device="neuron")
    leave(KIB)
    n.clear_op_tracking()
    refused(lambda: x.cosh())
    assert n.get_fallback_ops() == []
    n.set_memory_limit(None)
    torch.testing.assert_close(x.cosh().cpu(), torch.ones(7, 259).cosh())


def test_what_needs_no_more_memory_goes_on():
    x = kib(8)
    leave(0)
    x.add_(1).mul_(2)
    x.copy_(torch.full((8, 256), 5.0))
    assert x[3, 4].item() == 5.0
    assert x.t()[3:].cpu().sum() == 5.0 * 8 * 253
    assert "5." in repr(x)


IN_NEED = {  # of working memory, by XLA's plan of their programs
    "softmax": lambda x: x.softmax(-1),
    "into a view": lambda x: x.t()[3:].add_(1),
    "sort": lambda x: x.sort(-1, descending=True)[0],
}


@pytest.mark.parametrize("fn", IN_NEED.values(), ids=IN_NEED)
@pytest.mark.parametrize("known", [True, False], ids=["again", "first"])
def test_the_working_memory_of_an_operator_counts(fn, known):
    size = 96 if known else 95  # of its own for each, so that the first call is one
    x = torch.arange(size * 256.0, device="neuron").view(size, 256)
    twin = x.cpu()
    if known:
        fn(x.clone())
    leave(8 * KIB)
    n.clear_op_tracking()
    refused(fn, x)
    assert torch.equal(x.cpu(), twin)
    assert n.get_fallback_ops() == []
    n.set_memory_limit(None)
    n.reset_peak_memory_stats()
    before = n.memory_allocated()
    made = fn(x)
    held = n.memory_allocated() - before
    needs = n.max_memory_allocated() - before
    assert needs > held
    torch.testing.assert_close(made.cpu(), fn(twin))
    del made
    leave(needs)
    fn(x)


def test_what_is_refused_leaves_its_output_alone():
    x, out = kib(8), torch.full((2,), 7.0, device="neuron")
    leave(KIB)
    refused(lambda: torch.mul(x, 2, out=out.resize_(0)))
    assert out.shape == (0,)
    target = torch.full((8, 256), 7.0, device="cpu")
    refused(lambda: x.copy_(x + 1))
    assert torch.equal(x.cpu(), torch.ones_like(target))


def test_garbage_is_collected_before_anything_is_refused():
    class Knot:
        pass

    knot, x = Knot(), kib(8)
    knot.self, knot.tensor = knot, kib(8)
    leave(0)
    gc.disable()
    try:
        del knot
        before = n.memory_stats()
        y = x + 1
        after = n.memory_stats()
    finally:
        gc.enable()
    n.set_memory_limit(None)
    assert y.sum().item() == 2 * y.numel()
    assert after["num_alloc_retries"] == before["num_alloc_retries"] + 1
    assert after["num_ooms"] == before["num_ooms"]


def test_reading_a_full_device():
    x = kib(256)
    leave(0)
    assert x.t()[5, 7].item() == 1.0
    assert torch.equal(x[::2, ::2].cpu(), torch.ones(128, 128))


def test_a_backward_pass_can_be_tried_again():
    x = kib(8).requires_grad_()
    loss = (x.exp() * x).sum()
    leave(9 * KIB)
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward(retain_graph=True)
    n.set_memory_limit(None)
    x.grad = None
    loss.backward()
    assert torch.allclose(x.grad.cpu(), torch.full((8, 256), 2 * torch.e))


def test_from_inside_hooks_and_functions_of_autograd():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    x = kib(8).requires_grad_()

    def hook(parameter: torch.Tensor) -> None:
        torch.empty(64, 256, device="neuron")

    x.register_post_accumulate_grad_hook(hook)
    y = Doubled.apply(x)
    y.register_hook(lambda grad: grad * 1)
    for extra in (8, 20, 30, 40):  # the hook on y, the function, the hook on x
        leave(extra * KIB)
        with pytest.raises(torch.OutOfMemoryError):
            y.sum().backward(retain_graph=True)
        x.grad = None
    n.set_memory_limit(None)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((8, 256), 2.0))


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_forward_and_backward():
    x = kib(8).requires_grad_()
    loss = torch.compile(lambda t: (t.exp() * t).sum(), backend="neuron")
    loss(x).backward()  # compiled here
    expected, x.grad = x.grad.cpu(), None
    leave(2)
    refused(loss, x)
    n.set_memory_limit(None)
    made = loss(x)
    leave(KIB)
    with pytest.raises(torch.OutOfMemoryError):
        made.backward()
    assert x.grad is None
    n.set_memory_limit(None)
    loss(x).backward()
    assert torch.equal(x.grad.cpu(), expected)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_compiled_function_that_writes_is_refused_before_it_does():
    x = kib(8)

    @torch.compile(backend="neuron")
    def write(t: torch.Tensor) -> torch.Tensor:
        t.add_(1)
        return t * 2

    write(x)
    leave(KIB)
    refused(write, x)
    assert torch.equal(x.cpu(), torch.full((8, 256), 2.0))
    n.set_memory_limit(None)
    assert torch.equal(write(x).cpu(), torch.full((8, 256), 6.0))


def steps(make):
    """A model and optimizer that were refused a step and then did two, beside the same two on the CPU."""
    torch.manual_seed(0)
    host = nn.Linear(64, 64)
    here = copy.deepcopy(host).to("neuron")
    return host, here, make(host.parameters()), make(here.parameters())


@pytest.mark.parametrize("foreach", [True, False])
def test_optimizers(foreach):
    host, here, slow, fast = steps(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=foreach))
    for module in (host, here):
        module(torch.ones(2, 64, device=module.weight.device)).pow(2).sum().backward()
    leave(KIB)
    with pytest.raises(torch.OutOfMemoryError):
        fast.step()
    n.set_memory_limit(None)
    fast.step()
    slow.step()
    torch.testing.assert_close(here.weight.cpu(), host.weight)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_compiled_step():
    host, here, slow, fast = steps(lambda p: torch.optim.AdamW(p, lr=0.1))

    def loss_of(module, x):
        return module(x).pow(2).mean()

    x = torch.ones(2, 64)
    step = compile_step(here, loss_of, fast)
    y = x.to("neuron")
    leave(20 * KIB)  # less than the optimizer's state
    with pytest.raises(torch.OutOfMemoryError):
        step(y)
    assert not any(fast.state.values())
    n.set_memory_limit(None)
    for _ in range(2):
        loss = step(y)
        slow.zero_grad()
        wanted = loss_of(host, x)
        wanted.backward()
        slow.step()
        torch.testing.assert_close(loss.cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)
    leave(0)
    refused(step, y)
    torch.testing.assert_close(here.weight.cpu(), host.weight.detach(), rtol=1e-4, atol=1e-4)


def test_fractions():
    _, total = n.mem_get_info()
    n.set_per_process_memory_fraction(0.5)
    assert n.memory_limit() == total // 2 == n.mem_get_info()[1] == torch.accelerator.get_memory_info()[1]
    n.set_memory_limit(1 << 20)
    assert n.memory_limit() == 1 << 19
    assert n.get_per_process_memory_fraction() == 0.5
    assert "50%" in refused(kib, 1024)
    n.set_per_process_memory_fraction(1.0)
    assert n.memory_limit() == 1 << 20
    n.set_memory_limit(None)
    assert n.memory_limit() is None
    for wrong, error in ((1.5, ValueError), (-0.1, ValueError), ("a", TypeError)):
        with pytest.raises(error):
            n.set_per_process_memory_fraction(wrong)
    with pytest.raises(ValueError):
        n.set_per_process_memory_fraction(0.5, "cpu")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, b"1GiB"])
def test_a_limit_is_a_number_of_bytes(wrong):
    with pytest.raises(ValueError, match="whole number of bytes"):
        n.set_memory_limit(wrong)


SIZES = [("25769803776", 24 << 30), ("24GiB", 24 << 30), ("1.5 kb", 1500), ("2 MiB", 2 << 20), ("7B", 7)]


@pytest.mark.parametrize(("text", "nbytes"), SIZES)
def test_the_variable(monkeypatch, text, nbytes):
    monkeypatch.setenv("SHAKEDOWN_MEMORY_LIMIT", text)
    assert config.MEMORY_LIMIT() == nbytes
    monkeypatch.setattr(memory_limit, "_chosen", False)
    assert (
        n.memory_limit() == nbytes == n.mem_get_info()[1] == n.get_device_properties().total_memory
    )  # before the first use
    memory_limit.limit_by_variable()
    monkeypatch.delenv("SHAKEDOWN_MEMORY_LIMIT")
    assert n.memory_limit() == nbytes == n.mem_get_info()[1] == n.get_device_properties().total_memory
    if nbytes < 10_000:
        assert "SHAKEDOWN_MEMORY_LIMIT" in refused(kib, 64)
    n.set_memory_limit(text)
    assert n.memory_limit() == nbytes


def test_the_memory_of_a_core(monkeypatch):
    """By the published figures that projections have: a core's share of its chip."""
    figures = projection.load()
    for instance in figures.instances:
        chip = figures.chip_of(instance)
        for name in (instance, chip.family):
            for cores in (1, 2):
                n.set_memory_limit(f"{name}:lnc{cores}")
                assert n.memory_limit() == chip.memory.value / chip.physical_cores.value * cores
            n.set_memory_limit(name.upper())
            assert n.memory_limit() == chip.memory.value / chip.logical_cores
    n.set_memory_limit("trn2")
    assert n.memory_limit() == 24 << 30
    assert "a limit, set by torch.neuron.set_memory_limit('trn2')." in refused(
        lambda: torch.empty(1 << 40, device="neuron")
    )
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    monkeypatch.setenv("SHAKEDOWN_MEMORY_LIMIT", "trn3")
    assert config.MEMORY_LIMIT() == 18 << 30
    assert set(core_memory.names()) == {"trn2", "trn3", *figures.instances}


@pytest.mark.parametrize(
    "text", ["0", "-3", "many", "3 parsec", "1e3", "trn1", "trn2:lnc0", "trn2:lnc3", "trn2:", "trn2:24GiB"]
)
def test_a_wrong_variable(monkeypatch, text):
    monkeypatch.setenv("SHAKEDOWN_MEMORY_LIMIT", text)
    known = "24GiB.*trn2, trn3, .*:lnc1 or :lnc2"
    with pytest.raises(ConfigError, match=f"SHAKEDOWN_MEMORY_LIMIT={text!r}.*{known}"):
        config.MEMORY_LIMIT()
    with pytest.raises(ValueError, match=f"{text!r}.*{known}"):
        n.set_memory_limit(text)
    assert n.memory_limit() is None


def test_more_than_the_machine_has():
    assert n.memory_limit() is None
    assert "memory of this machine" in refused(lambda: torch.empty(1 << 50, device="neuron"))


def test_other_devices_are_not_limited():
    n.set_memory_limit(1)
    assert torch.ones(100, 100).sum() == 10_000
    loader = torch.utils.data.DataLoader(list(range(8)), batch_size=4)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_finder_of_batch_sizes():
    finder = pytest.importorskip("accelerate.utils").find_executable_batch_size
    weight, tried = torch.ones(256, 256, device="neuron"), []
    leave(1024 * KIB)

    @finder(starting_batch_size=1024)
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        x = torch.ones(batch_size, 256, device="neuron")
        return (x @ weight).sum().item()

    assert train() == tried[-1] * 256 * 256
    assert tried == sorted(tried, reverse=True)
    assert len(tried) > 1  # 512 KiB of batch and as much of the result fit
    assert tried[-1] <= 512
