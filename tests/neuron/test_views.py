"""Random chains of views and in-place writes: the device's storage must hold what the CPU's holds after every step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shakedown.neuron import events
from shakedown.neuron.views import View, pack, read, write

VIEWS = (
    "transpose",
    "select",
    "slice",
    "expand",
    "view",
    "as_strided",
    "unfold",
    "squeeze",
    "unsqueeze",
    "diagonal",
    "dtype",
)
WRITES = ("add", "mul", "fill", "copy_self", "copy_host", "zero", "masked_fill", "addcmul", "out")


@st.composite
def chains(draw):
    """A base size, a dtype, and steps (kind, arguments as fractions that any shape can interpret)."""
    size = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    dtype = draw(st.sampled_from([torch.float32, torch.int32, torch.int64, torch.float64]))
    step = st.tuples(st.sampled_from(VIEWS + WRITES), st.integers(0, 7), st.integers(0, 7), st.integers(1, 3))
    return size, dtype, draw(st.lists(step, min_size=1, max_size=6))


def view_of(t: torch.Tensor, kind: str, a: int, b: int, c: int) -> torch.Tensor:
    """The same view for a CPU and a device tensor of equal metadata; `t` itself where it has no such view."""
    if kind == "as_strided":
        room = t.untyped_storage().nbytes() // t.dtype.itemsize
        rows, columns = 1 + a % 3, 1 + b % 3
        extent = (rows - 1) * c + (columns - 1) * (1 + a % 2) + 1
        return t.as_strided((rows, columns), (c, 1 + a % 2), b % (room - extent + 1)) if room >= extent else t
    if kind == "dtype":
        other = {
            torch.float32: torch.int32,
            torch.int32: torch.float32,
            torch.int64: torch.float64,
            torch.float64: torch.int64,
        }
        return t.view(other[t.dtype])
    if kind == "unsqueeze":
        return t.unsqueeze(a % (t.dim() + 1))
    if kind == "view":
        return t.reshape(-1) if t.is_contiguous() else t
    if t.dim() == 0:
        return t
    d, e = a % t.dim(), b % t.dim()
    if kind == "transpose":
        return t.transpose(d, e)
    if kind == "select":
        return t.select(d, b % t.size(d)) if t.size(d) else t
    if kind == "slice":
        return t[(slice(None),) * d + (slice(b % (t.size(d) + 1), None, c),)]
    if kind == "expand":
        return t.expand([3 if n == 1 else n for n in t.shape])
    if kind == "unfold":
        return t.unfold(d, min(c, t.size(d)), 1 + b % 2) if t.size(d) else t
    if kind == "squeeze":
        return t.squeeze(d)
    if kind == "diagonal":
        return t.diagonal(b % 3 - 1, 0, 1) if t.dim() >= 2 else t
    return t


def write_to(t: torch.Tensor, kind: str, a: int, b: int, c: int, device: str) -> None:
    ramp = (torch.arange(t.numel()).reshape(t.shape) % 5 + a).to(t.dtype)
    on = ramp.to(device)
    if kind == "add":
        t.add_(on, alpha=c)
    elif kind == "mul":
        t.mul_(c)
    elif kind == "fill":
        t.fill_(b)
    elif kind == "zero":
        t.zero_()
    elif kind == "copy_self":
        t.copy_(t.flip(0).clone() if t.dim() else t.clone())
    elif kind == "copy_host":
        t.copy_(ramp)
    elif kind == "masked_fill":
        t.masked_fill_(on > 2, b)
    elif kind == "addcmul":
        t.addcmul_(on, on, value=c)
    elif kind == "out":
        torch.add(on, c, out=t)


def raw(t: torch.Tensor) -> bytes:
    """The tensor's bytes in row-major order (so that NaNs compare)."""
    return t.clone(memory_format=torch.contiguous_format).numpy().tobytes()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(chains())
