"""Operations of CTAs whose warps run in lockstep although every operation is late."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from warploom.machine.instructions.copies import perform_copies
from warploom.machine.routines.late_copies import CopyRing

if TYPE_CHECKING:
    from warploom.machine.core.async_operations import Operation
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.group import Group
    from warploom.machine.memory.shared_memory import SharedMemory
    from warploom.ptx.analysis.lockstep import Lockstep


class LateOperations:
    """Completes operations for a group that waits, in the order of the schedule.

    A group that has all threads of its CTA need not wait: no other CTA can tell when its operations complete.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._next: int | None = getattr(grid.schedule, "late", None)
        """The operation that completes next: the oldest (0), the newest (-1), or another."""
        usual = self._next is not None and math.prod(grid.cluster_shape) == 1
        self.lockstep: Lockstep | None = grid.program.lockstep if usual else None
        """The places where warps run one by one; None where they do so everywhere."""

    def complete_for(self, group: Group, is_over: Callable[[], bool]) -> bool:
        """Complete operations until a wait of a group is over; False if the group has to wait."""
        if self.lockstep is None or group.mask is not None or group.lanes != group.cta.live_threads:
            return False
        while not is_over():
            operation = self._due(group)
            if operation is None:
                return False
            perform_copies(group, operation.copies)
            self._grid.complete(operation)
        return True

    def complete_copies(self, group: Group, end: int) -> None:
        """Complete the copies of a CTA that native code has noted, up to a number, and operations issued before."""
        while (operation := self._due(group)) is not None and operation.copies < end:
            perform_copies(group, operation.copies)
            self._grid.complete(operation)
        perform_copies(group, end)

    def _due(self, group: Group) -> Operation | None:
        """The next operation of a group's CTA that completes."""
        possible, cluster = self._grid.flight.possible, group.cta.cluster
        if not possible or self._next is None:
            return None
        if possible[self._next].cluster is cluster:
            return possible[self._next]
        own = [each for each in possible if each.cluster is cluster]  # those of ended CTAs may never complete
        return own[self._next] if own else None

    def copy_ring(self, shared: SharedMemory) -> CopyRing | None:
        """A ring for the copies of a CTA, where native code notes them: without observers, the oldest first."""
        grid = self._grid
        engine = grid.texts.usual.engine
        if self.lockstep is None or not self.lockstep.copies or self._next != 0 or grid.reporter is not None:
            return None
        if engine is None or grid.regions is None or grid.texts.of_whole_ctas is None or grid.routines is None:
            return None
        return CopyRing(engine, grid.regions, shared)
