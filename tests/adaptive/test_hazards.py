"""Views, aliases and writes across operators that are only recorded: each program gives the CPU's answers, fused or not."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from .running import Program, same_as_cpu


def _numbers(device: str, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Recorded, not uploaded."""
    count = torch.Size(size).numel()
    return (torch.arange(count, device=device).to(dtype) - 3).reshape(size)


def write_through_a_view(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6) * 2
    a[1:3].add_(1)
    b = a + 0
    a[:, ::2].mul_(b[:, 1::2])
    return a, b


def alias_read_before_and_after_a_write(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6) * 2
    turned = a.t()
    before = turned.sum(0)
    a.mul_(3)
    return before, turned.sum(0), turned, a


def write_after_a_read_of_the_value(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6) * 2
    b = a[2]
    total = (a + 1).sum().item()
    b.add_(total)
    a.sub_(b.clone())
    return a, b, total


def write_to_a_leaf(d: str) -> Sequence[Any]:
    w = _numbers(d, 3, 3).requires_grad_()
    old = w.detach()
    with torch.no_grad():
        w.add_(1)
    (w * w).sum().backward()
    with torch.no_grad():
        w.sub_(w.grad, alpha=0.5)
    return w, w.grad, old


def out_into_a_pending_tensor(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6)
    held = a * 2
    seen = held[1:]
    torch.add(a, a, out=held)
    torch.mul(a[0], 3, out=held[0])
    torch.exp(held[3], out=held[3])
    return held, seen


def out_that_is_resized(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6)
    small, nothing = a[0] * 2, torch.empty(0, device=d)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.add(a, 1, out=small)
    torch.add(a, 2, out=nothing)
    return small, nothing


def resized_in_place(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6) * 2
    seen = a[0]
    a.resize_(2, 3)
    a.add_(1)
    b = _numbers(d, 5) * 2
    b.resize_(8)[5:] = 1
    b.add_(1)
    return a, seen, b


def storage_set(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6) * 2
    other = torch.empty(0, device=d).set_(a.untyped_storage(), 3, (2, 3), (6, 2))
    other.add_(10)
    taken = a + 1
    a.set_(taken)
    a.mul_(2)
    gone = _numbers(d, 2) + 1
    gone.set_()
    return a, other, taken, gone


def strided_by_hand(d: str) -> Sequence[Any]:
    a = _numbers(d, 24) * 2
    square = a.as_strided((3, 3), (7, 2), 1)
    square.mul_(-1)
    windows = a.as_strided((11, 4), (2, 1))
    return a, square, windows.sum(1), a.unfold(0, 5, 3).amax(1)


def data_swapped(d: str) -> Sequence[Any]:
    a, b = _numbers(d, 4) * 2, _numbers(d, 4) * 3
    seen = a[1:]
    a.data = b
    a.add_(1)
    c = b.data
    c.mul_(2)
    return a, b, c, seen


def detached(d: str) -> Sequence[Any]:
    w = _numbers(d, 4).requires_grad_()
    a = w * 2
    b = a.detach()
    b.add_(5)
    a.sum().backward()
    return a, b, w.grad


def lists_in_place(d: str) -> Sequence[Any]:
    rows = list((_numbers(d, 4, 3) * 2).unbind())
    seen = rows[0] + 0
    torch._foreach_add_(rows, 1.5)
    torch._foreach_mul_(rows, [_numbers(d, 3) for _ in rows])
    torch._foreach_addcdiv_(rows[:2], rows[2:], [torch.full_like(r, 2.0) for r in rows[2:]], value=0.5)
    return [seen, *rows, *torch._foreach_neg(rows)]


def host_copied_into_pending_tensors(d: str) -> Sequence[Any]:
    a, b, c = _numbers(d, 2, 3) * 2, _numbers(d, 2, 3) * 3, _numbers(d, 2, 3) * 4
    before, row = a + 0, b[1]
    host = torch.tensor([[7.0, 8.0, 9.0], [1.0, 2.0, 3.0]])
    a.copy_(host)
    b[1].copy_(host[0])
    c.t().copy_(host.t())
    host.zero_()
    return a, b, c, before, row, a + b + c


def device_copied_within(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6) * 2
    b = torch.zeros(6, 4, device=d)
    b.copy_(a.t())
    a[0].copy_(b[:, 1])
    whole = torch.empty(4, 6, dtype=torch.int64, device=d).copy_(a)
    return a, b, whole


def disjoint_slices_of_one_tensor(d: str) -> Sequence[Any]:
    a = _numbers(d, 12) * 2
    a[::2].add_(a[1::2])
    a[:4].copy_(a[4:8])
    a[8:] = a[:4] * 2
    torch.add(a[:4], a[4:8], out=a[8:12])
    return (a,)


def overlapping_slices_read(d: str) -> Sequence[Any]:
    a = _numbers(d, 12) * 2
    left, right = a[:8], a[4:]
    left.mul_(2)
    right.add_(left.clone())
    left.sub_(right.flip(0))
    return a, left, right


def one_tensor_twice_in_a_call(d: str) -> Sequence[Any]:
    a = _numbers(d, 6) * 2
    a.add_(a).mul_(a)
    torch.sub(a, a.flip(0), out=a)
    a.addcmul_(a, a, value=0.25)
    return (a,)


