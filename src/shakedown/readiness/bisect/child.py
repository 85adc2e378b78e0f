"""The process that looks: ``python -m shakedown.readiness.bisect.child JOB.json``. It leaves one :class:`Stage`."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import evidence, targets
from ..errors import BadInput
from ..judge import bisect as judge
from ..selftest import inject
from ..worker import WORKLOAD_AT_FAULT, read_job
from . import again, case, graphs, modules, trees
from .job import BisectJob
from .lab import Lab
from .result import Module, Operator, Phase, Stage, Verdict
from .walk import Call, Modules, Walk

_REPEATS = 4  # adaptive eager fuses what it has met before; the last pass is the one that is judged


def say(text: str) -> None:
    """A line for whoever waits; the parent shows it."""
    print(text, flush=True)


def perform(job: BisectJob) -> Stage:
    """Look for the place in one mode."""
    say(
        f"{job.stage}: restoring {job.case} and training to step {job.step}"
        if job.step > 1
        else f"{job.stage}: restoring"
    )
    lab = Lab(job)
    look: Callable[[Lab], Stage] = {"eager": eager, "compiled": compiled, "adaptive": adaptive}[job.stage]
    return look(lab)


# --- eager --------------------------------------------------------------------------------------------------------------


def eager(lab: Lab) -> Stage:
    """First the module, by phase; then the operators of that module, or of the phase."""
    if lab.moved:
        return _moved(lab)
    say("eager: modules on the CPU and in float64")
    cpu, truth = modules.look(lab, lab.cpu), modules.look(lab, lab.truth)
    raised = ""
    try:
        phase, module = _module(lab, cpu, truth)
    except Exception as error:
        raised = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        phase, module = None, None
    if phase is None and not raised and not lab.job.suspected:
        return _stage(lab, "nothing", "modules, gradients and updated weights agree within rounding")
    walk = _walk(lab, phase, module)
    if walk.found is None and module is not None and module.path and phase == "forward":
        say("eager: no operator of that module; all operators of the phase")
        walk = _walk(lab, phase, None)
    counted = {"operators_judged": walk.judged, "operators_counted": walk.counted, "not_judged": walk.left_out()}
    if walk.found is None and raised:
        return _stage(lab, "module", f"the step raises on the target, outside any operator: {raised}", **counted)
    if walk.found is not None:
        return _located(lab, walk, *walk.found, module, counted)
    if module is not None:
        text = (
            f"{_named(module)} differs in the {phase} pass, and each of its operators is right for the inputs it was given: "
            "the error is the sum of errors within rounding, lies in an operator that cannot be judged, or in state that is "
            "not an operator's"
        )
        return _stage(lab, "module", text, phase=phase, module=module, **counted)
    text = f"everything agrees: modules, gradients, updated weights, and {walk.judged} operators one by one"
    return _stage(lab, "nothing", text, **counted)


def _module(lab: Lab, cpu: modules.Seen, truth: modules.Seen) -> tuple[Phase | None, Module | None]:
    """Which phase is the first to be wrong, and where. Raises what the target raises."""
    say("eager: modules on the target")
    device = modules.look(lab, lab.target_side)
    found = modules.first_wrong_forward(lab, device, cpu, truth)
    if found is not None:
        return "forward", found
    found = modules.first_wrong_gradient(lab, device, cpu, truth)
    if found is not None:
        return "backward", found
    numbers = modules.updated_weights(lab)
    if numbers:
        kind = type(lab.target_side.optimizer).__name__
        return "optimizer", Module(path=None, kind=kind, call=0, numbers=numbers)
    return None, None


def _walk(lab: Lab, phase: Phase | None, module: Module | None) -> Walk:
    """One step on the target with the operators of `phase` judged (None: of all phases), inside `module` if it has a name."""
    say(f"eager: operators of {'the ' + phase + ' pass' if phase else 'the step'}")
    side = lab.target_side
    side.reset()
    stack = Modules(side.model)
    walk = Walk(lab.device, stack, lab.limit, lab.demand)
    try:
        run_step(
            lab, walk, phase, (module.path, module.call) if module and module.path and phase == "forward" else None
        )
    except Exception as error:  # the caller knows that the step raises; the walk has found where, or nobody can
        say(f"eager: the step raised {type(error).__name__}")
    finally:
        stack.close()
        walk.finish()
    return walk


def run_step(lab: Lab, walk: Walk, phase: Phase | None, region: tuple[str, int] | None) -> None:
    """Forward, backward and optimizer under `walk`."""
    side = lab.target_side
    with walk:
        walk.begin("forward", phase in ("forward", None), region)
        _, loss = lab.run(side)
        if phase == "forward" or side.optimizer is None or loss is None:
            return
        walk.begin("backward", phase in ("backward", None))
        loss.backward()
        if phase == "backward":
            return
        walk.begin("optimizer", True)
        side.optimizer.step()


def _named(module: Module) -> str:
    if module.path is None:
        return f"the workload's {module.kind}" if module.kind == "forward" else f"the optimizer ({module.kind})"
    return f"module {module.path} ({module.kind})" if module.path else f"the model itself ({module.kind})"


def _located(lab: Lab, walk: Walk, call: Call, judged: Any, module: Module | None, counted: dict[str, Any]) -> Stage:
    wrong = judge.wrong(judged.numbers)
    phase: Phase = call.phase  # type: ignore[assignment]
    name = again.full_name(call.func)
    place = call.place
    inside = place.module
    kind = type(lab.target_side.model.get_submodule(inside)).__name__ if inside is not None else ""
    if phase == "optimizer":
        inside, kind = None, type(lab.target_side.optimizer).__name__
    if module is None or module.path != inside:
        # The operator says better than a gradient which module it belongs to.
        module = Module(path=inside, kind=kind or "forward", call=place.call, numbers=module.numbers if module else [])
    operator = Operator(names=[name], line=place.line, number=call.number, numbers=wrong, raised=call.raised)
    where = f"in {_named(module)}, call {module.call}" if inside is not None else f"in {_named(module)}"
    text = f"{name} is the first wrong operator of the {phase} pass, {where}" + (
        f", {place.line}" if place.line else ""
    )
    text += f": {wrong[0].findings[0]}"
    folder, note = _case(lab, call, wrong, phase, text)
    return _stage(
        lab, "located", text, phase=phase, module=module, operator=operator, case=folder, case_note=note, **counted
    )


def _case(lab: Lab, call: Call, wrong: list[Any], phase: str, text: str) -> tuple[str, str]:
    """Write the runnable case, if the operator alone is wrong again."""
    say(f"{lab.job.stage}: the operator alone, smaller and smaller")
    name = again.full_name(call.func)
    program = case.of_call(call, [n for n in wrong if n.tensor in call.made], lab.target.device, phase == "optimizer")
    program = dataclasses.replace(program, adaptive=lab.job.stage == "adaptive")
    if call.raised:
        program = case.of_call(call, [], lab.target.device, False)
    return write_case(lab, program, f"{name} on {lab.target.device}", text, call.raised)


def write_case(lab: Lab, program: case.Program, title: str, text: str, raised: str = "") -> tuple[str, str]:
    """Shrink `program` and write it to ``case/``; returns the folder and a note, one of them empty."""
    bench = case.Bench(lab.limit, lab.demand, lab.job.dtype)
    job = lab.job
    where = f"From {job.source.name}, {job.cell}, case {job.case}, step {job.step}.\n{text}"
    if raised:
        case.write(program, [], {}, 0.0, job.folder / "case", title, where)
        return "case", ""
    before = bench.differs(program)
    if not before:
        return (
            "",
            "run alone with the same tensors it is right: the error needs what ran before it, so there is no case",
        )
    small = bench.shrink(program, before)
    wrong = bench.differs(small)
    gate = max(n.allowed_relative_l2 for n in before)
    case.write(small, wrong, bench.observed, gate, job.folder / "case", title, where)
    return "case", ""


def _moved(lab: Lab) -> Stage:
    name, (sent, back) = next(iter(lab.moved.items()))
    func = torch.ops.aten._to_copy.default
    line = case.Line("r", func, [case.Name('t["value"]')], {"device": lab.device})
    program = case.Program((line,), {"value": sent}, {"output": "r"}, lab.target.device)
    triple = judge.Triple(
        name, trees.dtype_name(sent), trees.array(back), trees.array(sent), trees.array(sent), exact=True
    )
    numbers = judge.judge([triple], 1, lab.demand)
    text = (
        f"{len(lab.moved)} tensors changed on their way to the device, first {name}: {'; '.join(numbers[0].findings)}"
    )
    folder, note = write_case(lab, program, f"a copy to {lab.target.device}", text)
    operator = Operator(names=["aten::_to_copy"], line="", number=1, numbers=numbers)
    return _stage(lab, "located", text, phase="data", operator=operator, case=folder, case_note=note)


# --- compiled -----------------------------------------------------------------------------------------------------------


def compiled(lab: Lab) -> Stage:
    """Shrink each captured graph, in the order in which they run, until one differs."""
    say("compiled: capturing the graphs")
    captured = graphs.capture(lab)
    if not captured:
        return _stage(lab, "unobservable", "torch.compile captured no graph, so nothing here is compiled")
    for graph in captured:
        part = graphs.shrink(lab, graph, lambda text: say(f"compiled: {text}"))
        if part is None:
            continue
        kind = ""
        if part.module is not None:
            kind = _kind(lab, part.module)
        module = Module(path=part.module, kind=kind or "forward", call=0, numbers=part.wrong)
        together = "is wrong when compiled" if len(part.names) == 1 else "are wrong when compiled together"
        text = f"{', '.join(part.names)} {together}, and right one by one in eager mode; {part.phase} graph"
        text += f", {_named(module)}" + (f", {part.line}" if part.line else "") + f": {part.wrong[0].findings[0]}"
        operator = Operator(names=part.names, line=part.line, number=part.number, numbers=part.wrong)
        folder, note = write_case(lab, part.program, f"{' '.join(part.names)} compiled for {lab.target.device}", text)
        phase: Phase = "backward" if part.phase == "backward" else "forward"
        return _stage(
            lab, "located", text, phase=phase, module=module, operator=operator, case=folder, case_note=note,
            operators_counted=part.of,
        )  # fmt: skip
    agree = f"{len(captured)} captured graphs, compiled one by one, agree with their operators"
    say("compiled: the whole step")
    whole = torch.compile(lab.workload.forward, backend=lab.target.backend, dynamic=False)
    device, cpu, truth = (modules.ends(lab, side, whole if side is lab.target_side else None) for side in lab.sides)
    numbers = judge.wrong(modules.compared(device, cpu, truth, lab.limit, lab.demand, lab.job.dtype))
    if numbers:
        module = Module(path=None, kind="forward", call=0, numbers=numbers)
        return _stage(lab, "module", f"the compiled step differs, although {agree}", module=module)
    return _stage(lab, "nothing", agree)


def _kind(lab: Lab, path: str) -> str:
    try:
        return type(lab.target_side.model.get_submodule(path)).__name__
    except AttributeError:
        return ""


# --- adaptive -----------------------------------------------------------------------------------------------------------


def adaptive(lab: Lab) -> Stage:
    """Operators as fused programs compute them: nothing is read before the step has ended, then all are judged."""
    control = getattr(getattr(torch, "neuron", None), "adaptive", None)
    if targets.family(lab.target) != "rehearsal" or control is None:
        return _stage(lab, "unobservable", "this target does not say what its adaptive mode fuses")
    side = lab.target_side
    walk = None
    fused = 0
    for repeat in range(_REPEATS):
        say(f"adaptive: pass {repeat + 1} of {_REPEATS}, so that its operators are fused")
        side.reset()
        stack = Modules(side.model)
        walk = Walk(lab.device, stack, lab.limit, lab.demand, keep_on_device=True)
        targets.wait(lab.target)
        before = control.status()["operators"]["fused"]
        run_step(lab, walk, None, None)
        targets.wait(lab.target)
        fused = control.status()["operators"]["fused"] - before
        control.wait(60.0)
        stack.close()
        if repeat < _REPEATS - 1:
            walk.discard()
    assert walk is not None
    if not fused:
        walk.discard()
        return _stage(lab, "unobservable", "no operator was computed in a fused program while it was watched")
    say(f"adaptive: judging the operators, {fused} of which ran fused")
    walk.finish()
    counted = {"operators_judged": walk.judged, "operators_counted": walk.counted, "not_judged": walk.left_out()}
    if walk.found is None:
        text = f"{fused} operators ran in fused programs, and {walk.judged} are right for the inputs they were given"
        return _stage(lab, "nothing", text, **counted)
    stage = _located(lab, walk, *walk.found, None, counted)
    return stage.model_copy(update={"text": f"in a fused program: {stage.text}"})


# --- the document -------------------------------------------------------------------------------------------------------


def _stage(lab: Lab, verdict: Verdict, text: str, **fields: Any) -> Stage:
    return Stage(mode=lab.job.stage, verdict=verdict, text=text, **fields)


def leave(job: BisectJob) -> None:
    """Look, and write ``<stage>.json``."""
    evidence.write(perform(job), job.folder / f"{job.stage}.json")


def main() -> int:
    """Read the job and do it."""
    raw = json.loads(Path(sys.argv[1]).read_text())
    job = read_job(raw, BisectJob)
    try:
        inject.switch_on(os.environ, "bisect", job.stage)
        leave(job)
    except BadInput as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return WORKLOAD_AT_FAULT
    gc.freeze()
    return 0


if __name__ == "__main__":
    sys.exit(main())
