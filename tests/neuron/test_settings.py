"""Settings: where a value comes from, what is said of one that cannot be read, and ``shakedown env``."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shakedown.cli import app
from shakedown.cli.env import table
from shakedown.neuron import config, config_listing
from shakedown.neuron.errors import ConfigError
from shakedown.neuron.setting import Setting, choice, cores, count, flag, number, some_of

SETTINGS = config_listing.every()


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for s in SETTINGS for n in s.names] + [
        n for n in os.environ if n.startswith(("NEURON_", "TORCH_N"))
    ]:
        monkeypatch.delenv(name, raising=False)


def shown(*options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["env", *options])
    return result.exit_code, result.stdout, result.stderr


def test_names_are_unique_and_each_setting_is_described() -> None:
    names = [n for s in SETTINGS for n in s.names]
    assert len(names) == len(set(names))
    for setting in SETTINGS:
        assert setting() == setting.default
        assert setting.set_by() is None
        theirs = [n for n in setting.names if not n.startswith("SHAKEDOWN_")]
        assert bool(theirs) == bool(setting.source), (
            f"{setting.name}: source says where TorchNeuron's name is described"
        )
        assert setting.effect == "honoured" or not setting.name.startswith("SHAKEDOWN_")


def test_ours_counts_before_torchneurons_and_it_is_known_which_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_DISABLE_CACHE", "1")
    assert (config.CACHE(), config.CACHE.set_by()) == (False, "TORCH_NEURONX_NEFF_DISABLE_CACHE")
    monkeypatch.setenv("SHAKEDOWN_CACHE", "yes")
    assert (config.CACHE(), config.CACHE.set_by()) == (True, "SHAKEDOWN_CACHE")


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As scripts write it that clear a variable for one command: ``NEURON_FALLBACK_ENABLED= python train.py``."""
    for setting in SETTINGS:
        for name in setting.names:
            monkeypatch.setenv(name, "")
        assert (setting(), setting.set_by(), setting.problem()) == (setting.default, None, ""), setting.name
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "/there")
    assert (config.CACHE_DIR(), config.CACHE_DIR.set_by()) == (Path("/there"), "TORCH_NEURONX_NEFF_CACHE_DIR")


def test_env_says_which_of_two_names_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "/theirs")
    monkeypatch.setenv("SHAKEDOWN_CACHE_DIR", "/ours")
    code, text, _ = shown("--set-only")
    assert code == 0
    assert "SHAKEDOWN_CACHE_DIR = /ours, set by SHAKEDOWN_CACHE_DIR" in text
    assert "TORCH_NEURONX_NEFF_CACHE_DIR=/theirs is set as well, and does not count" in text
    (row,) = json.loads(shown("--set-only", "--json")[1])["variables"]
    assert row["passed_over"] == {"TORCH_NEURONX_NEFF_CACHE_DIR": "/theirs"}
    monkeypatch.delenv("SHAKEDOWN_CACHE_DIR")
    assert "does not count" not in shown("--set-only")[1]


@pytest.mark.parametrize(
    ("parse", "good", "bad"),
    [
        (
            flag,
            {"1": True, "TRUE": True, " yes ": True, "on": True, "0": False, "": False, "no": False},
            ["2", "maybe"],
        ),
        (count, {"1": 1, " 12 ": 12}, ["0", "-3", "", "1.5", "many"]),
        (number, {"0": 0, "7": 7}, ["-1", "x"]),
        (cores, {"0": (0,), "0,2-4": (0, 2, 3, 4), "7": (7,)}, ["", "a", "4-2", "0,0", "1-", "-1"]),
        (choice("a", "b"), {"a": "a"}, ["c", ""]),
        (some_of("x", "y"), {"": (), "x": ("x",), "y, x": ("y", "x")}, ["z", "x,z"]),
    ],
)
def test_values(parse, good, bad) -> None:
    for text, value in good.items():
        assert parse(text) == value
    for text in bad:
        with pytest.raises(ValueError):
            parse(text)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.parse not in (str, Path)], ids=lambda s: s.name)
