"""``torch.profiler`` on unchanged code: the device's events among PyTorch's, in tables and in trace files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler

from shakedown.neuron import events
from shakedown.neuron.profiling import by_line, kineto, line_table

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
HERE = __file__


@pytest.fixture(scope="module")
def layer() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(16, 16).to("neuron")


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.ones(8, 16, device="neuron")


@pytest.fixture(scope="module")
def step(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    def step() -> float:
        with record_function("forward"):
            y = layer(x).relu()
            loss = y.sum()
        loss.backward()
        return loss.item()

    step()  # compiles
    return step


@pytest.fixture(scope="module")
def taken(step: Any) -> Any:
    """A finished profile of one warm step."""
    with profile(activities=BOTH, record_shapes=True) as prof:
        step()
    return prof


def of_device(prof: Any) -> list[Any]:
    return [e for e in prof.events() if e.device_type == DeviceType.PrivateUse1]


def named(prof: Any, name: str) -> list[Any]:
    return [e for e in of_device(prof) if e.name == name]


def row_of(prof: Any, name: str, device: DeviceType = DeviceType.CPU, **how: Any) -> Any:
    (row,) = [r for r in prof.key_averages(**how) if r.key == name and r.device_type == device]
    return row


def trace_of(prof: Any, path: Path) -> dict[str, Any]:
    prof.export_chrome_trace(str(path))
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return json.loads(text)


# --- events and tables --------------------------------------------------------------------------------------------------


def test_what_ran_is_there_with_the_operator_that_caused_it(taken):
    found = Counter(e.name for e in of_device(taken))
    # The gradients of a second step are added to those of the first.
    assert found["aten::linear"] == found["aten::relu"] == found["aten::sum"] == 1
    assert found["aten::linear_backward"] == found["aten::threshold_backward"] == 1
    assert found["aten::add_.Tensor"] == 2
    assert found["transfer device-to-host"] == found["synchronize item"] == 1
    by_id = {e.id: e for e in taken.events() if e.device_type == DeviceType.CPU}
    for event in of_device(taken):
        cause = by_id[event.linked_correlation_id]
        assert cause.time_range.start <= event.time_range.start <= event.time_range.end <= cause.time_range.end
        assert event.time_range.elapsed_us() > 0
        if event.neuron.kind == "execute":
            assert event.name.startswith(cause.name)
    assert len({e.neuron.thread for e in of_device(taken)}) == 2  # the backward pass has a thread of its own


def test_the_clocks_are_one():
    read: list[int] = []
    with profile(activities=BOTH) as prof:
        for _ in range(20):
            with record_function("moment"):
                read.append(time.perf_counter_ns())
            time.sleep(0.002)
    prof.events()
    clock, zero = prof.profiler._session.clock, prof.profiler.kineto_results.trace_start_ns()
    ranges = [e for e in prof.events() if e.name == "moment"]
    assert len(ranges) == len(read)
    assert 0 < clock.unsure_ns < 50_000
    for ours, theirs in zip(read, ranges):
        at = (clock.convert(ours) - zero) / 1e3
        slack = clock.unsure_ns / 1e3
        assert theirs.time_range.start - slack <= at <= theirs.time_range.end + slack
    assert not [e for e in prof.events() if e.name == "shakedown.clock"]


def test_columns_of_device_time(taken):
    for operator, kernel in (("aten::linear", "aten::linear"), ("aten::add_", "aten::add_.Tensor")):
        caused = sum(e.time_range.elapsed_us() for e in named(taken, kernel))
        row = row_of(taken, operator)
        assert row.self_device_time_total == pytest.approx(caused)
        assert caused > 0
        assert row_of(taken, kernel, DeviceType.PrivateUse1).self_device_time_total == pytest.approx(caused)
    busy = sum(e.time_range.elapsed_us() for e in of_device(taken) if e.neuron.kind in ("execute", "transfer"))
    operators = sum(r.self_device_time_total for r in taken.key_averages() if r.device_type == DeviceType.CPU)
    assert operators == pytest.approx(busy)
    # A range has the time of all that was called in it.
    inside = sum(named(taken, n)[0].time_range.elapsed_us() for n in ("aten::linear", "aten::relu", "aten::sum"))
    forward = row_of(taken, "forward")
    assert forward.device_time_total == pytest.approx(inside)
    assert forward.self_device_time_total == pytest.approx(0)


def test_tables(taken):
    text = taken.key_averages().table(sort_by="self_device_time_total", row_limit=100)
    assert "Self NEURON" in text
    assert "NEURON time avg" in text
    assert "Self NEURON time total" in text
    times = [r.self_device_time_total for r in sorted(taken.key_averages(), key=lambda r: -r.self_device_time_total)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 0
    assert "aten::linear" in taken.key_averages(group_by_input_shape=True, group_by_stack_n=3).table()
    assert "NEURON" in repr(taken.profiler.total_average()) or taken.profiler.total_average().device_time_total > 0


def test_a_profile_in_which_nothing_ran_on_the_device(x):
    with profile(activities=BOTH) as prof:
        torch.ones(3) + 1
        torch.neuron.synchronize()
    assert [e.name for e in of_device(prof)] == ["synchronize"]
    assert "Self NEURON" in prof.key_averages().table(sort_by="self_device_time_total")


def test_rows_by_input_shape():
    a, b = torch.ones(4, 4, device="neuron"), torch.ones(2, 4, device="neuron")
    a @ a, b @ a
    with profile(activities=BOTH, record_shapes=True) as prof:
        a @ a
        b @ a
        b @ a
    rows = {
        str(r.input_shapes): (r.count, r.self_device_time_total > 0)
        for r in prof.key_averages(group_by_input_shape=True)
        if r.key == "aten::mm" and r.device_type == DeviceType.PrivateUse1
    }
    assert rows == {"[[4, 4], [4, 4]]": (1, True), "[[2, 4], [4, 4]]": (2, True)}


def test_lines(layer, x):
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = layer(x)  # linear
        z = y.relu()  # relu
        return z.sum()  # sum

    forward(x).backward()
    with profile(activities=BOTH, with_stack=True) as prof:
        forward(x).backward()
    first = forward.__code__.co_firstlineno
    where = {n: f"{HERE}({first + i}): forward" for i, n in enumerate(("linear", "relu", "sum"), start=1)}
    for name, line in where.items():
        assert named(prof, f"aten::{name}")[0].stack[0] == line
    assert named(prof, "aten::linear_backward")[0].stack[0] == where["linear"]
    assert named(prof, "aten::threshold_backward")[0].stack[0] == where["relu"]
    rows = {row.line: row for row in by_line(prof)}
    spent = sum(named(prof, n)[0].time_range.elapsed_us() for n in ("aten::linear", "aten::linear_backward"))
    assert rows[where["linear"]].device_us == pytest.approx(spent)
    assert rows[where["linear"]].events == {"aten::linear": 1, "aten::linear_backward": 1}
    assert where["relu"] in line_table(prof)
    assert rows["(backward: torch::autograd::AccumulateGrad)"].events["aten::add_.Tensor"] == 2
    grouped = {
        r.stack[0]: r.self_device_time_total
        for r in prof.key_averages(group_by_stack_n=1)
        if r.key == "aten::linear" and r.device_type == DeviceType.CPU and r.stack
    }
    assert grouped == {where["linear"]: pytest.approx(named(prof, "aten::linear")[0].time_range.elapsed_us())}


def test_lines_need_stacks(step):
    with profile(activities=BOTH) as prof:
        step()
    with pytest.raises(RuntimeError, match="with_stack=True"):
        by_line(prof)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as prof:
        step()
    with pytest.raises(RuntimeError, match="PrivateUse1"):
        by_line(prof)


def test_stacks_are_exported_once(step, tmp_path):
    with profile(activities=BOTH, with_stack=True) as taken:
        step()
    file = tmp_path / "stacks"
    taken.export_stacks(str(file), "self_privateuse1_time_total")
    lines = file.read_text().splitlines()
    assert any("test_profiler.py" in line for line in lines)
    total = sum(int(line.rpartition(" ")[2]) for line in lines)
    with_stack = [e for e in taken.events() if e.device_type == DeviceType.CPU and e.stack and e.kernels]
    assert total == sum(int(e.self_device_time_total) for e in with_stack)
    assert of_device(taken), "exporting leaves the events as they were"


# --- kinds of events ----------------------------------------------------------------------------------------------------


def test_the_first_call_compiles_or_loads_before_it_executes(x):
    with profile(activities=BOTH) as prof:
        torch.asinh(x)
    (ran,) = named(prof, "aten::asinh")
    (made,) = named(prof, "compile aten.asinh") or named(prof, "load aten.asinh")
    assert made.neuron.detail in ("compiled", "persistent-cache", "same-computation")
    assert made.time_range.end <= ran.time_range.start
    assert made.linked_correlation_id == ran.linked_correlation_id
    # What the runtime did has its own time, and none of the device's.
    assert row_of(prof, "aten::asinh").self_device_time_total == pytest.approx(ran.time_range.elapsed_us())
    assert "Self NEURON" in prof.key_averages().table(sort_by="self_device_time_total")


def test_transfers_and_fallbacks(x, tmp_path):
    host = torch.ones(3, 5)
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
    with profile(activities=BOTH) as prof:
        torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
        moved = host.to("neuron")
        moved.cpu()
        torch.neuron.synchronize()
    (fallen,) = named(prof, "fallback aten::fake_quantize_per_tensor_affine_cachemask")
    assert fallen.neuron.detail
    up, down = (named(prof, f"transfer {d}") for d in ("host-to-device", "device-to-host"))
    assert [e.neuron.nbytes for e in up][-1] == [e.neuron.nbytes for e in down][-1] == 60
    (wait,) = named(prof, "synchronize")  # the one that the profile itself needs at its end is left out
    assert wait.time_range.elapsed_us() > 0
    rows = [r for r in trace_of(prof, tmp_path / "t.json")["traceEvents"] if r["name"] == "transfer host-to-device"]
    assert rows[-1]["args"]["bytes"] == 60


def test_a_compiled_graph(layer, x, fresh_dynamo):
    torch.neuron.reset_dynamo_metrics()
    graph = torch.compile(lambda x: torch.nn.functional.silu(layer(x)).sum(), backend="neuron")
    graph(x).backward()
    with profile(activities=BOTH, with_stack=True) as prof:
        graph(x).backward()
    (known,) = {m.graph_name for m in torch.neuron.get_dynamo_metrics() if "forward" in m.graph_name}
    name = known.rpartition("_")[0]  # the rest counts its programs, one for each layout of inputs
    by_id = {e.id: e.name for e in prof.events() if e.device_type == DeviceType.CPU}
    found = {e.name: by_id[e.linked_correlation_id] for e in of_device(prof) if e.name.startswith("graph::")}
    assert found == {
        f"graph::{name}": "CompiledFunction",
        f"graph::{name.replace('forward', 'backward')}": "CompiledFunctionBackward",
    }
    lines = [e.stack[0] for e in of_device(prof) if e.name.startswith("graph::")]  # the backward's is the forward's
    assert len(set(lines)) == 1
    assert lines[0].startswith(f"{HERE}({graph.__wrapped__.__code__.co_firstlineno})")


def test_a_custom_kernel(x):
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.neuron.wrap_nki(lambda a: a * 2)(x)

    operator = torch.neuron.nki_op("shakedown_profiled::doubled", doubled, mutates_args=())
    operator(x)
    with profile(activities=BOTH) as prof:
        with record_function("kernel"):
            made = operator(x)
        assert torch.equal(made.cpu(), x.cpu() * 2)
    (ran,) = [e for e in of_device(prof) if e.neuron.kind == "execute"]
    assert ran.name == "shakedown_profiled::doubled"
    # PyTorch 2.14 itself does not tell a profile that a custom operator is called.
    assert row_of(prof, "kernel").device_time_total == pytest.approx(ran.time_range.elapsed_us())


def test_a_whole_step(x, fresh_dynamo):
    model = torch.nn.Linear(16, 2).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.neuron.compile_step(model, lambda m, x: m(x).square().mean(), optimizer)
    compiled(x), compiled(x)
    with profile(activities=BOTH) as prof, record_function("step"):
        compiled(x)
    (ran,) = [e for e in of_device(prof) if e.neuron.kind == "execute"]
    assert ran.name.startswith("graph::")
    assert ran.name.endswith("_step")
    assert row_of(prof, "step").device_time_total == pytest.approx(ran.time_range.elapsed_us())


def test_memory(x):
    x + x
    with profile(activities=BOTH, profile_memory=True) as prof:
        with record_function("range"):
            y = x + x
        del y
    assert row_of(prof, "aten::add").self_device_memory_usage == x.nbytes
    assert row_of(prof, "range").device_memory_usage == x.nbytes
    assert sum(e.device_memory_usage for e in prof.events() if e.name == "[memory]") == -x.nbytes
    assert "NEURON Mem" in prof.key_averages().table()


def test_another_thread_and_only_the_device(x):
    x + x

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: x + x)
        thread.start()
        thread.join()

    with profile(activities=BOTH) as prof:
        elsewhere()
    (ran,) = named(prof, "aten::add.Tensor")
    assert ran.linked_correlation_id == 0
    assert ran.time_range.elapsed_us() > 0
    with profile(activities=[ProfilerActivity.PrivateUse1]) as prof:
        x + x
    assert [e.name for e in prof.events()] == ["aten::add.Tensor"]
    assert "aten::add.Tensor" in prof.key_averages().table(sort_by="self_device_time_total")


# --- trace files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_opens(step, tmp_path, name):
    with profile(activities=BOTH, with_stack=True) as taken:
        step()
    trace = trace_of(taken, tmp_path / name)
    assert list(tmp_path.iterdir()) == [tmp_path / name]
    rows = trace["traceEvents"]
    assert {r["ph"] for r in rows} <= set("XMsfiC")
    assert not [r for r in rows if r["name"] == "shakedown.clock"]
    ours = [r for r in rows if r["ph"] == "X" and r.get("cat", "").startswith("neuron_")]
    assert Counter(r["name"] for r in ours) == Counter(e.name for e in of_device(taken))
    (process,) = [r["args"]["name"] for r in rows if r["ph"] == "M" and r["pid"] == 0 and r["name"] == "process_name"]
    tracks = {
        r["tid"]: r["args"]["name"] for r in rows if r["ph"] == "M" and r["pid"] == 0 and r["name"] == "thread_name"
    }
    assert process == "neuron:0"
    assert {"neuron:0 execute", "neuron:0 transfer"} <= set(tracks.values())
    assert {r["tid"] for r in ours} <= set(tracks)
    for track in tracks:  # on a track, one holds the other, or they do not meet
        ends: list[float] = []
        for row in sorted((r for r in ours if r["tid"] == track), key=lambda r: (r["ts"], -r["dur"])):
            while ends and ends[-1] <= row["ts"] + 1e-3:
                ends.pop()
            assert not ends or row["ts"] + row["dur"] <= ends[-1] + 1e-3
            ends.append(row["ts"] + row["dur"])
    arrows = {ph: {r["id"]: r for r in rows if r["ph"] == ph and r["cat"] == "ac2g"} for ph in "sf"}
    assert set(arrows["s"]) == set(arrows["f"])
    assert len(arrows["s"]) == len(ours)
    operators = [r for r in rows if r["ph"] == "X" and r.get("cat") in ("cpu_op", "user_annotation")]
    for number, start in arrows["s"].items():
        end = arrows["f"][number]
        assert start["ts"] <= end["ts"]
        assert end["bp"] == "e"
        assert [r for r in ours if r["tid"] == end["tid"] and r["ts"] <= end["ts"] <= r["ts"] + r["dur"]]
        assert [r for r in operators if r["tid"] == start["tid"] and r["ts"] <= start["ts"] <= r["ts"] + r["dur"]]
    linear = next(r for r in ours if r["name"] == "aten::linear")
    assert linear["args"]["operator"] == "aten::linear"
    assert "test_profiler.py" in linear["args"]["line"]


def test_a_schedule_and_its_traces(step, tmp_path):
    steps: list[int] = []

    def ready(prof: Any) -> None:
        steps.append(len(named(prof, "aten::linear")))
        tensorboard_trace_handler(str(tmp_path))(prof)

    plan = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        with profile(activities=BOTH, schedule=plan, on_trace_ready=ready) as prof:
            for _ in range(10):
                step()
                prof.step()
                assert events.listening is (prof.current_action.name.startswith("RECORD"))
    assert steps == [2, 2]
    assert not events.listening
    files = sorted(tmp_path.glob("*.pt.trace.json"))
    assert len(files) == 2
    for file in files:
        rows = json.loads(file.read_text())["traceEvents"]
        assert sum(r["name"] == "aten::linear" and r.get("cat") == "neuron_execute" for r in rows) == 2
        assert sum(r["name"].startswith("ProfilerStep#") and r.get("cat") == "user_annotation" for r in rows) == 2


def test_events_of_all_cycles_where_they_are_accumulated(step):
    plan = schedule(wait=0, warmup=1, active=1, repeat=2)
    with profile(activities=BOTH, schedule=plan, acc_events=True) as prof:
        for _ in range(5):
            step()
            prof.step()
    assert len(named(prof, "aten::linear")) == 2
    assert row_of(prof, "aten::linear").self_device_time_total > 0


def test_other_ways_to_a_trace(step, tmp_path):
    with profile(activities=BOTH) as prof:
        step()
    prof.export_chrome_trace(str(tmp_path / "python.json.gz"), use_python_export=True)
    rows = json.loads(gzip.decompress((tmp_path / "python.json.gz").read_bytes()))["traceEvents"]
    (linear,) = [r for r in rows if r["name"] == "aten::linear" and r.get("cat") == "neuron_execute"]
    assert linear["args"]["operator"] == "aten::linear"
    only = torch._C._profiler._ExperimentalConfig(trace_only=True)
    with profile(activities=BOTH, experimental_config=only) as prof:
        step()
    rows = trace_of(prof, tmp_path / "only.json")["traceEvents"]
    (linear,) = [r for r in rows if r["name"] == "aten::linear" and r.get("cat") == "neuron_execute"]
    assert linear["args"]["operator"] == "aten::linear"


def test_collecting_can_be_switched_off_meanwhile(x):
    x + x, x * x
    with profile(activities=BOTH) as prof:
        x + x
        prof.toggle_collection_dynamic(False, [ProfilerActivity.PrivateUse1])
        x * x
        prof.toggle_collection_dynamic(True, [ProfilerActivity.PrivateUse1])
        x + x
    assert Counter(e.name for e in of_device(prof)) == {"aten::add.Tensor": 2}
    assert [e.name for e in prof.events() if e.device_type == DeviceType.CPU] == ["aten::add", "aten::mul", "aten::add"]


# --- on and off ---------------------------------------------------------------------------------------------------------


def test_nothing_is_different_without_the_device(step):
    legacy = torch.autograd.profiler.profile
    own = {n for n, f in vars(legacy).items() if callable(f) and getattr(f, "__module__", "") != legacy.__module__}
    assert not own
    assert not hasattr(vars(legacy)["_start_trace"], "__wrapped__")
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        assert not events.listening
        assert not events._watchers
        step()
    assert type(prof.profiler) is legacy
    assert not of_device(prof)


_PLAIN = """
import sys, torch
loaded = {"jax", "shakedown.neuron.profiling.session", "shakedown.neuron.profiling.neuron_config"} & set(sys.modules)
assert not loaded, loaded
with torch.profiler.profile(with_stack=True, profile_memory=True) as prof:
    torch.ones(3) + 1
