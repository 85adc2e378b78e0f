"""``torch.autocast("neuron")``: each operator of CUDA's lists, by PyTorch's own samples, and regions in each other."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shakedown.neuron import events
from shakedown.neuron.autocast import FLOAT32, FLOAT32_RESULT, LOWER_PRECISION, WIDEST

from .twins import compiled

pytestmark = pytest.mark.rotating(2, least=3)

try:
    from torch.testing._internal.autocast_test_lists import AutocastTestLists
except ModuleNotFoundError as error:  # PyTorch's test helpers need a package that is not installed with it
    if error.name != "expecttest":
        raise
    AutocastTestLists = None

# list of PyTorch's -> (where its operators live; None: methods), the dtype that they compute in
_LISTS: dict[str, tuple[Any, torch.dtype]] = {
    "torch_fp16": (torch, torch.float16),
    "torch_fp32": (torch, torch.float32),
    "torch_need_autocast_promote": (torch, torch.float32),
    "torch_expect_builtin_promote": (torch, torch.float32),
    "nn_fp16": (torch._C._nn, torch.float16),
    "nn_fp32": (torch._C._nn, torch.float32),
    "linalg_fp16": (torch._C._linalg, torch.float16),
    "methods_fp16": (None, torch.float16),
    "methods_fp32": (None, torch.float32),
    "methods_expect_builtin_promote": (None, torch.float32),
}


def _cases() -> dict[str, tuple[str, int]]:
    if AutocastTestLists is None:
        return {}
    torch.manual_seed(0)
    lists = AutocastTestLists("cpu")
    found = {}
    for kind in _LISTS:
        for number, entry in enumerate(getattr(lists, kind)):
            if not entry[0].startswith("cudnn_") and entry[0] not in ("einsum", "__div__"):
                found[f"{kind}:{entry[0]}:{number}"] = kind, number
    return found


_CASES = _cases()


def _map(tree: Any, fn: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return fn(tree)
    return type(tree)(_map(v, fn) for v in tree) if isinstance(tree, (list, tuple)) else tree


def _tensors(tree: Any) -> list[Any]:
    return [v for item in tree for v in _tensors(item)] if isinstance(tree, (list, tuple)) else [tree]


@pytest.fixture(scope="module")
def lists() -> Any:
    torch.manual_seed(0)
    return AutocastTestLists("cpu")


@pytest.mark.filterwarnings("ignore")  # PyTorch's samples call what is deprecated
@pytest.mark.rotating(3)
@pytest.mark.parametrize("case", _CASES)
def test_an_operator_of_cudas_lists(lists, case):
    """Its result has CUDA's dtype, and the values of the same operator on inputs that were cast by hand."""
    kind, number = _CASES[case]
    module, dtype = _LISTS[kind]
    name, args, *rest = getattr(lists, kind)[number]
    named = next((r for r in rest if isinstance(r, dict)), {})
    expected = next((r for r in rest if isinstance(r, torch.dtype)), dtype)
    args = _map(args, lambda t: t.to("neuron"))
    by_hand = _map(args, lambda t: t.to(dtype) if t.is_floating_point() else t)

    def call(given: Any) -> list[Any]:
        function = getattr(given[0], name) if module is None else getattr(module, name)
        return _tensors(function(*(given[1:] if module is None else given), **named))

    events.clear()
    with torch.autocast("neuron"):
        ours = call(args)
        with torch.autocast("neuron", enabled=False):
            theirs = call(by_hand)
    assert not torch.neuron.get_fallback_ops()
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(a, torch.Tensor):
            assert a == b
            continue
        assert a.dtype is expected
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


def test_no_operator_of_pytorchs_header_is_missing():
    """The lists are read from the header that devices in C++ are built from."""
    import re
    from pathlib import Path

    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()

    def listed(macro: str) -> set[str]:
        body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*\n)", header)
        assert body is not None
        entries = re.findall(r"_\(([\w, ]+)\)", body.group(1))
        return {".".join(part.strip() for part in e.split(",")) for e in entries}

    ours = set(LOWER_PRECISION)
    assert ours - listed("AT_FORALL_LOWER_PRECISION_FP") == {
        f"{layer}.{form}" for layer in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data")
    }
    assert listed("AT_FORALL_LOWER_PRECISION_FP") <= ours
    assert listed("AT_FORALL_FP32") == set(FLOAT32)
    assert listed("AT_FORALL_FP32_SET_OPT_DTYPE") == set(FLOAT32_RESULT)
    assert listed("AT_FORALL_PROMOTE") == set(WIDEST)


