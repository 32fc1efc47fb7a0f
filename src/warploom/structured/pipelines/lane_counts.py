"""How many lanes execute a line, as far as the guards around it tell while tracing."""

from __future__ import annotations

from warploom.diagnostics import Diag
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Immediate, Pair, Register, Special
from warploom.trace.builder import Region, current, here
from warploom.trace.language.values import Value

_WARP = 32


def lanes_inside(outer: Region, what: str) -> int:
    """Lanes of a warp that reach this line from a region around it."""
    lanes = _WARP
    for region in current("An arrival").region.chain():
        if region is outer:
            break
        if region.kind != "branch" or region.condition is None:
            problem = f"{what} lies in a device {region.kind} inside its stage."
            raise Diag.UNCOUNTABLE_ARRIVAL.error(here(), what=problem)
        counted = _lanes_where(region.condition)
        if counted is None:
            problem = f"{what} stands under a condition (opened at {region.loc}) that cannot be counted."
            raise Diag.UNCOUNTABLE_ARRIVAL.error(here(), what=problem)
        lanes = min(lanes, counted)
    return lanes


def _lanes_where(condition: Value) -> int | None:
    """In how many lanes of a warp a condition holds: an election, or a comparison of the lane's number."""
    if condition.literal is not None:
        return _WARP if condition.literal else 0
    maker = _maker(condition.operand)
    if maker is None:
        return None
    if maker.family == "elect":
        return 1
    operands = maker.instruction.operands
    if (
        maker.family == "setp"
        and maker.instruction.opcode.startswith("setp.lt.")
        and isinstance(operands[2], Immediate)
    ):
        left = _maker(operands[1])
        if left is not None and left.instruction.operands[1:] == (Special("%laneid"),):
            return min(operands[2].value, _WARP)
    return None


def _maker(operand: object) -> Op | None:
    """The instruction that made a register's value."""
    if not isinstance(operand, Register):
        return None
    for op in reversed(current().statements[1]):
        if op is not None and op.instruction.operands:
            first = op.instruction.operands[0]
            made = (first.first, first.second) if isinstance(first, Pair) else (first,)
            if operand in made:
                return op
    return None
