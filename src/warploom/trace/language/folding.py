"""Arithmetic on numbers known while tracing, exact in the type: integers wrap, floats follow IEEE."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np

from warploom.trace.language.types import TYPES, Number, decode_bits, encode, wrap

_INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": lambda a, b: a << b if b < 64 else 0,
    "shr": lambda a, b: a >> min(b, 64),
    "div": operator.floordiv,
    "rem": operator.mod,
    "min": min,
    "max": max,
}
# One operation on numbers of a narrower type is exact enough in float64 that rounding its result once is right.
_FLOATING: dict[str, Callable[[np.float64, np.float64], np.float64]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}
COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def fold(family: str, type_: str, a: Number, b: Number) -> Number | None:
    """The result of an operation on two literals, None where only the device should decide it."""
    kind = TYPES[type_].kind
    if kind == "float":
        if family not in _FLOATING:
            return None
        with np.errstate(all="ignore"):
            result = float(_FLOATING[family](np.float64(a), np.float64(b)))
        return decode_bits(encode(result, type_), type_)
    if kind == "pair" or family not in _INTEGER or (family in ("div", "rem") and b == 0):
        return None
    return wrap(_INTEGER[family](int(a), int(b)), type_)


def convert(number: Number, source: str, target: str) -> Number | None:
    """A literal of one type as another, as `cvt` does it; None where that leaves the integer's range."""
    if TYPES[target].kind == "pred":
        return bool(number)
    if TYPES[source].kind in ("float", "narrow") and TYPES[target].kind in ("signed", "unsigned"):
        if not math.isfinite(number):
            return None
        whole = int(number)
        return whole if wrap(whole, target) == whole else None
    return decode_bits(encode(number, target), target)
