"""Programs and the cache: what the key depends on, what is linked without tracing, and that nothing but bytes is read."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import shakedown.neuron.cache as cache
from shakedown.neuron import config, dispatch, events, executables, linking, program_key, runtime, views
from shakedown.neuron.cache.store import CacheWarning, Store
from shakedown.neuron.plan import Plan, build

PACKAGE = Path(cache.__file__).parent.parent


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A cache of this test's own."""
    torch.neuron.init()
    monkeypatch.setenv("SHAKEDOWN_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.delenv("SHAKEDOWN_CACHE", raising=False)
    monkeypatch.setattr(executables, "_made_here", set())
    # What others edit while the tests run must not decide whether programs have keys.
    monkeypatch.setattr(config, "STARTED", time.time() + 1e6)
    program_key._sources.cache_clear()
    opened = cache.current()
    assert opened is not None
    assert opened.root == tmp_path / "caches" / "executables"
    events.clear()
    return opened


def another_process() -> None:
    """Forget what this process compiled: what follows finds what an earlier one left."""
    executables._made_here.clear()
    events.clear()


def plan_of(op: Any, *args: Any, **kwargs: Any) -> Plan:
    """A plan that nothing of this process has run."""
    return build(dispatch.operator_of(op), args, kwargs)


def run(plan: Plan, *tensors: torch.Tensor) -> torch.Tensor:
    """One result of a plan on contiguous inputs, on the CPU."""
    found = plan.run(*[t.untyped_storage().buffer for t in tensors])
    found = found[0] if isinstance(found, list) else found
    return runtime.download(found, tensors[0].dtype)


def compiles() -> dict[str, int]:
    rows = [r for r in events.snapshot() if r["kind"] == "compile"]
    return {d: sum(r["count"] for r in rows if r["detail"] == d) for d in {r["detail"] for r in rows}}


_ATEN = torch.ops.aten


def _example() -> tuple[Callable[[], Plan], torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = torch.randn(5, 7), torch.randn(5, 7)
    x, y = a.to("neuron"), b.to("neuron")
    return (lambda: plan_of(_ATEN.hypot.default, x, y)), x, y, torch.hypot(a, b).flatten()


# --- hits, misses, traces -----------------------------------------------------------------------------------------------


def test_the_next_process_neither_traces_nor_compiles(store: Store) -> None:
    make, x, y, expected = _example()
    assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"compiled": 1}
    assert sorted(e.header.kind for e in store.entries() if e.header.name == "aten.hypot") == ["executable", "trace"]
    first = cache.stats()  # JAX may have compiled something of its own, the first time
    assert first["misses"] == first["compiled"] >= 1
    assert first["hits"] == first["traces_saved"] == 0
    assert first["compile_seconds"] > 0
    assert first["bytes_written"] == sum(e.file_bytes for e in store.entries())

    another_process()
    plan = make()
    traced = []
    jitted = plan.run.runner.jitted
    plan.run.runner.jitted = type("Jitted", (), {"trace": lambda self, *a: traced.append(a) or jitted.trace(*a)})()
    assert torch.equal(run(plan, x, y), run(make(), x, y))
    assert traced == []
    assert compiles() == {"persistent-cache": 2}
    found = cache.stats()
    assert (found["misses"], found["compiled"], found["hits"], found["traces_saved"]) == (0, 0, 2, 2)


def test_each_trace_leads_to_the_executable_of_its_own_program(store: Store) -> None:
    """In-place operators too, and where JAX asked for no executable, or last for another program's."""
    a, b = torch.randn(6, 11), torch.randn(6, 11)
    x, y = a.to("neuron"), b.to("neuron")
    calls = [
        (_ATEN.mul_.Tensor, a * b),
        (_ATEN.mul.Tensor, a * b),
        (_ATEN.copy_.default, b),
        (_ATEN.sub_.Tensor, a - b),
        (_ATEN.atan2_.default, torch.atan2(a, b)),
        (_ATEN.atan2.default, torch.atan2(a, b)),
        (_ATEN.copysign_.Tensor, torch.copysign(a, b)),
    ]
    for op, expected in calls:
        torch.testing.assert_close(run(plan_of(op, x, y), x, y), expected.flatten())
    names = {str(op).removesuffix(".default").removesuffix(".Tensor") for op, _ in calls}
    traces = [e.header for e in store.entries() if e.header.kind == "trace"]
    assert {h.name.removesuffix(".Tensor") for h in traces} == names
    made = {e.header.digest: e.header.name for e in store.entries() if e.header.kind == "executable"}
    for header in traces:  # those of one computation share an executable, under the name that was first
        assert made[header.note["executable"]].replace("_", "") == header.name.replace("_", "")
    another_process()
    for op, expected in reversed(calls):
        torch.testing.assert_close(run(plan_of(op, x, y), x, y), expected.flatten())
    assert compiles() == {"persistent-cache": len(calls)}
    assert cache.stats()["traces_saved"] == len(calls)


def test_without_its_trace_a_program_is_traced_and_its_executable_found(store: Store) -> None:
    make, x, y, expected = _example()
    run(make(), x, y)
    for entry in store.entries():
        if entry.header.kind == "trace":
            entry.path.unlink()
    another_process()
    assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"persistent-cache": 1}
    assert cache.stats()["traces_saved"] == 0
    assert "trace" in {e.header.kind for e in store.entries()}  # and its trace is there again


