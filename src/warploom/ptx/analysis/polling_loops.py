"""Loops in which warps may poll: they meet at barriers or shuffles, or store, and read what others write."""

from __future__ import annotations

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.isa.table import Op

_STRONG = ("volatile", "relaxed", "acquire", "mmio", "mmio.relaxed")
"""The orders of loads that see what others store meanwhile."""
_CHANGES = ("allocates", "arrives", "commits", "completes", "drains", "expects", "frees")
"""Effects after which a loop is never where it was."""


def polling_loops(flow: Flow) -> frozenset[int]:
    """The blocks of loops in which warps may poll with an effect."""
    before = _predecessors(flow)
    return _meeting_loops(flow, before) | _storing_loops(flow, before)


def repeated_blocks(flow: Flow) -> frozenset[int]:
    """The blocks of loops, and those on paths from one loop to another."""
    after = {block.index: list(block.successors) for block in flow.blocks}
    return frozenset(_between_cycles(after, _predecessors(flow)))


def _predecessors(flow: Flow) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {block.index: [] for block in flow.blocks}
    for block in flow.blocks:
        for each in block.successors:
            before[each].append(block.index)
    return before


def _meeting_loops(flow: Flow, before: dict[int, list[int]]) -> frozenset[int]:
    """The blocks of loops in which threads meet and memory is read."""
    after = {block.index: list(block.successors) for block in flow.blocks}
    found, cyclic = set[int](), _between_cycles(after, before)
    for block in flow.blocks:
        if block.index not in cyclic or block.index in found or not any(_meets(op) for op in block.ops):
            continue
        loop = _reached(block.index, after) & _reached(block.index, before)
        if any(effect.verb == "reads" for index in loop for op in flow.blocks[index].ops for effect in op.form.effects):
            found |= loop
    return frozenset(found)


def _storing_loops(flow: Flow, before: dict[int, list[int]]) -> frozenset[int]:
    """The blocks of loops that store and look at a word or an mbarrier, and do nothing that cannot be done again."""
    bodies: dict[int, set[int]] = {}
    for tail, head in flow.back_edges:
        body, work = bodies.setdefault(head, {head}), [tail]
        while work:
            if (at := work.pop()) not in body:
                body.add(at)
                work += before[at]
    found = set[int]()
    for body in bodies.values():
        ops = [op for index in body for op in flow.blocks[index].ops if op.form.effects]
        stores = any(effect.verb == "writes" for op in ops for effect in op.form.effects)
        if stores and any(map(_looks, ops)) and not any(map(_goes_on, ops)):
            found |= body
    return frozenset(found)


def _meets(op: Op) -> bool:
    return op.family.startswith("barrier.cluster") or any(effect.verb == "syncs" for effect in op.form.effects)


def _looks(op: Op) -> bool:
    """True if an instruction sees what others do meanwhile."""
    if op.family == "ld":
        return op["order"] in _STRONG
    return op.family == "atom" or (op.family.startswith("mbarrier.") and op.form.effects[0].verb == "waits")


def _goes_on(op: Op) -> bool:
    return any(effect.later or effect.verb in _CHANGES for effect in op.form.effects)


def _between_cycles(after: dict[int, list[int]], before: dict[int, list[int]]) -> set[int]:
    """The blocks without those that come before or after all cycles: empty for a flow without loops."""
    left = set(after)
    for edges, others in ((after, before), (before, after)):
        degree = {index: sum(each in left for each in edges[index]) for index in left}
        work = [index for index in left if not degree[index]]
        while work:
            index = work.pop()
            left.remove(index)
            for each in others[index]:
                if each in left:
                    degree[each] -= 1
                    if not degree[each]:
                        work.append(each)
    return left


def _reached(first: int, edges: dict[int, list[int]]) -> set[int]:
    """The blocks that are reached from the successors of one."""
    found, work = set[int](), list(edges[first])
    while work:
        if (index := work.pop()) not in found:
            found.add(index)
            work += edges[index]
    return found
