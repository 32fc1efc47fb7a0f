"""The registers that an instruction reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Address, Immediate, Negated, Pair, Register, Vector


def written(op: Op) -> list[str]:
    """The registers an instruction writes."""
    return registers_in(op, op.form.written)


def read(op: Op) -> list[str]:
    """The registers that an instruction reads, its guard included."""
    guard, found = op.instruction.guard, registers_in(op, op.form.sources)
    return found if guard is None else [guard.register.name, *found]


def registers_in(op: Op, slots: Iterable[str]) -> list[str]:
    """The registers that the operands of slots name."""
    found: list[str] = []
    operands = op.operands
    for slot in slots:
        operand = operands[slot]
        if type(operand) is Register:
            found.append(operand.name)
        elif operand is not None and type(operand) is not Immediate:
            found += registers_of(operand)
    return found


def registers_of(operand: object) -> list[str]:
    """The registers that an operand names."""
    match operand:
        case Register(name):
            return [name]
        case Vector(items):
            return [name for item in items for name in ([item.name] if type(item) is Register else registers_of(item))]
        case Address(base, _, None):
            return [base.name] if type(base) is Register else []
        case Address(base, _, coordinates):
            return registers_of(base) + registers_of(coordinates)
        case Negated(register):
            return [register.name]
        case Pair(first, second):
            return registers_of(first) + registers_of(second)
    return []


@dataclass(slots=True)
class Uses:
    """The registers that an instruction writes, those that it reads (its guard included), and all that it names: what
    several analyses ask of every instruction.
    """

    written: list[str]
    read: list[str]
    named: list[str]

    @classmethod
    def of(cls, op: Op) -> Uses:
        form, outputs, inputs = op.form, written(op), read(op)
        named = [*outputs, *inputs]
        if form.other_slots:
            named += registers_in(op, form.other_slots)
        return cls(outputs, inputs, named)