def test_without_its_executable_a_trace_is_of_no_use(store: Store) -> None:
    make, x, y, expected = _example()
    run(make(), x, y)
    for entry in store.entries():
        if entry.header.kind == "executable":
            entry.path.unlink()
    another_process()
    assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"compiled": 1}


def test_the_same_computation_under_another_name_is_compiled_once(store: Store) -> None:
    buffer = torch.ones(6, device="neuron").untyped_storage().buffer
    events.clear()
    one = runtime.compile(lambda a: a * 3 + 1, "first.name", holds="graph")
    two = runtime.compile(lambda a: a * 3 + 1, "second.name", holds="graph")
    assert one(buffer).tolist() == two(buffer).tolist() == [4.0] * 6
    # By this process itself, so that it is no sign of a warm cache.
    assert compiles() == {"compiled": 1, "same-computation": 1}


def test_one_program_serves_buffers_of_several_lengths(store: Store) -> None:
    whole = torch.arange(12.0)
    short, long = whole[:6].clone().to("neuron"), whole.to("neuron")[:6]  # views alike, buffers of 6 and 12
    plan = plan_of(_ATEN.exp.default, short)
    for _ in range(2):
        assert torch.allclose(run(plan, short), whole[:6].exp())
        assert torch.allclose(run(plan, long), whole[:6].exp())
    assert compiles() == {"compiled": 2}


def test_demands_of_the_data_come_back_with_the_trace(store: Store) -> None:
    table, rows = torch.randn(4, 3), torch.tensor([1, 3])
    on, good = table.to("neuron"), rows.to("neuron")
    bad = torch.tensor([1, 9]).to("neuron")
    for source in ("compiled", "persistent-cache"):
        another_process()
        plan = plan_of(_ATEN.index_select.default, on, 0, good)
        buffers = [t.untyped_storage().buffer for t in (on, good)]
        *found, broken = plan.run(*buffers)
        assert torch.equal(runtime.download(found[0], torch.float32), table[rows].flatten())
        assert runtime.read_int(broken) == 0
        (demand,) = plan.program.demands
        assert demand.error is IndexError
        assert runtime.read_int(plan.run(buffers[0], bad.untyped_storage().buffer)[-1]) == 1
        assert compiles() == {source: 1}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]
)
def test_dtypes_survive_and_bits_are_those_of_the_first_process(store: Store, dtype: torch.dtype) -> None:
    values = (torch.randn(3, 4) * 3).to(dtype)
    x = values.to("neuron")
    op = _ATEN.logical_not.default if dtype is torch.bool else _ATEN.mul.Tensor
    given = (x,) if dtype is torch.bool else (x, x)
    expected = op(*[values] * len(given))
    first = plan_of(op, *given).run(*[t.untyped_storage().buffer for t in given])
    another_process()
    again = plan_of(op, *given).run(*[t.untyped_storage().buffer for t in given])
    assert compiles() == {"persistent-cache": 1}
    assert (again.dtype, again.shape, again.weak_type) == (first.dtype, first.shape, first.weak_type)
    assert torch.equal(runtime.download(first, dtype), runtime.download(again, dtype))
    torch.testing.assert_close(runtime.download(again, dtype), expected.flatten())


