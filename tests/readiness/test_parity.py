"""When are two training runs the same, as far as losses can tell? The rules, on synthetic series and on real trainings."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from shakedown.readiness.evidence import Losses, LossEvent, finite
from shakedown.readiness.judge.parity import PASSING, UNDECIDED, Rule, compare
from shakedown.readiness.judge.parity_results import ParityResult
from shakedown.readiness.parity.nudge import Nudger

from . import faults, tiny

U = 2.0**-24
torch.set_num_threads(1)  # tests share the machine; see support.py
FREE = Rule()


def losses(values: Any, dtype: str = "float32", first: int = 1, **fields: Any) -> Losses:
    """A run with these losses, from step `first` on."""
    numbers = [float(value) for value in values]
    steps = range(first, first + len(numbers))
    return Losses(
        name="run",
        role="candidate",
        device="neuron",
        dtype=dtype,
        steps=list(steps),
        losses=[finite(value) for value in numbers],
        not_finite={s: str(v) for s, v in zip(steps, numbers) if not math.isfinite(v)},
        **fields,
    )


def falling(n: int) -> np.ndarray:
    return 2.0 + 3.0 * np.exp(-np.arange(n) / 40)


def noise(n: int, size: float, seed: int) -> np.ndarray:
    return size * np.random.default_rng(seed).standard_normal(n)


def synthetic(gap: Any, n: int = 90, twins: float = 1e-5, rule: Rule = FREE, **others: Any) -> ParityResult:
    """A candidate with `gap` to a falling loss, beside five twins whose gaps have the size `twins`."""
    reference = falling(n)
    around = [losses(reference + noise(n, twins, seed)) for seed in range(5)]
    return compare(losses(reference), around, losses(reference + gap), rule, **others)


# --- the classes, on synthetic series ----------------------------------------------------------------------------------


def test_equal_bits_are_identical_and_a_last_digit_is_not() -> None:
    same = synthetic(0.0)
    assert (same.parity, same.passed, same.first_difference, same.trend) == ("identical", True, None, "")
    gap = np.zeros(90)
    gap[40] = 1e-9
    other = synthetic(gap)
    assert (other.parity, other.first_difference, other.passed) == ("within-envelope", 41, True)


def test_a_gap_like_the_twins_is_within_their_envelope() -> None:
    found = synthetic(noise(90, 2e-5, 9))
    assert (found.parity, found.passed, found.trend) == ("within-envelope", True, "flat")
    assert found.ratio == pytest.approx(2, rel=0.5)
    assert [(w.first, w.last) for w in found.windows] == [(1, 30), (31, 60), (61, 90)]
    assert found.first_outside is None


def test_a_gap_on_one_side_is_biased() -> None:
    found = synthetic(2e-4 + noise(90, 2e-5, 9))
    assert (found.parity, found.passed, found.one_sided) == ("biased", False, 1.0)
    assert "lie above the reference's" in found.text
    assert "lie below" in synthetic(-2e-4 + noise(90, 2e-5, 9)).text


def test_a_gap_that_outgrows_every_twin_is_growing() -> None:
    found = synthetic(1e-5 * np.exp(np.arange(90) / 15) * np.sign(noise(90, 1, 3)))
    assert (found.parity, found.trend, found.passed) == ("growing", "growing", False)
    assert found.growth is not None
    assert found.growth > 100 > max(found.twin_growth)


def test_growth_that_the_twins_share_is_not_growing() -> None:
    """Chaos: everybody's gap grows thirty-fold, and the candidate's is no larger."""
    reference, grows = falling(90), np.exp(np.arange(90) / 26)
    around = [losses(reference + grows * noise(90, 1e-6, seed)) for seed in range(5)]
    found = compare(losses(reference), around, losses(reference + grows * noise(90, 1e-6, 9)))
    assert (found.parity, found.trend) == ("within-envelope", "growing")


@pytest.mark.parametrize(("kind", "said"), [("restart", "at the restart"), ("shape", "at the shape"), ("other", "")])
def test_a_jump_is_an_event_and_is_named_by_what_the_run_told(kind: Any, said: str) -> None:
    gap = noise(120, 1e-5, 9)
    gap[70:] += np.sign(noise(50, 1, 4)) * 3e-3
    reference = falling(120)
    around = [losses(reference + noise(120, 1e-5, seed)) for seed in range(5)]
    told = losses(reference + gap, events=[LossEvent(step=70, kind=kind, text="from a checkpoint")])
    found = compare(losses(reference), around, told)
    assert (found.parity, found.passed) == ("event", False)
    assert "at step 71" in found.text
    assert said in found.text
    assert ("at the" in found.text) == bool(said)
    assert {e.kind for e in found.events} == {"gap", kind}


def test_a_jump_in_the_second_half_of_the_last_window_is_seen_though_its_median_is_not_moved() -> None:
    gap = noise(64, 1e-5, 9)
    gap[52:] += 1e-2
    found = synthetic(gap, n=64)
    assert (found.parity, found.passed) == ("event", False)
    assert "at step 53, and stays outside to the end" in found.text
    assert found.ratio is not None
    assert found.ratio < 3
    gap[52:], gap[20:27] = noise(12, 1e-5, 3), 1e-2  # a transient is told and does not decide
    passing = synthetic(gap, n=64)
    assert (passing.parity, passing.first_outside) == ("within-envelope", 21)


def test_what_is_wrong_from_the_beginning_is_no_event() -> None:
    gap = np.sign(noise(90, 1, 4)) * 3e-3
    gap[:2] = 0
    found = synthetic(gap)
    assert (found.parity, found.passed, found.first_outside) == ("above-envelope", False, 3)


def test_a_narrow_precision_explains_a_gap_only_as_far_as_the_cpu_shows_it() -> None:
    reference = falling(90)
    low = losses(reference + noise(90, 1e-3, 20), "bfloat16")
    inside = synthetic(noise(90, 2e-3, 9), low=low)
    assert (inside.parity, inside.passed) == ("explained-by-declared-precision", True)
    assert inside.ratio is not None
    assert inside.low_ratio is not None
    assert inside.ratio > 3 >= inside.low_ratio
    assert synthetic(noise(90, 1e-2, 9), low=low).passed is False


def test_where_the_twins_exceed_the_limit_nothing_is_decided() -> None:
    tight = Rule(limit=1e-7)
    found = synthetic(noise(90, 1e-5, 9), rule=tight)
    assert (found.parity, found.passed) == ("no-power", None)
    assert "step 1 on" in found.text
    assert synthetic(noise(90, 1e-5, 9), rule=Rule(limit=1e-2)).passed is True
    assert synthetic(noise(90, 1e-1, 9), rule=tight).passed is False  # outside even so wide an envelope


# --- the plain rule ----------------------------------------------------------------------------------------------------


def test_the_plain_rule_is_told_step_by_step() -> None:
    gap = noise(90, 1e-5, 9)
    gap[49] = 0.2
    found = synthetic(gap, rule=Rule(tolerance=0.02, at=(10, 50, 500)))
    assert [(check.step, check.passed) for check in found.plain] == [(10, True), (50, False), (500, None)]
    assert (found.parity, found.passed) == ("within-envelope", False)  # a rule that was asked for decides
    assert "fails at step 50" in found.text
    assert "step 500, which was not reached" in found.text
    assert synthetic(gap, rule=Rule(tolerance=0.02, at=(500,))).passed is None


# --- series that are not as they should be ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_on_the_target_alone_is_an_event(bad: float) -> None:
    gap = np.zeros(90)
    gap[50] = bad
    found = synthetic(gap)
    assert (found.parity, found.passed) == ("event", False)
    assert "at step 51" in found.text
    assert [e.kind for e in found.events] == ["not finite"]


def test_a_reference_that_diverges_is_compared_up_to_there() -> None:
    reference = falling(90)
    reference[70:] = math.nan
    around = [losses(reference + noise(90, 1e-5, seed)) for seed in range(5)]
    found = compare(losses(reference), around, losses(reference + noise(90, 1e-5, 9)))
    assert (found.parity, found.steps) == ("within-envelope", 70)
    assert any("not finite at step 71" in note for note in found.notes)
    same = compare(losses(reference), around, losses(reference))
    assert (same.parity, same.passed) == ("identical", True)
    reference[10:] = math.nan
    early = compare(losses(reference), around, losses(reference + 1))
    assert (early.parity, early.passed) == ("untested", None)


def test_too_few_steps_decide_nothing_and_unequal_lengths_are_cut_to_what_all_have() -> None:
    assert synthetic(1.0, n=29).parity == "untested"
    reference = falling(90)
    around = [losses(reference[: 40 + seed]) for seed in range(5)]
    found = compare(losses(reference), around, losses(reference + 1e-9))
    assert found.steps == 40
    assert any("40 of 90 steps are in all runs" in note for note in found.notes)
    single = compare(losses(reference), [losses(reference[:1])] * 5, losses(reference + 1e-9))
    assert (single.parity, single.steps) == ("untested", 1)
    nothing = compare(losses([]), [losses([])] * 5, losses([]))
    assert (nothing.parity, nothing.curve) == ("untested", None)


def test_four_twins_are_no_envelope() -> None:
    with pytest.raises(ValueError, match="4 twins are no envelope"):
        compare(losses(falling(40)), [losses(falling(40))] * 4, losses(falling(40)))
    with pytest.raises(ValueError, match="above zero"):
        compare(losses(falling(40)), [losses(falling(40))] * 5, losses(falling(40)), Rule(limit=0.0))


def test_twins_without_a_gap_leave_the_rounding_of_a_loss_as_the_floor() -> None:
    reference = falling(60)
    around = [losses(reference)] * 5
    near = compare(losses(reference), around, losses(reference * (1 + 4 * U)))
    assert (near.parity, near.ratio) == ("within-envelope", pytest.approx(1, rel=0.01))
    assert any("the nudge had no effect" in note for note in near.notes)
    assert compare(losses(reference), around, losses(reference * (1 + 40 * U))).passed is False
    zero = compare(losses(np.zeros(60)), [losses(np.zeros(60))] * 5, losses(np.full(60, 1e-3)))
    assert (zero.passed, math.isfinite(zero.ratio or math.inf)) == (False, True)


def test_digits_that_were_not_written_are_not_judged() -> None:
    reference = falling(60).round(3)
    around = [losses(reference, resolution=1e-3)] * 5
    found = compare(losses(reference), around, losses(reference + 1e-3, resolution=1e-3))
    assert (found.parity, found.ratio) == ("within-envelope", pytest.approx(1))
    assert any("steps of 0.001" in note for note in found.notes)


def test_a_reference_that_does_not_repeat_itself_gives_its_spread_to_the_floor() -> None:
    again = losses(falling(90) + noise(90, 1e-3, 30))
    found = synthetic(noise(90, 1e-3, 9), repeat=again)
    assert (found.parity, found.passed) == ("within-envelope", True)
    assert any("does not repeat itself (from step 1 on)" in note for note in found.notes)
    assert synthetic(noise(90, 1e-3, 9)).passed is False


def test_a_long_series_is_thinned_for_drawing_and_its_event_is_still_found() -> None:
    gap = noise(5000, 1e-5, 9)
    gap[3210:] *= 1000
    found = synthetic(gap, n=5000)
    assert found.parity == "event"
    assert "at step 3211" in found.text or "at step 3212" in found.text
    assert found.curve is not None
    assert len(found.curve.steps) <= 400
    assert (found.curve.steps[0], found.curve.steps[-1]) == (1, 5000)


# --- properties --------------------------------------------------------------------------------------------------------

SOME = st.one_of(
    st.floats(-1e30, 1e30), st.sampled_from([0.0, 1.0, 1e-45, math.nan, math.inf, -math.inf]), st.floats(1, 2)
)
SERIES = st.lists(SOME, min_size=0, max_size=70)


@settings(max_examples=60, deadline=None)
@given(reference=SERIES, twins=st.lists(SERIES, min_size=5, max_size=6), candidate=SERIES, low=st.none() | SERIES)
def test_every_series_has_an_answer_and_one_that_can_be_written(
    reference: list[float], twins: list[list[float]], candidate: list[float], low: list[float] | None
) -> None:
    found = compare(
        losses(reference),
        [losses(twin) for twin in twins],
        losses(candidate),
        Rule(limit=0.02, tolerance=0.02, at=(1, 60)),
        low=None if low is None else losses(low),
    )
    assert found.passed in ({None, False} if found.parity in UNDECIDED else {found.parity in PASSING, False, None})
    assert ParityResult.model_validate_json(found.model_dump_json()) == found


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.floats(1e-7, 1e-1),
    times=st.floats(1.0, 1e4),
    power=st.integers(-20, 20),
    n=st.sampled_from([30, 59, 90]),
)
def test_what_must_not_matter_does_not(seed: int, size: float, times: float, power: int, n: int) -> None:
    reference = falling(n)
    around = [reference + noise(n, size, seed + k) for k in range(5)]
    gap = times * noise(n, size, seed + 9)

    def judged(gap: np.ndarray, scale: float = 1.0) -> ParityResult:
        twins = [losses(scale * twin) for twin in around]
        return compare(losses(scale * reference), twins, losses(scale * (reference + gap)))

    found = judged(gap)
    scaled = judged(gap, 2.0**power)
    assert (scaled.parity, scaled.ratio) == (found.parity, pytest.approx(found.ratio))
    mirrored = judged(-gap)
    assert mirrored.parity == found.parity
    assert mirrored.ratio == pytest.approx(found.ratio, rel=1e-6)
    assert judged(10 * gap).passed <= found.passed  # a larger gap is never better
    assert judged(around[2] - reference).passed  # a twin is within its own envelope


# --- real trainings ----------------------------------------------------------------------------------------------------

STEPS, LOST = 64, 32


def sequential_sums() -> AbstractContextManager[object]:
    """Linear layers add their products one after the other: the least accurate order that is right."""

    def make(original: Any) -> Any:
        def linear(x: Any, weight: Any, bias: Any = None) -> Any:
            a, w = x.float(), weight.float()
            total = a[..., :1] * w[:, 0]
            for k in range(1, w.shape[1]):
                total = total + a[..., k : k + 1] * w[:, k]
            out = total.to(x.dtype)
            return out if bias is None else out + bias

        return linear

    return faults.patched(F, "linear", make)


def train(rate: float, dtype: str = "float32", nudger: Nudger | None = None, wrong: str = "") -> Losses:
    """The tiny language model on text that can be learnt; `wrong` is what is done to it."""
    draws = torch.Generator().manual_seed(7)
    table = torch.randint(0, tiny.VOCABULARY, (tiny.VOCABULARY, 4), generator=draws)
    torch.manual_seed(1)
    model = tiny.build_model().to(getattr(torch, dtype))
    model.drop.p = 0.0
    if nudger is not None:
        nudger(model.parameters())

    def new() -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0 if wrong == "no decay" else 1e-2)

    optimizer, found = new(), []
    for step in range(STEPS):
        ids = [torch.randint(0, tiny.VOCABULARY, (4,), generator=draws)]
        for _ in range(12):
            ids.append(table[ids[-1], torch.randint(0, 4, (4,), generator=draws)])
        text = torch.stack(ids, 1)
        if wrong == "lost state" and step == LOST:
            optimizer = new()
        _, loss = tiny.forward(model, {"ids": text[:, :-1], "labels": text[:, 1:]})
        loss.backward()
        if wrong == "zeroed norm gradient":
            model.norm.weight.grad.zero_()
            model.norm.bias.grad.zero_()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    events = [LossEvent(step=LOST + 1, kind="restart")] if wrong == "lost state" else []
    return losses(found, dtype, events=events)


class Trained:
    """The CPU's runs at one rate, made once."""

    def __init__(self, rate: float, dtype: str = "float32") -> None:
        self.rate, self.dtype = rate, dtype
        self.reference = train(rate)
        self.twins = [train(rate, nudger=Nudger(dtype, number)) for number in range(1, 6)]
        self.low = train(rate, dtype) if dtype != "float32" else None

    def judged(self, wrong: str = "", limit: float | None = 0.02) -> ParityResult:
        with nullcontext() if wrong else sequential_sums():
            candidate = train(self.rate, self.dtype, wrong=wrong)
        return compare(self.reference, self.twins, candidate, Rule(limit=limit), low=self.low)


