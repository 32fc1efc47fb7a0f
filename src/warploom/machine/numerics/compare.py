"""Comparison and selection: setp, set, selp, slct, and min and max of floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES, storage_of
from warploom.machine.numerics.bits import (
    F16,
    F32,
    F64,
    I32,
    SIGNED,
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
    pieces,
    settle_f32,
    settle_f64,
    signed_view,
    unknown,
)
from warploom.machine.numerics.floats import flush, flushes, widen_bf16

Test = Callable[[Array, Array], Array]

_INTEGER_TESTS: dict[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_UNSIGNED_TESTS = frozenset({"lo", "ls", "hi", "hs"})


def _numbers(a: Array, b: Array) -> Array:
    ordered: Array = ~(np.isnan(a) | np.isnan(b))
    return ordered


# NumPy's comparisons are false where an operand is NaN, except not_equal, which is true.
_FLOAT_TESTS: dict[str, Test] = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": _numbers,
    "nan": lambda a, b: ~_numbers(a, b),
}
_COMBINE: dict[str, np.ufunc] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def values_of(type_name: str, signature: Signature) -> Callable[[Array], Array]:
    """The numbers that the bits of a float type stand for; bf16 is read as float32."""
    ftz = flushes(type_name, signature)
    match type_name:
        case "f32":
            return (lambda bits: flush(bits, "f32").view(F32)) if ftz else (lambda bits: bits.view(F32))
        case "f16":
            return (lambda bits: flush(bits, "f16").view(F16)) if ftz else (lambda bits: bits.view(F16))
        case "bf16":
            return lambda bits: widen_bf16(bits).view(F32)
    return lambda bits: bits.view(F64)


def _test(signature: Signature) -> ArrayFunction:
    """The comparison alone, on arrays of elements."""
    element, comparison = element_of(signature["type"]), signature["cmp"]
    if element.is_float:
        compare, read = _FLOAT_TESTS[comparison], values_of(element.name, signature)
        return lambda a, b: compare(read(a), read(b))
    plain = _INTEGER_TESTS[comparison]
    if not element.is_signed or comparison in _UNSIGNED_TESTS or comparison in ("eq", "ne"):
        return plain
    view = signed_view(element.name)
    return lambda a, b: plain(a.view(view), b.view(view))


def setp(signature: Signature) -> ArrayFunction:
    """(a, b[, c]) → p; with `pair`, or for packed types, → (p, q).

    q is the negated comparison, combined with c as p is; for packed types p and q are the low and the high element.
    """
    test, combine = _test(signature), _COMBINE.get(signature.get("bool") or "")
    packed = PACKED_TYPES.get(signature["type"])
    if packed is not None:
        inner = packed.element.storage

        def both(a: Array, b: Array, c: Array | None = None) -> tuple[Array, Array]:
            found = test(pieces(a, inner), pieces(b, inner))
            low, high = found[0::2], found[1::2]
            return (combine(low, c), combine(high, c)) if combine is not None else (low, high)

        return both
    if signature.get("pair"):

        def pair(a: Array, b: Array, c: Array | None = None) -> tuple[Array, Array]:
            found = test(a, b)
            if combine is None:
                return found, ~found
            return combine(found, c), combine(~found, c)

        return pair
    if combine is None:
        return test
    return lambda a, b, c: combine(test(a, b), c)


def set_(signature: Signature) -> ArrayFunction:
    """(a, b[, c]) → all ones or zero in an integer type, 1.0 or 0.0 in a float type; packed types by element.

    The ISA names only 1.0f and 0xffffffff: u16 and s16 get 16 ones, and for a packed source each half is written.
    """
    test, combine = _test(signature), _COMBINE.get(signature.get("bool") or "")
    source, target = PACKED_TYPES.get(signature["type"]), signature["dtype"]
    element = element_of(target)
    fits = target in PACKED_TYPES or target in ("u32", "s32") if source else target not in PACKED_TYPES
    if not fits:
        raise unknown("set", signature)
    storage = source.element.storage if source else element.storage
    one = np.array(1, element.values) if element.is_float else constant(-1, SIGNED[storage])
    true, false = one.view(storage), constant(0, storage)

    def whole(a: Array, b: Array, c: Array | None = None) -> Array:
        if source is not None:
            a, b = pieces(a, source.element.storage), pieces(b, source.element.storage)
            c = None if c is None else np.repeat(c, 2)
        found = test(a, b)
        if combine is not None:
            found = combine(found, c)
        return np.where(found, true, false).view(storage_of(target))

    return whole


def selp(signature: Signature) -> ArrayFunction:
    """(a, b, c) → a where c."""
    return lambda a, b, c: np.where(c, a, b)


def slct(signature: Signature) -> ArrayFunction:
    """(a, b, c) → a where c ≥ 0; a NaN chooses b, and negative zero (also a flushed one) is not less than zero."""
    if signature["ctype"] == "s32":
        return lambda a, b, c: np.where(c.view(I32) >= 0, a, b)
    read = values_of("f32", signature)
    return lambda a, b, c: np.where(read(c) >= 0, a, b)


def extreme(name: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `min` or `max` of floats: two or three operands, -0 below +0, NaN only where it must be."""

    def make(signature: Signature) -> ArrayFunction:
        type_name = signature["type"]
        element = element_of(type_name).name
        return per_element(_wide(name, signature) if element == "f64" else _narrow(name, element, signature), type_name)

    return make


