"""``bucketed``: a few programs for every length, and the results of the unpadded calls."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import itertools
import random
import re
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shakedown import buckets
from shakedown.neuron import bucketed, events, plan_buckets
from shakedown.neuron.bucketing.edges import Online
from shakedown.neuron.errors import (
    BucketingError,
    ConfigError,
    PaddingChangesResults,
    TooLong,
    TooManyPrograms,
)

VOCABULARY, WIDTH = 23, 8


class Decoder(nn.Module):
    """Embedding, one attention over real positions, projection, and the loss where labels are given."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out, self.causal = nn.Linear(WIDTH, VOCABULARY), causal

    def forward(self, input_ids, attention_mask=None, labels=None):
        x = self.embedding(input_ids)
        scores = self.inner(x) @ x.transpose(-1, -2)
        if self.causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~seen, -1e9)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e9)
        logits = self.out(scores.softmax(-1) @ x)
        if labels is None:
            return logits
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def decoder(**options: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(**options)


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def on_device(module: nn.Module) -> Any:
    torch._dynamo.reset()
    return torch.compile(copy.deepcopy(module).to("neuron"), backend="neuron", dynamic=False, fullgraph=True)


# --- on the device ------------------------------------------------------------------------------------------------------


def test_a_thousand_requests_compile_at_most_n_programs_and_equal_unpadded_ones() -> None:
    reference = decoder()
    run = bucketed(
        on_device(reference), dim=1, max_programs=6, longest=512, mask="attention_mask", device="neuron", name="service"
    )
    dice = random.Random(1)
    lengths = [dice.randint(1, 512) for _ in range(1000)]
    events.clear()
    with torch.no_grad():
        for length in lengths:
            request = ids(1, length)
            torch.testing.assert_close(run(request).cpu(), reference(request), rtol=1e-4, atol=1e-5)
    assert events.names("fallback") == []
    assert events.total("compile") == run.stats().programs <= 6, "one program each, and no other program at all"
    found = run.stats()
    assert (found.requests, found.lengths) == (1000, {n: lengths.count(n) for n in sorted(set(lengths))})
    assert found.elements - found.padding == sum(lengths)
    assert found.padding == sum(b.requests * b.length for b in found.buckets) - sum(lengths)
    assert found.waste == found.padding / found.elements < 0.25
    assert [b.length for b in found.buckets] == [e for e in run.buckets if any(e >= n for n in lengths)]


def test_training_has_the_gradients_of_the_unpadded_step() -> None:
    reference = decoder().train()
    module = copy.deepcopy(reference).to("neuron")
    torch._dynamo.reset()
    run = bucketed(
        torch.compile(module, backend="neuron", dynamic=False, fullgraph=True),
        dim={"input_ids": 1, "labels": 1}, buckets=[8, 16], batch=[2, 4], pad={"labels": -100},
        mask="attention_mask", device="neuron",
    )  # fmt: skip
    for batch, length in ((2, 5), (3, 11), (4, 16), (1, 8), (2, 7)):
        request, labels = ids(batch, length), ids(batch, length).roll(1, 1)
        labels[0, 0] = -100
        reference.zero_grad()
        module.zero_grad()
        expected, loss = reference(request, labels=labels)
        loss.backward()
        events.clear("compile")
        logits, ours = run(request, labels=labels)
        ours.backward()
        torch.testing.assert_close(ours.cpu(), loss)
        torch.testing.assert_close(logits.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        for (name, one), other in zip(module.named_parameters(), reference.parameters()):
            torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: n + m)
    assert run.stats().programs == 2
    assert events.total("compile") == 0, "2x7 is the shape of 2x5"


def test_more_programs_than_dynamos_limit() -> None:
    function = torch.compile(lambda x: x * 2 + 1, backend="neuron", dynamic=False, fullgraph=True)
    run = bucketed(function, dim=0, buckets=range(2, 22, 2), device="neuron")
    for length in (*range(1, 21), *range(1, 21)):
        x = torch.arange(float(length))
        assert torch.equal(run(x).cpu(), x * 2 + 1)
    assert events.total("compile") == 10
    assert {r["count"] for r in events.snapshot() if r["name"].startswith("graph::")} >= {4}


def test_where_a_tensor_lies_makes_no_program() -> None:
    """Views of a larger tensor, transposed ones, tensors on the host and on the device: one program a bucket."""
    run = bucketed(torch.compile(lambda x: x.cumsum(1), backend="neuron", dynamic=False), dim=1, buckets=[4])
    source = torch.arange(60.0).reshape(5, 12)
    remote = source.to("neuron")
    events.clear()
    for view in (
        lambda t: t[:3, :4],
        lambda t: t[1:4, 2:5],
        lambda t: t[:4, :3].t(),
        lambda t: t.reshape(3, 20)[:, 7:11],
    ):
        if view(source).shape[0] == 4:
            continue
        assert torch.equal(run(view(remote)).cpu(), view(source).cumsum(1))
    assert torch.equal(run(source[:4, :3].t().to("neuron")).cpu(), source[:4, :3].t().cumsum(1))
    assert events.total("compile") == 1


def test_eager_operators_are_bounded_too_and_gradients_reach_the_inputs() -> None:
    def function(x):
        return torch.tanh(x).cumsum(1)

    run = bucketed(function, dim=1, buckets=[8])
    counts = []
    for length in (5, 3, 8, 6):
        host = torch.linspace(-1, 1, 2 * length).reshape(2, length).requires_grad_()
        remote = host.detach().to("neuron").requires_grad_()
        events.clear()
        result = run(remote)
        counts.append(events.total("compile"))
        torch.testing.assert_close(result.detach().cpu(), function(host).detach())
        result.sum().backward()
        function(host).sum().backward()
        torch.testing.assert_close(remote.grad.cpu(), host.grad)
    assert counts[0] > 0
    assert counts[1:] == [0, 0, 0]


# --- padding, on any device ---------------------------------------------------------------------------------------------


def test_each_argument_has_its_dimension_and_its_padding() -> None:
    seen: dict[str, Any] = {}

    def function(batch, scale, *rest, bias):
        seen.update(batch, scale=scale, rest=rest, bias=bias)
        return batch["input_ids"] * scale

    run = bucketed(
        function,
        dim={"input_ids": 1, "batch.square": (1, 2), "bias": -1, 2: 0},
        buckets=[4],
        pad={"input_ids": 9, "square": float("-inf"), "bias": "edge", 2: True},
    )
    batch = {
        "input_ids": torch.ones(2, 3, dtype=torch.int64),
        "square": torch.zeros(1, 3, 3),
        "other": torch.ones(3, 3),
    }
    result = run(batch, 2, torch.zeros(3, dtype=torch.bool), bias=torch.arange(3.0)[None])
    assert seen["input_ids"].tolist() == [[1, 1, 1, 9]] * 2
    assert seen["input_ids"].dtype is torch.int64
    assert seen["square"].shape == (1, 4, 4)
    assert seen["square"][0, 3].isinf().all()
    assert seen["square"][0, :, 3].isinf().all()
    assert seen["bias"].tolist() == [[0, 1, 2, 2]]
    assert seen["rest"][0].tolist() == [False, False, False, True]
    assert seen["other"] is batch["other"]
    assert batch["input_ids"].shape == (2, 3), "the caller's mapping is left alone"
    assert result.tolist() == [[2, 2, 2]] * 2


@pytest.mark.parametrize("given", [None, torch.tensor([[1, 0, 1]]), torch.tensor([[True, False, True]])], ids=str)
def test_a_mask_is_made_or_lengthened(given) -> None:
    def function(input_ids, attention_mask=None):
        return (input_ids * attention_mask).sum(1), attention_mask

    request = torch.tensor([[5, 6, 7]])
    for length in (3, 2, 4):
        run = bucketed(function, buckets=[4], mask="attention_mask", pad=100)
        own = None if given is None or length != 3 else given
        request = torch.arange(5, 5 + length)[None]
        total, mask = run(request, own)
        expected = torch.ones(1, length, dtype=torch.int64) if own is None else own
        assert torch.equal(total, (request * expected).sum(1))
        assert torch.equal(mask, expected)


def test_a_mask_in_a_mapping_and_the_length_as_an_argument() -> None:
    def function(batch, length):
        return batch["x"][:, :1] * 0 + batch["mask"].sum() * 10 + length

    run = bucketed(function, dim={"x": 1}, buckets=[8], mask="batch.mask", mask_dtype=torch.bool, length_as="length")
    assert run({"x": torch.ones(1, 5)}).item() == 55


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batches_are_padded_by_rows_that_exist(batch: int) -> None:
    seen: list[Any] = []

    def function(x, labels, mask=None):
        seen[:] = x, labels, mask
        return x * 2, labels

    run = bucketed(function, buckets=[4], batch=[2, 4], pad={"labels": -100}, mask="mask")
    x, labels = torch.rand(batch, 3), torch.arange(3 * batch).reshape(batch, 3)
    doubled, same = run(x, labels)
    assert torch.equal(doubled, x * 2)
    assert torch.equal(same, labels)
    edge = 2 if batch < 3 else 4
    assert [tuple(t.shape) for t in seen] == [(edge, 4)] * 3
    assert seen[0][-1, :3].tolist() == x[-1].tolist()
    if batch in (1, 3):
        assert (seen[1][-1] == -100).all()
        assert not seen[2][-1].any()
    assert run.stats().buckets[0].batch == edge


Pair = namedtuple("Pair", ["logits", "pooled"])


@dataclasses.dataclass(frozen=True)
class Result:
    logits: torch.Tensor
    pooled: torch.Tensor
    note: str = "as it was"


@pytest.mark.parametrize("kind", [tuple, list, dict, Pair, Result, "transformers"])
def test_results_of_every_form_are_cut(kind) -> None:
    if kind == "transformers":
        kind = pytest.importorskip("transformers.modeling_outputs").BaseModelOutputWithPooling

    def function(x):
        parts = x * 2, x.sum((1,))
        if kind in (tuple, list):
            return kind(parts)
        names = ("last_hidden_state", "pooler_output") if kind not in (dict, Pair, Result) else ("logits", "pooled")
        return kind(**dict(zip(names, parts)))

    x = torch.rand(2, 3, 5)
    found = bucketed(function, buckets=[8])(x)
    assert type(found) is kind
    first, second = (
        found
        if isinstance(found, (tuple, list))
        else found.values()
        if isinstance(found, dict)
        else (found.logits, found.pooled)
    )
    assert torch.equal(first, x * 2)
    assert torch.equal(second, x.sum(1))
    if not isinstance(found, (tuple, list, dict, Result)):
        assert torch.equal(found.last_hidden_state, x * 2)


def test_which_results_to_cut_can_be_said() -> None:
    def function(x):
        return {"same": x, "turned": x.transpose(1, 2), "table": torch.ones(2, 4)}

    x = torch.rand(2, 3, 5)
    found = bucketed(function, buckets=[4], outputs={"same": 1, "turned": 2, "table": None})(x)
    assert {name: tuple(t.shape) for name, t in found.items()} == {
        "same": (2, 3, 5),
        "turned": (2, 5, 3),
        "table": (2, 4),
    }
    single = bucketed(lambda x: x.transpose(1, 2), buckets=[4], outputs={"": 2})
    assert torch.equal(single(x), x.transpose(1, 2))
    with pytest.raises(
        BucketingError, match=r"same of shape \(2, 4, 5\) is to be cut at dimension 0, which is not 4 long"
    ):
        bucketed(function, buckets=[4], outputs={"same": 0})(x)


# --- what is refused ----------------------------------------------------------------------------------------------------


def test_a_size_that_agrees_by_chance_is_found_out() -> None:
    run = bucketed(lambda x, state: x, buckets=[4, 8])
    run(torch.ones(1, 3), torch.ones(1, 5))
    assert run(torch.ones(1, 5), torch.ones(1, 5)).shape == (1, 5)
    run = bucketed(lambda x, state: state, buckets=[4, 8], outputs={})
    assert run(torch.ones(1, 3), torch.ones(1, 3)).shape == (1, 4)
    with pytest.raises(BucketingError, match=r"state has 3 at dimension 1 and the length is 5; .*dim=\{'x': 1, ...\}"):
        run(torch.ones(1, 5), torch.ones(1, 3))
    run = bucketed(lambda x: x.new_ones(1, 4), buckets=[4, 8])
    assert run(torch.ones(1, 3)).shape == (1, 3), "by its size alone, nobody can know"
    with pytest.raises(BucketingError, match="the result has 4 at dimension 1 and was padded to a length of 8"):
        run(torch.ones(1, 5))


def test_rows_that_are_broadcast_follow_no_axis() -> None:
    run = bucketed(lambda x, positions: x + positions, buckets=[4], batch=[2, 4])
    positions = torch.arange(3.0)[None]
    for batch in (1, 3, 2):
        assert torch.equal(run(torch.zeros(batch, 3), positions), positions.expand(batch, 3))


def test_longer_requests() -> None:
    run = bucketed(lambda x: x, buckets=[4, 8])
    with pytest.raises(TooLong, match='a length of 9 is not served: the largest bucket is 8. longer="exact" runs'):
        run(torch.ones(1, 9))
    run = bucketed(lambda x: x, buckets=[4, 8], longer="exact", max_programs=3)
    assert [run(torch.ones(1, n)).shape[1] for n in (3, 9, 8, 9)] == [3, 9, 8, 9]
    assert (run.stats().longer, run.stats().programs) == (2, 3)
    with pytest.raises(TooManyPrograms, match="program 4 of at most 3: it is longer than the largest bucket"):
        run(torch.ones(1, 10))
    run = bucketed(lambda x: x, max_programs=2, longest=100)
    with pytest.raises(TooLong, match="the longest that is served is 100"):
        run(torch.ones(1, 101))
    run = bucketed(lambda x: x, max_programs=1)
    run(torch.ones(1, 16))
    with pytest.raises(TooLong, match="all 1 programs are for shorter ones, 16; say how long they get, longest="):
        run(torch.ones(1, 17))


def test_a_shape_that_is_not_padded_counts_as_a_program() -> None:
    run = bucketed(lambda x: x, max_programs=2, buckets=[4, 8])
    run(torch.ones(1, 3))
    run(torch.ones(2, 3))
    with pytest.raises(TooManyPrograms, match=r"program 3 of at most 2: x is \(3, 4\), and .* pad it too: batch="):
        run(torch.ones(3, 3))
    run = bucketed(lambda x: x, max_programs=1, buckets=[4])
    run(torch.ones(1, 3))
    with pytest.raises(TooManyPrograms, match=r"x is torch.float64, and its dtype differs"):
        run(torch.ones(1, 3, dtype=torch.float64))


class Cache:
    """An object that keeps tensors where nobody can cut them."""


def test_what_cannot_be_padded_or_cut_is_an_error() -> None:
    run = bucketed(lambda x, **more: (x, Cache()), buckets=[4])
    with pytest.raises(BucketingError, match=r"1 is a Cache, which cannot be looked into.*outputs=\{'1': None"):
        run(torch.ones(1, 3))
    passed = bucketed(lambda x: (x, Cache()), buckets=[4], outputs={0: 1, 1: None})(torch.ones(1, 3))
    assert passed[0].shape == (1, 3)
    run = bucketed(lambda x, y=None: x.add_(1), buckets=[4])
    with pytest.raises(BucketingError, match="x is written to in place, and it was padded or moved"):
        run(torch.ones(1, 3))
    same = torch.ones(1, 4)
    assert run(same) is same, "nothing was padded, so what was written is the caller's"
    with pytest.raises(BucketingError, match="no tensor of this call is with its dimension"):
        run(3)
    with pytest.raises(BucketingError, match="no tensor of this call is named z, .* it has x"):
        bucketed(lambda x: x, dim={"z": 1}, buckets=[4])(torch.ones(1, 3))
    with pytest.raises(BucketingError, match="the length is not one: x has 3, and y has 2 at dimension 1"):
        bucketed(lambda x, y: x, dim={"x": 1, "y": 1}, buckets=[4])(torch.ones(1, 3), torch.ones(1, 2))
    with pytest.raises(BucketingError, match=r"x of shape \(3,\) has no dimension 1"):
        bucketed(lambda x: x, dim={"x": 1}, buckets=[4])(torch.ones(3))
    with pytest.raises(BucketingError, match=r"x is uint8, which cannot hold its padding -100"):
        bucketed(lambda x: x, dim={"x": 0}, buckets=[4], pad={"x": -100})(torch.ones(3, dtype=torch.uint8))
    with pytest.raises(BucketingError, match="mask is to be given to the function, which takes x"):
        bucketed(lambda x: x, buckets=[4], mask="mask")(torch.ones(1, 3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give buckets="),
        ({"buckets": []}, "must be whole numbers above 0"),
        ({"buckets": [4, 0]}, "must be whole numbers above 0"),
        ({"buckets": [4], "lengths": [3]}, "either buckets or the lengths"),
        ({"buckets": [4, 8], "max_programs": 1}, "2 shapes are 2 buckets, and max_programs is 1"),
        ({"buckets": [4, 8], "batch": [1, 2], "max_programs": 3}, "4 shapes are 2 buckets of 2 batch sizes"),
        ({"buckets": [4], "longer": "cut"}, 'must be "error" or "exact"'),
        ({"buckets": [4], "longer": "exact"}, "say how many there may be in all"),
        ({"buckets": [4], "longest": 5}, "above the largest bucket, 4"),
        ({"max_programs": 0}, "must be at least 1"),
        ({"max_programs": 1, "batch": [1, 2]}, "2 batch sizes need as many programs"),
        ({"buckets": [4], "dim": 1.5}, "1.5 is no dimension"),
        ({"buckets": [4], "dim": {}}, "no tensor is named"),
        ({"lengths": "/nowhere/lengths.csv"}, "cannot read the lengths /nowhere/lengths.csv"),
        ({"lengths": [0]}, "lengths are whole numbers from 1"),
        ({"lengths": []}, "there is none"),
    ],
)
def test_arguments_that_do_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bucketed(lambda x: x, **options)
    with pytest.raises(ConfigError, match="int is neither"):
        bucketed(3, buckets=[4])


# --- what depends on the padding ----------------------------------------------------------------------------------------


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.rnn(x)[0]


class Channels(nn.Module):
    """A module that takes channels before the length, called with the length first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


def mean(x):
    return x.mean(1)


UNSAFE = {
    "mean": (mean, "differs by .*over the whole length"),
    "last": (lambda x: x[:, -1], "or the last position"),
    "attention": (
        lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
        "every position sees the padding.*no mask is given",
    ),
    "lookahead": (Channels(nn.Conv1d(4, 4, 3, padding=1).requires_grad_(False)), ""),
    "both directions": (Both(), "backward direction of GRU begins in the padding"),
    "batch norm": (Channels(nn.BatchNorm1d(4)), "BatchNorm1d takes its statistics over padded"),
    "group norm": (Channels(nn.GroupNorm(2, 4)), "GroupNorm normalises over all positions"),
    "ahead": (lambda x: x + x.roll(-1, 1), "positions before 2 agree, so it looks ahead"),
    "size": (lambda x: torch.ones(1, x.shape[1] * 2), r"has another shape .*\(1, 16\), and \(1, 6\)"),
}


@pytest.mark.filterwarnings("ignore:bucketed. results depend")
@pytest.mark.parametrize("name", UNSAFE)
def test_a_check_finds_what_depends_on_the_padding(name: str) -> None:
    function, said = UNSAFE[name]
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4)
    checked = bucketed(function, buckets=[8], check=True)
    if not said:  # zeros are what a convolution pads with by itself
        assert checked(x).shape == (1, 3, 4)
        return
    with pytest.raises(PaddingChangesResults, match=said):
        checked(x)
    bucketed(function, buckets=[3], check=True)(x)  # nothing is added


def test_a_check_passes_what_is_masked_and_leaves_no_trace() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = decoder(causal=False), 0
            self.register_buffer("count", torch.zeros(1))

        def forward(self, input_ids, attention_mask=None):
            self.calls += 1
            self.count += 1
            torch.rand(1)
            return self.inner(input_ids, attention_mask)

    module = Noisy()
    run = bucketed(module, buckets=[8, 16], mask="attention_mask", check=True)
    torch.manual_seed(3)
    results = [run(ids(1, n)) for n in (5, 6, 11)]
    after = torch.rand(1)
    assert module.calls == 3 + 2 * 2, "two more for the first of each bucket"
    assert module.count.item() == 3
    torch.manual_seed(3)
    plain = [module(ids(1, n)) for n in (5, 6, 11)]
    assert torch.equal(torch.rand(1), after)
    for one, other in zip(results, plain):
        torch.testing.assert_close(one, other)
    assert all(p.grad is None for p in module.parameters())


def test_a_check_compares_gradients_too() -> None:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x, mask=None):
            scores = (x * self.weight).sum(-1)[:, :, None].expand(-1, -1, x.shape[1])
            # Padded rows attend to nothing: no numbers there, cut off from the result, and in every gradient.
            seen = mask[:, None, :].bool() & mask[:, :, None].bool()
            return (scores + torch.where(seen, 0.0, float("-inf"))).softmax(-1) @ x

    run = bucketed(Pool(), buckets=[8], mask="mask", check=True)
    x = torch.randn(1, 3, 4)
    with pytest.raises(
        PaddingChangesResults, match=r"the gradient of weight differs by 4 elements that are finite on one"
    ):
        run(x)
    with torch.no_grad():
        assert run(x, torch.ones(1, 3)).isfinite().all()


def test_a_tolerance_of_the_check() -> None:
    def function(x):
        return x * (1 + 1e-3 * (x.shape[1] == 8))

    with pytest.raises(PaddingChangesResults):
        bucketed(function, buckets=[8], check=True)(torch.ones(1, 3))
    assert bucketed(function, buckets=[8], check=1e-2)(torch.ones(1, 3)).shape == (1, 3)


def test_known_hazards_are_told_once() -> None:
    run = bucketed(Channels(nn.BatchNorm1d(4)), buckets=[8])
    run(torch.randn(1, 8, 4))
    with pytest.warns(UserWarning, match="BatchNorm1d takes its statistics over padded positions too") as told:
        _ = [run(torch.randn(1, length, 4)) for length in (3, 4)]
    assert len(told) == 1
    run = bucketed(lambda x, labels: x, buckets=[8], pad=0)
    with pytest.warns(
        UserWarning, match=r"labels is padded with 0, which a loss counts as a target: pad=\{'labels': -100\}"
    ):
        run(torch.ones(1, 3), torch.ones(1, 3, dtype=torch.int64))


# --- a module ------------------------------------------------------------------------------------------------------------


def test_a_bucketed_module_is_the_module() -> None:
    module = decoder()
    run = bucketed(module, buckets=[8], mask="attention_mask")
    assert isinstance(run, nn.Module)
    assert list(run.state_dict()) == list(module.state_dict())
    assert [n for n, _ in run.named_parameters()] == [n for n, _ in module.named_parameters()]
    assert run.causal is True
    assert run.eval() is run
    assert not module.training
    assert not module.inner.training
    assert not run.training
    module.train()
    assert run.training
    parent = nn.ModuleDict({"decoder": run})
    saved = {name: torch.full_like(value, 0.5) for name, value in parent.state_dict().items()}
    assert "decoder.embedding.weight" in saved
    parent.load_state_dict(saved)
    assert (module.embedding.weight == 0.5).all()
    run.to(torch.float64)
    assert module.out.weight.dtype is torch.float64
    optimizer = torch.optim.SGD(run.parameters(), lr=0.1)
    run(ids(1, 5)).sum().backward()
    optimizer.step()
    assert not (module.out.weight == 0.5).all()
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = run.no_such_thing


def test_a_deep_copy_is_on_its_own() -> None:
    run = bucketed(decoder(), max_programs=4, longest=64, mask="attention_mask", name="copied")
    run(ids(1, 5))
    other = copy.deepcopy(run)
    assert other.buckets == run.buckets == (16,)
    assert other.out.weight is not run.out.weight
    assert other.wrapped.out.weight is other.out.weight
    assert torch.equal(other(ids(1, 6)), run(ids(1, 6)))
    assert (run.stats().requests, other.stats().requests, other.stats().programs) == (2, 1, 1)
    function = copy.deepcopy(bucketed(mean, buckets=[4], outputs={}))
    assert function.__name__ == "mean"
    assert function(torch.ones(1, 3)).shape == (1,)


# --- edges --------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9), st.integers(1, 700), st.lists(st.integers(0, 700), max_size=300))
def test_edges_that_are_opened_are_bounded_and_hold_every_length(
    programs: int, longest: int, lengths: list[int]
) -> None:
    first, second = Online(programs, longest), Online(programs, longest)
    for length in lengths:
        before = first.known
        edge = first.edge_of(length)
        assert second.edge_of(length) == edge, "the same requests give the same edges"
        assert set(before) <= set(first.known), "a program that was compiled is never given up"
        assert len(first.known) <= programs
        if length <= longest:
            assert edge is not None
            assert length <= edge <= max(longest, min(longest, 16))
            assert edge in first.known
        else:
            assert edge is None


def test_edges_move_to_where_the_lengths_are() -> None:
    edges = Online(6, longest=1024)
    dice = random.Random(0)
    lengths = [dice.choice([300, 310, 370, 600, 1000]) for _ in range(400)]
    used = [edges.edge_of(n) for n in lengths]
    late = sum(used[200:]) / sum(lengths[200:])
    assert late < sum(used[:60]) / sum(lengths[:60])
    assert late < 1.15


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(1, 500), st.floats(0.01, 1), min_size=1, max_size=7),
    st.sets(st.integers(1, 600), min_size=1, max_size=3),
    st.integers(0, 3),
)
def test_edges_beside_others_are_the_best_there_are(shares, there: set[int], more: int) -> None:
    def positions(edges) -> float:
        held = {n: [e for e in edges if e >= n] for n in shares if n <= max(there)}
        return sum(shares[n] * min(ends) for n, ends in held.items())

    found = buckets.extended(shares, there, more)
    below = {n for n in shares if n <= max(there)}
    allowed = set(buckets.candidates(below)) if below else set()
    ends = sorted({min(c, e) for c in allowed for e in there} | allowed)
    best = min(
        positions(there | set(chosen)) for count in range(more + 1) for chosen in itertools.combinations(ends, count)
    )
    assert len(found) <= more
    assert positions(there | set(found)) * (1 - buckets.NEAR) <= best + 1e-9


def test_a_plan_from_lengths(tmp_path) -> None:
    counts = {96: 600, 240: 300, 480: 100}
    (tmp_path / "lengths.csv").write_text("length,count\n96,600\n240,300\n480,100\n")
    listed = [n for n, count in counts.items() for _ in range(count)]
    file = tmp_path / "lengths.csv"
    plans = [plan_buckets(one, max_programs=8) for one in (counts, listed, str(file), file)]
    assert {plan.best.edges for plan in plans} == {(128, 256, 512)}
    costs: dict[str, Any] = {"max_programs": 8, "compile_seconds": 60, "seconds_per_element": 1e-4}
    assert plan_buckets(counts, requests=1000, **costs).best.edges == (512,), "another program costs more than it saves"
    assert plan_buckets(counts, requests=10**6, **costs).best.edges == (128, 256, 512)
    assert plan_buckets(counts, longest=2000).best.edges[-1] == 2000
    for options, said in (({"compile_seconds": -1}, "is no cost"), ({"max_programs": 0}, "a plan needs")):
        with pytest.raises(ConfigError, match=said):
            plan_buckets(counts, **options)
    run = bucketed(lambda x: x, lengths=counts, max_programs=2)
    assert run.buckets == plan_buckets(counts, max_programs=2).best.edges
    assert bucketed(lambda x: x, buckets=plans[0]).buckets == (128, 256, 512)
    assert run(torch.ones(1, 100)).shape == (1, 100)
    again = plan_buckets(run.stats().lengths, max_programs=2)
    assert again.best.edges == (128,), "what was seen can be planned from"


def test_the_example_runs(monkeypatch, capsys) -> None:
    file = Path(__file__).parents[2] / "examples" / "bucketed_service.py"
    spec = importlib.util.spec_from_file_location("bucketed_service", file)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name, value in (("LONGEST", 24), ("REQUESTS", 12), ("PROGRAMS", 2)):
        monkeypatch.setattr(example, name, value)
    example.main()
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("planned: the fewest programs")
    assert told[1].startswith("opened as requests come: 12 requests")
    assert re.search(r"buckets \[(16, )?24\], [12] programs", told[1])
    assert told[2].startswith("planned from lengths: 12 requests")