def names_swapped(d: str) -> Sequence[Any]:
    a, b = _numbers(d, 4) * 2, _numbers(d, 4) * 3
    for _ in range(3):
        a, b = b, a + b
        a.add_(1)
    return a, b


def indexed_writes(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6) * 2
    row = a[2]
    where = torch.arange(4, device=d) % 3
    a[where, where + 1] = 50
    a.index_add_(0, where, torch.ones(4, 6, device=d))
    a.masked_fill_(a > 40, -1)
    a.scatter_(1, where[:, None], 9.0)
    return a, row


def other_dtype_of_one_memory(d: str) -> Sequence[Any]:
    a = _numbers(d, 6) * 2
    bits = a.view(torch.int32)
    before = bits + 0
    bits.bitwise_xor_(torch.full_like(bits, -(2**31)))  # the sign
    a.mul_(2)
    return a, bits, before


def parts_of_complex(d: str) -> Sequence[Any]:
    z = torch.complex(_numbers(d, 4) * 2, _numbers(d, 4) * 3)
    torch.view_as_real(z)[:, 0].add_(1)
    z.imag.mul_(2)
    w = z.conj()
    z.add_(1)
    return z, w.resolve_conj(), w.imag.resolve_neg() + 0, (w * z).real + 0


def expanded_over_a_base_that_changes(d: str) -> Sequence[Any]:
    a = _numbers(d, 3, 1) * 2
    wide = a.expand(3, 4)
    before = wide + 0
    a.add_(1)
    return before, wide + 0, wide.sum()


def split_and_written(d: str) -> Sequence[Any]:
    a = _numbers(d, 4, 6) * 2
    left, right = a.chunk(2, 1)
    left.add_(right)
    right.zero_()
    first, *_, last = a.split(1)
    last.fill_(4)
    return a, first, left, torch.cat([left, last[:, :3]])


def without_elements(d: str) -> Sequence[Any]:
    a = _numbers(d, 0, 3) * 2
    a.add_(1)
    b = torch.cat([a, _numbers(d, 2, 3)])
    b[:0].mul_(5)
    return a, b, a.sum(0), b[2:]


def gradients_accumulated(d: str) -> Sequence[Any]:
    w = _numbers(d, 4).requires_grad_()
    (w * 2).sum().backward()
    first = w.grad
    kept = w.grad.clone()
    (w * w).sum().backward()
    w.grad.mul_(0.5)
    return w.grad, first, kept


def data_of_a_parameter(d: str) -> Sequence[Any]:
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(_numbers("cpu", 2, 3))
        layer.bias.zero_()
    layer = layer.to(d)
    before = layer.weight.detach().clone()
    layer.weight.data.add_(1)
    layer.bias.data = _numbers(d, 2) * 2
    return layer(_numbers(d, 5, 3)), before, layer.weight


def a_hook_that_writes(d: str) -> Sequence[Any]:
    w = _numbers(d, 4).requires_grad_()
    seen: list[torch.Tensor] = []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        seen.append(grad.clone())
        return grad * 2

    a = w * 3
    a.register_hook(hook)
    a.sum().backward()
    return w.grad, *seen


def overwritten_before_it_is_read(d: str) -> Sequence[Any]:
    a = _numbers(d, 6) * 2
    a.mul_(7)
    a.zero_()
    a[1:3].fill_(2)
    a.fill_(3)
    a[0] = 1
    return (a,)


def running_statistics(d: str) -> Sequence[Any]:
    norm = torch.nn.BatchNorm1d(3).to(d)
    x = _numbers(d, 4, 3)
    y = norm(x)
    z = norm(y + 1)
    return y, z, norm.running_mean, norm.running_var, norm.num_batches_tracked


def a_number_out_of_a_tensor(d: str) -> Sequence[Any]:
    a = _numbers(d, 6) * 2
    scalar = a[4]
    b = a * scalar
    scalar.add_(1)
    return a, b, a + scalar, torch.full((2,), 1.0, device=d).mul_(scalar), a.dtype


HAZARDS: list[Program] = [
    f for f in list(globals().values()) if getattr(f, "__module__", "") == __name__ and f is not _numbers
]


@pytest.mark.parametrize("program", HAZARDS, ids=lambda f: f.__name__)
def test_the_answers_are_the_cpus_one_by_one_and_fused(program: Program) -> None:
    same_as_cpu(program)


COPIES = {
    "clone": torch.clone,
    "deepcopy": copy.deepcopy,
    "save": lambda t: _saved_and_loaded(t),
    "numpy": lambda t: torch.from_numpy(t.cpu().numpy().copy()),
    "tolist": lambda t: torch.tensor(t.tolist()),
    "to_cpu_and_back": lambda t: t.cpu().clone().to(t.device),
}


def _saved_and_loaded(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_recorded_tensor_is_what_it_was_when_copied(how: str) -> None:
    def program(d: str) -> Sequence[Any]:
        a = _numbers(d, 4, 3) * 2
        made = COPIES[how](a)
        a.mul_(5).add_(1)
        return a, made

    same_as_cpu(program)


def test_writing_into_what_overlaps_is_refused_as_on_the_cpu() -> None:
    def program(d: str) -> None:
        a = _numbers(d, 12) * 2
        a[1:].add_(a[:-1])

    with pytest.raises(RuntimeError) as expected:
        program("cpu")
    for _ in range(3):
        with pytest.raises(RuntimeError) as actual:
            program("neuron")
        assert str(actual.value) == str(expected.value)
