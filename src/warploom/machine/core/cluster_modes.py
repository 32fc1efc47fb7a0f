"""The modes in which clusters run: when their operations take effect, and whether their warps run in lockstep."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from warploom.machine.core.async_operations import InFlight
from warploom.machine.instructions.copies import perform_copies
from warploom.machine.routines.late_copies import CopyRing
from warploom.machine.translate.translator import REFERENCE, Flavour

if TYPE_CHECKING:
    from warploom.machine.core.async_operations import Operation
    from warploom.machine.core.cta import Cluster, Cta
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.group import Group
    from warploom.machine.memory.shared_memory import SharedMemory
    from warploom.ptx.analysis.lockstep import Lockstep


FEW_CLUSTERS = 8
"""Clusters of a grid all of whose operations complete when a random schedule decides."""


@dataclass(slots=True, eq=False)
class ClusterMode:
    """The answers to what instructions ask about their cluster. Most runs have one mode; a random schedule chooses
    for each cluster that is launched, where that makes a difference.
    """

    together: bool
    """True if warpgroups may run in lockstep."""
    convoys: bool
    """True if operations take effect when they are issued or committed, so that warps in lockstep show nothing."""
    immediate: bool
    """True if every operation completes when it is issued, unless one that it must follow is under way."""
    at_once: bool
    """The same without observers: only the memory shows it."""
    two_views: bool
    """True if the generic and the async proxy have views of their own, and warps know of some stores only."""
    passes_alone: bool
    """True if a group with all threads of a named barrier passes it without a step of the schedule."""
    detours: bool
    """True if a warp that alone leaves its convoy at a branch executes its way up to the join first."""
    lockstep: Lockstep | None
    """The places where warps run one by one, if they run in lockstep although operations are late."""
    flight: InFlight
    """The operations under way: those that the schedule completes, or those of this mode alone."""
    next: int = 0
    """The operation that completes next where a group of a cluster in lockstep waits: the oldest (0), or the newest."""
    flavour: Flavour = REFERENCE
    """The flavour of the texts that groups execute."""
    of_whole_ctas: Flavour | None = None
    """The flavour of a group that has all threads of its CTA; None where that makes no difference."""


def usual_mode(grid: Grid) -> ClusterMode:
    """The mode of clusters without a choice of the schedule."""
    schedule, lockstep = grid.schedule, grid.late.lockstep
    convoys = schedule.convoys and not schedule.two_views
    shows = grid.program.has_async_proxy or bool(getattr(schedule, "buffers", False))
    immediate = grid.eager and convoys and not grid.late_barrier
    return ClusterMode(
        together=convoys or lockstep is not None,
        convoys=convoys,
        immediate=immediate,
        at_once=immediate and grid.reporter is None,
        two_views=schedule.two_views and shows and lockstep is None,
        passes_alone=(convoys or lockstep is not None) and not grid.late_barrier,
        detours=grid.eager and convoys,
        lockstep=lockstep,
        flight=InFlight([0]),
        next=getattr(schedule, "late", 0),
    )


def other_modes(grid: Grid, clusters: int) -> list[ClusterMode]:
    """The modes that a random schedule chooses for most clusters of a large grid. Operations complete as under
    `eager`, warps one by one or in lockstep; or as under `lazy` and `reverse`, in lockstep, where the program cannot
    tell.
    """
    if clusters <= FEW_CLUSTERS or not grid.usual.two_views:
        return []
    lockstep = grid.program.lockstep if math.prod(grid.cluster_shape) == 1 else None
    if lockstep is None and not any(op.family.startswith("mbarrier.") for op in grid.program.ops):
        # Such kernels synchronise by barriers of their CTAs alone. Random orders of few clusters show too little there.
        return []
    return [
        *(_at_once(together=together, observed=grid.reporter is not None) for together in (False, True)),
        *(_late(lockstep, order) for order in (0, -1) if lockstep is not None),
    ]


def _at_once(*, together: bool, observed: bool) -> ClusterMode:
    """The mode in which operations complete when they are issued."""
    return ClusterMode(
        together=together,
        convoys=True,
        immediate=True,
        at_once=not observed,
        two_views=False,
        passes_alone=True,
        detours=together,
        lockstep=None,
        flight=InFlight([0]),
    )


def _late(lockstep: Lockstep, order: int) -> ClusterMode:
    """The mode in which operations are late in lockstep; the oldest (0) or the newest (-1) completes first."""
    return ClusterMode(
        together=True,
        convoys=False,
        immediate=False,
        at_once=False,
        two_views=False,
        passes_alone=True,
        detours=False,
        lockstep=lockstep,
        flight=InFlight([0]),
        next=order,
    )


class LateOperations:
    """Completes operations for a group that waits, in the order of the schedule.

    A group that has all threads of its CTA need not wait: no other CTA can tell when its operations complete. Under a
    random schedule no group of a cluster whose operations are late in lockstep waits for them: they complete in the
    order of issue when one has to.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        usual = getattr(grid.schedule, "late", None) is not None and math.prod(grid.cluster_shape) == 1
        self.lockstep: Lockstep | None = grid.program.lockstep if usual else None
        """The places where warps run one by one in the usual mode; None where they do so everywhere."""

    @cached_property
    def modes(self) -> list[ClusterMode]:
        """The modes of clusters in lockstep whose operations are late, and not known to the schedule."""
        grid = self._grid
        return [mode for mode in grid.modes if mode is not grid.usual and mode.lockstep is not None]

    def complete_for(self, group: Group, is_over: Callable[[], bool]) -> bool:
        """Complete operations until a wait of a group is over; False if the group has to wait."""
        mode = group.cta.mode
        if mode.lockstep is None:
            return False
        if mode is self._grid.usual and (group.mask is not None or group.lanes != group.cta.live_threads):
            return False
        while not is_over():
            operation = self._due(group)
            if operation is None:
                return False
            self._take(operation)
        return True

    def complete_copies(self, group: Group, end: int) -> None:
        """Complete the copies of a CTA that native code has noted, up to a number, and operations issued before."""
        while (operation := self._due(group)) is not None and operation.copies < end:
            self._take(operation)
        perform_copies(group, end)

    def _due(self, group: Group) -> Operation | None:
        """The next operation of a group's CTA that completes."""
        mode, cluster = group.cta.mode, group.cta.cluster
        possible, at = mode.flight.possible, mode.next
        if not possible:
            return None
        if possible[at].cluster is cluster:
            return possible[at]
        own = [each for each in possible if each.cluster is cluster]  # those of ended CTAs may never complete
        return own[at] if own else None

    def complete_next(self) -> bool:
        """Complete an operation that the schedule does not know of: nothing else can move; False if there is none."""
        for mode in self.modes:
            if mode.flight.possible:
                self._take(mode.flight.possible[mode.next])
                return True
        return False

    def meet(self, cta: Cta) -> None:
        """Warps that ran one by one have met at a barrier: where the newest operation is the first, all complete now.
        Copies that nothing waits for then land on what the warps have stored.
        """
        if cta.mode.next and cta.mode in self.modes:
            self.drain(cta.cluster)

    def drain(self, cluster: Cluster) -> None:
        """Complete all operations of a cluster, if the schedule does not know of them."""
        mode = cluster.mode
        if mode in self.modes:
            while own := [each for each in mode.flight.possible if each.cluster is cluster]:
                self._take(own[mode.next])

    def _take(self, operation: Operation) -> None:
        assert operation.issuer is not None
        perform_copies(operation.issuer, operation.copies)
        self._grid.complete(operation)

    def copy_ring(self, shared: SharedMemory) -> CopyRing | None:
        """A ring for the copies of a CTA, where native code notes them: without observers, the oldest first."""
        grid = self._grid
        mode = next((each for each in (grid.usual, *self.modes) if each.lockstep and each.next == 0), None)
        if mode is None:
            return None
        engine, lockstep = mode.flavour.engine, mode.lockstep
        if lockstep is None or not lockstep.copies or grid.reporter is not None:
            return None
        if engine is None or grid.regions is None or mode.of_whole_ctas is None or grid.routines is None:
            return None
        return CopyRing(engine, grid.regions, shared)
