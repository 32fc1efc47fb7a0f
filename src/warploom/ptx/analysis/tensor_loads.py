"""The instructions that touch the registers of a `tcgen05.ld` which may still be under way.

A register dependency is respected without `tcgen05.wait::ld`: such an instruction waits for the load. Only the memory
that the load reads must not be reused before the wait.
"""

from __future__ import annotations

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.analysis.liveness import read
from warploom.ptx.analysis.uniformity import registers_of, written
from warploom.ptx.isa.table import Op

_LOAD, _WAIT = "tcgen05.ld", "tcgen05.wait"


def uses_of_pending_loads(flow: Flow) -> frozenset[int]:
    """The instructions, by the identity of their `Op`, that some path reaches between a load and the wait for it."""
    found: set[int] = set()
    entering: dict[int, frozenset[str]] = {}
    ahead = [(each.index, frozenset[str]()) for each in flow.blocks if any(op.family == _LOAD for op in each.ops)]
    while ahead:
        index, pending = ahead.pop()
        known = entering.get(index)
        if known is not None and pending <= known:
            continue
        entering[index] = pending = pending | (known or frozenset())
        for op in flow.blocks[index].ops:
            if pending and not pending.isdisjoint((*read(op), *written(op))):
                found.add(id(op))
                pending = frozenset()
            pending = _after(op, pending)
        if pending:
            ahead += [(successor, pending) for successor in flow.blocks[index].successors]
    return frozenset(found)


def _after(op: Op, pending: frozenset[str]) -> frozenset[str]:
    """The registers that loads may still write after an instruction."""
    if op.family == _WAIT and op["what"] == "ld":
        return frozenset()
    return pending | frozenset(registers_of(op.operands["d"])) if op.family == _LOAD else pending
