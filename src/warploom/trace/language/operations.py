"""Functions of values that PTX has as instructions: smallest, largest, fused multiply-add."""

from __future__ import annotations

from warploom.diagnostics import Diag
from warploom.trace.builder import here
from warploom.trace.language.types import TYPES, Number
from warploom.trace.language.values import Value, binary, compute, literal, same_type, unified, valued


def min_(a: Value, b: Value | Number) -> Value:
    """The smaller of two; of a number and NaN the number."""
    return binary("min", a, b)


def max_(a: Value, b: Value | Number) -> Value:
    """The larger of two; of a number and NaN the number."""
    return binary("max", a, b)


def clamp(value: Value, low: Value | Number, high: Value | Number) -> Value:
    """The value, or the bound that it passes."""
    return min_(max_(value, low), high)


def abs_(value: Value) -> Value:
    """The magnitude."""
    row, number = TYPES[value.type], value.literal
    if number is not None:
        return literal(abs(number), value.type)
    if row.kind == "unsigned":
        return value.get()
    if row.kind == "pred":
        raise Diag.TYPE_MISMATCH.error(here(), what="`abs` of .pred")
    if row.wide:
        return abs_(value.to(row.wide)).to(value.type)
    return compute(f"abs.{value.type}", value.type, value)


def fma(a: Value, b: Value | Number, c: Value | Number) -> Value:
    """a·b + c; floats round once."""
    a, b = unified("fma", a, valued(b, a.type))
    a, c = unified("fma", a, valued(c, a.type))
    a, b = unified("fma", a, b)
    row = TYPES[a.type]
    if row.kind == "pred":
        raise Diag.TYPE_MISMATCH.error(here(), what="`fma` of .pred")
    if row.kind in ("float", "pair"):
        return compute(f"fma.rn.{a.type}", a.type, a, b, c)
    if row.wide or None not in (a.literal, b.literal) or 0 in (a.literal, b.literal, c.literal):
        return a * b + c
    return compute(f"mad.lo.{a.type}", a.type, a, b, c)


def widening_product(a: Value, b: Value | Number) -> Value:
    """The whole product of two 16- or 32-bit integers, in twice the bits."""
    b = valued(b, a.type)
    same_type("widening_product", a, b)
    row = TYPES[a.type]
    if row.kind not in ("signed", "unsigned") or row.bits not in (16, 32):
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`widening_product` of .{a.type}")
    wide = f"{a.type[0]}{2 * row.bits}"
    if a.literal is not None and b.literal is not None:
        return literal(a.literal * b.literal, wide)
    return compute(f"mul.wide.{a.type}", wide, a, b)


def copysign(magnitude: Value, sign: Value) -> Value:
    """A magnitude with the sign of another value."""
    same_type("copysign", magnitude, sign)
    return compute(f"copysign.{magnitude.type}", magnitude.type, sign, magnitude)
