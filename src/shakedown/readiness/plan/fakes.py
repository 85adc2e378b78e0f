"""The machinery of :mod:`.trace`: a model without values whose calls are dispatched as the target's are, and recorded."""

from __future__ import annotations

import importlib
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from .. import snapshot, targets
from ..observe import numerics
from ..workload import Case, Workload
from .trace import Call, Input, Phase, Stop, Traced

_BY_VALUE = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
_UNKNOWN = (UnsupportedOperatorException, UnsupportedFakeTensorException)
_BOOKKEEPING = ("prim::", "profiler::")  # questions about a tensor, and the profiler's marks: no operators
_STAND_IN = 1.0  # for a floating number that the host reads: most are losses and norms that are printed
_MOST_LINES = 8  # of one row: enough to find it, few enough to read


class Tracing:
    """One trace: the model, the mode that follows it, and what was seen."""

    def __init__(self, workload: Workload, case: Case, dtype: str, device: str) -> None:
        self.workload, self.case, self.dtype = workload, case, dtype
        self.device = torch.device(device)
        # Sizes that depend on values become unknowns, so that what comes after them can still be followed.
        shapes = ShapeEnv(allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
        # A shape function that is missing must not be replaced by running the kernel on zeros.
        self.fake = FakeTensorMode(
            allow_fallback_kernels=False, allow_non_fake_inputs=True, shape_env=shapes, static_shapes=True
        )
        self.folder = workload.source.path.parent
        self.stops: list[Stop] = []
        self.built = ""

    def run(self) -> Traced:
        """Build, then follow the phases as far as they go."""
        if self.device.type == "neuron":
            if not hasattr(torch, "neuron"):
                from ..observe.paths import register_embedded_device

                register_embedded_device()
            if targets.family(targets.get("neuron")) == "rehearsal":
                torch.neuron.init()  # registers kernels, which decide what is decomposed; none of them runs
        recorder = _Recorder(self.fake, self.device, self.folder)
        strided: list[str] = []
        inputs: list[Input] = []
        with _restored_globals():
            try:
                model = self._model()
                batch = self._batch()
                inputs = [Input(name=n, shape=tuple(t.shape), dtype=_dtypes([t])[0]) for n, t in batch.items()]
                strided = [n for n, t in batch.items() if not t.is_contiguous()]
                strided += [n for n, p in model.named_parameters() if not p.is_contiguous()]
                optimizer = self.workload.build_optimizer(model.parameters())
            except (Exception, SystemExit) as error:  # the workload's own code: whatever it raises is told
                self._stopped("build", recorder, error)
            else:
                with recorder:
                    self._step(recorder, model, batch, optimizer)
        return Traced(
            workload=self.workload.source.name,
            workload_sha256=self.workload.source.sha256,
            case=str(self.case),
            dtype=self.dtype,
            device=self.device.type,
            torch=torch.__version__,
            built=self.built,
            inputs=inputs,
            calls=recorder.rows(),
            stops=self.stops,
            noncontiguous=strided,
        )

    def _step(
        self, recorder: _Recorder, model: nn.Module, batch: dict[str, Tensor], optimizer: torch.optim.Optimizer
    ) -> None:
        try:
            recorder.phase = "forward"
            _, loss = numerics.outputs_of(self.workload.forward(model, batch))
            recorder.phase = "backward"
            recorder.operator = None
            loss.backward()
        except (Exception, SystemExit) as error:
            self._stopped(recorder.phase, recorder, error)
            with recorder.paused():  # the optimizer needs no more than gradients of the right sizes
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.grad = torch.empty_like(parameter)
        try:
            recorder.phase = "optimizer"
            recorder.operator = None
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        except (Exception, SystemExit) as error:
            self._stopped(recorder.phase, recorder, error)

    # --- the model and its inputs, without values

    def _model(self) -> nn.Module:
        """The model as the trial trains it: built under a seed, in training mode, without dropout, in the dtype."""
        why = ""
        try:
            with torch.device("meta"):
                model = self._build()
            loose = _loose_tensors(model)
            if loose:
                why = f"{loose[0]} is a tensor that is neither a parameter nor a buffer, so it stays where it is made"
        except (Exception, SystemExit) as error:
            why = f"building it on meta fails: {_first_line(error)}"
        if why:
            model = self._build()
            self.built = f"on the CPU, because {why}"
        else:
            self.built = "on meta"
        model.train()
        snapshot._switch_off_dropout(model)
        model.to(getattr(torch, self.dtype))
        self._replace(model)
        return model

    def _build(self) -> nn.Module:
        snapshot.seed_everything(snapshot.SEED)
        return self.workload.build_model()

    def _replace(self, model: nn.Module) -> None:
        """Put tensors without values in the place of the model's own; tensors that are shared stay shared."""
        made: dict[int, Tensor] = {}
        for module in model.modules():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    fake = self._like(tensor)
                    held = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if held else fake
                setattr(module, name, made[id(tensor)])

    def _batch(self) -> dict[str, Tensor]:
        snapshot.seed_everything(snapshot.SEED + 1)
        dtype = getattr(torch, self.dtype)
        found = self.workload.make_batch(self.case.size, self.case.length)
        return {n: self._like(v.to(dtype) if v.is_floating_point() else v) for n, v in found.items()}

    def _like(self, tensor: Tensor) -> Tensor:
        """A tensor of the same sizes, strides and dtype, with the dispatch keys of the target and no values."""
        meta = tensor.detach() if tensor.is_meta else tensor.detach().to("meta")
        return FakeTensor(self.fake, meta, self.device)

    def _stopped(self, phase: Any, recorder: _Recorder, error: BaseException) -> None:
        kind: Any = "error"
        if isinstance(error, _BY_VALUE) or ("numpy" in str(error) and "tensor subclasses" in str(error)):
            kind = "data-dependent"
        elif isinstance(error, _UNKNOWN):
            kind = "no shape function"
        line: str | None = None
        for frame in traceback.extract_tb(error.__traceback__):
            line = _own_line(frame.filename, frame.lineno or 0, self.folder) or line
        why = _first_line(error)
        if kind == "data-dependent":
            why = f"what comes next depends on values of the device ({why})"
        elif kind == "no shape function":
            why = f"{recorder.operator} says nothing about the sizes of its result ({why})"
        operator = None if phase == "build" else recorder.operator
        self.stops.append(Stop(phase=phase, kind=kind, operator=operator, line=line, why=why))


# --- recording ----------------------------------------------------------------------------------------------------------


@dataclass
class _Seen:
    count: int = 0
    lines: dict[str, None] = field(default_factory=dict)


class _Recorder(TorchDispatchMode):
    """Counts calls that would reach the target; what only concerns the host's own tensors is let through."""

    def __init__(self, fake: FakeTensorMode, device: torch.device, folder: Path) -> None:
        super().__init__()
        self.fake, self.device, self.folder = fake, device, folder
        self.phase: Phase = "forward"
        self.operator: str | None = None  # the last one that was called: where a trace stops, it is the one to name
        self.seen: dict[tuple[Any, ...], _Seen] = {}
        self._pause = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [v for v in tree_flatten((args, kwargs))[0] if isinstance(v, Tensor)]
        here = [t for t in inputs if isinstance(t, FakeTensor) and t.device.type == self.device.type]
        wanted = kwargs.get("device")
        made_here = wanted is not None and torch.device(wanted).type == self.device.type
        name = func.name()
        if not (here or made_here) or name.startswith(_BOOKKEEPING) or self._pause:
            return self._call(func, args, kwargs, made_here)
        self.operator = name
        if name == "aten::_local_scalar_dense" and args[0].dtype.is_floating_point:
            self._note(name, inputs, (), False, True, self._line())
            return _STAND_IN
        value_read = name in ("aten::_local_scalar_dense", "aten::equal")
        moved_away = bool(here) and name == "aten::_to_copy" and wanted is not None and not made_here
        if name == "aten::copy_":
            moved_away = not self._is_here(args[0])
        dependent = _sizes_by_value(func, args, kwargs)
        line = self._line()
        try:
            result = self._call(func, args, kwargs, made_here)
        except Exception:
            self._note(name, inputs, (), dependent, value_read or moved_away, line)
            raise
        outputs = [v for v in tree_flatten(result)[0] if isinstance(v, Tensor)]
        self._note(name, inputs, outputs, dependent, value_read or moved_away, line)
        return result

    def _call(self, func: Any, args: Any, kwargs: Any, made_here: bool) -> Any:
        if made_here:  # a factory, or a copy of a host tensor, has no argument that would bring the mode
            with self.fake:
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _is_here(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.device.type == self.device.type

    def _note(self, name: str, inputs: Any, outputs: Any, dependent: bool, read: bool, line: str | None) -> None:
        contiguous = all(t.is_contiguous() for t in inputs if not _unknown_sizes(t))
        key = (self.phase, name, _dtypes(inputs), _dtypes(outputs), contiguous, dependent, read)
        seen = self.seen.setdefault(key, _Seen())
        seen.count += 1
        if line is not None and len(seen.lines) < _MOST_LINES:
            seen.lines[line] = None

    def _line(self) -> str | None:
        """The innermost frame of the workload's own files."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code is not Tracing._step.__code__:  # who traces is not the workload
            found = _own_line(frame.f_code.co_filename, frame.f_lineno, self.folder)
            if found is not None:
                return found
            frame = frame.f_back
        return None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Calls inside are not of the workload's making."""
        self._pause = True
        try:
            yield
        finally:
            self._pause = False

    def rows(self) -> list[Call]:
        """What was seen, in order of first appearance."""
        return [
            Call(
                phase=phase,
                operator=name,
                count=seen.count,
                input_dtypes=inputs,
                output_dtypes=outputs,
                contiguous=contiguous,
                data_dependent=dependent,
                host_read=read,
                lines=tuple(seen.lines),
            )
            for (phase, name, inputs, outputs, contiguous, dependent, read), seen in self.seen.items()
        ]


def _sizes_by_value(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether this call's result has sizes that depend on values. PyTorch's tag is on the operator, so calls of two
    operators are looked at: only a mask makes the sizes of an index unknown, and a given output size makes them known.
    """
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func is torch.ops.aten.index.Tensor:
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if func is torch.ops.aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is None
    return True


def _unknown_sizes(tensor: Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) for n in (*tensor.shape, *tensor.stride()))


def _dtypes(tensors: Any) -> tuple[str, ...]:
    return tuple(sorted({str(t.dtype).removeprefix("torch.") for t in tensors}))


def _own_line(file: str, line: int, folder: Path) -> str | None:
    """``file:line`` where `file` is in the workload's folder and not a package installed there."""
    path = Path(file)
    if "site-packages" in path.parts or not path.is_relative_to(folder):
        return None
    return f"{path.relative_to(folder)}:{line}"


def _loose_tensors(model: nn.Module) -> list[str]:
    """Tensors on meta that a module keeps as plain attributes: moving the model would not move them."""
    return [
        f"{type(module).__name__}.{name}"
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and value.is_meta
    ]


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


@contextmanager
def _restored_globals() -> Iterator[None]:
    """Random streams go on afterwards as if nothing had been drawn, and optimizers know real parameters only.

    While open, an optimizer takes tensors without values for what they stand for: it looks at their exact type before it
    chooses the form on lists that it would choose on the device.
    """
    known = importlib.import_module("torch.optim.optimizer")._foreach_supported_types
    state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    device: Any = getattr(torch, "neuron", None)
    device_state = device.get_rng_state() if device is not None and device.is_initialized() else None
    known.append(FakeTensor)
    try:
        # What the workload compiles itself is followed, not compiled; what it prints is no output of ours.
        with torch.compiler.set_stance("force_eager"), redirect_stdout(sys.stderr):
            yield
    finally:
        known.remove(FakeTensor)
        random.setstate(state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if device_state is not None:
            device.set_rng_state(device_state)
