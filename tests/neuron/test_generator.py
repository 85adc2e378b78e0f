"""``torch.Generator(device="neuron")``: its stream, its state, every operator that takes one, and what PyTorch does with them."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler, random_split

from shakedown.neuron import events, rng

pytestmark = pytest.mark.rotating(2, least=3)


def device_generator(seed: int = 11) -> torch.Generator:
    return torch.Generator(device="neuron").manual_seed(seed)


def make(*size, dtype=torch.float32):
    return torch.full(size, 0.5, dtype=dtype, device="neuron")


# name -> draw from the generator `g`; None is the default stream.
DRAWS = {
    "rand": lambda g: torch.rand(5, device="neuron", generator=g),
    "randn": lambda g: torch.randn(5, device="neuron", generator=g),
    "randint": lambda g: torch.randint(3, 99, (5,), device="neuron", generator=g),
    "randperm": lambda g: torch.randperm(9, device="neuron", generator=g),
    "rand_like": lambda g: torch.rand_like(make(5), generator=g),
    "randn_like": lambda g: torch.randn_like(make(5), generator=g),
    "randint_like": lambda g: torch.randint_like(make(5), 99, generator=g),
    "normal of tensors": lambda g: torch.normal(make(5), make(5), generator=g),
    "normal of a size": lambda g: torch.normal(0.0, 1.0, (5,), device="neuron", generator=g),
    "bernoulli": lambda g: torch.bernoulli(make(40), generator=g),
    "bernoulli of a probability": lambda g: torch.bernoulli(make(40), 0.3, generator=g),
    "multinomial": lambda g: torch.multinomial(make(40), 7, generator=g),
    "poisson": lambda g: torch.poisson(make(40), generator=g),
    "binomial": lambda g: torch.binomial(make(9) * 20, make(9), generator=g),
    "gamma": lambda g: torch._standard_gamma(make(5), generator=g),
    "dirichlet": lambda g: torch._sample_dirichlet(make(5), generator=g),
    "uniform_": lambda g: make(5).uniform_(generator=g),
    "normal_": lambda g: make(5).normal_(generator=g),
    "log_normal_": lambda g: make(5).log_normal_(generator=g),
    "cauchy_": lambda g: make(5).cauchy_(generator=g),
    "exponential_": lambda g: make(5).exponential_(generator=g),
    "geometric_": lambda g: make(20).geometric_(0.2, generator=g),
    "random_": lambda g: make(5).random_(generator=g),
    "random_ to": lambda g: make(5).random_(99, generator=g),
    "random_ between": lambda g: make(5).random_(3, 99, generator=g),
    "bernoulli_": lambda g: make(40).bernoulli_(0.3, generator=g),
    "bernoulli_ of a tensor": lambda g: make(40).bernoulli_(make(40), generator=g),
    "rrelu": lambda g: torch.ops.aten.rrelu(make(5).neg(), 0.1, 0.3, True, g),
    "rrelu_with_noise": lambda g: torch.ops.aten.rrelu_with_noise(make(5).neg(), make(5), 0.1, 0.3, True, g),
    "out=": lambda g: torch.rand(5, generator=g, out=make(5)),
    "init.xavier_uniform_": lambda g: torch.nn.init.xavier_uniform_(make(5, 5), generator=g),
    "init.trunc_normal_": lambda g: torch.nn.init.trunc_normal_(make(5, 5), generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_every_sampler_takes_a_generator(name):
    """A device's gives the default stream's values under the same seed, a CPU's is taken, and neither moves another."""
    draw = DRAWS[name]
    torch.manual_seed(11)
    default = [draw(None), draw(None)]
    offset = torch.neuron.default_generators[0].get_offset()
    torch.manual_seed(4)
    states = torch.get_rng_state(), torch.neuron.get_rng_state()
    events.clear()
    generator = device_generator()
    own = [draw(generator), draw(generator)]
    cpu = torch.Generator().manual_seed(11)
    host = draw(cpu), draw(cpu)
    again = draw(torch.Generator().manual_seed(11))
    assert not torch.neuron.get_fallback_ops()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(torch.neuron.get_rng_state(), states[1])
    for ours, theirs in zip(own, default):
        assert ours.device.type == "neuron"
        assert torch.equal(ours, theirs)
    assert not torch.equal(own[0], own[1])
    assert torch.equal(host[0], again)
    assert not torch.equal(host[0], host[1])
    assert generator.get_offset() == offset >= 2


