"""The finding as a program of its own: a few lines, its tensors, and a README; made as small as it stays wrong."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ..evidence import write_atomic
from ..judge import bisect as judge
from ..judge.bisect import Triple
from ..judge.numerics import norm
from ..requirements import Numerics
from . import again, trees
from .result import Numbers
from .walk import Call

_TRIES = 24
_LEAST = 16  # elements: below them a program is small enough to read
_CLEARLY = 10.0
_VIEWS = ("view", "_unsafe_view")
_RESHAPE = "torch.ops.aten.reshape.default"
_SECONDS = 60.0


@dataclass(frozen=True)
class Name:
    """A tensor of the program, where its value is not wanted."""

    text: str


@dataclass(frozen=True)
class Line:
    """``result = func(*args, **kwargs)``; tensors are names."""

    result: str
    func: Any
    args: Any
    kwargs: Any


@dataclass(frozen=True)
class Program:
    """Operators in order, the tensors they start from, and expressions for what is compared, by name."""

    lines: tuple[Line, ...]
    tensors: dict[str, Tensor]
    results: dict[str, str]
    device: str
    backend: str = ""  # of torch.compile; empty: eager
    on_host: frozenset[str] = frozenset()
    adaptive: bool = False  # run so often that adaptive eager fuses it
    updates: dict[str, str] = field(default_factory=dict)  # a compared tensor -> the one that it was before

    def body(self, on_cpu: bool = False) -> str:
        """The function, as text; `on_cpu` for the CPU at the device's precision, which lacks some operators."""
        rows = ["def run(t, device, float64):"]
        for line in self.lines:
            plain, exact = (_call(line, wide, wide or on_cpu) for wide in (False, True))
            if plain == exact:
                rows.append(f"    {line.result} = {plain}")
            else:
                rows += [f"    {line.result} = (", f"        {exact} if float64 else", f"        {plain}", "    )"]
        kept = ", ".join(f'"{name}": {expression}' for name, expression in self.results.items())
        return "\n".join([*rows, f"    return {{{kept}}}"])

    @property
    def stand_ins(self) -> bool:
        """Whether float64 needs mathematics that PyTorch's CPU has under another name."""
        return any(_stand_in(line.func) for line in self.lines)


def _stand_in(func: Any) -> bool:
    return func is not operator.getitem and again.function(func) is not func


def _call(line: Line, wide: bool, on_cpu: bool) -> str:
    if line.func is operator.getitem:
        return f"{_text(line.args[0], wide)}[{line.args[1]}]"
    name = f"torch.ops.{line.func.namespace}.{again.base_name(line.func)}.{line.func._overloadname}"
    if on_cpu and again.base_name(line.func) in _VIEWS:
        name = _RESHAPE  # the CPU's results may lie in another order, of which a view cannot be had
    if on_cpu and _stand_in(line.func):
        name = f"again.function({name})"
    args = list(line.args)
    if again.base_name(line.func) in ("_softmax", "_log_softmax") and len(args) > 2 and wide:
        args[2] = False
    widened = wide and not again.rounds(line.func)
    parts = [_text(value, widened) for value in args]
    parts += [f"{key}={_text(value, widened, key)}" for key, value in line.kwargs.items() if key != "pin_memory"]
    rounded = wide and again.rounds(line.func) and getattr(line.kwargs.get("dtype"), "is_floating_point", True)
    return f"{name}({', '.join(parts)})" + (".double()" if rounded else "")


def _text(value: Any, wide: bool, key: str = "") -> str:
    """`value` as Python source."""
    if isinstance(value, Name):
        return value.text
    if key == "device" or isinstance(value, torch.device):
        return "device"
    if isinstance(value, torch.dtype):
        return "torch.float64" if wide and value.is_floating_point else str(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item, wide) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, (torch.layout, torch.memory_format)):
        return str(value)
    return repr(value)


