"""Block formats: elements of a few bits, and one scale factor for each run of them along the last axis.

Sources: OCP Microscaling Formats 1.0 §5 and §6.3 (MXFP8); NVIDIA's NVFP4 (runs of 16, e4m3 scales, one float32 for the
tensor). `block_scaled_matmul` multiplies matrices in these formats.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, ElementType
from warploom.hardware.tmem import QUADRANT, SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.ops.operation import elsewhere
from warploom.ops.planning.arrays import Violations, is_tensor
from warploom.ops.planning.quantised import Quantised

Array = np.ndarray[Any, Any]
MXFP8_BLOCK, NVFP4_BLOCK = 32, 16
_E8M0 = ELEMENT_TYPES["ue8m0"]


def quantise_mxfp8(x: Array, dtype: Any = ml_dtypes.float8_e4m3fn) -> Quantised:
    """MXFP8: runs of 32 share a power of two, 2^(⌊log2 of the largest⌋ - the type's largest exponent).

    Elements are rounded to nearest even and saturate; a run of zeros has the smallest scale, and a run with a NaN or
    an infinity is all NaN. A tensor of PyTorch is quantised on its device.
    """
    other = elsewhere("quantise_mxfp8", x) if is_tensor(x) else None
    if other is not None:
        tensors: Quantised = other(x, dtype)
        return tensors
    element = next((row for row in (_type("e4m3"), _type("e5m2")) if _is_dtype(dtype, row)), None)
    blocks = _blocks("quantise_mxfp8", x, MXFP8_BLOCK, None if element else dtype)
    assert element is not None
    largest = np.abs(blocks).max(axis=-1, initial=0.0)
    finite = np.isfinite(largest)
    exponent = np.frexp(np.where(finite, largest, 1.0))[1] - 1
    top = int(np.frexp(_greatest(element))[1]) - 1
    code = np.clip(exponent - top + _E8M0.bias, 0, _E8M0.largest)
    code = np.where(largest == 0, 0, code)
    values = _saturated(blocks / np.ldexp(1.0, code - _E8M0.bias)[..., None], element)
    values[~finite] = np.nan
    scales = np.where(finite, code, _E8M0.nan_code).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
    return Quantised(values.reshape(x.shape), scales)


def quantise_nvfp4(x: Array) -> Quantised:
    """NVFP4: runs of 16 elements of e2m1 share an e4m3 scale, and the tensor a float32 that keeps those in range.

    Every step rounds to nearest even. e2m1 has no NaN and no infinity: they are an error. A tensor of PyTorch is
    quantised on its device, with two elements in a byte, the first in the low bits.
    """
    other = elsewhere("quantise_nvfp4", x) if is_tensor(x) else None
    if other is not None:
        tensors: Quantised = other(x)
        return tensors
    e2m1, e4m3 = _type("e2m1"), _type("e4m3")
    blocks = _blocks("quantise_nvfp4", x, NVFP4_BLOCK, None)
    violations = Violations("quantise_nvfp4")
    if not np.isfinite(blocks).all():
        violations.add("x", x, "must be finite: e2m1 has no NaN and no infinity")
    largest = np.abs(blocks).max(axis=-1, initial=0.0)
    with np.errstate(over="ignore"):
        whole = np.float32(largest.max(initial=0.0) / (_greatest(e4m3) * _greatest(e2m1)))
    if not len(violations) and not np.isfinite(whole):
        violations.add("x", x, "must be small enough for its tensor-wide scale to be a finite float32")
    violations.check()
    scale = float(whole) if whole > 0 else 1.0
    scales = _saturated(largest / _greatest(e2m1) / scale, e4m3)
    products = scales.astype(np.float64) * scale
    ratio = np.divide(blocks, products[..., None], out=np.zeros_like(blocks), where=products[..., None] > 0)
    return Quantised(_saturated(ratio, e2m1).reshape(x.shape), scales, scale)


def interleave_scales(scales: Array, ends: Array | None = None) -> Array:
    """Scales (…, rows, runs) as the tensor core reads them: in atoms of 128 rows by 4.

    They are (…, ⌈rows/128⌉, ⌈runs/4⌉, 32, 4, 4). Atoms are padded with zero bits, which only zeros are multiplied with.
    With `ends`, the ends of groups of rows, each group starts with a new atom: group g with atom ⌊start/128⌋ + g, of
    ⌊rows/128⌋ + groups.
    """
    *front, rows, runs = scales.shape
    down, along = -(-rows // SCALE_CHUNK_ROWS), -(-runs // SCALE_CHUNK_FACTORS)
    places: Array | slice = slice(rows)
    if ends is not None:
        down = rows // SCALE_CHUNK_ROWS + len(ends)
        places = padded_rows(ends, SCALE_CHUNK_ROWS)
        scales = scales[..., : len(places), :]
    padded = np.zeros((*front, down * SCALE_CHUNK_ROWS, along * SCALE_CHUNK_FACTORS), np.uint8)
    padded[..., places, :runs] = scales.view(np.uint8)
    atoms = padded.reshape(*front, down, SCALE_CHUNK_ROWS // QUADRANT, QUADRANT, along, SCALE_CHUNK_FACTORS)
    return np.ascontiguousarray(np.moveaxis(atoms, (-2, -3), (-4, -3))).view(scales.dtype)


def deinterleave_scales(scales: Array, rows: int, runs: int, ends: Array | None = None) -> Array:
    """Scales as (rows, runs), from the order in which `interleave_scales` puts them; rows in no group are zero."""
    down, along = scales.shape[:2]
    plain = np.moveaxis(scales.view(np.uint8), (0, 3, 2, 1, 4), (0, 1, 2, 3, 4))
    plain = plain.reshape(down * SCALE_CHUNK_ROWS, along * SCALE_CHUNK_FACTORS)
    if ends is None:
        return plain[:rows, :runs].view(scales.dtype)
    made = np.zeros((rows, runs), np.uint8)
    places = padded_rows(ends, SCALE_CHUNK_ROWS)
    made[: len(places)] = plain[places, :runs]
    return made.view(scales.dtype)


def padded_rows(ends: Array, unit: int) -> Array:
    """The place of each row that is in a group, where group g starts at unit ⌊start/unit⌋ + g of some rows."""
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    rows = np.arange(ends[-1] if len(ends) else 0)
    group = np.searchsorted(ends, rows, side="right")
    return rows - starts[group] + (starts[group] // unit + group) * unit


def _is_dtype(dtype: Any, element: ElementType) -> bool:
    try:
        return bool(np.dtype(dtype) == element.values)
    except TypeError:
        return False


def _type(name: str) -> ElementType:
    return ELEMENT_TYPES[name]


def _greatest(element: ElementType) -> float:
    """The largest number of a type."""
    return float(np.uint8(element.largest).view(element.values))


def _blocks(function: str, x: Any, size: int, wrong_type: Any) -> Array:
    """The array in float64, its last axis split into runs."""
    violations = Violations(function)
    if wrong_type is not None:
        violations.add("dtype", wrong_type, "must be float8_e4m3fn or float8_e5m2")
    if not isinstance(x, np.ndarray) or not (np.issubdtype(x.dtype, np.floating) or x.dtype.name == "bfloat16"):
        violations.add("x", x, "must be a NumPy array of floats")
    elif x.ndim < 1 or x.shape[-1] % size:
        violations.add("x", x, f"must have a last axis that is a multiple of {size}")
    violations.check()
    wide: Array = x.astype(np.float64)
    return wide.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _saturated(values: Array, element: ElementType) -> Array:
    """Round to nearest even, once, and saturate."""
    greatest = _greatest(element)
    rounded: Array = _odd_singles(np.clip(values, -greatest, greatest)).astype(element.values)
    return rounded


def _odd_singles(values: Array) -> Array:
    """Round to float32, to odd where bits are lost, so that a second rounding of the result sees every tie."""
    near = values.astype(np.float32)
    towards_zero = np.where(np.abs(near) > np.abs(values), np.nextafter(near, np.float32(0)), near)
    odd = (towards_zero.view(np.uint32) | 1).view(np.float32)
    return np.where(near == values, near, odd)