def test_what_can_be_asked_for():
    for device in ("neuron", "neuron:0", torch.device("neuron"), torch.device("neuron", 0), 0):
        made = torch.Generator(device)
        assert made.device == torch.device("neuron", 0)
        assert isinstance(made, torch.Generator)
        assert made.initial_seed() == torch.Generator().initial_seed()  # PyTorch's own default seed
    assert torch.Generator(device="neuron").device.type == "neuron"
    for made in (torch.Generator(), torch.Generator("cpu"), torch.Generator(device="cpu"), torch.default_generator):
        assert type(made) is torch.Generator is torch._C.Generator
        assert made.device.type == "cpu"
        assert made.get_state().numel() > 16
    for device, error in (("cuda", RuntimeError), ("meta", RuntimeError), ("bogus", RuntimeError), (1.5, TypeError)):
        with pytest.raises(error):
            torch.Generator(device)
    with pytest.raises(ValueError, match="index 7 "):
        torch.Generator("neuron:7")
    with pytest.raises(TypeError):
        torch.Generator("neuron", seed=3)


def test_seeds():
    made = torch.Generator("neuron")
    assert made.manual_seed(5) is made
    assert (made.initial_seed(), made.get_offset()) == (5, 0)
    assert made.manual_seed(-1).initial_seed() == torch.Generator().manual_seed(-1).initial_seed() == 2**64 - 1
    seeds = {made.seed() for _ in range(3)}
    assert len(seeds) == 3
    assert made.initial_seed() in seeds
    for wrong in (2**64, "a"):
        with pytest.raises(Exception) as expected:
            torch.Generator().manual_seed(wrong)
        with pytest.raises(expected.type) as found:
            made.manual_seed(wrong)
        assert str(found.value) == str(expected.value)
    assert made.initial_seed() in seeds  # a refused seed changed nothing


def test_states():
    a = device_generator()
    torch.rand(3, device="neuron", generator=a)
    state = a.get_state()
    assert (state.dtype, state.shape, state.device.type) == (torch.uint8, (16,), "cpu")
    first = torch.rand(3, device="neuron", generator=a)
    b = torch.Generator("neuron")
    assert b.set_state(state) is b
    assert (b.initial_seed(), b.get_offset()) == (11, 1)
    assert torch.equal(torch.rand(3, device="neuron", generator=b), first)
    b.set_state(state[:8])  # a seed alone
    assert b.get_offset() == 0
    b.set_offset(1)
    assert torch.equal(torch.rand(3, device="neuron", generator=b), first)
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        b.set_state(torch.zeros(16))
    with pytest.raises(RuntimeError, match="RNG state must be 16 bytes"):
        b.set_state(torch.get_rng_state())
    assert b.get_offset() == 2


def test_copies_start_where_the_original_is_and_shared_states_move_together():
    original = device_generator()
    torch.rand(3, device="neuron", generator=original)
    saved = io.BytesIO()
    torch.save({"generator": original}, saved)
    saved.seek(0)
    copies = [
        original.clone_state(),
        copy.copy(original),
        copy.deepcopy({"generator": original})["generator"],
        pickle.loads(pickle.dumps(original)),
        torch.load(saved, weights_only=False)["generator"],
    ]
    shared = original.graphsafe_get_state()
    other = torch.Generator("neuron").graphsafe_set_state(shared)
    first = torch.rand(3, device="neuron", generator=original)
    for made in copies:
        assert made.device.type == "neuron"
        assert torch.equal(torch.rand(3, device="neuron", generator=made), first)
    second = torch.rand(3, device="neuron", generator=shared)
    assert not torch.equal(second, first)
    assert other.get_offset() == original.get_offset() == 3
    assert torch.equal(torch.rand(3, device="neuron", generator=copies[0]), second)
    with pytest.raises(TypeError, match="expected a generator of device neuron:0, got one of cpu"):
        other.graphsafe_set_state(torch.Generator())


