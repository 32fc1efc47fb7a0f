"""Programmatic dependent launch: the accesses to global memory that may happen before the previous grid has completed.

A thread that has executed `griddepcontrol.wait` sees everything that the previous grid wrote, and that grid no longer
reads what the thread writes. So it does not matter when the previous grid ends if every thread waits before its first
access to global memory. Accesses before a wait may be right as well, if they touch nothing that the previous grid uses
(weights, say) or if another thread has waited: a report names them as an assumption.
"""

from __future__ import annotations

from warploom.checker.analyses import once
from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.isa.table import Op

_WAIT = "griddepcontrol.wait"
_PRIVATE = frozenset({"shared", "local", "param", "const", "tensor", "register"})
"""Spaces that no other grid reaches."""


def early_accesses(flow: Flow, *, dependent: bool) -> tuple[Op, ...]:
    """The accesses to global memory that a path from the entry reaches without a wait, of a kernel that is launched
    before the previous grid has completed or has instructions for it.
    """
    return _early(flow) if dependent or _takes_part(flow) else ()


@once
def _takes_part(flow: Flow) -> bool:
    return any(op.family == "griddepcontrol" for block in flow.blocks for op in block.ops)


@once
def _early(flow: Flow) -> tuple[Op, ...]:
    found: list[Op] = []
    seen, ahead = {0}, [0]
    while ahead:
        block = flow.blocks[ahead.pop()]
        for op in block.ops:
            if op.instruction.opcode == _WAIT and op.instruction.guard is None:
                break
            if _touches_global(op):
                found.append(op)
        else:
            new = set(block.successors) - seen
            seen |= new
            ahead += sorted(new)
    return tuple(sorted(found, key=lambda op: op.instruction.line))


def _touches_global(op: Op) -> bool:
    """True for an access to global memory, now or later; an address of no stated space may be one."""
    accesses = (effect for effect in op.form.effects if effect.verb in ("reads", "writes"))
    spaces = (op[each.space[1:-1]] if each.space.startswith("{") else each.space for each in accesses)
    return any(space.partition("::")[0] not in _PRIVATE for space in spaces)
