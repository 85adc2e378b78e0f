"""The child process: runs one numbered call after another, and says before each step what it is about to do."""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from dataclasses import asdict
from typing import Any

import torch

from .calls import Outcome, describe, generate, judge, now, run

_ROOM = 6 << 30  # bytes that the process may map beyond what it has after its start


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _ROOM, mapped + _ROOM))


def main(seed: int, only: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print is not an answer

    def say(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    (torch.ones(2, device="neuron") + 1).cpu()
    _limit_memory()
    say(ready=True)
    for line in sys.stdin:
        number = int(line)
        call = generate(seed, number, only)
        for version in range(len(call.versions)):
            started = now()
            say(phase="cpu", name=call.name, call=describe(call, version)[:1500])
            cpu = run(call, version, "cpu")
            say(phase="device")
            device = run(call, version, "neuron")
            try:
                kind, detail = judge(call, cpu, device)
            except Exception as error:
                kind, detail = "only the device raised", f"while it was compared: {type(error).__name__}: {error}"[:300]
            outcome = Outcome(number, call.name, kind, detail, "", now() - started)
            if kind not in ("same", "both raised", "wider"):
                break
        say(outcome={**asdict(outcome), "call": describe(call, version)[:1500]})
        torch.set_default_dtype(torch.float32)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
