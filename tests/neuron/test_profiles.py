"""Support profiles: every rule of a shipped profile bites under it and not without it, and nothing leaks between them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

from shakedown.neuron import events, profiles
from shakedown.neuron.errors import ProfileError, UnsupportedByProfile
from shakedown.neuron.profiles import document, rules
from shakedown.readiness import targets
from shakedown.readiness.observe import identity
from shakedown.readiness.report import details

RELEASE = "neuron-2.33"
POSITIVE = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    events.clear()
    yield
    torch._dynamo.reset()
    assert torch.neuron.profile() == "native"


def on_device(values: torch.Tensor) -> torch.Tensor:
    return values.to("neuron")


def reasons() -> list[str]:
    return [r["detail"] for r in events.snapshot() if r["kind"] == "fallback"]


def rule_reasons(rule: str) -> list[str]:
    return [r for r in reasons() if r.startswith(f"profile {RELEASE}, rule {rule}: ")]


# --- operators on the CPU -----------------------------------------------------------------------------------------------

MATRIX = on_device(POSITIVE)
INDEX = on_device(torch.tensor([0, 4, 2]))
OUT = on_device(torch.zeros(3))
FALLBACKS = {
    "multinomial-on-cpu": [lambda: torch.multinomial(MATRIX, 2)],
    "take-on-cpu": [
        lambda: torch.take(MATRIX, INDEX),
        lambda: torch.take(MATRIX, INDEX, out=on_device(torch.zeros(3))),
    ],
    "scatter-reduce-on-cpu": [
        lambda: OUT.scatter_reduce(0, on_device(torch.tensor([0, 0, 2])), MATRIX[0], "amax"),
        lambda: OUT.clone().scatter_reduce_(0, on_device(torch.tensor([0, 0, 2])), MATRIX[0], "sum"),
    ],
    "int64-randint-on-cpu": [
        lambda: torch.randint(5, (3,), device="neuron"),
        lambda: torch.randint(2, 5, (3,), device="neuron", dtype=torch.int64),
    ],
    "strided-lerp-on-cpu": [
        lambda: torch.lerp(MATRIX.t()[:2], MATRIX[:2], 0.5),
        lambda: MATRIX.clone().t().lerp_(MATRIX, 0.5),
    ],
    "eager-range-and-logspace-on-cpu": [
        lambda: torch.range(0, 4, 2, device="neuron"),
        lambda: torch.logspace(0, 1, 3, device="neuron"),
    ],
    "linalg-on-cpu": [
        lambda: torch.linalg.qr(MATRIX),
        lambda: torch.linalg.svdvals(MATRIX),
        lambda: torch.linalg.eigvalsh(MATRIX),
        lambda: torch.linalg.cholesky(MATRIX),
        lambda: torch.linalg.inv(MATRIX),
        lambda: torch.linalg.lu_factor(MATRIX),
        lambda: torch.linalg.ldl_factor(MATRIX),
        lambda: torch.linalg.slogdet(MATRIX),
        lambda: torch.linalg.det(MATRIX),
        lambda: torch.cholesky_inverse(MATRIX),
        lambda: torch.triangular_solve(MATRIX, MATRIX),
    ],
    "fft-on-cpu": [
        lambda: torch.fft.rfft(MATRIX),
        lambda: torch.fft.fft(MATRIX),
        lambda: torch.fft.irfft(torch.fft.rfft(MATRIX)),
    ],
}
STAYS = {
    "int64-randint-on-cpu": lambda: torch.randint(5, (3,), device="neuron", dtype=torch.int32),
    "strided-lerp-on-cpu": lambda: torch.lerp(MATRIX, MATRIX, 0.5),
}


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("rule", FALLBACKS)
def test_an_operator_rule_bites_under_the_profile_alone(rule):
    for number, call in enumerate(FALLBACKS[rule]):
        for _ in range(2):  # the decision, and the remembered one
            events.clear()
            with torch.neuron.use_profile(RELEASE):
                under = call()
            assert rule_reasons(rule), f"call {number} did not fall back under the profile"
            events.clear()
            native = call()
            assert not any("profile" in r for r in reasons()), f"call {number} falls back natively by a profile's rule"
        if rule not in ("multinomial-on-cpu", "int64-randint-on-cpu", "linalg-on-cpu"):
            torch.testing.assert_close(native, under)


@pytest.mark.parametrize("rule", STAYS)
def test_calls_outside_a_rules_conditions_stay_on_the_device(rule):
    with torch.neuron.use_profile(RELEASE):
        STAYS[rule]()
    assert not rule_reasons(rule)


def test_every_fallback_rule_of_the_release_is_tried_here():
    found = document.read(profiles.FOLDER / f"{RELEASE}.toml")[1]
    assert {r.id for r in found.rule if r.kind == "operator" and r.action == "fallback"} == set(FALLBACKS)
    assert {r.api for r in found.rule if r.kind == "api"} == set(APIS)
    imposed = {r.what for r in found.rule if r.kind == "compile" and r.action != "copy"}  # a copy changes no value
    assert imposed == {"dynamic", "mode", "options"}
    assert [r.id for r in found.rule if r.kind == "dtype"] == ["float64-as-float32"]


@pytest.mark.parametrize(
    ("rule", "function"),
    [
        ("take-on-cpu", lambda x, index: torch.take(x, index)),
        ("scatter-reduce-on-cpu", lambda x, index: x.flatten().scatter_reduce(0, index, x[0], "prod")),
        ("strided-lerp-on-cpu", lambda x, index: torch.lerp(x.t(), x, 0.25)),
        ("linalg-on-cpu", lambda x, index: torch.linalg.inv(x)),
        ("linalg-on-cpu", lambda x, index: torch.linalg.eigvalsh(x)),
        ("fft-on-cpu", lambda x, index: torch.fft.rfft(x).abs()),
    ],
)
def test_gradients_pass_through_a_fallback_of_the_profile(rule, function):
    x, reference = on_device(POSITIVE).requires_grad_(), POSITIVE.clone().requires_grad_()
    function(reference, INDEX.cpu()).square().sum().backward()
    with torch.neuron.use_profile(RELEASE):
        function(x, INDEX).square().sum().backward()
    assert rule_reasons(rule)
    torch.testing.assert_close(x.grad.cpu(), reference.grad)


def test_strict_mode_leaves_the_profiles_fallbacks_alone(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS", "1")
    with torch.neuron.use_profile(RELEASE):
        torch.take(MATRIX, INDEX)
    assert rule_reasons("take-on-cpu")


# --- refusals -----------------------------------------------------------------------------------------------------------


def _dual():
    with forward_ad.dual_level():
        return forward_ad.make_dual(MATRIX, MATRIX)


APIS = {
    "torch.sparse": [
        lambda: MATRIX.to_sparse(),
        lambda: MATRIX.to_sparse_csr(),
        lambda: torch.sparse_coo_tensor([[0, 1], [1, 2]], [1.0, 2.0], (3, 3), device="neuron"),
        lambda: torch.sparse_csr_tensor([0, 1, 2, 2], [0, 1], [1.0, 2.0], (3, 3), device="neuron"),
        lambda: torch.eye(3).to_sparse().to("neuron"),
    ],
    "torch.func": [
        lambda: torch.func.vmap(torch.sin)(MATRIX),
        lambda: torch.func.grad(torch.sum)(MATRIX),
        lambda: torch.func.vjp(torch.sin, MATRIX),
        lambda: torch.func.jacrev(torch.sin)(MATRIX),
    ],
    "torch.nested": [
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], device="neuron"),
        lambda: torch.nested.as_nested_tensor([MATRIX[:2], MATRIX[:1]]),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]).to("neuron"),
        lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], device="neuron", layout=torch.jagged),
    ],
    "torch.distributions": [lambda: torch.distributions.Normal(MATRIX, MATRIX).sample()],
    "forward-mode AD": [_dual, lambda: torch.func.jvp(torch.sin, (MATRIX,), (MATRIX,))],
}


@pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:Sparse")
@pytest.mark.parametrize("api", APIS)
def test_an_api_refuses_tensors_of_the_device_under_the_profile_alone(api):
    for call in APIS[api]:
        with torch.neuron.use_profile(RELEASE):
            with pytest.raises(
                UnsupportedByProfile, match=rf"profile {RELEASE}, rule no-.* is not supported there \(.*2026"
            ):
                call()
        call()


@pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:Sparse")
def test_apis_on_the_cpu_are_untouched():
    x = torch.eye(3)
    with torch.neuron.use_profile(RELEASE):
        assert torch.equal(x.to_sparse().to_dense(), x)
        assert torch.equal(x.to_sparse_csr().to_dense(), x)
        assert torch.equal(torch.func.vmap(torch.abs)(x), x)
        assert torch.func.grad(torch.sum)(x).sum() == 9
        assert torch.nested.nested_tensor([x[0], x[1]]).is_nested
        assert torch.distributions.Normal(x, x + 1).sample().shape == (3, 3)
        with forward_ad.dual_level():
            assert forward_ad.unpack_dual(forward_ad.make_dual(x, x)).tangent is not None


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.quantize_per_channel(MATRIX, OUT + 1, OUT.to(torch.int64), 0, torch.qint8),
        lambda: torch.fake_quantize_per_channel_affine(MATRIX, OUT + 1, OUT.to(torch.int32), 0, 0, 255),
    ],
)
def test_per_channel_quantisation_is_refused(call):
    with torch.neuron.use_profile(RELEASE):
        for _ in range(2):
            with pytest.raises(NotImplementedError, match="rule per-channel-quantisation"):
                call()
    try:
        call()
    except RuntimeError as error:  # the device has no quantized dtypes
        assert "profile" not in str(error)


# --- dtypes -------------------------------------------------------------------------------------------------------------

THIRDS = torch.tensor([1 / 3, 2 / 3, 1e-9, 1e300], dtype=torch.float64)


def as_float32(values: torch.Tensor) -> torch.Tensor:
    return values.float().double()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + x,
        lambda x: x * 0.1,
        lambda x: x.clone().mul_(3),
        lambda x: torch.add(x, 1, out=torch.empty_like(x)),
        lambda x: torch.stack([x, x])[0] @ x,
        lambda x: torch._foreach_add([x, x], 1.5)[1],
        lambda x: torch.full((3,), 0.1, dtype=torch.float64, device=x.device),
        lambda x: x.sum(),
        lambda x: torch.cumsum(x.float(), 0, dtype=torch.float64),
    ],
)
def test_float64_runs_as_float32_and_keeps_its_dtype(call):
    x = on_device(THIRDS[:3])
    native = call(x).cpu()
    with torch.neuron.use_profile(RELEASE):
        under = call(x).cpu()
    again = call(x).cpu()
    assert under.dtype is native.dtype is torch.float64
    assert torch.equal(under, as_float32(under)), "more precision than float32 has"
    assert not torch.equal(native, as_float32(native)), "the values of this test fit into float32"
    assert torch.equal(native, again)
    torch.testing.assert_close(under, native, rtol=1e-5, atol=1e-8)


def test_storage_stays_float64():
    with torch.neuron.use_profile(RELEASE):
        x = on_device(THIRDS)
        assert torch.equal(x.cpu(), THIRDS)
        assert torch.equal(x.clone()[1:].contiguous().cpu(), THIRDS[1:])
        assert torch.equal(torch.empty_like(x).copy_(x).cpu(), THIRDS)
        assert torch.equal(x.float().cpu(), THIRDS.float())
        assert (x + x).cpu()[3] == float("inf")


def test_other_dtypes_are_as_precise_as_natively():
    x, whole = on_device(torch.rand(50)), on_device(torch.tensor([2**40 + 1, 3]))
    native = [torch.logsumexp(x, 0), whole * whole[1], x.softmax(0), x.var()]
    with torch.neuron.use_profile(RELEASE):
        under = [torch.logsumexp(x, 0), whole * whole[1], x.softmax(0), x.var()]
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(native, under))


def test_float64_in_a_compiled_graph():
    def double(x):
        return (x + x) * 1.1

    x = on_device(THIRDS[:3])
    native = torch.compile(double, backend="neuron")(x).cpu()
    with torch.neuron.use_profile(RELEASE):
        under = torch.compile(double, backend="neuron")(x).cpu()
    assert torch.equal(native, torch.compile(double, backend="neuron")(x).cpu())
    assert torch.equal(under, as_float32(under))
    assert not torch.equal(under, native)


def run(script: str, profile: str = RELEASE, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SHAKEDOWN_PROFILE": profile}
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=environment
    )


def test_float64_warns_once_per_process_and_the_environment_names_the_profile():
    done = run(
        """
        import warnings
        import torch

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = torch.ones(3, device="neuron")
            (x + x).sum()
            before = len(caught)
            y = x.double()
            (y + y).sum(), y * 2, torch.full((2,), 0.5, dtype=torch.float64, device="neuron")
            torch.compile(lambda v: v * 3, backend="neuron")(y)
            mine = [w for w in caught if "float64-as-float32" in str(w.message)]
        print(torch.neuron.profile(), before, len(mine), mine[0].category.__name__)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [RELEASE, "0", "1", "UserWarning"]


