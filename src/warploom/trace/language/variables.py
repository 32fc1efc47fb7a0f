"""Device variables: registers that are assigned in place, across loops and branches."""

from __future__ import annotations

from typing import Self

from warploom.ptx.syntax.model import Operand, Register
from warploom.trace.builder import current
from warploom.trace.language.types import TYPES, Number
from warploom.trace.language.values import Value, binary, check_scope, fitting


class Variable(Value):
    """A value that can be assigned: `x += 1`, or `x.set(…)`. An expression uses what it holds at that moment."""

    __slots__ = ()

    def __init__(self, type_: str, start: Value | Number | None) -> None:
        """A variable with its first value; None leaves it to the instruction that will write it."""
        builder = current("A variable")
        super().__init__(type_, builder.register(type_), builder.region)
        if start is not None:
            self.set(start)

    @property
    def register(self) -> Register:
        """The register itself, for instructions that read and write it in place."""
        assert isinstance(self.operand, Register)
        return self.operand

    def get(self) -> Value:
        """The value now: later assignments do not change what was read."""
        check_scope(self.region)
        builder = current("A variable")
        held = builder.snapshot(self.register)
        if held is None:
            copy = builder.register(self.type)
            builder.add(f"mov.{TYPES[self.type].register}", (copy, self.register))
            held = builder.region.snapshots[self.register] = Value(self.type, copy, builder.region)
        return held

    def read(self) -> Operand:
        return self.get().read()

    def set(self, value: Value | Number) -> None:
        """Assign, from here on."""
        new = fitting(value, self.type, f"a .{{}} assigned to a .{self.type} variable")
        check_scope(self.region)
        current("A variable").add(f"mov.{TYPES[self.type].register}", (self.register, new.read()))
        self.written()

    def written(self) -> None:
        """An instruction wrote the register in place."""
        current("A variable").assigned(self.register)

    def _update(self, family: str, other: Value | Number) -> Self:
        self.set(binary(family, self, other))
        return self

    def __iadd__(self, other: Value | Number) -> Self:
        return self._update("add", other)

    def __isub__(self, other: Value | Number) -> Self:
        return self._update("sub", other)

    def __imul__(self, other: Value | Number) -> Self:
        return self._update("mul", other)

    def __iand__(self, other: Value | Number) -> Self:
        return self._update("and", other)

    def __ior__(self, other: Value | Number) -> Self:
        return self._update("or", other)

    def __ixor__(self, other: Value | Number) -> Self:
        return self._update("xor", other)

    def __ilshift__(self, other: Value | Number) -> Self:
        return self._update("shl", other)

    def __irshift__(self, other: Value | Number) -> Self:
        return self._update("shr", other)
