"""Division by a number known while tracing: a multiplication and shifts, exact for every dividend.

For d > 0 and dividends of n bits, floor(x / d) = x·m >> (32 + s) with m = ceil(2^(32+s) / d) wherever
m·d - 2^(32+s) ≤ 2^(32+s-n) (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
"""

from __future__ import annotations

from warploom.trace.language.operations import fma
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value, binary, compute, is_nonnegative, literal, mark_nonnegative

_WORD = 32


def divided(value: Value, by: int, *, remainder: bool) -> Value | None:
    """The quotient towards zero, or what it leaves; None where the device should divide."""
    row, size = TYPES[value.type], abs(by)
    if by == 0 or row.kind not in ("signed", "unsigned") or by == -1 << (row.bits - 1):
        return None
    power = size.bit_length() - 1
    known = row.kind == "unsigned" or is_nonnegative(value)
    if size == 1:
        return literal(0, value.type) if remainder else -value if by < 0 else value
    if size == 1 << power:
        quotient = _by_power(value, power, known)
    elif row.bits != _WORD:
        return None
    else:
        quotient = _unsigned(value, size, _WORD - (row.kind == "signed")) if known else _signed(value, size)
    result = quotient
    if remainder:
        whole = size == 1 << power and known
        result = binary("and", value, size - 1) if whole else fma(quotient, -size, value)
    elif by < 0:
        result = -quotient
    if known and (remainder or by > 0):
        mark_nonnegative(result)
    return result


def _by_power(value: Value, power: int, known: bool) -> Value:
    """A shift, which rounds downwards: a negative dividend is first brought up to the next multiple."""
    if known:
        return binary("shr", value, power)
    bits = TYPES[value.type].bits
    sign = binary("shr", value, bits - 1)
    up = binary("shr", sign.bits(f"u{bits}"), bits - power).bits(value.type)
    return binary("shr", value + up, power)


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
    number, shift = _multiplier(by, _WORD - 1)
    high = compute("mul.hi.s32", value.type, value, literal(number, "s32"))
    if number >> (_WORD - 1):
        high = high + value
    down = binary("shr", high, shift)
    return down - binary("shr", value, _WORD - 1)
