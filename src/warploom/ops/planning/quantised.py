"""Results in a block format: elements of a few bits, and one scale factor for each run of them along the last axis."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from warploom.hardware.tmem import SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.structured.epilogue.epilogue import FORMATS

Array = np.ndarray[Any, Any]
ELEMENTS = {"mxfp8": (np.dtype(ml_dtypes.float8_e4m3fn), 1), "nvfp4": (np.dtype(np.uint8), 2)}
"""By format: the dtype of an item of the result, and the elements in it."""
SCALES = {"mxfp8": np.dtype(ml_dtypes.float8_e8m0fnu), "nvfp4": np.dtype(ml_dtypes.float8_e4m3fn)}


class Quantised(NamedTuple):
    """x ≈ values · scales · scale, with one of `scales` for each run of the last axis."""

    values: Array
    scales: Array
    scale: float = 1.0

    def dequantised(self) -> Array:
        """The values times their scales, in float32; neither packed nor interleaved."""
        block = self.values.shape[-1] // self.scales.shape[-1] if self.scales.shape[-1] else 1
        spread = np.repeat(self.scales.astype(np.float32), block, axis=-1)
        return self.values.astype(np.float32) * spread * np.float32(self.scale)


def values_shape(format_: str, m: int, n: int) -> tuple[int, int]:
    """The shape of the elements of a result: 4-bit ones are packed two to a byte."""
    return (m, n // ELEMENTS[format_][1])


def scales_shape(format_: str, m: int, n: int, groups: int) -> tuple[int, ...]:
    """The shape of the interleaved scales of a result whose rows are in groups."""
    along = -(-n // FORMATS[format_] // SCALE_CHUNK_FACTORS)
    return (m // SCALE_CHUNK_ROWS + groups, along, 32, 4, SCALE_CHUNK_FACTORS)
