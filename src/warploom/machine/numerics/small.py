"""Conversions to and from formats of at most 8 bits, by tables.

The tables are made once, on first use, from `round_bits` and from the values that ml_dtypes gives the codes.
An f32 finds its row by its upper half, the last bit of which also says whether anything follows: the formats keep at
most three bits of the mantissa, so that no rounding can tell more.
"""

from __future__ import annotations

from functools import lru_cache

import ml_dtypes
import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, ElementType
from warploom.machine.numerics.bits import F16, F32, F64, U8, U16, U32, Array, ArrayFunction, constant
from warploom.machine.numerics.rounding import rectify, round_bits

BF16 = np.dtype(ml_dtypes.bfloat16)
_F32 = ELEMENT_TYPES["f32"]
_SIXTEEN = constant(16, U32)
_LOW_HALF = constant(0xFFFF, U32)


def _all_halves() -> Array:
    return np.arange(1 << 16, dtype=U32)


def _as_f32(name: str) -> Array:
    """All 65,536 codes of f16 or bf16 as f32 bits; of f32, its upper halves."""
    codes = _all_halves()
    if name == "f16":
        return codes.astype(U16).view(F16).astype(F32).view(U32)
    return codes << _SIXTEEN


@lru_cache(maxsize=64)
def _narrowing(target_name: str, source_name: str, rounding: str, relu: bool, finite: bool) -> Array:
    """The code of `target` for every half-precision source, or for every upper half of an f32."""
    target = ELEMENT_TYPES[target_name]
    wide = _as_f32(source_name)
    codes = (
        _power_of_two(wide, rounding, finite)
        if target_name == "ue8m0"
        else round_bits(wide, _F32, target, rounding, finite=finite)
    )
    return rectify(codes, target_name) if relu else codes


def _power_of_two(bits: Array, rounding: str, finite: bool) -> Array:
    """ue8m0 of |x|: the exponent field, one more under `rp` if a mantissa follows and |x| > 2^-127.

    The ISA gives ranges and saturation; that the sign is dropped and that zero becomes 2^-127 follows NVIDIA's
    cuda_fp8.hpp. Without `satfinite` what is too large becomes NaN, the only code that is left.
    """
    size = bits & ~constant(_F32.sign, U32)
    codes = (size >> _F32.mantissa).astype(np.int32)
    nan = size > _F32.infinity_code
    if rounding == "rp":
        above = (size & ((1 << _F32.mantissa) - 1) != 0) & (size > 1 << (_F32.mantissa - 1))
        codes += above & (size < _F32.infinity_code)
    target = ELEMENT_TYPES["ue8m0"]
    if finite:
        codes = np.minimum(codes, target.largest)
    return np.where(nan, target.nan_code, codes).astype(U8)


def from_wide(target: ElementType, source: str, rounding: str, *, relu: bool, finite: bool) -> ArrayFunction:
    """f32, f16 or bf16 bits → codes of a small format."""
    if source != "f32":

        def by_code(bits: Array) -> Array:
            return _narrowing(target.name, source, rounding, relu, finite).take(bits)

        return by_code

    def by_upper_half(bits: Array) -> Array:
        row = bits >> _SIXTEEN
        row |= (bits & _LOW_HALF) != 0
        return _narrowing(target.name, "f32", rounding, relu, finite).take(row)

    return by_upper_half


@lru_cache(maxsize=64)
def _widening(source_name: str, target_name: str, relu: bool) -> Array:
    source, target = ELEMENT_TYPES[source_name], ELEMENT_TYPES[target_name]
    codes = np.arange(256).astype(U8) & U8.type((1 << source.bits) - 1)
    values = codes.view(source.values).astype(F64)
    bits: Array = values.astype(F16 if target_name == "f16" else BF16).view(U16)
    bits[np.isnan(values)] = target.nan_code
    return rectify(bits, target_name) if relu else bits


def to_wide(source: ElementType, target: str, *, relu: bool) -> ArrayFunction:
    """Codes of a small format → f16 or bf16 bits, every one of which is exact; NaN becomes the canonical one."""
    return lambda codes: _widening(source.name, target, relu).take(codes)


def stochastic(target: ElementType, bits: Array, random: Array, width: int, *, relu: bool, finite: bool) -> Array:
    """f32 bits rounded up or down by the random numbers given with them."""
    codes = round_bits(bits, _F32, target, "rs", finite=finite, random=random, random_bits=width)
    return rectify(codes, target.name) if relu else codes
