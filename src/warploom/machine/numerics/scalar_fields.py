"""Bit fields, counts and permutes on Python integers: the bit-field part of `scalar`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from warploom.machine.numerics.bits import ScalarFunction, Signature, bits_of, is_signed

_WORD = 0xFFFFFFFF


def to_signed(value: int, bits: int) -> int:
    """The number that a two's complement bit pattern means."""
    return value - ((value >> (bits - 1) & 1) << bits)


def shf(signature: Signature) -> ScalarFunction:
    left, wrap = signature["direction"] == "l", signature["mode"] == "wrap"

    def whole(a: int, b: int, c: int) -> int:
        count = c & 31 if wrap else min(c, 32)
        both = b << 32 | a
        return both << count >> 32 & _WORD if left else both >> count & _WORD

    return whole


def lop3(signature: Signature) -> ScalarFunction:
    combine = signature.get("bool")

    def whole(a: int, b: int, c: int, table: int) -> int:
        result = 0
        for index in range(8):
            if table >> index & 1:
                term = a if index & 4 else ~a
                term &= b if index & 2 else ~b
                result |= term & (c if index & 1 else ~c)
        return result & _WORD

    if not combine:
        return whole

    def with_predicate(a: int, b: int, c: int, table: int, q: bool) -> tuple[int, bool]:
        result = whole(a, b, c, table)
        return result, (result != 0 and q) if combine == "and" else (result != 0 or q)

    return with_predicate


def popc(signature: Signature) -> ScalarFunction:
    return int.bit_count


def clz(signature: Signature) -> ScalarFunction:
    bits = bits_of(signature["type"])
    return lambda a: bits - a.bit_length()


def bfind(signature: Signature) -> ScalarFunction:
    bits, mask = bits_of(signature["type"]), (1 << bits_of(signature["type"])) - 1
    signed, shiftamt = is_signed(signature["type"]), signature.get("shiftamt")

    def whole(a: int) -> int:
        found = (a ^ mask if signed and a >> (bits - 1) else a).bit_length() - 1
        return _WORD if found < 0 else bits - 1 - found if shiftamt else found

    return whole


def brev(signature: Signature) -> ScalarFunction:
    bits = bits_of(signature["type"])
    return lambda a: int(f"{a:0{bits}b}"[::-1], 2)


def bfe(signature: Signature) -> ScalarFunction:
    bits, signed, mask = bits_of(signature["type"]), is_signed(signature["type"]), (1 << bits_of(signature["type"])) - 1

    def whole(a: int, b: int, c: int) -> int:
        position, length = b & 0xFF, c & 0xFF
        if length == 0:
            return 0
        field = a >> position & (1 << length) - 1
        if not signed:
            return field
        length = min(length, bits)
        if position + length > bits:
            return to_signed(a, bits) >> min(position, bits) & mask
        return to_signed(field, length) & mask

    return whole


def bfi(signature: Signature) -> ScalarFunction:
    whole_mask = (1 << bits_of(signature["type"])) - 1

    def whole(a: int, b: int, c: int, d: int) -> int:
        position, length = c & 0xFF, d & 0xFF
        mask = ((1 << length) - 1) << position & whole_mask
        return b & ~mask | a << position & mask

    return whole


def bmsk(signature: Signature) -> ScalarFunction:
    clamp = signature["mode"] == "clamp"

    def whole(a: int, b: int) -> int:
        start, length = (min(a, 32), min(b, 32)) if clamp else (a & 31, b & 31)
        return ((1 << length) - 1) << start & _WORD

    return whole


def szext(signature: Signature) -> ScalarFunction:
    clamp, signed = signature["mode"] == "clamp", is_signed(signature["type"])

    def whole(a: int, b: int) -> int:
        length = min(b, 32) if clamp else b & 31
        field = a & (1 << length) - 1
        return to_signed(field, length) & _WORD if signed and length else field

    return whole


def fns(mask: int, base: int, offset: int) -> int:
    """The position of the n-th set bit of `mask` from `base`, upwards or downwards, all ones where there is none."""
    offset = to_signed(offset, 32)
    if offset == 0:
        return base if mask >> base & 1 else _WORD
    positions = range(base, 32) if offset > 0 else range(min(base, 31), -1, -1)
    found = [position for position in positions if mask >> position & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else _WORD


# Which of the eight bytes of [b, a] each target byte of `prmt` takes, by the two low bits of c.
PRMT_BYTES: Mapping[str, tuple[tuple[int, ...], ...]] = MappingProxyType(
    {
        "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
        "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
        "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
        "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
        "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
        "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
    }
)


def prmt(signature: Signature) -> ScalarFunction:
    mode = signature.get("mode")

    def whole(a: int, b: int, c: int) -> int:
        both = (b << 32 | a).to_bytes(8, "little")
        if mode:
            return int.from_bytes(bytes(both[choice] for choice in PRMT_BYTES[mode][c & 3]), "little")
        chosen = [(both[c >> at & 7], c >> at & 8) for at in (0, 4, 8, 12)]
        return int.from_bytes(bytes((byte >> 7) * 0xFF if sign else byte for byte, sign in chosen), "little")

    return whole


FIELD_OPS: Mapping[str, Callable[[Signature], ScalarFunction]] = MappingProxyType(
    {
        "shf": shf,
        "lop3": lop3,
        "popc": popc,
        "clz": clz,
        "bfind": bfind,
        "brev": brev,
        "bfe": bfe,
        "bfi": bfi,
        "bmsk": bmsk,
        "szext": szext,
        "prmt": prmt,
        "fns": lambda _: fns,
    }
)