def pair(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(2, 2, device="neuron", dtype=dtype), torch.ones(2, 2, device="neuron", dtype=dtype)


def test_regions_in_each_other():
    a, b = pair()
    assert not torch.is_autocast_enabled("neuron")
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("neuron")
        assert (a @ b).dtype is torch.get_autocast_dtype("neuron") is torch.bfloat16
        with torch.autocast("neuron", dtype=torch.float16):
            assert (a @ b).dtype is torch.float16
            with torch.autocast("neuron", enabled=False):
                assert (a @ b).dtype is torch.float32
                with torch.autocast("neuron", dtype=torch.bfloat16):
                    assert (a @ b).dtype is torch.bfloat16
                assert not torch.is_autocast_enabled("neuron")
            with torch.autocast("cpu"):  # another device's regions are its own
                assert (a @ b).dtype is torch.float16
        assert (a @ b).dtype is torch.bfloat16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    assert (a @ b).dtype is torch.float32
    with pytest.raises(ZeroDivisionError), torch.autocast("neuron"):
        1 / 0
    assert not torch.is_autocast_enabled("neuron")


def test_the_default_dtype():
    a, b = pair()
    assert torch.get_autocast_dtype("neuron") is torch.float16  # as CUDA's
    try:
        torch.set_autocast_dtype("neuron", torch.bfloat16)
        with torch.autocast("neuron"):
            assert (a @ b).dtype is torch.bfloat16
    finally:
        torch.set_autocast_dtype("neuron", torch.float16)
    with torch.autocast("neuron"):
        assert (a @ b).dtype is torch.float16
    torch.set_autocast_enabled("neuron", True)
    try:
        assert (a @ b).dtype is torch.float16
    finally:
        torch.set_autocast_enabled("neuron", False)
    with torch.autocast("neuron", dtype=torch.float32):
        assert (a.half() @ b.half()).dtype is torch.float32


def test_a_dtype_that_is_not_supported_warns_and_disables():
    a, b = pair()
    with pytest.warns(UserWarning, match=r"only supports dtypes of torch\.float32, torch\.float16, torch\.bfloat16"):
        region = torch.autocast("neuron", dtype=torch.float64)
    with region:
        assert not torch.is_autocast_enabled("neuron")
        assert (a @ b).dtype is torch.float32


def test_it_is_each_threads_own():
    a, b = pair()
    seen = []
    with torch.autocast("neuron"):
        thread = threading.Thread(target=lambda: seen.append((a @ b).dtype))
        thread.start()
        thread.join()
    assert seen == [torch.float32]


def test_as_a_decorator():
    @torch.autocast("neuron", dtype=torch.bfloat16)
    def product(a, b):
        return a @ b

    assert product(*pair()).dtype is torch.bfloat16
    with torch.autocast("neuron", enabled=False):
        assert product(*pair()).dtype is torch.bfloat16


def test_what_is_left_alone():
    """Doubles, whole numbers, tensors of the CPU, outputs that were given, and operators that write in place."""
    a, b = pair()
    with torch.autocast("neuron"):
        assert (a.double() @ b.double()).dtype is torch.float64
        assert (a.long() * 2).sum().dtype is torch.int64
        assert torch.exp(torch.ones(2, dtype=torch.float16)).dtype is torch.float16
        out = torch.empty(2, 2, device="neuron")
        assert torch.mm(a, b, out=out).dtype is torch.float32
        assert a.clone().addmm_(a, b).dtype is torch.float32
        with pytest.raises(RuntimeError):
            a.half().addmm_(a, b)
        assert (
            torch.softmax(a.half(), 0, dtype=torch.float16).dtype is torch.float16
        )  # a dtype that is asked for stands
        assert torch.einsum("ab,bc->ac", a, b).dtype is torch.float16
        assert F.scaled_dot_product_attention(*[torch.ones(1, 1, 4, 4, device="neuron")] * 3).dtype is torch.float16


def test_binary_cross_entropy_is_banned():
    p = torch.full((3,), 0.5, device="neuron")
    for call in (lambda: F.binary_cross_entropy(p, p), lambda: nn.BCELoss()(p, p)):
        with torch.autocast("neuron"), pytest.raises(RuntimeError, match="safe to autocast") as error:
            call()
        assert "torch.nn.BCEWithLogitsLoss" in str(error.value)
        with torch.autocast("neuron", enabled=False):
            call()
    with torch.autocast("neuron"):
        assert F.binary_cross_entropy_with_logits(p.half(), p.half()).dtype is torch.float32


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "packed"])
def test_whole_recurrent_layers_run_in_the_lower_precision(kind):
    """As CUDA's do; inputs in float32, weights too, and their gradients come back in float32."""
    torch.manual_seed(0)
    layer = getattr(nn, "RNN" if kind == "packed" else kind)(4, 6, batch_first=True).to("neuron")
    x = torch.randn(2, 3, 4, device="neuron", requires_grad=True)
    given = nn.utils.rnn.pack_padded_sequence(x, [3, 2], batch_first=True) if kind == "packed" else x
    with torch.autocast("neuron", dtype=torch.bfloat16):
        y, state = layer(given)
    y = y.data if kind == "packed" else y
    states = state if isinstance(state, tuple) else (state,)
    assert {y.dtype, *(s.dtype for s in states)} == {torch.bfloat16}
    full = layer(given)[0]
    torch.testing.assert_close(y.float(), full.data if kind == "packed" else full, rtol=0.05, atol=0.02)
    y.float().sum().backward()
    assert {x.grad.dtype, *(p.grad.dtype for p in layer.parameters())} == {torch.float32}


