"""Registers of wgmma: a static pass, because no event reports an access to a register.

Accumulators and operands in registers belong to a `wgmma.mma_async` until a `wgmma.wait_group` covers its group, and
an access of a thread to them before needs a `wgmma.fence` (PTX ISA 9.7.15.7.1, wgmma.fence and wgmma.mma_async).
"""

from __future__ import annotations

from typing import NamedTuple

from warploom.checker.analyses import once
from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.analysis.operand_registers import read, written
from warploom.ptx.analysis.wgmma_hazards import SinceFence, accesses_since_fence, asynchronous_registers
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Immediate

_MOST_STATES = 64
"""States of a block that are followed; a kernel has as many as it has groups in flight."""
_MOST_GROUPS = 8


class Hazard(NamedTuple):
    """An instruction that accesses registers of a `wgmma`."""

    code: str
    op: Op
    wgmma: Op
    register: str
    relaxation: str = ""


class _Pending(NamedTuple):
    """The wgmmas that are not waited for: committed groups, oldest first, and the open one; by position.

    `copies` are registers that accumulators were moved to meanwhile.
    """

    groups: tuple[frozenset[int], ...] = ()
    open: frozenset[int] = frozenset()
    copies: frozenset[tuple[str, int]] = frozenset()

    @property
    def busy(self) -> frozenset[int]:
        return self.open.union(*self.groups)


@once
def hazards(flow: Flow) -> tuple[Hazard, ...]:
    """The accesses to registers of pending `wgmma`s, and the `wgmma`s whose registers no fence covers."""
    wgmmas = [op for block in flow.blocks for op in block.ops if op.family == "wgmma.mma_async"]
    if not wgmmas:
        return ()
    return (*_early(flow, wgmmas), *_unfenced(flow, wgmmas))


def _early(flow: Flow, wgmmas: list[Op]) -> list[Hazard]:
    """Accesses before the wait that covers the group."""
    place = {id(op): at for at, op in enumerate(wgmmas)}
    registers = [asynchronous_registers(op) for op in wgmmas]
    by_name: dict[str, set[int]] = {}
    for at, names in enumerate(registers):
        for name in names:
            by_name.setdefault(name, set()).add(at)
    found: dict[int, Hazard] = {}
    seen: dict[int, set[_Pending]] = {}
    ahead = [(0, _Pending())]
    while ahead:
        index, state = ahead.pop()
        known = seen.setdefault(index, set())
        if state in known or len(known) >= _MOST_STATES:
            continue
        known.add(state)
        for op in flow.blocks[index].ops:
            state = _after(op, state, place)
            busy = state.busy
            if not busy or op.family.startswith("wgmma"):
                continue
            held = {at: name for name in read(op) for at in by_name.get(name, set()) & busy}
            moved = {at: name for name, at in state.copies if name in read(op)}
            written_to = {at: name for name in written(op) for at in by_name.get(name, set()) & busy}
            for at, name in [*written_to.items(), *moved.items(), *held.items()][:1]:
                relaxed = "wgmma-copies" if op.family.startswith("mov") and not written_to else ""
                found.setdefault(id(op), Hazard("WGMMA_REGISTERS", op, wgmmas[at], name, relaxed))
            if op.family.startswith("mov") and (held or moved):
                copied = {(name, at) for name in written(op) for at in (*held, *moved)}
                state = state._replace(copies=state.copies | copied)
        ahead += [(successor, state) for successor in flow.blocks[index].successors]
    return list(found.values())


def _after(op: Op, state: _Pending, place: dict[int, int]) -> _Pending:
    match op.family:
        case "wgmma.mma_async":
            return state._replace(open=state.open | {place[id(op)]})
        case "wgmma.commit_group":
            return state._replace(groups=(*state.groups, state.open)[-_MOST_GROUPS:], open=frozenset())
        case "wgmma.wait_group":
            count = op.operands["count"]
            left = int(count.value) if isinstance(count, Immediate) else int(str(count))
            kept = _Pending(state.groups[len(state.groups) - left :] if left > 0 else (), state.open)
            busy = kept.busy
            return kept._replace(copies=frozenset(each for each in state.copies if each[1] in busy))
    return state


def _unfenced(flow: Flow, wgmmas: list[Op]) -> list[Hazard]:
    """Wgmmas whose registers were accessed since the last `wgmma.fence`, on some path.

    A read counts too: the fence orders every register access before a wgmma that accesses the same registers.
    """
    found = []
    since = accesses_since_fence(flow)
    for op in wgmmas:
        accesses = since.get(id(op), SinceFence())
        if names := accesses.written | accesses.read:
            found.append(Hazard("WGMMA_FENCE", op, op, min(names)))
        elif names := accesses.copied | accesses.copied_from:
            found.append(Hazard("WGMMA_FENCE", op, op, min(names), "wgmma-copies"))
    return found
