"""Double precision with Python's integers, lane by lane, for what NumPy has no exact road to.

Directed rounding of f64, and the lanes of `fma.f64` whose exponents leave the safe range, come here. It is slow and
short, and it is right by construction: every operation makes one fraction and rounds it once.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics.bits import U64, Array

_F64 = ELEMENT_TYPES["f64"]
_INFINITY = _F64.infinity_code
_MANTISSA = _F64.mantissa
_LEAST = _F64.minimum_exponent

Number = tuple[int, int]  # a signed integer and the power of two that scales it


def _number(bits: int) -> Number:
    field = (bits >> _MANTISSA) & ((1 << _F64.exponent) - 1)
    fraction = bits & ((1 << _MANTISSA) - 1)
    whole = fraction | (1 << _MANTISSA) if field else fraction
    return (-whole if bits & _F64.sign else whole), max(field, 1) - _F64.bias - _MANTISSA


def _round(negative: bool, top: int, bottom: int, rounding: str) -> int:
    """The bits of ±top/bottom, both positive."""
    exponent = top.bit_length() - bottom.bit_length()
    if (top << max(0, -exponent)) < (bottom << max(0, exponent)):
        exponent -= 1
    above = max(exponent, _LEAST)
    quantum = above - _MANTISSA
    top, bottom = top << max(0, -quantum), bottom << max(0, quantum)
    kept, rest = divmod(top, bottom)
    twice = 2 * rest
    up = {
        "rn": twice > bottom or (twice == bottom and kept & 1),
        "rz": False,
        "rm": rest and negative,
        "rp": rest and not negative,
    }[rounding]
    code = ((above - _LEAST) << _MANTISSA) + kept + bool(up)
    if code > _F64.largest:
        away = rounding in ("rn", "rm" if negative else "rp")
        code = _INFINITY if away else _F64.largest
    return code | (_F64.sign if negative else 0)


def _scaled(value: int, power: int) -> tuple[int, int]:
    return (value << power, 1) if power >= 0 else (value, 1 << -power)


def fma(a: int, b: int, c: int, rounding: str) -> int:
    """The sum a × b + c of finite numbers."""
    (x, i), (y, j), (z, k) = _number(a), _number(b), _number(c)
    least = min(i + j, k)
    total = (x * y << (i + j - least)) + (z << (k - least))
    if total == 0:
        signs = {bool((a ^ b) & _F64.sign), bool(c & _F64.sign)}
        return _F64.sign if signs == {True} or (len(signs) == 2 and rounding == "rm") else 0
    return _round(total < 0, *_scaled(abs(total), least), rounding)


def mul(a: int, b: int, rounding: str) -> int:
    """The product of finite numbers."""
    (x, i), (y, j) = _number(a), _number(b)
    if x * y == 0:
        return (a ^ b) & _F64.sign
    return _round(x * y < 0, *_scaled(abs(x * y), i + j), rounding)


def div(a: int, b: int, rounding: str) -> int:
    """The quotient of finite numbers that are not zero."""
    (x, i), (y, j) = _number(a), _number(b)
    top, bottom = _scaled(abs(x), i - j)
    return _round((x < 0) != (y < 0), top, bottom * abs(y), rounding)


def sqrt(a: int, rounding: str) -> int:
    """The root of a finite positive number: enough digits, and one more that says whether any follow."""
    x, i = _number(a)
    shift = 2 * (_F64.bits + 2) + (i & 1)
    root = isqrt(x << shift)
    sticky = root * root != x << shift
    return _round(False, *_scaled(2 * root + sticky, (i - shift) // 2 - 1), rounding)


def lanes(function: Callable[..., int], rounding: str, where: Array, result: Array, *operands: Array) -> None:
    """Replace the lanes of a result that `where` names by the exact ones."""
    at = np.flatnonzero(where)
    columns = [operand[at].tolist() for operand in operands]
    result[at] = np.array([function(*values, rounding) for values in zip(*columns, strict=True)], U64)
