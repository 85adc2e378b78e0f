"""Do two training runs have the same losses, as far as losses can tell?"""

from __future__ import annotations

from .parity_results import PASSING as PASSING
from .parity_results import UNDECIDED as UNDECIDED
from .parity_results import ParityResult as ParityResult
