"""What follows from who measured: departures from the documented baseline, and witnesses of the product that disagree.

Reads ``evidence/<cell>/identity.json``. Nothing here fails a cell: a number that was measured on other ground was measured all
the same, and the reader must know the ground.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import EvidenceError
from ..evidence import Identity, read
from ..plan.baseline import Deviation, Matrix, deviations, matrix, route
from ..requirements import Requirements
from .results import Cell, Finding

FILE = "identity.json"


def findings(root: Path, cells: list[Cell], requirements: Requirements) -> list[Finding]:
    """One finding for each kind of departure, under the first cell that shows it: all cells of a trial share a machine."""
    said: set[tuple[str, str]] = set()
    found: list[Finding] = []
    for cell in cells:
        path = root / "evidence" / cell.id / FILE
        if not path.exists():
            continue
        try:
            identity = read(Identity, path)
        except EvidenceError as error:
            found.append(Finding(word="untested(identity)", cell=cell.id, text=str(error), fails=False))
            continue
        for word, text in texts(identity, matrix()):
            if (word, text) not in said:
                said.add((word, text))
                found.append(Finding(word=word, cell=cell.id, text=text, fails=False))
    return found


def texts(identity: Identity, of: Matrix) -> list[tuple[str, str]]:
    """Word and text of everything that one identity gives cause to say."""
    said = [("unmet-requirement", text) for text in identity.unmet]
    if identity.faults:
        said.append(("faulty-on-purpose", f"the device was made wrong on purpose: {', '.join(identity.faults)}"))
    if identity.family.disagreement:
        said.append(("family-disagreement", identity.family.disagreement))
    if identity.target != "neuron":
        return said
    departures = deviations(identity, of)
    rehearsal = identity.family.word == "rehearsal"
    ground = f"{of.release}, {of.dated:%d %B %Y}"
    for word, grade in (("unsupported-combination", "unsupported"), ("departs-from-baseline", "differs")):
        listed = [_here(deviation) for deviation in departures if deviation.grade == grade]
        if listed and rehearsal:
            text = f"a rehearsal stands on other ground than {ground}: {'; '.join(listed)}"
            said.append(("departs-from-baseline", text))
        elif listed:
            said.append((word, f"compared with {ground}: {'; '.join(listed)}"))
    unknown = [deviation.what for deviation in departures if deviation.grade == "not known"]
    if unknown:
        said.append(("untested(baseline)", f"not known here, so not compared with {ground}: {', '.join(unknown)}"))
    way = route(identity, of)
    if way.documented is not True:
        said.append(("departs-from-baseline", f"way of installing: {way.in_use}: {way.reason}"))
    return said


def _here(deviation: Deviation) -> str:
    return f"{deviation.what} is {deviation.here}, documented is {deviation.documented} [{deviation.source}]"
