"""Conversions among integers, f16, bf16, tf32, f32 and f64, and to and from formats of at most 8 bits.

Where the ISA is silent they do what an H200 does: f32 NaNs that come from bf16 keep their payload unless `.ftz` is
given, doubles keep sign and payload of a NaN, and `cvt.rna.tf32` truncates NaNs instead of making them canonical.
"""

from __future__ import annotations

from collections.abc import Callable

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES, ElementType, PackedType
from warploom.machine.numerics.bits import Signature
from warploom.machine.semantics.floating import (
    NAN_F32,
    brain_to_single,
    canonical,
    flushed,
    flushed_result,
    half_to_single,
    narrowed,
    rectified,
    saturated,
    saturated_half,
    settled,
    single_to_brain,
    single_to_half,
)
from warploom.machine.semantics.narrowing import from_small, rounded, to_small, widened
from warploom.machine.semantics.vectors import UnsupportedError, Value

Semantics = Callable[..., Value]

_INTEGRAL = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_DIRECTIONS = frozenset({"rn", "rz", "rm", "rp"})
_HALVES: dict[str, Callable[[Value], Value]] = {"f16": single_to_half, "bf16": single_to_brain}
_PAIR, _SMALL = 2, 8
"""Elements of a packed register, and bits of the codes of small formats."""


def convert(signature: Signature) -> Semantics:
    """The factory of `cvt` with one operand."""
    signature = {"atype": "f32", **signature}
    names = signature["dtype"], signature["atype"]
    if all(name in PACKED_TYPES for name in names):
        return _packed(PACKED_TYPES[names[0]], PACKED_TYPES[names[1]], signature)
    if not all(name in ELEMENT_TYPES for name in names):
        raise UnsupportedError("cvt")
    target, source = (ELEMENT_TYPES[name] for name in names)
    if not source.is_float:
        return _from_integer(target, source, signature)
    return _between(target.name, source.name, signature) if target.is_float else _to_integer(target, source, signature)


def convert_pair(signature: Signature) -> Semantics:
    """The factory of `cvt` of two f32 to a packed type: the first operand is the upper element."""
    packed = PACKED_TYPES[signature["dtype"]]
    if signature.get("atype", "f32") != "f32" or packed.count != _PAIR:
        raise UnsupportedError("cvt")
    name = packed.element.name
    if name in _HALVES:
        one = _between(name, "f32", {**signature, "dtype": name, "atype": "f32"})
    else:
        one = _to_small(packed.element, "f32", signature)
    return lambda a, b: _joined(one(a), one(b), packed)


def _packed(target: PackedType, source: PackedType, signature: Signature) -> Semantics:
    """Two elements to two of another type, one of which has at most 8 bits."""
    from_, to, bits = source.element, target.element, source.field_bits
    inner = f"i{from_.storage_bits}"
    if target.count != _PAIR or source.count != _PAIR:
        raise UnsupportedError("cvt")
    if from_.name in _HALVES and to.storage_bits == _SMALL:
        one = _to_small(to, from_.name, signature)
    elif from_.storage_bits == _SMALL and to.name in _HALVES:
        one = from_small(from_, to.name, relu=bool(signature.get("relu")))
    else:
        raise UnsupportedError("cvt")

    def both(a: Value) -> Value:
        low, high = a, a >> bits
        if from_.storage_bits == _SMALL:  # the upper bits of a byte may be anything
            low, high = low & ((1 << from_.bits) - 1), high & ((1 << from_.bits) - 1)
        return _joined(one(high.trunc(inner)), one(low.trunc(inner)), target)

    return both


def _to_small(target: ElementType, source: str, signature: Signature) -> Callable[[Value], Value]:
    flags = {name: bool(signature.get(flag)) for name, flag in (("relu", "relu"), ("finite", "satfinite"))}
    rounding = signature.get("rnd") or "rn"
    if rounding not in _DIRECTIONS:
        raise UnsupportedError("cvt")
    return to_small(target, source, rounding, **flags)


def _joined(upper: Value, lower: Value, packed: PackedType) -> Value:
    """Two codes in a register."""
    type_ = f"i{packed.bits}"
    return (upper.fit(type_) << packed.field_bits) | lower.fit(type_)


def pack(signature: Signature) -> Semantics:
    """`cvt.pack`: (a, b[, c]) → a and b cut to the type's range, a above b, over the low bits of c shifted up."""
    name = signature["dtype"]
    bits, signed = int(name[1:]), name[0] == "s"
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)

    def whole(a: Value, b: Value, c: Value | None = None) -> Value:
        upper, lower = (operand.smax(least).smin(most) & ((1 << bits) - 1) for operand in (a, b))
        found = (upper << bits) | lower
        return found if c is None else found | (c << 2 * bits)

    return whole


