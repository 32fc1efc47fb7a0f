"""Predication: short branches become guarded instructions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from warploom.ptx.isa.table import match as rows_of
from warploom.ptx.syntax.model import Guard, Instruction, Label, Pair, Register, Statement, Symbol, Vector

_LONGEST = 8
"""Instructions of one side; beyond that an untaken branch is cheaper."""
_WRITTEN = ("out", "pair", "outs", "inout", "rows")
"""Kinds of operands that an instruction writes."""
_TOGETHER = ("syncs", "waits", "drains")


def predicated(body: list[Statement]) -> list[Statement]:
    """A body whose short `if`s, with or without `else`, are predicated where nothing inside waits or needs a warp.

    An instruction that is the only one to write its result is better without a guard: to ptxas a register that is
    written under a guard holds something before, all the way up to the loop around. Labels without a jump are
    removed.
    """
    out = list(body)
    makers = Counter(name for statement in body for name in _made(statement))
    named = Counter(name for statement in body if (name := _jump(statement)))
    places = {statement.name: at for at, statement in enumerate(body) if isinstance(statement, Label)}
    for at in range(len(body) - 1, -1, -1):
        statement = out[at]
        if not isinstance(statement, Instruction) or statement.guard is None or named[_jump(statement)] != 1:
            continue
        if at < places[_jump(statement)] <= at + 2 * _LONGEST + 2:
            _predicate(out, at, statement.guard, named, makers)
    left = {_jump(statement) for statement in out}
    return [statement for statement in out if not isinstance(statement, Label) or statement.name in left]


def _predicate(out: list[Statement], at: int, skip: Guard, named: Counter[str], makers: Counter[str]) -> None:
    """Rewrite the branch at a position in place, if both its sides permit it."""
    end = _label(out, at + 1, _jump(out[at]))
    then, other = out[at + 1 : end], list[Statement]()
    last = then[-1] if then else None
    if isinstance(last, Instruction) and last.guard is None and named[_jump(last)] == 1:
        join = _label(out, end + 1, _jump(last))
        if join > end:
            then, other, end = then[:-1], out[end + 1 : join], join
    sides = ((then, Guard(skip.register, not skip.negated)), (other, skip))
    guarded = [_guarded(side, guard, makers) for side, guard in sides]
    if guarded[0] is not None and guarded[1] is not None:
        out[at : end + 1] = [*guarded[0], *guarded[1]]


def _label(out: list[Statement], start: int, name: str) -> int:
    """Return the position of a label after another position, or -1."""
    return next((at for at in range(start, len(out)) if out[at] == Label(name)), -1)


def _guarded(side: list[Statement], guard: Guard, makers: Counter[str]) -> list[Statement] | None:
    if len(side) > _LONGEST or not all(_may_be_guarded(statement, guard.register) for statement in side):
        return None
    instructions = [statement for statement in side if isinstance(statement, Instruction)]
    return [each if _is_harmless(each, makers) else replace(each, guard=guard) for each in instructions]


def _is_harmless(instruction: Instruction, makers: Counter[str]) -> bool:
    """Return whether an instruction only computes values that no other instruction writes."""
    made = _made(instruction)
    pure = all(not row.effects and not row.blocks for row, _ in rows_of(instruction.opcode))
    return pure and bool(made) and all(makers[name] == 1 for name in made)


def _made(statement: Statement) -> list[str]:
    """The registers that an instruction writes."""
    if not isinstance(statement, Instruction):
        return []
    row = next((row for row, _ in rows_of(statement.opcode)), None)
    if row is None:
        return []
    written = zip(row.slots, statement.operands, strict=False)
    return [name for slot, operand in written if slot.kind in _WRITTEN for name in _names(operand)]


def _names(operand: object) -> list[str]:
    match operand:
        case Register(name):
            return [name]
        case Pair(first, second):
            return _names(first) + _names(second)
        case Vector(items):
            return [name for item in items for name in _names(item)]
    return []


def _may_be_guarded(statement: Statement, predicate: Register) -> bool:
    if not isinstance(statement, Instruction) or statement.guard is not None:
        return False
    if predicate in statement.operands:
        return False
    return not any(
        row.steers or row.blocks or row.issuer != "thread" or any(effect.verb in _TOGETHER for effect in row.effects)
        for row, _ in rows_of(statement.opcode)
    )


def _jump(statement: Statement | None) -> str:
    match statement:
        case Instruction("bra", (Symbol(name),)):
            return name
    return ""
