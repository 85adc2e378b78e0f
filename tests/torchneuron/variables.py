"""Environment variables: that each does what TorchNeuron documents, or is accepted and says so."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from shakedown.neuron import cache, config, config_accepted, config_listing, events, executables, log
from shakedown.neuron.setting import Setting

from . import contract
from .contract import variables
from .tools import fresh


def _setting_of(name: str) -> Setting:
    return next(s for s in config_listing.every() if name in s.names)


def variable(*names: str):
    """An entry for variables whose source and differences stand with their settings."""

    def register(check):
        for name in names:
            setting = _setting_of(name)
            contract.entry("variables", name, source=setting.source, differs=setting.differs)(check)
        return check

    return register


def quantised(x: torch.Tensor) -> torch.Tensor:
    """An operator that the device has no program for."""
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)


INVALID = {"NEURON_CC_FLAGS": "--invalid-flag"}


# --- errors -------------------------------------------------------------------------------------------------------------


@variable("TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS")
def strict():
    """Operators without an implementation fall back; one that has one and fails raises, naming variable, operator, arguments"""
    name = "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS"
    with variables(**{name: "1"}):
        quantised(fresh())
        assert torch.neuron.get_fallback_ops() == ["aten::fake_quantize_per_tensor_affine_cachemask"]
    x = fresh()
    with variables(**{name: "1", **INVALID}), pytest.raises(RuntimeError) as raised:
        x.cosh()
    text = str(raised.value)
    for part in (name, "cosh", "float32", str(x.numel())):
        assert part in text, f"{part} is not in the error: {text}"
    with pytest.raises(IndexError), variables(**{name: "1"}):
        x.sum(5)


@variable("NEURON_FALLBACK_ENABLED")
def fallback_enabled():
    """A failed operator runs on the CPU and is recorded; with 0 it raises"""
    with variables(**INVALID):
        x = fresh()
        assert x.sinh()[0].item() == pytest.approx(1.1752, abs=1e-3)
        assert "aten::sinh" in torch.neuron.get_fallback_ops()
    with variables(NEURON_FALLBACK_ENABLED="0", **INVALID), pytest.raises(RuntimeError):
        fresh().sinh()


@variable("NEURON_LAUNCH_BLOCKING")
def launch_blocking():
    """Nothing waits after a call: set as Python starts, it keeps adaptive eager from recording"""
    code = "import json, torch; print(json.dumps(torch.neuron.adaptive.enabled()))"
    assert _child(code, TORCH_NEURONX_ENABLE_CONCATENATION="1", NEURON_LAUNCH_BLOCKING="1") is False


@variable("TORCH_NEURONX_ENABLE_STACK_TRACE")
def stack_trace():
    """An error of an operator names the line that called it"""
    strictly = {"TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": "1", **INVALID}
    x = fresh()
    with variables(TORCH_NEURONX_ENABLE_STACK_TRACE="1", **strictly), pytest.raises(RuntimeError) as raised:
        x.atanh()
    assert Path(__file__).name in str(raised.value)


@variable("TORCH_NEURONX_LOG_LEVEL", "TORCH_NEURONX_LOG_FILE")
def logging():
    """Level 2 notes each operator that falls back, in the file; level 0 does not"""
    with tempfile.TemporaryDirectory() as folder:
        for level, noted in (("2", True), ("0", False)):
            file = Path(folder) / level
            log.forget()
            with variables(TORCH_NEURONX_LOG_LEVEL=level, TORCH_NEURONX_LOG_FILE=str(file)):
                quantised(fresh())
                log.logger().error("something is wrong")
            log.forget()
            assert ("fake_quantize" in file.read_text()) is noted
            assert "something is wrong" in file.read_text()


@variable("TORCH_NEURONX_SKIP_OP_PRECONDITIONS")
def preconditions():
    """An index out of range is an IndexError; with 1 it is not looked for, eager and compiled"""
    outside = torch.tensor([10**6], device="neuron")
    with variables(), pytest.raises(IndexError):
        fresh()[outside]
    with variables(TORCH_NEURONX_SKIP_OP_PRECONDITIONS="1"):
        assert fresh()[outside].shape == (1,)
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, where: x[where], backend="neuron", fullgraph=True)
        assert compiled(fresh(), outside).shape == (1,)
        assert torch.neuron.get_fallback_ops() == []


# --- compiling ----------------------------------------------------------------------------------------------------------


@variable("NEURON_CC_FLAGS", "NEURON_COMPILER_OPT_LEVEL", "NEURON_LOGICAL_NC_CONFIG")
def compiler_flags():
    """Part of the key of every executable"""
    torch.neuron.init()
    client = executables.device().client
    with variables():
        plain = executables.surroundings(client)["flags"]
    for name, value in (
        ("NEURON_CC_FLAGS", "-O3"),
        ("NEURON_COMPILER_OPT_LEVEL", "-O1"),
        ("NEURON_LOGICAL_NC_CONFIG", "1"),
    ):
        with variables(**{name: value}):
            assert f"{name}:{value}" in executables.surroundings(client)["flags"] != plain


@variable("TORCH_NEURONX_DEBUG_DIR", "TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS")
def artefacts():
    """Files of each stage, in folders with proc_{rank}"""
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder:
        with variables(TORCH_NEURONX_DEBUG_DIR=folder, TORCH_NEURONX_PRESERVE_COMPILATION_ARTIFACTS="1"):
            torch.compile(lambda x: x * 3, backend="neuron")(fresh())
        kinds = {path.name for path in Path(folder).iterdir()}
        assert {"fx_graphs", "transformed_fx", "stablehlo"} <= kinds
        assert list(Path(folder).glob("stablehlo/proc_0/model_default*.stablehlo.mlir"))


@variable("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION")
def no_fallback_execution():
    """On by default: a graph that cannot be compiled is an error; the option `fallback_execution` overrides the variable"""

    def function(x):
        return x * 2 + 1

    def answer(**options):
        torch._dynamo.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.compile(function, backend="neuron", **options)(torch.ones(4, device="neuron")).tolist()

    for value in (None, "1"):
        with variables(**INVALID, **({} if value is None else {"TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": value})):
            with pytest.raises(RuntimeError):
                answer()
            assert answer(options={"fallback_execution": True}) == [3] * 4
    with variables(**INVALID, TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION="0"):
        assert answer() == [3] * 4
        with pytest.raises(RuntimeError):
            answer(options={"fallback_execution": False})


@variable("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY")
def no_autocopy():
    """A CPU tensor given to a compiled graph is an error that names the input"""
    torch._dynamo.reset()
    with variables(TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY="1"), pytest.raises(RuntimeError, match="input tensor 0"):
        torch.compile(lambda x: x + 4, backend="neuron")(torch.ones(3))


@variable("TORCH_NEURONX_RETAIN_DEVICE_MODE")
def retain_device():
    """Results go back to the device of the inputs; without it they are on neuron"""
    for value, device in (("0", "neuron"), ("1", "cpu")):
        torch._dynamo.reset()
        with variables(TORCH_NEURONX_RETAIN_DEVICE_MODE=value):
            assert torch.compile(lambda x: x + 5, backend="neuron")(torch.ones(3)).device.type == device


@variable("TORCH_NEURONX_DUMP_HLO_PB", "TORCH_NEURONX_DUMP")
def dump():
    """StableHLO of each operator under tn_op_dumps/, whether it is compiled or in the cache"""
    x = torch.ones(7, 11, 3, device="neuron")
    x.erfinv()
    with tempfile.TemporaryDirectory() as folder:
        with variables(TORCH_NEURONX_DUMP_HLO_PB="1", TORCH_NEURONX_DUMP=folder):
            x.transpose(0, 1).erf()
        (file,) = Path(folder, "tn_op_dumps").glob("*erf*.mlir")
        assert "stablehlo" in file.read_text() or "chlo" in file.read_text()


# --- caches -------------------------------------------------------------------------------------------------------------


@variable("TORCH_NEURONX_NEFF_CACHE_DIR", "TORCH_NEURONX_NEFF_DISABLE_CACHE")
def cache_on_disk():
    """Executables are stored in the directory, unless the cache is off"""
    with tempfile.TemporaryDirectory() as folder:
        for off, stored in (("1", False), ("0", True)):
            with variables(TORCH_NEURONX_NEFF_CACHE_DIR=folder, TORCH_NEURONX_NEFF_DISABLE_CACHE=off):
                os.environ.pop("SHAKEDOWN_CACHE_DIR", None)
                os.environ.pop("SHAKEDOWN_CACHE", None)
                fresh().tan()
                assert any(path.is_file() for path in Path(folder).rglob("*")) is stored
                assert (cache.current() is not None) is stored


@variable(
    "TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT",
    "NEURON_COMPILATION_CACHE_MAX_SIZE_MB",
    "NEURON_COMPILATION_CACHE_MAX_ENTRIES",
)
def cache_limits():
    """Whole numbers that the store is opened with; RuntimeError for anything else"""
    with variables(
        TORCH_NEURONX_NEFF_CACHE_LOCK_TIMEOUT="7",
        NEURON_COMPILATION_CACHE_MAX_SIZE_MB="8",
        NEURON_COMPILATION_CACHE_MAX_ENTRIES="9",
    ):
        store = cache.current()
        assert (store.lock_timeout, store.max_bytes, store.max_entries) == (7, 8 << 20, 9)
    for name in ("NEURON_COMPILATION_CACHE_MAX_SIZE_MB", "NEURON_COMPILATION_CACHE_MAX_ENTRIES"):
        with variables(**{name: "many"}), pytest.raises(RuntimeError, match=f"{name}='many'"):
            fresh().tan()


@variable("TORCH_NEURONX_DISABLE_NEFF_CACHE")
def cache_in_memory():
    """An operator that is called twice makes its program twice"""
    for value, times in (("1", 2), ("0", 1)):
        with variables(TORCH_NEURONX_DISABLE_NEFF_CACHE=value):
            x = fresh()
            events.clear("compile")
            x.asinh(), x.asinh()
            made = [row["count"] for row in events.snapshot() if row["kind"] == "compile" and "asinh" in row["name"]]
            assert sum(made) == times


# --- cores --------------------------------------------------------------------------------------------------------------


@variable("NEURON_RT_NUM_CORES", "NEURON_RT_VISIBLE_CORES")
def cores():
    """One core is taken; more are a warning when the device starts; what cannot be read is an error"""
    for name, one, more, wrong in (
        ("NEURON_RT_NUM_CORES", "1", "4", "0"),
        ("NEURON_RT_VISIBLE_CORES", "5", "0-3", "a"),
    ):
        with variables(**{name: one}), warnings.catch_warnings():
            warnings.simplefilter("error")
            config_listing.start(print)
        with variables(**{name: more}), pytest.warns(UserWarning, match="one device"):
            config_listing.start(print)
        with variables(**{name: wrong}), pytest.raises(RuntimeError, match=f"{name}='{wrong}'"):
            config_listing.start(print)


# --- what counts from the start of a process ----------------------------------------------------------------------------

_RECORDING = """
import json
import torch
x = torch.ones(5, device="neuron")
for _ in range(6):
    x = x * 1.5
