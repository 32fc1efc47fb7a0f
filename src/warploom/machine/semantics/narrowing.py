"""Rounding to any narrower float in any mode, and formats of at most 8 bits.

A lowering may take a function of 8 or 16 bits from a table that is made from it (`Ops.tabulated`). An f32 finds its row
by its upper half, the last bit of which also says whether anything follows: the small formats keep at most three bits
of the mantissa, so that no rounding can tell more.
"""

from __future__ import annotations

from collections.abc import Callable

from warploom.hardware.dtypes import ELEMENT_TYPES, ElementType
from warploom.machine.semantics.floating import brain_to_single, half_to_single, single_to_brain, single_to_half
from warploom.machine.semantics.vectors import Value

_F32, _F64 = ELEMENT_TYPES["f32"], ELEMENT_TYPES["f64"]
_SPECIALS = {"e5m2": 0x7C, "e4m3": 0x7F}
"""The least magnitudes that are infinite or NaN, of the formats of 8 bits that have any."""


def rounded(bits: Value, source: ElementType, target: ElementType, rounding: str, *, finite: bool = False) -> Value:
    """Patterns of f32 or f64 rounded to a narrower type: `rn`, `rna` (ties away from zero), `rz`, `rm` or `rp`.

    With `finite`, numbers that do not fit become the largest finite value. NaN becomes the target's NaN, or its largest
    value if it has none; from f64 it keeps its sign and the top of its payload, as an H200 does.
    """
    negative = (bits >> (source.bits - 1)).ne(0)
    size = bits & ((1 << (source.bits - 1)) - 1)
    fraction, field = size & ((1 << source.mantissa) - 1), size >> source.mantissa
    normal = field.ne(0)
    significand = normal.where(fraction | (1 << source.mantissa), fraction)
    exponent = normal.where(field, 1)
    # The least exponent of the target, as the source writes it. All that is dropped below two bits is alike.
    least = target.minimum_exponent + source.bias
    held = exponent.ult(least).where(least, exponent)
    drop = (held - exponent + (source.mantissa - target.mantissa)).umin(source.mantissa + 2)
    kept, one = significand >> drop, bits.constant(bits.type, 1)
    rest = significand & ((one << drop) - 1)
    half = (one << drop) >> 1
    match rounding:
        case "rn":
            up = half.ult(rest) | (rest.eq(half) & drop.ne(0) & (kept & 1).ne(0))
        case "rna":
            up = ~rest.ult(half) & drop.ne(0)
        case "rm":
            up = rest.ne(0) & negative
        case "rp":
            up = rest.ne(0) & ~negative
        case _:
            up = bits.constant("i1", 0)
    code = ((held - least) << target.mantissa) + kept + up.where(1, 0, bits.type)
    limit = target.largest if finite or rounding == "rz" else target.infinity_code
    beyond = bits.constant(bits.type, limit)
    if not finite and rounding in ("rm", "rp"):
        inward = negative if rounding == "rp" else ~negative
        beyond = inward.where(target.largest, beyond)
    code = bits.constant(bits.type, target.largest).ult(code).where(beyond, code)
    infinity = source.infinity_code
    code = size.eq(infinity).where(target.largest if finite else target.infinity_code, code)
    sign = negative.where(1 << (target.bits - 1), 0, bits.type)
    if target.has_sign:
        code = code | sign
    nan = bits.constant(bits.type, target.nan_code)
    if source is _F64 and target.infinity is not None:
        payload = fraction >> (source.mantissa - target.mantissa)
        nan = sign | payload | (target.infinity | 1 << (target.mantissa - 1))
    code = bits.constant(bits.type, infinity).ult(size).rarely(nan, code)
    return (code << target.padding).fit(f"i{target.storage_bits}")


def widened(bits: Value, source: str) -> Value:
    """Patterns of f16 or bf16 as those of f32, which holds them exactly; f32 and f64 as they are."""
    if source == "f16":
        return half_to_single(bits).bits
    return brain_to_single(bits).bits if source == "bf16" else bits


def to_small(target: ElementType, source: str, rounding: str, *, relu: bool, finite: bool) -> Callable[[Value], Value]:
    """f32, f16 or bf16 patterns → codes of a small format, as i8."""

    def compute(wide: Value) -> Value:
        if target.name == "ue8m0":
            code = _power_of_two(wide, rounding, finite)
        else:
            code = rounded(wide, _F32, target, rounding, finite=finite)
        return (code & target.sign).ne(0).where(0, code) if relu else code

    def of_half(half: Value) -> Value:
        return compute(half.zext("i32") << 16 if source == "f32" else widened(half, source))

    name = f"{target.name} of {source} {rounding}{' relu' * relu}{' finite' * finite}"

    def whole(bits: Value) -> Value:
        row = bits
        if source == "f32":
            row = ((bits >> 16) | (bits & 0xFFFF).ne(0).zext("i32")).trunc("i16")
        found = bits.ops.tabulated(name, of_half, row, "i8")
        return compute(widened(bits, source)) if found is None else found

    return whole


def _power_of_two(bits: Value, rounding: str, finite: bool) -> Value:
    """ue8m0 of |x|: the exponent field, one more under `rp` if a mantissa follows and |x| > 2^-127.

    The ISA gives ranges and saturation; that the sign is dropped and that zero becomes 2^-127 follows NVIDIA's
    cuda_fp8.hpp. Without `satfinite` what is too large becomes NaN, the only code that is left.
    """
    target, infinity = ELEMENT_TYPES["ue8m0"], _F32.infinity_code
    size = bits & 0x7FFF_FFFF
    code = size >> _F32.mantissa
    if rounding == "rp":
        half = bits.constant("i32", 1 << (_F32.mantissa - 1))
        above = (size & ((1 << _F32.mantissa) - 1)).ne(0) & half.ult(size) & size.ult(infinity)
        code = above.where(code + 1, code)
    if finite:
        code = code.umin(target.largest)
    return bits.constant("i32", infinity).ult(size).where(target.nan_code, code).trunc("i8")


def from_small(source: ElementType, target: str, *, relu: bool) -> Callable[[Value], Value]:
    """Codes of a small format (i8) → f16 or bf16 patterns, all of which are exact; NaN becomes the canonical one."""
    narrow = single_to_half if target == "f16" else single_to_brain

    def compute(code: Value) -> Value:
        found = narrow(_single(code.zext("i32"), source))
        return (found & ELEMENT_TYPES[target].sign).ne(0).where(0, found) if relu else found

    name = f"{target} of {source.name}{' relu' * relu}"

    def whole(code: Value) -> Value:
        found = code.ops.tabulated(name, compute, code, "i16")
        return compute(code) if found is None else found

    return whole


def _single(code: Value, source: ElementType) -> Value:
    """Codes in the low bits of words as floats."""
    if source.name == "ue8m0":
        bits = code.eq(0).where(1 << (_F32.mantissa - 1), code << _F32.mantissa)
        return code.eq(source.nan_code).where(_F32.nan_code, bits).number
    sign = 1 << (source.bits - 1)
    size = code & (sign - 1)
    # The fields of a smaller format are those of an f32 times a power of two, also below the normal numbers.
    value = (size << (_F32.mantissa - source.mantissa)).number * 2.0 ** (_F32.bias - source.bias)
    bits = value.bits
    if (special := _SPECIALS.get(source.name)) is not None:
        infinite = size.eq(special) if source.infinity is not None else code.constant("i1", 0)
        bits = size.ult(special).where(bits, infinite.where(_F32.infinity_code, _F32.nan_code, "i32"))
    return (bits | ((code & sign) << (_F32.bits - source.bits))).number
