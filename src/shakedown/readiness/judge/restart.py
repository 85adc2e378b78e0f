"""Did training go on after a restart as if there had been none?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import evidence as ev
from ..errors import EvidenceError
from ..evidence.restart import Side
from ..requirements import Requirements
from .formats import roundoff
from .numerics import norm
from .results import Cell, Finding


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """One finding for each restart cell: ``resumed``, or ``resume-broken(part)`` with the part that was lost."""
    found = []
    for cell in cells:
        if cell.kind != "restart" or cell.outcome.status != "finished":
            continue
        folder = root / "evidence" / cell.id
        try:
            before, after = ev.read(Side, folder / "before.json"), ev.read(Side, folder / "after.json")
            part, text = _broken(root, before, after, cell.dtype)
        except EvidenceError as error:
            found.append(Finding(word="untested(restart)", cell=cell.id, text=str(error), fails=False))
            continue
        word = f"resume-broken({part})" if part else "resumed"
        found.append(Finding(word=word, cell=cell.id, case=cell.cases[0], text=text, fails=bool(part)))
    return found


def _broken(root: Path, before: Side, after: Side, dtype: str) -> tuple[str, str]:
    """The first thing that is not as it was, and its words; no part when all is well."""
    gap, where = _gap(root, before, after)
    rounding = 4 * roundoff(dtype)
    same = [_close(a, b, rounding) for a, b in zip(before.losses, after.losses, strict=True)]
    effect = (
        f"losses of the {len(before.losses)} updates after it {_said(before.losses)} without and {_said(after.losses)} with "
        f"the restart"
    )
    if before.weights != after.weights:
        lost = [name for name in before.weights if after.weights.get(name) != before.weights[name]]
        return "weights", f"{len(lost)} weights are not those that were saved: {', '.join(lost[:5])}; {effect}"
    if before.optimizer != after.optimizer or before.groups != after.groups:
        lost = [name for name in before.optimizer if after.optimizer.get(name) != before.optimizer[name]]
        what = (
            f"{len(lost)} of {len(before.optimizer)} state tensors differ or are missing" if lost else "settings differ"
        )
        hint = "; the first loss does not show it" if same and same[0] and not all(same) else ""
        return "optimizer", f"{what}; {effect}{hint}"
    if after.elsewhere:
        return "device", f"state is not on its parameter's device: {', '.join(after.elsewhere[:5])}"
    if before.rng != after.rng:
        return "rng", "the state of the random generators is not the one that was saved"
    if before.samples != after.samples:
        return "data", "the batches after the restart are not those that would have come next"
    if not all(same) or gap > rounding:
        return "updates", f"all state was restored, and yet {effect}; {where} differs by {gap:.1e}"
    equal = "bit-equal" if before.tensors_sha256 == after.tensors_sha256 else f"within {gap:.1e}"
    return "", f"weights and optimizer state after {len(before.losses)} updates are {equal}; {effect}"


def _gap(root: Path, before: Side, after: Side) -> tuple[float, str]:
    """Largest relative L2 difference of a tensor after the last update."""
    if before.tensors_sha256 == after.tensors_sha256:
        return 0.0, "nothing"
    one, other = (_tensors(root, side) for side in (before, after))
    worst, name = 0.0, "nothing"
    for key in sorted(one.keys() & other.keys()):
        a, b = one[key].astype(np.float64), other[key].astype(np.float64)
        gap = norm(a - b) / size if a.shape == b.shape and (size := norm(a)) else float(not np.array_equal(a, b))
        if gap > worst:
            worst, name = gap, key
    return worst, name


def _tensors(root: Path, side: Side) -> dict[str, np.ndarray]:
    path = root / side.tensors_file
    try:
        if ev.sha256(path) != side.tensors_sha256:
            raise EvidenceError(f"{path} is not the file that its evidence was written with")
        return ev.load_tensors(path)
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path} cannot be read: {error}") from None


def _close(a: float | None, b: float | None, relative: float) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= max(relative, 1e-6) * max(abs(a), abs(b))


def _said(losses: list[float | None]) -> str:
    return ", ".join("not finite" if x is None else f"{x:.7f}" for x in losses)
