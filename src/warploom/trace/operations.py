"""Functions of values that PTX has as instructions: smallest, largest, fused multiply-add, pairs of 16-bit floats."""

from __future__ import annotations

from warploom.diagnostics import Diag
from warploom.ptx.model import Register, Vector
from warploom.trace.builder import current, here
from warploom.trace.types import PAIR_OF, TYPES, Number
from warploom.trace.values import Value, binary, compute, literal, same_type, valued


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
    b, c = valued(b, a.type), valued(c, a.type)
    same_type("fma", a, b)
    same_type("fma", a, c)
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


def pack(low: Value, high: Value) -> Value:
    """Two 16-bit floats as one pair; the first in the low bits."""
    same_type("pack", low, high)
    if low.type not in PAIR_OF:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a pair of .{low.type}")
    return merge(PAIR_OF[low.type], low, high)


def unpack(pair: Value) -> tuple[Value, Value]:
    """The two halves of a pair, the one in the low bits first."""
    if TYPES[pair.type].kind != "pair":
        raise Diag.TYPE_MISMATCH.error(here(), what=f"the halves of a .{pair.type}")
    low, high = split(pair, TYPES[pair.type].half)
    return low, high


def round_pair(low: Value, high: Value, type_: str = "bf16x2", *, relu: bool = False) -> Value:
    """Two f32 rounded to a pair by one instruction, negative ones to zero where asked."""
    same_type("round_pair", low, high)
    if low.type != "f32" or TYPES[type_].kind != "pair":
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{type_} rounded from .{low.type}")
    return compute(f"cvt.rn{'.relu' if relu else ''}.{type_}.f32", type_, high, low)


def merge(type_: str, *parts: Value) -> Value:
    """Parts laid side by side in one register, the first in the low bits."""
    builder = current("merge()")
    items = tuple(_register(part) for part in parts)
    key = ("mov.pack", *items)
    known = builder.known(key)
    if known is None:
        out = builder.register(type_)
        builder.add(f"mov.{TYPES[type_].register}", (out, Vector(items)))
        known = builder.region.known[key] = Value(type_, out, builder.region)
    return Value(type_, known.operand, known.region)


def split(whole: Value, type_: str) -> tuple[Value, ...]:
    """The parts of a register as values of a narrower type, the one in the low bits first."""
    builder = current("split()")
    count = TYPES[whole.type].bits // TYPES[type_].bits
    source = _register(whole)
    keys = [("mov.unpack", source, type_, number) for number in range(count)]
    known = tuple(value for key in keys if (value := builder.known(key)) is not None)
    if len(known) < count:
        outs = tuple(builder.register(type_) for _ in range(count))
        builder.add(f"mov.{TYPES[whole.type].register}", (Vector(outs), source))
        known = tuple(Value(type_, out, builder.region) for out in outs)
        builder.region.known.update(zip(keys, known, strict=True))
    return known


def _register(value: Value) -> Register:
    """The value in a register, a literal after a move."""
    operand = value.read()
    if not isinstance(operand, Register):
        row = TYPES[value.type]
        operand = compute(f"mov.{row.register}", value.type, Value(f"u{row.bits}", operand)).operand
    assert isinstance(operand, Register)
    return operand
