"""Liveness: the registers that may be read after a block before they are written again."""

from __future__ import annotations

from collections.abc import Sequence

from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.analysis.uniformity import registers_in, written
from warploom.ptx.isa.table import Op


def read(op: Op) -> list[str]:
    """The registers that an instruction reads, its guard included."""
    guard, form = op.instruction.guard, op.form
    found = registers_in(op, (*form.read, *form.rows) if form.rows else form.read)
    return found if guard is None else [guard.register.name, *found]


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
    for block in flow.blocks:
        used, killed = set[str](), set[str]()
        for op in block.ops:
            for name in read(op):
                if name not in killed:
                    used.add(name)
            if op.instruction.guard is None:
                killed.update(written(op))
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
