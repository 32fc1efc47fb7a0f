"""`cvt` and `cvt.pack`: every conversion of PTX 9.0, one element at a time or packed.

Packed forms of later versions whose meaning follows from these (bf16x2 to and from 8-bit floats) work too; `.s2f6x2`
and its `.scaled::n2::ue8m0` (PTX 9.1) do not.
"""

from __future__ import annotations

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES
from warploom.machine.numerics import small
from warploom.machine.numerics.bits import I32, U8, U32, Array, ArrayFunction, Signature, pieces, unknown
from warploom.machine.numerics.conversions import float_to_float, from_integer, to_integer


def convert(signature: Signature) -> ArrayFunction:
    """The function of a `cvt`: (value), or (those it packs, the first into the top…), and at last the bits of `rs`."""
    # Forms that convert only from f32 need not name it.
    signature = {"atype": "f32", **signature}
    target, source = signature["dtype"], signature["atype"]
    if target in PACKED_TYPES:
        return _packed(signature)
    target_type, source_type = ELEMENT_TYPES[target], ELEMENT_TYPES[source]
    if not source_type.is_float:
        return from_integer(target_type, source_type, signature)
    return float_to_float(signature) if target_type.is_float else to_integer(target_type, source_type, signature)


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
            one = float_to_float({**signature, "dtype": element})
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


def pack(signature: Signature) -> ArrayFunction:
    """`cvt.pack`: (a, b[, c]) → a and b cut to the type's range, a above b, over the low bits of c shifted up."""
    name = signature["dtype"]
    bits, signed = int(name[1:]), name[0] == "s"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    mask, shift = U32.type((1 << bits) - 1), U32.type(bits)

    def whole(a: Array, b: Array, c: Array | None = None) -> Array:
        upper, lower = (np.clip(operand.view(I32), low, high).view(U32) & mask for operand in (a, b))
        result: Array = (upper << shift) | lower
        return result if c is None else result | (c << U32.type(2 * bits))

    return whole
