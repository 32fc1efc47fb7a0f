"""TMA reductions: the effect of cp.reduce.async.bulk on each element.

Checked against an H200 bit by bit. `f32` keeps subnormal numbers, also in the plain cp.reduce.async.bulk.add.f32, of
which PTX ISA 9.7.9.25.4.2 says that it flushes them; `f32_ftz` flushes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warploom.diagnostics import Diag
from warploom.hardware.tensor_maps import REDUCTIONS
from warploom.machine.memory.exact_sums import ExactSums, is_exact_sum

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

_NANS: dict[int, Array] = {2: np.array([0x7FFF], np.uint16), 4: np.array([0x7FFFFFFF], np.uint32)}
"""The NaN that TMA's adders write, by element size: seen on an H200."""


def _flushed(values: Array) -> Array:
    """Subnormal numbers become zero of their sign."""
    smallest = np.finfo(np.float32).smallest_normal
    return np.where(np.abs(values) < smallest, np.copysign(np.float32(0), values), values)


def _canonical(values: Array) -> Array:
    """Replace every NaN by the one that TMA writes."""
    nan = _NANS[values.dtype.itemsize].view(values.dtype)
    return np.where(np.isnan(values.astype(np.float32)), nan, values)


def _add(current: Array, operand: Array) -> Array:
    if current.dtype.kind in "iu" or current.dtype == np.float64:
        return current + operand
    total = current.astype(np.float32) + operand.astype(np.float32)
    return _canonical(total.astype(current.dtype))


def _add_flushing(current: Array, operand: Array) -> Array:
    return _flushed(_add(_flushed(current), _flushed(operand)))


def _choose(current: Array, operand: Array, wins: Callable[[Array, Array], Array]) -> Array:
    """The smaller or larger of two values; a number beats a NaN, and -0 is below +0."""
    if current.dtype.kind in "iu":
        return np.where(wins(operand, current), operand, current)
    mine, theirs = current.astype(np.float32), operand.astype(np.float32)
    tie = (theirs == mine) & wins(np.copysign(np.float32(1), theirs), np.copysign(np.float32(1), mine))
    better = (wins(theirs, mine) | tie | np.isnan(mine)) & ~np.isnan(theirs)
    return _canonical(np.where(better, operand, current))


def _least(current: Array, operand: Array) -> Array:
    return _choose(current, operand, np.less)


def _greatest(current: Array, operand: Array) -> Array:
    return _choose(current, operand, np.greater)


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


def reduce_values(
    operation: str,
    type_name: str,
    current: Array,
    operand: Array,
    sums: ExactSums | None = None,
    places: Array | None = None,
) -> Array:
    """The new values of `current` under `operation` with `operand`; both have the NumPy type of `type_name`.

    With `sums`, floating-point numbers at `places` are added in a way that does not depend on the order.
    """
    if type_name not in REDUCTIONS[operation].types:
        legal = ", ".join(REDUCTIONS[operation].types)
        raise Diag.BAD_SHAPE.error(
            text=f"cp.reduce.async.bulk .{operation}", what=f"the elements are {type_name}, and it has {legal}"
        )
    with np.errstate(all="ignore"):
        if sums is not None and places is not None and is_exact_sum(operation, current.dtype):
            added = sums.add(places.reshape(-1), current.reshape(-1), operand.reshape(-1))[1]
            return added.reshape(current.shape)
        if operation == "add" and type_name == "f32_ftz":
            return _add_flushing(current, operand)
        return _OPERATIONS[operation](current, operand)
