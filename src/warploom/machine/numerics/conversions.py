"""Conversions that the vector language does not have: to and from formats of at most 8 bits, stochastic rounding, modes
of halves other than to nearest.

Packed forms of later versions whose meaning follows from those of PTX 9.0 (bf16x2 to and from 8-bit floats) work too;
`.s2f6x2` and its `.scaled::n2::ue8m0` (PTX 9.1) do not. Where the ISA and an H200 disagree the ISA holds: `.ftz`
flushes the operand of `cvt.rm.ftz.f16.f32`, and a NaN under `cvt.rna.satfinite.tf32` becomes a NaN whatever its bits.
"""

from __future__ import annotations

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES, ElementType
from warploom.machine.numerics import small
from warploom.machine.numerics.bits import (
    F16,
    F32,
    F64,
    I64,
    U8,
    U32,
    U64,
    Array,
    ArrayFunction,
    Signature,
    constant,
    pieces,
    signed_view,
    unknown,
)
from warploom.machine.numerics.rounding import exact_or_odd, rectify, round_bits

_F32, _F64 = ELEMENT_TYPES["f32"], ELEMENT_TYPES["f64"]
_ROUNDED = frozenset({"rn", "rna", "rz", "rm", "rp"})


def convert(signature: Signature) -> ArrayFunction:
    """The function of a `cvt`: (value), or (those it packs, the first into the top…), and at last the bits of `rs`."""
    # Forms that convert only from f32 need not name it.
    signature = {"atype": "f32", **signature}
    if signature["dtype"] in PACKED_TYPES:
        return _packed(signature)
    target, source = ELEMENT_TYPES[signature["dtype"]], ELEMENT_TYPES[signature["atype"]]
    modes = _ROUNDED if target.name == "tf32" else _ROUNDED - {"rna"}
    if not target.is_float or (signature.get("rnd") or "rn") not in modes:
        raise unknown("cvt", signature)
    return (_between if source.is_float else _from_integer)(target, source, signature)


def _saturated(bits: Array, element: ElementType) -> Array:
    """Results cut to [0, 1], NaN and negative zero to zero."""
    values = bits.view(element.values)
    zero, one = np.zeros((), values.dtype), np.ones((), values.dtype)
    return np.where(values > 0, np.minimum(values, one), zero).view(element.storage)


def _from_integer(target: ElementType, source: ElementType, signature: Signature) -> ArrayFunction:
    view, rounding = signed_view(source.name), signature.get("rnd") or "rn"

    def whole(bits: Array) -> Array:
        values = bits.view(view)
        if target.name == "f64":
            result = _long_to_f64(values, rounding) if source.bits == 64 else values.astype(F64).view(U64)
        else:
            exact = exact_or_odd(values) if source.bits == 64 else values.astype(F64)
            result = round_bits(exact.view(U64), _F64, target, rounding)
        return _saturated(result, target) if signature.get("sat") else result

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


def _between(target: ElementType, source: ElementType, signature: Signature) -> ArrayFunction:
    """Float to float by the definition of rounding, with what the flags add before and after."""
    rounding, finite = signature.get("rnd") or "rn", bool(signature.get("satfinite"))
    ftz, sat, relu = (bool(signature.get(flag)) for flag in ("ftz", "sat", "relu"))
    if ftz and "f32" not in (target.name, source.name):
        raise unknown("cvt", signature)
    wide = _F64 if source.name == "f64" else _F32

    def whole(bits: Array) -> Array:
        operand = _widened(bits, source.name)
        if ftz and source.name == "f32":
            operand = np.where(np.abs(operand.view(F32)) < 2.0**-126, operand & constant(_F32.sign, U32), operand)
        result = round_bits(operand, wide, target, rounding, finite=finite)
        if sat:
            result = _saturated(result, target)
        return rectify(result, target.name) if relu else result

    return whole


def _widened(bits: Array, name: str) -> Array:
    """Halves as f32; f32 and f64 as they are."""
    if name == "f16":
        return bits.view(F16).astype(F32).view(U32)
    return bits.astype(U32) << constant(16, U32) if name == "bf16" else bits