assert prof.use_device in ("neuron", None, "cuda")
assert "jax" not in sys.modules
assert not torch.neuron.is_initialized()
print([e.name for e in prof.events() if e.name.startswith("aten::")])
"""


def test_a_profile_of_a_program_that_does_not_use_the_device():
    run = subprocess.run([sys.executable, "-c", _PLAIN], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "'aten::ones'" in run.stdout


def test_one_after_the_other_one_in_the_other_and_an_error(step):
    for _ in range(2):
        with profile(activities=BOTH) as prof:
            step()
        assert len(named(prof, "aten::linear")) == 1
        assert not events.listening

    def fails() -> None:
        nonlocal prof
        with profile(activities=BOTH) as prof:
            step()
            1 / 0

    with pytest.raises(ZeroDivisionError):
        fails()
    assert len(named(prof, "aten::linear")) == 1
    assert not events.listening
    with profile(activities=BOTH) as outer:
        with profile(activities=BOTH) as inner:  # PyTorch gives all to the inner one, and tells so on standard error
            step()
    assert len(named(inner, "aten::linear")) == 1
    assert not events.listening
    assert isinstance(outer.events(), list)
    with profile(activities=BOTH) as prof:
        step()
    assert len(named(prof, "aten::linear")) == 1


def test_the_older_interface(step, tmp_path):
    with torch.autograd.profiler.profile(use_device="neuron") as prof:
        step()
    assert prof.key_averages().total_average().self_device_time_total > 0
    row = next(r for r in prof.key_averages() if r.key == "aten::linear" and r.device_type == DeviceType.CPU)
    assert row.self_device_time_total > 0
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    assert "neuron_execute" in (tmp_path / "t.json").read_text()
    with torch.autograd.profiler.profile(enabled=False, use_device="neuron") as prof:
        step()
    assert prof is None
    assert not events.listening


def test_functions_that_are_gone_by_the_end(x):
    x + x
    with profile(activities=BOTH, with_stack=True) as prof:
        for number in range(3):
            space: dict[str, Any] = {}
            exec(f"def gone_{number}(x):\n    return x + x\ngone_{number}(x)", {"x": x}, space)
            del space
    assert len(named(prof, "aten::add.Tensor")) == 3


def test_a_torch_that_differs(step, monkeypatch, tmp_path):
    monkeypatch.setattr(kineto, "_NEEDED", (*kineto._NEEDED, "_not_there"))
    with pytest.warns(UserWarning, match="without the events of device neuron"), profile(activities=BOTH) as prof:
        step()
    assert not of_device(prof)
    assert row_of(prof, "aten::linear").count == 1
    monkeypatch.undo()
    monkeypatch.setattr("shakedown.neuron.profiling.functions.FunctionEvent", lambda **_: 1 + "")
    with profile(activities=BOTH) as prof:
        step()
    with pytest.warns(UserWarning, match="without the events of device neuron"):
        assert not of_device(prof)
    monkeypatch.undo()
    monkeypatch.setattr(
        type(prof.profiler).__mro__[2], "export_chrome_trace", lambda s, p, *_: Path(p).write_text("{}")
    )
    with pytest.warns(UserWarning, match="a trace file without the events"):
        prof.export_chrome_trace(str(tmp_path / "t.json"))
    assert (tmp_path / "t.json").read_text() == "{}"
