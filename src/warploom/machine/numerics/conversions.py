"""Conversions of one element: integers, f16, bf16, tf32, f32 and f64 among each other.

Where the ISA is silent they do what an H200 does: f32 NaNs that come from bf16 keep their payload unless `.ftz` is
given, doubles keep sign and payload of a NaN, and `cvt.rna.tf32` truncates NaNs instead of making them canonical.
Where the two disagree the ISA holds: `.ftz` flushes the operand of `cvt.rm.ftz.f16.f32`, and a NaN under
`cvt.rna.satfinite.tf32` becomes a NaN whatever its payload.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, ElementType
from warploom.machine.numerics.bits import (
    F16,
    F32,
    F64,
    I32,
    I64,
    U16,
    U32,
    U64,
    Array,
    ArrayFunction,
    Signature,
    any_nan,
    constant,
    settle_f32,
    settle_f64,
    signed_view,
    unknown,
)
from warploom.machine.numerics.floats import flush, flush_results, rectify, round_to_bf16, saturate, widen_bf16
from warploom.machine.numerics.rounding import exact_or_odd, narrow_f64, round_bits

_INTEGRAL: dict[str, np.ufunc] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_F32 = ELEMENT_TYPES["f32"]


def from_integer(target: ElementType, source: ElementType, signature: Signature) -> ArrayFunction:
    """An integer to an integer (cut to the target's bits, or with `sat` to its range) or to a float."""
    view = signed_view(source.name)
    if not target.is_float:
        if not signature.get("sat"):
            return lambda bits: bits.view(view).astype(target.storage)
        low, high = max(source.low, target.low), min(source.high, target.high)
        least, most = constant(low, view), constant(high, view)
        return lambda bits: np.minimum(np.maximum(bits.view(view), least), most).astype(target.storage)
    rounding = signature.get("rnd") or "rn"
    narrow = _narrowing(target.name, rounding)

    def whole(bits: Array) -> Array:
        values = bits.view(view)
        if target.name == "f64" and source.bits == 64:
            result = _long_to_f64(values, rounding)
        else:
            result = narrow((exact_or_odd(values) if source.bits == 64 else values.astype(F64)).view(U64))
        return saturate(result.view(target.values)).view(target.storage) if signature.get("sat") else result

    return whole


def _long_to_f64(values: Array, rounding: str) -> Array:
    """64-bit integers to f64: the halves are exact, and what their sum loses says which way it was rounded."""
    high = (values >> constant(32, values.dtype)).astype(F64) * 2.0**32
    low = (values & constant(0xFFFFFFFF, values.dtype)).astype(F64)
    total = high + low
    lost = low - (total - high)
    bits = total.view(I64)
    match rounding:
        case "rz":
            bits -= lost * total < 0
        case "rm":
            bits -= np.where(lost < 0, np.sign(total), 0).astype(I64)
        case "rp":
            bits += np.where(lost > 0, np.sign(total), 0).astype(I64)
    codes: Array = bits.view(U64)
    return codes


def to_integer(target: ElementType, source: ElementType, signature: Signature) -> ArrayFunction:
    """A float to an integer: rounded, cut to the target's range; NaN is zero, or 2^(bits-1) from f64 or to 64 bits."""
    integral = _INTEGRAL[signature["rnd"]]
    read = _values_f64(source.name, signature.get("ftz"))
    nan = 1 << (target.bits - 1) if source.name == "f64" or target.bits == 64 else 0
    # The first value above the range is exact in float64, the last one inside it may not be.
    least, beyond = float(target.low), float(target.high + 1)
    through = U64 if target.name == "u64" else I64

    def whole_numbers(values: Array) -> Array:
        numbers: Array = values.astype(through).astype(target.storage)
        return numbers

    def whole(bits: Array) -> Array:
        values = integral(read(bits))
        inside = (values >= least) & (values < beyond)
        if np.count_nonzero(inside) == inside.size:
            return whole_numbers(values)
        result = whole_numbers(np.where(inside, values, 0.0))
        result[values >= beyond] = target.high
        result[values < least] = target.low & ((1 << target.bits) - 1)
        result[np.isnan(values)] = nan
        return result

    return whole


def _values_f64(name: str, ftz: object) -> Callable[[Array], Array]:
    match name:
        case "f16":
            return lambda bits: bits.view(F16).astype(F64)
        case "bf16":
            return lambda bits: widen_bf16(bits).view(F32).astype(F64)
        case "f32":
            return lambda bits: (flush(bits, "f32") if ftz else bits).view(F32).astype(F64)
    return lambda bits: bits.view(F64)


def _narrowing(target: str, rounding: str) -> Callable[[Array], Array]:
    """f64 bits, exact or rounded to odd, to the bits of a float type."""
    if target == "f64":
        return lambda bits: bits
    if target == "f32":
        return lambda bits: narrow_f64(bits.view(F64), rounding).view(U32)
    element = ELEMENT_TYPES[target]
    return lambda bits: round_bits(bits, ELEMENT_TYPES["f64"], element, rounding)


def float_to_float(signature: Signature) -> ArrayFunction:
    """Float to float, with what the flags add before and after."""
    target, source = signature["dtype"], signature["atype"]
    rounding, ftz = signature.get("rnd") or "rn", signature.get("ftz")
    if ftz and "f32" not in (target, source):
        raise unknown("cvt", signature)
    base = _between(target, source, rounding, bool(signature.get("satfinite")), bool(ftz))
    element = ELEMENT_TYPES[target]
    sat, relu = signature.get("sat"), signature.get("relu")
    before = ftz and source == "f32"
    if not (sat or relu or before):
        return base

    def whole(bits: Array) -> Array:
        result: Array = base(settle_f32(flush(bits, "f32").view(F32).copy()) if before else bits)
        if sat:
            result = saturate(result.view(element.values)).view(element.storage)
        return rectify(result, target) if relu else result

    return whole


def _between(target: str, source: str, rounding: str, finite: bool, ftz: bool) -> ArrayFunction:
    if target == source:
        return _integral(target, rounding)
    if target == "tf32":
        return _to_tf32(rounding, finite)
    match source, target:
        case "bf16", "f32":
            return (lambda bits: settle_f32(flush(widen_bf16(bits), "f32").view(F32))) if ftz else widen_bf16
        case "f16", "f32":
            return lambda bits: settle_f32(bits.view(F16).astype(F32))
        case _, "f64":
            read = _values_f64(source, False)
            return lambda bits: _quieted(read(bits))
        case "f32", "f16" if rounding == "rn":
            return _without_infinity(_nearest_f16, "f16") if finite else _nearest_f16
        case "f32", "bf16" if rounding == "rn":
            return _without_infinity(_nearest_bf16, "bf16") if finite else _nearest_bf16
        case "f32", "bf16" if rounding == "rz":
            return _without_infinity(_truncated_bf16, "bf16") if finite else _truncated_bf16
        case "f64", "f32":
            return _double_to_single(rounding, ftz)
    element = ELEMENT_TYPES[target]
    if source in ("f32", "f64"):
        row = ELEMENT_TYPES[source]
        return lambda bits: round_bits(bits, row, element, rounding, finite=finite)
    widen = _between("f32", source, "", finite=False, ftz=False)
    return lambda bits: round_bits(widen(bits), _F32, element, rounding, finite=finite)


def _quieted(values: Array) -> Array:
    """Doubles made from narrower floats: a NaN keeps sign and payload and becomes quiet."""
    return settle_f64(values, values.view(U64))


def _nearest_f16(bits: Array) -> Array:
    values = bits.view(F32)
    result: Array = values.astype(F16).view(U16)
    if any_nan(values):
        result[np.isnan(values)] = ELEMENT_TYPES["f16"].nan_code
    return result


def _nearest_bf16(bits: Array) -> Array:
    return round_to_bf16(bits.view(F32))


def _truncated_bf16(bits: Array) -> Array:
    result: Array = (bits >> constant(16, U32)).astype(U16)
    values = bits.view(F32)
    if any_nan(values):
        result[np.isnan(values)] = ELEMENT_TYPES["bf16"].nan_code
    return result


def _without_infinity(function: ArrayFunction, name: str) -> ArrayFunction:
    """`.satfinite`: infinite results become the largest finite ones."""
    element = ELEMENT_TYPES[name]
    size, infinity = constant(element.sign - 1, element.storage), constant(element.infinity_code, element.storage)

    def whole(bits: Array) -> Array:
        codes: Array = function(bits)
        codes -= (codes & size) == infinity
        return codes

    return whole


def _double_to_single(rounding: str, ftz: bool) -> ArrayFunction:
    def whole(bits: Array) -> Array:
        values = bits.view(F64)
        result = narrow_f64(values, rounding)
        if ftz:
            flush_results(result, "f32", lambda: values, rounding)
        codes: Array = result.view(U32)
        nan = np.isnan(values)
        if np.count_nonzero(nan):
            codes[nan] = round_bits(bits[nan], ELEMENT_TYPES["f64"], _F32, "rn")
        return codes

    return whole


def _integral(name: str, rounding: str) -> ArrayFunction:
    """A float to its own type: rounded to an integer, or only passed, where halves settle their NaNs."""
    integral = _INTEGRAL.get(rounding)
    if name == "f64":
        if integral is None:
            return lambda bits: bits.copy()
        return lambda bits: settle_f64(integral(bits.view(F64)), bits)
    if name == "f32":
        if integral is None:
            return lambda bits: bits.copy()
        return lambda bits: settle_f32(integral(bits.view(F32)))
    read = _between("f32", name, "", finite=False, ftz=False)
    back = _nearest_f16 if name == "f16" else _nearest_bf16
    if integral is None:
        return lambda bits: back(read(bits))
    return lambda bits: back(integral(read(bits).view(F32)).view(U32))


def _to_tf32(rounding: str, finite: bool) -> ArrayFunction:
    element = ELEMENT_TYPES["tf32"]
    if finite:
        return lambda bits: round_bits(bits, _F32, element, rounding, finite=True)
    exponent, kept = constant(_F32.infinity_code, U32), constant(-1 << element.padding, I32).view(U32)
    half, last = constant(1 << (element.padding - 1), U32), constant(element.padding, U32)
    one, nan = constant(1, U32), constant(element.nan_code << element.padding, U32)

    def whole(bits: Array) -> Array:
        """Rounding is an integer sum, which carries into the exponent as it should."""
        special = (bits & exponent) == exponent
        result: Array = bits if rounding == "rz" else bits + half
        if rounding == "rn":
            result += ((bits >> last) & one) - one
        if np.count_nonzero(special):
            result = np.where(special, bits, result)
        result = result & kept
        if rounding != "rna" and np.count_nonzero(special):
            result = np.where(np.isnan(bits.view(F32)), nan, result)
        return result

    return whole
