"""Pointwise operators, activations, losses and tensor lists: the CPU's values and dtypes, and no fallback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

from shakedown.conformance import checks, databases
from shakedown.conformance.compare import TOLERANCE
from shakedown.conformance.results import BAD
from shakedown.neuron import dispatch, events
from shakedown.neuron.lowering import registry

from . import grids

pytestmark = pytest.mark.rotating(2, least=3)

FAMILIES = {"activation", "compare", "elementwise", "pointwise", "special", "unary"}
OTHERS_THAN_FLOAT32 = (torch.bfloat16, torch.int64, torch.bool, torch.complex64)

# Inputs whose answer we do not take from the CPU, with what is wrong with it there.
UNSPECIFIED: dict[str, Callable[..., torch.Tensor]] = {
    "gelu": lambda x, **_: x == torch.inf,  # the vector kernel gives NaN, the scalar one infinity
    "elu_backward": lambda g, *rest: rest[-1].isnan(),  # float32 gives NaN, half types the gradient
    "hardswish_backward": lambda g, x: x.isnan(),  # likewise
    "logit_backward": lambda g, x, eps: x.isnan() | ((x == 0) & g.isinf()),
    "pow.Tensor_Tensor": lambda x, e: (
        (x == 0) & (e == 0) & torch.tensor(x.is_complex())
    ),  # NaN, or 1 in the scalar kernel
    "polygamma": lambda n, x: (
        (x.double() <= 0) & (x.double() == x.double().floor())
    ),  # a pole, where trigamma's reflection gives a large number
}


def _pointwise() -> list[torch._ops.OpOverload]:
    """Every lowered operator of these families that maps tensors to tensors without side effects or randomness."""
    torch.empty(1, device="neuron").add(1)  # loads the lowerings

    def fits(op: torch._ops.OpOverload) -> bool:
        found = registry.lowering_of(op)
        assert found is not None
        family = found.fn.__module__.rpartition(".")[2]
        kinds = [str(a.type) for a in op._schema.arguments]
        return (
            family in FAMILIES
            and not found.random
            and registry.functional_of(op) is op
            and not any("List[Tensor]" in k or "List[Optional" in k for k in kinds)
            and not op._schema.name.startswith("aten::glu")
            and op._schema.name not in ("aten::_to_copy", "aten::copy")
        )

    return [op for op in registry.lowered() if fits(op)]


def _name(op: torch._ops.OpOverload) -> str:
    return str(op).removeprefix("aten.").removesuffix(".default")


def _on_device(value: Any) -> Any:
    return value.to("neuron") if isinstance(value, torch.Tensor) else value


def _awkward(op: torch._ops.OpOverload, dtype: torch.dtype, most: int) -> int:
    """How many results of `most` calls of `op` at most were compared: none, where the CPU does not take this dtype."""
    name, compared = _name(op), 0
    for args, kwargs in grids.calls(op, dtype)[:most]:
        try:
            want = op(*args, **kwargs)
        except Exception:
            continue
        events.clear()
        got = op(*map(_on_device, args), **{n: _on_device(v) for n, v in kwargs.items()})
        if name.startswith(("__lshift__", "__rshift__")) and dtype is torch.bool:
            continue  # only the meta kernel refuses bool here, so the call is a fallback
        assert events.names("fallback") == [], (dtype, events.snapshot())
        for g, w in zip(_as_tuple(got), _as_tuple(want), strict=True):
            if name == "pow.Tensor_Scalar" and dtype is torch.bool:
                continue  # the meta kernel promotes to int64, the CPU's does not
            _compare(name, g.cpu(), w, args, kwargs)
            compared += 1
    return compared


@pytest.mark.rotating(2)
@pytest.mark.parametrize("op", _pointwise(), ids=_name)
def test_every_combination_of_awkward_values(op: torch._ops.OpOverload) -> None:
    """In float32, or else in the first of the other dtypes that the CPU takes."""
    assert _awkward(op, torch.float32, 4) or any(_awkward(op, dtype, 1) for dtype in OTHERS_THAN_FLOAT32), (
        f"the CPU accepted none of the calls made for {_name(op)}"
    )


@pytest.mark.rotating(8)
@pytest.mark.parametrize("dtype", OTHERS_THAN_FLOAT32, ids=str)
@pytest.mark.parametrize("op", _pointwise(), ids=_name)
def test_awkward_values_of_other_dtypes(op: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    if not _awkward(op, dtype, 1):
        pytest.skip("the CPU does not take this dtype")


def _as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _compare(name: str, got: torch.Tensor, want: torch.Tensor, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if name in UNSPECIFIED:
        keep = ~UNSPECIFIED[name](*args, **kwargs)
        got, want = got[keep], want[keep]
    rtol, atol = TOLERANCE.get(want.dtype, (0, 0))
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{args}, {kwargs}\n{m}")


# --- programs ---------------------------------------------------------------------------------------------------------


def _operations(op: torch._ops.OpOverload, call: Callable[[], Any]) -> list[str]:
    """Primitives of the program that `call` runs `op` with, without the reshapes around it."""
    plans = dispatch.operator_of(op).plans
    plans.clear()
    call()
    ((_, plan),) = plans.items()
    inputs = [jax.ShapeDtypeStruct((12,) if kind == "buffer" else (), "float32") for kind in plan.program.parameters]
    jaxpr = jax.make_jaxpr(plan.program)(*inputs)
    return [e.primitive.name for e in jaxpr.jaxpr.eqns if e.primitive.name not in ("reshape", "convert_element_type")]


def test_simple_operators_are_single_operations() -> None:
    x, y = torch.ones(3, 4, device="neuron"), torch.ones(3, 4, device="neuron")
    aten = torch.ops.aten
    assert _operations(aten.add.Tensor, lambda: x + y) == ["add"]
    assert _operations(aten.sub.Tensor, lambda: x - y) == ["sub"]
    assert _operations(aten.mul.Tensor, lambda: x * y) == ["mul"]
    assert _operations(aten.div.Tensor, lambda: x / y) == ["div"]
    assert _operations(aten.tanh.default, lambda: torch.tanh(x)) == ["tanh"]
    assert _operations(aten.pow.Tensor_Scalar, lambda: x**2) == ["mul"]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, n: x * n,
        lambda x, n: n - x,
        lambda x, n: x.add(x, alpha=n),
        lambda x, n: x.clamp(-n, n),
        lambda x, n: x**n,
        lambda x, n: x > n,
        lambda x, n: torch.where(x > 0, x, n),
        lambda x, n: x.masked_fill(x > 0, n),
        lambda x, n: torch.nn.functional.elu(x, n),
        lambda x, n: torch.nn.functional.huber_loss(x, x + 1, delta=n),
        lambda x, n: torch._foreach_mul([x, x], [n, n + 1]),
        lambda x, n: torch._foreach_addcmul([x, x], [x, x], [x, x], n),
    ],
)
def test_another_number_compiles_nothing(call: Callable[[torch.Tensor, float], Any]) -> None:
    x = torch.linspace(0.5, 2, 6, device="neuron")
    call(x, 0.3)
    events.clear()
    call(x, 0.7)
    assert events.total("compile") == 0
    assert events.names("fallback") == []


# --- gradients --------------------------------------------------------------------------------------------------------

_F = "nn.functional."
# fmt: off
DIFFERENTIABLE = (
    "relu", "leaky_relu", "prelu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardtanh", "hardswish",
    "hardsigmoid", "softplus", "softshrink", "hardshrink", "threshold", "glu", "logsigmoid", "relu6",
    "softsign", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "cross_entropy",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss", "multi_margin_loss",
    "multilabel_margin_loss", "kl_div", "margin_ranking_loss", "poisson_nll_loss", "gaussian_nll_loss",
)
# fmt: on
# fmt: off
OTHERS = (
    "sigmoid", "logit", "tanh", "pow", "clamp", "maximum", "lerp", "where", "masked_fill", "lgamma", "atan2",
    "hypot", "xlogy",
)
# fmt: on


def _entries(name: str) -> list[databases.Entry]:
    return [e for e in databases.entries("op_db") if e.info.name == name]


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", [*(_F + n for n in DIFFERENTIABLE), *OTHERS])
def test_values_and_gradients_of_the_operator_database(name: str) -> None:
    rows = []
    for entry in _entries(name):
        made = databases.samples(entry, torch.float32, gradients=True)
        for n in databases.spread(len(made), 3):
            rows += list(checks.Bench(entry, torch.float32, "eager").sample(n, made[n], gradients=True, variants=False))
    assert [r.message for r in rows if r.status in BAD] == []
    ours = {registry.overload(n.removeprefix("aten::")) for r in rows for n in r.fallbacks if n.startswith("aten::")}
    assert not ours & set(registry.lowered()), ours
    assert any(r.status == "native" for r in rows)


POLYNOMIALS = sorted({e.info.name for e in databases.entries("op_db") if "_polynomial_" in e.name})


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    (entry,) = _entries(name)
    made = databases.samples(entry, torch.float32, gradients=False)
    for n in databases.spread(len(made), 2):
        (row,) = checks.Bench(entry, torch.float32, "eager").sample(n, made[n], gradients=False, variants=False)
        assert (row.status, row.message) == ("native", "")
    x, degree = torch.rand(4), torch.tensor([0.0, torch.inf, -1.0, torch.nan])
    function = getattr(torch.special, name.removeprefix("special."))
    assert function(x.to("neuron"), degree.to("neuron")).tolist() == [1, 0, 0, 0]


# --- in place and into given tensors ----------------------------------------------------------------------------------

VARIANTS = [
    ("add", (torch.tensor([4, 5, 6]),), {}),
    ("mul", (2.5,), {}),
    ("div", (torch.tensor([3.0, 4.0, 5.0]),), {"rounding_mode": "floor"}),
    ("pow", (3,), {}),
    ("clamp", (-0.5, 1), {}),
    ("lt", (0.25,), {}),
    ("logical_not", (), {}),
    ("exp", (), {}),
    ("nan_to_num", (1.0,), {}),
    ("lerp", (torch.tensor([1.0, 2.0, 3.0]), 0.25), {}),
    ("addcdiv", (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 4.0])), {"value": 0.5}),
    ("xlogy", (torch.tensor([1.0, 2.0, 3.0]),), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), VARIANTS, ids=[v[0] for v in VARIANTS])
def test_in_place_and_out_forms(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def run(device: str) -> list[torch.Tensor]:
        """Results of a write into every second column, and into an `out` that must grow."""
        base = torch.tensor([[1.0, -2.0, 0.5, torch.nan, -0.25, 3.0]] * 2).to(device)
        moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in args]
        written = base[:, ::2]
        returned = getattr(written, f"{name}_")(*moved, **kwargs)
        assert returned is written
        result = getattr(torch, name)(base[:, 1::2], *moved, **kwargs)
        out = torch.empty(0, dtype=result.dtype, device=device)
        assert getattr(torch, name)(base[:, 1::2], *moved, **kwargs, out=out) is out
        return [base.cpu(), result.cpu(), out.cpu()]

    want = run("cpu")
    events.clear()
    for got, expected in zip(run("neuron"), want, strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)
    assert events.names("fallback") == []


def test_in_place_results_must_fit() -> None:
    for device in ("cpu", "neuron"):
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            torch.ones(2, dtype=torch.int64, device=device).add_(0.5)
        with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
            torch.ones(2, dtype=torch.int64, device=device) ** -1


# --- lists of tensors -------------------------------------------------------------------------------------------------


def _lists(count: int) -> list[list[torch.Tensor]]:
    torch.manual_seed(5)
    sizes = [(3,), (2, 4), (), (1, 5)]
    return [[torch.rand(s) + 0.25 for s in sizes] for _ in range(count)]


_NUMBERS = [0.5, 2.0, 3, -1.5]
# fmt: off
_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "clone", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign",
    "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "max", "norm",
)
# fmt: on
_BINARY = ["add", "sub", "mul", "div", "clamp_max", "clamp_min", "maximum", "minimum", "pow"]


def _list_calls() -> dict[str, Callable[[str, Callable[[Any], Any]], Any]]:
    """name of the call -> (suffix for the in-place form, how to move an argument) -> its result."""
    a, b, c = _lists(3)
    weights = [t.clamp(0, 1) for t in b]
    calls: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {n: (n, (a,), {}) for n in _UNARY}
    for n in _BINARY:
        calls[f"{n}.List"] = (n, (a, b), {})
        calls[f"{n}.Scalar"] = (n, (a, 1.5), {})
        calls[f"{n}.ScalarList"] = (n, (a, _NUMBERS), {})
    for n in ("add", "mul", "div"):
        calls[f"{n}.Tensor"] = (n, (a, torch.tensor(1.5)), {})
    calls["add.List alpha"] = ("add", (a, b), {"alpha": 0.5})
    calls["sub.List alpha"] = ("sub", (a, b), {"alpha": 0.5})
    calls["pow.Scalar 2"] = ("pow", (a, 2), {})
    calls["pow.ScalarAndTensor"] = ("pow", (2.0, a), {})
    for n in ("addcmul", "addcdiv"):
        calls[f"{n}.Scalar"] = (n, (a, b, c), {"value": 0.5})
        calls[f"{n}.ScalarList"] = (n, (a, b, c), {"scalars": _NUMBERS})
        calls[f"{n}.Tensor"] = (n, (a, b, c), {"scalars": torch.tensor(_NUMBERS)})
    calls["lerp.Scalar"] = ("lerp", (a, b, 0.25), {})
    calls["lerp.List"] = ("lerp", (a, b, weights), {})
    calls["lerp.ScalarList"] = ("lerp", (a, b, [0.1, 0.6, 0.3, 0.9]), {})
    for order in (1, 2, 3, float("inf")):
        calls[f"norm.{order}"] = ("norm", (a, order), {})
    calls["norm.dtype"] = ("norm", (a, 2), {"dtype": torch.float64})
    calls["powsum"] = ("powsum", (a, 2), {})

    def runner(n: str, args: Any, kwargs: Any) -> Callable[[str, Callable[[Any], Any]], Any]:
        return lambda suffix, move: getattr(torch, f"_foreach_{n}{suffix}")(*map(move, args), **kwargs)

    return {name: runner(*call) for name, call in calls.items() if hasattr(torch, f"_foreach_{call[0]}")}


def _copied(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone().to(device)
    return [_copied(v, device) for v in value] if isinstance(value, list) else value


def _is_composite(name: str) -> bool:
    return registry.composite_of(registry.overload(name.removeprefix("aten::"))) is not None


_WITHOUT_IN_PLACE = ("clone", "max", "norm", "powsum", "pow.ScalarAndTensor")


@pytest.mark.rotating(2)
@pytest.mark.parametrize("name", _list_calls())
def test_lists_of_tensors(name: str) -> None:
    call = _list_calls()[name]
    for suffix in ("",) if name.startswith(_WITHOUT_IN_PLACE) else ("", "_"):
        moved: dict[str, list[Any]] = {"cpu": [], "neuron": []}

        def move(value: Any, device: str, moved: dict[str, list[Any]] = moved) -> Any:
            made = _copied(value, device)
            moved[device].append(made)
            return made

        want = call(suffix, functools.partial(move, device="cpu"))
        call(suffix, functools.partial(move, device="neuron"))  # so that what follows only runs
        moved["neuron"].clear()
        events.clear()
        got = call(suffix, functools.partial(move, device="neuron"))
        ran = [r for r in events.snapshot() if r["kind"] == "execute" and not _is_composite(r["name"])]
        assert events.names("fallback") == []
        assert [r["count"] for r in ran] == [1], f"one call is meant to be one program: {ran}"
        got, want = (got, want) if suffix == "" else (moved["neuron"][0], moved["cpu"][0])
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g.cpu(), w, equal_nan=True)


def test_lists_are_copied_from_the_host_and_zeroed() -> None:
    (a,) = _lists(1)
    device = [torch.empty_like(t, device="neuron") for t in a]
    torch._foreach_copy_(device, a)
    twins = [torch.empty_like(t, dtype=torch.float64) for t in device]
    torch._foreach_copy_(twins, device)
    for t, d, source in zip(twins, device, a):
        torch.testing.assert_close(d.cpu(), source)
        torch.testing.assert_close(t.cpu(), source.double())
    torch._foreach_zero_(device)
    assert all(not t.cpu().any() for t in device)


# --- randomness and scaling -------------------------------------------------------------------------------------------


def test_rrelu_draws_slopes_from_its_interval() -> None:
    x = torch.linspace(-3, 3, 400).to("neuron").requires_grad_()
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    y.sum().backward()
    assert events.names("fallback") == [] or "aten::rrelu_with_noise" not in events.names("fallback")
    slope, negative = (y / x).detach().cpu(), x.detach().cpu() < 0
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), slope)
    assert bool((slope[~negative] == 1).all())
    drawn = slope[negative]
    assert 0.1 <= drawn.min() < 0.15
    assert 0.25 < drawn.max() <= 0.3


def test_gradient_scaler_backs_off_and_grows() -> None:
    scaler = torch.amp.GradScaler(device="neuron", init_scale=4.0, growth_interval=2)
    weight = torch.nn.Parameter(torch.ones(3, device="neuron"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scales = []
    for factor in (1.0, 1.0, float("inf"), 1.0):
        before = weight.detach().cpu().clone()
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        step = 0.0 if factor != 1 else 0.5
        torch.testing.assert_close(weight.detach().cpu(), before - step)
    assert scales == [4.0, 8.0, 4.0, 4.0]
