"""Values packed in one register, and unpacked again.

8-bit floats are converted two at a time. One remembers the f32 it was rounded from and the word it was taken from, so
that neighbours are converted by one instruction, whichever way the author wrote it; what that leaves unread is not
emitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from warploom.diagnostics import Diag
from warploom.ptx.syntax.model import Register, Vector
from warploom.trace.builder import current, here
from warploom.trace.language.types import TYPES, Type
from warploom.trace.language.values import Value, binary, compute, from_bits, literal, same_type

PAIRS = tuple(row.name for row in TYPES.values() if row.half and row.bits == 2 * TYPES[row.half].bits)
_BYTE = 8
_HALF, _UPPER_HALF = 16, 0xFFFF0000
_SELECT_EVEN = 0x6420
"""`prmt`: bytes 0 and 2 of one word, then of the other."""
_SOURCE, _IN_LOW, _IN_HIGH, _PART = "rounded from", "low byte of", "high byte of", "part of"
"""Facts about a value, as keys of known expressions."""


def pack(*parts: Value) -> Value:
    """Two 16-bit floats, or two or four 8-bit ones, as one value; the first in the low bits."""
    for part in parts[1:]:
        same_type("pack", parts[0], part)
    name = f"{parts[0].type}x{len(parts)}"
    if name not in TYPES:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"{len(parts)} .{parts[0].type} in one register")
    return join(parts).bits(name) if TYPES[name].kind == "packed" else merge(name, *parts)


def unpack(packed: Value) -> tuple[Value, ...]:
    """Return the values in a register, the one in the low bits first."""
    row = TYPES[packed.type]
    if not row.half:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"the parts of a .{packed.type}")
    if row.kind == "packed":
        return parts_of(packed.bits(f"u{row.bits}"), row.half)
    return split(packed, row.half)


def round_pair(low: Value, high: Value, type_: str = "bf16x2", *, relu: bool = False) -> Value:
    """Two f32 rounded to a pair by one instruction, negative ones to zero where asked; 8-bit ones stay finite."""
    same_type("round_pair", low, high)
    if low.type != "f32" or type_ not in PAIRS:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{type_} rounded from .{low.type}")
    finite = ".satfinite" if TYPES[type_].kind == "packed" else ""
    return compute(f"cvt.rn{finite}{'.relu' if relu else ''}.{type_}.f32", type_, high, low)


def merge(type_: str, *parts: Value) -> Value:
    """Pack parts in one register, the first in the low bits."""
    builder = current("merge()")
    items = tuple(_register(part) for part in parts)
    wholes = {builder.known((_PART, len(items), number, item)) for number, item in enumerate(items)}
    whole = wholes.pop()
    if whole is not None and not wholes:
        return Value(type_, whole.operand, whole.region)
    key = ("mov.pack", *items)
    known = builder.known(key)
    if known is None:
        out = builder.register(type_)
        builder.add(f"mov.{TYPES[type_].register}", (out, Vector(items)))
        known = builder.region.known[key] = Value(type_, out, builder.region)
    return Value(type_, known.operand, known.region)


def split(whole: Value, type_: str) -> tuple[Value, ...]:
    """The parts of a register as values of a narrower type, the one in the low bits first."""
    builder = current("split()")
    count = TYPES[whole.type].bits // TYPES[type_].bits
    source = _register(whole)
    keys = [("mov.unpack", source, type_, number) for number in range(count)]
    known = tuple(value for key in keys if (value := builder.known(key)) is not None)
    if len(known) < count:
        outs = tuple(builder.register(type_) for _ in range(count))
        builder.add(f"mov.{TYPES[whole.type].register}", (Vector(outs), source))
        known = tuple(Value(type_, out, builder.region) for out in outs)
        builder.region.known.update(zip(keys, known, strict=True))
        held = Value(whole.type, source, builder.region)
        builder.region.known.update({(_PART, count, number, out): held for number, out in enumerate(outs)})
    return known


def _register(value: Value) -> Register:
    """The value in a register, a literal after a move."""
    operand = value.read()
    if not isinstance(operand, Register):
        row = TYPES[value.type]
        operand = compute(f"mov.{row.register}", value.type, Value(f"u{row.bits}", operand)).operand
    assert isinstance(operand, Register)
    return operand


def rounded(value: Value, row: Type) -> Value:
    """A number as an 8-bit float, to nearest even; what is too large becomes the largest."""
    if value.type == "f64":
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a .f64 converted to .{row.name}; convert it to .f32 first")
    single = value.to("f32")
    pair = round_pair(single, literal(0.0, "f32"), f"{row.name}x2")
    result = Value(row.name, pair.operand, pair.region)
    current().region.known[_SOURCE, result.operand] = single
    return result


def widened(value: Value) -> Value:
    """An 8-bit float as the 16-bit float that holds all its numbers."""
    row, builder = TYPES[value.type], current()
    for half, where in enumerate((_IN_LOW, _IN_HIGH)):
        whole = builder.known((where, value.operand))
        if whole is not None:
            return unpack(_widened_pair(whole, row))[half]
    return unpack(_widened_pair(value.bits("u16"), row))[0]


def lengthened(value: Value) -> Value | None:
    """A bf16 that lies in a word with another as the f32 whose upper bits it is: by one instruction, from the word."""
    builder = current()
    for number in (0, 1):
        whole = builder.known((_PART, 2, number, value.operand))
        if whole is not None:
            word = Value("u32", whole.operand, whole.region)
            return (word & _UPPER_HALF if number else word << _HALF).bits("f32")
    return None


def _widened_pair(pair: Value, row: Type) -> Value:
    return compute(f"cvt.rn.{row.wide}x2.{row.name}x2", f"{row.wide}x2", pair)


def join(parts: Sequence[Value]) -> Value:
    """Two or four 8-bit values as a u16 or u32, the first in the low bits."""
    parts = [part.get() for part in parts]
    if all(part.literal is not None for part in parts):
        known = (int(part.bits("u16").literal or 0) << _BYTE * at for at, part in enumerate(parts))
        return from_bits(sum(known), f"u{_BYTE * len(parts)}")
    pairs = [_converted_pair(low, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    if len(parts) == 2:
        return pairs[0] if pairs[0] is not None else _gathered(*parts, *parts).to("u16")
    halves = [pair for pair in pairs if pair is not None]
    return merge("u32", *halves) if len(halves) == 2 else _gathered(*parts)


def _converted_pair(low: Value, high: Value) -> Value | None:
    """Two bytes that lie in one word already, or 8-bit floats of which it is known what they were rounded from."""
    builder, row = current(), TYPES[low.type]
    whole, other = builder.known((_IN_LOW, low.operand)), builder.known((_IN_HIGH, high.operand))
    if whole is not None and other is not None and whole.operand == other.operand:
        return whole
    sources = []
    for part in (low, high):
        number = part.literal
        found = literal(number, "f32") if number is not None else builder.known((_SOURCE, part.operand))
        sources.append(found)
    if row.kind != "narrow" or sources[0] is None or sources[1] is None:
        return None
    return round_pair(sources[0], sources[1], f"{row.name}x2")


def _gathered(*parts: Value) -> Value:
    """The low bytes of four registers in one."""
    first, second = (merge("u32", *(part.bits("u16") for part in two)) for two in (parts[:2], parts[2:]))
    return compute("prmt.b32", "u32", first, second, literal(_SELECT_EVEN, "u32"))


def parts_of(word: Value, type_: str) -> tuple[Value, ...]:
    """The 8-bit values in a u16 or u32, the one in the low bits first."""
    if TYPES[word.type].bits > 2 * _BYTE:
        return tuple(part for half in split(word, "u16") for part in parts_of(half, type_))
    row, builder = TYPES[type_], current()
    if row.kind == "signed":
        low, high = compute("cvt.s16.s8", type_, word), binary("shr", word.bits("s16"), _BYTE)
    else:
        low, high = binary("and", word, 0xFF), binary("shr", word, _BYTE)
    found = Value(type_, low.operand, low.region), Value(type_, high.operand, high.region)
    for part, where in zip(found, (_IN_LOW, _IN_HIGH), strict=True):
        builder.region.known[where, part.operand] = word
    return found