state = {"waiting": torch.neuron.adaptive.status().get("operators", {}).get("waiting", 0)}
print(json.dumps(state))
"""
_REST = """
torch.neuron.synchronize()
from shakedown.neuron import config
state |= {"longest": config.ADAPTIVE_LENGTH(), "skips": config.ADAPTIVE_SKIP(), "async": config.ASYNC_DISPATCH()}
import torch_neuronx
state["metrics"] = torch_neuronx.metrics.is_enabled()
torch.compile(lambda x: x + 1, backend="neuron")(x)
print(json.dumps(state))
"""


def _child(code: str, **values: str) -> Any:
    """What a process prints that runs `code` with these variables: its last line, as JSON."""
    with variables(SHAKEDOWN_ADAPTIVE_TIMEOUT="60000", **values):
        environment = {n: v for n, v in os.environ.items() if n != "SHAKEDOWN_ADAPTIVE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def started() -> dict:
    """What a process says that starts with all of these variables; ``table``: the lines of its table of graphs."""
    with tempfile.TemporaryDirectory() as folder:
        found = _child(
            _RECORDING + _REST,
            TORCH_NEURONX_ENABLE_CONCATENATION="1",
            TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT="512",
            TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE="0",
            TORCH_NEURONX_METRICS_ENABLED="1",
            TORCH_NEURONX_ENABLED_METRIC_TABLES="graph_stats",
            TORCH_NEURONX_METRICS_DIR=folder,
            TORCH_NEURONX_ENABLE_ASYNC_NRT="0",
        )
        return found | {"table": Path(folder, "metric_table_graph_stats_rank0.csv").read_text().splitlines()}


@variable("TORCH_NEURONX_ENABLE_CONCATENATION")
def concatenation():
    """Operators are recorded, when it is set as Python starts"""
    assert started()["waiting"] >= 4


@variable("TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT")
def buffer_limit():
    """A whole number; anything else is a warning and the default"""
    assert started()["longest"] == 512
    with variables(TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT="few"):
        os.environ.pop("SHAKEDOWN_ADAPTIVE_LENGTH", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert config.ADAPTIVE_LENGTH() == 1024


@variable("TORCH_NEURONX_APPLY_SKIP_INTERMEDIATE")
def skip_intermediates():
    """0 is read as Python starts (tests/adaptive/test_liveness.py has what it does)"""
    assert started()["skips"] is False


@variable("TORCH_NEURONX_ENABLE_ASYNC_NRT")
def asynchronous():
    """0 and 1 are read when the device starts"""
    assert started()["async"] is False
    with variables(TORCH_NEURONX_ENABLE_ASYNC_NRT="1"):
        assert config.ASYNC_DISPATCH() is True


@variable("TORCH_NEURONX_METRICS_ENABLED")
def metrics_from_the_start():
    """torch_neuronx.metrics is on from the device's start"""
    assert started()["metrics"] is True


