"""What operators promise, which answers are legal, and which decisions rounding explains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shakedown.readiness.evidence.probes import TaskScore
from shakedown.readiness.judge import contracts, decisions, legal
from shakedown.readiness.judge.contracts import Result, compare, promise
from shakedown.readiness.requirements import Numerics, Task

DEMAND = Numerics()
aten = torch.ops.aten


def promised(overload, dtype: str = "float32", output: int = 0) -> str:
    """The contract of a real overload, from its own tags."""
    tags = [str(tag).rsplit(".", 1)[-1] for tag in overload.tags]
    return promise(str(overload), tags, dtype, bool(overload.is_view), output).contract


@pytest.mark.parametrize(
    ("overload", "dtype", "output", "expected"),
    [
        (aten.add.Tensor, "float32", 0, "rounding"),
        (aten.add_.Tensor, "int64", 0, "exact"),
        (aten.gelu.default, "bfloat16", 0, "rounding"),
        (aten.eq.Tensor, "bool", 0, "exact"),
        (aten.relu.default, "float32", 0, "exact"),
        (aten.view.default, "float32", 0, "exact"),
        (aten.transpose.int, "float32", 0, "exact"),
        (aten.view_copy.default, "float32", 0, "exact"),
        (aten._to_copy.default, "bfloat16", 0, "exact"),
        (aten.embedding.default, "float32", 0, "exact"),
        (aten.sum.dim_IntList, "float32", 0, "reduction"),
        (aten.sum.dim_IntList, "int64", 0, "exact"),
        (aten.mean.dim, "float32", 0, "reduction"),
        (aten.mm.default, "float32", 0, "reduction"),
        (aten._softmax.default, "float32", 0, "reduction"),
        (aten.native_layer_norm.default, "float32", 0, "reduction"),
        (aten.scatter_add.default, "float32", 0, "reduction"),
        (aten.sort.default, "float32", 0, "exact"),
        (aten.sort.default, "int64", 1, "order-dependent"),
        (aten.topk.default, "int64", 1, "order-dependent"),
        (aten.argmax.default, "int64", 0, "order-dependent"),
        (aten.max_pool2d_with_indices.default, "int64", 1, "order-dependent"),
        (aten.bernoulli.default, "float32", 0, "random"),
        (aten.native_dropout.default, "float32", 0, "random"),
        (aten.rand_like.default, "float32", 0, "random"),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, "float32", 0, "reduction"),
        (aten._foreach_add_.Scalar, "float32", 0, "rounding"),
        (aten.empty.memory_format, "float32", 0, "unspecified"),
    ],
    ids=str,
)
def test_contracts_follow_from_the_overloads_own_tags_and_listed_exceptions(overload, dtype, output, expected) -> None:
    assert promised(overload, dtype, output) == expected


def test_every_exception_has_a_reason_and_names_an_operator_of_pytorch() -> None:
    for name, listed in contracts.EXCEPTIONS.items():
        assert len(listed.reason) > 15
        known = any(hasattr(aten, variant) for variant in (name, f"{name}_", f"{name}_copy"))
        composite = hasattr(torch.nn.functional, name) or hasattr(torch, name) or hasattr(torch.Tensor, name)
        assert known or composite, name


def test_operators_keep_their_names_through_overloads_and_in_place_forms() -> None:
    names = {
        "aten.add_.Tensor": "add",
        "aten::copy_": "copy",
        "aten._to_copy.default": "_to_copy",
        "aten.index_copy_.default": "index_copy",
        "aten.view_copy.default": "view",
        "aten.mm.default": "mm",
        "aten.__and__.Tensor": "__and__",
    }
    assert {name: contracts.base_name(name) for name in names} == names


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "expected"),
    [
        ("aten.mm.default", [(64, 300), (300, 7)], (64, 7), 300),
        ("aten.addmm.default", [(7,), (64, 300), (300, 7)], (64, 7), 300),
        ("aten.bmm.default", [(4, 8, 16), (4, 16, 8)], (4, 8, 8), 16),
        ("aten.convolution.default", [(8, 3, 16, 16), (16, 3, 3, 3)], (8, 16, 16, 16), 27),
        ("aten.convolution_backward.default", [(8, 16, 8, 8), (8, 16, 8, 8), (16, 16, 3, 3)], (16, 16, 3, 3), 512),
        ("aten.sum.default", [(40, 50)], (), 2000),
        ("aten._softmax.default", [(4, 1000)], (4, 1000), 1000),
        ("aten.embedding_dense_backward.default", [(2, 32, 64), (2, 32)], (1000, 64), 64),
    ],
)
def test_terms_of_a_sum_are_read_from_shapes(operator, inputs, output, expected: int) -> None:
    assert contracts.terms(operator, inputs, output) == expected


def compared(operator: str, kept: str, device: np.ndarray, truth: np.ndarray, dtype: str = "float32", inputs=((8, 8),)):
    cpu = truth.astype(np.float32)
    result = Result(0, dtype, cpu, device.astype(np.float32), truth)
    return compare(result, contracts.Promise(kept, "test"), operator, inputs, DEMAND)


def test_exact_results_must_be_bit_equal_signs_of_zero_included() -> None:
    values = np.array([0.0, 1.0, np.nan])
    assert compared("aten.clone.default", "exact", values, values).margin == 0
    assert compared("aten.clone.default", "exact", np.array([-0.0, 1.0, np.nan]), values).margin > 1
    assert compared("aten.relu.default", "exact", np.array([-0.0, 1.0, np.nan]), values).margin == 0
    # A tie of two zeros: topk may choose either.
    assert compared("aten.topk.default", "exact", np.array([-0.0, 1.0, np.nan]), values).margin == 0
    wrong = compared("aten.clone.default", "exact", np.array([0.0, 1.0000001, np.nan]), values)
    assert "the first at [1]" in wrong.text


def test_rounding_bounds_arithmetic_by_roundings_and_functions_by_ulps() -> None:
    truth = np.random.default_rng(1).uniform(1, 2, 1000)
    spaced = truth * (1 + 6 * 2.0**-24)  # three ULPs: too much for an addition, usual for a library's exponential
    assert compared("aten.exp.default", "rounding", spaced, truth).margin < 1
    assert compared("aten.add.Tensor", "rounding", spaced, truth).margin > 1


def test_one_wrong_element_among_many_is_found_elementwise() -> None:
    truth = np.random.default_rng(1).uniform(1, 2, 100_000)
    device = truth.copy()
    device[777] *= 1.0001
    found = compared("aten.mul.Tensor", "rounding", device, truth)
    assert found.margin > 1
    assert "at [777]" in found.text


def test_cancellation_leaves_the_rounding_of_what_a_sum_started_from() -> None:
    """a + v*b*c near zero keeps the rounding errors of its large terms."""
    random = np.random.default_rng(5)
    a, b = random.standard_normal((2, 1000)).astype(np.float32)
    c = (-a / b * (1 + 1e-6 * random.standard_normal(1000))).astype(np.float32)
    truth = a.astype(np.float64) + b.astype(np.float64) * c.astype(np.float64)
    cpu = torch.addcmul(*map(torch.from_numpy, (a, b, c))).numpy()
    other = (a + np.float32(1) * (b * c)).astype(np.float32)
    result = Result(0, "float32", cpu, other, truth, a)
    assert (
        compare(
            result, promise("aten.addcmul.default", ["pointwise"], "float32"), "aten.addcmul.default", [], DEMAND
        ).margin
        < 1
    )


def test_narrower_arithmetic_is_named() -> None:
    truth = np.random.default_rng(1).standard_normal((64, 64))
    device = torch.from_numpy(truth).to(torch.bfloat16).double().numpy()
    assert "bfloat16" in compared("aten.mul.Tensor", "rounding", device, truth).text
    random = np.random.default_rng(2)
    a, b = (torch.from_numpy(random.standard_normal((64, 64)).astype(np.float32)) for _ in range(2))
    exact, narrow = (a.double() @ b.double()).numpy(), (a.bfloat16().double() @ b.bfloat16().double()).numpy()
    found = compared("aten.mm.default", "reduction", narrow, exact, inputs=[(64, 64), (64, 64)])
    assert found.margin > 1
    assert "bfloat16" in found.text


def test_infinities_belong_to_the_format_and_flushed_denormals_pass() -> None:
    truth = np.array([1e39, 1.0])  # finite in float64, infinite in float32
    with np.errstate(over="ignore"):
        assert compared("aten.mul.Tensor", "rounding", np.array([np.inf, 1.0]), truth).margin == 0
        assert compared("aten.mul.Tensor", "rounding", np.array([3e38, 1.0]), truth).margin > 1
    tiny = np.array([2.0**-130, 1.0])
    assert compared("aten.mul.Tensor", "rounding", np.array([0.0, 1.0]), tiny).margin <= 1


def test_random_results_are_compared_as_distributions() -> None:
    random = np.random.default_rng(1)
    one, other = (random.uniform(0, 1, 10_000) for _ in range(2))
    assert compared("aten.uniform.default", "random", one, other).margin < 1
    assert "standard errors apart" in compared("aten.uniform.default", "random", one * 1.2, other).text


def arguments(**named):
    return {name: v.numpy() if isinstance(v, torch.Tensor) else v for name, v in named.items()}


class TestLegalAnswers:
    """Any answer that PyTorch's documentation allows passes; one that it does not is found, element by element."""

    values = torch.tensor([[3.0, 7.0, 7.0, 1.0], [2.0, 2.0, 2.0, 2.0]])

    def illegal(self, operator: str, named: dict, index: int, cpu: list, device: list) -> np.ndarray:
        return legal.illegal(operator, named, index, [x.numpy() for x in cpu], [np.asarray(x) for x in device])

    def test_argmax(self) -> None:
        named = arguments(self=self.values, dim=-1, keepdim=False)
        cpu = [self.values.argmax(-1)]
        assert not self.illegal("aten.argmax.default", named, 0, cpu, [[2, 3]]).any()
        assert self.illegal("aten.argmax.default", named, 0, cpu, [[0, 3]]).tolist() == [True, False]
        assert self.illegal("aten.argmax.default", named, 0, cpu, [[4, 0]]).tolist() == [True, False]
        flat = arguments(self=self.values, dim=None)
        assert not self.illegal("aten.argmax.default", flat, 0, [self.values.argmax()], [np.int64(2)]).any()

    def test_topk_and_sort_name_each_place_once(self) -> None:
        named = arguments(self=self.values, k=2, dim=-1)
        cpu = list(torch.topk(self.values, 2))
        assert not self.illegal("aten.topk.default", named, 1, cpu, [cpu[0], [[2, 1], [3, 0]]]).any()
        assert self.illegal("aten.topk.default", named, 1, cpu, [cpu[0], [[1, 1], [3, 0]]])[0].any()
        assert self.illegal("aten.topk.default", named, 1, cpu, [cpu[0], [[1, 3], [3, 0]]])[0].tolist() == [False, True]
        named = arguments(self=self.values, dim=0)
        cpu = list(torch.sort(self.values, 0))
        assert not self.illegal("aten.sort.default", named, 1, cpu, cpu).any()
        assert self.illegal("aten.sort.default", named, 1, cpu, [cpu[0], 1 - cpu[1]]).any()

    def test_argsort_max_and_median_point_at_their_values(self) -> None:
        named = arguments(self=self.values, dim=-1)
        cpu = [self.values.argsort(-1)]
        assert not self.illegal("aten.argsort.default", named, 0, cpu, [[[3, 0, 2, 1], [0, 1, 2, 3]]]).any()
        assert self.illegal("aten.argsort.default", named, 0, cpu, [[[0, 3, 2, 1], [0, 1, 2, 3]]]).any()
        for function, name in ((torch.max, "max.dim"), (torch.median, "median.dim")):
            cpu = list(function(self.values, -1))
            assert not self.illegal(f"aten.{name}", named, 1, cpu, [cpu[0], cpu[1]]).any()
            assert self.illegal(f"aten.{name}", named, 1, cpu, [cpu[0], [3, 0]]).tolist() == [True, False]

    def test_pooling_indices(self) -> None:
        image = torch.tensor([[[[5.0, 5.0], [1.0, 0.0]]]])
        value, place = torch.nn.functional.max_pool2d(image, 2, return_indices=True)
        named = arguments(self=image, kernel_size=[2, 2])
        name = "aten.max_pool2d_with_indices.default"
        assert not self.illegal(name, named, 1, [value, place], [value, [[[[1]]]]]).any()
        assert self.illegal(name, named, 1, [value, place], [value, [[[[2]]]]]).all()

    def test_repeated_writes_leave_one_of_the_candidates(self) -> None:
        target, index = torch.zeros(1, 4), torch.tensor([[1, 1, 3]])
        source = torch.tensor([[10.0, 20.0, 30.0]])
        named = arguments(self=target, dim=1, index=index, src=source)
        name, cpu = "aten.scatter.src", [target.scatter(1, index, source)]
        assert not self.illegal(name, named, 0, cpu, [[[0, 10.0, 0, 30.0]]]).any()
        assert not self.illegal(name, named, 0, cpu, [[[0, 20.0, 0, 30.0]]]).any()
        assert self.illegal(name, named, 0, cpu, [[[0, 30.0, 0, 30.0]]]).tolist() == [[False, True, False, False]]
        assert self.illegal(name, named, 0, cpu, [[[9.0, 10.0, 0, 30.0]]]).tolist() == [[True, False, False, False]]
        assert legal.order_matters(name, named) == "1 of 3 writes go where another one goes"

    def test_index_put_depends_on_repeats_and_on_accumulation(self) -> None:
        kept = promise("aten.index_put.default", [], "float32")
        put = arguments(self=torch.zeros(4, 2), values=torch.ones(2, 2))
        once = put | {"indices": [np.array([0, 2])], "accumulate": False}
        again = put | {"indices": [np.array([2, 2])], "accumulate": False}
        assert legal.refined("aten.index_put.default", once, kept, True).contract == "exact"
        assert legal.refined("aten.index_put.default", again, kept, True).contract == "order-dependent"
        assert legal.refined("aten.index_put.default", again | {"accumulate": True}, kept, True).contract == "reduction"
        assert legal.refined("aten.index_put.default", again | {"accumulate": True}, kept, False).contract == "exact"
        assert legal.order_matters("aten.index_put.default", once) == ""

    def test_only_real_ties_are_called_order_dependent(self) -> None:
        distinct = torch.tensor([[3.0, 1.0, 2.0]])
        for name, more in (("argmax", {"dim": -1}), ("topk", {"k": 2, "dim": -1}), ("sort", {"dim": -1})):
            assert legal.order_matters(f"aten.{name}.default", arguments(self=distinct, **more)) == ""
            assert legal.order_matters(f"aten.{name}.default", arguments(self=self.values, **more)) != ""
        stable = arguments(self=self.values, dim=-1, stable=True)
        assert legal.order_matters("aten.sort.stable", stable) == ""


