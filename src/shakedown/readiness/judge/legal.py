"""Legal answers of operators that leave an order open: which of equal values comes first, which of several writes is last.

Arguments are a call's own, by the names of its schema, with tensors as NumPy arrays (half precisions widened).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .contracts import Promise, base_name, same

Arrays = list[np.ndarray]
_EXTREMES = ("argmax", "argmin")
_OVERWRITES = ("scatter", "index_put", "index_copy")
_ACCUMULATES = Promise("reduction", "adds where it writes, and the order of additions is open")
_REPEATED = Promise("order-dependent", "writes one place several times, and which write is last is open")


def refined(operator: str, arguments: dict[str, Any], kept: Promise, floating: bool) -> Promise:
    """The contract of this very call, where it depends on the arguments: accumulation, or places that repeat."""
    name = base_name(operator)
    if name not in _OVERWRITES:
        return kept
    if arguments.get("accumulate") or arguments.get("reduce"):
        return _ACCUMULATES if floating else kept
    places, _ = _writes(name, arguments)
    return _REPEATED if np.unique(places).size < places.size else kept


def illegal(operator: str, arguments: dict[str, Any], index: int, cpu: Arrays, device: Arrays) -> np.ndarray:
    """Elements of the device's result `index` that no legal answer has. Raises KeyError for an operator without a rule."""
    name, answer = base_name(operator), device[index]
    if answer.shape != cpu[index].shape:
        return np.ones(answer.shape, bool)
    if name in _OVERWRITES:
        return _not_a_candidate(name, arguments, answer)
    if name in _EXTREMES:
        return _not_extreme(arguments, cpu[index], answer)
    if name == "argsort":
        axis = int(arguments.get("dim", -1))
        return _not_the_value(arguments["self"], axis, cpu[index], answer) | _repeats(answer, axis)
    if name.startswith("max_pool"):
        spatial = 3 if "3d" in name else 2
        flat, place = (_flattened(value, spatial) for value in (arguments["self"], answer))
        expected = cpu[0].reshape(place.shape)
        return _gathered_differs(flat, -1, place, expected).reshape(answer.shape)
    if name in ("sort", "topk", "max", "min", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin"):
        axis = int(arguments.get("dim", -1))
        keep = bool(arguments.get("keepdim")) or name in ("sort", "topk", "cummax", "cummin")
        place = answer if keep or answer.ndim == arguments["self"].ndim else np.expand_dims(answer, axis)
        wrong = _gathered_differs(arguments["self"], axis, place, cpu[0].reshape(place.shape))
        if name in ("sort", "topk"):
            wrong |= _repeats(place, axis)
        return wrong.reshape(answer.shape)
    raise KeyError(name)


def order_matters(operator: str, arguments: dict[str, Any]) -> str:
    """What in these arguments leaves the answer open, in words; empty where only one answer is legal."""
    name = base_name(operator)
    if name in _OVERWRITES:
        if arguments.get("accumulate") or arguments.get("reduce"):
            return ""
        places, _ = _writes(name, arguments)
        again = places.size - np.unique(places).size
        return f"{again} of {places.size} writes go where another one goes" if again else ""
    values = arguments.get("self")
    if not isinstance(values, np.ndarray) or not values.size or name not in (*_EXTREMES, "argsort", "sort", "topk"):
        return ""
    if values.ndim == 0 or arguments.get("stable"):
        return ""
    rows = values.reshape(1, -1) if arguments.get("dim") is None and name in _EXTREMES else values
    axis = -1 if rows is not values else int(arguments.get("dim", -1))
    rows = np.moveaxis(rows, axis, -1).reshape(-1, rows.shape[axis])
    if name in _EXTREMES:
        extreme = rows.max(1, keepdims=True) if name == "argmax" else rows.min(1, keepdims=True)
        tied = (rows == extreme).sum(1) > 1
        what = "share their extreme value among several places"
    elif name == "topk":
        ordered = np.sort(rows, axis=1)[:, ::-1] if arguments.get("largest", True) else np.sort(rows, axis=1)
        kept = ordered[:, : int(arguments["k"]) + 1]
        tied = (kept[:, 1:] == kept[:, :-1]).any(1)
        what = "have equal values among the first k, or at its end"
    else:
        ordered = np.sort(rows, axis=1)
        tied = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        what = "hold equal values"
    return f"{int(tied.sum())} of {tied.size} rows {what}" if tied.any() else ""


def _flattened(values: np.ndarray, last: int) -> np.ndarray:
    """The last so many dimensions as one."""
    return values.reshape(*values.shape[:-last], math.prod(values.shape[-last:]))


def _gathered_differs(values: np.ndarray, axis: int, place: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if values.ndim == 0:
        return place != 0
    inside = (place >= 0) & (place < values.shape[axis])
    found = np.take_along_axis(values, np.where(inside, place, 0).astype(np.int64), axis=axis)
    return ~inside | ~same(found, expected)


def _not_the_value(values: np.ndarray, axis: int, expected_place: np.ndarray, place: np.ndarray) -> np.ndarray:
    if values.ndim == 0:
        return place != 0
    expected = np.take_along_axis(values, expected_place.astype(np.int64), axis=axis)
    return _gathered_differs(values, axis, place, expected)


def _repeats(place: np.ndarray, axis: int) -> np.ndarray:
    """Places that occur a second time along `axis`: an order names each element once."""
    if place.ndim == 0:
        return np.zeros((), bool)
    moved = np.moveaxis(place, axis, -1)
    order = np.argsort(moved, axis=-1, kind="stable")
    ordered = np.take_along_axis(moved, order, axis=-1)
    again = np.zeros(moved.shape, bool)
    np.put_along_axis(again, order[..., 1:], ordered[..., 1:] == ordered[..., :-1], axis=-1)
    return np.moveaxis(again, -1, axis)


def _not_extreme(arguments: dict[str, Any], expected: np.ndarray, place: np.ndarray) -> np.ndarray:
    values, axis = arguments["self"], arguments.get("dim")
    if axis is None:
        return _not_the_value(values.reshape(-1), 0, expected.reshape(1), place.reshape(1)).reshape(place.shape)
    wide = place if place.ndim == values.ndim else np.expand_dims(place, axis)
    return _not_the_value(values, int(axis), expected.reshape(wide.shape), wide).reshape(place.shape)


def _writes(name: str, arguments: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Flat places in the result that a call writes, and the value that each write brings."""
    target = arguments["self"]
    numbered = np.arange(target.size).reshape(target.shape)
    if name == "scatter":
        index, source = arguments["index"], arguments.get("src", arguments.get("value"))
        axis = int(arguments["dim"]) % max(target.ndim, 1)
        inner = tuple(slice(0, n) for n in index.shape)
        within = numbered[tuple(slice(None) if d == axis else inner[d] for d in range(target.ndim))]
        places = np.take_along_axis(within, index.astype(np.int64), axis=axis)
        values: Any = source[inner] if isinstance(source, np.ndarray) and source.ndim == index.ndim else source
        return places.ravel(), np.broadcast_to(values, index.shape).ravel()
    if name == "index_copy":
        axis = int(arguments["dim"])
        places = np.take(numbered, arguments["index"].astype(np.int64), axis=axis)
        return places.ravel(), np.broadcast_to(arguments["source"], places.shape).ravel()
    where = tuple(
        slice(None) if i is None else i.astype(np.int64) if i.dtype != bool else i for i in arguments["indices"]
    )
    places = numbered[where]
    return places.ravel(), np.broadcast_to(arguments["values"], places.shape).ravel()


def _not_a_candidate(name: str, arguments: dict[str, Any], answer: np.ndarray) -> np.ndarray:
    """Where nothing is written the old value must stand; elsewhere one of the values that were written there."""
    places, values = _writes(name, arguments)
    flat, before = answer.ravel(), arguments["self"].ravel()
    fine = same(flat, before)
    fine[places] = False
    np.logical_or.at(fine, places, same(flat[places], values.astype(flat.dtype)))
    return ~fine.reshape(answer.shape)
