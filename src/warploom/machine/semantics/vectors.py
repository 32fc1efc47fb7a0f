"""The vector language of instruction semantics: typed values of all lanes, and the operations on them.

The arithmetic of an instruction is written once, as a Python function of `Value`s. The operations of a value belong
to a lowering (`Ops`): `GraphOps` collects them for NumPy and Python source, `LlvmOps` writes LLVM text. Every
operation is one that IEEE 754 or integer arithmetic defines to the bit: there is no call of a math library, no
contraction and no reassociation.

Types are `i1` (predicates), `i8`, `i16`, `i32`, `i64`, `f32` and `f64`. Integers have no sign; an operation that
needs one names it. Shift counts must be below the width. Integer divisors must not be zero. Conversions to integers
must be in range. The semantics select such operands first, as PTX defines the results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WIDTHS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f32": 32, "f64": 64}
"""Bits of each type."""


class EngineError(Exception):
    """Native code cannot be compiled or linked on this computer."""


class UnsupportedError(Exception):
    """An instruction form that the engine does not execute; the reference does."""


class Ops(ABC):
    """The operations of a lowering."""

    @abstractmethod
    def constant(self, type_: str, value: float) -> Value:
        """The same number in every lane; integers wrap to the type."""

    @abstractmethod
    def binary(self, name: str, a: Value, b: Value) -> Value:
        """One of add, sub, mul, div (floats), udiv, urem, and, or, xor, shl, lshr, ashr."""

    @abstractmethod
    def unary(self, name: str, a: Value) -> Value:
        """One of sqrt, rint, floor, ceil, trunc, fabs (floats); popcount, leading_zeros, reverse (integers)."""

    @abstractmethod
    def compare(self, name: str, a: Value, b: Value) -> Value:
        """Integers: eq, ne, ult, ule, ugt, uge, slt, sle, sgt, sge.

        Floats: eq, lt, le, gt, ge, which are false for NaN, and ne, which is true.
        """

    @abstractmethod
    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        """The first value where the condition holds, else the second."""

    def select_rarely(self, condition: Value, yes: Value, no: Value) -> Value:
        """The same, where the condition seldom holds in any lane: a lowering may compute the first value only then."""
        return self.select(condition, yes, no)

    @abstractmethod
    def convert(self, name: str, a: Value, type_: str) -> Value:
        """One of zext, sext, trunc, bits, extend, round, from_signed, from_unsigned, to_signed, to_unsigned.

        `bits` reinterprets; `extend` and `round` are f32 to f64 and back, to nearest even.
        """

    @abstractmethod
    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """A × b + c with one rounding; UnsupportedError where the host has no such instruction."""

    def from_half(self, a: Value) -> Value | None:
        """The f32 that f16 bits (i16) stand for, of NaN one with its sign; None without such an operation."""
        return None

    def to_half(self, a: Value) -> Value | None:
        """The bits of the f16 nearest to an f32, ties to even; any for NaN; None without such an operation."""
        return None

    def tabulated(self, name: str, compute: Callable[[Value], Value], index: Value, type_: str) -> Value | None:
        """A function of i8 or i16, of which `name` says everything, as a table of all its results; None where they are
        computed.
        """
        return None

    @abstractmethod
    def look_up(self, table: str, index: Value, type_: str) -> Value:
        """Elements of a table of `tables.TABLES`; the index (i64) must be in range."""


@dataclass(frozen=True, slots=True)
class Value:
    """One number per lane."""

    ops: Ops
    type: str
    ref: Any

    @property
    def width(self) -> int:
        return WIDTHS[self.type]

    def _other(self, other: Value | float) -> Value:
        return other if isinstance(other, Value) else self.ops.constant(self.type, other)

    def constant(self, type_: str, value: float) -> Value:
        return self.ops.constant(type_, value)

    def __add__(self, other: Value | float) -> Value:
        return self.ops.binary("add", self, self._other(other))

    def __sub__(self, other: Value | float) -> Value:
        return self.ops.binary("sub", self, self._other(other))

    def __rsub__(self, other: float) -> Value:
        return self.ops.binary("sub", self._other(other), self)

    def __mul__(self, other: Value | float) -> Value:
        return self.ops.binary("mul", self, self._other(other))

    def __truediv__(self, other: Value | float) -> Value:
        return self.ops.binary("div", self, self._other(other))

    def __rtruediv__(self, other: float) -> Value:
        return self.ops.binary("div", self._other(other), self)

    def __and__(self, other: Value | int) -> Value:
        return self.ops.binary("and", self, self._other(other))

    def __or__(self, other: Value | int) -> Value:
        return self.ops.binary("or", self, self._other(other))

    def __xor__(self, other: Value | int) -> Value:
        return self.ops.binary("xor", self, self._other(other))

    def __invert__(self) -> Value:
        return self ^ (1 if self.type == "i1" else (1 << self.width) - 1)

    def __lshift__(self, other: Value | int) -> Value:
        return self.ops.binary("shl", self, self._other(other))

    def __rshift__(self, other: Value | int) -> Value:
        return self.ops.binary("lshr", self, self._other(other))

    def ashr(self, other: Value | int) -> Value:
        return self.ops.binary("ashr", self, self._other(other))

    def udiv(self, other: Value) -> Value:
        return self.ops.binary("udiv", self, other)

    def urem(self, other: Value) -> Value:
        return self.ops.binary("urem", self, other)

    def compare(self, name: str, other: Value | float) -> Value:
        return self.ops.compare(name, self, self._other(other))

    def eq(self, other: Value | float) -> Value:
        return self.compare("eq", other)

    def ne(self, other: Value | float) -> Value:
        return self.compare("ne", other)

    def lt(self, other: Value | float) -> Value:
        """Less, of floats; false for NaN."""
        return self.compare("lt", other)

    def gt(self, other: Value | float) -> Value:
        return self.compare("gt", other)

    def ult(self, other: Value | int) -> Value:
        return self.compare("ult", other)

    def slt(self, other: Value | int) -> Value:
        return self.compare("slt", other)

    @property
    def is_nan(self) -> Value:
        return self.compare("ne", self)

    def where(self, yes: Value | float, no: Value | float, type_: str = "") -> Value:
        """A choice by this condition; `type_` is needed where both are numbers."""
        first = yes if isinstance(yes, Value) else self.ops.constant(type_ or no.type, yes)  # type: ignore[union-attr]
        second = no if isinstance(no, Value) else self.ops.constant(first.type, no)
        return self.ops.select(self, first, second)

    def rarely(self, yes: Value | float, no: Value) -> Value:
        """A choice by this condition, which seldom holds in any lane."""
        first = yes if isinstance(yes, Value) else self.ops.constant(no.type, yes)
        return self.ops.select_rarely(self, first, no)

    def zext(self, type_: str) -> Value:
        return self if type_ == self.type else self.ops.convert("zext", self, type_)

    def sext(self, type_: str) -> Value:
        return self if type_ == self.type else self.ops.convert("sext", self, type_)

    def trunc(self, type_: str) -> Value:
        return self if type_ == self.type else self.ops.convert("trunc", self, type_)

    def fit(self, type_: str, *, signed: bool = False) -> Value:
        """An integer in another width: extended or cut."""
        if WIDTHS[type_] > self.width:
            return self.sext(type_) if signed else self.zext(type_)
        return self.trunc(type_)

    @property
    def bits(self) -> Value:
        """A float's bit pattern."""
        return self.ops.convert("bits", self, f"i{self.width}")

    @property
    def number(self) -> Value:
        """The float that a pattern of 32 or 64 bits stands for."""
        return self.ops.convert("bits", self, f"f{self.width}")

    @property
    def wide(self) -> Value:
        """f32 as f64."""
        return self.ops.convert("extend", self, "f64")

    @property
    def narrow(self) -> Value:
        """f64 rounded to f32."""
        return self.ops.convert("round", self, "f32")

    def sqrt(self) -> Value:
        return self.ops.unary("sqrt", self)

    def fabs(self) -> Value:
        return self.ops.unary("fabs", self)

    def umin(self, other: Value | int) -> Value:
        chosen = self._other(other)
        return self.ult(chosen).where(self, chosen)

    def smax(self, other: Value | int) -> Value:
        chosen = self._other(other)
        return self.slt(chosen).where(chosen, self)

    def smin(self, other: Value | int) -> Value:
        chosen = self._other(other)
        return self.slt(chosen).where(self, chosen)
