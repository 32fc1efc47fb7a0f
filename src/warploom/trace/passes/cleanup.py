"""Removal of needless copies and unread results.

Registers are assigned in place, not once, so a copy may go only where neither side changes while the other is read. A
stretch of text is as long as the reads in it, and as long as every loop that such a read lies in.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from dataclasses import replace
from typing import Any

from warploom.ptx.analysis.operand_registers import read, written
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import (
    Address,
    Guard,
    Instruction,
    Label,
    Negated,
    Pair,
    Register,
    Sink,
    Statement,
    Symbol,
    Vector,
)

_LEAVES = ("bra", "brx", "ret", "exit")


def renamed(operand: Any, names: dict[str, Register]) -> Any:
    """An operand with registers replaced; its kind stays."""
    match operand:
        case Register(name):
            return names.get(name, operand)
        case Negated(register):
            return Negated(names.get(register.name, register))
        case Vector(items):
            return Vector(tuple(renamed(item, names) for item in items))
        case Pair(first, second):
            return Pair(renamed(first, names), renamed(second, names))
        case Address(base, offset, coordinates):
            vector = None if coordinates is None else renamed(coordinates, names)
            return Address(renamed(base, names), offset, vector)
    return operand


def rename(instruction: Instruction, names: dict[str, Register]) -> Instruction:
    """An instruction with registers replaced, its guard's too."""
    guard = instruction.guard
    if guard is not None and guard.register.name in names:
        guard = replace(guard, register=names[guard.register.name])
    operands = tuple(renamed(operand, names) for operand in instruction.operands)
    return Instruction(instruction.opcode, operands, guard, instruction.loc, instruction.line)


def _is_pure(op: Op) -> bool:
    """Return whether an instruction only computes its results, as reading a parameter or electing a lane does."""
    if op.family == "elect":
        return True
    from_parameters = op.family == "ld" and op["space"].startswith("param")
    return bool(written(op)) and not op.form.blocks and (not op.form.effects or from_parameters)


def _gives_state(op: Op) -> bool:
    """Return whether an instruction arrives at a barrier and returns its state, which is rarely used."""
    return bool(op.form.slots) and op.form.slots[0].kind == "out" and op.form.slots[0].name == "state"