def test_a_value_that_cannot_be_read_is_one_error(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in setting.names:
        with monkeypatch.context() as patch:
            patch.setenv(name, "?!")
            if name in setting.lenient:
                with pytest.warns(UserWarning, match=f"{name}='\\?!' cannot be used"):
                    assert setting() == setting.default
                with warnings.catch_warnings():  # once
                    warnings.simplefilter("error")
                    assert setting() == setting.default
            else:
                with pytest.raises(ConfigError, match=f"{name}='\\?!' cannot be used: it must be"):
                    setting()


def test_the_list_names_value_default_effect_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT", "77")
    monkeypatch.setenv("TORCH_NEURONX_ATEN_GMM_ALIGN", "64")
    code, text, _ = shown("--json")
    assert code == 0
    rows = {row["names"][0]: row for row in json.loads(text)["variables"]}
    assert len(rows) == len(SETTINGS)
    length = rows["SHAKEDOWN_ADAPTIVE_LENGTH"]
    assert (length["value"], length["default"]) == (77, 1024)
    assert length["set_by"] == "TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT"
    assert length["source"] == "TorchNeuron (snapshot)"
    assert rows["SHAKEDOWN_MAX_PLANS"]["source"] == "ours"
    assert rows["TORCH_NEURONX_ATEN_GMM_ALIGN"]["effect"] == "accepted"
    assert rows["NEURON_RT_VISIBLE_CORES"]["value"] == "0"
    code, text, _ = shown("--set-only")
    assert code == 0
    assert "SHAKEDOWN_ADAPTIVE_LENGTH = 77, set by TORCH_NEURONX_CONCATENATION_BUFFER_SIZE_LIMIT" in text
    assert "Accepted, without an effect here" in text
    assert "SHAKEDOWN_MAX_PLANS" not in text
    everything = shown()[1]
    assert all(f"{name}" in everything for s in SETTINGS for name in s.names)
    assert "TORCH_NEURONX_NEFF_DISABLE_CACHE, the other way round" in everything


def test_nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in config_listing.unknown():
        monkeypatch.delenv(name)
    code, text, _ = shown("--set-only")
    assert (code, text.strip()) == (0, "none of these variables is set")


def test_what_cannot_be_read_is_marked_and_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAKEDOWN_MAX_PLANS", "none")
    monkeypatch.setenv("TORCH_NEURONX_CONCATENATION_QUEUE_LOW_THRESHOLD", "low")
    code, text, errors = shown("--set-only")
    assert code == 2
    assert "SHAKEDOWN_MAX_PLANS = cannot be read" in text
    assert (
        errors.strip() == "shakedown: SHAKEDOWN_MAX_PLANS='none' cannot be used: it must be a whole number above zero"
    )
    answer = json.loads(shown("--json", "--set-only")[1])
    assert answer["exit_code"] == 2
    assert [row["value"] for row in answer["variables"]] == [None, 15]
    assert all(row["problem"] for row in answer["variables"])
    monkeypatch.delenv("SHAKEDOWN_MAX_PLANS")
    assert shown()[0] == 0, "a lenient variable is a warning"


def test_unknown_names_are_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAKEDOWN_CACHE_DIRECTORY", "/x")
    monkeypatch.setenv("NEURON_RT_SOMETHING_ELSE_ALTOGETHER", "1")
    monkeypatch.setenv("SHAKEDOWN_FAULT", "")
    unknown = config_listing.unknown()
    assert unknown["SHAKEDOWN_CACHE_DIRECTORY"] == "SHAKEDOWN_CACHE_DIR"
    assert unknown["NEURON_RT_SOMETHING_ELSE_ALTOGETHER"] is None
    assert "SHAKEDOWN_FAULT" not in unknown
    code, text, _ = shown()
    assert code == 0
    assert (
        "SHAKEDOWN_CACHE_DIRECTORY is set, and is no variable of ours or TorchNeuron's known here; did you mean" in text
    )


def test_the_rows_are_plain_values() -> None:
    assert json.loads(json.dumps(table())) == table()


def test_what_is_accepted_is_told_when_the_device_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_RT_ROOT_COMM_ID", "host:1")
    monkeypatch.setenv("SHAKEDOWN_MAX_PLANS", "?")  # ours are read where they are used
    said: list[str] = []
    config_listing.start(said.append)
    (line,) = said
    assert line.startswith("NEURON_RT_ROOT_COMM_ID=host:1 is accepted and has no effect here: ")
    monkeypatch.setenv("TORCH_NEURONX_ENABLE_STABLEHLO", "perhaps")
    with pytest.raises(RuntimeError, match="TORCH_NEURONX_ENABLE_STABLEHLO='perhaps'"):
        config_listing.start(said.append)