class TestDecisions:
    """A flip is a near tie where truth is within rounding of one, and a wrong decision elsewhere."""

    truth = np.array([[1.0, 2.0, 0.0], [1.0, 1.001, 0.0], [5.0, 1.0, 0.0], [0.3, 0.1, 0.2]])

    def test_near_ties_are_counted_apart_from_wrong_decisions(self) -> None:
        device = self.truth.copy()
        device[1] = [1.001, 1.0, 0.0]
        found = decisions.measure("logits", device, self.truth, self.truth, allowed_error=0.001)
        assert found is not None
        assert (found.rows, found.flips, found.near_ties, found.wrong, found.cpu_flips) == (4, 1, 1, 0, 0)
        assert decisions.flipped([found], "cell", "1x1") == []
        device[2] = [0.0, 1.0, 0.0]
        found = decisions.measure("logits", device, self.truth, None, allowed_error=0.001)
        assert found is not None
        assert (found.flips, found.near_ties, found.wrong) == (2, 1, 1)
        (finding,) = decisions.flipped([found], "cell", "1x1")
        assert finding.word == "decision-flipped"
        assert finding.fails
        assert "row 2 decides 1, truth 0, which is ahead by 4" in finding.text

    def test_margins_are_told_in_units_of_what_rounding_explains(self) -> None:
        found = decisions.measure("logits", self.truth, self.truth, None, allowed_error=0.05)
        assert found is not None
        assert found.flips == 0
        assert found.margin_median == pytest.approx((1.0 + 0.1) / 2 / 0.1)
        assert found.share_of_near_ties == 0.5

    def test_thresholds_decide_outputs_of_one_column(self) -> None:
        truth, device = np.array([[0.9], [0.501], [0.2]]), np.array([[0.9], [0.4999], [0.7]])
        assert decisions.measure("score", device, truth, None, 0.01) is None
        found = decisions.measure("score", device, truth, truth, 0.01, threshold=0.5)
        assert found is not None
        assert (found.flips, found.near_ties, found.wrong) == (2, 1, 1)

    def test_a_decision_that_is_not_a_number_is_wrong(self) -> None:
        device = np.full_like(self.truth, np.nan)
        found = decisions.measure("logits", device, self.truth, None, 0.001)
        assert found is not None
        assert found.wrong == found.flips > 0

    def test_the_gate_of_a_case_explains_bfloat16_flips_and_not_a_wrong_column(self) -> None:
        torch.manual_seed(0)
        logits = torch.randn(512, 50, dtype=torch.float64)
        key = "step1/output/logits"
        half = logits.bfloat16().float().numpy()
        own = {key: half.astype(np.float64) - logits.numpy()}
        dtypes = {key: "bfloat16"}
        (found,) = decisions.of_case({key: half}, {key: logits.numpy()}, own, dtypes, 64, DEMAND)
        assert found.flips == found.near_ties > 0
        shifted = half.copy()
        shifted[:, 7] += 1.0
        (found,) = decisions.of_case({key: shifted}, {key: logits.numpy()}, own, dtypes, 64, DEMAND)
        assert found.wrong > 0


class TestTask:
    """The user's own score, against float64 truth, with a frozen limit."""

    def scored(self, value: float | None) -> TaskScore:
        return TaskScore(function="accuracy", of_tensors_sha256="0" * 64, scores={"step1": value})

    @pytest.mark.parametrize(("device", "within"), [(0.91, True), (0.95, False), (None, False)])
    def test_scores_are_held_to_the_limit(self, device: float | None, within: bool) -> None:
        (result,) = decisions.task(self.scored(device), self.scored(0.9), Task(function="accuracy", limit=0.02))
        assert result.within is within