class Scaled(torch.autograd.Function):
    """Asserts in what precision each half is run."""

    seen: ClassVar[list[tuple[bool, torch.dtype]]] = []

    @staticmethod
    @torch.amp.custom_fwd(device_type="neuron", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        Scaled.seen.append((torch.is_autocast_enabled("neuron"), x.dtype))
        return x @ w

    @staticmethod
    @torch.amp.custom_bwd(device_type="neuron")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        Scaled.seen.append((torch.is_autocast_enabled("neuron"), grad.dtype))
        return grad @ w.t(), x.t() @ grad


class AsOutside(torch.autograd.Function):
    """Without ``cast_inputs``: both halves run with the state that the forward was called in."""

    seen: ClassVar[list[tuple[bool, torch.dtype]]] = []

    @staticmethod
    @torch.amp.custom_fwd(device_type="neuron")
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        y = x @ w
        AsOutside.seen.append((torch.is_autocast_enabled("neuron"), y.dtype))
        return y

    @staticmethod
    @torch.amp.custom_bwd(device_type="neuron")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        g = grad @ w.t()
        AsOutside.seen.append((torch.is_autocast_enabled("neuron"), g.dtype))
        return g, x.t() @ grad


def test_custom_functions():
    for function, wanted in (
        (Scaled, [(False, torch.float32), (False, torch.float32)]),
        (AsOutside, [(True, torch.bfloat16), (True, torch.bfloat16)]),
    ):
        function.seen.clear()
        a, b = (t.bfloat16().requires_grad_() for t in pair())
        with torch.autocast("neuron", dtype=torch.bfloat16):
            y = function.apply(a, b)
        y.sum().backward()
        assert function.seen == wanted
        assert torch.equal(a.grad, torch.full((2, 2), 2.0, device="neuron", dtype=torch.bfloat16))
    function.seen.clear()
    a, b = (t.requires_grad_() for t in pair())
    AsOutside.apply(a, b).sum().backward()
    assert AsOutside.seen == [(False, torch.float32), (False, torch.float32)]


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_as_eager():
    """Regions in each other within one graph, and a recurrent cell; dtypes and values are eager's."""
    torch.manual_seed(0)
    cell, x = nn.LSTMCell(4, 4).to("neuron"), torch.randn(2, 4, device="neuron")

    def mixed(x):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            a = x @ x.t()
            with torch.autocast("neuron", enabled=False):
                b = x @ x.t()
            with torch.autocast("neuron", dtype=torch.float16):
                c = x @ x.t()
            h, state = cell(x)
            return a, b, c, h, state, torch.exp(a), torch.cat([a, b]), torch.addcmul(a, b, b)

    eager, graph = mixed(x), compiled(mixed)(x)
    dtypes = [torch.bfloat16, torch.float32, torch.float16, torch.bfloat16, torch.bfloat16, *[torch.float32] * 3]
    assert [t.dtype for t in eager] == [t.dtype for t in graph] == dtypes
    for ours, theirs in zip(graph, eager):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
