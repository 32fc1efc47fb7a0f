"""Reductions of the copy engine: what cp.reduce.async.bulk does to each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warploom.diagnostics import Diag
from warploom.facts.tensor_maps import REDUCTIONS

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "u32": np.dtype(np.uint32),
    "i32": np.dtype(np.int32),
    "u64": np.dtype(np.uint64),
    "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f32_ftz": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
"""The element types that can be reduced, by their tensor-map names."""

_SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


def _flushed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Subnormal numbers become zero of their sign."""
    return np.where(np.abs(values) < _SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)


def _add(current: Array, operand: Array) -> Array:
    if current.dtype == np.float32:
        return _flushed(_flushed(current) + _flushed(operand))
    if current.dtype.itemsize == 2:
        return (current.astype(np.float32) + operand.astype(np.float32)).astype(current.dtype)
    return current + operand


def _least(current: Array, operand: Array) -> Array:
    if current.dtype.itemsize == 2:
        return _numbers_first(current, operand, np.less)
    return np.minimum(current, operand)


def _greatest(current: Array, operand: Array) -> Array:
    if current.dtype.itemsize == 2:
        return _numbers_first(current, operand, np.greater)
    return np.maximum(current, operand)


def _numbers_first(current: Array, operand: Array, wins: Callable[[Array, Array], Array]) -> Array:
    """The smaller or larger of two half-precision values; a number beats a NaN, and -0 is below +0."""
    mine, theirs = current.astype(np.float32), operand.astype(np.float32)
    signed = np.copysign(np.float32(1), mine), np.copysign(np.float32(1), theirs)
    better = wins(theirs, mine) | ((theirs == mine) & wins(signed[1], signed[0])) | np.isnan(mine)
    chosen = np.where(better & ~np.isnan(theirs), operand, current)
    return chosen


def _increment(current: Array, operand: Array) -> Array:
    return np.where(current >= operand, 0, current + np.uint32(1)).astype(np.uint32)


def _decrement(current: Array, operand: Array) -> Array:
    return np.where((current == 0) | (current > operand), operand, current - np.uint32(1)).astype(np.uint32)


_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": _add,
    "min": _least,
    "max": _greatest,
    "inc": _increment,
    "dec": _decrement,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce_values(operation: str, type_name: str, current: Array, operand: Array) -> Array:
    """The new values of `current` under `operation` with `operand`; both have the NumPy type of `type_name`."""
    if type_name not in REDUCTIONS[operation].types:
        legal = ", ".join(REDUCTIONS[operation].types)
        raise Diag.BAD_SHAPE.error(
            text=f"cp.reduce.async.bulk .{operation}", what=f"the elements are {type_name}, and it has {legal}"
        )
    with np.errstate(all="ignore"):
        return _OPERATIONS[operation](current, operand)
