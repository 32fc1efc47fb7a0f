"""Integer semantics: sums, products, quotients, carries, shifts, bit fields, permutes, logic and SIMD video.

Division and remainder by zero give all ones, as an H200 does; the ISA calls the value unspecified. Positions and
lengths of fields are taken modulo 256, as the ISA's pseudocode does (an H200 does so for 32 bits and not for 64).
"""

from __future__ import annotations

from collections.abc import Callable

from warploom.machine.numerics.bits import Signature
from warploom.machine.semantics.vectors import Value

Semantics = Callable[..., Value]


def _signed(signature: Signature) -> bool:
    return str(signature["type"]).startswith("s")


def _saturated(value: Value) -> Value:
    """A sum in 64 bits, cut to the range of s32."""
    return value.smin((1 << 31) - 1).smax(-(1 << 31)).trunc("i32")


def total(name: str) -> Callable[[Signature], Semantics]:
    """The factory of `add` or `sub`."""

    def make(signature: Signature) -> Semantics:
        def plain(a: Value, b: Value) -> Value:
            return a + b if name == "add" else a - b

        if signature.get("sat"):
            return lambda a, b: _saturated(plain(a.sext("i64"), b.sext("i64")))
        return plain

    return make


def extreme(name: str) -> Callable[[Signature], Semantics]:
    """The factory of `min` or `max`."""

    def make(signature: Signature) -> Semantics:
        test = ("s" if _signed(signature) else "u") + ("lt" if name == "min" else "gt")
        relu = signature.get("relu") and _signed(signature)

        def whole(a: Value, b: Value) -> Value:
            result = a.compare(test, b).where(a, b)
            return result.smax(0) if relu else result

        return whole

    return make


def _extended(value: Value, signed: bool) -> Value:
    """An integer in twice the width."""
    return value.fit(f"i{2 * value.width}", signed=signed)


def _high_unsigned(a: Value, b: Value) -> Value:
    """The upper 64 bits of unsigned 128-bit products, by halves."""
    low = 0xFFFF_FFFF
    a_low, a_high, b_low, b_high = a & low, a >> 32, b & low, b >> 32
    middle = a_high * b_low + (a_low * b_low >> 32)
    cross = a_low * b_high + (middle & low)
    return a_high * b_high + (middle >> 32) + (cross >> 32)


def _product(signature: Signature, mode: str) -> Semantics:
    signed = _signed(signature)

    def whole(a: Value, b: Value) -> Value:
        if mode == "lo":
            return a * b
        if mode == "hi" and a.width == 64:
            result = _high_unsigned(a, b)
            if signed:
                result = result - a.slt(0).where(b, 0) - b.slt(0).where(a, 0)
            return result
        wide = _extended(a, signed) * _extended(b, signed)
        return wide if mode == "wide" else (wide >> a.width).trunc(a.type)

    return whole


def _product24(signature: Signature) -> Semantics:
    signed, shift = _signed(signature), 0 if signature["mode"] == "lo" else 16

    def whole(a: Value, b: Value) -> Value:
        first, second = (((x << 8).ashr(8) if signed else (x << 8) >> 8).fit("i64", signed=signed) for x in (a, b))
        return ((first * second) >> shift).trunc("i32")

    return whole


def _multiply(signature: Signature, *, narrow: bool) -> Semantics:
    return _product24(signature) if narrow else _product(signature, signature["mode"])


def multiply(narrow: bool) -> Callable[[Signature], Semantics]:
    """The factory of `mul`, or with `narrow` of `mul24`."""
    return lambda signature: _multiply(signature, narrow=narrow)


def multiply_add(narrow: bool) -> Callable[[Signature], Semantics]:
    """The factory of `mad`, or with `narrow` of `mad24`."""

    def make(signature: Signature) -> Semantics:
        product = _multiply(signature, narrow=narrow)
        if signature.get("sat"):
            return lambda a, b, c: _saturated(product(a, b).sext("i64") + c.sext("i64"))
        return lambda a, b, c: product(a, b) + c

    return make


