"""The number of lanes that execute a line, derived at trace time from the guards around it."""

from __future__ import annotations

from warploom.diagnostics import Diag
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Immediate, Pair, Register, Special
from warploom.trace.builder import Region, current, here
from warploom.trace.language.values import Value

_WARP = 32


def lanes_inside(outer: Region, what: str) -> int:
    """Count the lanes of a warp that reach this line from an enclosing region."""
    lanes = _WARP
    for region in current("An arrival").region.chain():
        if region is outer:
            break
        if region.kind != "branch" or region.condition is None:
            problem = f"{what} is in a device {region.kind} inside its stage."
            raise Diag.UNCOUNTABLE_ARRIVAL.error(here(), what=problem)
        counted = _lanes_where(region.condition)
        if counted is None:
            problem = f"{what} is under a condition (opened at {region.loc}) whose lanes cannot be counted."
            raise Diag.UNCOUNTABLE_ARRIVAL.error(here(), what=problem)
        lanes = min(lanes, counted)
    return lanes


def _lanes_where(condition: Value) -> int | None:
    """Count the lanes in which a condition holds: `elect` or `lane() < n`; None for anything else."""
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
    """Find the instruction that defined a register."""
    if not isinstance(operand, Register):
        return None
    for op in reversed(current().statements[1]):
        if op is not None and op.instruction.operands:
            first = op.instruction.operands[0]
            made = (first.first, first.second) if isinstance(first, Pair) else (first,)
            if operand in made:
                return op
    return None
