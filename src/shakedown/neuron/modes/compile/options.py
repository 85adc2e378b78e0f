"""What ``torch.compile(backend="neuron")`` may be asked for: modes and options read, checked, and explained when refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from ... import config
from ...errors import InputsOnSeveralDevices, UnsupportedCompileOption
from ...log import warn_once


@dataclass(frozen=True)
class Options:
    """The backend's own options of one graph that Dynamo captured.

    ``model_name`` begins the names of its programs and artefacts, lower-cased. ``fallback_execution``: where the program cannot
    be compiled, or breaks, the operators run one by one; without it that is an error. ``one_program``: so is an operator that
    no program can hold, around which a graph is split otherwise. ``retain_device``: results go back to the device that all
    inputs are on. ``copies_cpu_inputs``: CPU tensors given to the graph are copied to the device; without it they are
    refused (a variable alone decides this).
    """

    model_name: str = "model_default"
    fallback_execution: bool = False
    one_program: bool = False
    retain_device: bool = False
    copies_cpu_inputs: bool = True


NAMES = tuple(f.name for f in fields(Options) if f.name != "copies_cpu_inputs")


def read(mode: str | None, given: dict[str, Any] | None, ruled: set[str]) -> Options:
    """The options for a graph: what `given` says, else the variables, else the defaults.

    `ruled` names the parameters that a support profile has dealt with: of these nothing is said here.

    Raises:
        UnsupportedCompileOption: an option of ours has a value of another type, or `given` is no dict.
        ConfigError: a variable has a value that cannot be used.
    """
    if mode not in (None, "default") and "mode" not in ruled:
        warn_once(f'backend "neuron" has only the default mode: mode={mode!r} behaves as default', stacklevel=3)
    if given is not None and not isinstance(given, dict):
        raise UnsupportedCompileOption(f'backend "neuron" takes options as a dict, got {type(given).__name__}')
    given = dict(given or {})
    known = {name: given.pop(name) for name in NAMES if name in given}
    if given and "options" not in ruled:
        warn_once(_ignored(given), stacklevel=3)  # once, however many graphs a model has
    for name, value in known.items():
        _check(name, value)
    if "model_name" in known:
        known["model_name"] = known["model_name"].lower()
    return Options(
        **{
            "fallback_execution": not config.DISABLE_FALLBACK_EXECUTION(),
            "retain_device": config.RETAIN_DEVICE(),
            "copies_cpu_inputs": not config.DISABLE_CPU_AUTOCOPY(),
            **known,
        }
    )


def _ignored(unknown: dict[str, Any]) -> str:
    names = sorted(map(str, unknown))
    message = f'backend "neuron" ignores these options: {", ".join(names)} (its own are {", ".join(NAMES)})'
    meant = [(n, close[0]) for n in names if (close := difflib.get_close_matches(n, NAMES, 1))]
    return message + "".join(f"; did you mean {close} by {name}?" for name, close in meant)


def _check(name: str, value: Any) -> None:
    if name == "model_name":
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise UnsupportedCompileOption(
                f'option model_name of backend "neuron" is {value!r}: it names files, so it must be a string of at most 100 '
                "letters, digits, dots, hyphens and underscores that begins with a letter or digit"
            )
    elif not isinstance(value, bool):
        raise UnsupportedCompileOption(f'option {name} of backend "neuron" is {value!r}: it must be True or False')


# --- sizes --------------------------------------------------------------------------------------------------------------

_SHOWN = 3  # symbols that the error names


def symbolic_sizes(example_inputs: Sequence[Any]) -> list[torch.SymInt]:
    """The sizes of the graph's inputs that are not one number, each symbol once. (Float arguments are no sizes.)"""
    found: dict[str, torch.SymInt] = {}

    def note(value: Any) -> None:
        if isinstance(value, torch.SymInt) and not value.node.is_nested_int() and value.node.expr.free_symbols:
            found.setdefault(str(value), value)

    for value in example_inputs:
        note(value)
        if isinstance(value, torch.Tensor):
            for size in value.shape:
                note(size)
    return list(found.values())


