"""Stage 7: one versioned, self-contained artefact. It can be checked and judged again without the target, or torch.

``record.json`` names every file of the run by size and SHA-256 and ends in a seal, the hash of all its other fields: one
digest over everything. The seal shows damage and careless edits, not a determined forger; who signs records signs this hash.

A record may come from anybody. :func:`load` reads it as such: limits, strict JSON, no link, no name that leads out of its
directory, and no pickle anywhere. Records of older versions are upgraded, and say what their version did not hold.

:mod:`.document` is what a record consists of, :mod:`.sealing` makes one, :mod:`.reading` and :mod:`.upgrade` read it,
:mod:`.verifying` checks it, :mod:`.schemas` publishes its form.
"""

from .document import LABELS, SCHEMA, FileEntry, Record
from .reading import NAME, load
from .sealing import label_of, seal, seal_of
from .verifying import Verification, verify

__all__ = [
    "LABELS",
    "NAME",
    "SCHEMA",
    "FileEntry",
    "Record",
    "Verification",
    "label_of",
    "load",
    "seal",
    "seal_of",
    "verify",
]
