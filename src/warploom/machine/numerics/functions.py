"""Division, roots and the transcendental functions.

The rounded forms are exact. The approximate ones (`.approx`, `.full`) are computed in float64 and rounded to nearest:
closer than the ISA asks, so that a kernel may differ from a GPU by the GPU's own error. Seen on an H200 for normal
arguments and results: rcp, sqrt and rsqrt one unit in the last place, ex2 two, tanh 2^-16 relative, lg2 and (over a few
turns) sin and cos about 1e-6 absolute. Special values are the ISA's; sin and cos of huge arguments, for which the ISA
promises nothing, are those of the exact argument. `transcendental` makes them the same on every host.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics import exact, transcendental
from warploom.machine.numerics.bits import (
    F16,
    F32,
    F64,
    U16,
    U64,
    Array,
    ArrayFunction,
    Signature,
    constant,
    element_of,
    per_element,
    settle_f32,
    settle_f64,
    unknown,
)
from warploom.machine.numerics.floats import flush, flush_results, round_to_bf16, widen_bf16
from warploom.machine.numerics.rounding import narrow_f64

Values = Callable[..., Array]

_DOUBLE: dict[str, Values] = {
    "div": np.divide,
    "rcp": lambda x: np.divide(1.0, x),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.divide(1.0, np.sqrt(x)),
    "ex2": transcendental.exp2,
    "lg2": transcendental.log2,
    "sin": transcendental.sin,
    "cos": transcendental.cos,
    "tanh": transcendental.tanh,
}
_ROUNDED = frozenset({"rn", "rz", "rm", "rp"})


def function(name: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of a division, root or transcendental function."""

    def make(signature: Signature) -> ArrayFunction:
        type_name = signature["type"]
        makers = {"f32": _single, "f64": _double, "f16": _half, "bf16": _half}
        return per_element(makers[element_of(type_name).name](name, signature), type_name)

    return make


def _single(name: str, signature: Signature) -> ArrayFunction:
    """In float64 the quotient or root of float32 numbers lies on the right side of every float32 and midpoint."""
    compute, ftz = _DOUBLE[name], signature.get("ftz")
    rounding = signature.get("rnd") or "rn"
    directed = rounding if rounding in _ROUNDED else "rn"

    def whole(*operands: Array) -> Array:
        bits = [flush(operand, "f32") for operand in operands] if ftz else operands
        wide = compute(*[operand.view(F32).astype(F64) for operand in bits])
        result = narrow_f64(wide, directed)
        if ftz:
            flush_results(result, "f32", lambda: wide, directed)
        return settle_f32(result)

    return _with_huge_divisors(whole) if name == "div" and rounding == "approx" else whole


def _with_huge_divisors(divide: ArrayFunction) -> ArrayFunction:
    """`div.approx` by |b| > 2^126 gives a zero of the quotient's sign, and NaN where a is infinite."""

    def whole(a: Array, b: Array) -> Array:
        bits: Array = divide(a, b)
        size = np.abs(b.view(F32))
        huge = (size > 2.0**126) & (size < np.inf)
        if np.count_nonzero(huge):
            element = ELEMENT_TYPES["f32"]
            quotient = np.where(np.isinf(a.view(F32)), element.nan_code, (a ^ b) & element.sign).astype(bits.dtype)
            nan = np.isnan(a.view(F32))
            bits = np.where(huge & ~nan, quotient, bits)
        return bits

    return whole


def _half(name: str, signature: Signature) -> ArrayFunction:
    """f16 and bf16 have ex2 and tanh; bf16's ex2 always flushes subnormals."""
    compute = _DOUBLE[name]
    if name not in ("ex2", "tanh"):
        raise unknown(name, signature)
    if element_of(signature["type"]).name == "bf16":

        def brain(bits: Array) -> Array:
            wide = widen_bf16(bits)
            if name == "ex2":
                wide = flush(wide, "f32")
            result = narrow_f64(compute(wide.view(F32).astype(F64)), "odd")
            if name == "ex2":
                result = flush(result.view(np.uint32), "f32").view(F32)
            return round_to_bf16(result)

        return brain

    def half(bits: Array) -> Array:
        result = compute(bits.view(F16).astype(F64)).astype(F16)
        codes: Array = result.view(U16)
        codes[np.isnan(result)] = ELEMENT_TYPES["f16"].nan_code
        return codes

    return half


def _double(name: str, signature: Signature) -> ArrayFunction:
    rounding = signature.get("rnd") or "rn"
    if name == "rsqrt" and not signature.get("ftz"):
        rounding = "rn"
    elif rounding == "approx" or name == "rsqrt":
        return _upper_half(_DOUBLE[name])
    if name not in ("div", "rcp", "sqrt", "rsqrt") or rounding not in _ROUNDED:
        raise unknown(name, signature)
    compute, by_lane = _DOUBLE[name], _BY_LANE.get(name)

    def nearest(*operands: Array) -> Array:
        return settle_f64(compute(*[bits.view(F64) for bits in operands]), *operands)

    def directed(*operands: Array) -> Array:
        assert by_lane is not None
        result = nearest(*operands)
        values = [bits.view(F64) for bits in operands]
        plain = np.logical_and.reduce([np.isfinite(value) & (value != 0) for value in values])
        if name == "sqrt":
            plain &= values[0] > 0
        exact.lanes(by_lane, rounding, plain, result, *operands)
        return result

    return nearest if rounding == "rn" else directed


_ONE_F64 = int(np.float64(1).view(U64))
_BY_LANE: dict[str, Callable[..., int]] = {
    "div": exact.div,
    "rcp": lambda a, rounding: exact.div(_ONE_F64, a, rounding),
    "sqrt": exact.sqrt,
}
_UPPER = constant(0xFFFFFFFF << 32, U64)
_LEAST_F64 = float(np.finfo(F64).smallest_normal)


def _upper_half(compute: Values) -> ArrayFunction:
    """`rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64`: only the upper words take part; subnormals are zeros."""
    nan = constant(0x7FFFFFFF << 32, U64)

    def whole(bits: Array) -> Array:
        values = (bits & _UPPER).view(F64)
        values = np.where(np.abs(values) < _LEAST_F64, np.copysign(0.0, values), values)
        result = compute(values)
        result = np.where(np.abs(result) < _LEAST_F64, np.copysign(0.0, result), result)
        return np.where(np.isnan(result), nan, result.view(U64) & _UPPER)

    return whole
