"""Calls out of PyTorch's operator database, changed at random."""

from __future__ import annotations

import itertools
import re
import warnings
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from .schemas import NUMBERS
from .tensors import DTYPES, filled, laid_out, overlapping, some_dtype, tensors_in, walk

_SKIPPED = re.compile(
    r"^(empty|new_empty|sparse|_refs|to_sparse|jiterator|torch\.ops\.aten\._(flash|efficient)|nn\.functional\.ctc_loss"
    r"|nn\.functional\.embedding_bag|narrow_copy|linalg\.(svd|eig|qr|lu|ldl|eigh|lstsq)|svd|qr|geqrf|lu|eig|pca|ormqr"
    r"|nn\.functional\.fractional|item|tensor_split|histogramdd|nonzero_static|as_strided|segment_reduce|equal)"
)
_SAMPLES = 12


@lru_cache(maxsize=1)
def entries() -> tuple[Any, ...]:
    return tuple(i for i in op_db if not _SKIPPED.match(i.name))


@lru_cache(maxsize=64)
def _samples(number: int, dtype: torch.dtype) -> tuple[Any, ...]:
    info = entries()[number]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return tuple(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), _SAMPLES))
        except Exception:  # no samples of this dtype
            return ()


def call(rng: Random) -> tuple[str, Any, list[Any], dict[str, Any]]:
    """(name, function, args, kwargs) of a sample with up to three changes."""
    while True:
        number = rng.randrange(len(entries()))
        info = entries()[number]
        known = sorted(info.supported_dtypes("cpu"), key=DTYPES.index) if info.dtypes else []
        known = [d for d in known if d in DTYPES]
        if not known:
            continue
        samples = _samples(number, rng.choice(known))
        small = [s for s in samples if sum(t.numel() for t in tensors_in((s.input, s.args, s.kwargs))) <= 4096]
        if not small:
            continue
        sample = rng.choice(small)
        # The samples are kept between calls, so what a call may write is copied.
        args = [walk(v, lambda t: t.detach().clone()) for v in (sample.input, *sample.args)]
        kwargs = {k: walk(v, lambda t: t.detach().clone()) for k, v in sample.kwargs.items()}
        for _ in range(rng.choices((0, 1, 2, 3), (20, 45, 25, 10))[0]):
            args, kwargs = _changed(rng, args, kwargs)
        return f"{info.name}{'.' + info.variant_test_name if info.variant_test_name else ''}", info.op, args, kwargs


def _changed(rng: Random, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    found = tensors_in((args, kwargs))
    if not found or rng.random() < 0.15:
        return [_other_number(rng, a) for a in args], {k: _other_number(rng, v) for k, v in kwargs.items()}
    chosen = rng.choice(found)
    kind = rng.choices(("layout", "dtype", "alias", "overlap", "values", "size", "number"), (30, 10, 6, 6, 25, 13, 10))[
        0
    ]

    def change(tensor: torch.Tensor) -> Any:
        if tensor is not chosen:
            return tensor
        if kind == "layout":
            return laid_out(rng, tensor)
        if kind == "dtype":
            return tensor.to(some_dtype(rng))
        if kind == "alias":
            return rng.choice(found)
        if kind == "overlap":
            return overlapping(rng, rng.choice(found))
        if kind == "values":
            integral = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
            high = int(tensor.abs().max()) + 1 if integral and tensor.numel() and tensor.dtype != torch.bool else None
            return filled(rng, list(tensor.shape), tensor.dtype, high if high and 0 < high < 2**40 else None)
        if kind == "size":
            size = list(tensor.shape)
            if size:
                dim = rng.randrange(len(size))
                size[dim] = rng.choice((0, 1, 2, size[dim] + 1))
                size = size if rng.random() < 0.8 else size[1:]
            return filled(rng, size, tensor.dtype)
        return rng.choice(NUMBERS)

    return walk(args, change), walk(kwargs, change)


def _other_number(rng: Random, value: Any) -> Any:
    if type(value) is float and rng.random() < 0.5:
        return float(rng.choice(NUMBERS))
    if type(value) is int and rng.random() < 0.3:
        return value + rng.choice((-1, 1, 2))
    if type(value) is bool and rng.random() < 0.3:
        return not value
    return value
