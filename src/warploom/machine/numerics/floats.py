"""Floating-point add, sub, mul and fma: one rounding each, in every type and mode.

Single precision goes through float64 where one float32 operation is not enough; half precision computes in a wider
type whose rounding does no harm (24 ≥ 2·11 + 2 bits for the sums and products of f16). The ISA leaves f32 and half NaNs
unspecified and says only that `.ftz` flushes subnormal results: a result is flushed when it is subnormal after
rounding as if the exponent had no lower end. Both are what an H200 does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import ml_dtypes
import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics import exact
from warploom.machine.numerics.bits import (
    F16,
    F32,
    F64,
    U16,
    U32,
    U64,
    Array,
    ArrayFunction,
    Signature,
    any_nan,
    constant,
    element_of,
    per_element,
    settle_f32,
    settle_f64,
    unknown,
)
from warploom.machine.numerics.rounding import narrow_f64, negative_zero_sums, odd_sum

BF16 = np.dtype(ml_dtypes.bfloat16)
Values = Callable[..., Array]

_SIXTEEN = constant(16, U32)
_LEAST = {"f32": float(np.finfo(F32).smallest_normal), "f16": float(np.finfo(F16).smallest_normal)}
_VALUES = {"f32": F32, "f16": F16}
_SIGN = {name: constant(ELEMENT_TYPES[name].sign, ELEMENT_TYPES[name].storage) for name in ("f32", "f16")}
# A power of two that lifts results near the least normal number out of reach of the exponent's lower end.
_LIFT = {"f32": 2.0**64, "f16": 2.0**10}
_TIE_F32, _BELOW_F32 = constant(1 << 28, U64), constant((1 << 29) - 1, U64)
_TIE_BF16, _BELOW_BF16 = constant(1 << 15, U32), constant((1 << 16) - 1, U32)
_OUT_OF_BOUNDS = ELEMENT_TYPES["f16"].out_of_bounds

# How each operation reads in float64: exact, or rounded to odd.
_EXACT: dict[str, Values] = {
    "add": odd_sum,
    "sub": lambda a, b: odd_sum(a, -b),
    "mul": np.multiply,
    "fma": lambda a, b, c: odd_sum(a * b, c),
}
_NATIVE: dict[str, Values] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": lambda a, b, c: a * b + c}
_TERMS: dict[str, Callable[..., tuple[Array, ...]]] = {
    "add": lambda a, b: (a, b),
    "sub": lambda a, b: (a, -b),
    "fma": lambda a, b, c: (a * b, c),
}
# Which NaN operand a double-precision result takes after, first choice first.
_NAN_ORDER: dict[str, Callable[..., tuple[Array, ...]]] = {
    "add": lambda a, b: (b, a),
    "sub": lambda a, b: (b, a),
    "mul": lambda a, b: (b, a),
    "fma": lambda a, b, c: (b, c, a),
}


def arithmetic(operation: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `add`, `sub`, `mul` or `fma` (which `mad` means for floats)."""

    def make(signature: Signature) -> ArrayFunction:
        type_name = signature["type"]
        rounding = signature.get("rnd") or "rn"
        function = {
            "f32": _single,
            "f16": _half,
            "bf16": _brain,
            "f64": _double,
        }[element_of(type_name).name](operation, rounding, signature)
        return per_element(function, type_name)

    return make


