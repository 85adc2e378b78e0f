"""Which device: whatever names CUDA, or chooses a device by asking for it."""

from __future__ import annotations

import ast
import re

from ..kinds import keyword, literal
from ..rule import Check, Match, Rule
from ..syntax import MOVES
from ..visit import CUDA_TESTS, View

ACCELERATOR = "PyTorch documentation, torch.accelerator; AWS article on TorchNeuron 2.33: such code works unchanged"
_CUDA = re.compile(r"cuda(:\d+)?$")


def is_cuda(node: ast.AST | None) -> bool:
    return bool(_CUDA.match(str(literal(node)))) if isinstance(node, ast.Constant) else False


def _device_string(node: ast.AST, view: View) -> Match | None:
    """A string that can only be a CUDA device, where it is not a choice offered to a user."""
    if isinstance(node, ast.JoinedStr):
        first = literal(node.values[0]) if node.values else None
        return Match() if isinstance(first, str) and first.startswith("cuda:") else None
    if not is_cuda(node):
        return None
    parent = view.parent()
    if isinstance(parent, ast.IfExp) and view.tests_cuda(parent.test):
        return None  # the test is reported
    if isinstance(parent, (ast.List, ast.Tuple, ast.Set)):
        outer = view.parent(2)
        key = isinstance(outer, ast.Dict) and parent in outer.keys
        return None if key or not all(is_cuda(item) for item in parent.elts) else Match()
    if isinstance(parent, ast.Dict) and node in parent.keys:
        return None
    if isinstance(parent, ast.JoinedStr):
        return None
    return Match()


def _device_compare(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Compare)
    sides = [node.left, *node.comparators]
    for side in sides:
        if isinstance(side, (ast.Tuple, ast.List, ast.Set)):
            sides += side.elts if all(isinstance(item, ast.Constant) for item in side.elts) else []
    found = [side for side in sides if is_cuda(side)]
    for side in found:
        view.claim(side)
    return Match() if found else None


def _startswith_cuda(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Call)
    if node.args and is_cuda(node.args[0]):
        view.claim(node.args[0])
        return Match()
    return None


def _argument_present(name: str, *harmless: object) -> Check:
    def check(node: ast.AST, view: View) -> Match | None:
        assert isinstance(node, ast.Call)
        value = keyword(node, name)
        if value is None or (isinstance(value, ast.Constant) and value.value in harmless):
            return None
        if isinstance(value, ast.Name):
            return None  # a variable: where it gets its value is reported
        view.claim(value)
        return Match(detail=f"{name}={ast.unparse(value)}"[:80])

    return check


def _map_location(node: ast.AST, view: View) -> Match | None:
    assert isinstance(node, ast.Call)
    value = keyword(node, "map_location")
    if value is None or not any(
        is_cuda(n) or (isinstance(n, ast.Constant) and str(n.value).startswith("cuda:")) for n in ast.walk(value)
    ):
        return None
    view.claim(value)
    return Match(detail=ast.unparse(value)[:80])


def _method_without_arguments_of_others(node: ast.AST, view: View) -> Match | None:
    """``x.cuda()``, ``model.cuda(0)``: the name is torch's alone."""
    assert isinstance(node, ast.Call)
    for argument in node.args:
        view.claim(argument)
    return Match()


def _cuda_type(node: ast.AST, view: View) -> Match | None:
    value = literal(node)
    return Match(detail=value) if isinstance(value, str) and re.fullmatch(r"torch\.cuda\.\w+Tensor", value) else None


_FACTORIES = (
    "arange",
    "zeros",
    "ones",
    "full",
    "empty",
    "eye",
    "linspace",
    "rand",
    "randn",
    "randint",
)


def _factory(node: ast.AST, view: View) -> Match | None:
    """A tensor that is made without a device, and not moved where it is made."""
    call = view.call_of(node)
    if call is None or any(k.arg in ("device", "out", None) for k in call.keywords) or view.moved():
        return None
    for distance in range(2, len(view.above)):
        above = view.parent(distance)
        if isinstance(above, ast.Attribute) and above.attr in MOVES:
            return None
        if not isinstance(above, (ast.Attribute, ast.Call, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.keyword)):
            break
    return Match()


