"""What changed between two records: verdicts first, since they decide; then numbers, paths and costs, side by side.

Nothing is measured here and nothing is judged again: both records are taken as sealed. Imports neither torch nor JAX.
"""

from .baseline import Planned, checked
from .results import Comparison, Effect
from .sides import Opened, opened, unlike
from .whole import compare, effect

__all__ = ["Comparison", "Effect", "Opened", "Planned", "checked", "compare", "effect", "opened", "unlike"]
