"""Operators to programs: what the schema decides, what the key holds, how a program reads."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch

from shakedown.neuron import events
from shakedown.neuron.buffer import template
from shakedown.neuron.dispatch import operator_of
from shakedown.neuron.lowering import registry
from shakedown.neuron.operators import Role
from shakedown.neuron.plan import build
from shakedown.neuron.program import Builder, Program, Ref, Step
from shakedown.neuron.views import View

aten = torch.ops.aten
F32 = View(torch.float32, (2, 3), (3, 1))


@pytest.fixture(autouse=True)
def _clean():
    torch.ones(1, device="neuron")
    events.clear()


@pytest.mark.parametrize(
    ("op", "functional"),
    [
        (aten.add.Tensor, aten.add.Tensor),
        (aten.add_.Tensor, aten.add.Tensor),
        (aten.add.out, aten.add.Tensor),
        (aten.sum.IntList_out, aten.sum.dim_IntList),
        (aten._foreach_add_.List, aten._foreach_add.List),
        (aten.normal_.default, aten.normal_functional.default),
        (aten.max.dim_max, aten.max.dim),
    ],
)
def test_the_functional_form_follows_from_the_schema(op, functional):
    assert registry.functional_of(op) is functional


def test_an_overload_has_one_lowering():
    with pytest.raises(ValueError, match=r"aten\.add\.Tensor has two lowerings"):
        registry.lower("add.Tensor")(lambda self, other, alpha=1: self)


def test_roles_come_from_the_schema():
    roles = [r for r, _ in operator_of(aten.addcmul.default).roles]
    assert roles == [Role.TENSOR, Role.TENSOR, Role.TENSOR, Role.NUMBER]
    assert [r for r, _ in operator_of(aten.cat.default).roles] == [Role.TENSORS, Role.STATIC]


def test_number_values_are_inputs_not_keys():
    x = torch.ones(3, device="neuron")
    results = []
    x.add(x, alpha=0.5), x.mul(2.0), x.addcmul(x, x, value=1.5)
    events.clear()
    for value in (0.25, -3.0, 1e-9, float("inf"), 0.0, -0.0):
        results.append(x.add(x, alpha=value).tolist()[0])
        assert x.mul(value).cpu()[0] == torch.tensor(value)
        x.addcmul(x, x, value=value)
    assert events.total("compile") == 0
    assert results[:2] == [1.25, -2.0]
    assert str(x.mul(-0.0)[0].item()) == "-0.0"


def test_types_and_static_arguments_are_keys():
    x = torch.arange(6.0, device="neuron").reshape(2, 3)
    assert (x * 2).dtype is torch.float32
    integers = torch.arange(3, device="neuron")
    assert (integers * 2).dtype is torch.int64
    assert (integers * 2.0).dtype is torch.float32
    assert (integers * True).tolist() == [0, 1, 2]
    assert x.sum(0).tolist() == [3, 5, 7]
    assert x.sum(1).tolist() == [3, 12]


def test_the_default_dtype_is_part_of_the_key():
    integers = torch.arange(4, device="neuron")
    assert (integers / 2).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (integers / 2).dtype is torch.float64
        assert integers.sqrt().dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert (integers / 2).dtype is torch.float32


def test_a_program_reads_like_its_computation():
    x = torch.ones(2, 3, device="neuron")
    program = build(operator_of(aten.mul_.Tensor), (x.t(), 2.0), {}).program
    assert str(program).splitlines() == [
        "program aten.mul_.Tensor(v0: buffer, v1: number):",
        "  v2 = read v0 as float32[3,2] stride [1, 3] offset 0",
        "  v3 = aten.mul.Tensor(v2, v1) : float32[3,2] stride [1, 3] offset 0",
        "  v4 = v3[0]",
        "  v5 = write v4 into v0 as float32[3,2] stride [1, 3] offset 0",
        "  return v5",
    ]


def test_verify_finds_broken_programs():
    builder = Builder("p")
    a = builder.parameter("buffer")
    builder.finish([builder.pack(builder.read(a, F32), F32)])
    step = Step("read", Ref(1), (Ref(5),), F32)
    with pytest.raises(AssertionError, match="undefined value"):
        Program("p", ("buffer",), (step,), (Ref(1),)).verify()
    with pytest.raises(AssertionError, match="twice"):
        Program("p", ("buffer",), (Step("read", Ref(0), (Ref(0),), F32),), (Ref(0),)).verify()
    with pytest.raises(AssertionError, match="returns an undefined"):
        Program("p", ("buffer",), (), (Ref(3),)).verify()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_out_arguments_are_resized_and_written_through_views(dtype):
    x = torch.arange(4, device="neuron").to(dtype)
    out = torch.empty(0, dtype=dtype, device="neuron")
    assert torch.add(x, x, out=out) is out
    assert out.tolist() == [0, 2, 4, 6]
    base = torch.zeros(2, 8, dtype=dtype, device="neuron")
    torch.add(x, 1, out=base[1, ::2])
    assert base.tolist() == [[0] * 8, [1, 0, 2, 0, 3, 0, 4, 0]]
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.mul(x, 3, out=(wrong := torch.ones(7, dtype=dtype, device="neuron")))
    assert wrong.tolist() == [0, 3, 6, 9]


def test_lists_whose_members_share_a_storage_are_all_written():
    flat = torch.zeros(6, device="neuron")
    parts = [flat[:2], flat[2:5], flat[5:]]
    torch._foreach_add_(parts, 2.0)
    torch._foreach_mul_(parts, [1.0, 2.0, 3.0])
    assert flat.tolist() == [2, 2, 4, 4, 4, 6]


def test_lists_with_a_member_twice_are_written_in_order():
    for device in ("cpu", "neuron"):
        a, b = torch.ones(2, device=device), torch.full((2,), 3.0, device=device)
        torch._foreach_add_([a, a], 1.0)
        torch._foreach_add_([a, b], [b, a])
        assert (a.tolist(), b.tolist()) == ([6, 6], [9, 9])
    events.clear()
    torch._foreach_mul_([a, b], [a, b])  # each member reads only itself: one program
    assert (a.tolist(), b.tolist(), events.names("fallback")) == ([36, 36], [81, 81], [])


def test_addresses_are_unique_and_templates_shared():
    made = [template(torch.float32, (3,), (1,)).new(None) for _ in range(50)]
    made += [template(torch.float32, (1 << 19,), (1,)).new(None) for _ in range(3)]
    assert len({m.data_ptr() for m in made}) == len(made)


def test_threads_may_use_the_device_together():
    x = torch.arange(64.0, device="neuron")
    wrong: list[object] = []

    def work(k: int) -> None:
        for i in range(200):
            got = (x * k + i)[3].item()
            if got != 3 * k + i:
                wrong.append((k, i, got))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_phases_divide_the_counts():
    x = torch.ones(2, device="neuron", requires_grad=True)
    events.clear()
    with events.phase("forward"):
        y = (x * 3).sum()
    with events.phase("backward"):
        y.backward()
    by_phase = {(r["phase"], r["name"]) for r in events.snapshot() if r["kind"] == "execute"}
    assert ("forward", "aten::mul.Tensor") in by_phase
    assert ("backward", "aten::mul.Tensor") in by_phase
    assert {p for p, _ in by_phase} == {"forward", "backward"}


def test_listeners_see_each_event_once():
    x = torch.ones(2, device="neuron")
    x.add(x)
    seen: list[events.Event] = []
    with events.subscribe(seen.append):
        y = x.add(x)
        y.cpu()
    x.add(x)
    seen = [e for e in seen if e.kind != "flush"]  # of adaptive eager
    assert [e.name for e in seen] == ["aten::add.Tensor", "device-to-host"]
    assert all(e.duration_ns > 0 for e in seen)
    assert seen[1].nbytes == 8


def test_listeners_see_first_calls_and_calls_with_cpu_scalars():
    x, scalar = torch.ones(5, 3, device="neuron"), torch.tensor(2.0)
    seen: list[events.Event] = []
    with events.subscribe(seen.append):
        x.hypot(x)
        x.mul(scalar)
        x.mul(scalar)
        torch.neuron.synchronize()
    executed = [e for e in seen if e.kind == "execute"]
    assert [e.name for e in executed] == ["aten::hypot", "aten::mul.Tensor", "aten::mul.Tensor"]
    assert all(e.duration_ns > 0 for e in executed)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="/proc tells the memory mappings")
def test_a_process_that_never_stops_making_programs_keeps_few_in_memory(monkeypatch):
    """Each executable maps memory of its own, and where Linux allows no more mappings the process dies."""

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    monkeypatch.setenv("SHAKEDOWN_MAX_PLANS", "20")
    found = []
    for turn in range(4):
        for size in range(40):
            torch.empty(3000 + 40 * turn + size, device="neuron").neg()
        gc.collect()
        found.append(mappings())
    assert max(found) - found[0] < 200, found  # 40 programs a turn, of about four mappings each
