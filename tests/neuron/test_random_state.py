"""The random stream of the device: seeds, states, forks, and that whatever draws does so natively, in every mode alike."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shakedown.neuron import dispatch, events
from shakedown.neuron.lowering import registry

from .test_generator import DRAWS, make
from .twins import compiled

pytestmark = pytest.mark.rotating(2, least=3)

neuron = torch.neuron


def draw() -> torch.Tensor:
    return torch.rand(4, device="neuron")


# --- seeds and states ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [torch.manual_seed, neuron.manual_seed, neuron.manual_seed_all, torch.random.manual_seed]
)
def test_seeding(seed):
    seed(7)
    assert neuron.initial_seed() == 7
    first = draw()
    seed(8)
    assert not torch.equal(draw(), first)
    seed(7)
    assert torch.equal(draw(), first)


def test_seeds_that_nobody_chose():
    seeds = set()
    for reseed in (neuron.seed, neuron.seed_all, torch.seed, neuron.seed):
        reseed()
        seeds.add(neuron.initial_seed())
    assert len(seeds) == 4
    script = "from shakedown.neuron import rng; print(*rng.state())"
    starts = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout for _ in "12"
    }
    assert len(starts) == 2  # processes start at random, at the beginning of a stream
    assert all(start.split()[1] == "0" for start in starts)


def test_states():
    neuron.manual_seed(0x0102030405060708)
    draw(), draw()
    state = neuron.get_rng_state()
    assert (state.dtype, state.device.type) == (torch.uint8, "cpu")
    assert state.tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0]  # seed and offset, little-endian
    third = draw()
    for restore in (
        lambda: neuron.set_rng_state(state),
        lambda: neuron.set_rng_state(state, device="neuron:0"),
        lambda: neuron.set_rng_state_all([state]),
        lambda: neuron.set_rng_state(state.to("neuron")),
    ):
        restore()
        assert torch.equal(draw(), third)
    (of_all,) = neuron.get_rng_state_all()
    assert torch.equal(of_all, neuron.get_rng_state("neuron"))
    neuron.set_rng_state(state[:8])  # a seed alone
    draw(), draw()
    assert torch.equal(draw(), third)


@pytest.mark.parametrize("length", [0, 7, 9, 15, 17, 5056])
def test_states_of_other_sizes_are_refused(length):
    neuron.manual_seed(3)
    before = neuron.get_rng_state()
    with pytest.raises(RuntimeError, match=f"RNG state must be 16 bytes .* or 8 .*, got {length}"):
        neuron.set_rng_state(torch.zeros(length, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"must be a torch\.ByteTensor, got torch\.int64"):
        neuron.set_rng_state(torch.zeros(2, dtype=torch.int64))
    with pytest.raises((ValueError, RuntimeError)):
        neuron.set_rng_state(before, device="neuron:9")
    assert torch.equal(neuron.get_rng_state(), before)


def test_forks_give_the_stream_back():
    for options in ({"devices": [0]}, {"devices": ["neuron:0"]}, {"devices": [torch.device("neuron", 0)]}, {}):
        torch.manual_seed(4)
        with torch.random.fork_rng(**options, device_type="neuron"):
            torch.manual_seed(9)
            first = draw(), torch.rand(4)
        again = draw(), torch.rand(4)
        torch.manual_seed(9)
        assert all(torch.equal(a, b) for a, b in zip(first, (draw(), torch.rand(4))))
        torch.manual_seed(4)
        assert all(torch.equal(a, b) for a, b in zip(again, (draw(), torch.rand(4))))
    torch.manual_seed(4)
    with torch.random.fork_rng(enabled=False, device_type="neuron"):
        draw()
    assert neuron.get_rng_state()[8] == 1


# --- what draws ---------------------------------------------------------------------------------------------------------

_OTHERS = ("cudnn", "miopen", "mps", "flash", "efficient", "triton", "mem_eff", "fused_")  # other devices' own kernels


def test_every_random_operator_is_known_by_name():
    """Each overload that takes a generator, or is tagged as drawing, has a lowering or is made of operators that have one."""
    draw()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    missing, seen = [], 0
    for name in torch._C._dispatch_get_all_op_names():
        base, _, which = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), which or "default", None)
        if not name.startswith("aten::") or op is None or any(part in base for part in _OTHERS):
            continue
        generators = [i for i, a in enumerate(op._schema.arguments) if "Generator" in str(a.type)]
        if not generators and torch.Tag.nondeterministic_seeded not in op.tags:
            continue
        seen += 1
        after = [a for a in op._schema.arguments[generators[0] + 1 :] if not a.kwarg_only] if generators else []
        assert not after, f"{name}: the dispatcher expects a generator to be the last that is given by position"
        operator = dispatch.operator_of(op)
        made_of_others = any(has(op.name(), key) for key in ("CompositeImplicitAutograd", "CompositeExplicitAutograd"))
        if operator.lowering is None and registry.composite_of(op) is None and not made_of_others:
            missing.append(name)
        if operator.lowering is not None and generators:
            assert operator.random, name
    assert seen > 100
    assert missing in ([], ["aten::_nested_tensor_softmax_with_shape"])


def ones(*size, **options):
    return torch.ones(*size, device="neuron", **options)


# name -> (call, what must have run: the operator, or the ones that it is made of)
WHOLE = {
    "dropout": (lambda: F.dropout(ones(50), 0.5), "aten::native_dropout"),
    "dropout_": (lambda: F.dropout(ones(50), 0.5, inplace=True), "aten::bernoulli_.float"),
    "native_dropout": (lambda: torch.native_dropout(ones(50), 0.5, True)[0], "aten::native_dropout"),
    "dropout1d": (lambda: F.dropout1d(ones(9, 9, 4), 0.5), "aten::bernoulli_.float"),
    "dropout2d": (lambda: F.dropout2d(ones(9, 9, 4, 4), 0.5), "aten::bernoulli_.float"),
    "dropout3d": (lambda: F.dropout3d(ones(9, 9, 2, 2, 2), 0.5), "aten::bernoulli_.float"),
    "alpha_dropout": (lambda: F.alpha_dropout(ones(50), 0.5, True), "aten::bernoulli_.float"),
    "feature_alpha_dropout": (lambda: F.feature_alpha_dropout(ones(9, 9, 4), 0.5, True), "aten::bernoulli_.float"),
    "rrelu": (lambda: F.rrelu(-ones(50), 0.1, 0.3, True), "aten::rrelu_with_noise"),
    "gumbel_softmax": (lambda: F.gumbel_softmax(ones(9, 9)), "aten::exponential_"),
    "attention": (lambda: F.scaled_dot_product_attention(*[ones(1, 2, 8, 4)] * 3, dropout_p=0.5), None),
    "out= rand": (lambda: torch.rand(50, out=ones(50)), "aten::uniform_"),
    "out= randn": (lambda: torch.randn(50, out=ones(50)), "aten::normal_"),
    "out= randint": (lambda: torch.randint(3, 99, (50,), out=ones(50, dtype=torch.int64)), "aten::random_.from"),
    "out= randperm": (lambda: torch.randperm(50, out=ones(50, dtype=torch.int64)), "aten::randperm.generator_out"),
    "out= bernoulli": (lambda: torch.bernoulli(ones(50) / 2, out=ones(50)), None),
    "out= multinomial": (lambda: torch.multinomial(ones(50), 20, out=ones(20, dtype=torch.int64)), None),
    "out= normal": (lambda: torch.normal(0.0, 1.0, (50,), out=ones(50)), None),
    "out= rrelu": (
        lambda: torch.ops.aten.rrelu_with_noise.out(-ones(50), ones(50), 0.1, 0.3, True, out=ones(50)),
        None,
    ),
    "half": (lambda: torch.randn(50, device="neuron", dtype=torch.bfloat16), "aten::randn"),
    "complex": (lambda: torch.randn(50, device="neuron", dtype=torch.complex64), "aten::randn"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_draws_is_native_and_leaves_the_cpus_generator_alone(name):
    call, expected = WHOLE[name]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    events.clear()
    first = call()
    assert not neuron.get_fallback_ops()
    if expected is not None:
        assert expected in neuron.get_executed_ops()
    assert torch.equal(torch.get_rng_state(), state)
    assert int(neuron.get_rng_state()[8]) >= 1
    assert not torch.equal(call(), first)
    torch.rand(100)  # of the CPU, which is not ours
    torch.neuron.manual_seed(5)
    assert torch.equal(call(), first)


# --- modes --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_dynamo")
def test_graphs_draw_what_eager_execution_draws():
    """One graph of many samplers: the same values, and the stream ends at the same place. (At ``random_`` Dynamo breaks.)

    Where a product and a sum follow a draw, a graph may round once instead of twice.
    """
    names = ("rand", "randn", "randint", "randperm", "randint_like", "bernoulli", "multinomial", "uniform_", "normal_")
    names += ("exponential_", "geometric_", "bernoulli_")

    def many():
        return [DRAWS[name](None) for name in names]

    torch.manual_seed(21)
    eager = [many(), many()]
    state = neuron.get_rng_state()
    run = compiled(many)
    torch.manual_seed(21)
    graph = [run(), run()]
    assert torch.equal(neuron.get_rng_state(), state)
    for ours, theirs in zip(graph, eager):
        for name, a, b in zip(names, ours, theirs):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=name)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_state_after_a_step_is_the_same_in_every_mode():
    from shakedown.neuron import compile_step

    torch.manual_seed(0)
    start = {n: p.clone() for n, p in Dropped().state_dict().items()}
    x, y = torch.randn(4, 8).to("neuron"), torch.randn(4, 2).to("neuron")

    def trained(mode):
        model = Dropped()
        model.load_state_dict(start)
        model = model.to("neuron")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        forward = torch.compile(model, backend="neuron") if mode == "compile" else model
        step = compile_step(model, lambda model, x, y: F.mse_loss(model(x), y), optimizer) if mode == "step" else None
        torch.manual_seed(13)
        losses = []
        for _ in range(3):
            if step is not None:
                losses.append(step(x, y).item())
                continue
            loss = F.mse_loss(forward(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, neuron.get_rng_state()

    losses, state = trained("eager")
    assert len(set(losses)) == 3
    assert int(state[8]) == 6
    for mode in ("compile", "step"):
        theirs, after = trained(mode)
        assert torch.equal(after, state), mode
        assert theirs == pytest.approx(losses, rel=1e-5), mode


def test_a_draw_that_was_refused_leaves_the_values_alone():
    x = make(4)
    with pytest.raises(RuntimeError):
        x.normal_(0, -1)
    assert torch.equal(x, make(4))
