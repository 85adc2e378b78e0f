"""The CTC loss: values and gradients against the CPU, and one program for batches of different lengths."""

import pytest
import torch

from shakedown.neuron import events

from .agreement import agree

pytestmark = pytest.mark.rotating(2, least=3)

F = torch.nn.functional


def batch(steps, sequences, classes, room, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(steps, sequences, classes, generator=generator, dtype=dtype)
    return scores, torch.randint(1, classes, (sequences, room), generator=generator)


def loss(steps, lengths, **options):
    def fn(scores, targets):
        return F.ctc_loss(scores.log_softmax(-1), targets, steps, lengths, **options)

    return fn


CASES = {
    "mean": ([12, 9, 5], [4, 2, 0], {}),
    "sum": ([12, 12, 12], [4, 4, 4], {"reduction": "sum"}),
    "each": ([12, 7, 8], [3, 4, 1], {"reduction": "none"}),
    "another blank": ([12, 7, 8], [3, 4, 1], {"blank": 2}),
    "no steps": ([12, 0, 0], [3, 0, 1], {"reduction": "none", "zero_infinity": True}),
    "impossible": ([12, 3, 8], [3, 4, 1], {"reduction": "none"}),
    "impossible and zeroed": ([12, 3, 8], [3, 4, 1], {"reduction": "none", "zero_infinity": True}),
    "only blanks": ([12, 3, 8], [0, 0, 0], {"reduction": "none"}),
}


@pytest.mark.covering("torch.float32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_against_the_cpu(name, dtype):
    steps, lengths, options = CASES[name]
    scores, targets = batch(12, 3, 5, 4, dtype=dtype)
    targets[targets == options.get("blank", 0)] = 1
    agree(loss(steps, lengths, **options), scores, targets, gradients=True)
    agree(loss(torch.tensor(steps), torch.tensor(lengths), **options), scores, targets, gradients=True)


def test_repeated_labels_need_a_blank_between():
    scores, _ = batch(7, 1, 4, 3)
    agree(loss([7], [3], reduction="none"), scores, torch.tensor([[2, 2, 2]]), gradients=True)


def test_targets_one_after_the_other():
    scores, _ = batch(9, 3, 6, 1)
    targets = torch.tensor([1, 5, 5, 2, 3, 4])
    agree(loss([9, 8, 9], [3, 1, 2], reduction="none"), scores, targets, gradients=True)


def test_one_sequence_without_a_batch():
    scores, targets = batch(9, 1, 6, 3)
    agree(loss(torch.tensor(9), torch.tensor(3), reduction="none"), scores[:, 0], targets[0], gradients=True)


def test_impossible_classes():
    """A class of probability 0, inside the target and outside."""
    scores, targets = batch(6, 2, 4, 2)
    scores[:, :, 3] = -torch.inf
    for labels in (targets.clamp(max=2), torch.full_like(targets, 3)):
        agree(lambda s, t: F.ctc_loss(s, t, [6, 6], [2, 2], reduction="none"), scores, labels, gradients=True)


def test_alpha_has_the_size_that_the_longest_target_needs():
    scores, targets = batch(6, 2, 4, 5)
    alpha = torch._ctc_loss(scores.to("neuron"), targets.to("neuron"), [6, 6], [1, 3])[1]
    assert alpha.shape == torch._ctc_loss(scores, targets, [6, 6], [1, 3])[1].shape == (2, 6, 7)


def test_other_lengths_do_not_compile_the_recursions_again():
    scores, targets = (t.to("neuron") for t in batch(10, 2, 5, 4))
    scores.requires_grad_()

    def train(steps, lengths):
        torch.autograd.grad(loss(steps, lengths)(scores, targets), scores)

    train([10, 10], [4, 2])
    events.clear()
    train([9, 4], [1, 4])
    compiled = [r["name"] for r in events.snapshot() if r["kind"] == "compile"]
    assert not [n for n in compiled if "ctc" in n], compiled


@pytest.mark.parametrize(
    ("steps", "lengths", "blank"),
    [([10], [1, 1], 0), ([11, 10], [1, 1], 0), ([10, 10], [5, 1], 0), ([10, 10], [1, 1], 9), ([10, 10], [-1, 1], 0)],
)
def test_errors_are_the_cpus(steps, lengths, blank):
    scores, targets = batch(10, 2, 5, 4)
    with pytest.raises(RuntimeError) as expected:
        loss(steps, lengths, blank=blank)(scores, targets)
    with pytest.raises(RuntimeError) as actual:
        loss(steps, lengths, blank=blank)(scores.to("neuron"), targets.to("neuron"))
    assert str(actual.value) == str(expected.value)


def test_compiled():
    scores, targets = batch(8, 2, 5, 3)

    def fn(s, t):
        return F.ctc_loss(s.log_softmax(-1), t, [8, 6], [3, 2])

    there = scores.to("neuron").requires_grad_()
    here = scores.clone().requires_grad_()
    expected, actual = fn(here, targets), torch.compile(fn, backend="neuron")(there, targets.to("neuron"))
    torch.testing.assert_close(actual.detach().cpu(), expected.detach())
    expected.backward(), actual.backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)
