"""Double precision that one operation of the host does not round: directed modes, fused multiply-add, approximations.

The vector language has the other forms (`machine/semantics/floating.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics import exact
from warploom.machine.numerics.bits import F64, I64, U64, Array, ArrayFunction, Signature, constant, settle_f64, unknown

Values = Callable[..., Array]

_ONE = int(np.float64(1).view(U64))
_SUMS: dict[str, Values] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
_BY_LANE: dict[str, Callable[..., int]] = {
    "add": lambda a, b, rounding: exact.fma(a, _ONE, b, rounding),
    "sub": lambda a, b, rounding: exact.fma(a, _ONE, operator.xor(b, ELEMENT_TYPES["f64"].sign), rounding),
    "mul": exact.mul,
    "fma": exact.fma,
    "div": exact.div,
    "rcp": lambda a, rounding: exact.div(_ONE, a, rounding),
    "sqrt": exact.sqrt,
}
_FUNCTIONS: dict[str, Values] = {
    "div": np.divide,
    "rcp": lambda x: np.divide(1.0, x),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.divide(1.0, np.sqrt(x)),
}
_ROUNDED = frozenset({"rn", "rz", "rm", "rp"})
_UPPER = constant(0xFFFFFFFF << 32, U64)
_LEAST = float(np.finfo(F64).smallest_normal)


def arithmetic(operation: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `add`, `sub`, `mul` or `fma` (which `mad` means for floats) of f64."""

    def make(signature: Signature) -> ArrayFunction:
        rounding = signature.get("rnd") or "rn"
        if signature["type"] != "f64" or signature.get("ftz") or signature.get("sat"):
            raise unknown(operation, signature)
        native, by_lane = _fma if operation == "fma" else _SUMS[operation], _BY_LANE[operation]

        def nearest(*operands: Array) -> Array:
            # A NaN comes from b, then from c, then from a.
            return settle_f64(native(*[bits.view(F64) for bits in operands]), *operands[1:], operands[0])

        def directed(*operands: Array) -> Array:
            result = nearest(*operands)
            finite = np.logical_and.reduce([np.isfinite(bits.view(F64)) for bits in operands])
            exact.lanes(by_lane, rounding, finite, result, *operands)
            return result

        return nearest if rounding == "rn" else directed

    return make


def function(name: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `div`, `rcp`, `sqrt` or `rsqrt` of f64."""

    def make(signature: Signature) -> ArrayFunction:
        rounding = signature.get("rnd") or "rn"
        if signature["type"] != "f64":
            raise unknown(name, signature)
        if name == "rsqrt" and not signature.get("ftz"):
            rounding = "rn"
        elif rounding == "approx" or name == "rsqrt":
            return _upper_half(_FUNCTIONS[name])
        if rounding not in _ROUNDED:
            raise unknown(name, signature)
        return _rounded(name, rounding)

    return make


def _rounded(name: str, rounding: str) -> ArrayFunction:
    compute = _FUNCTIONS[name]

    def nearest(*operands: Array) -> Array:
        return settle_f64(compute(*[bits.view(F64) for bits in operands]), *operands)

    def directed(*operands: Array) -> Array:
        result = nearest(*operands)
        values = [bits.view(F64) for bits in operands]
        plain = np.logical_and.reduce([np.isfinite(value) & (value != 0) for value in values])
        if name == "sqrt":
            plain &= values[0] > 0
        exact.lanes(_BY_LANE[name], rounding, plain, result, *operands)
        return result

    return nearest if rounding == "rn" else directed


def _upper_half(compute: Values) -> ArrayFunction:
    """`rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64`: only the upper words take part; subnormals are zeros."""
    nan = constant(0x7FFFFFFF << 32, U64)

    def whole(bits: Array) -> Array:
        values = (bits & _UPPER).view(F64)
        values = np.where(np.abs(values) < _LEAST, np.copysign(0.0, values), values)
        result = compute(values)
        result = np.where(np.abs(result) < _LEAST, np.copysign(0.0, result), result)
        return np.where(np.isnan(result), nan, result.view(U64) & _UPPER)

    return whole


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Error-free product and sums, the small parts rounded to odd; lanes with far exponents by Python's integers."""
    near = _within(a, 2.0**450) & _within(b, 2.0**450)
    safe = near & _within(c, 2.0**900)
    product, low = _two_product(a, b)
    high, lowest = _two_sum(c, low)
    high, rest = _two_sum(product, high)
    result = high + _odd_sum(lowest, rest)
    if np.count_nonzero(safe) == safe.size:
        return result
    factors = np.isfinite(a) & np.isfinite(b)
    simple = ~(factors & np.isfinite(c)) | (a == 0) | (b == 0) | (near & (c == 0))
    np.copyto(result, product + c, where=simple)
    np.copyto(result, c, where=factors & ~np.isfinite(c))
    exact.lanes(exact.fma, "rn", ~(safe | simple), result.view(U64), a.view(U64), b.view(U64), c.view(U64))
    return result


def _odd_sum(left: Array, right: Array) -> Array:
    """The sum in float64, rounded to odd: an inexact one has an odd last bit, so that the next rounding is right."""
    total: Array = left + right
    part = total - left
    lost = (left - (total - part)) + (right - part)
    bits = total.view(I64)
    inexact = (lost > 0) | (lost < 0)
    if np.count_nonzero(inexact):
        inexact &= (bits & constant(1, I64)) == 0
        away = (lost > 0) == (total > 0)
        bits += np.where(inexact, np.where(away, 1, -1), 0)
    return total


def _within(values: Array, limit: float) -> Array:
    size = np.abs(values)
    return (size < limit) & (size > 1 / limit)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _halves(values: Array) -> tuple[Array, Array]:
    scaled = values * (2.0**27 + 1)
    high = scaled - (scaled - values)
    return high, values - high