def of_call(call: Call, wrong: list[Numbers], device: str, optimizer: bool) -> Program:
    """One operator as a program that compares its wrong results."""
    names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    on_host: set[str] = set()
    schema = [a.name for a in call.func._schema.arguments]
    flags = iter(call.on_host)
    for label, value in (*zip(schema, call.args), *call.kwargs.items()):
        for path, tensor in trees.leaves({label: value}):
            here = next(flags, False)
            if id(tensor) not in names:
                name = path.replace("[", "_").replace("]", "")
                names[id(tensor)], tensors[name] = name, tensor
                if here:
                    on_host.add(name)
    before = dict(trees.leaves(again.written(call.func, call.args, call.kwargs)))
    returned = [r.name or f"output{i}" for i, r in enumerate(call.func._schema.returns)]
    results, updates = {}, {}
    for number in wrong:
        if number.tensor in before:
            results[number.tensor] = f't["{names[id(before[number.tensor])]}"]'
            if optimizer:
                updates[number.tensor] = names[id(before[number.tensor])]
        else:
            base, bracket, rest = number.tensor.partition("[")
            place = "" if len(returned) == 1 else f"[{returned.index(base)}]"
            results[number.tensor] = f"r{place}{bracket}{rest}"
    given = trees.mapped([call.args, call.kwargs], lambda t: Name(f't["{names[id(t)]}"]'))
    line = Line("r", call.func, given[0], given[1])
    return Program((line,), tensors, results, device, on_host=frozenset(on_host), updates=updates)


class Bench:
    """Runs a program as its case file will, and judges it."""

    def __init__(self, reduction: int, demand: Numerics, decided_in: str) -> None:
        self.reduction, self.demand, self.decided_in = reduction, demand, decided_in
        self.deadline = time.monotonic() + _SECONDS
        self.tries = 0
        self.observed: dict[str, float] = {}  # relative L2 error of each result in the last run, as the case prints it

    def differs(self, program: Program) -> list[Numbers]:
        """What is wrong with the program's results on the device. Raises what the CPU raises."""
        space: dict[str, Any] = {"torch": torch, "again": again}
        run, on_cpu = (_function(program.body(cpu), space) for cpu in (False, True))
        with torch.no_grad():
            truth = run({n: trees.wide(v) for n, v in program.tensors.items()}, "cpu", True)
            cpu = on_cpu({n: v.clone() for n, v in program.tensors.items()}, "cpu", False)
            device = program.device
            given = {n: v.clone() if n in program.on_host else v.to(device) for n, v in program.tensors.items()}
            if program.backend:
                torch._dynamo.reset()
                run = torch.compile(run, backend=program.backend, dynamic=False)
            results = fused(run, given, device) if program.adaptive else run(given, device, False)
            made = {name: trees.host(value) for name, value in results.items()}
        triples = [
            Triple(
                name=name,
                dtype=trees.dtype_name(value),
                device=trees.array(value),
                truth=trees.array(truth[name]),
                cpu=trees.array(cpu[name]) if name in cpu else None,
                start=trees.array(program.tensors[program.updates[name]]) if name in program.updates else None,
                exact=bool(cpu)
                and all(line.func is not operator.getitem and again.moves(line.func) for line in program.lines),
            )
            for name, value in made.items()
            if not (program.stand_ins and again.unknown(truth[name]))
        ]
        self.observed = {t.name: _observed(t) for t in triples}
        largest = max((t.numel() for t in program.tensors.values()), default=1)
        # One operator decides from the same values everywhere; a later one from values that were rounded before it.
        decided_in = self.decided_in if len(program.lines) > 1 else "float32"
        return judge.wrong(judge.judge(triples, max(1, min(self.reduction, largest)), self.demand, decided_in))

    def still_wrong(self, program: Program, clearly: float) -> bool:
        """Whether a smaller program is still wrong, by so many times its gate; one that cannot run is no case."""
        self.tries += 1
        try:
            return max((n.margin for n in self.differs(program)), default=0.0) >= clearly
        except Exception:
            return False

    def out_of_tries(self) -> bool:
        return self.tries >= _TRIES or time.monotonic() > self.deadline

    def shrink(self, program: Program, wrong: list[Numbers]) -> Program:
        """Halve the program's tensors while it stays wrong, as clearly as it was or ten times over its gate.

        Few elements have small gates, and are no evidence of anything when they are just outside.
        """
        clearly = min(max(n.margin for n in wrong), _CLEARLY)
        progress = True
        while progress and not self.out_of_tries():
            progress = False
            for smaller in _smaller(program):
                if self.out_of_tries():
                    break
                if self.still_wrong(smaller, clearly):
                    program, progress = smaller, True
                    break
        return program


