"""Literals and constant expressions, folded as they are read."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable

from warploom.ptx.syntax.lexer import Reader
from warploom.ptx.syntax.model import Immediate

_DEEPEST = 64
_LITERAL = re.compile(
    r"""0[fF](?P<f32>[0-9a-fA-F]{8}) | 0[dD](?P<f64>[0-9a-fA-F]{16})
      | (?P<decimal>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?:0[xX](?P<hex>[0-9a-fA-F]+) | 0[bB](?P<binary>[01]+) | 0(?P<octal>[0-7]+) | (?P<integer>0|[1-9]\d*))U?""",
    re.VERBOSE | re.ASCII,
)
_BASES = {"hex": 16, "binary": 2, "octal": 8, "integer": 10}
_MOST_DIGITS = 64
LITERALS: dict[str, Immediate] = {}
"""Numbers by their token: texts repeat a few hundred."""
_MOSTLITERALS = 1 << 14

# By precedence, as in C.
_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "|": (1, operator.or_),
    "^": (2, operator.xor),
    "&": (3, operator.and_),
    "<<": (4, operator.lshift),
    ">>": (4, operator.rshift),
    "+": (5, operator.add),
    "-": (5, operator.sub),
    "*": (6, operator.mul),
}
# Names of constants. PTX fixes the width of a warp.
NAMED = {"WARP_SZ": Immediate(32)}


def constant(reader: Reader, binds: int = 0, depth: int = 0) -> Immediate:
    """Parse a constant expression; operators of lower precedence than `binds` are left to the caller."""
    left = LITERALS.get(reader.tokens[reader.at])
    if left is None:
        left = _primary(reader, depth)
    else:
        reader.at += 1
    while (row := _BINARY.get(reader.tokens[reader.at])) and row[0] > binds:
        place, symbol = reader.at, reader.take()
        right = constant(reader, row[0], depth + 1)
        if left.kind != "int" or right.kind != "int":
            raise reader.fail(f"`{symbol}` joins integers only", place)
        if symbol in ("<<", ">>") and not 0 <= right.value < 64:
            raise reader.fail(f"a shift by {right.value}; 64-bit constants shift by 0 to 63", place)
        left = Immediate(_wrapped(row[1](left.value, right.value)))
    return left


def integer(reader: Reader, what: str, least: int = 0) -> int:
    """Parse a constant that must be an integer."""
    start = reader.at
    value = constant(reader)
    if value.kind != "int" or value.value < least:
        raise reader.fail(f"{what} must be an integer of at least {least}", start)
    return value.value


def literal(reader: Reader) -> Immediate:
    """Parse one number."""
    token = reader.tokens[reader.at]
    if (known := LITERALS.get(token)) is not None:
        reader.at += 1
        return known
    match = _LITERAL.fullmatch(token)
    if match is None or match.lastgroup is None:
        raise reader.fail(f"{reader.shown()} is not a number")
    kind, digits = match.lastgroup, match[match.lastgroup]
    if kind in ("f32", "f64"):
        value = Immediate(int(digits, 16), kind)
    elif kind == "decimal":
        value = Immediate(struct.unpack("<Q", struct.pack("<d", float(digits)))[0], "f64")
    else:
        digits = digits.lstrip("0")
        value = Immediate(int(digits or "0", _BASES[kind]) if len(digits) <= _MOST_DIGITS else 2**64)
        if value.value >= 2**64:
            raise reader.fail("an integer of more than 64 bits")
    if len(LITERALS) >= _MOSTLITERALS:
        LITERALS.clear()
    LITERALS[token] = value
    reader.at += 1
    return value


def _primary(reader: Reader, depth: int) -> Immediate:
    if depth > _DEEPEST:
        raise reader.fail(f"an expression nested deeper than {_DEEPEST}")
    sign = reader.tokens[reader.at]
    if sign[:1].isdigit():
        return literal(reader)
    if sign in NAMED:
        return NAMED[reader.take()]
    start = reader.at
    if reader.accept("("):
        value = constant(reader, 0, depth + 1)
        reader.expect(")", "a constant expression")
        return value
    if sign not in ("-", "~", "+"):
        raise reader.fail(f"expected a constant, found {reader.shown()}")
    reader.at += 1
    exact = reader.tokens[reader.at][:2].lower() in ("0f", "0d")
    value = _primary(reader, depth + 1)
    if value.kind == "int":
        return Immediate(_wrapped({"-": -value.value, "~": ~value.value, "+": value.value}[sign]))
    if sign != "-" or exact:
        raise reader.fail(f"`{sign}` before a floating-point number that is given by its bits", start)
    return Immediate(value.value ^ (1 << 63), "f64")


def _wrapped(value: int) -> int:
    """The result of 64-bit arithmetic: signed if it is in the range of neither kind of integer."""
    return value if -(2**63) <= value < 2**64 else ((value + 2**63) % 2**64) - 2**63