def carried(name: str) -> Callable[[Signature], Callable[..., tuple[Value, Value]]]:
    """The factory of add.cc, addc, sub.cc, subc, mad.cc and madc: (operands…[, carry]) → the result and its carry.

    There is one adder: a subtraction adds the complement and a carry, so that its carry out means "no borrow". nvcc's
    128-bit division reads it so, with `addc` behind `sub.cc`.
    """
    reads, subtracts = name in ("addc", "subc", "madc"), name.startswith("sub")

    def make(signature: Signature) -> Callable[..., tuple[Value, Value]]:
        product = _product(signature, signature["mode"]) if name.startswith("mad") else None

        def whole(*operands: Value) -> tuple[Value, Value]:
            a, b = (product(*operands[:2]), operands[2]) if product is not None else operands[:2]
            before = a - b if subtracts else a + b
            out = a.compare("uge", b) if subtracts else before.ult(a)
            if not reads:
                return before, out
            if subtracts:
                step = (~operands[-1]).zext(a.type)
                return before - step, out & before.compare("uge", step)
            result = before + operands[-1].zext(a.type)
            return result, out | result.ult(before)

        return whole

    return make


def sad(signature: Signature) -> Semantics:
    """(a, b, c) → c + |a - b|."""
    test = "slt" if _signed(signature) else "ult"
    return lambda a, b, c: a.compare(test, b).where(b - a, a - b) + c


def quotient(name: str) -> Callable[[Signature], Semantics]:
    """The factory of `div` or `rem`: by zero, all ones."""

    def make(signature: Signature) -> Semantics:
        signed = _signed(signature)

        def whole(a: Value, b: Value) -> Value:
            zero = b.eq(0)
            divisor = zero.where(1, b)
            if not signed:
                result = a.udiv(divisor) if name == "div" else a.urem(divisor)
            else:
                # Magnitudes divide without overflow; the signs are put back afterwards.
                a_negative, b_negative = a.slt(0), divisor.slt(0)
                size, by = a_negative.where(0 - a, a), b_negative.where(0 - divisor, divisor)
                result = size.udiv(by) if name == "div" else size.urem(by)
                flip = a_negative ^ b_negative if name == "div" else a_negative
                result = flip.where(0 - result, result)
            return zero.where(-1, result)

        return whole

    return make


def absolute(signature: Signature) -> Semantics:
    """(a) → |a|; the least signed number is its own."""
    return lambda a: a.slt(0).where(0 - a, a)


def negate(signature: Signature) -> Semantics:
    """(a) → -a."""
    return lambda a: 0 - a


_LOGIC: dict[str, Semantics] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
}


def logic(name: str) -> Callable[[Signature], Semantics]:
    """The factory of `and`, `or`, `xor` and `not`."""
    return lambda _: _LOGIC[name]


def cnot(signature: Signature) -> Semantics:
    """(a) → 1 where a is zero."""
    return lambda a: a.eq(0).where(1, a.constant(a.type, 0))


def lop3(signature: Signature) -> Semantics:
    """(a, b, c, table) → the function with that truth table."""

    def chosen(by: Value, one: Value, zero: Value) -> Value:
        """`one` where a bit is set, else `zero`; folds to next to nothing where these are literals."""
        return zero ^ (by & (one ^ zero))

    def whole(a: Value, b: Value, c: Value, table: Value) -> Value:
        rows = [0 - ((table >> row) & 1) for row in range(8)]
        for by in (c, b, a):
            rows = [chosen(by, one, zero) for zero, one in zip(rows[::2], rows[1::2], strict=True)]
        return rows[0]

    return whole


def shift_left(signature: Signature) -> Semantics:
    """(a, b) → a shifted left; by the width or more, zero."""

    def whole(a: Value, b: Value) -> Value:
        inside = b.ult(a.width)
        return inside.where(a << inside.where(b, 0).fit(a.type), 0)

    return whole


def shift_right(signature: Signature) -> Semantics:
    """(a, b) → a shifted right; by the width or more, zero or the sign."""
    signed = _signed(signature)

    def whole(a: Value, b: Value) -> Value:
        if signed:
            return a.ashr(b.umin(a.width - 1).fit(a.type))
        inside = b.ult(a.width)
        return inside.where(a >> inside.where(b, 0).fit(a.type), 0)

    return whole


def _left(a: Value, count: Value) -> Value:
    """A shift by up to the width."""
    return count.ult(a.width).where(a << (count & (a.width - 1)), 0)


def _right(a: Value, count: Value) -> Value:
    return count.ult(a.width).where(a >> (count & (a.width - 1)), 0)


