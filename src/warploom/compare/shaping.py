"""Functions that move, select, convert or normalise elements."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from warploom.compare.table import (
    BOOLEAN,
    CHEAP,
    CONVERSION,
    INTEGER,
    REAL,
    TRANSCENDENTAL,
    Array,
    Type,
    axis_of,
    function,
    join,
    number,
)

REAL_TYPES = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
INTEGER_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _transposed(x: Type, *axes: int) -> Type:
    order = [axis_of(x, axis) for axis in axes] or list(range(len(x.shape)))[::-1]
    if sorted(order) != list(range(len(x.shape))):
        raise ValueError(f"{axes} is not an order of the {len(x.shape)} axes")
    return Type(tuple(x.shape[axis] for axis in order), x.number)


@function("transpose", _transposed, 0.0)
def transpose(x: Array, *axes: int) -> Array:
    return x.transpose(axes or None)


def _reshaped(x: Type, *shape: int) -> Type:
    rest = math.prod(extent for extent in shape if extent != -1)
    wild = [axis for axis, extent in enumerate(shape) if extent == -1]
    full = list(shape)
    if len(wild) == 1 and rest > 0:
        full[wild[0]] = x.size // rest
    if any(extent < 0 for extent in full) or math.prod(full) != x.size:
        raise ValueError(f"{x.size} elements do not fill the shape {shape}")
    return Type(tuple(full), x.number)


@function("reshape", _reshaped)
def reshape(x: Array, *shape: int) -> Array:
    return x.reshape(shape)


def _repeated(x: Type, times: int, axis: int = -1) -> Type:
    if times < 1:
        raise ValueError(f"{times} repeats")
    axis = axis_of(x, axis)
    return Type((*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :]), x.number)


@function("repeat", _repeated)
def repeat(x: Array, times: int, axis: int = -1) -> Array:
    return np.repeat(x, times, axis)


def _counted(count: int) -> Type:
    if count < 0:
        raise ValueError(f"{count} elements")
    return Type((count,), INTEGER)


@function("arange", _counted)
def arange(count: int) -> Array:
    return np.arange(count, dtype=np.int64)


def _selected(condition: Type, x: Type, y: Type) -> Type:
    shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
    return Type(shape, BOOLEAN if x.number == y.number == BOOLEAN else join(x, y))


@function("where", _selected)
def where(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition.astype(np.bool_), x, y)


def _along(x: Type, axis: int = -1) -> Type:
    axis_of(x, axis)
    if 0 in x.shape:
        raise ValueError(f"the shape {x.shape} is empty")
    return Type(x.shape, REAL)


@function("softmax", _along, TRANSCENDENTAL)
def softmax(x: Array, axis: int = -1) -> Array:
    powers = np.exp(x - np.max(x, axis, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis, keepdims=True))


def _cumulative(x: Type, axis: int = -1) -> Type:
    axis_of(x, axis)
    return Type(x.shape, join(x))


@function("cumsum", _cumulative)
def cumsum(x: Array, axis: int = -1) -> Array:
    return np.asarray(np.cumsum(number(x), axis))


def _converted(x: Type, dtype: str) -> Type:
    if dtype in REAL_TYPES:
        return Type(x.shape, REAL)
    if dtype in INTEGER_TYPES:
        return Type(x.shape, INTEGER)
    raise ValueError(f"`{dtype}` is not a type; the types are {', '.join(REAL_TYPES + INTEGER_TYPES)}")


@function("cast", _converted, CONVERSION)
def cast(x: Array, dtype: str) -> Array:
    """The nearest value, ties to even; from real to integer towards zero and saturating; among integers wrapping."""
    if dtype in REAL_TYPES:
        return nearest(np.asarray(x, np.float64), np.dtype(getattr(ml_dtypes, dtype, dtype)))
    if x.dtype.kind != "f":
        return np.asarray(x.astype(np.dtype(dtype)).astype(np.int64))
    limits = np.iinfo(dtype)
    whole = np.trunc(np.nan_to_num(x, nan=0.0))
    low, high = whole <= float(limits.min), whole >= float(limits.max)
    inside = np.where(low | high, 0.0, whole).astype(np.dtype(dtype))
    return np.asarray(np.where(low, limits.min, np.where(high, limits.max, inside)), np.dtype(dtype)).astype(np.int64)


def nearest(x: Array, dtype: np.dtype[Any]) -> Array:
    """Round float64 once: narrow types go through a float32 rounded to odd, which preserves ties."""
    if dtype in (np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16)):
        return np.asarray(x.astype(dtype).astype(np.float64))
    middle = x.astype(np.float32)
    inexact = np.isfinite(x) & (middle != x)
    towards_zero = np.where(inexact & (np.abs(middle) > np.abs(x)), np.nextafter(middle, np.float32(0)), middle)
    odd = np.where(inexact, (towards_zero.view(np.uint32) | 1).view(np.float32), towards_zero)
    return np.asarray(odd.astype(dtype).astype(np.float64))


def _unpacked(x: Type) -> Type:
    if not x.shape or x.number != INTEGER:
        raise ValueError("it unpacks the bytes of an integer buffer with at least one axis")
    return Type((*x.shape[:-1], x.shape[-1] * 2), REAL)


@function("unpack_e2m1", _unpacked, CHEAP)
def unpack_e2m1(x: Array) -> Array:
    """Two 4-bit floats per byte, the low half first."""
    halves = np.stack([x & 0xF, (x >> 4) & 0xF], -1).astype(np.uint8)
    return np.asarray(halves.view(ml_dtypes.float4_e2m1fn), np.float64).reshape(*x.shape[:-1], -1)
