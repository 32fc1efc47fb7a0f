"""Declarations: variables with their initial values, parameters, and registers."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import replace

from warploom.ptx.syntax.constants import constant, integer
from warploom.ptx.syntax.lexer import Reader
from warploom.ptx.syntax.model import Immediate, Symbol, Variable

BITS = {
    **{f"{letter}{bits}": bits for letter in "bsu" for bits in (8, 16, 32, 64)},
    "b128": 128,
    "f16": 16,
    "f16x2": 32,
    "bf16": 16,
    "bf16x2": 32,
    "f32": 32,
    "f64": 64,
    "pred": 1,
}
SPACES = frozenset((".global", ".const", ".shared", ".local", ".param"))
_WIDTHS = {".v2": 2, ".v4": 4, ".v8": 8}
_POINTED = frozenset((".global", ".const", ".shared", ".local"))
# Types that take a floating-point initial value, and its width there.
_FLOATS = {"f32": "f", "b32": "f", "f64": "d", "b64": "d"}
_MOST_BYTES = 2**48


def variables(reader: Reader, linkage: str = "") -> Iterator[tuple[Variable, int]]:
    """Parse `.space .align n .type name[n] = value, …;`, each with the index of its name."""
    space = reader.take()[1:]
    align, type_, _ = _qualifiers(reader)
    while True:
        index = reader.at
        yield _declarator(reader, Variable(space, type_, "", align, None, None, linkage)), index
        if not reader.accept(","):
            break
    reader.expect(";", "a declaration")


def parameters(reader: Reader) -> Iterator[tuple[Variable, int]]:
    """Parse `(.param …, …)`, each with the index of its name."""
    reader.at += 1
    while reader.tokens[reader.at] != ")":
        space = reader.tokens[reader.at]
        if space not in (".param", ".reg"):
            raise reader.fail(f"expected `.param`, found {reader.shown()}")
        reader.at += 1
        align, type_, pointer = _qualifiers(reader)
        index = reader.at
        yield _declarator(reader, Variable(space[1:], type_, "", align, None, None, "", pointer)), index
        if not reader.accept(","):
            break
    reader.expect(")", "the parameters")


def registers(reader: Reader) -> Iterator[tuple[str, int | None, str, int]]:
    """Parse `.reg .type a, %r<n>, …;`: name, count (None for one register), type, and the index of the name.

    A vector's type begins with its length, `v2.f32`.
    """
    reader.at += 1
    vector = reader.tokens[reader.at][1:] if reader.tokens[reader.at] in (".v2", ".v4") else ""
    reader.at += bool(vector)
    type_ = f"{vector}.{_type(reader)}" if vector else _type(reader)
    while True:
        index = reader.at
        name = reader.name("a register's name")
        count = None
        if reader.accept("<"):
            count = integer(reader, "a count of registers", 1)
            reader.expect(">", "a count of registers")
        yield name, count, type_, index
        if not reader.accept(","):
            break
    reader.expect(";", "a declaration of registers")


def skip_attribute(reader: Reader) -> None:
    """Skip `.attribute(…)`: the emulator does not need to know where the driver puts a variable."""
    reader.at += 1
    depth = 0
    while True:
        depth += {"(": 1, ")": -1}.get(reader.tokens[reader.at], 0)
        if not reader.take() or depth <= 0:
            break
    if reader.tokens[reader.at - 1] != ")":
        raise reader.fail("`.attribute` needs its `( )`")


def _type(reader: Reader) -> str:
    token = reader.tokens[reader.at]
    if token[1:] not in BITS or token[0] != ".":
        raise reader.fail(f"expected a type such as `.b32`, found {reader.shown()}")
    reader.at += 1
    return token[1:]


def _qualifiers(reader: Reader) -> tuple[int, str, str]:
    """Parse everything between the space and the name: alignment, type, and the attributes of a pointer parameter."""
    align, width = 0, ""
    while True:
        word = reader.tokens[reader.at]
        if word == ".align":
            align = _alignment(reader)
        elif word == ".attribute":
            skip_attribute(reader)
        elif word in _WIDTHS:
            width = f"{reader.take()[1:]}."
        else:
            break
    type_ = width + _type(reader)
    words: list[str] = []
    if reader.accept(".ptr"):
        words.append(".ptr")
        if reader.tokens[reader.at] in _POINTED:
            words.append(reader.take())
        if reader.tokens[reader.at] == ".align":
            words.append(f".align {_alignment(reader)}")
    return align, type_, " ".join(words)


def _alignment(reader: Reader) -> int:
    reader.at += 1
    index = reader.at
    value = integer(reader, "an alignment", 1)
    if value & (value - 1) or value > 2**31:
        raise reader.fail(f"an alignment of {value}; it must be a power of two", index)
    return value


def _declarator(reader: Reader, declared: Variable) -> Variable:
    """Parse the name, the dimensions and the initial value."""
    index = reader.at
    name = reader.take() if reader.tokens[index] == "_" else reader.name("a variable's name")
    dimensions: list[int] = []
    while reader.accept("["):
        unsized = reader.tokens[reader.at] == "]" and not dimensions
        dimensions.append(0 if unsized else integer(reader, "a dimension"))
        reader.expect("]", "a dimension")
    width, _, scalar = declared.type.rpartition(".")
    shape = [*dimensions, int(width[1:])] if width else dimensions
    if math.prod(shape) * BITS[scalar] > _MOST_BYTES * 8:
        raise reader.fail(f"`{name[:60]}` is larger than any memory", index)
    count = math.prod(dimensions) if dimensions else None
    initial: tuple[int | Symbol, ...] | None = None
    if reader.accept("="):
        values = _initial(reader, scalar, shape)
        initial = tuple(values)
        if dimensions and not dimensions[0]:
            row = max(math.prod(shape[1:]), 1)
            count = -(-len(values) // row) * math.prod(dimensions[1:])
    return replace(declared, name=name, count=count, initial=initial)


def _initial(reader: Reader, scalar: str, shape: list[int]) -> list[int | Symbol]:
    """Parse one value, or a brace list nested like the shape; short rows are filled with zeros."""
    if not shape:
        return [_value(reader, scalar)]
    start = reader.at
    reader.expect("{", "`=`")
    row = math.prod(shape[1:])
    values: list[int | Symbol] = []
    rows = 0
    while reader.tokens[reader.at] != "}":
        values += [0] * (rows * row - len(values))
        values += _initial(reader, scalar, shape[1:])
        rows += 1
        if not reader.accept(","):
            break
    reader.expect("}", "initial values")
    if shape[0] and rows > shape[0]:
        raise reader.fail(f"{rows} initial values where {shape[0]} fit", start)
    return values


def _value(reader: Reader, scalar: str) -> int | Symbol:
    word, index = reader.tokens[reader.at], reader.at
    if word == "generic" or (reader.tokens[index + 1] == "(" and word[:1].isdigit()):
        return _wrapped_symbol(reader)
    if word[:1].isalpha() or word[:1] in ("_", "$", "%"):
        return _symbol(reader)
    return _bits(reader, constant(reader), scalar, index)


def _wrapped_symbol(reader: Reader) -> Symbol:
    """Parse `generic(name)+4` or a byte of an address, `0xFF00(…)`; the wrapping becomes part of the symbol's name."""
    if reader.tokens[reader.at] == "generic":
        reader.at += 1
        reader.expect("(", "`generic`")
        inner = Symbol(_referred(reader))
        reader.expect(")", "a variable's name")
        return Symbol(f"generic({inner})", _added(reader))
    mask = integer(reader, "a mask")
    reader.expect("(", "a mask")
    inner = _wrapped_symbol(reader) if reader.tokens[reader.at] == "generic" else _symbol(reader)
    reader.expect(")", "a masked symbol")
    return Symbol(f"{mask:#X}({inner})".replace("0X", "0x"))


