"""What a support profile makes of each operator of a trace. The device half is asked through ``torch.neuron`` alone."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import BadInput
from ..evidence import Frozen
from .trace import Call, Phase, Traced

Verdict = Literal["native", "fallback", "missing"]
Mode = Literal["eager", "adaptive", "compiled"]


class Support(Frozen):
    """Where calls of one operator would run: ``native`` on the device (also through PyTorch's decomposition, as ``way``
    says), ``fallback`` on the CPU, ``missing`` nowhere (refused by the profile, or no kernel at all).

    ``source`` is where that is said: a profile's rule with its document and date, or the embedded device's own table.
    """

    operator: str
    verdict: Verdict
    way: str
    reason: str
    source: str
    rule: str = ""


class Placed(Frozen):
    """Equal calls of a trace, and where they would run."""

    phase: Phase
    calls: int
    lines: tuple[str, ...]
    input_dtypes: tuple[str, ...]
    support: Support


def support(
    operator: str,
    input_dtypes: tuple[str, ...] = (),
    output_dtypes: tuple[str, ...] = (),
    *,
    contiguous: bool = True,
    mode: Mode = "eager",
    profile: str | None = None,
) -> Support:
    """Where calls of `operator` (``aten::add.Tensor``) on such tensors run under `profile`; None is the active one.

    Raises:
        BadInput: the profile does not exist or is wrong, or ``torch.neuron`` is not the embedded device.
    """
    try:
        found = _device().support_of(
            operator,
            input_dtypes,
            output_dtypes,
            contiguous=contiguous,
            mode="compile" if mode == "compiled" else "eager",
            profile=profile,
        )
    except ValueError as error:  # of which the device's ProfileError is one
        raise BadInput(str(error)) from None
    verdict: Verdict = "native"
    if found.way == "fallback":
        verdict = "fallback"
    elif found.way in ("refused", "missing"):
        verdict = "missing"
    return Support(
        operator=operator,
        verdict=verdict,
        way=found.way,
        reason=found.reason,
        source=found.source,
        rule=found.rule,
    )


def place(traced: Traced, mode: Mode = "eager", profile: str | None = None) -> list[Placed]:
    """Every call of the trace with its support in `mode`, in the trace's order. Raises as :func:`support` does."""
    return [
        Placed(
            phase=call.phase,
            calls=call.count,
            lines=call.lines,
            input_dtypes=call.input_dtypes,
            support=_of(call, mode, profile),
        )
        for call in traced.calls
    ]


def _of(call: Call, mode: Mode, profile: str | None) -> Support:
    # The optimizer is outside what torch.compile is given, so its operators are called as in eager mode.
    here: Mode = "eager" if call.phase == "optimizer" else mode
    return support(
        call.operator, call.input_dtypes, call.output_dtypes, contiguous=call.contiguous, mode=here, profile=profile
    )


def rules(profile: str | None = None) -> list[dict[str, Any]]:
    """The rules of `profile` as plain values; none for ``native``. Raises as :func:`support` does."""
    try:
        return _device().profile_rules(profile)
    except ValueError as error:
        raise BadInput(str(error)) from None


def active_profile() -> str:
    """Name of the profile that is active in this process."""
    return _device().profile()


def _device() -> Any:
    import torch

    if not hasattr(torch, "neuron"):
        from ..observe.paths import register_embedded_device

        register_embedded_device()
    module: Any = torch.neuron
    if not hasattr(module, "support_of"):
        raise BadInput(
            f"support profiles belong to the embedded device, and here torch.neuron is {module.__name__}; "
            "run the forecast where only shakedown registers the device"
        )
    return module
