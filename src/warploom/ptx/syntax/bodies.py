"""The body of a function: scopes, declarations, labels and instructions, as one flat list of statements."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from warploom.diagnostics import Loc
from warploom.ptx.syntax.constants import LITERALS, integer
from warploom.ptx.syntax.declarations import SPACES, registers, variables
from warploom.ptx.syntax.lexer import Reader
from warploom.ptx.syntax.model import (
    BranchTargets,
    CallTable,
    Guard,
    Instruction,
    Label,
    Note,
    Operand,
    Pragma,
    Statement,
    Variable,
)
from warploom.ptx.syntax.operands import ENDS, NAME_START, guard, operand, parts_of
from warploom.ptx.syntax.scopes import Names

_TABLE_WORD = re.compile(r"[\w$%.]+|[(),\[\]]", re.ASCII)


@dataclass(slots=True)
class Body:
    """The contents of a body."""

    names: Names
    statements: list[Statement] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    loc: Loc | None = None


def body(reader: Reader, names: Names, files: dict[int, str], first: list[Statement]) -> Body:
    """Parse `{ … }`; `first` are statements from the header. The brace is the next token."""
    opened = reader.at
    reader.at += 1
    read = Body(names, list(first))
    statements, tokens, notes = read.statements, reader.tokens, reader.notes
    while True:
        while notes and notes[0][0] <= reader.at:
            statements.append(Note(notes.popleft()[1]))
        token = tokens[reader.at]
        start = token[:1]
        names.statement = len(statements)
        if start in NAME_START:
            if tokens[reader.at + 1] == ":":
                _label(reader, read)
            else:
                _instruction(reader, read, None)
        elif start == "@":
            _instruction(reader, read, guard(reader, names))
        elif start == ".":
            _directive(reader, read, files)
        elif start == "{":
            reader.at += 1
            names.open()
        elif start == "}":
            reader.at += 1
            if not names.close():
                break
        elif not token:
            raise reader.fail("this `{` is never closed", names.scope.index if names.scope.parent else opened)
        else:
            raise reader.fail(f"expected an instruction, found {reader.shown()}")
    reader.outside += names.finish(statements)
    return read


def _instruction(reader: Reader, read: Body, guarded: Guard | None) -> None:
    tokens, names = reader.tokens, read.names
    start = at = reader.at
    opcode = tokens[at]
    if opcode[:1] not in NAME_START:
        raise reader.fail(f"expected an instruction, found {reader.shown()}")
    at += 1
    while tokens[at][:1] == ".":
        opcode += tokens[at]
        at += 1
    operands: list[Operand] = []
    found: Operand | None
    if tokens[at] != ";":
        call = opcode.partition(".")[0] == "call"
        known = names.scope.known
        while True:
            token, found = tokens[at], None
            if tokens[at + 1] in ENDS:
                found = known.get(token) or LITERALS.get(token)
                if found is None and token[:1] in NAME_START and not names.has_vectors:
                    found = names.find(token)
            if found is None:
                reader.at = at
                found = operand(reader, names, call=call)
                at = reader.at
            else:
                at += 1
            operands.append(found)
            follows = tokens[at]
            if follows == ";":
                break
            if follows != ",":
                raise reader.fail(f"expected `,` or `;` in `{opcode[:60]}`, found {reader.shown(at)}", at)
            at += 1
    reader.at = at + 1
    line = reader.line(start)
    if opcode.startswith("mov.v"):
        parts = parts_of(opcode, tuple(operands))
        read.statements += [Instruction(each, given, guarded, read.loc, line) for each, given in parts]
    else:
        read.statements.append(Instruction(opcode, tuple(operands), guarded, read.loc, line))


def _label(reader: Reader, read: Body) -> None:
    index = reader.at
    name = read.names.label(reader.name("a label"), index)
    reader.at += 1
    table = reader.tokens[reader.at]
    if table == ".branchtargets":
        reader.at += 1
        targets: list[str] = []
        while True:
            place = reader.at
            targets.append(read.names.reference(reader.name("a label"), place).name)
            if not reader.accept(","):
                break
        reader.expect(";", "the targets of a branch")
        read.statements.append(BranchTargets(name, tuple(targets)))
    elif table in (".calltargets", ".callprototype"):
        start = reader.at
        while _TABLE_WORD.fullmatch(reader.tokens[reader.at]):
            reader.at += 1
        words = " ".join(reader.tokens[start : reader.at])
        reader.expect(";", f"`{table}`")
        read.statements.append(CallTable(name, words))
    else:
        read.statements.append(Label(name))


def _directive(reader: Reader, read: Body, files: dict[int, str]) -> None:
    word, names = reader.tokens[reader.at], read.names
    if word == ".loc":
        # LLVM counts the lines of inline assembly as lines of the source file: the place before it is the author's.
        inside = reader.in_inline_asm(reader.at)
        loc = _location(reader, files)
        read.loc = read.loc if inside else loc
    elif word == ".reg":
        for name, count, type_, index in registers(reader):
            width, _, element = type_.rpartition(".")
            if width and count is None:
                names.declare_vector(name, int(width[1:]), element, index)
            elif count is None:
                names.declare(name, type_, index)
            elif width:
                raise reader.fail("a range of vectors cannot be declared; name each", index)
            else:
                names.declare_range(name, count, type_, index)
    elif word in SPACES:
        for variable, index in variables(reader):
            read.variables.append(replace(variable, name=names.declare(variable.name, "", index)))
    elif word == ".pragma":
        read.statements += pragmas(reader)
    else:
        raise reader.fail(f"{reader.shown()} has no meaning in the body of a function")


def pragmas(reader: Reader) -> list[Pragma]:
    """Parse `.pragma "…", …;`: one statement for each string."""
    reader.at += 1
    read = [Pragma(reader.string("a pragma"))]
    while reader.accept(","):
        read.append(Pragma(reader.string("a pragma")))
    reader.expect(";", "a pragma")
    return read


def _location(reader: Reader, files: dict[int, str]) -> Loc | None:
    """Parse `.loc file line column`; line 0 and a file that is not listed give no location."""
    reader.at += 1
    number, line, column = [integer(reader, "a place in a source file") for _ in range(3)]
    while reader.accept(","):
        word = reader.tokens[reader.at]
        if word == "function_name":
            reader.at += 1
            reader.name("a label")
            if reader.accept("+"):
                integer(reader, "an offset")
        elif word == "inlined_at":
            reader.at += 1
            for _ in range(3):
                integer(reader, "a place in a source file")
        else:
            raise reader.fail(f"expected `function_name` or `inlined_at`, found {reader.shown()}")
    return Loc(files[number], line, column) if line and number in files else None
