"""The types of device values: one row each, and how a Python number becomes bits of that type and back."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES

Number = int | float | bool


@dataclass(frozen=True, slots=True)
class Type:
    """A row: `wide` is the type that computes for one without arithmetic of its own, `half` what a pair is made of.

    A `narrow` type is a float of eight bits and `packed` are some of them in a register: they are kept and converted.
    `bits` are only moved: `b128` is the answer of cluster launch control, `e2m1x2` two 4-bit floats, in a register of
    eight bits. Other registers are typed by width alone, so that reading the bits of one type as another costs no
    instruction.
    """

    name: str
    kind: str
    bits: int
    prefix: str
    numpy: str = ""
    wide: str = ""
    half: str = ""

    @property
    def register(self) -> str:
        """The type of its registers, and of instructions that only look at bits."""
        if self.kind == "pred":
            return "pred"
        return f"b{self.bits if self.kind == 'bits' else max(self.bits, 16)}"

    @property
    def memory(self) -> str:
        """The type of loads and stores."""
        if self.kind == "narrow":
            return "b8"
        return self.register if self.half or self.prefix == "%h" else self.name

    @property
    def bytes(self) -> int:
        return self.bits // 8


TYPES: dict[str, Type] = {
    row.name: row
    for row in (
        Type("pred", "pred", 1, "%p", "bool"),
        Type("s8", "signed", 8, "%rs", "int8", wide="s16"),
        Type("u8", "unsigned", 8, "%rs", "uint8", wide="u16"),
        Type("s16", "signed", 16, "%rs", "int16"),
        Type("u16", "unsigned", 16, "%rs", "uint16"),
        Type("s32", "signed", 32, "%r", "int32"),
        Type("u32", "unsigned", 32, "%r", "uint32"),
        Type("s64", "signed", 64, "%rd", "int64"),
        Type("u64", "unsigned", 64, "%rd", "uint64"),
        Type("f16", "float", 16, "%h", "float16"),
        Type("bf16", "float", 16, "%h", "bfloat16"),
        Type("f32", "float", 32, "%f", "float32"),
        Type("f64", "float", 64, "%fd", "float64"),
        Type("f16x2", "pair", 32, "%hh", half="f16"),
        Type("bf16x2", "pair", 32, "%hh", half="bf16"),
        Type("e4m3", "narrow", 8, "%rs", "float8_e4m3fn", wide="f16"),
        Type("e5m2", "narrow", 8, "%rs", "float8_e5m2", wide="f16"),
        Type("e4m3x2", "packed", 16, "%rs", half="e4m3"),
        Type("e5m2x2", "packed", 16, "%rs", half="e5m2"),
        Type("e2m1x2", "bits", 8, "%b"),
        Type("e4m3x4", "packed", 32, "%r", half="e4m3"),
        Type("e5m2x4", "packed", 32, "%r", half="e5m2"),
        Type("b128", "bits", 128, "%q"),
    )
}

pred, s8, u8, s16, u16, s32, u32, s64, u64, f16, bf16, f32, f64, f16x2, bf16x2, e4m3, e5m2, *_ = TYPES
"""The names as Python names, for annotations and arguments."""
e2m1, ue8m0 = "e2m1", "ue8m0"
"""Elements that no instruction computes with: views hold them as bytes."""

PER_BYTE = {e2m1: 2, ue8m0: 1}
"""The number of elements in a byte of shared memory; in NumPy arrays each has its own byte."""
OF_NUMPY = {
    **{row.numpy: row.name for row in TYPES.values() if row.numpy and row.kind != "pred"},
    "float4_e2m1fn": u8,
    "float8_e8m0fnu": u8,
}
PAIR_OF = {row.half: row.name for row in TYPES.values() if row.kind == "pair"}

_FLOATS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


def wrap(number: int, type_: str) -> int:
    """An integer as the type holds it: two's complement, high bits dropped."""
    row = TYPES[type_]
    number &= (1 << row.bits) - 1
    return number - (1 << row.bits) if row.kind == "signed" and number >> (row.bits - 1) else number


def encode(number: Number, type_: str) -> int:
    """The bits of a number: floating-point types round to nearest even, and those of eight bits stay finite."""
    row = TYPES[type_]
    if row.half:
        half, bits = encode(number, row.half), TYPES[row.half].bits
        return sum(half << at for at in range(0, row.bits, bits))
    if type_ not in _FLOATS:
        return wrap(int(number), type_)
    with np.errstate(all="ignore"):
        real = float(number) if type_ == "f64" else _sticky_double(number)
        if row.kind == "narrow":
            largest = decode_bits(ELEMENT_TYPES[type_].largest, type_)
            real = max(-largest, min(real, largest)) if real == real else real  # noqa: PLR0124 - NaN stays
        rounded = _FLOATS[type_](_sticky_single(real) if type_ in _FROM_SINGLE else real)
        return int.from_bytes(rounded.tobytes(), "little")


_FROM_SINGLE = ("bf16", "e4m3", "e5m2")
"""Types that ml_dtypes rounds from a single."""


def _sticky_double(number: Number) -> float:
    """A number as a double, rounded to odd where it has more bits, so that rounding it again goes the right way."""
    if not isinstance(number, int):
        return number
    shift = max(abs(number).bit_length() - np.finfo(np.float64).nmant - 1, 0)
    kept = abs(number) >> shift
    kept |= kept << shift != abs(number)
    return float(kept << shift if number >= 0 else -(kept << shift))


def _sticky_single(number: float) -> np.float32:
    """A double as a single, rounded to odd."""
    near = np.float32(number)
    if not np.isfinite(near) or float(near) == number:
        return near
    below = np.nextafter(near, np.float32(0)) if abs(float(near)) > abs(number) else near
    return np.uint32(int(below.view(np.uint32)) | 1).view(np.float32)


def decode_bits(bits: int, type_: str) -> Number:
    """The number that bits stand for."""
    row = TYPES[type_]
    if type_ in _FLOATS:
        return float(np.frombuffer(bits.to_bytes(row.bytes, "little"), _FLOATS[type_])[0])
    return wrap(bits, type_)
