"""Reads whose values reach no memory.

Triton lets all warps of a CTA load a row that is shorter than the CTA, and one of them store the result.
"""

from __future__ import annotations

from warploom.checker.analyses import once
from warploom.ptx.analysis.control_flow import BRANCHES, LEAVES, Flow
from warploom.ptx.analysis.operand_registers import read, written
from warploom.ptx.isa.table import Op

_IN_A_WARP = frozenset({"shfl", "vote", "match", "redux"})
"""Instructions that pass values on to lanes of their warp only."""
_STORES = frozenset({"st", "stmatrix"})


class Uses:
    """The stores that what a load has found may reach, by the numbers of the instructions."""

    def __init__(self, flow: Flow) -> None:
        self._ops: list[Op] = [op for block in flow.blocks for op in block.ops]
        self._found: dict[int, frozenset[int] | None] = {}

    def stores(self, load: int) -> frozenset[int] | None:
        """The stores that the values of a load may reach; None if they may reach control, addresses of loads, or
        anything but memory.
        """
        if load not in self._found:
            self._found[load] = self._reached(load) if 0 <= load < len(self._ops) else None
        return self._found[load]

    def _reached(self, load: int) -> frozenset[int] | None:
        names, stores, grows = set(written(self._ops[load])), set[int](), True
        while grows:
            grows = False
            for number, op in enumerate(self._ops):
                if names.isdisjoint(read(op)):
                    continue
                if op.family in _STORES:
                    stores.add(number)
                    continue
                ends = op.family in BRANCHES or op.family in LEAVES or op.family == "call"
                if ends or (op.form.effects and op.family not in _IN_A_WARP):
                    return None
                grows = grows or not names.issuperset(written(op))
                names.update(written(op))
        return frozenset(stores)


@once
def uses(flow: Flow) -> Uses:
    """The uses of a program's loads."""
    return Uses(flow)
