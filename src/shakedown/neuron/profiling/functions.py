"""The device's events among those of PyTorch's profiler: ``events()``, ``key_averages()`` and all that is made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.autograd import DeviceType
from torch.autograd.profiler_util import MEMORY_EVENT_NAME, FunctionEvent

from .session import Call, DeviceEvent, Session
from .within import Within

_NODE_RANGE, _USER_RANGE = 1, 7  # at::RecordScope::BACKWARD_FUNCTION and USER_SCOPE
EVALUATES = "autograd::engine::evaluate_function: "


@dataclass
class Placed:
    """Device events that were added, to be joined with the operators once PyTorch has built their tree."""

    kernels: list[tuple[FunctionEvent, str, int, float]] = field(default_factory=list)  # operator, name, core, us
    caused: list[tuple[FunctionEvent, FunctionEvent, bool]] = field(
        default_factory=list
    )  # device's, operator, has a stack

    def join(self, found: Any) -> None:
        """Give operators the device time that they caused, and the backward pass the lines of its forward.

        Not before the tree is there: PyTorch drops an operator that does nothing but call itself on another key, and with it
        what is known of the one that stays.
        """
        there = set(map(id, found))
        for operator, name, core, duration in self.kernels:
            _surviving(operator, there).append_kernel(name, core, duration)
        lines = _forward_lines(found)
        for event, operator, has_stack in self.caused:
            backward = None if has_stack else _backward(operator)[1]
            stack = None if backward is None else lines.get((backward.sequence_nr, backward.fwd_thread))
            if stack and backward is not None:
                event.stack = event.stack or stack
                operator.stack = stack
                above: FunctionEvent | None = _surviving(operator, there)
                while above is not None:
                    above.stack = stack
                    outermost = above is backward or above.name.startswith(EVALUATES)
                    above = None if outermost else above.cpu_parent
        _add_up(found)


class _Counted(FunctionEvent):
    """An operator on the CPU whose device time, with all that it called, has been added up.

    PyTorch adds it up again for every operator and all that is around it, which takes minutes where a profile has Python
    functions in it, some dozens around each other.
    """

    @property
    def device_time_total(self) -> float:
        return self.neuron_total


def _add_up(found: Any) -> None:
    for event in reversed(found):  # what is called comes after its caller
        if event.device_type == DeviceType.CPU and not event.is_async:
            own = sum(kernel.duration for kernel in event.kernels)
            event.neuron_total = own + sum(child.device_time_total for child in event.cpu_children)
            event.__class__ = _Counted


def _surviving(operator: FunctionEvent, there: set[int]) -> FunctionEvent:
    while id(operator) not in there and operator.cpu_parent is not None:
        operator = operator.cpu_parent
    return operator


def _backward(operator: FunctionEvent | None) -> tuple[bool, FunctionEvent | None]:
    """Whether `operator` ran in the backward pass, and the node that it ran for.

    Around a node, the engine sums its gradients where sizes were broadcast, and adds them to others.
    """
    while operator is not None:
        if operator.scope == _NODE_RANGE:
            return True, operator
        if operator.name.startswith(EVALUATES):
            return True, next((child for child in operator.cpu_children if child.scope == _NODE_RANGE), None)
        operator = operator.cpu_parent
    return False, None


def _forward_lines(found: Any) -> dict[tuple[int, int], list[str]]:
    """The stack of the forward operator of each (sequence number, thread).

    Operators before it that need no gradient have the same number; the last one is the one that was differentiated.
    """
    lines: dict[tuple[int, int], list[str]] = {}
    for event in found:
        if event.device_type == DeviceType.CPU and event.stack and event.sequence_nr >= 0 and not _backward(event)[0]:
            lines[event.sequence_nr, event.thread] = event.stack
    return lines


def add(parsed: list[FunctionEvent], session: Session, trace_start_ns: int, use_device: str) -> Placed:
    """Put the device's events of `session` into `parsed`, the events of PyTorch's profiler."""
    placed = Placed()
    assert session.clock is not None
    operators = Within(
        (
            (
                event.device_resource_id,
                trace_start_ns + round(event.time_range.start * 1e3),
                trace_start_ns + round(event.time_range.end * 1e3),
                event,
            )
            for event in parsed
            if event.device_type == DeviceType.CPU and not event.is_async and not event.is_python_function
        ),
        session.clock.unsure_ns,
    )
    told = session.told()
    anything_timed = any(event.timed for event in told)
    number = max((event.id for event in parsed), default=0)
    for event in told:
        number += 1
        if event.kind == "memory":
            _add_memory(parsed, operators, event, trace_start_ns, use_device, number)
        elif event.kind != "other" or event.end > event.start:
            made = _made(event, number, trace_start_ns, use_device, as_note=anything_timed and not event.timed)
            parsed.append(made)
            _cause(placed, operators, event, made)
    parsed.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
    return placed


def _made(event: DeviceEvent, number: int, zero: int, use_device: str, *, as_note: bool) -> FunctionEvent:
    """`as_note`: the time of what is not the device's work stands in its row, and in no sum, as PyTorch has it for ranges."""
    made = FunctionEvent(
        id=number,
        name=event.title,
        trace_name=event.title,
        overload_name="",
        thread=event.thread,
        start_us=(event.start - zero) / 1e3,
        end_us=(event.end - zero) / 1e3,
        input_shapes=[],
        stack=[],
        use_device=use_device,
        device_type=DeviceType.PrivateUse1,
        device_index=event.core,
        device_resource_id=event.stream,
        is_user_annotation=as_note,
        activity_type=f"neuron_{event.kind}",
    )
    made.neuron = event  # for by_line, and whoever wants the bytes
    made.neuron_operators = []
    return made