def test_views_and_writes_agree_with_the_cpu(chain):
    size, dtype, steps = chain
    count = int(np.prod(size))
    host = (torch.arange(count) * 3 % 11).to(dtype).reshape(size)
    device = host.to("neuron")
    views = [(host, device)]
    for kind, a, b, c in steps:
        h, d = views[-1]
        if kind in VIEWS:
            h, d = view_of(h, kind, a, b, c), view_of(d, kind, a, b, c)
            assert (h.shape, h.stride(), h.storage_offset(), h.dtype) == (
                d.shape,
                d.stride(),
                d.storage_offset(),
                d.dtype,
            )
            views.append((h, d))
        else:
            try:
                write_to(h, kind, a, b, c, "cpu")
            except RuntimeError as error:
                with pytest.raises(RuntimeError) as ours:
                    write_to(d, kind, a, b, c, "neuron")
                assert str(ours.value) == str(error)
                continue
            write_to(d, kind, a, b, c, "neuron")
        for h, d in views:
            assert raw(d.cpu()) == raw(h)


LAYOUTS = [
    ((3, 4), (4, 1), 0),
    ((4, 3), (1, 4), 0),
    ((3, 2), (4, 1), 1),
    ((2, 2), (8, 2), 1),
    ((3,), (5,), 0),
    ((3, 3), (5, 1), 0),
    ((2, 3), (0, 1), 4),
    ((4, 2), (1, 1), 2),
    ((2, 2, 2), (1, 6, 3), 0),
    ((3, 3), (2, 3), 0),
    ((), (), 7),
    ((0, 3), (3, 1), 0),
    ((1, 5), (100, 2), 1),
]


@pytest.mark.covering
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.complex64, torch.bool], ids=str)
def test_read_and_write_are_what_as_strided_sees(layout, dtype):
    size, stride, offset = layout
    base = (torch.arange(24) % 7).to(dtype)
    view = View(dtype, size, stride, offset)
    expected = base.as_strided(size, stride, offset)
    value = read(base.numpy(), view)
    assert torch.equal(torch.from_numpy(np.array(value)), expected)
    distinct = torch._debug_has_internal_overlap(expected) == 0
    if distinct:
        new = (torch.arange(expected.numel()).reshape(size) + 1).to(dtype)
        changed = write(np.array(base.numpy()), view, new.numpy())
        expected.copy_(new)
        assert torch.equal(torch.from_numpy(np.array(changed)), base)
        packed = pack(new.numpy(), View(dtype, size, stride))
        fresh = torch.zeros(packed.shape[0], dtype=dtype)
        fresh.as_strided(size, stride).copy_(new)
        assert torch.equal(torch.from_numpy(np.array(packed)), fresh)


@pytest.mark.parametrize(
    ("of", "into"),
    [
        (torch.float32, torch.uint8),
        (torch.int64, torch.int16),
        (torch.uint8, torch.float64),
        (torch.complex64, torch.float32),
    ],
)
def test_reading_a_buffer_as_another_dtype(of, into):
    host = (torch.arange(16) * 5).to(of)
    device = host.to("neuron")
    assert torch.equal(device.view(into).cpu(), host.view(into))
    device.view(into)[1] = 7
    host.view(into)[1] = 7
    assert torch.equal(device.cpu().view(torch.uint8), host.view(torch.uint8))


def test_writing_a_wide_type_over_a_buffer_of_odd_length_keeps_the_tail():
    device = torch.arange(7, dtype=torch.uint8).to("neuron")
    device[:4].view(torch.float32).fill_(1.0)
    assert device.tolist() == [0, 0, 128, 63, 4, 5, 6]


def test_transposed_operands_are_read_inside_the_program():
    a = torch.randn(5, 7).to("neuron")
    events.clear()
    result = torch.mm(a.t(), a)
    assert [r["name"] for r in events.snapshot() if r["kind"] == "execute"] == ["aten::mm"]
    torch.testing.assert_close(result.cpu(), a.cpu().t() @ a.cpu())