def mixed(operation: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `add.f32.f16` and its like: half-precision factors and first terms, everything else f32."""

    def make(signature: Signature) -> ArrayFunction:
        function = _single(operation, signature.get("rnd") or "rn", signature)
        widen = {"f16": widen_f16, "bf16": widen_bf16}[signature["atype"]]
        narrow_operands = 1 if operation in ("add", "sub") else 2

        def whole(*operands: Array) -> Array:
            wide = [widen(bits) for bits in operands[:narrow_operands]]
            result: Array = function(*wide, *operands[narrow_operands:])
            return result

        return whole

    return make


def widen_bf16(bits: Array) -> Array:
    """bf16 as the f32 with the same value: the upper half, NaN payload and all."""
    wide: Array = bits.astype(U32)
    wide <<= _SIXTEEN
    return wide


def widen_f16(bits: Array) -> Array:
    """f16 as the f32 with the same value."""
    return settle_f32(bits.view(F16).astype(F32))


def flushes(name: str, signature: Signature) -> bool:
    """Return whether subnormals are flushed, which only f32 and f16 support."""
    if signature.get("ftz") and name not in _LEAST:
        raise unknown(f"{name} arithmetic", signature)
    return bool(signature.get("ftz"))


def flush(bits: Array, name: str) -> Array:
    """Subnormal f32 or f16 operands as zeros of the same sign."""
    small = np.abs(bits.view(_VALUES[name])) < _LEAST[name]
    return np.where(small, bits & _SIGN[name], bits) if np.count_nonzero(small) else bits


def flush_results(values: Array, name: str, whole: Callable[[], Array], rounding: str = "rn") -> None:
    """Zero the results that are subnormal once rounded without a lower end of the exponent.

    `whole` gives the exact results in float64; only results at or below the least normal number need them, and zeros
    are zeros already.
    """
    least = _LEAST[name]
    close = np.abs(values) <= least
    if not np.count_nonzero(close):
        return
    close &= values != 0
    if np.count_nonzero(close):
        lifted = whole() * _LIFT[name]
        rounded = lifted.astype(F16) if name == "f16" else narrow_f64(lifted, rounding)
        close &= np.abs(rounded) < least * _LIFT[name]
        values[close] *= 0


def saturate(values: Array) -> Array:
    """Results cut to [0, 1], NaN and negative zero to zero."""
    zero, one = np.zeros((), values.dtype), np.ones((), values.dtype)
    return np.where(values > 0, np.minimum(values, one), zero)


def rectify(bits: Array, name: str) -> Array:
    """Negative results, also negative zero, as zero; every NaN as the canonical one, which has no sign."""
    element = ELEMENT_TYPES[name]
    return np.where(bits & constant(element.sign, bits.dtype) != 0, constant(0, bits.dtype), bits)


def _single(operation: str, rounding: str, signature: Signature) -> ArrayFunction:
    ftz, sat = signature.get("ftz"), signature.get("sat")
    if rounding != "rn":
        compute = _directed(operation, rounding)
    elif operation == "fma":
        compute = _fma_single
    else:
        compute = _NATIVE[operation]
    exactly = _EXACT[operation]

    def plain(*operands: Array) -> Array:
        return settle_f32(compute(*[bits.view(F32) for bits in operands]))

    def full(*operands: Array) -> Array:
        values = [(flush(bits, "f32") if ftz else bits).view(F32) for bits in operands]
        result = compute(*values)
        if ftz:
            flush_results(result, "f32", lambda: exactly(*[value.astype(F64) for value in values]), rounding)
        return settle_f32(saturate(result) if sat else result)

    return full if ftz or sat else plain


def _directed(operation: str, rounding: str) -> Values:
    exactly, terms = _EXACT[operation], _TERMS.get(operation)

    def compute(*values: Array) -> Array:
        wide = [value.astype(F64) for value in values]
        total = exactly(*wide)
        result = narrow_f64(total, rounding)
        if rounding == "rm" and terms is not None:
            negative_zero_sums(result, total, *terms(*wide))
        return result

    return compute


def _fma_single(a: Array, b: Array, c: Array) -> Array:
    """The product is exact in float64; the sum is rounded to odd only where its plain rounding may mislead.

    That is where the float64 sum is a midpoint of float32, or where it is below the normal numbers of float32.
    """
    product = a.astype(F64)
    product *= b
    total = product + c
    result: Array = total.astype(F32)
    doubtful = (total.view(U64) & _BELOW_F32) == _TIE_F32
    small = np.abs(total) < _LEAST["f32"]
    if np.count_nonzero(small):
        doubtful |= small & (total != 0)
    if np.count_nonzero(doubtful):
        at = np.flatnonzero(doubtful)
        result[at] = odd_sum(product[at], c[at].astype(F64)).astype(F32)
    return result


def _half(operation: str, rounding: str, signature: Signature) -> ArrayFunction:
    if rounding != "rn":
        raise unknown(operation, signature)
    ftz, sat, relu, oob = (signature.get(flag) for flag in ("ftz", "sat", "relu", "oob"))
    exactly = _EXACT[operation]
    nan = ELEMENT_TYPES["f16"].nan_code

    def native(*values: Array) -> Array:
        if operation == "fma":
            wide = [value.astype(F64) for value in values]
            total: Array = (wide[0] * wide[1] + wide[2]).astype(F16)
            return total
        return _NATIVE[operation](*values)

    def whole(*operands: Array) -> Array:
        values = [(flush(bits, "f16") if ftz else bits).view(F16) for bits in operands]
        result = native(*values)
        if ftz:
            flush_results(result, "f16", lambda: exactly(*[value.astype(F64) for value in values]))
        if sat:
            result = saturate(result)
        bits: Array = result.view(U16)
        invalid = np.isnan(result)
        if np.count_nonzero(invalid):
            bits[invalid] = nan
        if relu:
            bits = rectify(bits, "f16")
        return _zero_out_of_bounds(bits, *operands[:2]) if oob else bits

    return whole


def _brain(operation: str, rounding: str, signature: Signature) -> ArrayFunction:
    if rounding != "rn" or flushes("bf16", signature) or signature.get("sat"):
        raise unknown(operation, signature)
    compute, relu, oob = _BRAIN[operation], signature.get("relu"), signature.get("oob")

    def whole(*operands: Array) -> Array:
        bits = round_to_bf16(compute(*[widen_bf16(bits).view(F32) for bits in operands]))
        if relu:
            bits = rectify(bits, "bf16")
        return _zero_out_of_bounds(bits, *operands[:2]) if oob else bits

    return whole


def round_to_bf16(values: Array) -> Array:
    """float32 values as bf16 bits, to nearest even, NaN canonical."""
    bits: Array = values.astype(BF16).view(U16)
    if any_nan(values):
        bits[np.isnan(values)] = ELEMENT_TYPES["bf16"].nan_code
    return bits


def _product_brain(a: Array, b: Array) -> Array:
    """Exact in float32 unless subnormal there, where rounding to odd keeps the second rounding right."""
    product: Array = a * b
    small = np.abs(product) < _LEAST["f32"]
    if np.count_nonzero(small) != np.count_nonzero(product == 0):
        product = narrow_f64(a.astype(F64) * b, "odd")
    return product


def _fma_brain(a: Array, b: Array, c: Array) -> Array:
    """Rounded to float32 first, which misleads only where that is a midpoint of bf16 and not exact."""
    product = a.astype(F64)
    product *= b
    total = product + c
    result: Array = total.astype(F32)
    middle = (result.view(U32) & _BELOW_BF16) == _TIE_BF16
    if np.count_nonzero(middle):
        at = np.flatnonzero(middle)
        left, right, whole = product[at], c[at], total[at]
        exactly = (whole - left == right) & (whole - right == left) & (whole == result[at])
        if np.count_nonzero(exactly) != exactly.size:
            result[at] = narrow_f64(odd_sum(left, right.astype(F64)), "odd")
    return result


_BRAIN: dict[str, Values] = {"add": np.add, "sub": np.subtract, "mul": _product_brain, "fma": _fma_brain}


def _zero_out_of_bounds(bits: Array, a: Array, b: Array) -> Array:
    """`.oob`: zero where a factor is the NaN of either sign that marks what lies outside a tensor."""
    marks = (a == _OUT_OF_BOUNDS[0]) | (a == _OUT_OF_BOUNDS[1]) | (b == _OUT_OF_BOUNDS[0]) | (b == _OUT_OF_BOUNDS[1])
    return np.where(marks, constant(0, U16), bits)


def _double(operation: str, rounding: str, signature: Signature) -> ArrayFunction:
    if flushes("f64", signature) or signature.get("sat"):
        raise unknown(operation, signature)
    native, order = (_fma_double if operation == "fma" else _NATIVE[operation]), _NAN_ORDER[operation]
    by_lane = _BY_LANE[operation]

    def nearest(*operands: Array) -> Array:
        return settle_f64(native(*[bits.view(F64) for bits in operands]), *order(*operands))

    def directed(*operands: Array) -> Array:
        result = nearest(*operands)
        finite = np.logical_and.reduce([np.isfinite(bits.view(F64)) for bits in operands])
        exact.lanes(by_lane, rounding, finite, result, *operands)
        return result

    return nearest if rounding == "rn" else directed


_ONE_F64 = int(np.float64(1).view(U64))
_BY_LANE: dict[str, Callable[..., int]] = {
    "add": lambda a, b, rounding: exact.fma(a, _ONE_F64, b, rounding),
    "sub": lambda a, b, rounding: exact.fma(a, _ONE_F64, operator.xor(b, ELEMENT_TYPES["f64"].sign), rounding),
    "mul": exact.mul,
    "fma": exact.fma,
}


def _fma_double(a: Array, b: Array, c: Array) -> Array:
    """Error-free product and sums, the small parts rounded to odd; lanes with far exponents by Python's integers."""
    near = _within(a, 2.0**450) & _within(b, 2.0**450)
    safe = near & _within(c, 2.0**900)
    product, low = _two_product(a, b)
    high, lowest = _two_sum(c, low)
    high, rest = _two_sum(product, high)
    result = high + odd_sum(lowest, rest)
    if np.count_nonzero(safe) == safe.size:
        return result
    factors = np.isfinite(a) & np.isfinite(b)
    simple = ~(factors & np.isfinite(c)) | (a == 0) | (b == 0) | (near & (c == 0))
    np.copyto(result, product + c, where=simple)
    np.copyto(result, c, where=factors & ~np.isfinite(c))
    exact.lanes(exact.fma, "rn", ~(safe | simple), result.view(U64), a.view(U64), b.view(U64), c.view(U64))
    return result


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
