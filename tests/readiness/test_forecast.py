"""The trace without values, support profiles, buckets, and ``shakedown forecast``."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from shakedown import cli
from shakedown.buckets import BadLengths, candidates, choose
from shakedown.readiness import workload
from shakedown.readiness.errors import BadInput
from shakedown.readiness.operators_used import operators_used
from shakedown.readiness.plan import support
from shakedown.readiness.plan.trace import Traced, trace

from .support import TINY

run = CliRunner()
RELEASE = "neuron-2.33"
QUANTISE = "aten::fake_quantize_per_channel_affine"

HARD = """
import torch
from torch import nn

CASES = ("2x12",)
library = torch.library.Library("hardlib", "DEF")
library.define("fused_norm(Tensor x) -> Tensor")
library.impl("fused_norm", lambda x: x / x.norm(), "CPU")
torch.library.register_fake("hardlib::fused_norm", torch.empty_like, lib=library)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.head = nn.Linear(16, 32)

    def forward(self, ids):
        x = self.tokens(ids)
        kept = (x.sum(-1) > 0).nonzero()
        x = x / x.abs().max().item()
        print(x)
        torch.multinomial(torch.softmax(x[:, 0], -1), 1)
        x = x + torch.take(x, ids).unsqueeze(-1) + kept.sum()
        return self.head(x + torch.ops.hardlib.fused_norm(x.detach()))


def build_model():
    return Model()


def make_batch(size, length):
    ids = torch.randint(0, 32, (length + 1, size)).t()
    return {"ids": ids[:, :-1], "labels": ids[:, 1:].contiguous()}


def forward(model, batch):
    scores = model(batch["ids"])
    return scores, nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())


def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def for_cuda():
    return torch.compile(forward, dynamic=True)