def _cause(placed: Placed, operators: Within[FunctionEvent], event: DeviceEvent, made: FunctionEvent) -> None:
    share = made.time_range.elapsed_us() / len(event.calls)
    for call in event.calls:
        found = operators.innermost(call.thread, call.start, call.end)
        made.neuron_operators.append(None if found is None else found[2])
        if found is None:
            if not made.stack:
                made.stack = call.stack
            continue
        operator = found[2]
        if len(event.calls) == 1 and call.end == event.end:  # what clocks are unsure of does not leave the operator
            made.time_range.start = max(made.time_range.start, operator.time_range.start)
            made.time_range.end = max(min(made.time_range.end, operator.time_range.end), made.time_range.start)
            share = made.time_range.elapsed_us()
        if event.timed:
            placed.kernels.append((operator, event.title, event.core, share))
        _describe(operators, call, operator, made)
        placed.caused.append((made, operator, bool(call.frames)))


def _describe(operators: Within[FunctionEvent], call: Call, operator: FunctionEvent, made: FunctionEvent) -> None:
    """What one knows of the other: the operator's sizes and number, and the line that was seen with the event."""
    made.linked_correlation_id = operator.id
    made.input_shapes = operator.input_shapes
    made.concrete_inputs, made.kwinputs = operator.concrete_inputs, operator.kwinputs
    if not call.frames:
        return
    stack = call.stack
    made.stack = stack
    for _, _, above in operators.chain(call.thread, call.start, call.end):
        if above.scope == _USER_RANGE or above.is_user_annotation:
            break
        if not above.stack:
            above.stack = stack


def _add_memory(
    parsed: list[FunctionEvent],
    operators: Within[FunctionEvent],
    event: DeviceEvent,
    zero: int,
    use_device: str,
    number: int,
) -> None:
    call, inside = event.calls[0], False
    for _, _, operator in operators.chain(call.thread, call.start, call.end):
        operator.device_memory_usage += event.nbytes
        inside = True
    if not inside:
        at = (event.start - zero) / 1e3
        parsed.append(
            FunctionEvent(
                id=number,
                name=MEMORY_EVENT_NAME,
                thread=event.thread,
                start_us=at,
                end_us=at,
                overload_name="",
                input_shapes=[],
                stack=[],
                use_device=use_device,
                device_memory_usage=event.nbytes,
            )
        )
