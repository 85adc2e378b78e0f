"""Every entry's check, that nothing is left out, and that the committed table is what a run gives."""

from __future__ import annotations

import pytest

import torch_neuronx
from shakedown.neuron import config_listing, torchneuron
from shakedown.neuron.setting import Setting

from . import table
from .contract import SECTIONS, Entry, Row, entries, row_of

ENTRIES = entries()


@pytest.mark.parametrize("one", ENTRIES, ids=lambda one: f"{one.section}-{one.name}")
def test_the_check_passes(one: Entry) -> None:
    row = row_of(one)
    assert not row.problem


def test_every_variable_of_torchneuron_has_an_entry_and_no_other() -> None:
    known = {n for s in config_listing.every() if s.source for n in s.names if not n.startswith("SHAKEDOWN_")}
    assert known == {one.name for one in ENTRIES if one.section == "variables"}


def test_what_is_only_accepted_is_not_called_faithful() -> None:
    accepted = {s.name: s for s in config_listing.every() if s.effect == "accepted"}
    assert accepted
    for one in ENTRIES:
        if one.name in accepted:
            assert accepted[one.name].help in one.differs


def test_every_name_of_the_package_has_an_entry() -> None:
    named = {one.name for one in ENTRIES if one.section in ("package", "torch_neuronx")}
    wanted = {*torchneuron.OF_THE_DEVICE, *torchneuron.ABSENT, *torchneuron.SUBMODULES} - {
        "metrics",
        "utils",
        "neuron_dynamo_backend",
    }  # which have a section each
    assert {f"torch_neuronx.{n}" if n in ("distributed", "neuron", "python_ops") else n for n in wanted} <= named
    for name in ("metrics", "utils", "profiling", "neuron_dynamo_backend"):
        section = "dynamo" if name == "neuron_dynamo_backend" else name
        present = {one.name for one in ENTRIES if one.section == section and not one.absent}
        missing = set(getattr(torch_neuronx, name).__all__) - present - {"NeuronProfiler"}
        assert not missing


def test_a_name_that_torchneuron_does_not_have_is_none_here() -> None:
    with pytest.raises(AttributeError, match="no public name"):
        torch_neuronx.no_such_name
    assert all(hasattr(torch_neuronx, name) for name in torch_neuronx.__all__)


def test_the_committed_table_is_what_a_run_gives() -> None:
    rows = [row_of(one) for one in ENTRIES]
    assert _without_the_torch(table.between(table.PAGE.read_text())) == _without_the_torch(table.text_of(rows))


def _without_the_torch(text: str) -> str:
    head, _, rest = text.partition("\n")
    return head.partition(" Checked with")[0] + rest


def test_a_check_that_fails_is_seen_in_the_table() -> None:
    def check() -> None:
        """Never right"""
        assert 1 == 2, "one is not two"

    one = Entry("utils", "wrong", check, "snapshot")
    row = row_of(one)
    assert row.verdict == "not right"
    assert "| `wrong` | not right: AssertionError: one is not two" in table.text_of([row])
    assert set(SECTIONS) >= {e.section for e in ENTRIES}
    page = table.with_table(f"a\n{table.BEGIN}\nold\n{table.END}\nb\n", "new\n")
    assert page == f"a\n{table.BEGIN}\n\nnew\n\n{table.END}\nb\n"
    assert table.between(page) == "new\n"
    with pytest.raises(ValueError, match="needs the lines"):
        table.with_table("no marks", "new")
    assert Row(Entry("utils", "x", check, "", absent="why"), "").verdict == "absent"


def test_settings_say_what_they_take() -> None:
    for setting in config_listing.every():
        assert isinstance(setting, Setting)
        assert setting.help
        assert setting.kind
