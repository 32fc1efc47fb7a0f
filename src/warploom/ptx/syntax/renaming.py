"""Renaming of statements, for a function body that is inlined into a kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warploom.ptx.syntax.model import (
    Address,
    Arguments,
    BranchTargets,
    Guard,
    Instruction,
    Label,
    Negated,
    Pair,
    Register,
    Statement,
    Symbol,
    Vector,
)


def renamed(statement: Statement, rename: dict[str, str], end: str) -> Statement:
    """A renamed statement; a return becomes a branch to `end`."""
    match statement:
        case Label(name):
            return Label(rename.get(name, name))
        case BranchTargets(name, targets):
            return BranchTargets(rename.get(name, name), tuple(rename.get(t, t) for t in targets))
        case Instruction():
            guard = statement.guard
            if guard is not None:
                guard = Guard(renamed_operand(guard.register, rename), guard.negated)
            if statement.opcode.partition(".")[0] == "ret":
                return Instruction("bra", (Symbol(end),), guard, statement.loc, statement.line)
            operands = tuple(renamed_operand(each, rename) for each in statement.operands)
            return replace(statement, guard=guard, operands=operands)
    return statement


def renamed_operand(operand: Any, rename: dict[str, str]) -> Any:
    """An operand of any kind with its names replaced; operands without names are unchanged."""
    match operand:
        case Register(name):
            return Register(rename.get(name, name))
        case Symbol(name, offset):
            return Symbol(rename.get(name, name), offset)
        case Negated(register):
            return Negated(renamed_operand(register, rename))
        case Pair(first, second):
            return Pair(renamed_operand(first, rename), renamed_operand(second, rename))
        case Vector(items):
            return Vector(tuple(renamed_operand(item, rename) for item in items))
        case Address(base, offset, coordinates):
            return Address(renamed_operand(base, rename), offset, renamed_operand(coordinates, rename))
        case Arguments(items):
            return Arguments(tuple(renamed_operand(item, rename) for item in items))
    return operand
