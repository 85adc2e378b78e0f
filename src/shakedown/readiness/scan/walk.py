"""From a path to parsed modules: which files belong to the workload, and what each binds at which name.

Nothing is imported. An import is followed when it resolves to a file inside the workload's own repository; packages that
are installed are only named. A file that cannot be read or parsed is listed with the reason.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..workload import BUILT_IN
from .results import Skipped

MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
FOREIGN = {"site-packages", "dist-packages", "node_modules", "__pycache__", "venv"}
RESULTS = {"build", "dist"}  # of a build; a package of that name is still followed when it is imported
NATIVE_SOURCES = {".cu", ".cuh", ".hip"}
LARGEST = 4_000_000  # bytes: larger files are generated, and would take minutes
_IGNORE = re.compile(r"#\s*shakedown:\s*ignore\[([\w\s,-]+)\]\s*(.*)")


@dataclass(frozen=True)
class Ignore:
    """``# shakedown: ignore[rule, rule] reason``, on a line. ``alone``: nothing but the comment stands there."""

    line: int
    rules: frozenset[str]
    reason: str
    alone: bool


@dataclass
class Class:
    """A class of the workload: its methods by name, and its bases as dotted names once somebody has asked for them."""

    key: str
    node: ast.ClassDef
    bases: list[str] | None = None
    methods: set[str] = field(default_factory=set)


@dataclass
class Module:
    """A parsed file. ``functions`` and ``classes`` go by qualified name, ``top`` binds names to dotted names."""

    path: Path
    name: str
    sha256: str
    tree: ast.Module
    lines: list[str]
    ignores: list[Ignore]
    top: dict[str, str] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    code_lines: frozenset[int] = frozenset()


def root_of(path: Path) -> Path:
    """The folder that a workload's own code lies in: its repository's, or its own where it is in none."""
    folder = path.resolve().parent
    if folder == BUILT_IN:
        return folder
    for ancestor in (folder, *folder.parents):
        if ancestor in (Path.home(), Path(ancestor.anchor)) or ancestor.name in FOREIGN:
            break
        if any((ancestor / marker).exists() for marker in MARKERS):
            return ancestor
    return folder


_HERE = Path(__file__).resolve().parents[2]
# The device is a package to a workload, even to one that lies in the repository of the device (examples/).
_DEVICE = (_HERE / "neuron", _HERE / "devices.py", _HERE / "nki.py", _HERE.with_name("torch_neuronx.py"))


class Finder:
    """Finds the file of an import, inside `root` only. ``first`` is the folder that the workload is started in."""

    def __init__(self, root: Path, first: Path) -> None:
        self.root, self.first = root, first
        self._found: dict[tuple[Path, str], Path | None] = {}

    def find(self, dotted: str, level: int, importer: Path) -> Path | None:
        """The file that ``import dotted`` in `importer` means; `level` counts the dots of a relative import."""
        if level:
            parents = (importer.parent, *importer.parent.parents)
            return self._in(parents[level - 1], dotted) if level <= len(parents) else None
        found = self._in(self.first, dotted)
        if found is not None or dotted.split(".")[0] in sys.stdlib_module_names:
            return found
        for folder in (importer.parent, *importer.parent.parents, self.root / "src"):
            if not folder.is_relative_to(self.root):
                continue
            found = self._in(folder, dotted)
            if found is not None:
                return found
        return None

    def _in(self, folder: Path, dotted: str) -> Path | None:
        key = (folder, dotted)
        if key not in self._found:
            stem = folder.joinpath(*dotted.split(".")) if dotted else folder
            candidates = [stem / "__init__.py"] + ([stem.with_name(stem.name + ".py")] if dotted else [])
            self._found[key] = next((p for p in candidates if self.mine(p) and p.is_file()), None)
        return self._found[key]

    def mine(self, path: Path) -> bool:
        """Whether `path` is the repository's own code and not an environment that lies in it, or the rehearsal's device."""
        if not path.is_relative_to(self.root) or any(path.is_relative_to(part) for part in _DEVICE):
            return False
        return not FOREIGN & set(path.relative_to(self.root).parts[:-1])