@variable("TORCH_NEURONX_ENABLED_METRIC_TABLES", "TORCH_NEURONX_METRICS_DIR")
def metric_tables():
    """graph_stats is written at exit, a line for each graph; another name is a ValueError"""
    head, row = started()["table"]
    assert head.split(",")[:3] == ["graph_id", "graph_name", "model_name"]
    assert "model_default" in row
    with (
        variables(TORCH_NEURONX_ENABLED_METRIC_TABLES="graph_stats,no_such"),
        pytest.raises(ValueError, match="graph_stats"),
    ):
        config_listing.start(print)


# --- those without a meaning here ---------------------------------------------------------------------------------------


def _accepted(setting: Setting) -> None:
    def check() -> None:
        value = "1" if setting.kind != "text" else "anything"
        said: list[str] = []
        with variables(**{setting.name: value}):
            config_listing.start(said.append)
        assert said == [f"{setting.name}={value} is accepted and has no effect here: {setting.help}"]
        if setting.kind != "text" and setting.name not in setting.lenient:
            with variables(**{setting.name: "?"}), pytest.raises(RuntimeError, match=setting.name):
                config_listing.start(print)
        elif setting.lenient:
            with variables(**{setting.name: "?"}), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert setting() == setting.default

    check.__doc__, check.__name__ = "One debug message when the device starts", setting.name
    contract.entry(
        "variables", setting.name, source=setting.source, differs=f"accepted, without an effect: {setting.help}"
    )(check)


for _one in vars(config_accepted).values():
    if isinstance(_one, Setting):
        _accepted(_one)
