"""Annotations of a kernel's parameters: `x: Array[f32]`, `y: Tensor`, `n: s32`.

At run time each scalar type is its name as a string, and `Array[f32]` is a text that `parameters` reads. Type checkers
read annotations.pyi instead, where each type is a class with the operators of a device value.
"""

from __future__ import annotations

from warploom.trace.language.types import (
    bf16,
    bf16x2,
    e2m1,
    e4m3,
    e5m2,
    f16,
    f16x2,
    f32,
    f64,
    pred,
    s8,
    s16,
    s32,
    s64,
    u8,
    u16,
    u32,
    u64,
    ue8m0,
)


class Array:
    """An annotation: an array of elements of any type, or as `Array[f32]` of that one."""

    def __class_getitem__(cls, dtype: str) -> str:
        return f"Array[{dtype}]"


class Tensor:
    """An annotation: an array whose extents and strides only the launch knows, so that one trace serves all sizes.

    Known while tracing are the type, the rank, which strides are 0 or 1, and how the rows are aligned.
    """

    def __class_getitem__(cls, dtype: str) -> str:
        return f"Tensor[{dtype}]"


__all__ = [
    "Array",
    "Tensor",
    "bf16",
    "bf16x2",
    "e2m1",
    "e4m3",
    "e5m2",
    "f16",
    "f16x2",
    "f32",
    "f64",
    "pred",
    "s8",
    "s16",
    "s32",
    "s64",
    "u8",
    "u16",
    "u32",
    "u64",
    "ue8m0",
]
