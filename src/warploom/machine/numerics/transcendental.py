"""Tables and coefficients of the transcendental functions (`machine/semantics/transcendental.py`).

They come from integer arithmetic at first use, so that they are the same on every host.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import factorial, isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_BITS = 400
"""Fraction bits of the integers that stand for real numbers here."""
_ONE = 1 << _BITS

STEPS_BITS = 14
STEPS = 1 << STEPS_BITS
"""Powers of two in the table of 2^x, for each power of two."""
SHIFT = 1.5 * 2.0**52
"""Added to a small number, it rounds it to an integer, which the low bits of the sum then hold."""
TO_EXPONENT = 52 - STEPS_BITS


def _float(value: int) -> float:
    """The float64 nearest to a fixed-point number."""
    return float(Fraction(value, _ONE))


def _arctan_of_inverse(n: int) -> int:
    """arctan(1/n), fixed-point."""
    power = total = _ONE // n
    sign, k = -1, 3
    while power:
        power //= n * n
        total += sign * (power // k)
        sign, k = -sign, k + 2
    return total


@cache
def _pi() -> int:
    """Machin's sum, fixed-point."""
    return 4 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239))


@cache
def _ln2() -> int:
    """The sum of 1 / (k 2^k), fixed-point."""
    return sum((_ONE >> k) // k for k in range(1, _BITS))


class _Powers(NamedTuple):
    """The table of 2^(i / STEPS) for i below STEPS."""

    values: NDArray[np.float64]
    words: NDArray[np.int64]
    """The values' words less i << TO_EXPONENT: with n << TO_EXPONENT added, that of 2^(n / STEPS)."""
    series: tuple[float, ...]
    """The coefficients of 2^(r / STEPS) - 1 from r on."""


_TABLE_BITS = 128
"""Fraction bits of the table's entries while it is made."""


@cache
def _exact_powers() -> list[int]:
    """The powers in fixed point, with `_TABLE_BITS`."""
    root = 2 * _ONE
    for _ in range(STEPS_BITS):
        root = isqrt(root << _BITS)
    root >>= _BITS - _TABLE_BITS
    found = [1 << _TABLE_BITS]
    for _ in range(STEPS - 1):
        found.append(found[-1] * root >> _TABLE_BITS)
    return found


@cache
def powers() -> _Powers:
    """The table of powers of two, made at first use."""
    # One bit more than a float64 has, to round by: what is cut off after it is 0 for the first power alone.
    cut = _TABLE_BITS - 53
    halves = np.array([one >> cut for one in _exact_powers()], np.int64)
    values: NDArray[np.float64] = ((halves + 1) >> 1).astype(np.float64) / 2**52
    words = values.view(np.int64) - (np.arange(STEPS, dtype=np.int64) << TO_EXPONENT)
    step = _ln2() // STEPS
    series, power = [], _ONE
    for k in range(1, 4):
        power = power * step >> _BITS
        series.append(_float(power // factorial(k)))
    return _Powers(values, words, tuple(series))


@cache
def powers_less_one() -> NDArray[np.float64]:
    """The values of the table less one, which have more bits then."""
    exact = _exact_powers()
    return np.array([(one - exact[0]) / exact[0] for one in exact])  # the division of integers rounds to nearest


@cache
def double_log2_e() -> float:
    """Steps of the table in 2 / ln 2."""
    return _float((2 * STEPS * _ONE << _BITS) // _ln2())


LOG_BITS = 7
LOG_CELLS = 1 << LOG_BITS
LOG_OFFSET = (1022 << 52) + (0x6B << 44)
"""The bits of about sqrt(1/2): numbers are taken between it and twice it, and 1 lies inside a cell of the table."""


class _Logarithms(NamedTuple):
    """For each cell an inverse of few bits and its negative logarithm; the series of log2(1 + r) without r^0."""

    inverses: NDArray[np.float64]
    logarithms: NDArray[np.float64]
    series: tuple[float, ...]


def _log2(value: Fraction) -> float:
    """The logarithm of a number in [1/2, 2), by squaring: each square tells one bit."""
    sign = 1
    if value < 1:
        value, sign = 1 / value, -1
    x, bits, digits = int(value * (1 << 128)), 0, 80
    for _ in range(digits):
        x = x * x >> 128
        bits <<= 1
        if x >> 129:
            bits |= 1
            x >>= 1
    return float(sign * Fraction(bits, 1 << digits))


@cache
def logarithms() -> _Logarithms:
    """The table of logarithms, made at first use."""
    inverses, negatives = [], []
    for cell in range(LOG_CELLS):
        first = np.array([LOG_OFFSET + (cell << (52 - LOG_BITS)), LOG_OFFSET + ((cell + 1) << (52 - LOG_BITS))])
        low, high = (Fraction(float(one)) for one in first.view(np.float64))
        inverse = Fraction(1) if low <= 1 < high else Fraction(round(2 / (low + high) * 1024), 1024)
        inverses.append(float(inverse))
        negatives.append(_log2(1 / inverse) if inverse != 1 else 0.0)
    series = [_float((1 if k % 2 else -1) * ((_ONE << _BITS) // _ln2()) // k) for k in range(1, 9)]
    return _Logarithms(np.array(inverses), np.array(negatives), tuple(series))


class _Circle(NamedTuple):
    """2^(e - 23) * 2 / pi modulo 4 in four parts for each exponent e from 0 on; the series of sine and cosine."""

    parts: NDArray[np.float64]
    sine: tuple[float, ...]
    cosine: tuple[float, ...]


_PART = 26
FIRST = -1
"""The least exponent of an argument that is reduced."""


@cache
def circle() -> _Circle:
    """The parts of 2 / pi and the series, made at first use."""
    digits = 300
    two_over_pi = (2 * _ONE << digits) // _pi()
    parts = []
    for exponent in range(FIRST, 128):
        shifted = two_over_pi << (exponent + 64) >> (64 + 23)
        turns = shifted & ((4 << digits) - 1)
        row, done = [], digits + 2
        for number in range(4):
            done = digits + 2 - _PART * (number + 1)
            row.append(float(Fraction(turns >> done << done, 1 << digits)))
            turns &= (1 << done) - 1
        parts.append(row)
    sine = tuple(float(Fraction((-1) ** k, factorial(2 * k + 1))) for k in range(9))
    cosine = tuple(float(Fraction((-1) ** k, factorial(2 * k))) for k in range(10))
    return _Circle(np.ascontiguousarray(np.array(parts).T), sine, cosine)


@cache
def quarter_turn() -> float:
    """Pi / 2."""
    return _float(_pi() // 2)
