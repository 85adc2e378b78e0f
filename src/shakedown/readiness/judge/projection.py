"""From counted programs and published figures to a projection: a pure function."""

from __future__ import annotations

from .projected import (
    BatchLimit as BatchLimit,
)
from .projected import (
    Bound as Bound,
)
from .projected import (
    CaseProjection as CaseProjection,
)
from .projected import (
    Projection as Projection,
)
