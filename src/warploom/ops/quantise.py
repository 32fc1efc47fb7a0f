"""Block formats: elements of a few bits, and one scale factor for each run of them along the last axis.

Sources: OCP Microscaling Formats 1.0 §5 and §6.3 (MXFP8); NVIDIA's NVFP4 (runs of 16, e4m3 scales, one float32 for the
tensor). A product with such scales is `block_scaled_matmul`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, ElementType
from warploom.hardware.tmem import QUADRANT, SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.ops.planning.violations import Faults

Array = np.ndarray[Any, Any]
MXFP8_BLOCK, NVFP4_BLOCK = 32, 16
_E8M0 = ELEMENT_TYPES["ue8m0"]


class Quantised(NamedTuple):
    """x ≈ values · scales · scale, with one of `scales` for each run of the last axis."""

    values: Array
    scales: Array
    scale: float = 1.0

    def dequantised(self) -> Array:
        """What the values stand for, in float32."""
        block = self.values.shape[-1] // self.scales.shape[-1] if self.scales.shape[-1] else 1
        spread = np.repeat(self.scales.astype(np.float32), block, axis=-1)
        return self.values.astype(np.float32) * spread * np.float32(self.scale)


def quantise_mxfp8(x: Array, dtype: Any = ml_dtypes.float8_e4m3fn) -> Quantised:
    """MXFP8: runs of 32 share a power of two, 2^(⌊log2 of the largest⌋ - the type's largest exponent).

    Elements are rounded to nearest even, and to the largest that the type has where they are larger; a run of zeros
    has the smallest scale, and one with a NaN or an infinity is NaN throughout.
    """
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

    Every step rounds to nearest even. A NaN or an infinity has no place in e2m1: it is an error.
    """
    e2m1, e4m3 = _type("e2m1"), _type("e4m3")
    blocks = _blocks("quantise_nvfp4", x, NVFP4_BLOCK, None)
    faults = Faults("quantise_nvfp4")
    if not np.isfinite(blocks).all():
        faults.add("x", x, "it has a NaN or an infinity, which e2m1 has not")
    largest = np.abs(blocks).max(axis=-1, initial=0.0)
    with np.errstate(over="ignore"):
        whole = np.float32(largest.max(initial=0.0) / (_greatest(e4m3) * _greatest(e2m1)))
    if not len(faults) and not np.isfinite(whole):
        faults.add("x", x, "the scale of the whole, a float32, cannot be as large as its elements ask for")
    faults.check()
    scale = float(whole) if whole > 0 else 1.0
    scales = _saturated(largest / _greatest(e2m1) / scale, e4m3)
    products = scales.astype(np.float64) * scale
    ratio = np.divide(blocks, products[..., None], out=np.zeros_like(blocks), where=products[..., None] > 0)
    return Quantised(_saturated(ratio, e2m1).reshape(x.shape), scales, scale)


def interleave_scales(scales: Array) -> Array:
    """Scales (rows, runs) as the tensor core reads them: atoms of 128 rows by 4, (⌈rows/128⌉, ⌈runs/4⌉, 32, 4, 4).

    What an atom has beyond the array is zero bits: nothing multiplies with it but zeros.
    """
    rows, runs = scales.shape
    down, along = -(-rows // SCALE_CHUNK_ROWS), -(-runs // SCALE_CHUNK_FACTORS)
    padded = np.zeros((down * SCALE_CHUNK_ROWS, along * SCALE_CHUNK_FACTORS), np.uint8)
    padded[:rows, :runs] = scales.view(np.uint8)
    atoms = padded.reshape(down, SCALE_CHUNK_ROWS // QUADRANT, QUADRANT, along, SCALE_CHUNK_FACTORS)
    return np.ascontiguousarray(atoms.transpose(0, 3, 2, 1, 4)).view(scales.dtype)


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
    """The array in float64, its last axis cut into runs."""
    faults = Faults(function)
    if wrong_type is not None:
        faults.add("dtype", wrong_type, "MXFP8 has float8_e4m3fn and float8_e5m2")
    if not isinstance(x, np.ndarray) or not (np.issubdtype(x.dtype, np.floating) or x.dtype.name == "bfloat16"):
        faults.add("x", x, "it is no array of floats")
    elif x.ndim < 1 or x.shape[-1] % size:
        faults.add("x", x, f"its last axis is not whole runs of {size}")
    faults.check()
    wide: Array = x.astype(np.float64)
    return wide.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _saturated(values: Array, element: ElementType) -> Array:
    """Rounded to nearest even, once, and never beyond the largest number."""
    greatest = _greatest(element)
    rounded: Array = _odd_singles(np.clip(values, -greatest, greatest)).astype(element.values)
    return rounded


def _odd_singles(values: Array) -> Array:
    """As float32, rounded to odd where bits are lost: the second rounding, which starts from there, sees every tie."""
    near = values.astype(np.float32)
    towards_zero = np.where(np.abs(near) > np.abs(values), np.nextafter(near, np.float32(0)), near)
    odd = (towards_zero.view(np.uint32) | 1).view(np.float32)
    return np.where(near == values, near, odd)
