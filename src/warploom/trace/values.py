"""Device values: what a kernel's Python expressions are made of while it is traced.

A value has a PTX type and an operand. Arithmetic on literals is done at once; on registers it emits one instruction, or
none where the same expression is already known in this region.
"""

from __future__ import annotations

import struct
from typing import NoReturn, TypeVar

from warploom.diagnostics import Diag
from warploom.ptx.isa.table import BITS
from warploom.ptx.model import Immediate, Operand, Register, Special, Symbol
from warploom.trace.builder import Region, current, here

INTEGERS = ("s16", "u16", "s32", "u32", "s64", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")
_REGISTER = {"s16": "b16", "u16": "b16", "f16": "b16", "bf16": "b16", "s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64", "f16x2": "b32", "bf16x2": "b32"}
_FOLD = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "div": lambda a, b: int(a / b) if a % b and (a < 0) != (b < 0) else a // b,
    "rem": lambda a, b: a - b * (int(a / b) if a % b and (a < 0) != (b < 0) else a // b),
    "min": min,
    "max": max,
}
_COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}

Number = int | float | bool
Like = TypeVar("Like")


class Value:
    """One device value: an operand of a PTX type, alive in the region that made it."""

    __slots__ = ("operand", "region", "type")
    __hash__ = object.__hash__

    def __init__(self, type_: str, operand: Operand, region: Region | None = None) -> None:
        self.type, self.operand = type_, operand
        self.region = region

    @property
    def literal(self) -> int | float | None:
        """The Python number a literal stands for, None for what only the device knows."""
        if not isinstance(self.operand, Immediate):
            return None
        if self.operand.kind == "int":
            return self.operand.value
        return float(struct.unpack("<f" if self.operand.kind == "f32" else "<d", struct.pack("<I" if self.operand.kind == "f32" else "<Q", self.operand.value))[0])

    def read(self) -> Operand:
        """The operand, for use in the region being traced."""
        builder = current("A device value")
        if self.region is not None and not self.region.holds(builder.region):
            raise Diag.VALUE_OUT_OF_SCOPE.error(here(), kind=self.region.kind, made=self.region.loc)
        return self.operand

    def to(self, type_: str) -> Value:
        """The value converted: integers wrap or extend, floating-point results round to nearest even."""
        if type_ == self.type:
            return self
        if self.literal is not None:
            return literal(self.literal, type_)
        if type_ in INTEGERS and self.type in INTEGERS and BITS[type_] == BITS[self.type]:
            return Value(type_, self.operand, self.region)
        return compute(f"cvt{_rounding(self.type, type_)}.{type_}.{self.type}", type_, self)

    def __repr__(self) -> str:
        return f"Value({self.type} {self.operand})"

    def __bool__(self) -> NoReturn:
        raise Diag.BRANCH_ON_DEVICE_VALUE.error(here())

    def __index__(self) -> NoReturn:
        raise Diag.BRANCH_ON_DEVICE_VALUE.error(here())

    def __add__(self, other: Value | Number) -> Value:
        return binary("add", self, other)

    def __radd__(self, other: Number) -> Value:
        return binary("add", self, other)

    def __sub__(self, other: Value | Number) -> Value:
        return binary("sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return binary("sub", literal(other, self.type), self)

    def __mul__(self, other: Value | Number) -> Value:
        return binary("mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return binary("mul", self, other)

    def __truediv__(self, other: Value | Number) -> Value:
        return binary("div", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return binary("div", literal(other, self.type), self)

    def __floordiv__(self, other: Value | Number) -> Value:
        return binary("div", self, other)

    def __mod__(self, other: Value | Number) -> Value:
        return binary("rem", self, other)

    def __and__(self, other: Value | Number) -> Value:
        return binary("and", self, other)

    def __or__(self, other: Value | Number) -> Value:
        return binary("or", self, other)

    def __xor__(self, other: Value | Number) -> Value:
        return binary("xor", self, other)

    def __lshift__(self, other: Value | Number) -> Value:
        return binary("shl", self, other)

    def __rshift__(self, other: Value | Number) -> Value:
        return binary("shr", self, other)

    def __invert__(self) -> Value:
        return compute(f"not.{_bits_type(self.type)}", self.type, self)

    def __neg__(self) -> Value:
        return compute(f"neg.{self.type}", self.type, self) if self.literal is None else literal(-self.literal, self.type)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return compare("eq", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return compare("ne", self, other)

    def __lt__(self, other: Value | Number) -> Value:
        return compare("lt", self, other)

    def __le__(self, other: Value | Number) -> Value:
        return compare("le", self, other)

    def __gt__(self, other: Value | Number) -> Value:
        return compare("gt", self, other)

    def __ge__(self, other: Value | Number) -> Value:
        return compare("ge", self, other)


def literal(number: Number, type_: str) -> Value:
    """A Python number as a value of a type."""
    if type_ == "pred":
        return Value(type_, Immediate(int(bool(number))))
    if type_ in ("f32", "f64"):
        code, size = ("<f", "f32") if type_ == "f32" else ("<d", "f64")
        return Value(type_, Immediate(int.from_bytes(struct.pack(code, float(number)), "little"), size))
    if isinstance(number, float) and not number.is_integer():
        raise Diag.TYPE_MISMATCH.error(here(), what=f"{number} is not a .{type_}")
    bits, value = BITS[type_], int(number)
    wrapped = value & ((1 << bits) - 1)
    if type_.startswith("s") and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return Value(type_, Immediate(wrapped))


def special(name: str, type_: str = "u32") -> Value:
    """A hardware register such as `tid.x`."""
    return compute(f"mov.{type_}", type_, Value(type_, Special(f"%{name}")))


def address_of(name: str, type_: str = "u32") -> Value:
    """The address of a variable in its own space."""
    return compute(f"mov.{type_}", type_, Value(type_, Symbol(name)))


def compute(opcode: str, type_: str, *inputs: Value) -> Value:
    """One pure instruction, or what it gave when the same was asked before."""
    builder = current(f"`{opcode}`")
    operands = tuple(value.read() for value in inputs)
    key = (opcode, *operands)
    known = builder.region.known.get(key)
    if known is None:
        out = builder.register(_REGISTER.get(type_, type_))
        builder.add(opcode, (out, *operands))
        known = builder.region.known[key] = (out, builder.region)
    register, region = known
    assert isinstance(register, Register) and isinstance(region, Region)
    return Value(type_, register, region)


def binary(family: str, left: Value, other: Value | Number) -> Value:
    """An operator of two values of one type; a Python number takes the type of the other side."""
    amount = family in ("shl", "shr")
    right = other if isinstance(other, Value) else literal(other, "u32" if amount else left.type)
    if right.type != left.type and not amount:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`{family}` of .{left.type} and .{right.type}")
    simple = _simplified(family, left, right)
    return simple if simple is not None else compute(_spelling(family, left.type), left.type, left, right)


def _simplified(family: str, left: Value, right: Value) -> Value | None:
    a, b = left.literal, right.literal
    if a is not None and b is not None and family in _FOLD and left.type not in ("f16", "bf16"):
        if family == "div" and left.type in FLOATS:
            return literal(a / b, left.type) if b else None
        if family in ("div", "rem") and b == 0:
            return None
        return literal(_FOLD[family](a, b), left.type)
    if b == 0 and family in ("add", "sub", "or", "xor", "shl", "shr") and left.type not in FLOATS:
        return left
    if b == 1 and family in ("mul", "div"):
        return left
    if a == 0 and family in ("add", "or", "xor") and left.type not in FLOATS:
        return right
    if a == 1 and family == "mul":
        return right
    if left.type in ("u32", "u64") and isinstance(b, int) and b > 0 and b & (b - 1) == 0:
        power = literal(b.bit_length() - 1, "u32")
        if family == "mul":
            return binary("shl", left, power)
        if family == "div":
            return binary("shr", left, power)
        if family == "rem":
            return binary("and", left, literal(b - 1, left.type))
    return None


def _spelling(family: str, type_: str) -> str:
    if family in ("and", "or", "xor", "shl"):
        return f"{family}.{_bits_type(type_)}"
    if family == "mul" and type_ in INTEGERS:
        return f"mul.lo.{type_}"
    if family == "div" and type_ in ("f32", "f64"):
        return f"div.rn.{type_}"
    return f"{family}.{type_}"


def _bits_type(type_: str) -> str:
    return "pred" if type_ == "pred" else f"b{BITS[type_]}"


def _rounding(source: str, target: str) -> str:
    if target in FLOATS and (source in INTEGERS or BITS[target] < BITS[source]):
        return ".rn"
    return ".rzi" if source in FLOATS and target in INTEGERS else ""


def compare(relation: str, left: Value, other: object) -> Value:
    """A predicate."""
    if not isinstance(other, Value | int | float):
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{left.type} compared with {other!r:.40}")
    right = other if isinstance(other, Value) else literal(other, left.type)
    if right.type != left.type:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`{relation}` of .{left.type} and .{right.type}")
    a, b = left.literal, right.literal
    if a is not None and b is not None:
        return literal(_COMPARE[relation](a, b), "pred")
    if left.type == "pred":
        same = binary("xor", left, right)
        return same if relation == "ne" else ~same
    kind = left.type if relation not in ("eq", "ne") or left.type in FLOATS else _bits_type(left.type)
    return compute(f"setp.{relation}.{kind}", "pred", left, right)


def select(condition: Value, then: Value | Number, otherwise: Value | Number) -> Value:
    """`then` where the condition holds, else `otherwise`."""
    typed = then if isinstance(then, Value) else otherwise
    if not isinstance(typed, Value):
        typed = literal(typed, "s32" if isinstance(typed, int) else "f32")
    a, b = (side if isinstance(side, Value) else literal(side, typed.type) for side in (then, otherwise))
    if a.type != b.type:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"`select` of .{a.type} and .{b.type}")
    if condition.literal is not None:
        return a if condition.literal else b
    return compute(f"selp.{a.type if a.type in ('f32', 'f64') else _bits_type(a.type)}", a.type, a, b, condition)


class Variable:
    """A device variable: a register that is assigned in place, across loops and branches."""

    __slots__ = ("_region", "_register", "type")

    def __init__(self, type_: str, start: Value | Number) -> None:
        builder = current("A variable")
        self.type = type_
        self._register = builder.register(_REGISTER.get(type_, type_))
        self._region = builder.region
        self.set(start)

    def get(self) -> Value:
        """The value now: later assignments do not change what was read."""
        return compute(f"mov.{_move_type(self.type)}", self.type, Value(self.type, self._register, self._region))

    def set(self, value: Value | Number) -> None:
        """Assign, from here on."""
        new = value if isinstance(value, Value) else literal(value, self.type)
        if new.type != self.type:
            raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{new.type} assigned to a .{self.type} variable")
        builder = current("A variable")
        if not self._region.holds(builder.region):
            raise Diag.VALUE_OUT_OF_SCOPE.error(here(), kind=self._region.kind, made=self._region.loc)
        builder.add(f"mov.{_move_type(self.type)}", (self._register, new.read()))
        builder.forget(self._register)

    def __iadd__(self, other: Value | Number) -> Variable:
        self.set(self.get() + other)
        return self

    def __isub__(self, other: Value | Number) -> Variable:
        self.set(self.get() - other)
        return self

    def __ixor__(self, other: Value | Number) -> Variable:
        self.set(self.get() ^ other)
        return self


def _move_type(type_: str) -> str:
    return type_ if type_ in ("pred", "f32", "f64") else f"b{BITS[type_]}"