def test_a_wrong_name_in_the_environment_stops_the_first_use_every_time():
    done = run(
        """
        import torch

        for _ in range(2):
            try:
                torch.ones(3, device="neuron") + 1
            except RuntimeError as error:
                print(type(error).__name__, "neuron-2.33" in str(error))
        """,
        "neuron-9.99",
    )
    assert done.stdout.splitlines() == ["ProfileError True"] * 2, done.stderr


# --- torch.compile ------------------------------------------------------------------------------------------------------


def _compile(fn, *args, **options):
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torch.compile(fn, backend="neuron", **options)(*args)
    return result, [str(w.message) for w in caught]


def test_dynamic_shapes_are_refused_by_the_rule():
    with torch.neuron.use_profile(RELEASE):
        with pytest.raises(Exception, match=rf"profile {RELEASE}, rule static-shapes-only: .*1 symbolic") as caught:
            _compile(lambda x: x + 1, OUT, dynamic=True)
        assert isinstance(caught.value, RuntimeError) or "RuntimeError" in str(caught.value)
        result, said = _compile(lambda x: x + 1, OUT)
        assert not said
        assert result.sum().item() == 3
    try:
        _compile(lambda x: x + 1, OUT, dynamic=True)
    except Exception as error:  # one program per shape is this device's way too
        assert "rule " not in str(error)


