"""Division by a number known while tracing: a multiplication and shifts, exact for every dividend.

For d > 0 and dividends of n bits, floor(x / d) = x·m >> (32 + s) with m = ceil(2^(32+s) / d) wherever
m·d - 2^(32+s) ≤ 2^(32+s-n) (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
"""

from __future__ import annotations

from warploom.trace.language.operations import fma
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value, binary, compute, is_nonnegative, literal, mark_nonnegative, select

_WORD = 32


def divided(value: Value, by: int, *, remainder: bool) -> Value | None:
    """Return the quotient rounded down, or the remainder; None where the device should divide."""
    row = TYPES[value.type]
    if by == 0 or row.kind not in ("signed", "unsigned"):
        return None
    if abs(by) == 1:
        return literal(0, value.type) if remainder else -value if by < 0 else value
    if by < 0:
        return _by_negative(value, by, remainder=remainder)
    power = by.bit_length() - 1
    known = row.kind == "unsigned" or is_nonnegative(value)
    if by == 1 << power:
        result = binary("and", value, by - 1) if remainder else binary("shr", value, power)
    elif row.bits != _WORD:
        return None
    else:
        result = _unsigned(value, by, _WORD - (row.kind == "signed")) if known else _signed(value, by)
        if remainder:
            result = fma(result, -by, value)
    if known or remainder:
        mark_nonnegative(result)
    return result


def _by_negative(value: Value, by: int, *, remainder: bool) -> Value | None:
    """Divide by the magnitude; where that leaves something, the quotient is one less."""
    if by == -1 << (TYPES[value.type].bits - 1):
        return None  # the magnitude is no number of the type
    down, rest = (divided(value, -by, remainder=each) for each in (False, True))
    if down is None or rest is None:
        return None
    left_over = rest != 0
    return select(left_over, rest + by, 0) if remainder else -down - select(left_over, literal(1, value.type), 0)


def floored(left: Value, right: Value, *, remainder: bool) -> Value:
    """Return the quotient rounded down, or the remainder, of signed values that the device divides.

    The device rounds towards zero. Where the remainder is not 0 and has not the divisor's sign, that is one too many.
    """
    quotient = compute(f"div.{left.type}", left.type, left, right)
    rest = left - quotient * right
    if isinstance(right.literal, int) and right.literal > 0:
        minus = binary("shr", rest, TYPES[left.type].bits - 1)
        return rest + (right & minus) if remainder else quotient + minus
    wrong = (rest != 0) & ((rest ^ right) < 0)
    return rest + select(wrong, right, 0) if remainder else quotient + select(wrong, literal(-1, left.type), 0)


def _multiplier(by: int, bits: int) -> tuple[int, int]:
    """(m, s) for dividends of so many bits, with the smallest s; for 32 bits m may have 33."""
    for shift in range(_WORD + 1):
        scale = 1 << (_WORD + shift)
        number = -(-scale // by)
        if (number * by - scale) << bits <= scale:
            return number, shift
    raise AssertionError(f"no multiplier for {by}")


def _unsigned(value: Value, by: int, bits: int) -> Value:
    number, shift = _multiplier(by, bits)
    if number >> _WORD and by % 2 == 0:
        odd = (by & -by).bit_length() - 1
        return _unsigned(binary("shr", value, odd), by >> odd, bits - odd)
    high = compute("mul.hi.u32", value.type, value, literal(number, "u32"))
    if number >> _WORD:
        # The multiplier has 33 bits: the half of what is left keeps the sum from overflowing.
        high = binary("shr", value - high, 1) + high
        shift -= 1
    return compute("shr.u32", value.type, high, literal(shift, "u32")) if shift else high


def _signed(value: Value, by: int) -> Value:
    """Divide a value of either sign: rounding ~x towards zero and inverting again rounds a negative x down."""
    sign = binary("shr", value, _WORD - 1)
    return _unsigned(value ^ sign, by, _WORD - 1) ^ sign
