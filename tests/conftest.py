"""Executables compiled by the tests are kept beside pytest's own cache, so that a second run starts warm."""

import os
from pathlib import Path

os.environ.setdefault("SHAKEDOWN_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "executables"))
