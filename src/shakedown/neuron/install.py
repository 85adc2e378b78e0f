"""Giving every operator of the device its kernel, once, on first use."""

from __future__ import annotations

import functools
import os
from typing import TypeAlias

import torch

from . import (
    autocast,
    config,
    config_listing,
    dispatch,
    log,
    manual,
    memory_limit,
    metric_tables,
    metrics,
    profiles,
    runtime,
    torch_gaps,
    torch_gaps_meta,
)
from .device import sparse_door
from .lowering import load as load_lowerings
from .lowering import registry
from .modes import adaptive

OpOverload: TypeAlias = torch._ops.OpOverload
_library: torch.library.Library | None = None  # a registration lives as long as its Library object


def install() -> None:
    """Start the runtime, load the lowerings, and give each lowered operator and its variants a kernel of their own."""
    global _library
    config_listing.start(log.logger("config").debug)
    metric_tables.at_exit()
    memory_limit.limit_by_variable()
    runtime.start()
    os.register_at_fork(after_in_child=dispatch.forget_in_child)
    if adaptive.enabled():
        dispatch.record_with(adaptive.start())
    load_lowerings()
    torch_gaps_meta.call_without_dynamo()
    profile = profiles.load(config.PROFILE())  # before anything is registered, so that a wrong one can be corrected
    _library = torch.library.Library("aten", "IMPL")
    taken = manual.register(_library)
    lowered = [op for op in registry.lowered() if (found := registry.lowering_of(op)) and not found.graph_only]
    for op in (*lowered, *registry.composites()):
        if op not in taken:
            _register(op, _library)
            taken.add(op)
    for op in _variants(set(lowered)):
        if op not in taken:
            _register(op, _library)
            taken.add(op)
    autocast.register(_library)
    _doors_of_compressed(_library)
    if config.DEFAULT_BACKEND() == "auto":
        torch_gaps.keep_breaks_for_us()
    profiles.activate(profile)
    metrics.begin()


def _doors_of_compressed(library: torch.library.Library) -> None:
    """A door for each operator on compressed sparse tensors, whose constructors ask no device: none may come too late.

    PyTorch prefers a default kernel, which knows nothing of sparse tensors, to the boxed door.
    """
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("SparseCsrCPU"):
        namespace, _, rest = name.partition("::")
        if namespace == "aten":
            op = registry.overload(rest)
            library.impl(op, functools.partial(sparse_door("SparseCsrPrivateUse1"), op), "SparseCsrPrivateUse1")


def _register(op: OpOverload, library: torch.library.Library) -> None:
    kernel = dispatch.make_kernel(op)
    library.impl(op, kernel, "PrivateUse1")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if (
        registry.composite_of(op) is not None
        and has(op.name(), "CompositeImplicitAutograd")
        and not has(op.name(), "Autograd")
    ):
        # Without a derivative formula of its own: it runs above autograd, which differentiates what it calls.
        library.impl(op, kernel, "AutogradPrivateUse1")


def _variants(lowered: set[OpOverload]) -> list[OpOverload]:
    """In-place and ``out=`` overloads whose functional form is in `lowered`."""
    found: list[OpOverload] = []
    for base in sorted({op._schema.name.split("::")[1] for op in lowered}):
        for name in (base, f"{base}_"):
            packet = getattr(torch.ops.aten, name, None)
            if packet is None:
                continue
            for overload in packet.overloads():
                op = getattr(packet, overload)
                if op not in lowered and registry.functional_of(op) in lowered:
                    found.append(op)
    return found