class Cleanup:
    """The statements of a kernel by position; a removed statement is None."""

    def __init__(self, body: list[Statement], ops: list[Op | None]) -> None:
        self.body: list[Statement | None] = list(body)
        self.pure = [op is not None and _is_pure(op) for op in ops]
        self.inside = [self._in_place(op) for op in ops]
        self.reads = [set(read(op)) if op is not None else set[str]() for op in ops]
        self.writes = [set(written(op)) if op is not None else set[str]() for op in ops]
        self.readers: defaultdict[str, list[int]] = defaultdict(list)
        self.writers: defaultdict[str, list[int]] = defaultdict(list)
        for position in range(len(body)):
            for name in self.reads[position]:
                self.readers[name].append(position)
            for name in self.writes[position]:
                self.writers[name].append(position)
        self.states = {at for at, op in enumerate(ops) if op is not None and _gives_state(op)}
        self.block = self._blocks(ops)
        self.loops = self._loops()

    def _in_place(self, op: Op | None) -> set[str]:
        """Registers that an instruction reads and writes through one operand."""
        slots = [] if op is None else [slot.name for slot in op.form.slots if slot.kind in ("rows", "inout")]
        return {r.name for name in slots for r in _registers(op.operands[name])} if op is not None else set()

    def _blocks(self, ops: list[Op | None]) -> list[int]:
        """The number of the straight stretch that each position lies in."""
        numbers, number = [], 0
        for statement, op in zip(self.body, ops, strict=True):
            number += isinstance(statement, Label)
            numbers.append(number)
            number += op is not None and op.family in _LEAVES
        return numbers

    def _loops(self) -> list[tuple[tuple[int, int], ...]]:
        """The loops around each position, as (first, last) position."""
        labels = {s.name: at for at, s in enumerate(self.body) if isinstance(s, Label)}
        jumps = ((labels.get(_target(statement), at), at) for at, statement in enumerate(self.body))
        starts = defaultdict[int, list[tuple[int, int]]](list)
        for top, bottom in jumps:
            if top < bottom:
                starts[top].append((top, bottom))
        around, open_ = list[tuple[tuple[int, int], ...]](), tuple[tuple[int, int], ...]()
        for position in range(len(self.body)):
            open_ = tuple(loop for loop in open_ if loop[1] >= position) + tuple(starts.get(position, ()))
            around.append(open_)
        return around

    def run(self) -> list[Statement]:
        """Return the statements that are left."""
        changed = True
        while changed:
            changed = self._each_copy() | self._unread()
        self._negations()
        self._unread()
        self._halves()
        return [statement for statement in self.body if statement is not None]

    def _reach(self, start: int, uses: list[int]) -> tuple[int, bool]:
        """The last position at which a value made at `start` may be read, and whether a loop brings it there."""
        last, looped = max(uses, default=start), False
        for use in uses:
            for top, bottom in self.loops[use]:
                if not top < start < bottom and bottom >= last:
                    last, looped = bottom, True
        return last, looped

    def _changes(self, name: str, start: int, uses: list[int]) -> bool:
        """Return whether a register is written after `start` while its value from there is still read."""
        last, looped = self._reach(start, uses)
        at = bisect_right(self.writers[name], start)
        while at < len(self.writers[name]) and (position := self.writers[name][at]) <= last:
            if position < last or looped or name in self.inside[position]:
                return True
            at += 1
        return False

    def _each_copy(self) -> bool:
        changed = False
        for position, statement in enumerate(self.body):
            match statement:
                case Instruction(opcode, (Register() as to, Register() as source), None) if opcode.startswith("mov."):
                    changed |= self._forward(position, to, source) or self._backward(position, to, source)
        return changed

    def _forward(self, position: int, to: Register, source: Register) -> bool:
        """Read the source of a copy instead of the copy."""
        uses = self.readers[to.name]
        # The copy must be the only write of its register and come before every read (a read before it, in a loop, sees
        # the last iteration's value), no instruction may update it in place, and the source must keep its value until
        # the last read.
        if to != source:
            if self.writers[to.name] != [position] or any(use <= position for use in uses):
                return False
            if any(to.name in self.inside[use] for use in uses) or self._changes(source.name, position, uses):
                return False
        self._replace(to, source, [use for use in uses if use != position])
        self._remove(position)
        return True

    def _backward(self, position: int, to: Register, source: Register) -> bool:
        """Let the instruction that made a value write it where it is copied to."""
        makers = self.writers[source.name]
        if len(makers) != 1 or (made := makers[0]) >= position or self.block[made] != self.block[position]:
            return False
        maker = self.body[made]
        assert isinstance(maker, Instruction)
        several = len(self.writes[made]) > 1 and to.name in self.reads[made]
        if maker.guard is not None or source.name in self.inside[made] or several or to.name in self.writes[made]:
            return False
        # The target register must be untouched between the two instructions, and must not change while later readers of
        # the source, which will read the target instead, still need the value.
        touched = (*self.readers[to.name], *self.writers[to.name])
        later = [use for use in self.readers[source.name] if use != position]
        if any(made < at < position for at in touched) or any(use <= made for use in later):
            return False
        if any(source.name in self.inside[use] for use in later):
            return False
        if later and self._changes(to.name, position, [use for use in later if use > position] or [position]):
            return False
        self._replace(source, to, [made, *later])
        self._remove(position)
        return True

    def _replace(self, old: Register, new: Register, positions: list[int]) -> None:
        for position in positions:
            statement = self.body[position]
            assert isinstance(statement, Instruction)
            self.body[position] = rename(statement, {old.name: new})
            for held, index in ((self.reads, self.readers), (self.writes, self.writers)):
                if old.name in held[position]:
                    held[position].discard(old.name)
                    index[old.name].remove(position)
                    if new.name not in held[position]:
                        held[position].add(new.name)
                        insort(index[new.name], position)

    def _remove(self, position: int) -> None:
        self.body[position] = None
        for held, index in ((self.reads, self.readers), (self.writes, self.writers)):
            for name in held[position]:
                index[name].remove(position)
            held[position] = set()

    def _unread(self) -> bool:
        """Remove pure instructions whose results are unread, except perhaps by themselves."""
        changed = False
        for position in range(len(self.body) - 1, -1, -1):
            if self.body[position] is not None and self.pure[position] and self._is_unread(position):
                self._remove(position)
                changed = True
        return changed

    def _is_unread(self, position: int) -> bool:
        for name in self.writes[position]:
            for reader in self.readers[name]:
                if not self.pure[reader] or self.writes[reader] != {name}:
                    return False
        return True

    def _negations(self) -> None:
        """Guard by a predicate negated, not by its negation."""
        for position, statement in enumerate(self.body):
            match statement:
                case Instruction("not.pred", (Register() as to, Register() as source), None):
                    once = len(self.writers[to.name]) == len(self.writers[source.name]) == 1
                    for use in [use for use in self.readers[to.name] if once and use > position]:
                        self._negate_guard(use, to, source)

    def _halves(self) -> None:
        """Write `_` for an unread half of a pair, and for an unread state of an arrival."""
        for position, statement in enumerate(self.body):
            match statement:
                case Instruction(_, (Register() as state, *rest)) if position in self.states:
                    if not self.readers[state.name]:
                        self.body[position] = replace(statement, operands=(Sink(), *rest))
                case Instruction(_, (Pair(Register() as first, Register() as second), *rest)):
                    halves: Pair | Register = Pair(first, second)
                    if not self.readers[second.name]:
                        halves = first
                    elif not self.readers[first.name]:
                        halves = Pair(Sink(), second)
                    self.body[position] = replace(statement, operands=(halves, *rest))

    def _negate_guard(self, position: int, to: Register, source: Register) -> None:
        instruction = self.body[position]
        assert isinstance(instruction, Instruction)
        if instruction.guard is None or instruction.guard.register != to:
            return
        if any(to in _registers(operand) for operand in instruction.operands):
            return
        guard = Guard(source, not instruction.guard.negated)
        self.body[position] = replace(instruction, guard=guard)
        self.reads[position].discard(to.name)
        self.readers[to.name].remove(position)
        if source.name not in self.reads[position]:
            self.reads[position].add(source.name)
            insort(self.readers[source.name], position)


def _registers(operand: object) -> list[Register]:
    match operand:
        case Register():
            return [operand]
        case Negated(register):
            return [register]
        case Vector(items):
            return [item for item in items if isinstance(item, Register)]
        case Pair(first, second):
            return [item for item in (first, second) if isinstance(item, Register)]
        case Address(base, _, coordinates):
            return _registers(base) + _registers(coordinates)
    return []


def _target(statement: Statement | None) -> str:
    match statement:
        case Instruction("bra" | "bra.uni", (Symbol(name),)):
            return name
    return ""


def registers_of(instruction: Instruction) -> list[str]:
    """The names of all registers of an instruction, its guard first."""
    names = [instruction.guard.register.name] if instruction.guard is not None else []
    return names + [register.name for operand in instruction.operands for register in _registers(operand)]
