"""Logic, shifts, bit fields, counts and permutes on arrays.

Shift counts, positions, lengths and selectors may be arrays or Python integers. Positions and lengths of fields are
taken modulo 256, as the ISA's pseudocode does (an H200 does so for 32 bits and not for 64).
NumPy's shifts by the width or more give zero, or the sign for signed numbers: exactly PTX's clamping.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics import scalar_fields
from warploom.machine.numerics.bits import (
    F64,
    I32,
    SIGNED,
    U8,
    U32,
    U64,
    Array,
    ArrayFunction,
    Signature,
    bits_of,
    constant,
    element_of,
    is_signed,
    pieces,
)

Count = Array | int

_F64 = ELEMENT_TYPES["f64"]
_BYTE = constant(0xFF, U32)
_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], U8)


def logic(name: str) -> Callable[[Signature], ArrayFunction]:
    """The factory of `and`, `or`, `xor` and `not`, of bits or predicates."""
    ufunc: np.ufunc = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}[name]
    return lambda _: ufunc


def cnot(signature: Signature) -> ArrayFunction:
    """(a) → 1 where a is zero."""
    return lambda a: (a == 0).astype(a.dtype)


def _amount(count: Count, dtype: np.dtype[np.generic]) -> Array:
    """A shift count in the type of the shifted value, cut to what a byte holds."""
    return np.minimum(count, 0xFF).astype(dtype) if isinstance(count, np.ndarray) else constant(min(count, 0xFF), dtype)


def shl(signature: Signature) -> ArrayFunction:
    """(a, b) → a shifted left; by the width or more, zero."""
    storage = element_of(signature["type"]).storage
    if storage == U32:
        return np.left_shift
    return lambda a, b: np.left_shift(a, _amount(b, storage))


def shr(signature: Signature) -> ArrayFunction:
    """(a, b) → a shifted right; by the width or more, zero or the sign."""
    type_name = signature["type"]
    storage = element_of(type_name).storage
    if is_signed(type_name):
        view = SIGNED[storage]
        return lambda a, b: np.right_shift(a.view(view), _amount(b, view)).view(storage)
    if storage == U32:
        return np.right_shift
    return lambda a, b: np.right_shift(a, _amount(b, storage))


def shf(signature: Signature) -> ArrayFunction:
    """(a, b, c) → the upper word of [b, a] shifted left, or the lower word of it shifted right."""
    left, wrap = signature["direction"] == "l", signature["mode"] == "wrap"
    word = constant(32, U32)

    def whole(a: Array, b: Array, c: Count) -> Array:
        count = np.asarray(c, U32)
        count = count & constant(31, U32) if wrap else np.minimum(count, word)
        result: Array = (b << count) | (a >> (word - count)) if left else (b << (word - count)) | (a >> count)
        return result

    return whole


def popc(signature: Signature) -> ArrayFunction:
    """(a) → the number of ones, as u32."""
    return lambda a: np.bitwise_count(a).astype(U32)


def _highest(a: Array) -> Array:
    """The position of the highest one, -1 where there is none: the exponent of a float that cannot round up."""
    lone = a & ~(a >> constant(1, a.dtype))
    exponent = (lone.astype(F64).view(U64) >> constant(_F64.mantissa, U64)).astype(I32)
    exponent -= _F64.bias
    exponent[a == 0] = -1
    return exponent


def clz(signature: Signature) -> ArrayFunction:
    """(a) → the number of leading zeros, as u32."""
    top = bits_of(signature["type"]) - 1
    return lambda a: (top - _highest(a)).view(U32)


def bfind(signature: Signature) -> ArrayFunction:
    """(a) → the position of the highest bit that differs from the sign, all ones where there is none."""
    type_name, shiftamt = signature["type"], signature.get("shiftamt")
    signed, view, top = is_signed(type_name), SIGNED[element_of(type_name).storage], bits_of(type_name) - 1

    def whole(a: Array) -> Array:
        found = _highest(np.where(a.view(view) < 0, ~a, a) if signed else a)
        if shiftamt:
            found = np.where(found < 0, found, top - found)
        return found.view(U32)

    return whole


def brev(signature: Signature) -> ArrayFunction:
    """(a) → the bits in reverse order."""
    return lambda a: _REVERSED.take(pieces(a, U8)).view(a.dtype).byteswap()


def bfe(signature: Signature) -> ArrayFunction:
    """(a, b, c) → the field of c bits from bit b, extended by zeros or by its sign."""
    type_name = signature["type"]
    storage, width = element_of(type_name).storage, bits_of(type_name)
    view = SIGNED[storage]
    zero, one = constant(0, storage), constant(1, storage)

    def unsigned(a: Array, b: Count, c: Count) -> Array:
        position, length = (np.asarray(count, U32) & _BYTE for count in (b, c))
        mask = (one << length.astype(storage)) - one
        result: Array = (a >> position.astype(storage)) & mask
        return result

    def signed(a: Array, b: Count, c: Count) -> Array:
        position, length = ((np.asarray(count, U32) & _BYTE).astype(view) for count in (b, c))
        # Up against the top bit, then back down: a field that ends beyond the top is only shifted down.
        up = np.maximum(width - position - length, 0)
        down = np.maximum(width - length, position)
        result = ((a.view(view) << up) >> down).view(storage)
        return np.where(length == 0, zero, result)

    return signed if is_signed(type_name) else unsigned


def bfi(signature: Signature) -> ArrayFunction:
    """(a, b, c, d) → b with the low d bits of a inserted from bit c."""
    storage = element_of(signature["type"]).storage
    one = constant(1, storage)

    def whole(a: Array, b: Array, c: Count, d: Count) -> Array:
        position, length = ((np.asarray(count, U32) & _BYTE).astype(storage) for count in (c, d))
        mask = ((one << length) - one) << position
        result: Array = (b & ~mask) | ((a << position) & mask)
        return result

    return whole


def bmsk(signature: Signature) -> ArrayFunction:
    """(a, b) → b ones from bit a."""
    clamp, ones = signature["mode"] == "clamp", constant(0xFFFFFFFF, U32)
    low = constant(31, U32)

    def whole(a: Array, b: Array) -> Array:
        start, length = (a, b) if clamp else (a & low, b & low)
        start, length = np.minimum(start, constant(32, U32)), np.minimum(length, constant(32, U32))
        result: Array = (ones << start) & ~(ones << np.minimum(start + length, constant(32, U32)))
        return result

    return whole


def szext(signature: Signature) -> ArrayFunction:
    """(a, b) → the low b bits of a, extended by zeros or by their sign."""
    clamp, signed = signature["mode"] == "clamp", is_signed(signature["type"])
    word = constant(32, U32)

    def whole(a: Array, b: Array) -> Array:
        length = np.minimum(b, word) if clamp else b & constant(31, U32)
        shift = word - length
        if not signed:
            result: Array = (a << shift) >> shift
            return result
        extended = ((a << shift).view(I32) >> shift.view(I32)).view(U32)
        return np.where(length == 0, constant(0, U32), extended)

    return whole


def fns(signature: Signature) -> ArrayFunction:
    """(mask, base, offset) → the position of the n-th set bit from base; lane by lane, since nothing hot uses it."""

    def whole(mask: Array, base: Array, offset: Array) -> Array:
        columns = [np.broadcast_to(operand, mask.shape).tolist() for operand in (mask, base, offset)]
        return np.array([scalar_fields.fns(*values) for values in zip(*columns, strict=True)], U32)

    return whole


def prmt(signature: Signature) -> ArrayFunction:
    """(a, b, c) → four bytes of [b, a] chosen by c; in the general form bit 3 of a choice replicates the sign."""
    mode = signature.get("mode")
    table = np.array(scalar_fields.PRMT_BYTES[mode], np.intp) if mode else None
    nibbles = np.array((0, 4, 8, 12), U32)

    def alike(a: Array, b: Array, choices: list[int]) -> Array:
        """The same choice in every lane: whole columns of bytes move."""
        columns = (pieces(a, U8), pieces(b, U8))
        result = np.empty(4 * a.size, U8)
        for at, choice in enumerate(choices):
            column = columns[choice >> 2 & 1][choice & 3 :: 4]
            result[at::4] = (column >> 7) * U8.type(0xFF) if choice & 8 else column
        return result.view(U32)

    def whole(a: Array, b: Array, c: Count) -> Array:
        first = int(c[0]) if isinstance(c, np.ndarray) else c
        if not isinstance(c, np.ndarray) or np.count_nonzero(c == c[0]) == c.size:
            return alike(
                a, b, [first >> at & 15 for at in (0, 4, 8, 12)] if table is None else table[first & 3].tolist()
            )
        both = np.stack((a, b), axis=1).view(U8)
        choice = (c[:, None] >> nibbles) & 15 if table is None else table[c & 3]
        result = np.take_along_axis(both, (choice & 7).astype(np.intp), axis=1)
        result = np.where(choice > 7, (result >> 7) * U8.type(0xFF), result)
        return np.ascontiguousarray(result).view(U32).reshape(-1)

    return whole


# Two-input functions (b, c) by the four bits of their table, f(1,1) f(1,0) f(0,1) f(0,0) from the top.
_PAIRS: tuple[Callable[[Array, Array], Array], ...] = (
    lambda b, _: np.zeros_like(b),
    lambda b, c: ~(b | c),
    lambda b, c: ~b & c,
    lambda b, _: ~b,
    lambda b, c: b & ~c,
    lambda _, c: ~c,
    lambda b, c: b ^ c,
    lambda b, c: ~(b & c),
    lambda b, c: b & c,
    lambda b, c: ~(b ^ c),
    lambda _, c: c,
    lambda b, c: ~b | c,
    lambda b, _: b,
    lambda b, c: b | ~c,
    lambda b, c: b | c,
    lambda b, _: ~np.zeros_like(b),
)


@lru_cache(maxsize=256)
def _lop3(table: int) -> Callable[[Array, Array, Array], Array]:
    """F(a, b, c) = F(0, b, c) ^ (a & (F(0, b, c) ^ F(1, b, c)))."""
    clear, change = _PAIRS[table & 15], (table ^ (table >> 4)) & 15
    if change == 0:
        return lambda _, b, c: clear(b, c)
    if change == 15:
        return lambda a, b, c: clear(b, c) ^ a
    differ = _PAIRS[change]
    if table & 15 == 0:
        return lambda a, b, c: a & differ(b, c)
    return lambda a, b, c: clear(b, c) ^ (a & differ(b, c))


def lop3(signature: Signature) -> ArrayFunction:
    """(a, b, c, table[, q]) → the function with that truth table; with `bool` → (d, whether d is not zero, with q)."""
    combine: np.ufunc | None = {"and": np.logical_and, "or": np.logical_or}.get(signature.get("bool") or "")

    def whole(a: Array, b: Array, c: Array, table: int) -> Array:
        result = _lop3(int(table) & 0xFF)(a, b, c)
        return result.copy() if result is b or result is c else result

    if combine is None:
        return whole

    def with_predicate(a: Array, b: Array, c: Array, table: int, q: Array) -> tuple[Array, Array]:
        result = whole(a, b, c, table)
        return result, combine(result != 0, q)

    return with_predicate