def funnel(signature: Signature) -> Semantics:
    """(a, b, c) → the upper word of [b, a] shifted left, or the lower word of it shifted right."""
    left, wrap = signature["direction"] == "l", signature["mode"] == "wrap"

    def whole(a: Value, b: Value, c: Value) -> Value:
        count = c & 31 if wrap else c.umin(32)
        other = 32 - count
        return _left(b, count) | _right(a, other) if left else _left(b, other) | _right(a, count)

    return whole


def popc(signature: Signature) -> Semantics:
    """(a) → the number of ones."""
    return lambda a: a.ops.unary("popcount", a).fit("i32")


def clz(signature: Signature) -> Semantics:
    """(a) → the number of leading zeros."""
    return lambda a: a.ops.unary("leading_zeros", a).fit("i32")


def bfind(signature: Signature) -> Semantics:
    """(a) → the position of the highest bit that differs from the sign, all ones where there is none."""
    signed, shiftamt = _signed(signature), signature.get("shiftamt")

    def whole(a: Value) -> Value:
        bits = a.slt(0).where(~a, a) if signed else a
        zeros = a.ops.unary("leading_zeros", bits).fit("i32")
        return bits.eq(0).where(-1, zeros if shiftamt else (a.width - 1) - zeros)

    return whole


def brev(signature: Signature) -> Semantics:
    """(a) → the bits in reverse order."""
    return lambda a: a.ops.unary("reverse", a)


def bfe(signature: Signature) -> Semantics:
    """(a, b, c) → the field of c bits from bit b, extended by zeros or by its sign."""

    def unsigned(a: Value, b: Value, c: Value) -> Value:
        position, length = ((count & 0xFF).fit(a.type) for count in (b, c))
        ones = _left(a.constant(a.type, 1), length) - 1
        return _right(a, position) & ones

    def signed(a: Value, b: Value, c: Value) -> Value:
        position, length = (count & 0xFF for count in (b, c))
        # Up against the top bit, then back down: a field that ends beyond the top is only shifted down.
        up, down = (a.width - position - length).smax(0), (a.width - length).smax(position)
        field = _left(a, up.fit(a.type)).ashr(down.umin(a.width - 1).fit(a.type))
        return length.eq(0).where(0, field)

    return signed if _signed(signature) else unsigned


def bfi(signature: Signature) -> Semantics:
    """(a, b, c, d) → b with the low d bits of a inserted from bit c."""

    def whole(a: Value, b: Value, c: Value, d: Value) -> Value:
        position, length = ((count & 0xFF).fit(a.type) for count in (c, d))
        ones = _left(_left(a.constant(a.type, 1), length) - 1, position)
        return (b & ~ones) | (_left(a, position) & ones)

    return whole


def bmsk(signature: Signature) -> Semantics:
    """(a, b) → b ones from bit a."""
    clamp = signature["mode"] == "clamp"

    def whole(a: Value, b: Value) -> Value:
        start, length = (x.umin(32) if clamp else x & 31 for x in (a, b))
        ones = a.constant("i32", -1)
        return _left(ones, start) & ~_left(ones, start + length)

    return whole


def szext(signature: Signature) -> Semantics:
    """(a, b) → the low b bits of a, extended by zeros or by their sign."""
    clamp, signed = signature["mode"] == "clamp", _signed(signature)

    def whole(a: Value, b: Value) -> Value:
        length = b.umin(32) if clamp else b & 31
        shift = 32 - length
        top = _left(a, shift)
        return length.eq(0).where(0, top.ashr(shift & 31)) if signed else _right(top, shift)

    return whole


def fns(signature: Signature) -> Semantics:
    """(mask, base, offset) → the position of the n-th set bit from base, upwards or downwards; all ones without one."""

    def upwards(mask: Value, base: Value, steps: Value) -> Value:
        """The position of the set bit that so many others precede, from base on; 32 without one."""
        found = _left(_right(mask, base), base)
        for step in range(31):
            found = steps.compare("ugt", step).where(found & (found - 1), found)
        return found.ops.unary("popcount", (found & (0 - found)) - 1)

    def whole(mask: Value, base: Value, offset: Value) -> Value:
        down = offset.slt(0)
        steps = down.where(0 - offset, offset) - offset.ne(0).zext("i32")
        turned = down.where(mask.ops.unary("reverse", mask), mask)
        found = upwards(turned, down.where(31 - base.umin(31), base.umin(32)), steps)
        place = down.where(31 - found, found)
        missing = found.eq(32) | steps.compare("ugt", 31) | (offset.eq(0) & found.ne(base))
        return missing.where(-1, place)

    return whole