@pytest.fixture(scope="module")
def calm() -> Trained:
    return Trained(1e-2)


@pytest.fixture(scope="module")
def wild() -> Trained:
    return Trained(0.1)


def test_another_order_of_sums_is_within_the_envelope(calm: Trained) -> None:
    found = calm.judged()
    assert (found.parity, found.passed) == ("within-envelope", True)
    assert found.first_difference is not None
    assert found.ratio is not None
    assert found.ratio < 1.5


@pytest.mark.parametrize("wrong", ["zeroed norm gradient", "no decay"])
def test_faults_that_a_tolerance_of_two_per_cent_would_pass_are_far_outside(calm: Trained, wrong: str) -> None:
    found = calm.judged(wrong)
    assert found.passed is False
    assert found.ratio is not None
    assert found.ratio > 300
    assert found.first_outside is not None
    assert found.first_outside <= 3


def test_a_lost_optimizer_state_is_an_event_at_the_restart(calm: Trained) -> None:
    found = calm.judged("lost state")
    assert (found.parity, found.first_difference) == ("event", LOST + 2)  # the loss after it is still right
    assert f"at step {LOST + 2}, at the restart that step {LOST + 1} begins with" in found.text


def test_at_a_high_rate_the_twins_themselves_part_and_that_is_said(wild: Trained) -> None:
    """There a lost state is smaller than what rounding does: growth is no sign of a fault, and losses decide nothing."""
    healthy, lost = wild.judged(limit=1e-4), wild.judged("lost state", limit=1e-4)
    assert (healthy.parity, healthy.passed, healthy.trend) == ("no-power", None, "growing")
    assert healthy.growth is not None
    assert healthy.growth > 30
    assert lost.passed is not True
    # What is wrong from the first step on shows before the twins have parted.
    assert wild.judged("no decay", limit=1e-4).passed is False