def _symbol(reader: Reader) -> Symbol:
    return Symbol(_referred(reader), _added(reader))


def _referred(reader: Reader) -> str:
    index = reader.at
    name = reader.name("a variable's name")
    reader.outside.append((name, index))
    return name


def _added(reader: Reader) -> int:
    if not reader.accept("+"):
        return 0
    index = reader.at
    value = constant(reader)
    if value.kind != "int":
        raise reader.fail("an offset must be an integer", index)
    return value.value


def _bits(reader: Reader, value: Immediate, scalar: str, index: int) -> int:
    """The value as an element of the type: floats as their bits, integers truncated to the width."""
    width = BITS[scalar]
    if value.kind == "int" and scalar[0] in "bsu":
        fits = -(1 << width - 1) <= value.value < 1 << width
        return value.value if fits else value.value & ((1 << width) - 1)
    letter = _FLOATS.get(scalar)
    if letter is None or value.kind == "int":
        raise reader.fail(f"{reader.shown(index)} cannot initialise a `.{scalar}`", index)
    raw = value.value.to_bytes(4 if value.kind == "f32" else 8, "little")
    if len(raw) * 8 == width:
        return value.value
    number = struct.unpack("<f" if value.kind == "f32" else "<d", raw)[0]
    try:
        return int.from_bytes(struct.pack(f"<{letter}", number), "little")
    except OverflowError:
        raise reader.fail(f"{reader.shown(index)} is too large for a `.{scalar}`", index) from None
