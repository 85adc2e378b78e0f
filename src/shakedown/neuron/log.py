"""What the device says to people: log lines, through Python's ``logging``, and what is said only once in a process.

Loggers are ``shakedown.neuron`` and below. Without a setting nothing of theirs is touched: warnings and errors go where the
program's own logging sends them, or to standard error. With ``TORCH_NEURONX_LOG_LEVEL`` or ``TORCH_NEURONX_LOG_FILE`` set they
have a handler of their own. ``TORCH_LOGS="+shakedown.neuron"`` counts before both. The variables are read with the first line.
"""

from __future__ import annotations

import logging
import threading
import warnings

from . import config

NAME = "shakedown.neuron"
_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
_LINE = "%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s"

_lock = threading.Lock()
_said: set[str] = set()
_set_up = False


def logger(part: str = "") -> logging.Logger:
    """The logger ``shakedown.neuron``, or the one of `part` below it (``fallback``, ``adaptive``...)."""
    if not _set_up:
        _configure()
    return logging.getLogger(f"{NAME}.{part}" if part else NAME)


def _configure() -> None:
    global _set_up
    with _lock:
        if _set_up:
            return
        ours, file = logging.getLogger(NAME), config.LOG_FILE()
        level = _LEVELS[config.LOG_LEVEL()]
        if not ours.handlers and ours.level == logging.NOTSET:  # else the program, or TORCH_LOGS, has set it up
            ours.setLevel(level)
            if file is not None or config.LOG_LEVEL.set_by() is not None:
                handler = logging.StreamHandler() if file is None else logging.FileHandler(file, delay=True)
                handler.setFormatter(logging.Formatter(_LINE))
                ours.addHandler(handler)
                ours.propagate = False  # each line once
        _set_up = True


def first(key: str) -> bool:
    """Whether nobody has asked this of `key` before in this process: for what is said once."""
    with _lock:
        if key in _said:
            return False
        _said.add(key)
        return True


def warn_once(text: str, category: type[Warning] = UserWarning, *, key: str | None = None, stacklevel: int = 2) -> None:
    """A warning that comes once in a process for each `key` (None: the text). `stacklevel` counts from the caller."""
    if first(f"warning: {text if key is None else key}"):
        warnings.warn(text, category, stacklevel=stacklevel + 1)


def forget() -> None:
    """Have everything said again, and read the settings again."""
    global _set_up
    with _lock:
        _said.clear()
        ours = logging.getLogger(NAME)
        for handler in [h for h in ours.handlers if h.formatter is not None and h.formatter._fmt == _LINE]:
            ours.removeHandler(handler)
            handler.close()
            ours.propagate = True
        if not ours.handlers:
            ours.setLevel(logging.NOTSET)
        _set_up = False
