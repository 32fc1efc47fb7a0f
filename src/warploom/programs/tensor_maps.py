"""Tensor maps that a program encodes through functions of the CUDA driver, as keywords of `TensorMap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warploom.hardware.swizzles import SWIZZLES
from warploom.hardware.tensor_maps import FILLS, INTERLEAVES, L2_PROMOTIONS, MAP_TYPES

_TYPES = {row.code: name for name, row in MAP_TYPES.items()}
_SWIZZLES = {row.tensor_map_code: name for name, row in SWIZZLES.items()}


def tiled_fields(type_: int, rank: int, *given: Any) -> dict[str, Any]:
    """The map of `cuTensorMapEncodeTiled`, without its address."""
    extents, strides, box, steps, *codes = given
    return {"box": _listed(box, rank), **_fields(type_, rank, extents, strides, steps, codes)}


def im2col_fields(type_: int, rank: int, *given: Any) -> dict[str, Any]:
    """The map of `cuTensorMapEncodeIm2col`, without its address."""
    extents, strides, lower, upper, channels, pixels, steps, *codes = given
    return {
        "box": [pixels, channels],
        "mode": "im2col",
        "lower_corner": _listed(lower, rank - 2),
        "upper_corner": _listed(upper, rank - 2),
        **_fields(type_, rank, extents, strides, steps, codes),
    }


def _fields(type_: int, rank: int, extents: Any, strides: Any, steps: Any, codes: Sequence[int]) -> dict[str, Any]:
    element = MAP_TYPES[_TYPES[type_]]
    interleave, swizzle, promotion, fill = codes
    return {
        "dtype": element.name,
        "shape": _listed(extents, rank),
        "strides": [*_listed(strides, rank - 1), max(element.global_bytes // element.group, 1)],
        "element_strides": _listed(steps, rank),
        "interleave": _name(INTERLEAVES, interleave),
        "swizzle": _SWIZZLES[swizzle],
        "l2_promotion": _name(L2_PROMOTIONS, promotion),
        "fill": _name(FILLS, fill),
    }


def _listed(values: Any, count: int) -> list[int]:
    """Numbers of the driver, which counts axes from the innermost, in NumPy's order."""
    return [int(values[at]) for at in range(count)][::-1]


def _name(table: dict[str, int], code: int) -> str:
    return next((name for name, value in table.items() if value == code), str(code))
