"""Found by a process that is started with this folder on its PYTHONPATH: switches on the faults that it was given."""

import os

from shakedown.readiness.selftest import inject

inject.switch_on(os.environ)
