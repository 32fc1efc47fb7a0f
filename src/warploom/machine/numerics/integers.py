"""Integer arithmetic on arrays: sums, products, quotients, carries, dot products.

Division and remainder by zero give all ones, as an H200 does; the ISA calls the value unspecified.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from warploom.machine.numerics.bits import (
    I8,
    I16,
    I32,
    I64,
    SIGNED,
    U8,
    U16,
    U32,
    U64,
    Array,
    ArrayFunction,
    Signature,
    constant,
    element_of,
    is_signed,
    per_element,
    pieces,
    signed_view,
)

_LIMITS_S32 = np.iinfo(I32)
_WIDER = {U16: U32, U32: U64, I16: I32, I32: I64}
_HALF = constant(32, U64)
_LOW_WORD = constant(0xFFFFFFFF, U64)


def saturate_s32(values: Array) -> Array:
    """64-bit results cut to the range of s32."""
    return np.clip(values, _LIMITS_S32.min, _LIMITS_S32.max).astype(I32).view(U32)


def sum_(name: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `add` or `sub`; with `sat` (s32 only) the result is cut instead of wrapped."""
    ufunc: np.ufunc = {"add": np.add, "sub": np.subtract}[name]

    def make(signature: Signature) -> ArrayFunction:
        if signature.get("sat"):
            return lambda a, b: saturate_s32(ufunc(a.view(I32), b.view(I32), dtype=I64))
        return per_element(ufunc, signature["type"])

    return make