def fused(run: Callable[..., dict[str, Tensor]], given: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """Adaptive eager compiles what it has met before: `run`, eight times in one recording, until that is one program."""
    for _ in range(4):
        made = [run({n: v.clone() for n, v in given.items()}, device, False) for _ in range(8)]
        torch.accelerator.synchronize()
        torch.neuron.adaptive.wait(60.0)
    return made[-1]


def _function(text: str, space: dict[str, Any]) -> Callable[..., dict[str, Tensor]]:
    exec(compile(text, "<case>", "exec"), space)
    return space["run"]


def _observed(triple: Triple) -> float:
    device, truth = triple.device.astype(np.float64), triple.truth.astype(np.float64)
    if device.shape != truth.shape:
        return 0.0
    finite = np.isfinite(device) & np.isfinite(truth)
    return norm(np.where(finite, device - truth, 0.0)) / max(norm(np.where(finite, truth, 0.0)), 1e-300)


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one member of each list, then with half of one dimension."""
    lists = {
        len(a)
        for line in program.lines
        for a in line.args
        if isinstance(a, list) and any(isinstance(x, Name) for x in a)
    }
    length = max(lists, default=0)
    foreach = len(program.lines) == 1 and again.base_name(program.lines[0].func).startswith("_foreach")
    if foreach and length > 1:
        for name, expression in program.results.items():
            place = int(name.split("[")[1].rstrip("]"))
            line = program.lines[0]
            args = [[a[place]] if isinstance(a, list) and len(a) == length else a for a in line.args]
            text = repr([args, line.kwargs])
            kept = {n: v for n, v in program.tensors.items() if f't["{n}"]' in text}
            shown = expression if expression.startswith("t[") else expression.partition("[")[0] + "[0]"
            yield replace(program, lines=(replace(line, args=args),), tensors=kept, results={name: shown})
        return
    if len(program.results) > 1:
        for name, expression in program.results.items():
            yield replace(program, results={name: expression})
    sizes = {(dim, value.shape[dim]) for value in program.tensors.values() for dim in range(min(value.dim(), 3))}
    for dim, size in sorted(sizes, key=lambda item: (item[0], -item[1])):
        if size < 2 or all(value.numel() < _LEAST for value in program.tensors.values()):
            continue
        alike = [n for n, v in program.tensors.items() if v.dim() > dim and v.shape[dim] == size]
        for chosen in dict.fromkeys([tuple(alike), *((name,) for name in alike)]):
            for start, length in ((0, size // 2), (size // 2, size - size // 2)):
                cut = {
                    n: v.narrow(dim, start, length).clone() if n in chosen else v for n, v in program.tensors.items()
                }
                yield replace(program, tensors=cut)


_TEXT = '''"""{title}

{where}
{finding}

python case.py                 exits 1 where it differs from float64, 0 where it does not
DEVICE=cpu python case.py      the same on another device
"""

import os
import sys
from pathlib import Path

{switch}import torch
from safetensors.torch import load_file
{imports}
DEVICE = os.environ.get("DEVICE", "{device}")
ON_HOST = {on_host}  # tensors that stay on the CPU
STRIDES = {strides}  # of tensors whose memory order is not their shape's
LIMITS = {limits}  # {limits_are}


{body}


tensors = load_file(Path(__file__).with_name("tensors.safetensors"))
for name, stride in STRIDES.items():
    tensors[name] = torch.empty_strided(tensors[name].shape, stride, dtype=tensors[name].dtype).copy_(tensors[name])
wide = {{torch.complex64: torch.complex128}}
exact = {{n: v.to(wide.get(v.dtype, torch.float64 if v.is_floating_point() else v.dtype), copy=True) for n, v in tensors.items()}}
given = {{n: v.clone() if n in ON_HOST else v.to(DEVICE) for n, v in tensors.items()}}
with torch.no_grad():
    truth = run(exact, "cpu", True)
    made = {call}(given, DEVICE, False)
wrong = False
for name, right in truth.items():
    got = made[name].cpu()
    if got.shape != right.shape:
        print(f"{{name}}: shape {{tuple(got.shape)}}, not {{tuple(right.shape)}}")
        wrong = True
        continue
    got, right = got.to(torch.float64), right.to(torch.float64)
    finite = got.isfinite() & right.isfinite()
    odd = int((got.isfinite() != right.isfinite()).sum())
    error = torch.where(finite, got - right, 0.0).norm() / max(float(torch.where(finite, right, 0.0).norm()), 1e-300)
    print(f"{{name}}: relative L2 error {{error:.3e}}, at most {{LIMITS[name]:.1e}}; {{odd}} values finite on one side only")
    wrong |= bool(error > LIMITS[name]) or odd > {odd}
sys.exit(int(wrong))
'''


_FUSED = """


def fused(given, device, float64):
    if not hasattr(getattr(torch, device, None), "adaptive"):
        return run(given, device, float64)
    for _ in range(4):  # what came before is compiled; eight calls are recorded together
        made = [run({n: v.clone() for n, v in given.items()}, device, float64) for _ in range(8)]
        torch.accelerator.synchronize()
        torch.neuron.adaptive.wait(60.0)
    return made[-1]"""


def write(
    program: Program,
    wrong: list[Numbers],
    observed: dict[str, float],
    gate: float,
    folder: Path,
    title: str,
    where: str,
) -> None:
    """Write ``case.py``, ``tensors.safetensors`` and ``README.md`` into `folder`.

    `wrong` and `observed` are of the last run; `gate` is the relative L2 error that was allowed before tensors shrank.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limits, halved = {}, False
    for number in wrong:
        if number.tensor not in program.results:
            continue
        seen = observed[number.tensor]
        if number.margin > 1:
            # The gate of the whole tensor, where it leaves no doubt either: few elements have a small gate of their own.
            limit = max(seen / number.margin, gate if seen > 2 * gate else 0.0)
        elif number.nonfinite_mismatches:
            limit = number.allowed_relative_l2
        else:  # a row, a scale or a one-sided error fails within the gate of the whole tensor
            limit, halved = seen / 2, True
        limits[number.tensor] = limit
    results = {name: text for name, text in program.results.items() if name in limits}
    program = replace(program, results=results)
    strides = {n: v.stride() for n, v in program.tensors.items() if not v.is_contiguous()}
    odd = any(n.nonfinite_mismatches for n in wrong)
    text = _TEXT.format(
        title=title,
        where=where,
        finding="\n".join(f"{n.tensor}: {text}" for n in wrong for text in n.findings),
        imports="\nfrom shakedown.readiness.bisect import again  # PyTorch's CPU has no kernel of this name\n"
        if program.stand_ins
        else "",
        device=program.device,
        on_host=repr(sorted(program.on_host)),
        strides=repr(strides),
        limits="{" + ", ".join(f'"{n}": {v!r}' for n, v in limits.items()) + "}",
        limits_are="half of the relative L2 error that was seen: it lies in one row, or has one sign"
        if halved
        else "relative L2 error that rounding explains",
        body=program.body() + (_FUSED if program.adaptive else ""),
        switch='os.environ["SHAKEDOWN_ADAPTIVE"] = "1"  # read when torch is imported\n\n' if program.adaptive else "",
        call="fused"
        if program.adaptive
        else f'(torch.compile(run, backend="{program.backend}", dynamic=False) if DEVICE == "{program.device}" else run)'
        if program.backend
        else "run",
        odd=0 if odd else 10**9,
    )
    save_file({n: v.contiguous().clone() for n, v in program.tensors.items()}, folder / "tensors.safetensors")
    write_atomic(folder / "case.py", text.encode())
    shapes = "\n".join(f"- `{n}`: {trees.dtype_name(v)} {list(v.shape)}" for n, v in program.tensors.items())
    readme = (
        f"# {title}\n\n{where}\n\n`python case.py` runs {len(program.lines)} operator"
        f"{'s' if len(program.lines) > 1 else ''} on `{program.device}` and exits 1 when the result is further from "
        f"float64 than rounding explains. `DEVICE=cpu python case.py` shows what the CPU makes of it.\n\n{shapes}\n"
    )
    write_atomic(folder / "README.md", readme.encode())
