"""The compiling process: ``python -m shakedown.neuron.modes.adaptive.worker``. Programs in, executables' bytes out.

It compiles with the settings of the process that started it and ends with its input, or when nobody reads its answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

import cloudpickle


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    with contextlib.suppress(OSError):
        os.nice(10)

    from ... import runtime
    from . import wire
    from .fusion import fuse

    runtime.start()
    while True:
        try:
            request = wire.receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            name, (members, *wired), signature, donate = cloudpickle.loads(request)
            program = fuse(name, [cloudpickle.loads(member) for member in members], *wired)
            made = runtime.compiled_segment(program, program.name, signature, donate)
            answer, payload = {"note": made.note, "digest": made.digest}, made.payload
        except Exception as error:
            answer, payload = {"error": f"{type(error).__name__}: {error}"}, b""
        try:
            wire.send(answers, json.dumps(answer).encode())
            wire.send(answers, payload)
        except BrokenPipeError:
            os._exit(0)  # nobody waits for it any more; closing the pipe in order would complain once more


if __name__ == "__main__":
    main()