def test_other_modes_behave_as_default_with_the_rules_warning():
    from shakedown.neuron.modes.compile import neuron

    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    with torch.neuron.use_profile(RELEASE):
        with pytest.warns(
            UserWarning, match="rule default-mode-only: torch.compile ignores mode max-autotune"
        ) as caught:
            assert neuron(module, [OUT], mode="max-autotune")(OUT)[0].sum().item() == 3
        assert len([w for w in caught if "mode" in str(w.message)]) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            neuron(module, [OUT], mode="default", options={"fallback_execution": True, "model_name": "m"})
        with pytest.warns(UserWarning, match="rule few-options: torch.compile ignores options max_autotune"):
            neuron(module, [OUT], options={"max_autotune": True, "fallback_execution": False})
    with pytest.warns(UserWarning, match="mode=") as caught:
        neuron(module, [OUT], mode="max-autotune", options={"max_autotune": True})
    assert not any("profile" in str(w.message) for w in caught)


def test_a_graph_with_a_ruled_operator_is_split_around_it():
    def pick(x):
        return torch.take(x * 2, INDEX) + 1

    expected = (POSITIVE * 2).take(torch.tensor([0, 4, 2])) + 1
    with torch.neuron.use_profile(RELEASE):
        result, said = _compile(pick, MATRIX)
    assert any("into 2 programs" in s and "rule take-on-cpu" in s for s in said)
    assert rule_reasons("take-on-cpu")
    torch.testing.assert_close(result.cpu(), expected)
    events.clear()
    result, said = _compile(pick, MATRIX)
    assert not any("splits graph" in s for s in said)
    assert not reasons()


