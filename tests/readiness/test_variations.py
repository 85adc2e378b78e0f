"""Varied cases: the same values in another layout, padded batches, and inputs that are hard on purpose."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from shakedown.readiness import trial, variations, workload
from shakedown.readiness.errors import WorkloadError
from shakedown.readiness.judge.disposition import SUITABLE
from shakedown.readiness.observe import numerics
from shakedown.readiness.workload import Case, Workload

from .support import TINY, InProcess


def built_in(name: str) -> Workload:
    return workload.load(workload.resolve(name))


def batch_of(loaded: Workload, case: Case) -> dict[str, Tensor]:
    torch.manual_seed(3)
    return loaded.make_batch(case.size, case.length)


def outcome(loaded: Workload, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, list[Tensor]]:
    """Outputs, loss and gradients of one training step on the CPU."""
    torch.manual_seed(0)
    model = loaded.build_model()
    outputs, loss = numerics.outputs_of(loaded.forward(model, batch))
    loss.backward()
    return outputs, loss, [p.grad for p in model.parameters() if p.grad is not None]


def test_padding_goes_to_the_next_power_of_two_and_changes_no_result_of_the_decoder() -> None:
    loaded, case = built_in("decoder"), Case(2, 32, "padding")
    plain = batch_of(loaded, case)
    padded = variations.vary(loaded, plain, case)
    assert padded["ids"].shape == (2, 64)
    assert (padded["labels"][:, 32:] == -100).all()
    outputs, loss, gradients = outcome(loaded, plain)
    more, same, padded_gradients = outcome(loaded, padded)
    assert torch.allclose(loss, same, rtol=1e-6)
    assert torch.allclose(more["output"][:, :32], outputs["output"], atol=1e-5)
    for one, other in zip(gradients, padded_gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_padding_is_not_neutral_for_a_network_that_averages_over_pixels() -> None:
    loaded, case = built_in("cnn"), Case(8, 16, "padding")
    plain = batch_of(loaded, case)
    padded = variations.vary(loaded, plain, case, padded_to=24)
    assert padded["images"].shape[-2:] == (24, 24)
    assert not torch.allclose(outcome(loaded, plain)[1], outcome(loaded, padded)[1], rtol=1e-3)


def test_reasons_why_a_case_cannot_be_varied_are_said() -> None:
    loaded = built_in(str(TINY))
    case = Case(2, 8, "padding")
    batch = batch_of(loaded, case)
    assert "no function pad(batch, length)" in variations.applicable(loaded, case, batch)
    with pytest.raises(WorkloadError, match="2x8~padding cannot be made: the workload has no function pad"):
        variations.vary(loaded, batch, case)
    assert "integers have no tiny values" in variations.applicable(loaded, Case(2, 8, "tiny"), batch)
    with_pad = dataclasses.replace(loaded, pad=lambda batch, length: batch)
    with pytest.raises(WorkloadError, match="shorter than its length"):
        variations.vary(with_pad, batch, case, padded_to=4)
    single = {"x": torch.ones(1)}
    assert "order in memory" in variations.applicable(loaded, Case(1, 1, "noncontiguous"), single)
    for kind in ("", "logging", "large", "ties", "noncontiguous"):
        assert variations.applicable(loaded, Case(2, 8, kind), batch) == ""


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda batch, length: [batch], "must return a dict of tensors"),
        (lambda batch, length: {"ids": batch["ids"]}, "only one of the two has labels"),
        (lambda batch, length: {**batch, "ids": batch["ids"].float()}, r"returned ids as torch.float32"),
    ],
)
def test_a_wrong_pad_function_is_named(returned, said: str) -> None:
    loaded = dataclasses.replace(built_in(str(TINY)), pad=returned)
    case = Case(2, 8, "padding")
    with pytest.raises(WorkloadError, match=said):
        variations.vary(loaded, batch_of(loaded, case), case)


@pytest.mark.parametrize("name", ["decoder", "cnn"])
@pytest.mark.parametrize("kind", variations.HARD)
def test_hard_inputs_keep_dtypes_and_a_sane_model_finite(name: str, kind: str) -> None:
    loaded, case = built_in(name), dataclasses.replace(built_in(name).cases[0], variation=kind)
    plain = batch_of(loaded, case)
    if variations.applicable(loaded, case, plain):
        assert (name, kind) == ("decoder", "tiny")
        return
    varied = variations.vary(loaded, plain, case)
    assert {n: v.dtype for n, v in varied.items()} == {n: v.dtype for n, v in plain.items()}
    assert any(not torch.equal(varied[n], plain[n]) for n in plain)
    outputs, loss, gradients = outcome(loaded, varied)
    for value in (*outputs.values(), loss, *gradients):
        assert value.isfinite().all()


def test_sizes_of_large_and_tiny_inputs_follow_the_narrowest_precision() -> None:
    loaded = built_in("cnn")
    plain = batch_of(loaded, Case(8, 16))

    def largest(kind: str, *dtypes: str) -> int:
        batch = variations.vary(loaded, plain, Case(8, 16, kind), dtypes=dtypes)
        assert torch.equal(batch["labels"], plain["labels"])
        ratio = batch["images"] / plain["images"]
        assert (ratio == ratio[0, 0, 0, 0]).all()
        return math.frexp(float(batch["images"].abs().max()))[1] - 1

    assert largest("large", "float32") == 31
    assert largest("large", "float32", "float16") == 3
    assert largest("tiny", "bfloat16") == -64
    assert largest("tiny", "float16") == -8


def test_ties_leave_few_values_that_every_precision_holds() -> None:
    loaded = built_in("cnn")
    images = variations.vary(loaded, batch_of(loaded, Case(8, 16)), Case(8, 16, "ties"))["images"]
    levels = images.unique()
    assert 2 <= levels.numel() <= 7
    assert torch.equal(levels, levels.bfloat16().float())
    ids = variations.vary(built_in("decoder"), {"ids": torch.tensor([[3, 5, 5, -100]])}, Case(1, 4, "ties"))["ids"]
    assert ids.tolist() == [[5, 5, 5, -100]]


def test_masks_of_zeros_and_ones_are_not_scaled() -> None:
    batch = {"x": torch.tensor([[1.5, -3.0]]), "mask": torch.tensor([0.0, 1.0, float("-inf")])}
    varied = variations.vary(built_in("cnn"), batch, Case(1, 2, "large"))
    assert torch.equal(varied["mask"], batch["mask"])
    assert varied["x"].abs().max() >= 2.0**31


def test_a_workload_that_defines_hard_batch_is_asked() -> None:
    asked = []

    def hard_batch(size: int, length: int, kind: str) -> dict[str, Tensor]:
        asked.append((size, length, kind))
        ids = torch.zeros(size, length, dtype=torch.int64)
        return {"ids": ids, "labels": ids}

    loaded = dataclasses.replace(built_in(str(TINY)), hard_batch=hard_batch)
    case = Case(2, 8, "tiny")
    assert not variations.vary(loaded, batch_of(loaded, case), case)["ids"].any()
    assert asked == [(2, 8, "tiny")]


def test_relayout_keeps_values_and_alternates_two_layouts() -> None:
    batch = {"a": torch.randn(3, 4), "b": torch.arange(12).view(3, 4), "c": torch.randn(5), "d": torch.tensor(2.0)}
    moved = variations.relayout(batch)
    for name, value in batch.items():
        assert torch.equal(moved[name], value)
        assert moved[name].dtype == value.dtype
    assert moved["a"].stride() == (1, 3)
    assert moved["b"].stride() == (8, 2)
    assert moved["c"].stride() == (2,)


def test_relayout_works_on_the_device_and_results_are_the_same() -> None:
    import shakedown.neuron  # noqa: F401

    loaded, case = built_in(str(TINY)), Case(2, 8, "noncontiguous")
    batch = {name: value.to("neuron") for name, value in batch_of(loaded, case).items()}
    moved = variations.relayout(batch)
    assert not any(value.is_contiguous() for value in moved.values())
    torch.manual_seed(0)
    model = loaded.build_model().eval().to("neuron")
    one, other = (float(loaded.forward(model, b)[1].detach().cpu()) for b in (batch, moved))
    assert one == other


def test_optional_functions_must_be_functions(tmp_path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(TINY.read_text() + "\npad = 64\n")
    with pytest.raises(WorkloadError, match="pad is not a function"):
        workload.load(workload.resolve(str(file)))


@pytest.mark.parametrize(("ignored", "word"), [(-100, "padding-neutral"), (0, "padding-changes-result")])
def test_a_trial_says_whether_padding_changes_what_is_computed(tmp_path, ignored: int, word: str) -> None:
    """With labels that the loss ignores nothing changes; with labels of 0 the loss counts what is not there."""
    file = tmp_path / "padded.py"
    file.write_text(
        TINY.read_text().replace('("2x8", "1x12")', '("2x8",)') + "\n\ndef pad(batch, length):\n"
        "    more = (0, length - batch['ids'].shape[1])\n"
        f"    return {{'ids': F.pad(batch['ids'], more), 'labels': F.pad(batch['labels'], more, value={ignored})}}\n"
    )
    demand = tmp_path / "demand.toml"
    off = "".join(f"{name} = false\n" for name in ("noncontiguous", "hard_inputs", "neighbours", "restart"))
    demand.write_text(
        "[timing]\nsteps = 5\nprocesses = 1\nscaling_tolerance = 1e9\n[run]\nthreads = 1\n"
        f"[parity]\nsteps = 0\n[variations]\nlogging_every = 0\n{off}"
    )
    request = trial.Request(
        str(file), tmp_path / "out", target="cpu", modes=("eager",), dtypes=("float32",), requirements=demand
    )
    record = trial.run(request, executor=InProcess())
    (finding,) = [f for f in record.judgement.findings if f.word.startswith(("padding", "untested(padding)"))]
    assert finding.word == word
    assert finding.case == "2x8~padding"
    assert not finding.fails
    assert record.judgement.decision.disposition == SUITABLE, "the device is right either way"