def _packed(signature: Signature) -> ArrayFunction:
    target = PACKED_TYPES[signature["dtype"]]
    source_name = signature["atype"]
    rounding = signature.get("rnd") or "rn"
    relu, finite = bool(signature.get("relu")), bool(signature.get("satfinite"))
    if rounding == "rs":
        return _stochastic(signature)
    source = PACKED_TYPES.get(source_name)
    element = target.element.name
    if source is None:
        if element in ("f16", "bf16"):
            one = _between(target.element, ELEMENT_TYPES[source_name], signature)
        else:
            one = small.from_wide(target.element, source_name, rounding, relu=relu, finite=finite)
        return lambda *operands: _pack(one(_interleaved(operands)), signature["dtype"])
    if source.element.storage == U8:
        if element not in ("f16", "bf16"):
            raise unknown("cvt", signature)
        one = small.to_wide(source.element, element, relu=relu)
    else:
        one = small.from_wide(target.element, source.element.name, rounding, relu=relu, finite=finite)
    return lambda bits: _pack(one(_unpack(bits, source_name)), signature["dtype"])


def _interleaved(operands: tuple[Array, ...]) -> Array:
    """Operands lane by lane, the last first: the first one stands in the highest field."""
    count = len(operands)
    result = np.empty(count * len(operands[0]), operands[0].dtype)
    for at, operand in enumerate(reversed(operands)):
        result[at::count] = operand
    return result


def _pack(codes: Array, name: str) -> Array:
    packed = PACKED_TYPES[name]
    if packed.field_bits == 8 * codes.itemsize:
        return codes.view(packed.storage)
    pairs: Array = codes[0::2] | (codes[1::2] << U8.type(packed.field_bits))
    return pairs.view(packed.storage)


def _unpack(bits: Array, name: str) -> Array:
    packed = PACKED_TYPES[name]
    inner = packed.element.storage
    if packed.field_bits == 8 * inner.itemsize:
        return pieces(bits, inner)
    result = np.empty(2 * bits.size, U8)
    result[0::2] = bits & U8.type((1 << packed.field_bits) - 1)
    result[1::2] = bits >> U8.type(packed.field_bits)
    return result


def _stochastic(signature: Signature) -> ArrayFunction:
    """`rs`: (operands…, random) → each rounded up if the random bits added to what is dropped carry.

    The ISA names which half of `random` an operand uses and shows the bits in figures only. That two operands of a
    packed four share a half, one reading it in reverse, was found by others on a B200 and is not confirmed here.
    """
    target = PACKED_TYPES[signature["dtype"]]
    element = target.element
    relu, finite = bool(signature.get("relu")), bool(signature.get("satfinite"))
    width = 13 if element.name == "f16" else 16

    def whole(*operands: Array) -> Array:
        *values, random = operands
        numbers = _interleaved(tuple(_random_numbers(random, element.name)))
        if element.name == "f16":
            numbers &= numbers.dtype.type((1 << width) - 1)
        bits = _interleaved(tuple(values))
        codes = small.stochastic(element, bits, numbers, width, relu=relu, finite=finite)
        return _pack(codes, signature["dtype"])

    return whole


def _random_numbers(random: Array, element: str) -> list[Array]:
    """The bits that each operand of `rs` adds, first operand first."""
    low, high = random & U32.type(0xFFFF), random >> U32.type(16)
    if element in ("f16", "bf16"):
        return [high, low]
    if element == "e2m1":
        byte, eight = U32.type(0xFF), U32.type(8)
        low, high = (low & byte) | ((high & byte) << eight), (low >> eight) | (high & ~byte)
    return [_reverse_half(high), high, _reverse_half(low), low]


def _reverse_half(numbers: Array) -> Array:
    result = np.zeros_like(numbers)
    for bit in range(16):
        result |= ((numbers >> U32.type(bit)) & U32.type(1)) << U32.type(15 - bit)
    return result