def _from_integer(target: ElementType, source: ElementType, signature: Signature) -> Semantics:
    signed, wide = source.is_signed, f"i{max(source.bits, target.storage_bits)}"
    if not target.is_float:
        if not signature.get("sat"):
            return lambda a: a.fit(f"i{target.bits}", signed=signed)
        low, high = max(source.low, target.low), min(source.high, target.high)
        less, more = ("slt", "sgt") if signed else ("ult", "ugt")

        def cut(a: Value) -> Value:
            value = a.compare(less, low).where(low, a)
            value = value.compare(more, high).where(high, value)
            return value.fit(wide, signed=signed).fit(f"i{target.bits}")

        return cut
    rounding = signature.get("rnd") or "rn"
    if rounding not in _DIRECTIONS:
        raise UnsupportedError("cvt")
    name = "from_signed" if signed else "from_unsigned"

    def whole(a: Value) -> Value:
        value = a.fit("i64", signed=signed)
        if source.bits == 64 and target.name == "f64" and rounding != "rn":
            number = _long_to_double(value, name, rounding)
            return saturated(number).bits if signature.get("sat") else number.bits
        if source.bits == 64 and target.name != "f64":
            value = _odd_integer(value, signed)
        number = a.ops.convert(name, value, "f64")
        if target.name == "f64":
            return saturated(number).bits if signature.get("sat") else number.bits
        if target.name == "f32":
            single = narrowed(number, rounding)
            return (saturated(single) if signature.get("sat") else single).bits
        if rounding == "rn":
            code = _HALVES[target.name](narrowed(number, "odd"))
        else:
            code = rounded(number.bits, ELEMENT_TYPES["f64"], target, rounding)
        return saturated_half(code, target.name) if signature.get("sat") else code

    return whole


def _long_to_double(value: Value, name: str, rounding: str) -> Value:
    """64-bit integers to f64: the halves are exact, and what their sum loses says which way it was rounded."""
    ops = value.ops
    upper = value.ashr(32) if name == "from_signed" else value >> 32
    high = ops.convert(name, upper, "f64") * 2.0**32
    low = ops.convert("from_unsigned", value & 0xFFFF_FFFF, "f64")
    total = high + low
    lost, bits = low - (total - high), total.bits
    positive = total.gt(0.0)
    over, under = lost.lt(0.0), lost.gt(0.0)  # the sum is too large, too small
    if rounding == "rm":
        return over.where(positive.where(bits - 1, bits + 1), bits).number
    if rounding == "rp":
        return under.where(positive.where(bits + 1, bits - 1), bits).number
    return positive.where(over.where(bits - 1, bits), under.where(bits - 1, bits)).number


def _odd_integer(value: Value, signed: bool) -> Value:
    """An integer of more than 53 bits rounded to odd, so that its f64 is exact."""
    size = value.slt(0).where(0 - value, value) if signed else value
    sticky = (value & 0xFFF).ne(0).where(0x800, 0, "i64")
    return (size >> 53).ne(0).where((value & ~0xFFF) | sticky, value)


def _to_integer(target: ElementType, source: ElementType, signature: Signature) -> Semantics:
    """A float to an integer: rounded, cut to the range; NaN is zero, or 2^(bits-1) from f64 or to 64 bits."""
    integral, ftz = _INTEGRAL[signature["rnd"]], signature.get("ftz")
    nan = 1 << (target.bits - 1) if source.name == "f64" or target.bits == 64 else 0
    least, beyond = float(target.low), float(target.high + 1)
    name = "to_unsigned" if target.name == "u64" else "to_signed"

    def whole(a: Value) -> Value:
        number = _double(a, source.name, bool(ftz))
        value = a.ops.unary(integral, number)
        outside = ~(value.compare("ge", least) & value.lt(beyond))
        found = a.ops.convert(name, outside.rarely(0.0, value), "i64")
        limit = value.lt(least).where(target.low, value.is_nan.where(nan, target.high, "i64"))
        return outside.rarely(limit, found).fit(f"i{target.bits}")

    return whole


def _double(bits: Value, name: str, ftz: bool) -> Value:
    match name:
        case "f64":
            return bits.number
        case "f32":
            return (flushed(bits) if ftz else bits).number.wide
        case "f16":
            return half_to_single(bits).wide
        case "bf16":
            return brain_to_single(bits).wide
    raise UnsupportedError(name)


def _between(target: str, source: str, signature: Signature) -> Semantics:
    """Float to float, with what the flags add before and after."""
    rounding, ftz = signature.get("rnd") or "rn", bool(signature.get("ftz"))
    finite, sat, relu = (bool(signature.get(flag)) for flag in ("satfinite", "sat", "relu"))
    if ftz and "f32" not in (target, source):
        raise UnsupportedError("cvt")
    base = _base(target, source, rounding, finite, ftz)
    if sat and target not in ("f16", "bf16", "f32", "f64"):
        raise UnsupportedError("cvt")

    def whole(bits: Value) -> Value:
        result = base(canonical(flushed(bits).number) if ftz and source == "f32" else bits)
        if sat:
            result = saturated_half(result, target) if target in _HALVES else saturated(result.number).bits
        return rectified(result) if relu else result

    return whole


