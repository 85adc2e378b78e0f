"""A sample of PyTorch's operator database on the device: every seventh entry, forward and backward, against the CPU.

The whole of it is a command: ``python -m tests.neuron.opinfo --all --dtype float32 bfloat16 int64``.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from .opinfo import check, samples

# Where a difference from the CPU is legal: the reason, for all dtypes.
LEGAL = {
    "sort": "which of several equal elements comes first is not specified",
    "argsort": "which of several equal elements comes first is not specified",
    "msort": "which of several equal elements comes first is not specified",
    "topk": "which of several equal elements is chosen is not specified",
    "kthvalue": "which of several equal elements is chosen is not specified",
    "mode": "which of several equal elements is pointed to is not specified",
}
OTHER_DTYPES = (torch.bfloat16, torch.int64, torch.bool, torch.complex64)
CASES = [
    (info, dtype)
    for number, info in enumerate(op_db[::7])
    for dtype in (torch.float32, OTHER_DTYPES[number % len(OTHER_DTYPES)])
    if dtype in info.supported_dtypes("cpu") and info.name not in LEGAL
]


def label(case: object) -> str:
    return str(case).removeprefix("torch.") if isinstance(case, torch.dtype) else getattr(case, "full_name", str(case))


@pytest.mark.parametrize(("info", "dtype"), CASES, ids=label)
def test_samples_agree_with_the_cpu(info, dtype):
    gradients = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = [
            check(info, dtype, s, gradients=gradients) for s in samples(info, dtype, gradients=gradients, limit=2)
        ]
    wrong = [o.error for o in outcomes if o.error and not o.error.startswith("skip")]
    assert not wrong, "\n".join(wrong)