def test_the_default_generators_are_the_default_stream():
    (default,) = torch.neuron.default_generators
    torch.manual_seed(6)
    assert default.initial_seed() == 6
    drawn = torch.rand(3, device="neuron", generator=default), torch.rand(3, device="neuron")
    default.manual_seed(6)
    assert torch.equal(torch.rand(3, device="neuron"), drawn[0])
    assert torch.equal(torch.rand(3, device="neuron"), drawn[1])
    assert torch.equal(default.get_state(), torch.neuron.get_rng_state())


def test_a_dead_generators_address_is_nobodys():
    """Another generator may get it, and is then what it is."""
    gc.collect()
    before = len(rng.of_address)
    for _ in range(50):
        made = torch.Generator("neuron")
        shared = made.graphsafe_get_state()  # keeps the stream, not the generator
        del made
        plain = torch.Generator().manual_seed(1)
        expected = torch.rand(2, device="neuron", generator=torch.Generator().manual_seed(1))
        assert torch.equal(torch.rand(2, device="neuron", generator=plain), expected)
        del shared, plain
    gc.collect()
    assert len(rng.of_address) == before


def test_host_draws_follow_the_seed():
    """Samplers draw on the host, where a CUDA generator is refused: ours has a CPU generator of the same seed underneath."""
    data = list(range(12))

    def orders(generator):
        return (
            [list(part.indices) for part in random_split(data, [5, 7], generator=generator)],
            list(RandomSampler(data, generator=generator)),
            list(RandomSampler(data, replacement=True, generator=generator)),
            list(WeightedRandomSampler([1.0, 2.0, 3.0], 9, generator=generator)),
            [b.tolist() for b in DataLoader(data, batch_size=4, shuffle=True, generator=generator)],
        )

    first = orders(device_generator(3))
    assert orders(device_generator(3)) == first == orders(torch.Generator().manual_seed(3))
    assert orders(device_generator(4)) != first


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_scripted_functions_take_pytorchs_generators():
    """``torch.Generator`` is still the class that TorchScript knows from annotations."""

    def draw(g: torch.Generator):
        return torch.rand([3], generator=g)

    scripted = torch.jit.script(draw)
    assert torch.equal(scripted(torch.Generator().manual_seed(2)), draw(torch.Generator().manual_seed(2)))


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_functions_break_at_a_generator_and_draw_what_eager_ones_draw():
    """Dynamo has no graph with a generator in it, of whatever device: what stands around the call is compiled."""

    def given(x, g):
        return (x + 1) * torch.rand(3, device="neuron", generator=g)

    def seeded_inside(x, g):
        g.manual_seed(9)
        return x.clone().normal_(generator=g)

    def made_inside(x, g):
        return x * torch.rand(3, device="neuron", generator=torch.Generator(device="neuron").manual_seed(2))

    x = torch.ones(3, device="neuron")
    for fn, kind in ((given, "cpu"), (given, "neuron"), (seeded_inside, "neuron"), (made_inside, "neuron")):
        torch._dynamo.reset()
        a, b = (torch.Generator(kind).manual_seed(8) for _ in range(2))
        run = torch.compile(fn, backend="neuron")
        for _ in range(2):
            assert torch.equal(run(x, a), fn(x, b))
    for kind in ("cpu", "neuron"):
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(given, backend="neuron", fullgraph=True)(x, torch.Generator(kind))
