"""The scan: which files, three walks over each, and the matches put into words."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from ..errors import BadInput, WorkloadError
from ..workload import Source
from . import effort, reach
from .project import Project
from .results import File, Hit, Ignored, Phase, RuleText, Scan, Severity, Skipped
from .rule import Rule
from .rules import EMPTY_IGNORE, NATIVE_SOURCE, RULES
from .visit import Found, Rules, View
from .walk import Finder, Ignore, Module, files_below, imports_of, parse, root_of, third_party

Progress = Callable[[str, float], None]  # (what is read now, share done so far)
_LEARN = 2  # walks before the one that reports: what is known of arguments passes one call further with each
_LARGE = 200  # files; beyond, one walk to learn must do
_BY_ID = {rule.id: rule for rule in RULES}


def _silent(what: str, share: float) -> None:
    return None


def scan(source: Source, progress: Progress = _silent) -> Scan:
    """Scan a workload file and whatever it imports inside its own repository. Imports and runs none of it.

    Raises :class:`WorkloadError` when the workload file itself cannot be read.
    """
    root = root_of(source.path)
    project = Project(root, Finder(root, source.path.parent))
    skipped: list[Skipped] = []
    waiting = [source.path]
    met = {source.path}
    while waiting:
        path = waiting.pop()
        progress(path.name, 0.0)
        module = parse(path, root)
        if isinstance(module, Skipped):
            if path == source.path:
                raise WorkloadError(f"the workload {source.path} cannot be scanned: it {module.reason}")
            skipped.append(module)
            continue
        project.add(module)
        for _, file in imports_of(module, project.finder):
            if file is not None and file not in met:
                met.add(file)
                waiting.append(file)
    return _report(source.name, project, skipped, [], progress)


def scan_folder(folder: Path, progress: Progress = _silent) -> Scan:
    """Scan every Python file below `folder`. Raises :class:`BadInput` when there is none."""
    folder = folder.resolve()
    python, native = files_below(folder)
    if not python and not native:
        raise BadInput(f"{folder} holds no Python file to scan")
    project = Project(folder, Finder(folder, folder))
    skipped: list[Skipped] = []
    for index, path in enumerate(python):
        progress(path.name, 0.5 * index / len(python))
        module = parse(path, folder)
        if isinstance(module, Skipped):
            skipped.append(module)
        else:
            project.add(module)
    return _report(folder.name, project, skipped, native, progress)


def _report(
    subject: str,
    project: Project,
    skipped: list[Skipped],
    native: list[Path],
    progress: Progress,
) -> Scan:
    """Walk, ask the rules, find the phases, take out what comments take out."""
    modules = sorted(project.modules.values(), key=lambda module: module.name)
    rules = Rules(RULES)
    found: dict[str, list[Found]] = {}
    learn = _LEARN if len(modules) <= _LARGE else 1
    for walk in range(learn + 1):
        for index, module in enumerate(modules):
            done = (walk + index / len(modules)) / (learn + 1)
            progress(module.name, 0.5 + 0.5 * done)
            try:
                found[module.name] = View(project, module, rules if walk == learn else None).run()
            except RecursionError:
                if walk == learn:
                    skipped.append(Skipped(path=module.name, reason="is nested too deeply to be walked"))
                found[module.name] = []
    known = reach.phases(project)
    hits: list[Hit] = []
    ignored: list[Ignored] = []
    for module in modules:
        for hit, statement in _hits(module, found[module.name], known):
            comment = _ignored_by(hit, statement, module.ignores)
            if comment:
                ignored.append(Ignored(hit=hit, reason=comment.reason))
            else:
                hits.append(hit)
        hits += _empty_ignores(module)
    for path in native:
        name = path.relative_to(project.root).as_posix()
        hits.append(_hit(NATIVE_SOURCE, name, 1, 1, path.name, "elsewhere", kernel=path.stem))
    hits = _defined_here(hits)
    ignored.sort(key=lambda entry: (entry.hit.path, entry.hit.line, entry.hit.column, entry.hit.rule))
    hits.sort(key=lambda hit: (hit.path, hit.line, hit.column, hit.rule))
    used = {hit.rule for hit in hits} | {entry.hit.rule for entry in ignored}
    texts: dict[str, RuleText] = {name: rule.text() for name, rule in sorted(_BY_ID.items()) if name in used}
    return Scan(
        subject=subject,
        files=[File(path=m.name, sha256=m.sha256, lines=len(m.lines)) for m in modules],
        skipped=sorted(skipped, key=lambda entry: entry.path),
        third_party=third_party(modules, project.finder),
        hits=hits,
        ignored=ignored,
        rules=texts,
        effort=effort.summed(hits),
    )


def _defined_here(hits: list[Hit]) -> list[Hit]:
    """A call of an operator that the workload itself defines is no second change: the definition is the one."""
    defined = {hit.kernel for hit in hits if hit.rule == "custom-op-definition"}
    return [
        hit.model_copy(update={"severity": "note", "effort": "none", "detail": "defined in this workload"})
        if hit.rule == "custom-op-call" and {hit.kernel, hit.kernel.partition("::")[0]} & defined
        else hit
        for hit in hits
    ]


def _hits(module: Module, found: list[Found], known: dict[str, Phase]) -> list[tuple[Hit, tuple[int, int]]]:
    """Matches in words, each place once per rule, with the lines of its statement."""
    results: dict[tuple[str, int, int], tuple[Hit, tuple[int, int]]] = {}
    for match in found:
        node, rule = match.node, match.rule
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # x.\n  cuda(): where the name stands
            line = node.func.end_lineno or line
            column = (node.func.end_col_offset or column) - len(node.func.attr) + 1
        phase = reach.phase_of(match.key, known, match.in_loop)
        if (rule.on_device and phase in reach.ON_HOST) or (rule.only_in_step and phase not in reach.IN_STEP):
            continue
        severity: Severity = match.match.severity or rule.severity
        detail = match.match.detail
        if rule.on_device and phase == "elsewhere":
            severity = "note"
        if match.guarded and rule.kind in ("device", "cuda", "random", "mixed precision", "pinned memory"):
            severity, detail = "note", _with(detail, "only where CUDA is available, so the device skips it")
        if match.optional and rule.kind in ("package", "legacy"):
            severity, detail = "note", _with(detail, "optional: the code goes on without it")
        text = module.lines[line - 1].strip() if line <= len(module.lines) else ""
        hit = _hit(
            rule,
            module.name,
            line,
            column,
            text,
            phase,
            severity=severity,
            detail=detail,
            function=match.function,
            kernel=match.match.kernel,
            code_lines=_evidence_lines(module, node, match.statement),
            grade=match.match.effort,
        )
        results.setdefault((rule.id, line, column), (hit, match.statement))
    return list(results.values())


def _with(detail: str, more: str) -> str:
    return f"{detail}; {more}" if detail else more


def _hit(
    rule: Rule,
    path: str,
    line: int,
    column: int,
    text: str,
    phase: Phase,
    severity: Severity | None = None,
    detail: str = "",
    function: str = "",
    kernel: str = "",
    code_lines: tuple[int, ...] = (),
    grade: effort.Grade | None = None,
) -> Hit:
    return Hit(
        rule=rule.id,
        kind=rule.kind,
        severity=severity or rule.severity,
        effort=grade or rule.effort,
        path=path,
        line=line,
        column=column,
        text=text[:200],
        detail=detail,
        function=function,
        phase=phase,
        in_step=phase in reach.IN_STEP,
        kernel=kernel,
        code_lines=code_lines,
    )


def _evidence_lines(module: Module, node: ast.AST, statement: tuple[int, int]) -> tuple[int, ...]:
    """Lines whose execution shows that `node` ran: its own, or its statement's where its own have no code."""
    first = getattr(node, "lineno", statement[0])
    last = getattr(node, "end_lineno", first) or first
    if isinstance(node, (ast.stmt, ast.ExceptHandler)):
        first, last = statement
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        first = node.func.end_lineno or first  # a chain over several lines: the call, not what it is called on
    own = tuple(line for line in range(first, last + 1) if line in module.code_lines)
    return own or tuple(line for line in range(statement[0], statement[1] + 1) if line in module.code_lines)


def _ignored_by(hit: Hit, statement: tuple[int, int], ignores: list[Ignore]) -> Ignore | None:
    """The comment that takes `hit` out: on a line of its statement, or alone on the line above it."""
    for comment in ignores:
        near = statement[0] <= comment.line <= statement[1] or (comment.alone and comment.line == statement[0] - 1)
        if near and comment.reason and hit.rule in comment.rules:
            return comment
    return None


def _empty_ignores(module: Module) -> list[Hit]:
    """Comments that take nothing out because they give no reason, or name no rule."""
    results = []
    for comment in module.ignores:
        unknown = sorted(comment.rules - set(_BY_ID))
        problem = f"unknown rule {', '.join(unknown)}" if unknown else "" if comment.reason else "it gives no reason"
        if problem:
            text = module.lines[comment.line - 1].strip()
            results.append(_hit(EMPTY_IGNORE, module.name, comment.line, 1, text, "elsewhere", detail=problem))
    return results
