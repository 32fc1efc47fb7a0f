"""Loop-invariant integer arithmetic is moved before the loop.

Only what costs more than it takes to keep: no sums with a literal, no predicates, no floats, and not more registers
than a loop can spare. Roles are a limit: what one role computes costs the others nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from warploom.ptx.syntax.model import Immediate, Instruction, Operand, Register
from warploom.trace.builder import Builder, Region
from warploom.trace.language.types import TYPES

_FAMILIES = {"add", "sub", "mul", "mad", "div", "rem", "shl", "shr", "and", "or", "xor", "cvt", "prmt", "min", "max"}
_SUMS = ("add", "sub")
_MOST_WORDS = 16
"""Registers of 32 bits that are kept for one loop."""


@dataclass
class _Landing:
    """The position before an open loop for its invariant arithmetic, and the registers that this occupies, in words."""

    position: int
    kept: dict[Operand, int] = field(default_factory=dict)

    def keep(self, result: Operand, words: int, inputs: tuple[Operand, ...]) -> None:
        """Keep one register more, and none that only led to it."""
        for operand in inputs:
            self.kept.pop(operand, None)
        self.kept[result] = words

    def has_room(self, words: int) -> bool:
        return sum(self.kept.values()) + words <= _MOST_WORDS


class Landings:
    """The landings of the loops that are open, in one kernel."""

    def __init__(self) -> None:
        self._of: dict[Region, _Landing] = {}

    @classmethod
    def of(cls, builder: Builder) -> Landings:
        """Those of a kernel."""
        found = builder.parts.setdefault(cls, cls())
        assert isinstance(found, cls)
        return found

    def open(self, loop: Region, position: int) -> None:
        """Let a loop, whose code begins at a position, have arithmetic before it."""
        self._of[loop] = _Landing(position)
        loop.at_close.append(lambda: self._close(loop))

    def _close(self, loop: Region) -> None:
        del self._of[loop]

    def move(self, builder: Builder, type_: str, regions: set[Region | None]) -> Region:
        """Move the last instruction as far out as its operands, of these regions, allow; gives the region it is in."""
        if not self._of:
            return builder.region
        instruction = builder.body[-1]
        assert isinstance(instruction, Instruction)
        result, *inputs = instruction.operands
        words = max(TYPES[type_].bits // 32, 1)
        loop = self._outermost(builder.region, regions, words) if _is_worth_it(instruction, type_) else None
        if loop is None or loop.parent is None:
            return builder.region
        self._of[loop].keep(result, words, tuple(inputs))
        # The instruction was appended in the loop; its operands are older than the landing, so it may go there. Every
        # position that was recorded after the landing moves by one.
        start = self._of[loop].position
        builder.body.insert(start, builder.body.pop())
        builder.ops.insert(start, builder.ops.pop())
        for landing in self._of.values():
            landing.position += landing.position >= start
        position, label = builder.last_branch
        builder.last_branch = (position + (position > start), label)
        return loop.parent

    def _outermost(self, region: Region, regions: set[Region | None], words: int) -> Region | None:
        found = None
        for each in region.chain():
            if each in regions or each.kind == "role":
                break
            if each in self._of and self._of[each].has_room(words):
                found = each
        return found


def _is_worth_it(instruction: Instruction, type_: str) -> bool:
    family = instruction.opcode.partition(".")[0]
    if family not in _FAMILIES or TYPES[type_].kind not in ("signed", "unsigned"):
        return False
    inputs = instruction.operands[1:]
    if family in _SUMS and any(isinstance(operand, Immediate) for operand in inputs):
        return False
    return any(isinstance(operand, Register) for operand in inputs)