def files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Python files and CUDA sources of a repository, without environments, build results and hidden folders."""
    python: list[Path] = []
    native: list[Path] = []
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in FOREIGN | RESULTS
            and not name.startswith(".")
            and not (Path(where, name) / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            suffix = Path(name).suffix
            if suffix == ".py":
                python.append(Path(where, name))
            elif suffix in NATIVE_SOURCES:
                native.append(Path(where, name))
    return python, native


def parse(path: Path, root: Path) -> Module | Skipped:
    """Read one file; its bindings are filled in by :func:`bind`."""
    name = path.relative_to(root).as_posix()
    try:
        content = path.read_bytes()
        if len(content) > LARGEST:
            return Skipped(path=name, reason=f"has {len(content):,} bytes, more than a person writes")
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes in strings and the like are the workload's business
            tree = ast.parse(text)
            code_lines = frozenset(_lines_with_code(compile(tree, name, "exec", dont_inherit=True)))
    except OSError as error:
        return Skipped(path=name, reason=f"cannot be read: {error.strerror}")
    except SyntaxError as error:
        return Skipped(path=name, reason=f"is not Python 3: SyntaxError in line {error.lineno}: {error.msg}")
    except (UnicodeDecodeError, LookupError) as error:
        return Skipped(path=name, reason=f"is not text: {error}")
    except (ValueError, RecursionError, MemoryError) as error:
        return Skipped(path=name, reason=f"cannot be parsed: {type(error).__name__}: {error}"[:200])
    ignores = list(_ignores(text)) if "shakedown:" in text else []
    return Module(
        path=path,
        name=name,
        sha256=hashlib.sha256(content).hexdigest(),
        tree=tree,
        lines=text.splitlines(),
        ignores=ignores,
        code_lines=code_lines,
    )


def _lines_with_code(code: object) -> Iterator[int]:
    """Lines that the interpreter reports when they run."""
    for _, _, line in code.co_lines():  # type: ignore[attr-defined]
        if line:
            yield line
    for constant in code.co_consts:  # type: ignore[attr-defined]
        if hasattr(constant, "co_lines"):
            yield from _lines_with_code(constant)


def _ignores(text: str) -> Iterator[Ignore]:
    """The comments that take findings out; the same words inside a string are not comments."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (found := _IGNORE.search(token.string)):
            rules = frozenset(part.strip() for part in found[1].split(",") if part.strip())
            yield Ignore(token.start[0], rules, found[2].strip(), token.line.lstrip().startswith("#"))


def imports_of(module: Module, finder: Finder) -> Iterator[tuple[str, Path | None]]:
    """Every import of `module`: its dotted name, and its file where that is the workload's own."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")  # importing a.b.c runs a and a.b as well
                for count in range(1, len(parts) + 1):
                    yield alias.name, finder.find(".".join(parts[:count]), 0, module.path)
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            dots = "." * node.level
            for count in range(1, len(parts) + 1):
                prefix = ".".join(parts[:count])
                yield f"{dots}{node.module or ''}", finder.find(prefix, node.level, module.path)
            for alias in node.names:
                inner = finder.find(
                    f"{node.module}.{alias.name}" if node.module else alias.name, node.level, module.path
                )
                if inner is not None:
                    yield alias.name, inner
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in {"import_module", "__import__"} and isinstance(name, str) and not name.startswith("."):
                yield name, finder.find(name, 0, module.path)


def third_party(modules: Iterable[Module], finder: Finder) -> list[str]:
    """Top-level names of the packages that `modules` import and that are neither theirs nor Python's."""
    names: dict[str, bool] = {}  # whether any part of it is the workload's own: `lib` in `import lib.local` is no file
    for module in modules:
        for name, file in imports_of(module, finder):
            names[name] = names.get(name, False) or file is not None
    foreign = {name.split(".")[0] for name, own in names.items() if not own and name.strip(".")}
    return sorted(name for name in foreign - sys.stdlib_module_names if name)


def local(module_name: str, qualname: str = "") -> str:
    """The dotted name of something that the workload itself defines."""
    return f"{module_name}::{qualname}"


def import_bindings(
    node: ast.Import | ast.ImportFrom, finder: Finder, importer: Path, root: Path
) -> Iterator[tuple[str, str]]:
    """What an import statement binds: (name, dotted name)."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            full = alias.name if alias.asname else alias.name.split(".")[0]
            file = finder.find(full, 0, importer)
            bound = alias.asname or full
            yield bound, local(file.relative_to(root).as_posix()) if file else full
        return
    base = finder.find(node.module or "", node.level, importer)
    for alias in node.names:
        inner = finder.find(f"{node.module}.{alias.name}" if node.module else alias.name, node.level, importer)
        bound = alias.asname or alias.name
        if inner is not None:
            yield bound, local(inner.relative_to(root).as_posix())
        elif base is not None:
            yield bound, local(base.relative_to(root).as_posix(), alias.name)
        elif not node.level:
            yield bound, f"{node.module}.{alias.name}"
