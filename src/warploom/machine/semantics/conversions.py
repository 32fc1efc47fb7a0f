"""Conversions among integers, f16, bf16, tf32, f32 and f64.

Where the ISA is silent they do what an H200 does: f32 NaNs that come from bf16 keep their payload unless `.ftz` is
given, doubles keep sign and payload of a NaN, and `cvt.rna.tf32` truncates NaNs instead of making them canonical.
"""

from __future__ import annotations

from collections.abc import Callable

from warploom.hardware.dtypes import ELEMENT_TYPES, ElementType
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
from warploom.machine.semantics.vectors import UnsupportedError, Value

Semantics = Callable[..., Value]

_INTEGRAL = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_DIRECTIONS = frozenset({"rn", "rz", "rm", "rp"})
_HALVES: dict[str, Callable[[Value], Value]] = {"f16": single_to_half, "bf16": single_to_brain}


def convert(signature: Signature) -> Semantics:
    """The factory of `cvt` with one operand."""
    signature = {"atype": "f32", **signature}
    names = signature["dtype"], signature["atype"]
    if not all(name in ELEMENT_TYPES for name in names):
        raise UnsupportedError("cvt")
    target, source = (ELEMENT_TYPES[name] for name in names)
    if not source.is_float:
        return _from_integer(target, source, signature)
    return _between(target.name, source.name, signature) if target.is_float else _to_integer(target, source, signature)


def convert_pair(signature: Signature) -> Semantics:
    """The factory of `cvt` of two f32 to f16x2 or bf16x2: the first operand is the upper element."""
    element = {"f16x2": "f16", "bf16x2": "bf16"}.get(signature["dtype"])
    if element is None or signature.get("atype", "f32") != "f32" or signature.get("rnd") == "rs":
        raise UnsupportedError("cvt")
    one = _between(element, "f32", {**signature, "dtype": element, "atype": "f32"})
    return lambda a, b: (one(a).zext("i32") << 16) | one(b).zext("i32")


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
    if rounding not in _DIRECTIONS or (target.name not in ("f32", "f64") and rounding != "rn"):
        raise UnsupportedError("cvt")
    if target.name == "f64" and source.bits == 64 and rounding != "rn":
        raise UnsupportedError("cvt")
    name = "from_signed" if signed else "from_unsigned"

    def whole(a: Value) -> Value:
        value = a.fit("i64", signed=signed)
        if source.bits == 64 and target.name != "f64":
            value = _odd_integer(value, signed)
        number = a.ops.convert(name, value, "f64")
        if target.name == "f64":
            return saturated(number).bits if signature.get("sat") else number.bits
        if target.name == "f32":
            single = narrowed(number, rounding)
            return (saturated(single) if signature.get("sat") else single).bits
        code = _HALVES[target.name](narrowed(number, "odd"))
        return saturated_half(code, target.name) if signature.get("sat") else code

    return whole


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