RULES: tuple[Rule, ...] = (
    Rule(
        id="cuda-device",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for='the string "cuda" or "cuda:N", wherever it is used as a device',
        why="There is no CUDA device; PyTorch raises at the first tensor that is put there.",
        source="PyTorch's behaviour without CUDA",
        instead="take the device from the outside, or from torch.accelerator.current_accelerator()",
        nodes=(ast.Constant, ast.JoinedStr),
        check=_device_string,
    ),
    Rule(
        id="cuda-method",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for=".cuda() on a tensor or module",
        why="It names the device in the code; PyTorch raises where CUDA is not compiled in.",
        source="PyTorch's behaviour without CUDA",
        instead=".to(device)",
        methods=("cuda",),
        check=_method_without_arguments_of_others,
    ),
    Rule(
        id="cuda-available",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.cuda.is_available() or torch.cuda.device_count(), by which a program chooses its device",
        why="It is false on Trainium, so that the program silently runs on the CPU, and is right and slow.",
        source=ACCELERATOR,
        instead="torch.accelerator.is_available(), torch.accelerator.current_accelerator()",
        names=CUDA_TESTS,
    ),
    Rule(
        id="cuda-compare",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for='a comparison with "cuda", such as device.type == "cuda"',
        why="It is never true on Trainium: what depends on it is silently left out.",
        source="PyTorch's device types",
        instead='device.type != "cpu", or a test for what the branch really needs',
        nodes=(ast.Compare,),
        check=_device_compare,
    ),
    Rule(
        id="cuda-prefix",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for='text.startswith("cuda")',
        why="It is never true on Trainium: what depends on it is silently left out.",
        source="PyTorch's device types",
        instead='torch.device(text).type != "cpu"',
        methods=("startswith",),
        check=_startswith_cuda,
    ),
    Rule(
        id="cuda-attribute",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for="tensor.is_cuda",
        why="It is false for a tensor on Trainium, so the branch for the accelerator is not taken.",
        source="PyTorch's device types",
        instead='tensor.device.type != "cpu"',
        nodes=(ast.Attribute,),
        check=lambda node, view: Match() if getattr(node, "attr", "") == "is_cuda" else None,
    ),
    Rule(
        id="map-location",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for="map_location with a CUDA device",
        why="Loading raises where CUDA is not available.",
        source="PyTorch documentation, torch.load",
        instead='map_location="cpu", and then move the module',
        nodes=(ast.Call,),
        check=_map_location,
    ),
    Rule(
        id="factory-without-device",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.arange, zeros, ones... in the step without device=, and not moved where they are made",
        why="They are made on the CPU: mixing them with tensors of the device raises.",
        source="torch-neuronx development snapshot: a CPU tensor among device tensors raises, zero-dimensional ones do not",
        instead="device=x.device, or torch.zeros_like and its companions",
        names=tuple(f"torch.{name}" for name in _FACTORIES),
        check=_factory,
        only_in_step=True,
    ),
    Rule(
        id="device-map",
        kind="device",
        severity="changes needed",
        effort="small",
        looks_for="device_map= (Transformers, Accelerate)",
        why="Placement by Accelerate chooses among the devices it knows and may split a model between device and host.",
        source="Hugging Face Accelerate, device maps",
        instead="leave it out and call .to(device) once; for models larger than one device use FSDP2 or tensor parallelism",
        nodes=(ast.Call,),
        check=_argument_present("device_map", None),
    ),
    Rule(
        id="cuda-types",
        kind="device",
        severity="changes needed",
        effort="trivial",
        looks_for="torch.cuda.FloatTensor and the other legacy tensor types, also as strings",
        why="They exist on CUDA only.",
        source="PyTorch documentation, torch.Tensor",
        instead="torch.empty(..., dtype=..., device=device)",
        names=tuple(
            f"torch.cuda.{name}Tensor"
            for name in ("Float", "Half", "Double", "Long", "Int", "Bool", "Byte", "BFloat16")
        ),
        nodes=(ast.Constant,),
        check=lambda node, view: _cuda_type(node, view) if isinstance(node, ast.Constant) else Match(),
    ),
)