def extreme(name: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `min` or `max`; `relu` raises negative results to zero."""
    ufunc: np.ufunc = {"min": np.minimum, "max": np.maximum}[name]

    def make(signature: Signature) -> ArrayFunction:
        type_name, relu = signature["type"], signature.get("relu")
        if not is_signed(type_name):
            return per_element(ufunc, type_name)
        view, storage = signed_view(type_name), element_of(type_name).storage
        zero = constant(0, view)

        def signed(a: Array, b: Array) -> Array:
            result: Array = ufunc(a.view(view), b.view(view))
            if relu:
                np.maximum(result, zero, out=result)
            return result.view(storage)

        return per_element(signed, type_name)

    return make


def high_u64(a: Array, b: Array) -> Array:
    """The upper 64 bits of unsigned 128-bit products, by halves."""
    a_low, a_high, b_low, b_high = a & _LOW_WORD, a >> _HALF, b & _LOW_WORD, b >> _HALF
    middle = a_high * b_low + (a_low * b_low >> _HALF)
    cross = a_low * b_high + (middle & _LOW_WORD)
    result: Array = a_high * b_high + (middle >> _HALF) + (cross >> _HALF)
    return result


def high_s64(a: Array, b: Array) -> Array:
    """The upper 64 bits of signed 128-bit products: the unsigned ones less what a sign bit was counted for."""
    result = high_u64(a, b)
    zero = constant(0, U64)
    result -= np.where(a.view(I64) < 0, b, zero)
    result -= np.where(b.view(I64) < 0, a, zero)
    return result


def product(type_name: str, mode: str) -> ArrayFunction:
    """(a, b) → the low half, the high half or the whole of a × b."""
    view = signed_view(type_name)
    storage = element_of(type_name).storage
    if mode == "lo":
        return np.multiply
    if mode == "hi" and storage == U64:
        return high_s64 if is_signed(type_name) else high_u64
    wide = _WIDER[view]
    outer = _WIDER[storage]

    def whole(a: Array, b: Array) -> Array:
        result: Array = np.multiply(a.view(view), b.view(view), dtype=wide)
        return result.view(outer)

    if mode == "wide":
        return whole
    shift = constant(8 * storage.itemsize, outer)
    return lambda a, b: (whole(a, b) >> shift).astype(storage)


def product24(type_name: str, mode: str) -> ArrayFunction:
    """(a, b) → bits 31..0 or 47..16 of the product of the low 24 bits."""
    eight = constant(8, U32)

    def whole(a: Array, b: Array) -> Array:
        view = signed_view(type_name)
        wide = U64 if view == U32 else I64
        values = [(bits << eight).view(view) >> eight.view(view) for bits in (a, b)]
        result: Array = np.multiply(*values, dtype=wide)
        return (result >> (0 if mode == "lo" else 16)).astype(U32)

    return whole


def mul(signature: Signature) -> ArrayFunction:
    """(a, b) → a × b."""
    return product(signature["type"], signature["mode"])


def mul24(signature: Signature) -> ArrayFunction:
    """(a, b) → the product of 24-bit integers."""
    return product24(signature["type"], signature["mode"])


def _multiply_add(multiply: ArrayFunction, signature: Signature) -> ArrayFunction:
    if signature.get("sat"):
        return lambda a, b, c: saturate_s32(np.add(multiply(a, b).view(I32), c.view(I32), dtype=I64))
    return lambda a, b, c: multiply(a, b) + c


def mad(signature: Signature) -> ArrayFunction:
    """(a, b, c) → a × b + c; `mad.hi.sat.s32` cuts the sum."""
    return _multiply_add(product(signature["type"], signature["mode"]), signature)


def mad24(signature: Signature) -> ArrayFunction:
    """(a, b, c) → the product of 24-bit integers, plus c."""
    return _multiply_add(product24(signature["type"], signature["mode"]), signature)


def sad(signature: Signature) -> ArrayFunction:
    """(a, b, c) → c + |a - b|."""
    view, storage = signed_view(signature["type"]), element_of(signature["type"]).storage

    def whole(a: Array, b: Array, c: Array) -> Array:
        low, high = np.minimum(a.view(view), b.view(view)), np.maximum(a.view(view), b.view(view))
        result: Array = high.view(storage) - low.view(storage) + c
        return result

    return whole


def _divided(signature: Signature, *, quotient: bool) -> ArrayFunction:
    type_name = signature["type"]
    storage = element_of(type_name).storage
    ufunc: np.ufunc = np.floor_divide if quotient else np.remainder
    ones = constant(-1, SIGNED[storage]).view(storage)
    signed, view = is_signed(type_name), SIGNED[storage]

    def whole(a: Array, b: Array) -> Array:
        zero = b == 0
        divisor = np.where(zero, storage.type(1), b) if np.count_nonzero(zero) else b
        if signed:
            # Magnitudes divide without overflow; C's signs are put back afterwards.
            a_negative, b_negative = a.view(view) < 0, divisor.view(view) < 0
            result: Array = ufunc(np.where(a_negative, -a, a), np.where(b_negative, -divisor, divisor))
            np.negative(result, out=result, where=a_negative ^ b_negative if quotient else a_negative)
        else:
            result = ufunc(a, divisor)
        result[zero] = ones
        return result

    return whole


def div(signature: Signature) -> ArrayFunction:
    """(a, b) → a ÷ b, truncated; the least signed number divided by -1 is itself."""
    return _divided(signature, quotient=True)


def rem(signature: Signature) -> ArrayFunction:
    """(a, b) → the remainder, with the sign of a."""
    return _divided(signature, quotient=False)


def absolute(signature: Signature) -> ArrayFunction:
    """(a) → |a|; the least signed number is its own."""
    view, storage = signed_view(signature["type"]), element_of(signature["type"]).storage
    return lambda a: np.abs(a.view(view)).view(storage)


def negate(signature: Signature) -> ArrayFunction:
    """(a) → -a."""
    return np.negative


def carried(name: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of the carry family. Operands end with the carry where it is read; with `cc` → (d, carry).

    add.cc, addc, sub.cc, subc, mad.cc and madc. There is one adder: a subtraction adds the complement and a carry, so
    that its carry out means "no borrow". nvcc's 128-bit division reads it so, with `addc` behind `sub.cc`.
    """
    reads = name in ("addc", "subc", "madc")
    multiplies, subtracts = name.startswith("mad"), name.startswith("sub")

    def make(signature: Signature) -> ArrayFunction:
        writes = name.endswith(".cc") or bool(signature.get("cc"))
        multiply = product(signature["type"], signature["mode"]) if multiplies else None

        def whole(*operands: Array) -> Array | tuple[Array, Array]:
            carry = operands[-1] if reads else None
            a, b = (multiply(*operands[:2]), operands[2]) if multiply is not None else operands[:2]
            result: Array = a - b if subtracts else a + b
            out: Array = a >= b if subtracts else result < a
            if carry is not None and subtracts:
                before, step = result, (~carry).astype(result.dtype)
                result, out = before - step, out & (before >= step)
            elif carry is not None:
                before, result = result, result + carry.astype(result.dtype)
                out = out | (result < before)
            return (result, out) if writes else result

        return whole

    return make


_BYTES = {"u32": U8, "s32": I8}
_SHORTS = {"u32": U16, "s32": I16}


def dp4a(signature: Signature) -> ArrayFunction:
    """(a, b, c) → c plus the sum of four products of bytes."""
    a_view, b_view = _BYTES[signature["atype"]], _BYTES[signature["btype"]]

    def whole(a: Array, b: Array, c: Array) -> Array:
        products = np.multiply(pieces(a, a_view), pieces(b, b_view), dtype=I32)
        total: Array = products.reshape(-1, 4).sum(axis=1, dtype=I32).view(U32)
        total += c
        return total

    return whole


def dp2a(signature: Signature) -> ArrayFunction:
    """(a, b, c) → c plus the sum of two products of a's halves with the lower or upper bytes of b."""
    a_view, b_view = _SHORTS[signature["atype"]], _BYTES[signature["btype"]]
    first = 0 if signature["mode"] == "lo" else 2

    def whole(a: Array, b: Array, c: Array) -> Array:
        shorts = pieces(a, a_view).reshape(-1, 2)
        chosen = pieces(b, b_view).reshape(-1, 4)[:, first : first + 2]
        total: Array = np.multiply(shorts, chosen, dtype=I64).sum(axis=1, dtype=I64).astype(U32)
        total += c
        return total

    return whole
