"""Operands of instructions."""

from __future__ import annotations

from warploom.diagnostics import Diag
from warploom.ptx.syntax.constants import LITERALS, constant, literal
from warploom.ptx.syntax.lexer import Reader
from warploom.ptx.syntax.model import (
    VECTOR_SPECIALS,
    Address,
    Arguments,
    Guard,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from warploom.ptx.syntax.scopes import Name, Names

NAME_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_$%")
_CONSTANT_START = frozenset("0123456789-~+(")
_IN_LIST = frozenset((",", "}"))
# The tokens after an operand that is one token.
ENDS = frozenset((",", ";"))


def operand(reader: Reader, names: Names, *, call: bool) -> Operand:
    """Parse one operand; in a `call`, parentheses enclose arguments."""
    token = reader.tokens[reader.at]
    first = token[:1]
    if first in NAME_START:
        return _named(reader, names)
    if first == "[":
        return _address(reader, names)
    if first == "{":
        return _vector(reader, names)
    if first == "(" and call:
        return _arguments(reader, names)
    if first == "!":
        reader.at += 1
        return Negated(_register(reader, names, "`!`"))
    if first in _CONSTANT_START:
        if reader.tokens[reader.at + 1] not in ENDS or not first.isdigit():
            return constant(reader)
        return literal(reader)
    raise reader.fail(f"expected an operand, found {reader.shown()}")


def parts_of(opcode: str, operands: tuple[Operand, ...]) -> list[tuple[str, tuple[Operand, ...]]]:
    """An instruction, or one for each part of a vector that `mov` moves whole: `mov.v4.u32 {a, b, c, d}, %tid`."""
    words = opcode.split(".")
    if words[0] != "mov" or len(words) != 3 or words[1] not in ("v2", "v4") or len(operands) != 2:
        return [(opcode, operands)]
    target, source = operands
    if isinstance(source, Special) and source.name in VECTOR_SPECIALS:
        source = Vector(tuple(Special(f"{source.name}.{axis}") for axis in "xyzw"))
    if not isinstance(target, Vector) or not isinstance(source, Vector) or len(target.items) != len(source.items):
        return [(opcode, operands)]
    pairs = zip(target.items, source.items, strict=True)
    return [(f"mov.{words[2]}", (to, given)) for to, given in pairs if not isinstance(to, Sink)]


def guard(reader: Reader, names: Names) -> Guard:
    """Parse `@p` or `@!p`."""
    reader.at += 1
    negated = reader.accept("!")
    return Guard(_register(reader, names, "`@`"), negated)


def _register(reader: Reader, names: Names, after: str) -> Register:
    index = reader.at
    token = reader.take()
    found = names.find(token) if token[:1] in NAME_START else Sink()
    if found is None:
        raise reader.error(Diag.UNDECLARED, index, name=token[:200])
    if not isinstance(found, Register):
        raise reader.fail(f"expected a predicate register after {after}, found {reader.shown(index)}", index)
    return found


def _item(reader: Reader, names: Names) -> Name:
    """Parse a name, with its offset if it is a symbol, or a constant."""
    index = reader.at
    token = reader.tokens[index]
    if token[:1] in _CONSTANT_START:
        return constant(reader)
    if token[:1] not in NAME_START:
        raise reader.fail(f"expected an operand, found {reader.shown()}")
    found = names.resolve(token, index)
    if isinstance(found, Immediate):
        return constant(reader)
    reader.at += 1
    if isinstance(found, Symbol) and reader.tokens[reader.at] == "+":
        return Symbol(found.name, _offset(reader))
    return found


def _named(reader: Reader, names: Names) -> Operand:
    vector = names.vector(reader.tokens[reader.at])
    if vector is not None:
        reader.at += 1
        return vector
    found = _item(reader, names)
    if reader.tokens[reader.at] != "|" or not isinstance(found, Register | Sink):
        return found
    reader.at += 1
    index = reader.at
    second = _item(reader, names)
    if not isinstance(second, Register | Sink):
        raise reader.fail(f"the second of a pair must be a register or `_`, not {reader.shown(index)}", index)
    return Pair(found, second)


def _offset(reader: Reader) -> int:
    """Parse `+ constant` if present."""
    if not reader.accept("+"):
        if reader.tokens[reader.at] == "-":
            raise reader.fail("an offset is added: write `+-4`, not `-4`")
        return 0
    index = reader.at
    value = constant(reader)
    if value.kind != "int":
        raise reader.fail("an offset must be an integer", index)
    return value.value


def _address(reader: Reader, names: Names) -> Address:
    reader.at += 1
    index, tokens = reader.at, reader.tokens
    base = names.scope.known.get(tokens[index])
    if isinstance(base, Register):
        if tokens[index + 1] == "]":
            reader.at += 2
            return Address(base)
        added = LITERALS.get(tokens[index + 2]) if tokens[index + 1] == "+" else None
        if added is not None and added.kind == "int" and tokens[index + 3] == "]":
            reader.at += 4
            return Address(base, added.value)
    found = names.resolve(reader.take(), index) if reader.tokens[index][:1] in NAME_START else constant(reader)
    if isinstance(found, Special | Sink) or (isinstance(found, Immediate) and found.kind != "int"):
        raise reader.fail("an address needs a register, a symbol or an integer", index)
    offset = _offset(reader)
    coordinates = None
    if reader.accept(","):
        if reader.tokens[reader.at] != "{":
            raise reader.fail(f"expected the coordinates `{{…}}` of a tensor, found {reader.shown()}")
        coordinates = _vector(reader, names)
    reader.expect("]", "an address")
    return Address(found, offset, coordinates)


def _vector(reader: Reader, names: Names) -> Vector:
    """Parse `{a, b, …}`; fast for long accumulator lists: after a known register only the next token is checked."""
    tokens, known = reader.tokens, names.scope.known
    at = reader.at + 1
    items: list[Name] = []
    item: Name | None
    while True:
        token, item = tokens[at], None
        if tokens[at + 1] in _IN_LIST:
            item = known.get(token) or (names.find(token) if token[:1] in NAME_START else None)
        if item is None:
            reader.at = at
            item = _item(reader, names)
            at = reader.at
        else:
            at += 1
        items.append(item)
        if tokens[at] != ",":
            break
        at += 1
    reader.at = at
    reader.expect("}", "a vector")
    return Vector(tuple(items))


def _arguments(reader: Reader, names: Names) -> Arguments:
    reader.at += 1
    items: list[Register | Symbol | Immediate | Sink] = []
    while reader.tokens[reader.at] != ")":
        index = reader.at
        item = _item(reader, names)
        if isinstance(item, Special):
            raise reader.fail(f"{reader.shown(index)} cannot be passed; move it to a register first", index)
        items.append(item)
        if not reader.accept(","):
            break
    reader.expect(")", "arguments")
    return Arguments(tuple(items))
