"""From a finished trace to a module: cleaned, shared memory laid out, registers numbered, the version it needs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from warploom.hardware.targets import machine
from warploom.ptx.isa.table import decode_kernel
from warploom.ptx.isa.table import match as rows_of
from warploom.ptx.syntax.model import (
    Address,
    Directive,
    Instruction,
    Kernel,
    Module,
    Note,
    Operand,
    Register,
    Statement,
    Symbol,
    Variable,
)
from warploom.trace.builder import Builder, SharedArray
from warploom.trace.passes.cleanup import Cleanup, registers_of, rename
from warploom.trace.passes.predication import predicated

SHARED = "shared_memory"
"""The one array of dynamic shared memory that all others are parts of."""
_PREFIX = re.compile(r"\D+")


def finished(builder: Builder, directives: tuple[Directive, ...]) -> tuple[Module, int]:
    """The module of a trace, and the bytes of dynamic shared memory it must be launched with."""
    places, size, align = layout(builder.shared)
    body = predicated(Cleanup(*builder.statements).run())
    body = [_placed(statement, places) for statement in body]
    body, registers = _numbered(body, builder.registers)
    traced = Kernel(
        builder.name,
        params=tuple(builder.params),
        directives=directives,
        registers=registers,
        variables=tuple(builder.variables),
        body=tuple(body),
    )
    decode_kernel(replace(traced, body=tuple(_kinds(traced))), builder.target)
    files = tuple(enumerate(dict.fromkeys(each.loc.file for each in traced.instructions if each.loc), start=1))
    variables: tuple[Variable, ...] = ()
    if places:
        variables = (Variable("shared", "b8", SHARED, align, 0, linkage="extern"),)
    version = max(machine(builder.target).first_ptx, *(_version(each) for each in traced.instructions))
    variables += tuple(_text(name, text) for text, name in builder.texts.items())
    return Module(version, (builder.target,), (*builder.functions.values(), traced), variables, files=files), size


def _text(name: str, text: str) -> Variable:
    """A text with a zero after it, in global memory."""
    data = (*text.encode(), 0)
    return Variable("global", "b8", name, 1, len(data), data)


def _kinds(kernel: Kernel) -> Iterable[Instruction]:
    """The first of all instructions alike: each was read when it was written, and only the target is not yet asked."""
    return {(each.opcode, len(each.operands)): each for each in reversed(kernel.instructions)}.values()


def layout(arrays: list[SharedArray]) -> tuple[dict[str, int], int, int]:
    """Offsets of all arrays, their bytes together, and the alignment of the whole; the strictest alignment first."""
    places, end = dict[str, int](), 0
    for array in sorted(arrays, key=lambda array: -array.align):
        start = -(-end // array.align) * array.align
        places[array.name] = start
        end = start + array.bytes
    return places, end, max((array.align for array in arrays), default=1)


def _version(instruction: Instruction) -> tuple[int, int]:
    """The first PTX version that has an instruction."""
    return min(row.version for row, _ in rows_of(instruction.opcode))


def _placed(statement: Statement, places: dict[str, int]) -> Statement:
    """A statement with the names of shared arrays replaced by where they lie."""
    if isinstance(statement, Note):
        words = (f"{SHARED}+{places[word]}" if word in places else word for word in statement.text.split())
        return Note(" ".join(words))
    if isinstance(statement, Instruction) and any(_is_placed(operand, places) for operand in statement.operands):
        return replace(statement, operands=tuple(_place(operand, places) for operand in statement.operands))
    return statement


def _is_placed(operand: Operand, places: dict[str, int]) -> bool:
    symbol = operand.base if isinstance(operand, Address) else operand
    return isinstance(symbol, Symbol) and symbol.name in places


def _place(operand: Operand, places: dict[str, int]) -> Operand:
    match operand:
        case Symbol(name, offset) if name in places:
            return Symbol(SHARED, places[name] + offset)
        case Address(Symbol(name), offset, coordinates) if name in places:
            return Address(Symbol(SHARED), places[name] + offset, coordinates)
    return operand


def _numbered(body: list[Statement], types: dict[str, str]) -> tuple[list[Statement], tuple[tuple[str, str], ...]]:
    """Registers without gaps in their numbers, in the order of their first use."""
    names = dict[str, Register]()
    counts = defaultdict[str, int](int)
    for statement in body:
        if isinstance(statement, Instruction):
            for name in registers_of(statement):
                if name not in names:
                    prefix = _PREFIX.match(name)[0]  # type: ignore[index]
                    names[name] = Register(f"{prefix}{counts[prefix]}")
                    counts[prefix] += 1
    rows = sorted(((new.name, types[old]) for old, new in names.items()), key=_by_number)
    out = [rename(statement, names) if isinstance(statement, Instruction) else statement for statement in body]
    return out, tuple(rows)


def _by_number(row: tuple[str, str]) -> tuple[str, int]:
    prefix = _PREFIX.match(row[0])[0]  # type: ignore[index]
    return prefix, int(row[0][len(prefix) :])
