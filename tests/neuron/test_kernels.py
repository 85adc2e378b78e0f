"""Custom kernels: functions on JAX arrays as operators, in eager execution, torch.compile and whole steps."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import re
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torch.neuron import nki_op, wrap_nki
from torch.nn import functional as F

from shakedown.neuron import events
from shakedown.neuron.errors import KernelError

pytestmark = pytest.mark.rotating(2, least=3)

EXAMPLES = Path(__file__).parents[2] / "examples"


DOCS = Path(__file__).parents[2] / "docs"


def example(name: str) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


norms, attends = example("kernels_rms_norm"), example("kernels_attention")


def compiled(fn: Any) -> Any:
    return torch.compile(fn, backend="neuron", fullgraph=True)


MODES = pytest.mark.parametrize("mode", [lambda fn: fn, compiled], ids=["eager", "compile"])


def on_device(tensor: Tensor) -> Tensor:
    return tensor.detach().to("neuron").requires_grad_(tensor.requires_grad)


@pytest.fixture(autouse=True)
def _nothing_falls_back(fresh_dynamo: None) -> Any:
    yield
    assert not torch.neuron.get_fallback_ops()


def programs() -> int:
    """Compiled so far, or linked from the cache."""
    return events.total("compile")


# --- the examples -------------------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)], ids=["float32", "bfloat16"]
)
def test_the_rms_norm_is_pytorchs(mode, dtype, close):
    torch.manual_seed(0)
    x = torch.randn(3, 32, 5).to(dtype).transpose(1, 2).requires_grad_()  # strides that do not nest
    weight = torch.rand(32).to(dtype).requires_grad_()
    upstream = torch.randn(3, 5, 32).to(dtype)
    expected = F.rms_norm(x, (32,), weight, 1e-5)
    expected_grads = torch.autograd.grad(expected, (x, weight), upstream)

    there, weight_there = on_device(x), on_device(weight)
    assert there.stride() == x.stride()
    got = mode(lambda x, w: norms.rms_norm(x, w, 1e-5))(there, weight_there)
    grads = torch.autograd.grad(got, (there, weight_there), on_device(upstream))
    for ours, theirs in zip((got, *grads), (expected, *expected_grads)):
        assert ours.dtype == dtype
        assert ours.device.type == "neuron"
        torch.testing.assert_close(ours.cpu(), theirs, atol=close, rtol=close)


@MODES
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_the_attention_is_pytorchs(mode, causal):
    torch.manual_seed(0)
    q, k, v = (t.requires_grad_() for t in torch.randn(3, 1, 2, 128, 8))  # two blocks
    upstream = torch.randn(1, 2, 128, 8)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    expected_grads = torch.autograd.grad(expected, (q, k, v), upstream)
    there = tuple(map(on_device, (q, k, v)))
    got, sums = mode(lambda *qkv: attends.attention(*qkv, causal))(*there)
    assert sums.shape == (1, 2, 128)
    assert not sums.requires_grad
    grads = torch.autograd.grad(got, there, on_device(upstream))
    for ours, theirs in zip((got, *grads), (expected, *expected_grads)):
        torch.testing.assert_close(ours.cpu(), theirs, atol=3e-6, rtol=1e-5)


def test_the_attention_in_bfloat16_is_pytorchs():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 128, 8).to(torch.bfloat16)
    got, sums = attends.attention(*map(on_device, (q, k, v)), True)
    assert got.dtype == torch.bfloat16
    assert sums.dtype == torch.float32
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(got.cpu(), expected, atol=2e-2, rtol=2e-2)


class Decoder(torch.nn.Module):
    """One block, by the examples' kernels or (`plain`) by PyTorch's own functions."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = False
        self.embedding = torch.nn.Embedding(11, 16)
        self.norm, self.attention = norms.RMSNorm(16), attends.CausalSelfAttention(16, 2)
        self.head = torch.nn.Linear(16, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if not self.plain:
            return self.head(x + self.attention(self.norm(x)))
        normal = F.rms_norm(x, (16,), self.norm.weight, self.norm.eps)
        q, k, v = self.attention.project(normal).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        met = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.attention.out(met.transpose(1, 2).reshape(x.shape)))


