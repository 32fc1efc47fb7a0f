"""The caller's NumPy arrays: their types, what is wrong with them, and copies where the copy engine needs one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from warploom.hardware.tensor_maps import STRIDE_ALIGNMENT
from warploom.ops.planning.violations import Faults
from warploom.structured.config.fields import OUTPUT_TYPES
from warploom.trace.language.types import OF_NUMPY

Array = np.ndarray[Any, Any]

PRODUCT_TYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2")
"""What a matmul multiplies; float32 as tf32, rounded."""
ANY_RANK = range(65)
NARROW = ("float8_e4m3fn", "float8_e5m2")
RESULT_TYPES = tuple(name for name, type_ in OF_NUMPY.items() if type_ in OUTPUT_TYPES)
ROUNDED = {"f32", "tf32"}
"""Two ways to multiply float32."""
_ELEMENTS = {"float32": "tf32"}
_RESULTS: dict[str, Any] = dict.fromkeys((*NARROW, "float4_e2m1fn", "uint8"), ml_dtypes.bfloat16)
"""Bytes are two elements of four bits."""


def is_array(argument: str, value: Any, faults: Faults, *, types: Collection[str], axes: range) -> bool:
    """Whether an argument is an array of one of the types, with a number of axes, that a kernel can step through."""
    if not isinstance(value, np.ndarray):
        faults.add(argument, value, "it is no NumPy array")
        return False
    found = len(faults)
    if value.dtype.name not in types:
        faults.add(argument, value, f"its elements are none of {', '.join(types)}")
    if value.ndim not in axes:
        most = f"{axes[0]} to {axes[-1]}" if len(axes) > 1 else f"{axes[0]}"
        faults.add(argument, value, f"it has {value.ndim} axes, not {most}")
    _check_memory(argument, value, faults)
    return len(faults) == found


def _check_memory(argument: str, value: Array, faults: Faults) -> None:
    """Whether elements lie as a kernel reads them, and are all there is to the array."""
    if any(stride % value.itemsize for stride in value.strides):
        faults.add(argument, value, "its strides are not whole elements")
    if not value.dtype.isnative:
        faults.add(argument, value, "its bytes are in the order of another computer")
    masked = sys.modules.get("numpy.ma")  # not loaded for the question: without it there is no such array
    if masked is not None and isinstance(value, masked.MaskedArray):
        faults.add(argument, value, "it is masked, and a kernel reads all elements")


def are_arrays(arrays: Mapping[str, Any], faults: Faults, *, types: Collection[str], axes: range) -> bool:
    """Whether all are such arrays; what is wrong is told of each."""
    return [is_array(name, each, faults, types=types, axes=axes) for name, each in arrays.items()].count(False) == 0


def element_of(array: Array) -> str:
    """The type as a configuration names it."""
    name = array.dtype.name
    return _ELEMENTS.get(name) or OF_NUMPY[name]


def result_type(first: Array) -> np.dtype[Any]:
    """The dtype of a product whose caller asks for none: the first factor's, bfloat16 for those that are too narrow."""
    return np.dtype(_RESULTS.get(first.dtype.name, first.dtype))


def staged(array: Array) -> Array:
    """A copy (…, rows, k) that the copy engine can step through: k contiguous, in rows of whole 16 bytes."""
    *front, depth = array.shape
    unit = STRIDE_ALIGNMENT // array.itemsize
    padded = np.zeros((*front, max(-(-depth // unit), 1) * unit), array.dtype)
    padded[..., :depth] = array
    return padded[..., : max(depth, 1)]
