"""Entries of the contract, and the verdict that a run of their checks comes to.

An entry is a function that checks what TorchNeuron documents of one name. Its docstring says in a few words what is checked.
Without a passing check nothing is called faithful; what differs by intention, or is absent, says so in the entry, and its
check holds that to be true as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from unittest import mock

import pytest

SECTIONS = {
    "package": "The package `torch_neuronx`",
    "torch_neuronx": "Names of `torch_neuronx`",
    "stream": "`Stream`: attributes and methods",
    "event": "`Event`: attributes and methods",
    "memory": "Keys of `memory_stats()`",
    "torch.neuron": "Names of `torch.neuron`",
    "metrics": "`torch_neuronx.metrics`",
    "utils": "`torch_neuronx.utils`",
    "profiling": "`torch_neuronx.profiling`",
    "dynamo": "`torch_neuronx.neuron_dynamo_backend`",
    "variables": "Environment variables",
}


@dataclass(frozen=True)
class Entry:
    """One name. ``differs`` says how ours is another, ``absent`` why there is none; both empty: it is to be faithful."""

    section: str
    name: str
    check: Callable[[], None]
    source: str
    differs: str = ""
    absent: str = ""

    @property
    def checked(self) -> str:
        return " ".join((self.check.__doc__ or "").split()).rstrip(".")


@dataclass(frozen=True)
class Row:
    """An entry after its check: ``problem`` is what the check raised, "" where it passed."""

    entry: Entry
    problem: str

    @property
    def verdict(self) -> str:
        if self.problem:
            return "not right"
        return "absent" if self.entry.absent else "different" if self.entry.differs else "faithful"


_entries: dict[tuple[str, str], Entry] = {}


def entry(
    section: str, *names: str, source: str = "snapshot", differs: str = "", absent: str = ""
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the decorated check for each of `names`."""

    def register(check: Callable[[], None]) -> Callable[[], None]:
        assert section in SECTIONS, section
        assert check.__doc__, f"{check.__name__} does not say what it checks"
        for name in names:
            assert (section, name) not in _entries, f"{name} stands in the contract twice"
            _entries[section, name] = Entry(section, name, check, source, differs, absent)
        return check

    return register


def entries() -> list[Entry]:
    """All of them, by section."""
    for module in ("package", "devices", "memory", "tools", "counting", "random_streams", "variables"):
        import_module(f"{__package__}.{module}")
    order = list(SECTIONS)
    return sorted(_entries.values(), key=lambda e: order.index(e.section))


_problems: dict[Callable[[], None], str] = {}  # of checks that have run: names that share one share its run


def row_of(one: Entry) -> Row:
    """Run the check of `one`, unless another name has had it run."""
    if one.check not in _problems:
        _problems[one.check] = _problem(one.check)
    return Row(one, _problems[one.check])


def _problem(check: Callable[[], None]) -> str:
    """Run `check` from a state in which nothing has been tracked; what it raised, in a line."""
    import torch

    from shakedown.neuron import events, log

    events.clear()
    log.forget()
    try:
        check()
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    except pytest.fail.Exception as error:
        return str(error).splitlines()[0]
    finally:
        torch.neuron.synchronize()
        log.forget()
    return ""


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Environment variables that are set inside; TorchNeuron's and ours are unset otherwise, the caches' directory apart."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("TORCH_NEURONX_", "NEURON_", "COLLECTIVE_"))}
    with mock.patch.dict(os.environ, {**kept, **values}, clear=True):
        yield
