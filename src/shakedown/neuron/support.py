"""What the device does with an operator, asked without calling it: of the dispatcher, the lowerings and a support profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from . import profiles
from .lowering import registry
from .profiles.document import Mode

OpOverload: TypeAlias = torch._ops.OpOverload
_COMPOSITE_KEYS = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@dataclass(frozen=True)
class OperatorSupport:
    """The way that calls of an operator take, why, and where that is said.

    ``native``: a lowering or kernel of its own. ``composite``: PyTorch makes several operators of it, each with a way of
    its own. ``decomposed``: PyTorch's decomposition, traced into one program. ``fallback``: the CPU. ``refused``: an error
    of the profile. ``missing``: neither the device nor the CPU has it. ``rule`` is the profile's, where one decides.
    """

    name: str
    way: str
    reason: str
    source: str
    rule: str = ""


def way_of(op: OpOverload) -> tuple[str, str]:
    """The way that `op` takes without any profile, and why it is the CPU if it is. The lowerings must be loaded."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if has(op.name(), "PrivateUse1"):
        return "native", ""
    if any(has(op.name(), key) for key in _COMPOSITE_KEYS):
        return "composite", ""
    functional = registry.functional_of(op)
    if functional is not None and registry.lowering_of(functional) is not None:
        return "native", ""
    if functional is not None and registry.decomposition_of(functional) is not None:
        return "decomposed", ""
    if not has(op.name(), "CPU"):
        return "fallback", "PyTorch has no kernel for dense tensors on the CPU either"
    return "fallback", "no lowering"


def overload(name: str) -> OpOverload | None:
    """The overload called ``aten::add.Tensor`` (without a dot: the default one); None where there is no such operator."""
    space, _, rest = name.partition("::")
    base, _, which = rest.partition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, space), base), which or "default")
    except AttributeError:
        return None
    return found if isinstance(found, torch._ops.OpOverload) else None


def support_of(
    name: str,
    input_dtypes: Iterable[str],
    output_dtypes: Iterable[str],
    *,
    contiguous: bool,
    mode: Mode,
    profile: str | None,
) -> OperatorSupport:
    """See :func:`.device.support_of`, which starts the device first."""
    chosen = profiles.active if profile is None else profiles.load(profile)
    table = f"the embedded device's table of operators, PyTorch {torch.__version__}"
    op = overload(name)
    if op is None:
        return OperatorSupport(name, "missing", "PyTorch has no such operator in this process", table)
    rule = None if chosen is None else chosen.rule_for(op, _like(input_dtypes, contiguous), _like(output_dtypes), mode)
    if chosen is not None and rule is not None:
        way = "fallback" if rule.action == "fallback" else "refused"
        said = "runs on the CPU there" if way == "fallback" else "is not supported there"
        return OperatorSupport(
            name, way, said, f"profile {chosen.name}, rule {rule.id}: {rule.source}, {rule.date}", rule.id
        )
    way, reason = way_of(op)
    if way == "fallback" and not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CPU"):
        way = "missing"
    where = table if chosen is None else f"no rule in profile {chosen.name}; {table}"
    return OperatorSupport(name, way, reason, where)


def _like(dtypes: Iterable[str], contiguous: bool = True) -> list[torch.Tensor]:
    """Tensors without memory that have these dtypes, for rules that look at tensors."""
    stride = (2, 1) if contiguous else (1, 2)
    return [torch.empty_strided((2, 2), stride, dtype=getattr(torch, name), device="meta") for name in dtypes]
