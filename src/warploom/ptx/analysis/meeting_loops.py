"""Loops in which threads meet at barriers or shuffles and read memory: in such a loop warps may poll together."""

from __future__ import annotations

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.isa.table import Op


def meeting_loops(flow: Flow) -> frozenset[int]:
    """The blocks of loops in which threads meet and memory is read."""
    after = {block.index: list(block.successors) for block in flow.blocks}
    before: dict[int, list[int]] = {index: [] for index in after}
    for index, successors in after.items():
        for each in successors:
            before[each].append(index)
    found = set[int]()
    for block in flow.blocks:
        if block.index in found or not any(_meets(op) for op in block.ops):
            continue
        loop = _reached(block.index, after) & _reached(block.index, before)
        if any(effect.verb == "reads" for index in loop for op in flow.blocks[index].ops for effect in op.form.effects):
            found |= loop
    return frozenset(found)


def _meets(op: Op) -> bool:
    return op.family.startswith("barrier.cluster") or any(effect.verb == "syncs" for effect in op.form.effects)


def _reached(first: int, edges: dict[int, list[int]]) -> set[int]:
    """The blocks that are reached from the successors of one."""
    found, work = set[int](), list(edges[first])
    while work:
        if (index := work.pop()) not in found:
            found.add(index)
            work += edges[index]
    return found