def test_logspace_has_a_compiled_form():
    with torch.neuron.use_profile(RELEASE):
        result, _ = _compile(lambda x: x + torch.logspace(0, 1, 3, device="neuron"), OUT)
        assert not rule_reasons("eager-range-and-logspace-on-cpu")
    torch.testing.assert_close(result.cpu(), torch.logspace(0, 1, 3))


def test_a_function_compiled_under_one_profile_is_compiled_again_under_another():
    function = torch.compile(lambda x: x + x, backend="neuron")
    x = on_device(THIRDS[:3])
    natively = function(x).cpu()
    with torch.neuron.use_profile(RELEASE):
        assert torch.equal(function(x).cpu(), as_float32(function(x).cpu()))
    assert torch.equal(function(x).cpu(), natively)


# --- switching ----------------------------------------------------------------------------------------------------------


def test_plans_of_each_profile_are_kept_apart_and_kept():
    x = on_device(THIRDS[:3])
    native = (x + x).cpu()
    with torch.neuron.use_profile(RELEASE):
        first = (x + x).cpu()
    for _ in range(3):
        events.clear()
        assert torch.equal((x + x).cpu(), native)
        with torch.neuron.use_profile(RELEASE):
            assert torch.equal((x + x).cpu(), first)
            with torch.neuron.use_profile("native"):
                assert torch.neuron.profile() == "native"
                assert torch.equal((x + x).cpu(), native)
            assert torch.neuron.profile() == RELEASE
            assert torch.equal((x + x).cpu(), first)
        assert events.total("compile") == 0, "a plan was lost"


