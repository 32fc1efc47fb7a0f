"""Integer instructions on Python integers: the evaluation of registers that all lanes share.

Operands are non-negative integers masked to the width of their type; so is the result. Predicates are bools.
A factory takes the signature once and returns the function, as on arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.numerics import scalar_fields as fields
from warploom.machine.numerics.bits import ScalarFunction, Signature, bits_of, is_signed
from warploom.machine.numerics.scalar_fields import to_signed

Factory = Callable[[Signature], ScalarFunction]

_WORD = 0xFFFFFFFF


def _number(type_name: str) -> Callable[[int], int]:
    """The number that the bits of an integer type stand for."""
    bits = bits_of(type_name)
    return (lambda value: to_signed(value, bits)) if is_signed(type_name) else (lambda value: value)


def _mask(type_name: str) -> int:
    return (1 << bits_of(type_name)) - 1


def _saturated(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def _sum(name: str) -> Factory:
    combine = operator.add if name == "add" else operator.sub

    def make(signature: Signature) -> ScalarFunction:
        mask = _mask(signature["type"])
        if signature.get("sat"):
            return lambda a, b: _saturate_s32(combine(to_signed(a, 32), to_signed(b, 32)))
        return lambda a, b: combine(a, b) & mask

    return make


def _saturate_s32(value: int) -> int:
    row = ELEMENT_TYPES["s32"]
    return _saturated(value, row.low, row.high) & _WORD


def _product(signature: Signature) -> ScalarFunction:
    read, bits, mask = _number(signature["type"]), bits_of(signature["type"]), _mask(signature["type"])
    match signature["mode"]:
        case "lo":
            return lambda a, b: a * b & mask
        case "hi":
            return lambda a, b: read(a) * read(b) >> bits & mask
    wide = (1 << 2 * bits) - 1
    return lambda a, b: read(a) * read(b) & wide


def _product24(signature: Signature) -> ScalarFunction:
    signed, shift = is_signed(signature["type"]), 0 if signature["mode"] == "lo" else 16

    def whole(a: int, b: int) -> int:
        a, b = a & 0xFFFFFF, b & 0xFFFFFF
        if signed:
            a, b = to_signed(a, 24), to_signed(b, 24)
        return a * b >> shift & _WORD

    return whole


def _multiply_add(product: Factory) -> Factory:
    def make(signature: Signature) -> ScalarFunction:
        multiply = product(signature)
        if signature.get("sat"):
            return lambda a, b, c: _saturate_s32(to_signed(multiply(a, b), 32) + to_signed(c, 32))
        mask = _mask(signature["type"])
        if signature["mode"] == "wide":
            mask |= mask << bits_of(signature["type"])
        return lambda a, b, c: multiply(a, b) + c & mask

    return make


def _sad(signature: Signature) -> ScalarFunction:
    read, mask = _number(signature["type"]), _mask(signature["type"])
    return lambda a, b, c: c + abs(read(a) - read(b)) & mask


def _divided(quotient: bool) -> Factory:
    def make(signature: Signature) -> ScalarFunction:
        read, mask = _number(signature["type"]), _mask(signature["type"])

        def whole(a: int, b: int) -> int:
            if b == 0:
                return mask
            x, y = read(a), read(b)
            if quotient:
                size = abs(x) // abs(y)
                return (-size if (x < 0) != (y < 0) else size) & mask
            size = abs(x) % abs(y)
            return (-size if x < 0 else size) & mask

        return whole

    return make


def _absolute(signature: Signature) -> ScalarFunction:
    read, mask = _number(signature["type"]), _mask(signature["type"])
    return lambda a: abs(read(a)) & mask


def _negate(signature: Signature) -> ScalarFunction:
    mask = _mask(signature["type"])
    return lambda a: -a & mask


def _extreme(name: str) -> Factory:
    pick: Callable[..., int] = min if name == "min" else max

    def make(signature: Signature) -> ScalarFunction:
        read, mask = _number(signature["type"]), _mask(signature["type"])
        if signature.get("relu"):
            return lambda a, b: max(pick(read(a), read(b)), 0)
        return lambda a, b: pick(a, b, key=read) & mask

    return make


def _carried(name: str) -> Factory:
    reads = name in ("addc", "subc", "madc")
    multiplies, subtracts = name.startswith("mad"), name.startswith("sub")

    def make(signature: Signature) -> ScalarFunction:
        writes = name.endswith(".cc") or bool(signature.get("cc"))
        multiply = _product(signature) if multiplies else None
        mask = _mask(signature["type"])

        def whole(*operands: int) -> int | tuple[int, bool]:
            carry = int(operands[-1]) if reads else int(subtracts)
            a, b = (multiply(*operands[:2]), operands[2]) if multiply is not None else operands[:2]
            total = a + (b ^ mask if subtracts else b) + carry
            return (total & mask, total > mask) if writes else total & mask

        return whole

    return make


def _logic(name: str) -> Factory:
    combine = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[name]
    return lambda _: combine


def _not(signature: Signature) -> ScalarFunction:
    if signature["type"] == "pred":
        return operator.not_
    mask = _mask(signature["type"])
    return lambda a: a ^ mask


def _cnot(signature: Signature) -> ScalarFunction:
    return lambda a: int(a == 0)


def _shl(signature: Signature) -> ScalarFunction:
    bits, mask = bits_of(signature["type"]), _mask(signature["type"])
    return lambda a, b: a << b & mask if b < bits else 0


def _shr(signature: Signature) -> ScalarFunction:
    read, top, mask = _number(signature["type"]), bits_of(signature["type"]), _mask(signature["type"])
    return lambda a, b: read(a) >> min(b, top) & mask


_COMPARE: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {
        **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
        "lo": operator.lt,
        "ls": operator.le,
        "hi": operator.gt,
        "hs": operator.ge,
    }
)
_COMBINE: Mapping[str, Callable[[bool, bool], bool]] = MappingProxyType(
    {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
)


def _setp(signature: Signature) -> ScalarFunction:
    compare, combine = _COMPARE[signature["cmp"]], _COMBINE.get(signature.get("bool") or "")
    read = (lambda value: value) if signature["cmp"] in ("lo", "ls", "hi", "hs") else _number(signature["type"])

    def whole(a: int, b: int, c: bool = True) -> bool | tuple[bool, bool]:
        found = compare(read(a), read(b))
        results = [combine(value, c) if combine else value for value in (found, not found)]
        return (results[0], results[1]) if signature.get("pair") else results[0]

    return whole


def _selp(signature: Signature) -> ScalarFunction:
    return lambda a, b, c: a if c else b


def _convert(signature: Signature) -> ScalarFunction:
    """Integer to integer: cut to the target's bits, or to its range with `sat`."""
    target, read = ELEMENT_TYPES[signature["dtype"]], _number(signature["atype"])
    mask = _mask(target.name)
    if signature.get("sat"):
        return lambda a: _saturated(read(a), target.low, target.high) & mask
    return lambda a: read(a) & mask


SCALAR_OPS: Mapping[str, Factory] = MappingProxyType(
    {
        "add": _sum("add"),
        "sub": _sum("sub"),
        "mul": _product,
        "mad": _multiply_add(_product),
        "mul24": _product24,
        "mad24": _multiply_add(_product24),
        "sad": _sad,
        "div": _divided(quotient=True),
        "rem": _divided(quotient=False),
        "abs": _absolute,
        "neg": _negate,
        "min": _extreme("min"),
        "max": _extreme("max"),
        **{name: _carried(name) for name in ("add.cc", "addc", "sub.cc", "subc", "mad.cc", "madc")},
        **{name: _logic(name) for name in ("and", "or", "xor")},
        "not": _not,
        "cnot": _cnot,
        "shl": _shl,
        "shr": _shr,
        **fields.FIELD_OPS,
        "setp": _setp,
        "selp": _selp,
        "cvt": _convert,
    }
)
