"""Which registers a block may still read before they are written again."""

from __future__ import annotations

from warploom.ptx.flow import Flow
from warploom.ptx.isa.table import Op
from warploom.ptx.uniformity import registers_of, written

_READS = ("in", "pred", "address", "tensor", "ins", "inout", "rows")


def read(op: Op) -> list[str]:
    """The registers an instruction reads, its guard among them."""
    found = [op.instruction.guard.register.name] if op.instruction.guard is not None else []
    for slot in op.form.slots:
        if slot.kind in _READS:
            found += registers_of(op.operands[slot.name])
    return found


def live_at_entry(flow: Flow) -> tuple[frozenset[str], ...]:
    """For every block the registers that some path from its top reads before writing."""
    uses: list[set[str]] = []
    kills: list[set[str]] = []
    for block in flow.blocks:
        used, killed = set[str](), set[str]()
        for op in block.ops:
            used.update(name for name in read(op) if name not in killed)
            if op.instruction.guard is None:
                killed.update(written(op))
        uses.append(used)
        kills.append(killed)
    live: list[set[str]] = [set(used) for used in uses]
    changed = True
    while changed:
        changed = False
        for block in reversed(flow.blocks):
            after = set[str]().union(*(live[successor] for successor in block.successors))
            new = uses[block.index] | (after - kills[block.index])
            if new != live[block.index]:
                live[block.index] = new
                changed = True
    return tuple(frozenset(names) for names in live)