def test_bfloat16_is_explained_by_the_cpu_in_bfloat16() -> None:
    """At a low rate bfloat16 loses most of its updates, on every device: the losses are far from float32's, and a forgotten
    decay, itself lost in rounding, is seen in float32 only.
    """
    narrow = Trained(1e-3, "bfloat16")
    healthy = narrow.judged()
    assert (healthy.parity, healthy.passed) == ("explained-by-declared-precision", True)
    assert healthy.low_ratio is not None
    assert healthy.ratio is not None
    assert healthy.low_ratio < 2 < 10 < healthy.ratio
    assert narrow.judged("no decay").passed is True


def test_a_nudge_moves_every_weight_that_is_not_zero_by_one_neighbour() -> None:
    for dtype in ("float32", "bfloat16"):
        weights = torch.cat([torch.randn(1000), torch.zeros(10)]).to(getattr(torch, dtype))
        before, state = weights.double(), torch.get_rng_state()
        nudger = Nudger(dtype, 1)
        nudger([weights, weights, torch.arange(3)])
        moved = ((weights.double() - before) / before.abs()).abs()[:1000]
        assert (moved > 0).float().mean() > 0.95  # half of the powers of two stay, their neighbour being a tie away
        assert moved.max() <= 2 * nudger.roundoff
        assert (weights[1000:] == 0).all()
        assert (nudger.elements, nudger.said("").tensors) == (1010, 1)
        assert torch.equal(torch.get_rng_state(), state)
