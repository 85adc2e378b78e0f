"""Plain PyTorch code on the device: moving, printing, saving, modules, defaults, errors."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

from shakedown.neuron import events
from shakedown.neuron.dtypes import TO_NUMPY

DTYPES = list(TO_NUMPY)


def example(dtype: torch.dtype, *size: int) -> torch.Tensor:
    """Values of every byte pattern that the dtype allows, NaNs included."""
    count = int(np.prod(size)) if size else 1
    if dtype is torch.bool:
        return torch.arange(count).remainder(2).bool().reshape(size)
    raw = torch.arange(count * dtype.itemsize, dtype=torch.int64).mul(37).remainder(251).to(torch.uint8)
    return raw.view(dtype).reshape(size)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(), (0,), (1,), (3, 4), (2, 0, 3)], ids=str)
def test_a_round_trip_keeps_every_bit(dtype, size):
    host = example(dtype, *size)
    device = host.to("neuron")
    assert device.device == torch.device("neuron", 0)
    assert type(device) is torch.Tensor
    assert (device.dtype, device.shape, device.stride()) == (dtype, host.shape, host.stride())
    assert bits(device) == bits(host)


def test_a_copy_to_the_device_owns_its_memory():
    array = np.arange(100_000, dtype=np.float32)
    host = torch.from_numpy(array)
    device = host.to("neuron")
    into = torch.empty(100_000, device="neuron")
    into.copy_(host)
    array[:] = -1
    assert device.cpu()[5].item() == 5
    assert into.cpu()[5].item() == 5
    back = device.cpu()
    back[5] = 77
    assert device[5].item() == 5


@pytest.mark.covering
@pytest.mark.parametrize(
    "layout",
    [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[:, 1:3],
        lambda t: t[::2],
        lambda t: t[1].expand(4, -1),
        lambda t: t.as_strided((3, 2), (1, 2), 3),
        lambda t: t.unfold(1, 2, 1),
        lambda t: t[2, 3],
        lambda t: t[:, :0],
    ],
)
@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32), (torch.float32, torch.int64), (torch.int32, torch.bfloat16)]
)
def test_copies_both_ways_with_any_layout(layout, dtypes):
    source_dtype, target_dtype = dtypes
    host = torch.arange(20).reshape(4, 5).to(source_dtype)
    source = layout(host)
    target = torch.zeros(source.shape, dtype=target_dtype)
    expected = target.clone().copy_(source)

    assert torch.equal(torch.zeros_like(target, device="neuron").copy_(source).cpu(), expected)  # host to device
    on_device = layout(host.to("neuron"))
    assert torch.equal(on_device.cpu(), source)
    assert torch.equal(target.clone().copy_(on_device), expected)  # device to host
    assert torch.equal(target.to("neuron").copy_(on_device).cpu(), expected)  # within the device


@pytest.mark.parametrize("source", ["cpu", "neuron"])
def test_a_copy_into_a_view_changes_its_base(source):
    base = torch.zeros(4, 6).to("neuron")
    base.t()[1:3, ::2].copy_(torch.ones(2, 2).to(source))
    expected = torch.zeros(4, 6)
    expected.t()[1:3, ::2] = 1
    assert torch.equal(base.cpu(), expected)


def test_values_can_be_read_and_printed():
    t = torch.tensor([[1.5, -2.0], [float("nan"), 4.0]], device="neuron")
    assert t[0, 0].item() == 1.5
    assert float(t[0, 1]) == -2.0
    assert t[1].tolist()[1] == 4.0
    assert bool(t[0, 0] > 1)
    assert str(t) == "tensor([[ 1.5000, -2.0000],\n        [    nan,  4.0000]], device='neuron:0')"
    assert [int(i) for i in torch.arange(3, device="neuron")] == [0, 1, 2]


def test_deepcopy_and_pickle_share_what_was_shared():
    base = torch.arange(6.0).to("neuron")
    pair = copy.deepcopy([base, base[2:]])
    pair[0][2] = 50
    assert pair[1][0].item() == 50
    assert base[2].item() == 2


@pytest.mark.parametrize(
    ("saved_on", "map_location", "loaded_on"),
    [("neuron", None, "neuron"), ("neuron", "cpu", "cpu"), ("cpu", "neuron", "neuron"), ("neuron", "meta", "meta")],
)
def test_save_and_load(saved_on, map_location, loaded_on):
    base = torch.arange(6.0).to(saved_on)
    file = io.BytesIO()
    torch.save({"base": base, "view": base[3:], "half": base.half()}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=map_location)
    assert {t.device.type for t in loaded.values()} == {loaded_on}
    if loaded_on != "meta":
        loaded["base"][3] = 9
        assert loaded["view"].tolist() == [9, 4, 5]
        assert loaded["half"].tolist() == [0, 1, 2, 3, 4, 5]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids):
        return self.head(self.embedding(ids)) * self.scale


@pytest.mark.parametrize("move", [lambda m: m.to("neuron"), lambda m: m.neuron()])
def test_moving_a_module_keeps_ties_and_optimizers(move):
    torch.manual_seed(0)
    module, reference = Tied(), None
    reference = copy.deepcopy(module)
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (module, reference))
    move(module)
    assert module.head.weight is module.embedding.weight
    assert len(list(module.parameters())) == 1
    assert optimizer.param_groups[0]["params"][0] is module.head.weight
    ids = torch.tensor([1, 2, 1])
    for _ in range(2):
        for m, o, i in ((module, optimizer, ids.to("neuron")), (reference, other, ids)):
            o.zero_grad()
            m(i).square().sum().backward()
            o.step()
    torch.testing.assert_close(module.head.weight.cpu(), reference.head.weight)
    module.load_state_dict(copy.deepcopy(reference).state_dict())
    assert torch.equal(module.head.weight.cpu(), reference.head.weight)
    module.cpu()
    assert module.head.weight is module.embedding.weight
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_meta_initialisation_and_default_device():
    with torch.device("meta"):
        module = nn.Linear(3, 4)
    module.to_empty(device="neuron").reset_parameters()
    assert module.weight.device.type == "neuron"
    assert module.weight.abs().max().item() > 0
    torch.set_default_device("neuron")
    try:
        assert torch.zeros(2).device.type == "neuron"
        assert nn.Linear(2, 2).bias.device.type == "neuron"
    finally:
        torch.set_default_device(None)
    with torch.device("neuron"):
        assert torch.arange(3).device.type == "neuron"


def test_accelerator_interface():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.device_count() == 1
    assert torch.accelerator.current_device_index() == 0
    events.clear()
    torch.accelerator.synchronize()
    torch.neuron.synchronize()
    assert events.total("synchronize") == 2
    with pytest.raises(ValueError, match="Device index 3 is out of range"):
        torch.neuron.synchronize(3)


def test_the_seed_makes_random_values_repeat_and_leaves_the_cpu_stream_alone():
    torch.manual_seed(5)
    first, second = torch.rand(8, device="neuron"), torch.rand(8, device="neuron")
    state = torch.neuron.get_rng_state()
    third = torch.rand(8, device="neuron")
    after_device_draws = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), after_device_draws)
    assert torch.equal(torch.rand(8, device="neuron"), first)
    assert not torch.equal(first, second)
    torch.neuron.set_rng_state(state)
    assert torch.equal(torch.rand(8, device="neuron"), third)
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(8, device="neuron", generator=generator)
    assert torch.equal(torch.rand(8, device="neuron", generator=generator.manual_seed(3)), drawn)


def test_data_loader_moves_batches():
    loader = torch.utils.data.DataLoader(torch.arange(6.0).to("neuron"), batch_size=4)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]


ERRORS = [
    lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    lambda d: torch.ones(2, device=d).expand(3, 2).add_(1),
    lambda d: (lambda s: s[1:].add_(s[:-1]))(torch.ones(4, device=d)),
    lambda d: torch.ones(2, dtype=torch.int64, device=d).add_(1.5),
    lambda d: torch.ones(2, 3, device=d).view(4),
    lambda d: torch.ones(3, device=d).sum(dim=2),
    lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(3, 3, device=d)]),
    lambda d: torch.ones(0, device=d).max(),
    lambda d: torch.ones(2, device=d).copy_(torch.ones(3, device=d)),
    lambda d: torch.ones(2, device=d).item(),
    lambda d: torch.add(torch.ones(2, device=d), 1, out=torch.ones(2, dtype=torch.int32, device=d)),
    lambda d: torch.ones(2, 2, device=d).softmax(5),
    lambda d: nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 2, device=d)),
    lambda d: nn.functional.conv2d(torch.ones(1, 2, 4, 4, device=d), torch.ones(3, 5, 1, 1, device=d)),
    lambda d: torch.ones(4, device=d)[7],
]


@pytest.mark.parametrize("call", ERRORS, ids=range(len(ERRORS)))
def test_wrong_arguments_raise_what_the_cpu_raises(call):
    with pytest.raises(Exception) as on_cpu:
        call("cpu")
    with pytest.raises(type(on_cpu.value)) as on_device:
        call("neuron")
    assert str(on_device.value) == str(on_cpu.value)


def test_mixed_devices_are_refused_and_cpu_scalars_are_not():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device.*neuron:0 and cpu"):
        torch.ones(2, device="neuron") + torch.ones(2)
    mixed = torch.ones(2, device="neuron", dtype=torch.float16) * torch.tensor(2.5)
    assert (mixed.dtype, mixed.tolist()) == (torch.float16, [2.5, 2.5])
    indexed = torch.arange(4, device="neuron")[torch.tensor([2, 0])]
    assert indexed.tolist() == [2, 0]


def test_a_fallback_is_recorded():
    values = torch.randn(3, 3).to("neuron")
    events.clear()
    torch.fake_quantize_per_tensor_affine(values, 0.1, 0, 0, 255)
    rows = [r for r in events.snapshot() if r["kind"] == "fallback"]
    assert [r["name"] for r in rows] == ["aten::fake_quantize_per_tensor_affine_cachemask"]
    assert rows[0]["detail"] == "no lowering"
    assert rows[0]["nbytes"] >= values.nbytes


def test_resize_keeps_elements_in_storage_order():
    t = torch.arange(4.0).to("neuron")
    assert t.resize_(2, 3).flatten()[:4].tolist() == [0, 1, 2, 3]
    assert t.resize_(2).tolist() == [0, 1]


def test_int64_beyond_32_bits():
    a = torch.tensor([2**31 + 5, 2**32, 3], device="neuron")
    assert (a + 1).tolist() == [2147483654, 4294967297, 4]
    assert (a * 2).tolist() == [4294967306, 8589934592, 6]
    assert (a // 7).tolist() == [306783379, 613566756, 0]
    assert a.sum().item() == 6442450952
    assert a.argmax().item() == 1
    assert (torch.tensor([2**31 - 1], device="neuron") + 1).tolist() == [2147483648]


def test_float64_is_float64():
    a = torch.tensor([1 + 2**-40, 1e-300, 16777217], dtype=torch.float64, device="neuron") - 1
    assert a.tolist() == [9.094947017729282e-13, -1.0, 16777216.0]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_round_trip_through_a_narrower_type_rounds(compiled):
    values = torch.tensor([1 + 2**-9, 1 + 2**-8, 1 + 2**-7, 1 + 3 * 2**-8, 3.1415927, 0.001, 65504, 1 / 3])
    right = {
        torch.bfloat16: [1.0, 1.0, 1.0078125, 1.015625, 3.140625, 0.00099945068359375, 65536.0, 0.333984375],
        torch.float16: [
            1.001953125,
            1.00390625,
            1.0078125,
            1.01171875,
            3.140625,
            0.0010004043579101562,
            65504,
            0.333251953125,
        ],
    }
    for narrow, expected in right.items():

        def there_and_back(t, narrow=narrow):
            return t.to(narrow).to(torch.float32)

        run = torch.compile(there_and_back, backend="neuron", dynamic=False) if compiled else there_and_back
        assert run(values.to("neuron")).tolist() == expected


LAZY = [
    lambda t: t.conj().clone(),
    lambda t: t.conj().cpu(),
    lambda t: t.conj() * t,
    lambda t: t.conj().imag.clone(),
    lambda t: t.conj().imag + 1,
    lambda t: t.conj().imag.conj().cpu(),
    lambda t: torch.zeros_like(t).copy_(t.conj()),
    lambda t: torch.zeros(4, 4, dtype=t.dtype).copy_(t.conj()),
    lambda t: t.mH @ t,
    lambda t: torch.mm(t.conj(), t.conj().t()),
    lambda t: torch.addmm(t.conj(), t, t.mH),
    lambda t: t.clone().conj().addmm_(t, t).clone(),
    lambda t: (lambda c: c.conj().copy_(t))(t.clone()).clone(),
    lambda t: (lambda c: (c.conj().imag.copy_(t.real), c)[1])(t.clone()),
    lambda t: (lambda c: (c.conj().mul_(2 + 1j), c)[1])(t.clone()),
    lambda t: torch.dot(t[0].conj(), t[1]),
    lambda t: torch.vdot(t[0], t[1].conj()),
    lambda t: t.conj().sum().item() * torch.ones(1, device=t.device),
    lambda t: t.conj().to(torch.complex128),
    lambda t: torch.mm(t.conj(), t, out=torch.empty(0, dtype=t.dtype, device=t.device)),
]


@pytest.mark.parametrize("case", LAZY, ids=range(len(LAZY)))
def test_lazy_conjugates_and_negatives(case):
    torch.manual_seed(0)
    host = torch.randn(4, 4, dtype=torch.complex64)
    expected, actual = case(host), case(host.to("neuron"))
    torch.testing.assert_close(actual.cpu(), expected.resolve_conj().resolve_neg(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "meta", "neuron"])
def test_likeness_of_a_tensor_on_another_device(device):
    x = torch.ones(2, 3, device="neuron").t()
    made = [
        torch.zeros_like(x, device=device),
        torch.full_like(x, 2.0, device=device),
        torch.rand_like(x, device=device),
        torch.empty_like(x, device=device),
        x.new_ones(3, 2, device=device),
        x.new_full((3, 2), 1.0, device=device),
    ]
    assert {(m.device.type, m.shape) for m in made} == {(device, x.shape)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_division_by_one_number_rounds_once(dtype):
    """A product with the reciprocal would not: 7k / 7 has to be k."""
    for divisor in (3, 7, 10, 49):
        k = torch.arange(1, 500, dtype=dtype)
        x = k * divisor
        for form in (
            lambda t, d=divisor: t / d,
            lambda t, d=divisor: t / torch.tensor(d, device=t.device, dtype=t.dtype),
        ):
            assert torch.equal(form(x.to("neuron")).cpu(), form(x))
        assert torch.equal(torch.floor_divide(x.to("neuron"), divisor).cpu(), torch.floor_divide(x, divisor))
        assert (
            torch.compile(lambda t, d=divisor: t / d, backend="neuron", dynamic=False)(x.to("neuron"))
            .cpu()
            .equal(x / divisor)
        )


def test_a_fallback_may_resize_its_output():
    out = torch.ones(2, 2, device="neuron")
    values = torch.randn(3, 3)
    symmetric = values + values.t()
    with pytest.warns(UserWarning, match="resized"):
        torch.linalg.eigvalsh(symmetric.to("neuron"), out=out)
    torch.testing.assert_close(out.cpu(), torch.linalg.eigvalsh(symmetric), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [torch.zeros_like, torch.ones_like, torch.empty_like, torch.rand_like])
def test_examples_of_sizes_may_live_elsewhere(make):
    for example in (torch.randn(3, 2), torch.randn(3, 2, device="meta")):
        made = make(example, device="neuron")
        assert made.device.type == "neuron"
        assert made.cpu().shape == (3, 2)


def test_an_operator_without_a_meta_kernel_can_be_faked():
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    x = mode.from_tensor(torch.randn(3, 2, device="neuron"))
    with mode:
        made = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    assert made.device.type == "neuron"
    assert made.shape == (3, 2)