def refuse_symbolic(module: torch.fx.GraphModule, sizes: list[torch.SymInt]) -> None:
    """Refuse a graph with the symbolic `sizes`.

    Raises:
        UnsupportedCompileOption: always. The message has their number, up to three of them, the place, and what to do.
    """
    shown = ", ".join(f"{_symbol(s)} (now {_hint(s)})" for s in sizes[:_SHOWN])
    more = f" and {len(sizes) - _SHOWN} more" if len(sizes) > _SHOWN else ""
    where = f", first used at {place}" if (place := _place(module)) else ""
    raise UnsupportedCompileOption(
        f'backend "neuron" compiles one program for each shape, but {len(sizes)} dynamic '
        f"dimension{'s were' if len(sizes) > 1 else ' was'} asked for: {shown}{more}{where}.\n"
        "  Hint: pass dynamic=False to torch.compile (or leave dynamic unset) and drop mark_dynamic; every new shape is then "
        "compiled once.\n"
        "  Hint: where lengths vary much, pad the inputs to a few fixed lengths; shakedown.neuron.bucketed does it."
    )


def _symbol(size: torch.SymInt) -> str:
    return str(size.node.expr)


def _hint(size: torch.SymInt) -> str:
    hint = size.node.hint
    return "unknown" if hint is None else str(hint)


def _place(module: torch.fx.GraphModule) -> str:
    """File and line of the user's code that the graph's first operator comes from, as far as Dynamo noted it."""
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output") and (trace := node.meta.get("stack_trace")):
            places = re.findall(r'File "(.+?)", line (\d+)', trace)
            if places:
                return f"{places[-1][0]}:{places[-1][1]}"
    return ""


def refuse_jagged(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Refuse a graph with a jagged nested tensor among its inputs: Dynamo always makes its ragged size symbolic.

    Raises:
        UnsupportedCompileOption: there is one.
    """
    for number, value in enumerate(example_inputs):
        if isinstance(value, torch.Tensor) and value.is_nested:
            raise UnsupportedCompileOption(
                f'input {number} ({_name(module, number)}) of a graph for backend "neuron" is a jagged nested tensor, whose '
                "ragged size is not known when the graph is compiled: work on its .values() inside torch.compile, or pad it "
                "(torch.nested.to_padded_tensor), or leave the operations on it out of the compiled function"
            )


def _name(module: torch.fx.GraphModule, number: int) -> str:
    names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    return names[number] if number < len(names) else "?"


# --- devices ------------------------------------------------------------------------------------------------------------


def common_device(example_inputs: Sequence[Any]) -> torch.device | None:
    """The device that all input tensors are on; None when there is no tensor. Numbers in 0-d CPU tensors count as numbers.

    Raises:
        InputsOnSeveralDevices: they are on several devices, so that results have no one device to go back to.
    """
    tensors = [t for t in example_inputs if isinstance(t, torch.Tensor)]
    sized = [t for t in tensors if t.dim() > 0 or t.device.type != "cpu"] or tensors
    devices = sorted({str(t.device) for t in sized})
    if len(devices) > 1:
        raise InputsOnSeveralDevices(
            f"retain_device returns results to the device of the inputs, but these are on {' and '.join(devices)}: move them to "
            f"one device, or switch it off (option retain_device, variable {config.RETAIN_DEVICE.name} or "
            f"{config.RETAIN_DEVICE.alias})"
        )
    return torch.device(devices[0]) if devices else None


def refuse_cpu_inputs(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Refuse a graph one of whose input tensors is on the CPU. 0-d ones count as numbers, as in eager execution.

    Raises:
        UnsupportedCompileOption: there is one. The message has its position, its name in the graph, and the variables.
    """
    for number, value in enumerate(example_inputs):
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() > 0:
            raise UnsupportedCompileOption(
                f'input tensor {number} ({_name(module, number)}) of a graph for backend "neuron" is on the CPU, and copying '
                'it over is off: call .to("neuron") on it, or unset '
                f"{config.DISABLE_CPU_AUTOCOPY.name} ({config.DISABLE_CPU_AUTOCOPY.alias})"
            )