def _base(target: str, source: str, rounding: str, finite: bool, ftz: bool) -> Semantics:
    if target == source:
        return _same(target, rounding)
    if rounding not in _DIRECTIONS and target != "tf32":
        raise UnsupportedError("cvt")
    match source, target:
        case "f32", "tf32" if not finite:
            return _to_tf32(rounding)
        case "bf16", "f32":
            return (lambda bits: canonical(flushed(bits.zext("i32") << 16).number)) if ftz else _widened_brain
        case "f16", "f32":
            return lambda bits: canonical(half_to_single(bits))
        case (("f32" | "f16" | "bf16"), "f64"):
            return lambda bits: _quieted(_exactly(bits, source))
        case "f32", ("f16" | "bf16") if rounding == "rn":
            return _limited(_HALVES[target], target) if finite else lambda bits: _HALVES[target](bits.number)
        case "f32", "bf16" if rounding == "rz" and not finite:
            return lambda bits: bits.number.is_nan.rarely(0x7FFF, bits >> 16).trunc("i16")
        case ("f16", "bf16") | ("bf16", "f16") if rounding == "rn" and not finite:
            widen = half_to_single if source == "f16" else brain_to_single
            return lambda bits: _HALVES[target](widen(bits))
        case "f64", "f32":
            return lambda bits: _double_to_single(bits, rounding, ftz)
        case (("f16" | "bf16" | "f32" | "f64"), ("f16" | "bf16" | "tf32")):
            wide, narrow = ELEMENT_TYPES["f64" if source == "f64" else "f32"], ELEMENT_TYPES[target]
            return lambda bits: rounded(widened(bits, source), wide, narrow, rounding, finite=finite)
    raise UnsupportedError("cvt")


def _widened_brain(bits: Value) -> Value:
    return bits.zext("i32") << 16


def _exactly(bits: Value, source: str) -> Value:
    return bits.number if source == "f32" else half_to_single(bits) if source == "f16" else brain_to_single(bits)


def _quieted(single: Value) -> Value:
    """f32 as the bits of an f64: a NaN keeps sign and payload and becomes quiet."""
    bits = single.bits
    sign, payload = (bits & 0x8000_0000).zext("i64") << 32, (bits & 0x7F_FFFF).zext("i64") << 29
    nan = sign | payload | (0x7FF8 << 48)
    return single.is_nan.rarely(nan, single.wide.bits)


def _limited(function: Callable[[Value], Value], name: str) -> Semantics:
    """`.satfinite`: infinite results become the largest finite ones."""
    element = ELEMENT_TYPES[name]

    def whole(bits: Value) -> Value:
        code = function(bits.number)
        return (code & 0x7FFF).eq(element.infinity_code).rarely(code - 1, code)

    return whole


def _double_to_single(bits: Value, rounding: str, ftz: bool) -> Value:
    value = bits.number
    result = narrowed(value, rounding)
    if ftz:
        result = flushed_result(result, lambda: value, rounding)
    # A NaN keeps its sign and the top of its payload, and becomes quiet.
    sign = (bits >> 32).trunc("i32") & 0x8000_0000
    payload = (bits >> 29).trunc("i32") & 0x7F_FFFF
    return value.is_nan.rarely(sign | payload | 0x7FC0_0000, result.bits)


def _same(name: str, rounding: str) -> Semantics:
    """A float to its own type: rounded to an integer, or only passed, where halves make their NaNs canonical."""
    integral = _INTEGRAL.get(rounding)
    match name:
        case "f64" if integral is not None:
            return lambda bits: settled(bits.ops.unary(integral, bits.number), bits)
        case "f32" if integral is not None:
            return lambda bits: canonical(bits.ops.unary(integral, bits.number))
        case "f32" | "f64":
            return lambda bits: bits
        case "f16" | "bf16":
            widen = half_to_single if name == "f16" else brain_to_single

            def half(bits: Value) -> Value:
                value = widen(bits)
                return _HALVES[name](value if integral is None else bits.ops.unary(integral, value))

            return half
    raise UnsupportedError("cvt")


def _to_tf32(rounding: str) -> Semantics:
    def whole(bits: Value) -> Value:
        special = (bits & 0x7F80_0000).eq(0x7F80_0000)
        result = bits if rounding == "rz" else bits + (1 << 12)
        if rounding == "rn":
            result = result + ((bits >> 13) & 1) - 1
        result = special.where(bits, result) & 0xFFFF_E000
        if rounding == "rna":
            return result
        return bits.number.is_nan.rarely(NAN_F32 & 0xFFFF_E000, result)

    return whole
