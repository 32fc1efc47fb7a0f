"""Loops in which warps may poll: they meet at barriers or shuffles, or store, and read what others write."""

from __future__ import annotations

from itertools import chain

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.isa.table import Op

_STRONG = ("volatile", "relaxed", "acquire", "mmio", "mmio.relaxed")
"""The orders of loads that see what others store meanwhile."""
_CHANGES = ("allocates", "arrives", "commits", "completes", "drains", "expects", "frees")
"""Effects after which a loop is never where it was."""
_MOST_STEPS = 3_000_000


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
    cyclic = _between_cycles(after, before)
    meets = {index for index in cyclic if any(map(_meets, flow.blocks[index].ops))}
    reads = {index for index in cyclic if any(map(_reads, flow.blocks[index].ops))}
    if not meets or not reads:
        return frozenset()
    return frozenset(chain(*(loop for loop in _loops(cyclic, after) if loop & meets and loop & reads)))


def _loops(among: set[int], after: dict[int, list[int]]) -> list[set[int]]:
    """The strongly connected components of some blocks that are loops (Tarjan's algorithm)."""
    number, lowest, place = dict[int, int](), dict[int, int](), dict[int, int]()
    path, found = list[int](), list[set[int]]()
    open_ = set[int]()
    inner = {index: [each for each in after[index] if each in among] for index in among}
    for first in sorted(among):
        work = [] if first in number else [(first, 0)]
        while work:
            index, at = work.pop()
            if not at:
                number[index] = lowest[index] = len(number)
                place[index] = len(path)
                path.append(index)
                open_.add(index)
            below = inner[index]
            if at and below[at - 1] in open_:
                lowest[index] = min(lowest[index], lowest[below[at - 1]])
            while at < len(below) and below[at] in number:
                if below[at] in open_:
                    lowest[index] = min(lowest[index], number[below[at]])
                at += 1
            if at < len(below):
                work += [(index, at + 1), (below[at], 0)]
            elif lowest[index] == number[index]:
                loop = set(path[place[index] :])
                del path[place[index] :]
                open_ -= loop
                if len(loop) > 1 or index in below:
                    found.append(loop)
    return found


def _storing_loops(flow: Flow, before: dict[int, list[int]]) -> frozenset[int]:
    """The blocks of loops that store and look at a word or an mbarrier, and do nothing that cannot be done again.

    Of a kernel with very many nested loops only the first ones are found, so that the analysis takes bounded time.
    """
    stores, looks, going = (
        {block.index for block in flow.blocks if any(map(does, block.ops))} for does in (_writes, _looks, _goes_on)
    )
    if not stores or not looks:
        return frozenset()
    tails: dict[int, list[int]] = {}
    for tail, head in sorted(flow.back_edges):
        tails.setdefault(head, []).append(tail)
    found, left = set[int](), _MOST_STEPS
    for head, ends in tails.items():
        body, work = {head}, ends
        while work and left:
            if (at := work.pop()) not in body:
                body.add(at)
                work += before[at]
                left -= 1
        if not work and body & stores and body & looks and not body & going:
            found |= body
    return frozenset(found)


def _meets(op: Op) -> bool:
    return op.family.startswith("barrier.cluster") or any(effect.verb == "syncs" for effect in op.form.effects)


def _reads(op: Op) -> bool:
    return any(effect.verb == "reads" for effect in op.form.effects)


def _writes(op: Op) -> bool:
    return any(effect.verb == "writes" for effect in op.form.effects)


def _looks(op: Op) -> bool:
    """True if an instruction sees what others do meanwhile."""
    if op.family == "ld":
        return op["order"] in _STRONG
    if op.family.startswith("mbarrier."):
        return any(effect.verb == "waits" for effect in op.form.effects)
    return op.family == "atom"


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
