"""Element types as data: the bit layout of every PTX type.

Sources: PTX ISA 9.0 §5.2 (fundamental, alternate and packed types) and §9.7.9.21 (cvt: NaN and saturation);
OCP Microscaling Formats 1.0 (e2m1, e2m3, e3m2, ue8m0). The ISA leaves the NaN of single and half precision
unspecified and does not say which NaN an invalid operation on doubles makes; `nan` is what an H200 writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class ElementType:
    """One type: its bits, and for floats the fields, the special codes and the NumPy type with the same values.

    Codes (`infinity`, `nan`, `largest`) are right-aligned bit patterns of `bits` bits; None means that the format has
    no such code. `padding` low zero bits follow the code in a register (tf32 only). `out_of_bounds` are the two NaNs
    that `fma.oob` takes for elements outside a tensor (found on an H200 by trying all codes).
    """

    name: str
    kind: str
    bits: int
    storage_bits: int
    values: np.dtype[Any]
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0
    infinity: int | None = None
    nan: int | None = None
    largest: int = 0
    padding: int = 0
    has_sign: bool = True
    out_of_bounds: tuple[int, int] = (0, 0)

    @property
    def storage(self) -> np.dtype[Any]:
        """The unsigned NumPy type that holds the bit pattern."""
        return np.dtype(f"u{self.storage_bits // 8}")

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_signed(self) -> bool:
        return self.kind == "signed"

    @property
    def sign(self) -> int:
        """The sign bit in a register; zero for formats without one."""
        return 1 << (self.bits - 1 + self.padding) if self.has_sign else 0

    @property
    def nan_code(self) -> int:
        """The code that NaN is converted to: the canonical NaN, or the largest value of a format without one."""
        return self.largest if self.nan is None else self.nan

    @property
    def infinity_code(self) -> int:
        """The code that infinity is converted to: itself, or the largest value of a format without it."""
        return self.largest if self.infinity is None else self.infinity

    @property
    def smallest_normal(self) -> int:
        """The code of the smallest normal number, which is also one more than the largest subnormal."""
        return 1 << self.mantissa

    @property
    def minimum_exponent(self) -> int:
        """The exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def low(self) -> int:
        """The least value of an integer type."""
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def high(self) -> int:
        """The greatest value of an integer type."""
        return (1 << (self.bits - 1)) - 1 if self.is_signed else (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class PackedType:
    """Several elements in one register, the first in the low bits, each in a field of `field_bits`."""

    name: str
    element: ElementType
    count: int
    field_bits: int

    @property
    def bits(self) -> int:
        return self.count * self.field_bits

    @property
    def storage(self) -> np.dtype[Any]:
        """The unsigned NumPy type that holds the packed bits."""
        return np.dtype(f"u{self.bits // 8}")


def _integer(name: str, kind: str, bits: int) -> ElementType:
    letter = "i" if kind == "signed" else "u"
    return ElementType(name, kind, bits, bits, np.dtype(f"{letter}{bits // 8}"))


def _float(name: str, values: Any, fields: tuple[int, int, int], **codes: Any) -> ElementType:
    exponent, mantissa, bias = fields
    bits = codes.pop("bits", 1 + exponent + mantissa)
    storage = codes.pop("storage_bits", max(8, bits))
    return ElementType(name, "float", bits, storage, np.dtype(values), exponent, mantissa, bias, **codes)


_E64 = 0x7FF << 52
_TF32 = {"storage_bits": 32, "padding": 13}
_UNSIGNED = {"has_sign": False, "bits": 8}
_MARKS = {"out_of_bounds": (0x7FF7, 0xFFF7)}
# fmt: off
_FLOATS = (
    #      name     same values in            (e,  m,  bias)
    _float("f64",   np.float64,               (11, 52, 1023), infinity=_E64, nan=0xFFF8 << 48, largest=_E64 - 1),
    _float("f32",   np.float32,               (8,  23, 127),  infinity=0x7F800000, nan=0x7FFFFFFF, largest=0x7F7FFFFF),
    _float("tf32",  np.float32,               (8,  10, 127),  infinity=0x3FC00, nan=0x3FFFF, largest=0x3FBFF, **_TF32),
    _float("f16",   np.float16,               (5,  10, 15),   infinity=0x7C00, nan=0x7FFF, largest=0x7BFF, **_MARKS),
    _float("bf16",  ml_dtypes.bfloat16,       (8,  7,  127),  infinity=0x7F80, nan=0x7FFF, largest=0x7F7F, **_MARKS),
    _float("e5m2",  ml_dtypes.float8_e5m2,    (5,  2,  15),   infinity=0x7C, nan=0x7F, largest=0x7B),
    _float("e4m3",  ml_dtypes.float8_e4m3fn,  (4,  3,  7),    nan=0x7F, largest=0x7E),
    _float("e3m2",  ml_dtypes.float6_e3m2fn,  (3,  2,  3),    largest=0x1F),
    _float("e2m3",  ml_dtypes.float6_e2m3fn,  (2,  3,  1),    largest=0x1F),
    _float("e2m1",  ml_dtypes.float4_e2m1fn,  (2,  1,  1),    largest=0x7),
    # A power of two: code c is 2^(c-127). There is no zero and no sign.
    _float("ue8m0", ml_dtypes.float8_e8m0fnu, (8,  0,  127),  nan=0xFF, largest=0xFE, **_UNSIGNED),
    # e4m3 whose sign bit is always clear: the scale of mxf4nvf4.
    _float("ue4m3", ml_dtypes.float8_e4m3fn,  (4,  3,  7),    nan=0x7F, largest=0x7E, **_UNSIGNED),
)
# fmt: on

ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType(
    {
        **{row.name: row for row in _FLOATS},
        **{f"s{bits}": _integer(f"s{bits}", "signed", bits) for bits in (8, 16, 32, 64)},
        **{f"u{bits}": _integer(f"u{bits}", "unsigned", bits) for bits in (8, 16, 32, 64)},
        **{f"b{bits}": _integer(f"b{bits}", "bits", bits) for bits in (8, 16, 32, 64)},
        "pred": ElementType("pred", "predicate", 1, 8, np.dtype(np.bool_)),
    }
)

PACKED_TYPES: Mapping[str, PackedType] = MappingProxyType(
    {
        f"{name}x{count}": PackedType(f"{name}x{count}", ELEMENT_TYPES[name], count, field)
        for name, count, field in (
            ("f32", 2, 32),
            ("f16", 2, 16),
            ("bf16", 2, 16),
            ("u16", 2, 16),
            ("s16", 2, 16),
            ("e5m2", 2, 8),
            ("e4m3", 2, 8),
            ("e3m2", 2, 8),
            ("e2m3", 2, 8),
            ("ue8m0", 2, 8),
            ("e2m1", 2, 4),
            ("e5m2", 4, 8),
            ("e4m3", 4, 8),
            ("e3m2", 4, 8),
            ("e2m3", 4, 8),
            ("e2m1", 4, 4),
        )
    }
)


def storage_of(type_name: str) -> np.dtype[Any]:
    """The unsigned NumPy type that holds a value of a PTX type, packed or not."""
    return (PACKED_TYPES.get(type_name) or ELEMENT_TYPES[type_name]).storage