def test_inputs_are_donated_after_a_load_as_before(store: Store) -> None:
    import jax
    import jax.numpy as jnp

    def add(a: Any, b: Any) -> Any:
        return a + b

    for _ in range(2):
        run = runtime.compile(add, "donating", holds="segment", donate=[0])
        a, b = jnp.ones(1024, jnp.float32), jnp.ones(1024, jnp.float32)
        assert run(a, b)[0] == 2.0
        assert a.is_deleted()
        assert not b.is_deleted()
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="deleted|donated"):
            run(a, b)


def test_off_means_off(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAKEDOWN_CACHE", "0")
    make, x, y, expected = _example()
    assert torch.allclose(run(make(), x, y), expected)
    assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"compiled": 2}
    assert not store.root.exists()
    assert cache.current() is None
    assert cache.stats()["enabled"] is False
    assert cache.explain() == []


# --- damage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["executable", "trace"])
def test_a_damaged_entry_is_compiled_again_and_replaced(store: Store, kind: str) -> None:
    make, x, y, expected = _example()
    run(make(), x, y)
    (entry,) = [e for e in store.entries() if e.header.kind == kind and e.header.name == "aten.hypot"]
    data = entry.path.read_bytes()
    entry.path.write_bytes(data[: len(data) - 3])
    another_process()
    with pytest.warns(CacheWarning, match="damaged|truncated"):
        assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"compiled": 1} if kind == "executable" else {"persistent-cache": 1}
    assert store.get(entry.header.digest) is not None
    another_process()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"persistent-cache": 1}


@pytest.mark.parametrize("payload", [b"", b"\x7fELF" + b"\0" * 400, pickle.dumps({"a": 1})])
def test_bytes_that_pjrt_refuses_are_a_miss(store: Store, payload: bytes) -> None:
    make, x, y, expected = _example()
    run(make(), x, y)
    (entry,) = [e for e in store.entries() if e.header.kind == "executable" and e.header.name == "aten.hypot"]
    key = cache.key.Key(entry.header.parts)
    store.put(key, payload, kind="executable", name=entry.header.name)
    another_process()
    with pytest.warns(CacheWarning, match="PJRT"):
        assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"compiled": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": []},
        {"outputs": [[[3], "float32", False]] * 2},
        {"inputs": [[[35], "float32", False]]},
        {"kept": [0]},
        {"kept": [0, 99]},
        {"demands": [["op", "SystemExit", "text"]]},
        {"demands": "nonsense"},
        {"executable": "0" * 40},
        {"executable": None},
        {"single": False, "outputs": [[[35], "no_such_dtype", False]]},
    ],
)
def test_a_note_that_is_not_that_of_its_executable_is_refused(store: Store, change: dict[str, Any]) -> None:
    make, x, y, expected = _example()
    run(make(), x, y)
    (entry,) = [e for e in store.entries() if e.header.kind == "trace" and e.header.name == "aten.hypot"]
    note = {**entry.header.note, **change}
    store.put(cache.key.Key(entry.header.parts), b"", kind="trace", name="n", note=note)
    another_process()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"persistent-cache": 1}
    assert cache.stats()["traces_saved"] == 0


def test_nothing_is_unpickled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make, x, y, expected = _example()
    run(make(), x, y)
    another_process()

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert torch.allclose(run(make(), x, y), expected)
    assert compiles() == {"persistent-cache": 1}
    readers = [
        *sorted((PACKAGE / "cache").glob("*.py")),
        *(PACKAGE / f"{n}.py" for n in ("executables", "linking", "runtime")),
    ]
    for path in readers:
        named = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
        assert not named & {"pickle", "cloudpickle", "marshal", "eval", "exec"}, path


# --- keys ---------------------------------------------------------------------------------------------------------------


