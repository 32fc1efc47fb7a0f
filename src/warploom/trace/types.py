"""The types of device values: one row each, and how a Python number becomes bits of that type and back."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

Number = int | float | bool


@dataclass(frozen=True, slots=True)
class Type:
    """A row: `wide` is the type that computes for one without arithmetic of its own, `half` what a pair is made of.

    Registers are typed by width alone, so that reading the bits of one type as another costs no instruction.
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
        return "pred" if self.kind == "pred" else f"b{max(self.bits, 16)}"

    @property
    def memory(self) -> str:
        """The type of loads and stores."""
        return self.register if self.kind == "pair" or self.prefix == "%h" else self.name

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
    )
}

pred, s8, u8, s16, u16, s32, u32, s64, u64, f16, bf16, f32, f64, f16x2, bf16x2 = TYPES
"""The names as Python names, for annotations and arguments."""

OF_NUMPY = {row.numpy: row.name for row in TYPES.values() if row.numpy and row.kind != "pred"}
PAIR_OF = {row.half: row.name for row in TYPES.values() if row.half}

_FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def wrap(number: int, type_: str) -> int:
    """An integer as the type holds it: two's complement, high bits dropped."""
    row = TYPES[type_]
    number &= (1 << row.bits) - 1
    return number - (1 << row.bits) if row.kind == "signed" and number >> (row.bits - 1) else number


def encode(number: Number, type_: str) -> int:
    """The bits of a number: floating-point types round to nearest even."""
    row = TYPES[type_]
    if row.kind == "pair":
        half = encode(number, row.half)
        return half << 16 | half
    if row.kind != "float":
        return wrap(int(number), type_)
    with np.errstate(all="ignore"):
        real = float(number) if type_ == "f64" else _sticky_double(number)
        rounded = _FLOATS[type_](_sticky_single(real) if type_ == "bf16" else real)
        return int.from_bytes(rounded.tobytes(), "little")


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
    if row.kind == "float":
        return float(np.frombuffer(bits.to_bytes(row.bytes, "little"), _FLOATS[type_])[0])
    return wrap(bits, type_)