def _choose(name: str, propagate: bool) -> Callable[[Array, Array], Array]:
    """Minimum or maximum of two arrays of floats, bits settled by the caller.

    Not `fmin` and `fmax`: with a signalling NaN their result depends on the processor.
    """
    pick: np.ufunc = {"min": np.minimum, "max": np.maximum}[name]
    join: np.ufunc = np.bitwise_or if name == "min" else np.bitwise_and

    def choose(a: Array, b: Array) -> Array:
        result: Array = pick(a, b)
        if not propagate and any_nan(result):
            result = np.where(np.isnan(a), b, np.where(np.isnan(b), a, result))
        zero = result == 0
        if np.count_nonzero(zero):
            # Equal operands are the same bits or zeros of two signs, which the sign bits decide.
            whole = np.dtype(f"u{result.itemsize}")
            same = zero & (a == b)
            np.copyto(result.view(whole), join(a.view(whole), b.view(whole)), where=same)
        return result

    return choose


def _narrow(name: str, element: str, signature: Signature) -> ArrayFunction:
    """f32, f16 and bf16: the two halves by way of f32, which holds them exactly."""
    choose = _choose(name, bool(signature.get("nan")))
    xorsign, absolute, ftz = signature.get("xorsign"), signature.get("abs"), flushes(element, signature)
    sign = constant(ELEMENT_TYPES["f32"].sign, U32)
    nan = ELEMENT_TYPES["f32"].nan_code
    widen = _WIDENED[element]

    def whole(*operands: Array) -> Array:
        if ftz:
            operands = tuple(flush(bits, element) for bits in operands)
        wide = [widen(bits) for bits in operands]
        values = [(bits & ~sign if xorsign or absolute else bits).view(F32) for bits in wide]
        result = choose(values[0], values[1])
        for value in values[2:]:
            result = choose(result, value)
        bits = settle_f32(result)
        if xorsign:
            signs = (wide[0] ^ wide[1]) & sign
            bits = np.where(bits == nan, bits, bits | signs)
        return _NARROWED[element](bits)

    return whole


def _narrow_f16(bits: Array) -> Array:
    codes: Array = bits.view(F32).astype(F16).view(U16)
    nan = bits == ELEMENT_TYPES["f32"].nan_code
    if np.count_nonzero(nan):
        codes[nan] = ELEMENT_TYPES["f16"].nan_code
    return codes


# Unlike a conversion, this keeps the sign of a NaN, which `xorsign` reads.
_WIDENED: dict[str, Callable[[Array], Array]] = {
    "f32": lambda bits: bits,
    "f16": lambda bits: bits.view(F16).astype(F32).view(U32),
    "bf16": widen_bf16,
}
_NARROWED: dict[str, Callable[[Array], Array]] = {
    "f32": lambda bits: bits,
    "f16": _narrow_f16,
    "bf16": lambda bits: (bits >> constant(16, U32)).astype(U16),
}


def _wide(name: str, signature: Signature) -> ArrayFunction:
    choose = _choose(name, bool(signature.get("nan")))
    if set(signature) - {"type", "nan"}:
        raise unknown(name, signature)
    return lambda a, b: settle_f64(choose(a.view(F64), b.view(F64)), b, a).view(U64)