def loss_of(model: Any, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def trained(model: Decoder, how: str, tokens: Tensor) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of three steps, and the parameters after them."""
    device = "cpu" if how == "reference" else "neuron"
    model = copy.deepcopy(model).to(device)
    model.plain = how == "reference"
    tokens = tokens.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if how == "compile_step":
        step = torch.neuron.compile_step(model, loss_of, optimizer)
        losses = [step(tokens).item() for _ in range(3)]
    else:
        forward, losses = compiled(model) if how == "compile" else model, []
        for _ in range(3):
            loss = loss_of(forward, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, {n: p.detach().cpu() for n, p in model.named_parameters()}


def test_a_decoder_of_the_examples_trains_as_its_reference_in_every_mode():
    torch.manual_seed(0)
    model, tokens = Decoder(), torch.randint(0, 11, (2, 9))
    expected, parameters = trained(model, "reference", tokens)
    for how in ("eager", "compile", "compile_step"):
        losses, ours = trained(model, how, tokens)
        assert losses == pytest.approx(expected, abs=1e-5), how
        for name, value in parameters.items():
            torch.testing.assert_close(
                ours[name], value, atol=1e-4, rtol=1e-4, msg=lambda m, n=name, how=how: f"{how} {n}: {m}"
            )
    assert {"examples::rms_norm", "examples::attention_backward"} <= set(torch.neuron.get_executed_ops())


@pytest.mark.parametrize("device", ["neuron", "cpu"])
def test_pytorchs_own_checks_of_an_operator_pass(device):
    # PyTorch checks the registration of autograd on CPU, CUDA and XPU only.
    utils = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    utils += ["test_autograd_registration"] if device == "cpu" else []
    x, weight = torch.randn(4, 8, device=device, requires_grad=True), torch.rand(8, device=device, requires_grad=True)
    qkv = [torch.randn(1, 2, 4, 4, device=device, requires_grad=True) for _ in range(3)]
    torch.library.opcheck(norms.rms_norm, (x, weight, 1e-5), test_utils=utils)
    torch.library.opcheck(attends.attention, (*qkv, True), test_utils=utils)
    events.clear()  # the check of schemas compares on the CPU


def test_the_example_of_the_page_runs():
    (source,) = re.findall(r"```python\n(.*?)```", (DOCS / "kernels.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    x, gate = torch.randn(2, 8)
    got = names["swiglu"](x.to("neuron"), gate.to("neuron"))
    torch.testing.assert_close(got.cpu(), x * F.silu(gate))


# --- wrapped kernels ------------------------------------------------------------------------------------------------------------


def scaled(x, y, factor=2.0, *, names=("sum", "parts"), dtype=None, grid=(1,)):
    total = (x * factor + y[0]).astype(dtype or x.dtype)
    return {names[0]: total, names[1]: (y[1], jnp.float32(grid[0]))}


@MODES
def test_a_wrapped_kernel_takes_and_returns_what_the_kernel_does(mode):
    x, a, b = torch.arange(6.0).view(2, 3), torch.ones(3), torch.tensor([True, False])
    kernel = wrap_nki(scaled)
    assert wrap_nki(scaled) is kernel
    assert kernel.__name__ == "scaled"
    got = mode(lambda x, a, b: kernel[7,](x, [a, b], dtype=torch.bfloat16))(*map(on_device, (x, a, b)))
    assert set(got) == {"sum", "parts"}
    assert type(got["parts"]) is tuple
    torch.testing.assert_close(got["sum"].cpu(), (x * 2 + 1).bfloat16())
    assert got["parts"][0].cpu().tolist() == [True, False]
    assert got["parts"][1].item() == 7
    assert mode is compiled or torch.neuron.get_executed_ops() == ["nki::scaled"]


def test_a_compiled_function_knows_kernels_and_grids_apart():
    def kernel_that_adds(number):
        def adds(x, grid=0):
            return x + number + 10 * grid

        return wrap_nki(adds)

    apply, x = compiled(lambda x, kernel: kernel(x)), torch.zeros(1, device="neuron")
    first, second = kernel_that_adds(1), kernel_that_adds(2)
    assert [apply(x, k).item() for k in (first, second, first[1], first[2], second[2])] == [1, 2, 11, 21, 22]


def test_constants_belong_to_the_key_and_equal_ones_compile_nothing():
    def power(x, n, negative=False):
        return -(x**n) if negative else x**n

    kernel, x = wrap_nki(power), torch.full((2,), 3.0, device="neuron")
    events.clear()
    assert kernel(x, 2).tolist() == [9, 9]
    before = programs()
    assert kernel(x + 0, n=2).tolist() == [9, 9]
    assert programs() == before + 1
    assert kernel(x, 3).tolist() == [27, 27]
    assert kernel(x, 2, True).tolist() == [-9, -9]
    assert programs() == before + 3


def test_a_kernel_may_be_a_partial_or_compiled_by_jax_or_a_method():
    class Holder:
        def times(self, x):
            return x * 3

    x = torch.ones(2, device="neuron")
    assert wrap_nki(partial(jnp.multiply, 2.0))(x).tolist() == [2, 2]
    assert wrap_nki(jax.jit(lambda x: x + 4))(x).tolist() == [5, 5]
    assert wrap_nki(Holder().times)(x).tolist() == [3, 3]


def test_a_wrapped_kernel_can_be_copied_and_pickled():
    kernel = wrap_nki(scaled)[3]
    for other in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert other.kernel is scaled
        assert other.grid == 3


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda k, x: k(x, object()), "argument 2 is a object; a kernel takes tensors, and plain values"),
        (lambda k, x: k(1.0, 2.0), "no argument is a tensor"),
        (lambda k, x: k(x), "missing a required argument: 'y'"),
        (lambda k, x: k[4](x, x), "no parameter 'grid'"),
        (lambda k, x: wrap_nki(3), "wrap_nki takes a function on arrays, not a int"),
    ],
)
def test_what_a_kernel_cannot_take_is_a_type_error(call, says):
    def add(x, y):
        return x + y

    with pytest.raises(TypeError) as raised:
        call(wrap_nki(add), torch.ones(2, device="neuron"))
    assert says in str(raised.value)


def test_an_error_in_a_kernel_names_it_its_arguments_and_the_line():
    def outer(x, y, scale=1.0):
        return jnp.dot(x, y) * scale

    @nki_op("kernels_test::outer")
    def operator(x: Tensor, y: Tensor) -> Tensor:
        return wrap_nki(outer)(x, y)

    x, y = torch.ones(2, 3, device="neuron"), torch.ones(4, device="neuron")
    for call in (wrap_nki(outer), operator, lambda *given: operator(*(t.cpu() for t in given))):
        with pytest.raises(KernelError) as raised:
            call(x, y)
        said = str(raised.value)
        assert said.startswith("kernel outer")
        assert "(x=float32[2, 3], y=float32[4], scale=1.0) failed at " in said
        assert f"{Path(__file__).name}:" in said
        assert "(`return jnp.dot(x, y) * scale`): TypeError: " in said
        assert isinstance(raised.value.__cause__, TypeError)
        shown = "".join(traceback.format_exception(raised.value))
        assert "site-packages/jax" not in shown
        assert "JAX has removed" not in shown
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=r"kernel outer\w*\(x=float32\[2, 3\]"):
        compiled(operator)(x, y)


# --- operators ------------------------------------------------------------------------------------------------------------


def weigh(xs, weights, bias):
    total = sum(x * w for x, w in zip(xs, weights))
    return (total if bias is None else total + bias), [x.astype(jnp.float64) for x in xs]


@nki_op("kernels_test::weighted")
def weighted(
    xs: list[Tensor],
    weights: list[float],
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    mean: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    total, wide = wrap_nki(weigh)(xs, tuple(weights), bias)
    return (total.mean() if mean else total).to(dtype), wide


@MODES
def test_lists_optional_tensors_constants_and_several_results(mode):
    xs = [torch.randn(3, 2).t(), torch.randn(2, 3)]
    for more in ({}, {"bias": torch.randn(3)}, {"dtype": torch.float16, "mean": True}):
        expected = 0.5 * xs[0] + 3.0 * xs[1] + more.get("bias", 0)
        expected = (expected.mean() if "mean" in more else expected).to(more.get("dtype", torch.float32))
        there = {n: v.to("neuron") if isinstance(v, Tensor) else v for n, v in more.items()}
        given = [x.to("neuron") for x in xs]
        total, wide = mode(lambda xs, there=there: weighted(xs, [0.5, 3.0], **there))(given)
        torch.testing.assert_close(total.cpu(), expected)
        assert [w.dtype for w in wide] == [torch.float64] * 2
        assert isinstance(wide, list)
        torch.testing.assert_close(wide[0].cpu(), xs[0].double())
        cpu_total, _ = weighted(xs, [0.5, 3.0], **more)
        torch.testing.assert_close(cpu_total, expected)


def test_an_operator_is_one_program_and_is_seen_by_its_name():
    seen: list[str] = []
    xs = [torch.ones(4, device="neuron"), torch.ones(4, device="neuron")]
    weighted(xs, [1.0, 1.0])
    events.clear()
    with events.subscribe(lambda event: seen.append(f"{event.kind} {event.name}")):
        weighted(xs, [1.0, 1.0])
    assert seen == ["execute kernels_test::weighted"]
    assert torch.neuron.get_executed_ops() == ["kernels_test::weighted"]
    weighted(xs, [2.0, 1.0])
    assert programs() == 1

    events.clear()
    graph = compiled(lambda a, b: weighted([a * 2, b], [1.0, 1.0])[0].relu() + 1)
    assert graph(*xs).tolist() == [4] * 4
    assert programs() == 1
    assert len(torch.neuron.get_executed_ops()) == 1


def bumped(x, y):
    return x + y, y * 2


@nki_op("kernels_test::bump_", mutates_args={"x"})
def bump_(x: Tensor, y: Tensor) -> Tensor:
    more, twice = wrap_nki(bumped)(x, y)
    x.copy_(more)
    return twice


@MODES
def test_what_an_operator_writes_is_seen_through_every_view(mode):
    base, twin = torch.zeros(4, 3), torch.zeros(4, 3, device="neuron")

    def use(base, y, write):
        view = base[1:3].t()
        twice = write(view, y)
        return view.sum() + twice.sum(), base * 10

    y = torch.arange(6.0).view(3, 2)
    expected = use(base, y, lambda x, y: (x.add_(y), y * 2)[1])
    before = twin._version
    got = mode(lambda base, y: use(base, y, bump_))(twin, y.to("neuron"))
    for ours, theirs in zip((*got, twin), (*expected, base)):
        torch.testing.assert_close(ours.cpu(), theirs)
    assert twin._version > before


def test_pytorchs_own_checks_pass_for_an_operator_that_writes():
    utils = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(bump_, (torch.ones(3, device="neuron"), torch.ones(3, device="neuron")), test_utils=utils)
    events.clear()


def test_memory_that_is_written_must_not_be_read_by_another_name():
    x = torch.zeros(4, device="neuron")
    with pytest.raises(RuntimeError, match="'x' and 'y' share memory"):
        bump_(x[:2], x[2:])
    with pytest.raises(KernelError, match="overlaps itself"):
        bump_(x[:1].expand(3), torch.ones(3, device="neuron"))
    assert x.tolist() == [0] * 4


def test_a_result_must_be_new():
    @nki_op("kernels_test::same")
    def same(x: Tensor) -> Tensor:
        return x.view(-1)

    with pytest.raises(RuntimeError, match="may not alias any inputs"):
        same(torch.ones(2, device="neuron"))


def test_an_operator_that_is_no_program_is_an_error_and_not_a_fallback():
    @nki_op("kernels_test::draws")
    def draws(x: Tensor) -> Tensor:
        return torch.rand_like(x)

    with pytest.raises(KernelError, match="kernels_test::draws cannot be a program of the device: .* random"):
        draws(torch.ones(2, device="neuron"))


def test_a_failing_check_of_values_raises_pytorchs_error():
    @nki_op("kernels_test::pick")
    def pick(x: Tensor, index: Tensor) -> Tensor:
        return wrap_nki(weigh)([x[index]], (1.0,), None)[0]

    x = torch.arange(3.0, device="neuron")
    assert pick(x, torch.tensor([2, 0], device="neuron")).tolist() == [2, 0]
    for call in (pick, compiled(lambda x, i: pick(x, i) * 2)):
        with pytest.raises(IndexError, match="out of bounds|out of range"):
            call(x, torch.tensor([0, 7], device="neuron"))


def test_a_registered_fake_kernel_is_used_and_must_be_right():
    @nki_op("kernels_test::half")
    def half(x: Tensor) -> Tensor:
        return wrap_nki(weigh)([x], (0.5,), None)[0]

    x = torch.ones(2, 2, device="neuron").t()
    half.register_fake(lambda x: x.new_empty(x.shape))
    assert half(x).is_contiguous()
    assert half(x).tolist() == [[0.5, 0.5]] * 2
    half.register_fake(lambda x: x.new_empty(5))
    with pytest.raises(KernelError, match=r"float32\[3\], but its fake kernel \(register_fake\) says float32\[5\]"):
        half(torch.ones(3, device="neuron"))


def test_other_registrations_are_pytorchs():
    @nki_op("kernels_test::triple")
    def triple(x: Tensor) -> Tensor:
        return wrap_nki(weigh)([x], (3.0,), None)[0]

    triple.register_vmap(lambda info, dims, x: (triple(x), dims[0]))
    triple.register_kernel("cpu")(lambda x: x * 300)
    triple.register_autocast("neuron", torch.bfloat16)
    x = torch.ones(2, 3, device="neuron")
    assert torch.vmap(triple)(x).tolist() == [[3, 3, 3]] * 2
    assert triple(torch.ones(1)).tolist() == [300]
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert triple(x).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="no autograd formula"):
        triple(x.requires_grad_()).sum().backward()


@pytest.mark.parametrize("name", ["plain", "ns::", "a::b::c", "1::x", 3])
def test_a_name_is_a_namespace_and_a_name(name):
    with pytest.raises((ValueError, TypeError), match="namespace::name"):
        nki_op(name)(lambda x: x)


def test_a_kernel_with_annotations_is_an_operator_by_itself():
    def negated(x: Tensor, by: float = 1.0) -> Tensor:
        return -x * by

    operator = nki_op("kernels_test::negated", wrap_nki(negated))
    assert str(operator._opoverload._schema) == "kernels_test::negated(Tensor x, float by=1.) -> Tensor"
    x = torch.arange(3.0)
    torch.testing.assert_close(operator(x.to("neuron"), 2.0).cpu(), -x * 2)
    torch.testing.assert_close(operator(x, 2.0), -x * 2)