def test_options_and_inputs_are_part_of_the_key_and_explained(store: Store) -> None:
    buffer = torch.ones(8, device="neuron").untyped_storage().buffer
    longer = torch.ones(9, device="neuron").untyped_storage().buffer
    events.clear()
    for holds in ("graph", "arithmetic"):
        runtime.compile(lambda a: a + 1, "explained", holds=holds)(buffer)
    runtime.compile(lambda a: a + 1, "explained", holds="graph")(longer)
    assert compiles() == {"compiled": 3}
    first, second, third = [r for r in torch.neuron.cache.explain() if r["name"] == "explained"]
    assert first["kind"] == "executable"
    (line,) = [part for part in second["differences"] if part.startswith("compiler options")]
    assert "xla_cpu_use_fusion_emitters=False" in line
    assert any(
        line.startswith("inputs and results") and "9xf32" in line and "8xf32" in line for line in third["differences"]
    )
    assert [r["digest"] for r in cache.explain(second["digest"][:10])] == [second["digest"]]
    assert {"computation", "options", "device", "versions", "flags", "host"} <= set(cache.misses()[0]["parts"])


def test_flags_versions_and_processor_are_parts_of_every_key(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    client = executables.device().client
    before = executables.surroundings_of_process.__wrapped__(client)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp/somewhere --xla_cpu_enable_fast_math=true")
    after = executables.surroundings_of_process.__wrapped__(client)
    assert after.pop("flags") == "XLA_FLAGS:--xla_cpu_enable_fast_math=true"
    before.pop("flags")
    assert before == after
    import jax

    assert f"jax={jax.__version__}" in after["versions"]
    assert "features=" in after["host"]
    assert "cores=" in after["host"]


def test_a_program_with_a_function_from_elsewhere_has_no_key(store: Store) -> None:
    x = torch.ones(3, device="neuron")
    plan = plan_of(_ATEN.hypot.default, x, x)
    signature = [((3,), "float32", False)] * 2
    assert program_key.key_of(plan.program, signature, "s") is not None
    program = plan.program
    call = next(s for s in program.steps if s.kind == "call")
    from dataclasses import replace

    def foreign(*args: Any) -> Any:
        return call.lowering(*args) * 2

    def closure(fn: Any) -> Any:
        return views.__dict__["read"] if fn is None else lambda *args: fn(*args)

    for other in (foreign, closure(foreign), len):
        steps = tuple(replace(s, lowering=other) if s is call else s for s in program.steps)
        assert program_key.key_of(replace(program, steps=steps), signature, "s") is None
    steps = tuple(replace(s, kwargs={"odd": object()}) if s is call else s for s in program.steps)
    assert program_key.key_of(replace(program, steps=steps), signature, "s") is None


def test_in_a_process_whose_functions_were_replaced_every_program_is_traced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, x, y, expected = _example()
    run(make(), x, y)
    another_process()
    read = views.read
    monkeypatch.setattr(views, "read", lambda buffer, view: read(buffer, view) + 1)
    wrong = run(make(), x, y)
    assert torch.allclose(wrong, torch.hypot(x.cpu() + 1, y.cpu() + 1).flatten())  # not what is in the cache
    assert compiles() == {"compiled": 1}
    monkeypatch.undo()
    monkeypatch.setenv("SHAKEDOWN_CACHE_DIR", str(store.root.parent))
    another_process()
    assert torch.allclose(run(make(), x, y), expected)  # and what it did is not what others find


def test_a_younger_source_than_the_process_gives_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.neuron.init()
    monkeypatch.setattr(config, "STARTED", 0.0)
    assert program_key._sources.__wrapped__() is None


def test_the_default_dtype_is_part_of_the_key(store: Store) -> None:
    x = torch.ones(3, device="neuron")
    program = plan_of(_ATEN.hypot.default, x, x).program
    signature = [((3,), "float32", False)] * 2
    one = program_key.key_of(program, signature, "s")
    torch.set_default_dtype(torch.float64)
    try:
        assert program_key.key_of(program, signature, "s").digest != one.digest
    finally:
        torch.set_default_dtype(torch.float32)
    assert program_key.key_of(program, signature, "s").digest == one.digest


# --- threads ------------------------------------------------------------------------------------------------------------


def test_threads_that_compile_the_same_programs_compile_each_once(store: Store) -> None:
    buffer = torch.arange(8.0).to("neuron").untyped_storage().buffer
    barrier = threading.Barrier(8)
    wrong: list[Any] = []

    def work() -> None:
        barrier.wait()
        for n in range(3):
            # (n as a default, since each thread has functions of its own.)
            run = runtime.compile(lambda a, n=n: a * (n + 2) - n, f"threads.{n}", holds="graph")
            found = run(buffer).tolist()
            if found != [v * (n + 2) - n for v in range(8)]:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert compiles() == {"compiled": 3, "same-computation": 21}


def test_autograds_thread_loads_what_it_compiled(store: Store) -> None:
    values = torch.randn(4, 9)

    def gradient() -> torch.Tensor:
        x = values.to("neuron").requires_grad_()
        (torch.nn.functional.softplus(x, beta=1.5) * torch.sinh(x)).sum().backward()
        return x.grad.cpu()

    expected = copy.deepcopy(values).requires_grad_()
    (torch.nn.functional.softplus(expected, beta=1.5) * torch.sinh(expected)).sum().backward()
    for source in ("compiled", "persistent-cache"):
        # (The dictionaries themselves are held by the operators' kernels.)
        for operator in dispatch._operators.values():
            operator.plans.clear()
        another_process()
        torch.testing.assert_close(gradient(), expected.grad)
        assert source in compiles()
        assert set(compiles()) <= {source, "same-computation"}


# --- the command --------------------------------------------------------------------------------------------------------


def _shakedown(*arguments: str) -> tuple[int, str, str]:
    from typer.testing import CliRunner

    from shakedown.cli import app

    found = CliRunner().invoke(app, ["cache", *arguments])
    return found.exit_code, found.stdout, found.stderr


def test_the_command_shows_explains_and_removes(store: Store, tmp_path: Path) -> None:
    make, x, y, _ = _example()
    run(make(), x, y)
    root = str(tmp_path / "caches")
    code, out, _ = _shakedown("stats", "--dir", root, "--json")
    stats = json.loads(out)
    assert (code, stats["entries"], stats["executables"], stats["traces"], stats["for_this_computer"]) == (
        0,
        2,
        1,
        1,
        2,
    )
    assert stats["bytes"] == sum(e.file_bytes for e in store.entries())
    code, out, _ = _shakedown("list", "--dir", root, "--json", "--sort", "size")
    rows = json.loads(out)
    assert [r["name"] for r in rows] == ["aten.hypot", "aten.hypot"]
    assert {r["kind"] for r in rows} == {"executable", "trace"}
    code, out, _ = _shakedown("list", "--dir", root)
    assert "aten.hypot" in out
    code, out, _ = _shakedown("explain", "aten.hypot", "--dir", root)
    assert code == 0
    assert "first of its name" in out
    code, _, err = _shakedown("explain", "aten.nothing", "--dir", root)
    assert code == 2
    assert "aten.nothing" in err
    assert (
        _shakedown("prune", "--dir", root, "--older-than", "1h", "--json")[1]
        == json.dumps({"removed": 0, "directory": str(store.root)}) + "\n"
    )
    assert _shakedown("prune", "--dir", root, "--older-than", "soon")[0] == 2
    assert _shakedown("prune", "--dir", root, "--max-size", "0", "--json")[1].startswith('{"removed": 2')
    run(make(), x, y)
    code, _, err = _shakedown("clear", "--dir", root)
    assert code == 1
    assert "nothing was removed" in err or "Aborted" in err
    assert _shakedown("clear", "--dir", root, "--json")[0] == 2
    code, out, _ = _shakedown("clear", "--dir", root, "--yes")
    assert code == 0
    assert "removed" in out
    assert list(store.entries()) == []
    assert _shakedown("stats", "--dir", str(tmp_path / "nowhere"))[0] == 2


def test_the_command_says_what_is_wrong_with_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAKEDOWN_CACHE_MAX_SIZE_MB", "much")
    code, _, err = _shakedown("stats")
    assert code == 2
    assert "SHAKEDOWN_CACHE_MAX_SIZE_MB" in err


def test_linking_is_known_to_work_with_this_jax() -> None:
    torch.neuron.init()
    assert executables.installed()
    assert linking._KNOWN
