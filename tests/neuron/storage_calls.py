"""Calls every method of a device storage with arguments of many kinds, printing each before it is made.

Run by ``test_storage.py`` in a process of its own, since what it looks for is a crash of the interpreter.
"""

import contextlib
import sys

import torch
from torch.storage import TypedStorage

# These take raw C++ addresses as integers, on every device: a wrong number crashes PyTorch itself.
RAW_ADDRESSES = {"_expired", "_free_weak_ref", "_new_with_weak_ptr", "_set_cdata"}
SPECIAL = (
    "__getitem__",
    "__setitem__",
    "__len__",
    "__iter__",
    "__repr__",
    "__eq__",
    "__copy__",
    "__deepcopy__",
    "__reduce__",
    "__sizeof__",
)


def storage() -> torch.UntypedStorage:
    return torch.arange(4.0).to("neuron").untyped_storage()


ARGUMENTS = [
    lambda: (),
    lambda: (0,),
    lambda: (64,),
    lambda: ("cpu",),
    lambda: (torch.device("neuron"),),
    lambda: (slice(0, 2),),
    lambda: (slice(0, 2), 3),
    lambda: (0, 5),
    lambda: (torch.float32,),
    lambda: ({},),
    lambda: (storage(),),
    lambda: (torch.zeros(4).untyped_storage(),),
    lambda: (sys.stdout, False, True, 4),
]
CONSTRUCTORS = [
    lambda: torch.UntypedStorage(16, device="neuron"),
    lambda: torch.UntypedStorage([1, 2], device="neuron"),
    lambda: torch.UntypedStorage(0, device=torch.device("neuron:0")),
    lambda: torch.UntypedStorage(device="neuron"),
    lambda: torch.UntypedStorage._new_shared(16, device="neuron"),
    lambda: torch.UntypedStorage(8).to(device="neuron"),
    lambda: TypedStorage(4, device="neuron", dtype=torch.float32),
    lambda: torch.empty(3, device="neuron").set_(torch.UntypedStorage(32, device="neuron"), 1, (2, 2)),
    lambda: torch.empty(3, device="neuron").set_(),
    lambda: torch.ones(3, device="neuron").resize_(40),
    lambda: torch.ones(3, device="neuron").as_strided((9,), (1,)),
    lambda: torch.ones(3, device="neuron").share_memory_(),
    lambda: torch.ones(3, device="neuron").pin_memory(),
    lambda: torch.from_dlpack(torch.ones(3, device="neuron")),
    lambda: torch.ones(3, device="neuron").numpy(),
    lambda: torch.empty(3, device="neuron", pin_memory=True),
]


def use(made: object) -> None:
    """What a user does next with a storage or tensor that came back."""
    if not isinstance(made, (torch.UntypedStorage, TypedStorage, torch.Tensor)):
        return
    for action in (
        repr,
        lambda s: s[0],
        lambda s: s.nbytes(),
        bytes,
        lambda s: s.cpu(),
        lambda s: s.fill_(1),
        lambda s: s.clone(),
    ):
        with contextlib.suppress(Exception):
            action(made)


def main() -> None:
    jobs = [("constructor", str(i), make, tuple) for i, make in enumerate(CONSTRUCTORS)]
    for wrap in (lambda s: s, lambda s: TypedStorage(wrap_storage=s, dtype=torch.float32, _internal=True)):
        kind = type(wrap(storage()))
        for name in dir(kind):
            if (name.startswith("__") and name not in SPECIAL) or name in RAW_ADDRESSES:
                continue
            for arguments in ARGUMENTS:
                target = wrap(storage())
                jobs.append((kind.__name__, name, getattr(target, name), arguments))
    for kind, name, call, arguments in jobs:
        given = arguments()
        print(kind, name, repr(given)[:60].replace("\n", " "), flush=True)
        try:
            made = call(*given) if callable(call) else call
        except Exception:
            continue
        use(made)
    print("survived", len(jobs), flush=True)


if __name__ == "__main__":
    main()