def test_an_error_inside_restores_the_profile():
    with pytest.raises(KeyError):
        with torch.neuron.use_profile(RELEASE):
            raise KeyError
    assert torch.neuron.profile() == "native"


def test_a_profile_that_cannot_be_loaded_changes_nothing(tmp_path):
    with torch.neuron.use_profile(RELEASE):
        with pytest.raises(ProfileError, match="no support profile 'nothing'.*native, neuron-2.33"):
            torch.neuron.use_profile("nothing").__enter__()
        assert torch.neuron.profile() == RELEASE
        with pytest.raises(UnsupportedByProfile):
            MATRIX.to_sparse()


def test_native_has_no_profile_to_ask():
    assert profiles.active is None
    assert profiles.load("native") is None
    assert profiles.shipped()[:2] == ["native", RELEASE]


# --- files --------------------------------------------------------------------------------------------------------------

GOOD = """\
name = "mine"
release = "a release"
description = "for a test"

[[rule]]
id = "relu-on-cpu"
kind = "operator"
operators = ["relu"]
action = "fallback"
source = "this test"
date = 2026-01-01

[[rule]]
id = "narrow"
kind = "dtype"
dtype = "int64"
to = "int32"
action = "narrow"
source = "this test"
date = 2026-01-01
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_file_of_ones_own(tmp_path):
    whole = on_device(torch.tensor([2**40 + 1, 3]))
    with torch.neuron.use_profile(write(tmp_path, GOOD)):
        assert torch.neuron.profile() == "mine"
        assert torch.relu(MATRIX).equal(MATRIX)
        assert torch.relu_(MATRIX.clone()).equal(MATRIX)
        assert (whole * 2).tolist() == [2, 6]
        assert (whole * 2).dtype is torch.int64
        assert whole.tolist() == [2**40 + 1, 3]
        identity = torch.neuron.profile_identity()
    assert {r for r in reasons() if "mine" in r} == {
        "profile mine, rule relu-on-cpu: runs on the CPU there (this test, 2026-01-01)"
    }
    assert (whole * 2).tolist() == [2**41 + 2, 6]
    assert identity["name"] == "mine"
    assert len(identity["sha256"]) == 64
    with torch.neuron.use_profile(write(tmp_path, GOOD.replace("for a test", "for another"))):
        assert torch.neuron.profile_identity()["sha256"] != identity["sha256"]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('source = "this test"', 'sauce = "this test"', 10, "sauce: Extra inputs"),
        ('description = "for a test"', 'description = "for a test"\ncolour = "red"', 4, "colour: Extra inputs"),
        ('operators = ["relu"]', 'operators = [\n    "relu",\n    "rellu",\n]', 10, "no operator aten.rellu"),
        ('operators = ["relu"]', 'operators = ["relu.nonsense"]', 8, "no operator aten.relu.nonsense"),
        ('operators = ["relu"]', 'operators = ["view"]', 8, "would never apply"),
        ('operators = ["relu"]', 'operators = ["linalg_inv"]', 8, "would never apply"),
        ('operators = ["relu"]', 'operators = ["softmax"]', 8, "would never apply"),
        ('operators = ["relu"]', "operators = []", 8, "operators: "),
        ('operators = ["relu"]', 'operators = ["relu"]\nwhen = { colour = "red" }', 9, "when.colour: Extra inputs"),
        ('operators = ["relu"]', 'operators = ["relu"]\nwhen = { dtypes = ["float65"] }', 9, "no dtype 'float65'"),
        ("date = 2026-01-01\n\n", 'date = 2026-01-01\n[rule.when]\nmodes = ["lazy"]\n\n', 13, "when.modes"),
        ('action = "fallback"', 'action = "forget"', 9, "action: "),
        ('kind = "operator"', 'kind = "operation"', 7, "kind: "),
        ('kind = "operator"\n', "", 5, "kind: "),
        ("date = 2026-01-01\n\n", "\n", 5, "date: Field required"),
        ("date = 2026-01-01\n\n", 'date = "someday"\n\n', 11, "date: "),
        ('to = "int32"', 'to = "float32"', 13, "int64 cannot be narrowed to float32"),
        ('id = "narrow"', 'id = "relu-on-cpu"', 14, "two rules have the id 'relu-on-cpu'"),
        ('release = "a release"\n', "", 1, "release: Field required"),
        ('name = "mine"', 'name = "native"', 1, "native is taken"),
        ('name = "mine"', "name = mine", 1, "not TOML"),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(tmp_path, old, new, line, said):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ProfileError) as caught:
        rules.read(path)
    assert str(caught.value).startswith(f"{path}, line {line}: "), caught.value
    assert said in str(caught.value)


def test_a_base_name_is_good_when_one_of_its_overloads_can_be_ruled(tmp_path):
    rules.read(write(tmp_path, GOOD.replace('"relu"', '"linalg_inv_ex", "_softmax", "nonzero", "sort"')))


def test_shipped_profiles_say_where_every_rule_comes_from():
    for name in profiles.shipped()[1:]:
        source, found = document.read(profiles.FOLDER / f"{name}.toml")
        assert found.name == name
        for rule in found.rule:
            assert len(rule.source) > 10, f"{source.path}: rule {rule.id}"


def test_profiles_ship_in_the_wheel():
    from importlib import resources

    assert resources.files("shakedown.neuron.profiles").joinpath(f"{RELEASE}.toml").is_file()


# --- records ------------------------------------------------------------------------------------------------------------


def test_a_process_of_a_trial_writes_down_its_profile():
    neuron, cpu = targets.get("neuron"), targets.get("cpu")
    assert identity.capture(neuron)["also"]["profile"] == {"name": "native"}
    assert identity.capture(cpu)["also"]["profile"] is None
    with torch.neuron.use_profile(RELEASE):
        text = (profiles.FOLDER / f"{RELEASE}.toml").read_bytes()
        expected = {"name": RELEASE, "sha256": hashlib.sha256(text).hexdigest()}
        assert identity.capture(neuron)["also"]["profile"] == expected


def test_a_report_names_the_profile():
    cells = {"a": {"profile": {"name": RELEASE, "sha256": "0123"}}, "b": {"profile": None}, "c": {}}
    (line,) = details._profiles(SimpleNamespace(identity={"cells": cells}))
    assert RELEASE in line
    assert "0123" in line
    assert details._profiles(SimpleNamespace(identity={"cells": {"a": {"profile": {"name": "native"}}}})) == []


# --- documentation ------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text()


def test_the_example_of_the_documentation_is_a_profile(tmp_path):
    example = PAGE.split("```toml\n")[1].split("```")[0]
    with torch.neuron.use_profile(write(tmp_path, example)):
        assert torch.neuron.profile() == "my-release"
        events.clear()
        torch.sort(on_device(torch.tensor([3, 1, 2])))
        torch.sort(MATRIX[0])
        assert [r for r in reasons() if "my-release" in r] == [
            "profile my-release, rule sort-on-cpu: runs on the CPU there (Release notes, section 4, 2026-10-19)"
        ]
        from shakedown.neuron.modes.compile import neuron

        with pytest.raises(UnsupportedByProfile, match="rule default-mode-only: .* refuses mode reduce-overhead"):
            neuron(torch.fx.symbolic_trace(lambda x: (x + 1,)), [OUT], mode="reduce-overhead")


def test_the_documentation_names_every_field_and_profile():
    models = (document.OperatorRule, document.DtypeRule, document.CompileRule, document.ApiRule, document.When)
    for field in {f for model in (*models, document.Document) for f in model.model_fields} - {"rule"}:
        assert f"`{field}`" in PAGE, field
    for name in profiles.shipped():
        assert f"| `{name}` |" in PAGE
