"""The `wgmma`s whose registers a kernel accesses before it commits them, or after the fence that orders accesses.

PTX leaves the values undefined where a `wgmma` is not committed; ptxas inserts waits, so that on hardware such a kernel
works, slowly. A kernel that never commits is a different case, an error of the kernel.
"""

from __future__ import annotations

from typing import NamedTuple

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.analysis.operand_registers import read, registers_of, written
from warploom.ptx.isa.table import Op

_MULTIPLY, _COMMIT, _FENCE = "wgmma.mma_async", "wgmma.commit_group", "wgmma.fence"


class SinceFence(NamedTuple):
    """The registers of `wgmma`s that other instructions access after the last `wgmma.fence`, on some path.

    A `mov` between registers is a copy. LLVM places the copies of accumulators behind the fence, and ptxas, which
    allocates the registers, does not mind: `copied` and `copied_from` are therefore apart from `written` and `read`.
    """

    written: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()
    copied_from: frozenset[str] = frozenset()

    def joined(self, other: SinceFence) -> SinceFence:
        """The accesses of two paths together."""
        return SinceFence(*(mine | theirs for mine, theirs in zip(self, other, strict=True)))


def asynchronous_registers(op: Op) -> frozenset[str]:
    """The accumulators of a `wgmma`, and A where it is in registers; descriptors are read at issue."""
    slots = [slot.name for slot in op.form.slots if slot.kind == "rows"]
    return frozenset(name for slot in slots for name in registers_of(op.operands[slot]))


def _registers_of_all(flow: Flow) -> dict[int, frozenset[str]]:
    ops = (op for block in flow.blocks for op in block.ops if op.family == _MULTIPLY)
    return {id(op): asynchronous_registers(op) for op in ops}


def accesses_since_fence(flow: Flow) -> dict[int, SinceFence]:
    """For each `wgmma`, by the identity of its `Op`: accesses to its registers that no `wgmma.fence` orders."""
    registers = _registers_of_all(flow)
    used = frozenset[str]().union(*registers.values())
    found: dict[int, SinceFence] = {}
    entering: dict[int, SinceFence] = {}
    ahead = [(0, SinceFence(written=used))] if used else []
    while ahead:
        index, state = ahead.pop()
        known = entering.get(index)
        if known is not None:
            state = state.joined(known)
            if state == known:
                continue
        entering[index] = state
        for op in flow.blocks[index].ops:
            if op.family == _FENCE:
                state = SinceFence()
            elif id(op) in registers:
                mine = SinceFence(*(names & registers[id(op)] for names in state))
                found[id(op)] = mine.joined(found.get(id(op), SinceFence()))
            elif not op.family.startswith("wgmma"):
                state = _accessed(op, state, used)
        ahead += [(successor, state) for successor in flow.blocks[index].successors]
    return found


def _accessed(op: Op, state: SinceFence, used: frozenset[str]) -> SinceFence:
    """The accesses after an instruction; copies of what was written since the fence are written too."""
    reads, writes = frozenset(read(op)), frozenset(written(op))
    is_copy = op.family.startswith("mov") and reads and op.instruction.guard is None
    if is_copy and not reads & state.written:
        if writes & used or reads & used:
            copied, sources = state.copied | writes & used, state.copied_from | reads & used
            return state._replace(copied=copied, copied_from=sources)
        return state
    if writes & used or reads & used:
        return state._replace(written=state.written | writes & used, read=state.read | reads & used)
    return state


def accessed_before_commit(flow: Flow) -> frozenset[int]:
    """The `wgmma`s, by the identity of their `Op`, whose A or D some path accesses before they are committed."""
    registers = _registers_of_all(flow)
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