_PRMT_BYTES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""The bytes of [b, a] that the bytes of the result take, by the two low bits of c."""


def prmt(signature: Signature) -> Semantics:
    """(a, b, c) → four bytes of [b, a] chosen by c; in the general form bit 3 of a choice replicates the sign."""
    mode = signature.get("mode")

    def general(a: Value, b: Value, c: Value) -> Value:
        both = (b.zext("i64") << 32) | a.zext("i64")
        found = a.constant("i32", 0)
        for at in range(4):
            choice = c >> 4 * at
            byte = (both >> ((choice & 7) << 3).zext("i64")).trunc("i32") & 0xFF
            sign = (0 - (byte >> 7)) & 0xFF
            found = found | ((choice & 8).ne(0).where(sign, byte) << 8 * at)
        return found

    def tabled(a: Value, b: Value, c: Value) -> Value:
        found = a.constant("i32", 0)
        for number, choices in enumerate(_PRMT_BYTES[str(mode)]):
            selector = sum(choice << 4 * at for at, choice in enumerate(choices))
            found = (c & 3).eq(number).where(general(a, b, a.constant("i32", selector)), found)
        return found

    return tabled if mode else general


def _part(x: Value, at: int, bits: int, signed: bool) -> Value:
    """A part of a register of 32 bits, extended."""
    top = x << (32 - bits - bits * at)
    return top.ashr(32 - bits) if signed else top >> (32 - bits)


def dp4a(signature: Signature) -> Semantics:
    """(a, b, c) → c plus the sum of four products of bytes."""
    a_signed, b_signed = signature["atype"] == "s32", signature["btype"] == "s32"

    def whole(a: Value, b: Value, c: Value) -> Value:
        for at in range(4):
            c = c + _part(a, at, 8, a_signed) * _part(b, at, 8, b_signed)
        return c

    return whole


def dp2a(signature: Signature) -> Semantics:
    """(a, b, c) → c plus the sum of two products of a's halves with the lower or upper bytes of b."""
    a_signed, b_signed = signature["atype"] == "s32", signature["btype"] == "s32"
    first = 0 if signature["mode"] == "lo" else 2

    def whole(a: Value, b: Value, c: Value) -> Value:
        for at in range(2):
            c = c + _part(a, at, 16, a_signed) * _part(b, first + at, 8, b_signed)
        return c

    return whole


def _average(x: Value, y: Value) -> Value:
    """Half of the sum, where a half counts away from minus infinity only if the sum is not negative."""
    total = x + y
    return (total + total.slt(0).where(0, 1, "i32")).ashr(1)


_VIDEO: dict[str, Semantics] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "avrg": _average,
    "absdiff": lambda x, y: x.slt(y).where(y - x, x - y),
    "min": lambda x, y: x.smin(y),
    "max": lambda x, y: x.smax(y),
}


def video(name: str, count: int) -> Callable[[Signature], Semantics]:
    """The factory of a SIMD video instruction: (a, b, c) → results part by part, or with `add` c plus all of them."""
    bits = 32 // count

    def make(signature: Signature) -> Semantics:
        a_signed, b_signed = signature["atype"] == "s32", signature["btype"] == "s32"
        top = 1 << (bits - 1)
        least, most = (-top, top - 1) if signature.get("dtype") == "s32" else (0, 2 * top - 1)
        adds, sat, test = signature.get("add"), signature.get("sat"), signature.get("cmp")

        def one(x: Value, y: Value) -> Value:
            if test is None:
                return _VIDEO[name](x, y)
            return x.compare(test if test in ("eq", "ne") else f"s{test}", y).zext("i32")

        def whole(a: Value, b: Value, c: Value) -> Value:
            found = c if adds else a.constant("i32", 0)
            for at in range(count):
                part = one(_part(a, at, bits, a_signed), _part(b, at, bits, b_signed))
                if adds:
                    found = found + part
                    continue
                if sat:
                    part = part.smax(least).smin(most)
                found = found | ((part & (2 * top - 1)) << bits * at)
            return found

        return whole

    return make
