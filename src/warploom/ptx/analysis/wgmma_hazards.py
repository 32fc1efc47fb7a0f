"""The `wgmma`s whose registers a kernel accesses before it commits them.

PTX leaves the values undefined; ptxas inserts waits, so that on hardware such a kernel works, slowly. A kernel that
never commits is a different case, an error of the kernel.
"""

from __future__ import annotations

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.analysis.liveness import read
from warploom.ptx.analysis.uniformity import registers_of, written
from warploom.ptx.isa.table import Op

_MULTIPLY, _COMMIT = "wgmma.mma_async", "wgmma.commit_group"


def accessed_before_commit(flow: Flow) -> frozenset[int]:
    """The `wgmma`s, by the identity of their `Op`, whose A or D some path accesses before they are committed."""
    registers = {
        id(op): frozenset(name for slot in ("d", "a") for name in registers_of(op.operands[slot]))
        for block in flow.blocks
        for op in block.ops
        if op.family == _MULTIPLY
    }
    if not registers:
        return frozenset()
    early: set[int] = set()
    committed: set[int] = set()
    entering: dict[int, frozenset[int]] = {}
    ahead = [(block.index, frozenset[int]()) for block in flow.blocks if any(id(op) in registers for op in block.ops)]
    while ahead:
        index, state = ahead.pop()
        known = entering.get(index)
        if known is not None and state <= known:
            continue
        entering[index] = state = state | (known or frozenset())
        for op in flow.blocks[index].ops:
            if op.family == _COMMIT:
                committed |= state
            state = _after(op, state, registers, early)
        if state:
            ahead += [(successor, state) for successor in flow.blocks[index].successors]
    return frozenset(early & committed)


def _after(op: Op, open_: frozenset[int], registers: dict[int, frozenset[str]], early: set[int]) -> frozenset[int]:
    """The uncommitted `wgmma`s after an instruction; those whose registers it accesses are added to `early`."""
    if id(op) in registers:
        return open_ | {id(op)}
    if op.family == _COMMIT:
        return frozenset()
    if open_:
        touched = {*read(op), *written(op)}
        early |= {one for one in open_ if touched & registers[one]}
    return open_
