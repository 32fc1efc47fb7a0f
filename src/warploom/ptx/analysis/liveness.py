"""Liveness: the registers that may be read after a block before they are written again."""

from __future__ import annotations

from collections.abc import Sequence

from warploom.ptx.analysis.control_flow import Flow


def _mask(names: set[str], numbers: dict[str, int]) -> int:
    """The bits of names that have a number."""
    digits = bytearray(b"0" * (len(numbers) + 1))
    for name in names:
        if name in numbers:
            digits[-1 - numbers[name]] = ord("1")
    return int(digits, 2)


def live_at_entry(flow: Flow, names: Sequence[str]) -> tuple[int, ...]:
    """The live registers at the start of every block, as a bit mask: bit i is names[i]."""
    numbers = {name: number for number, name in enumerate(names)}
    uses, kills = [0] * len(flow.blocks), [0] * len(flow.blocks)
    for block, (used, killed) in zip(flow.blocks, flow.touched, strict=True):
        uses[block.index], kills[block.index] = _mask(used, numbers), _mask(killed, numbers)
    live = list(uses)
    changed = True
    while changed:
        changed = False
        for block in reversed(flow.blocks):
            after = 0
            for successor in block.successors:
                after |= live[successor]
            new = uses[block.index] | (after & ~kills[block.index])
            if new != live[block.index]:
                live[block.index] = new
                changed = True
    return tuple(live)