"""


def line(file: str, text: str, snippet: str) -> str:
    """``file:line`` of the first line of `text` that holds `snippet`."""
    return f"{file}:{next(n for n, one in enumerate(text.splitlines(), 1) if snippet in one)}"


def traced(file: Path, text: str, dtype: str = "float32") -> Traced:
    file.write_text(text)
    loaded = workload.load(workload.resolve(str(file)))
    return trace(loaded, loaded.cases[0], dtype)


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hard") / "hard.py"
    file.write_text(HARD)
    return file


# --- the trace ------------------------------------------------------------------------------------------------------------


def is_view(name: str) -> bool:
    space, _, rest = name.partition("::")
    base, _, which = rest.partition(".")
    schema = getattr(getattr(getattr(torch.ops, space), base), which or "default")._schema
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


@pytest.mark.parametrize("name", ["attention", "cnn"])
def test_the_trace_is_what_the_device_runs(name: str, tmp_path: Path) -> None:
    if name == "attention":  # the trial switches dropout off, and running the step once does not
        file = tmp_path / "attention.py"
        file.write_text(TINY.read_text().replace("nn.Dropout(0.5)", "nn.Identity()"))
        name = str(file)
    loaded = workload.load(workload.resolve(name))
    found = trace(loaded, loaded.cases[0], loaded.dtypes[0])
    assert found.complete
    assert found.built == "on meta"
    foretold: dict[tuple[str, str], int] = {}
    for call in found.calls:
        if not is_view(call.operator) and call.operator != "aten::empty.memory_format":
            key = (call.phase, call.operator)
            foretold[key] = foretold.get(key, 0) + call.count
    rows = operators_used(name)
    assert foretold == {(r.phase, r.name): r.count for r in rows if r.kind == "execute" and r.detail != "composite"}


def test_a_trace_runs_nothing_and_leaves_no_trace() -> None:
    from torch.optim import AdamW

    import shakedown.neuron as sn

    loaded = workload.load(workload.resolve(str(TINY)))
    torch.neuron.init()
    torch.manual_seed(7)
    before = (torch.get_rng_state(), torch.neuron.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    sn.events.clear()
    trace(loaded, loaded.cases[0], "bfloat16")
    assert not [row for row in sn.events.snapshot() if row["kind"] != "execute" or row["detail"] != "composite"]
    after = (torch.get_rng_state(), torch.neuron.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2:] == after[2:]
    layer = torch.nn.Linear(2, 2)  # a real one, in the default form, still trains
    layer(torch.ones(1, 2)).sum().backward()
    AdamW(layer.parameters()).step()
    assert torch.get_default_device().type == "cpu"


def test_what_depends_on_values_is_named_with_its_line_and_the_trace_goes_on(hard: Path, tmp_path: Path) -> None:
    found = traced(tmp_path / "hard2.py", HARD.replace("hardlib", "hardlib2"))
    calls = {call.operator: call for call in found.calls if call.phase == "forward"}
    assert found.complete
    assert calls["aten::nonzero"].data_dependent
    assert calls["aten::nonzero"].lines == (line("hard2.py", HARD, "nonzero"),)
    assert calls["aten::_local_scalar_dense"].host_read
    assert calls["aten::_local_scalar_dense"].lines == (line("hard2.py", HARD, ".item()"),)
    assert calls["hardlib2::fused_norm"].own
    assert found.noncontiguous == ["ids"]
    assert not calls["aten::multinomial"].data_dependent
    assert {call.phase for call in found.calls} == {"forward", "backward", "optimizer"}


@pytest.mark.parametrize(
    ("code", "kind", "operator"),
    [
        ("if (x > 0).any(): x = x * 2", "data-dependent", "aten::_local_scalar_dense"),
        ("x = x + float(x.detach().cpu().numpy().sum())", "data-dependent", "aten::_to_copy"),
        ("x = x + torch.ones(12, 16)", "error", "aten::add.Tensor"),
        ("raise SystemExit('no licence')", "error", "aten::embedding"),
    ],
    ids=["branch", "numpy", "device", "exit"],
)
def test_where_it_must_stop_it_says_where_and_why_and_keeps_what_it_has(
    code: str, kind: str, operator: str, tmp_path: Path
) -> None:
    text = TINY.read_text().replace("size, length, _ = x.shape", f"size, length, _ = x.shape\n        {code}")
    text = text.replace("torch.ones(12, 16)", "torch.ones(WIDTH)")
    found = traced(tmp_path / "stops.py", text)
    (stop,) = found.stops
    assert (stop.phase, stop.kind, stop.operator) == ("forward", kind, operator)
    assert stop.line == line("stops.py", text, code.replace("torch.ones(12, 16)", "torch.ones(WIDTH)"))
    assert found.calls[0].operator == "aten::embedding"
    assert [call for call in found.calls if call.phase == "optimizer"]


def test_a_mask_makes_an_index_dynamic_and_numbers_do_not(tmp_path: Path) -> None:
    text = HARD.replace("hardlib", "masklib").replace(
        "kept = (x.sum(-1) > 0).nonzero()", "kept = x[x.sum(-1) > 0]; x[ids[:, 0] % 2]"
    )
    found = traced(tmp_path / "mask.py", text)
    rows = [call for call in found.calls if call.operator == "aten::index.Tensor" and call.phase == "forward"]
    assert [(call.input_dtypes, call.data_dependent) for call in rows] == [
        (("bool", "float32"), True),
        (("float32", "int64"), False),
    ]


def test_a_model_that_needs_values_is_built_on_the_cpu(tmp_path: Path) -> None:
    text = HARD.replace("hardlib", "cpulib").replace("return Model()", "return torch.compile(Model(), backend='eager')")
    needs = text.replace(
        "self.head = nn.Linear(16, 32)", "self.head = nn.Linear(16, 32); float(self.head.weight.detach().sum())"
    )
    found = traced(tmp_path / "needs.py", needs)
    assert found.complete
    assert found.built.startswith("on the CPU, because building it on meta fails")
    loose = (
        text.replace("cpulib", "looselib")
        .replace("self.head = nn.Linear(16, 32)", "self.head = nn.Linear(16, 32); self.mask = torch.ones(16)")
        .replace("x = x / x", "x = x * self.mask / x")
    )
    found = traced(tmp_path / "loose.py", loose)  # a plain attribute stays on the CPU when the model moves
    assert "Model.mask is a tensor that is neither a parameter nor a buffer" in found.built
    assert "same device" in found.stops[0].why


# --- support --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "contiguous", "mode", "verdict", "rule"),
    [
        ("aten::multinomial", ["float32"], ["int64"], True, "eager", "fallback", "multinomial-on-cpu"),
        ("aten::lerp.Scalar", ["float32"], ["float32"], False, "eager", "fallback", "strided-lerp-on-cpu"),
        ("aten::lerp.Scalar", ["float32"], ["float32"], True, "eager", "native", ""),
        ("aten::lerp.Scalar", ["float32"], ["float32"], False, "compiled", "native", ""),
        ("aten::randint.low", [], ["int64"], True, "eager", "fallback", "int64-randint-on-cpu"),
        ("aten::randint.low", [], ["int32"], True, "eager", "native", ""),
        (
            "aten::fake_quantize_per_channel_affine_cachemask",
            ["float32"],
            [],
            True,
            "eager",
            "missing",
            "per-channel-quantisation",
        ),
        ("aten::mm", ["float32"], ["float32"], True, "eager", "native", ""),
        ("nobody::nothing", [], [], True, "eager", "missing", ""),
    ],
)
def test_support_is_read_from_the_profile(
    operator: str, inputs: list[str], outputs: list[str], contiguous: bool, mode: support.Mode, verdict: str, rule: str
) -> None:
    found = support.support(operator, tuple(inputs), tuple(outputs), contiguous=contiguous, mode=mode, profile=RELEASE)
    assert (found.verdict, found.rule) == (verdict, rule)
    assert RELEASE in found.source if rule else found.source
    native = support.support(
        operator, tuple(inputs), tuple(outputs), contiguous=contiguous, mode=mode, profile="native"
    )
    assert not native.rule


def test_a_profile_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(BadInput, match="no support profile 'neuron-9'"):
        support.support("aten::mm", profile="neuron-9")


# --- buckets --------------------------------------------------------------------------------------------------------------


def cost(edges: tuple[int, ...], shares: dict[int, float]) -> float:
    return sum(w * next(e for e in edges if e >= n) for n, w in shares.items())


def test_buckets_are_the_best_there_are() -> None:
    dice = random.Random(3)
    for _ in range(60):
        shares = {dice.randrange(1, 900): dice.random() for _ in range(dice.randrange(1, 8))}
        allowed = candidates(shares)
        budget = dice.randrange(1, 5)
        found = choose(shares, budget)
        best = min(
            cost(edges, shares)
            for count in range(1, budget + 1)
            for edges in itertools.combinations(allowed, count)
            if edges[-1] >= max(shares)
        )
        assert cost(found.edges, shares) == pytest.approx(best)
        assert len(found.edges) <= budget
        needed = sum(n * w for n, w in shares.items())
        assert found.waste == pytest.approx(1 - needed / best)
        assert all(length <= bucket.edge for bucket in found.buckets for length in bucket.lengths)
        assert sum(bucket.share for bucket in found.buckets) == pytest.approx(1)


def test_buckets_of_the_service_with_three_lengths() -> None:
    lengths = dict.fromkeys((96, 240, 480), 0.0)
    found = choose(lengths, 3)
    assert found.edges == (128, 256, 512)
    assert found.waste == pytest.approx(1 - (96 + 240 + 480) / (128 + 256 + 512))
    assert (found.edge_of(128), found.edge_of(129), found.edge_of(513)) == (128, 256, None)
    assert choose(lengths, 1).edges == (512,)
    assert choose({96: 0.05, 240: 0.9, 480: 0.05}, 2).edges == (256, 512)
    assert choose({100: 1.0, 120: 1.0}, 2).edges == (128,)  # one program less for the same padding
    for shares, programs in (({}, 1), ({0: 1.0}, 1), ({8: 1.0}, 0), ({8: -1.0}, 1)):
        with pytest.raises(BadLengths):
            choose(shares, programs)
    with pytest.raises(BadLengths, match="as long as the longest length, 200"):
        choose({200: 1.0}, 1, edges=(128,))


# --- the command ----------------------------------------------------------------------------------------------------------


def forecast(spec: str, text: str, tmp_path: Path, code: int, *arguments: str) -> dict:  # type: ignore[type-arg]
    file = tmp_path / "r.toml"
    file.write_text(text)
    done = run.invoke(cli.app, ["forecast", spec, "--requirements", str(file), "--json", *arguments])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def of(found: dict, word: str) -> list[dict]:  # type: ignore[type-arg]
    return [reason for reason in found["reasons"] if reason["word"] == word]


SERVICE = '[workload]\ndtypes = ["bfloat16"]\nmodes = ["compiled"]\nexpected_programs = 1\n' + "".join(
    f"[[cases]]\nsize = 1\nlength = {length}\n" for length in (96, 240, 480)
)


def test_a_service_with_three_lengths_and_one_program_needs_another_plan(tmp_path: Path) -> None:
    found = forecast("decoder", SERVICE, tmp_path, 1, "--profile", RELEASE)
    assert found["outcome"] == "needs a revised test plan"
    (reason,) = of(found, "more-programs-than-planned")
    assert "one compilation" in reason["required"]
    assert "r.toml:4: workload.expected_programs = 1" in reason["required"]
    assert reason["found"].startswith("three sequence programs predicted, not promised: 1x96, 1x240, 1x480")
    assert "rule static-shapes-only" in reason["source"]
    assert "buckets of 128/256/512 with a mask" in reason["change"]
    assert "the rule above 512: refuse" in reason["change"]
    assert "buckets of 512, with 46.9% padding" in reason["change"]
    assert [bucket["edge"] for bucket in found["programs"]["buckets"]["buckets"]] == [128, 256, 512]
    assert found["kind"].endswith("nothing ran on any device")


def test_the_revised_plan_is_compatible(tmp_path: Path) -> None:
    text = SERVICE.replace("expected_programs = 1", "expected_programs = 3")
    for length, edge in ((96, 128), (240, 256), (480, 512)):
        text = text.replace(f"length = {length}\n", f"length = {length}\npadded_to = {edge}\n")
    found = forecast("decoder", text, tmp_path, 0, "--profile", RELEASE)
    assert found["outcome"] == "compatible as specified"
    assert found["programs"]["shapes"] == ["1x128", "1x256", "1x512"]
    assert all(reason["level"] == "note" for reason in found["reasons"])
    everywhere = text.replace("padded_to = 128", "padded_to = 512").replace("padded_to = 256", "padded_to = 512")
    assert forecast("decoder", everywhere, tmp_path, 0, "--profile", RELEASE)["programs"]["predicted"] == 1


def test_float64_blocks_and_is_never_relaxed(tmp_path: Path) -> None:
    text = '[workload]\nfloat64 = true\ndtypes = ["float32"]\n'
    found = forecast(str(TINY), text, tmp_path, 3, "--profile", RELEASE)
    assert found["outcome"] == "blocked"
    (reason,) = of(found, "precision-blocked(float64)")
    assert reason["level"] == "blocks"
    assert "workload.float64 = true" in reason["required"]
    assert "r.toml:2" in reason["required"]
    assert "rule float64-as-float32" in reason["source"]
    assert "not relaxed" in reason["change"]
    assert forecast(str(TINY), text, tmp_path, 0, "--profile", "native")["outcome"] == "compatible as specified"


def test_everything_that_stands_in_the_way_is_found(hard: Path, tmp_path: Path) -> None:
    text = (
        '[workload]\nmodes = ["eager", "compiled"]\ndynamic_shapes = true\n'
        '[[fallbacks]]\noperator = "aten::multinomial"\nphase = "forward"\ncalls = 1\nreason = "one draw"\n'
        '[[kernels]]\nname = "flash_attn"\nowner = "the kernels team"\n'
    )
    found = forecast(str(hard), text, tmp_path, 3, "--profile", RELEASE)
    levels = {(r["level"], r["word"], r["phase"]) for r in found["reasons"]}
    assert levels == {
        ("blocks", "kernel-without-fallback", ""),
        ("revise", "fallback", "forward"),
        ("revise", "undeclared-kernel", ""),
        ("revise", "dynamic-shapes", ""),
        ("revise", "data-dependent-shape", "forward"),
        ("revise", "host-read", "forward"),
        ("revise", "contiguous-copies", ""),
        ("note", "accepted-fallback", "forward"),
    }
    (fallback,) = of(found, "fallback")
    assert fallback["required"] == "aten::take in forward, 1 call a step"
    assert fallback["places"] == [line("hard.py", HARD, "torch.take")]
    assert "breaks the graph" in of(found, "data-dependent-shape")[0]["found"]
    assert of(found, "data-dependent-shape")[0]["places"] == [line("hard.py", HARD, "nonzero")]
    assert of(found, "contiguous-copies")[0]["required"].endswith("ids")
    assert [r["places"] for r in of(found, "dynamic-shapes")] == [[], [line("hard.py", HARD, "dynamic=True")]]
    assert [r["places"] for r in of(found, "host-read")] == [
        [line("hard.py", HARD, ".item()")],
        [line("hard.py", HARD, "print(x)")],
    ]
    assert "hardlib::fused_norm" in of(found, "undeclared-kernel")[0]["required"]
    forward = next(p for p in found["phases"] if (p["mode"], p["phase"]) == ("eager", "forward"))
    assert forward["fallback"] == 3
    assert forward["missing"] == 0

    lighter = text.replace('modes = ["eager", "compiled"]\ndynamic_shapes = true', 'modes = ["eager"]').replace(
        'owner = "the kernels team"', 'owner = "the kernels team"\nfallback = "attention written out"'
    )
    lighter += '[[kernels]]\nname = "lightlib::fused_norm"\nowner = "us"\nfallback = "a division"\n'
    again = tmp_path / "again.py"  # a library of operators can be defined once in a process
    again.write_text(HARD.replace("hardlib", "lightlib"))
    found = forecast(str(again), lighter, tmp_path, 1, "--profile", RELEASE)
    assert {r["word"] for r in found["reasons"] if r["level"] == "revise"} == {"fallback", "dynamic-shapes"}
    assert {r["level"] for r in of(found, "host-read")} == {"note"}  # without torch.compile there is no graph to break


def test_an_operator_that_the_release_refuses_blocks(tmp_path: Path) -> None:
    file = tmp_path / "quantised.py"
    file.write_text(
        TINY.read_text().replace(
            "x = self.tokens(ids)",
            "x = torch.fake_quantize_per_channel_affine(self.tokens(ids), torch.ones(WIDTH, device=ids.device), "
            "torch.zeros(WIDTH, dtype=torch.int32, device=ids.device), 2, -8, 7)",
        )
    )
    found = forecast(str(file), "", tmp_path, 3, "--profile", RELEASE, "--target", "neuron")
    assert {r["phase"] for r in of(found, "missing-operator")} == {"forward"}


def test_modes_that_the_target_lacks(tmp_path: Path) -> None:
    one = '[workload]\ndtypes = ["float32"]\n'
    found = forecast(str(TINY), one, tmp_path, 1, "--target", "cpu", "--profile", "native")
    (reason,) = of(found, "mode-missing")
    assert reason["level"] == "revise"
    assert "adaptive" in reason["found"]
    found = forecast(str(TINY), one + 'modes = ["adaptive"]\n', tmp_path, 3, "--target", "cpu", "--profile", "native")
    assert found["outcome"] == "blocked"


def test_more_shapes_than_dynamo_recompiles(tmp_path: Path) -> None:
    text = '[workload]\nmodes = ["compiled"]\ndtypes = ["float32"]\n' + "".join(
        f"[[cases]]\nsize = 1\nlength = {n}\n" for n in range(2, 22)
    )
    found = forecast(str(TINY), text, tmp_path, 1, "--profile", "native")
    (reason,) = of(found, "recompile-bound")
    assert len(found["programs"]["buckets"]["buckets"]) <= 8
    assert "limit of 8" in reason["found"]
    assert "later shapes run eagerly" in reason["found"]


def test_a_trace_that_ends_early_is_never_called_compatible(tmp_path: Path) -> None:
    file = tmp_path / "branch.py"
    branch = "x = x * 2 if x.any() else x"
    text = TINY.read_text().replace("size, length, _ = x.shape", f"size, length, _ = x.shape; {branch}")
    file.write_text(text)
    found = forecast(str(file), "", tmp_path, 1, "--profile", "native")
    (reason,) = of(found, "control-flow")
    assert reason["places"] == [line("branch.py", text, branch)]
    assert not found["traces"][0]["complete"]


def test_the_same_in_words(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(SERVICE)
    arguments = ["forecast", "decoder", "--requirements", str(file), "--profile", RELEASE]
    page = run.invoke(cli.app, [*arguments, "--markdown"])
    assert page.exit_code == 1
    assert page.stdout.startswith("# Forecast of decoder: needs a revised test plan\n")
    for words in (
        "### `more-programs-than-planned`",
        "- change: pad lengths to buckets of 128/256/512",
        "nothing ran on any device",
    ):
        assert words in page.stdout
    seen = run.invoke(cli.app, arguments)
    assert seen.exit_code == 1
    assert "decoder under profile neuron-2.33: needs a revised test plan" in " ".join(seen.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonesuch",), "unknown workload 'nonesuch'"),
        (("decoder", "--profile", "neuron-9"), "no support profile 'neuron-9'"),
        (("decoder", "--target", "abacus"), "unknown target 'abacus'"),
        (("decoder", "--requirements", "none.toml"), "cannot read the requirements none.toml"),
    ],
)
def test_bad_input_is_said_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = run.invoke(cli.app, ["forecast", *arguments, "--json"])
    assert done.exit_code == 2
    assert words in json.loads(done.stdout)["error"]


def test_a_workload_that_cannot_be_built_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(TINY.read_text().replace("return Tiny()", "raise KeyError('lost weights')"))
    done = run.invoke(cli.app, ["forecast", str(file), "--json"])
    assert done.exit_code == 2
    assert "lost weights" in json.loads(done.stdout)["error"]
    assert line("broken.py", file.read_text(), "KeyError") in json.loads(done.stdout)["error"]
