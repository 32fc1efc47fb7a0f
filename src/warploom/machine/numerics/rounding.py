"""Rounding, exactly: sums that keep what they lose, and one routine that rounds any float to any narrower one.

*Round to odd* gives an inexact sum an odd last bit, so that it can sit neither on a representable value nor on a
midpoint of a format with at most 51 bits, and the second rounding is right.
"""

from __future__ import annotations

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, ElementType
from warploom.machine.numerics.bits import F64, I64, U64, Array, constant

_ONE = constant(1, I64)


def odd_sum(left: Array, right: Array) -> Array:
    """The sum in float64, rounded to odd."""
    total: Array = left + right
    part = total - left
    lost = (left - (total - part)) + (right - part)
    bits = total.view(I64)
    inexact = (lost > 0) | (lost < 0)
    if np.count_nonzero(inexact):
        inexact &= (bits & _ONE) == 0
        away = (lost > 0) == (total > 0)
        bits += np.where(inexact, np.where(away, 1, -1), 0)
    return total


def rectify(bits: Array, name: str) -> Array:
    """Negative results, also negative zero, as zero; every NaN as the canonical one, which has no sign."""
    element = ELEMENT_TYPES[name]
    return np.where(bits & constant(element.sign, bits.dtype) != 0, constant(0, bits.dtype), bits)


def round_bits(
    bits: Array,
    source: ElementType,
    target: ElementType,
    rounding: str,
    *,
    finite: bool = False,
    random: Array | None = None,
    random_bits: int = 0,
) -> Array:
    """Round float bit patterns of one type to another, whatever the types: the definition that tables are made from.

    With `finite`, what does not fit becomes the largest finite value. NaN becomes the target's NaN, or its largest
    value where it has none; from float64 it keeps its sign and the top of its payload, as an H200 does.
    `random` are the numbers that `rs` adds below the last bit, aligned with the first discarded one.
    """
    wide = bits.astype(I64)
    sign = (wide >> (source.bits - 1)) & 1
    field = (wide >> source.mantissa) & ((1 << source.exponent) - 1)
    fraction = wide & ((1 << source.mantissa) - 1)
    special = field == (1 << source.exponent) - 1
    significand = np.where(field != 0, fraction | (1 << source.mantissa), fraction)
    exponent = np.maximum(field, 1) - source.bias

    above = np.maximum(exponent, target.minimum_exponent)
    drop = source.mantissa - target.mantissa + (above - exponent)
    drop = np.minimum(drop, 62)
    kept = significand >> drop
    rest = significand & ((_ONE << drop) - 1)
    kept += _goes_up(kept, rest, drop, sign, rounding, random, random_bits)
    code = ((above - target.minimum_exponent) << target.mantissa) + kept

    overflow = code > target.largest
    infinite = special & (fraction == 0)
    code = np.where(overflow & ~infinite, _beyond(target, rounding, finite, sign), code)
    code = np.where(infinite, target.largest if finite else target.infinity_code, code)
    code |= sign << (target.bits - 1) if target.has_sign else 0
    nan = special & (fraction != 0)
    if np.count_nonzero(nan):
        code = np.where(nan, _nan(target, source, sign, fraction), code)
    return (code << target.padding).astype(target.storage)


def _goes_up(
    kept: Array, rest: Array, drop: Array, sign: Array, rounding: str, random: Array | None, random_bits: int
) -> Array:
    half = (_ONE << drop) >> 1
    up: Array = np.zeros(kept.shape, bool)
    match rounding:
        case "rn":
            up = (rest > half) | ((rest == half) & (drop > 0) & ((kept & 1) == 1))
        case "rna":
            up = (rest >= half) & (drop > 0)
        case "rm":
            up = (rest > 0) & (sign == 1)
        case "rp":
            up = (rest > 0) & (sign == 0)
        case "rs":
            assert random is not None
            # What is dropped below the random bits cannot change whether their sum carries.
            up = ((rest >> (drop - random_bits)) + random.astype(I64)) >> random_bits != 0
    return up


def _beyond(target: ElementType, rounding: str, finite: bool, sign: Array) -> Array | int:
    """The result for a magnitude above the largest finite one."""
    if finite or rounding == "rz":
        return target.largest
    match rounding:
        case "rm":
            return np.where(sign == 1, target.infinity_code, target.largest)
        case "rp":
            return np.where(sign == 0, target.infinity_code, target.largest)
    return target.infinity_code


def _nan(target: ElementType, source: ElementType, sign: Array, fraction: Array) -> Array | int:
    if source.name != "f64" or target.infinity is None:
        return target.nan_code
    quiet = 1 << (target.mantissa - 1)
    payload = fraction >> (source.mantissa - target.mantissa)
    code: Array = (sign << (target.bits - 1)) | target.infinity | quiet | payload
    return code


def exact_or_odd(values: Array) -> Array:
    """64-bit integers as float64, rounded to odd where they have more than 53 bits."""
    magnitude = np.abs(values) if values.dtype == I64 else values
    long = magnitude.view(U64) >> 53 != 0
    if np.count_nonzero(long):
        low = constant(0xFFF, values.dtype)
        sticky = ((values & low) != 0).astype(values.dtype) << 11
        values = np.where(long, (values & ~low) | sticky, values)
    result: Array = values.astype(F64)
    return result
