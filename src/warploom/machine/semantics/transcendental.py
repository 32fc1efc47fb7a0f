"""Exponential, logarithm, sine, cosine and hyperbolic tangent in f64: the same bits on every host.

NumPy takes these from the host's math library or from vector code chosen by the CPU, which differ in the last bits.
Here they are made of additions, multiplications, divisions, integer operations and table look-ups, which IEEE 754
defines to the bit (`machine/numerics/transcendental.py` makes the tables).

Arguments are f32, f16 or bf16 numbers widened to f64. Errors stay below 2^-48 relative to the result (2^-46 for sine
and cosine near their zeros), so that a result rounded to f32 is nearly always the nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from warploom.machine.numerics import transcendental as reference
from warploom.machine.numerics.transcendental import FIRST, LOG_BITS, LOG_CELLS, LOG_OFFSET, SHIFT, STEPS, TO_EXPONENT
from warploom.machine.semantics.vectors import Value

_ONE_WORD = 1023 << 52
_SIGN = 1 << 63


def exp2(x: Value) -> Value:
    """2^x; arguments beyond ±1000 count as ±1000."""
    c1, c2, _ = reference.powers().series
    scaled = x.lt(-1000.0).where(-1000.0, x)
    scaled = scaled.gt(1000.0).where(1000.0, scaled) * float(STEPS)
    whole = scaled + SHIFT
    index = whole.bits
    value = (x.ops.look_up("powers.words", index & (STEPS - 1), "i64") + (index << TO_EXPONENT)).number
    scaled = scaled - (whole - SHIFT)
    return (scaled * c2 + c1) * scaled * value + value


def tanh(x: Value) -> Value:
    """The hyperbolic tangent: q / (q + 2), where q is e^(2|x|) - 1."""
    c1, c2, c3 = reference.powers().series
    size = x.fabs()
    scaled = size.gt(32.0).where(32.0, size) * reference.double_log2_e()
    whole = scaled + SHIFT
    index = whole.bits
    place = index & (STEPS - 1)
    scale = (((index - place) << TO_EXPONENT) + _ONE_WORD).number
    scaled = scaled - (whole - SHIFT)
    series = scaled * (scaled * (scaled * c3 + c2) + c1)
    rest = x.ops.look_up("powers.less_one", place, "f64") + series * x.ops.look_up("powers", place, "f64")
    grown = rest * scale + (scale - 1.0)
    result = grown / (grown + 2.0)
    return ((result.bits & (_SIGN - 1)) | (x.bits & _SIGN)).number


def log2(x: Value) -> Value:
    """The logarithm to base 2 of a number of at most 24 significant bits."""
    series = reference.logarithms().series
    bits = x.bits
    above = bits - LOG_OFFSET
    cell = above.ashr(52 - LOG_BITS) & (LOG_CELLS - 1)
    exponent = above.ashr(52)
    r = (bits - (exponent << 52)).number * x.ops.look_up("logarithms.inverses", cell, "f64")
    r = r - 1.0
    total = r * series[-1]
    for coefficient in series[-2::-1]:
        total = (total + coefficient) * r
    total = total + (x.ops.look_up("logarithms", cell, "f64") + x.ops.convert("from_signed", exponent, "f64"))
    special = x.eq(0.0).where(-inf, x.eq(inf).where(inf, nan, "f64"))
    return (~(x.gt(0.0) & x.lt(inf))).rarely(special, total)


def _reduced(x: Value) -> tuple[Value, Value]:
    """Split x into n * pi / 2 + z with |z| at most pi / 4: z, and n modulo 4."""
    magnitude = x.fabs()
    plain = magnitude.lt(0.75)
    finite = magnitude.lt(inf)
    size = (plain | ~finite).where(1.0, magnitude)
    exponent = (size.bits >> 52) - 1023
    integer = (size.bits - ((exponent - 23) << 52)).number
    at = exponent - FIRST
    # An argument of f32 has an exponent of at most 127; the bound keeps any other inside the table.
    at = at.ult(128).where(at, 128)
    parts = [x.ops.look_up(f"circle.{part}", at, "f64") for part in range(4)]
    turns = integer * parts[0]
    turns = turns - x.ops.unary("rint", turns * 0.25) * 4.0
    turns = turns + integer * parts[1]
    quarters = x.ops.unary("rint", turns)
    turns = turns - quarters
    turns = turns + integer * parts[2]
    turns = turns + integer * parts[3]
    sign = x.bits & _SIGN
    z = ((turns * reference.quarter_turn()).bits ^ sign).number
    n = plain.where(0.0, (quarters.bits ^ sign).number)
    return plain.where(x, finite.where(z, nan)), x.ops.convert("to_signed", n, "i64") & 3


def _evaluate(series: tuple[float, ...], square: Value) -> Value:
    total = square * series[-1]
    for coefficient in series[-2:0:-1]:
        total = (total + coefficient) * square
    return total + series[0]


def _circular(quarter: int) -> Callable[[Value], Value]:
    """The sine of an angle so many quarter turns further."""

    def function(x: Value) -> Value:
        z, n = _reduced(x)
        n = (n + quarter) & 3
        square = z * z
        circle = reference.circle()
        sine, cosine = _evaluate(circle.sine, square) * z, _evaluate(circle.cosine, square)
        value = (n & 1).ne(0).where(cosine, sine)
        return (value.bits ^ ((n & 2) << 62)).number

    return function


sin, cos = _circular(0), _circular(1)
