"""A resident CTA: shared memory, warps, named barriers, and the state that instruction families keep per CTA."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.core.group import DONE, READY, WAITING, WARP, WARPGROUP, Group, Waitable, Warpgroup
from warploom.machine.core.lane_masks import lane_bits
from warploom.machine.core.late_arrivals import arrive_later, is_late
from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.context import PEER_SIZE, PEER_WORDS
from warploom.machine.memory.proxy_visibility import Exchange, Knowledge
from warploom.machine.memory.shared_memory import SharedMemory
from warploom.machine.observers.events import BarrierName
from warploom.machine.routines.mbarrier_rows import MbarrierRows
from warploom.machine.routines.turn_loop import ARRIVAL_WORDS, ARRIVED, NEEDED
from warploom.machine.translate.expressions import CTA_SPECIALS
from warploom.machine.translate.uniform_slots import Uniforms

if TYPE_CHECKING:
    from warploom.machine.core.grid import Grid
    from warploom.machine.routines.late_copies import CopyRing

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]


class Cluster:
    """CTAs that run together and reach each other's shared memory. One that has ended serves again for another."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        size = math.prod(grid.cluster_shape)
        self.peers = np.zeros(1 + PEER_WORDS * size, np.int64)
        """The CTAs as native code finds them."""
        self.peers[0] = size
        self.index: Triple = (0, 0, 0)
        self.in_flight = 0
        self.state: dict[Any, Any] = {}
        self.knowledge: Knowledge | None = None
        self.mode = grid.usual
        self.ctas = [Cta(grid, self, rank) for rank in range(size)]

    def begin(self, index: Triple) -> None:
        """Begin as the cluster of an index."""
        grid, self.index, self.in_flight = self.grid, index, 0
        self.state.clear()
        self.mode = grid.mode_of_next()
        self.knowledge = None
        if self.mode.two_views:
            self.knowledge = Knowledge(-(-math.prod(grid.block) // WARP) * len(self.ctas))
        x, y, z = grid.cluster_shape
        for rank, cta in enumerate(self.ctas):
            inside = rank % x, rank // x % y, rank // (x * y)
            cta.begin((index[0] * x + inside[0], index[1] * y + inside[1], index[2] * z + inside[2]))

    def exchange(self) -> Exchange | None:
        """An exchange of knowledge for a barrier of the cluster; None where shared memory has one view."""
        return None if self.knowledge is None else Exchange(self.knowledge)

    @property
    def ended(self) -> bool:
        return all(cta.live_threads == 0 for cta in self.ctas)

    def discard(self) -> None:
        """Release everything: CTAs are part of reference cycles, and their memory must not wait for the collector."""
        for cta in self.ctas:
            for part in (*cta.every_group, *cta.warpgroups, cta):
                vars(part).clear()
        vars(self).clear()


class Generation:
    """One use of a named barrier: arrivals, the number that completes it (None: all live threads), and votes."""

    __slots__ = ("arrived", "needed", "number", "over", "passes", "voters", "yes")

    def __init__(self) -> None:
        self.number, self.arrived, self.yes, self.over = -1, 0, 0, False
        self.passes = False
        """True if it is over, and a group passes the barrier without a note of it."""
        self.needed: int | None = None
        self.voters: int | None = None


class NamedBarrier(Waitable):
    """`bar.sync id`: used by one generation of threads after another."""

    __slots__ = ("_name", "cta", "exchange", "generation", "index")

    def __init__(self, cta: Cta, index: int) -> None:
        super().__init__()
        self.cta, self.index, self.exchange = cta, index, cta.cluster.exchange()
        self.generation = Generation()
        self._name: BarrierName | None = None
        """Its name in events, once there is one."""

    def begin(self) -> Generation:
        """The present generation, which counts from now on; native code may have completed some since the last."""
        if not self.generation.arrived:
            self.generation.number = self.cta.phases_held[self.index]
        return self.generation

    def end(self, threads: int) -> None:
        """End the present generation, with so many threads: the next one begins."""
        now = self.generation
        self.cta.meetings += threads >= self.cta.live_threads
        now.over, now.passes = True, now.voters is None and self.cta.grid.reporter is None
        self.generation = Generation()
        self.cta.phases_held[self.index] += 1
        if now.arrived:
            self._show()

    def pass_alone(self, threads: int) -> Generation:
        """All threads arrive together, and pass."""
        now = self.begin()
        self._tell("arrive", now, threads)
        self.end(threads)
        self._tell("wait", now)
        return now

    def arrive(self, threads: int, needed: int | None, yes: int | None = None, voters: int = 0) -> None:
        """Count arriving threads, with their votes where the barrier reduces; the last one completes it."""
        grid = self.cta.grid
        if grid.late_barrier and is_late(grid, name := f"barrier {self.index}"):
            arrive_later(grid, name, partial(self._arrive, threads, needed, yes, voters))
        else:
            self._arrive(threads, needed, yes, voters)

    def _arrive(self, threads: int, needed: int | None, yes: int | None, voters: int) -> None:
        now = self.begin()
        if now.arrived and needed != now.needed:
            uses, open_for = needed or "all", now.needed or "all"
            what = f"Barrier {self.index} is used with {uses} threads while it is open for {open_for}."
            raise Diag.BAD_BARRIER.error(what=what)
        if now.arrived and (yes is None) != (now.voters is None):
            what = f"Barrier {self.index} is open for a reduction and for a plain arrival at once."
            raise Diag.BAD_BARRIER.error(what=what)
        now.needed = needed
        now.arrived += threads
        if yes is not None:
            now.yes += yes
            now.voters = (now.voters or 0) + voters
        self._show()
        if self.exchange is not None:
            self.exchange.arrive(self.cta.grid.current)
        self._tell("arrive", now, threads)
        self.settle()

    def awaits_others(self, group: Group, needed: int | None) -> bool:
        """Let a whole warp arrive without a vote and wait, if more threads must come; False, and nothing is done, if
        its arrival is more than that. It is an effect that the caller counts.
        """
        now, grid = self.generation, self.cta.grid
        if now.arrived + WARP >= (self.cta.live_threads if needed is None else needed):
            return False
        if grid.reporter is not None or grid.late_barrier or now.voters is not None:
            return False
        if not now.arrived:
            now.number, now.needed = self.cta.phases_held[self.index], needed
        elif now.needed != needed:
            return False
        now.arrived += WARP
        self._show()
        if self.exchange is not None:
            self.exchange.arrive(group)
        group.token = now
        group.wait(self)
        return True

    def completes(self, group: Group, needed: int | None) -> Generation | None:
        """Let a whole warp arrive without a vote and go on, if it is the last; None, and nothing is done, if its
        arrival is less or more than that. It is an effect that the caller counts.
        """
        now, grid = self.generation, self.cta.grid
        if not now.arrived or now.arrived + WARP != (self.cta.live_threads if needed is None else needed):
            return None
        if grid.reporter is not None or grid.late_barrier or now.voters is not None or now.needed != needed:
            return None
        now.arrived += WARP
        if self.exchange is not None:
            self.exchange.arrive(group)
        self.settle()
        if self.exchange is not None:
            self.exchange.leave(group)
        return now

    def _show(self) -> None:
        """Let native code know the arrivals; it counts none where threads vote."""
        now, words, at = self.generation, self.cta.arrivals_held, 1 + ARRIVAL_WORDS * self.index
        words[at + ARRIVED] = now.arrived if now.voters is None else -1
        words[at + NEEDED] = now.needed or 0

    def passed(self, group: Group, generation: Generation) -> None:
        """A group goes on that has not waited."""
        if self.exchange is not None:
            self.exchange.leave(group)
        self.tell_passed(generation)

    def tell_passed(self, generation: Generation) -> None:
        """Let observers know that a group goes on, with a generation that is over."""
        self._tell("wait", generation)

    def _tell(self, kind: str, generation: Generation, threads: int = 0) -> None:
        """Let observers know that threads arrive at the barrier, or have passed it."""
        reporter = self.cta.grid.reporter
        if reporter is not None:
            verb = "syncs" if "syncs" in reporter.actor.declared else "arrives"
            if self._name is None:
                self._name = BarrierName("named", self.cta.index, self.index, f"barrier {self.index}")
            reporter.tell(kind, verb, barrier=self._name, phase=generation.number, count=threads)

    @property
    def expected(self) -> int:
        """The number of threads that completes the barrier."""
        needed = self.generation.needed
        return self.cta.live_threads if needed is None else needed

    def settle(self) -> None:
        """Open the barrier if enough have arrived."""
        now = self.generation
        if not now.arrived:
            return
        if now.arrived > self.expected:
            what = f"Barrier {self.index} got {now.arrived} arrivals; it takes {self.expected}."
            raise Diag.BAD_BARRIER.error(what=what)
        if now.arrived == self.expected:
            self.end(now.arrived)
            if self.exchange is not None:
                self.exchange.turn()
                for group in self.waiters:  # they go on without a step of the barrier
                    self.exchange.leave(group)
            if self.waiters:
                self.cta.grid.late.meet(self.cta)
            if self.cta.convoys:
                self.waiters = self.cta.merged(self.waiters)
            self.notify()

    def describe(self) -> str:
        return f"barrier {self.index}: {self.generation.arrived} of {self.expected} threads have come"


class NamedBarriers(dict[int, NamedBarrier]):
    """The named barriers of a CTA by number, each made when it is first used."""

    def __init__(self, cta: Cta) -> None:
        super().__init__()
        self.cta = cta

    def __missing__(self, index: int) -> NamedBarrier:
        barrier = self[index] = NamedBarrier(self.cta, index)
        return barrier


class Cta:
    """One CTA: identity, memory and groups."""

    def __init__(self, grid: Grid, cluster: Cluster, rank: int) -> None:
        self.grid, self.cluster, self.rank, self.program = grid, cluster, rank, grid.program
        self.index: Triple = (0, 0, 0)
        self.number = 0
        """Its place in the grid."""
        self.mode = grid.usual
        self.local_bytes = grid.local_bytes
        reserved = grid.machine.shared_reserved
        opened = reserved if grid.uses_reserved else 0
        self.shared = SharedMemory(rank, reserved - opened, grid.shared_bytes + opened)
        self.shared.symbols = {name: opened + offset for name, offset in grid.shared_symbols.items()}
        self.symbols = grid.symbols | {name: self.shared.base + at for name, at in self.shared.symbols.items()}
        self.shared_memory = address_of(self.shared.whole), self.shared.whole.nbytes
        """The host address of its shared memory, and its bytes."""
        x, y, z = grid.block
        self.threads = x * y * z
        self.phases = np.zeros(grid.machine.named_barriers, np.uint64)
        """The generations of each named barrier that are over."""
        self.phases_held = self.phases.data
        self.barriers = NamedBarriers(self)
        self.arrivals = np.zeros(1 + ARRIVAL_WORDS * grid.machine.named_barriers, np.int64)
        """The live threads, and the arrivals at each named barrier, where native code finds them."""
        self.arrivals_held = self.arrivals.data
        self.meetings = 0
        """The barriers of all its threads so far; those that native code passes are not counted."""
        self.mbarriers: dict[int, Any] = {}
        self.mbarrier_rows = MbarrierRows()
        self.ring: CopyRing | None = grid.late.copy_ring(self.shared)
        """The ring of late copies, for clusters of which native code notes them."""
        self.copies = self.ring
        """The late copies that native code has noted; None where it does not."""
        self._peer = cluster.peers[1 + PEER_WORDS * rank : 1 + PEER_WORDS * (rank + 1)].data
        rows = address_of(self.mbarrier_rows.words)
        self._peer_words = address_of(self.shared.data), self.shared.base, self.shared.size, rows
        self.state: dict[Any, Any] = {}
        self.at_end: list[Callable[[Cta], None]] = []
        self.at_leave: list[Callable[[], None]] = []
        self.broken: set[int] = set()
        warps = -(-self.threads // WARP)
        self._live = [WARP] * warps
        if self.threads % WARP:
            self._live[-1] = self.threads % WARP
        self._present = [(1 << count) - 1 for count in self._live]
        self._warp_groups: dict[int, Group] = {}
        self._free: dict[int, list[Group]] = {}
        self._convoys: dict[int, Group] = {}
        self._idle: dict[tuple[int, int], list[Group]] = {}
        """The groups of an earlier CTA in this place, by their first warp and warps."""
        self.all_groups: list[Group] = []
        self.uniforms: Uniforms | None = None
        """The uniforms of its groups at their start; None without native code."""
        self.warpgroups = [
            Warpgroup(self, i, min(WARPGROUP, warps * WARP - i * WARPGROUP))
            for i in range(-(-warps // (WARPGROUP // WARP)))
        ]

    def begin(self, index: Triple) -> None:
        """Begin as the CTA of an index."""
        grid, self.index = self.grid, index
        self.number = (index[2] * grid.shape[1] + index[1]) * grid.shape[0] + index[0]
        self.__dict__.pop("specials", None)
        self.uniforms = grid.uniforms_of(self)
        self.mode = mode = self.cluster.mode
        apart = mode.lockstep is not None and mode.lockstep.proxies
        self.shared.begin(self.cluster.knowledge, apart=apart)
        for at, word in enumerate(self._peer_words):
            self._peer[at] = word
        self.phases.fill(0)
        self.arrivals.fill(0)
        self.arrivals_held[0] = self.threads
        self.live_threads, self.live, self.present = self.threads, self._live.copy(), self._present.copy()
        for each in (self.barriers, self.mbarriers, self.state, self.at_end, self.at_leave, self.broken):
            each.clear()
        self.mbarrier_rows.begin()
        self.copies = self.ring if mode.lockstep is not None and mode.next == 0 else None
        if self.ring is not None:
            self.ring.begin(closed=self.copies is None)
        self.convoys = mode.together or grid.runs_in_lockstep()
        """True if its warpgroups may run in lockstep."""
        for warpgroup in self.warpgroups:
            warpgroup.begin()

    @property
    def name(self) -> str:
        x, y, z = self.index
        return f"CTA ({x},{y},{z})" if z else f"CTA ({x},{y})"

    def own_special(self, name: str) -> int:
        """A special register that all threads of the CTA see alike, and others differently."""
        kind, _, letter = name.partition(".")
        if kind == "%cluster_ctarank":
            return self.rank
        if kind == "%smid":
            return self.grid.sm_of(self)
        axis = "xyz".index(letter)
        at, size = self.index[axis], self.grid.cluster_shape[axis]
        return at if kind == "%ctaid" else at % size if kind == "%cluster_ctaid" else at // size

    @cached_property
    def specials(self) -> dict[str, int]:
        """The special registers that all threads of the CTA see alike."""
        return self.grid.specials | {name: self.own_special(name) for name in CTA_SPECIALS}

    def start(self) -> None:
        """Make the first groups: convoys where the schedule allows, else warps."""
        lockstep = self.mode.lockstep
        together = self.convoys and not (lockstep is not None and lockstep.apart_first)
        for warpgroup in self.warpgroups:
            first = warpgroup.index * (WARPGROUP // WARP)
            count = warpgroup.lanes // WARP
            if together and count > 1 and all(n == WARP for n in self.live[first : first + count]):
                self.grid.woken(self.convoy(warpgroup))
                continue
            for warp in range(first, first + count):
                group = self.warp_group(warp)
                if self.live[warp] < WARP:
                    group.mask = np.arange(WARP) < self.live[warp]
                self.grid.woken(group)

    def convoy(self, warpgroup: Warpgroup) -> Group:
        """All warps of a warpgroup as one group."""
        if warpgroup.index not in self._convoys:
            first = warpgroup.index * (WARPGROUP // WARP)
            self._convoys[warpgroup.index] = self._new(warpgroup, first, warpgroup.lanes // WARP)
        group = self._convoys[warpgroup.index]
        group.state = READY
        return group

    def warp_group(self, warp: int) -> Group:
        """The group of one whole warp."""
        if warp not in self._warp_groups:
            self._warp_groups[warp] = self._new(self.warpgroups[warp * WARP // WARPGROUP], warp, 1)
        return self._warp_groups[warp]

    def lane_group(self, warp: int) -> Group:
        """A group for some lanes of a warp."""
        free = self._free.get(warp)
        return free.pop() if free else self._new(self.warpgroups[warp * WARP // WARPGROUP], warp, 1)

    def recycle(self, group: Group) -> None:
        if group is not self._warp_groups.get(group.first_warp):
            self._free.setdefault(group.first_warp, []).append(group)

    def _new(self, warpgroup: Warpgroup, first: int, warps: int) -> Group:
        idle = self._idle.get((first, warps))
        group = idle.pop() if idle else Group(self, warpgroup, first, warps)
        group.begin()
        self.all_groups.append(group)
        return group

    def lanes_ended(self, group: Group, lanes: Array | None) -> None:
        """Account for lanes (None: all of the group) that exited; barriers of all live threads are examined again."""
        if lanes is None:
            gone = group.lanes
            for warp in range(group.first_warp, group.first_warp + group.warps):
                self.live[warp] = self.present[warp] = 0
        else:
            gone = int(np.count_nonzero(lanes))
            self.live[group.first_warp] -= gone
            self.present[group.first_warp] &= ~lane_bits(lanes)
        self.live_threads -= gone
        self.arrivals_held[0] = self.live_threads
        if self.grid.reporter is not None:
            bits = (1 << group.lanes) - 1 if lanes is None else lane_bits(lanes)
            self.grid.reporter.exits(self.index, group.first_warp, bits)
        for barrier in self.barriers.values():
            if barrier.generation.needed is None:
                barrier.settle()
        for look in self.at_leave:
            look()
        if not self.live_threads:
            self._peer[PEER_SIZE] = 0
            for check in self.at_end:
                check(self)
        self.grid.threads_ended(self)

    @property
    def every_group(self) -> list[Group]:
        """The groups of this CTA, and those of earlier ones in its place."""
        return [*self.all_groups, *(group for idle in self._idle.values() for group in idle)]

    def release(self) -> None:
        """Release the groups of an ended CTA; operations in flight may still use its registers."""
        for group in self.all_groups:
            self._idle.setdefault((group.first_warp, group.warps), []).append(group)
        self.all_groups = []
        self._warp_groups, self._convoys, self._free = {}, {}, {}

    def goes_apart(self, group: Group) -> bool:
        """True if warps run one by one after the barrier at which a group is."""
        lockstep, op = self.mode.lockstep, self.grid.op_at(group)
        return lockstep is not None and id(op) in lockstep.apart_after

    def merged(self, waiters: list[Group]) -> list[Group]:
        """Waiters of a completed barrier; warps of a warpgroup at the same instruction become its convoy again."""
        by_warpgroup: dict[int, list[Group]] = {}
        for group in waiters:
            by_warpgroup.setdefault(group.warpgroup.index, []).append(group)
        out: list[Group] = []
        for index, groups in by_warpgroup.items():
            warpgroup, first = self.warpgroups[index], groups[0]
            whole = sum(group.warps for group in groups) * WARP == warpgroup.lanes > WARP and not self.goes_apart(first)
            needed = self.program.shared_values(first.pc)
            values = needed(first.u)
            same = all(
                g.pc == first.pc and g.mask is None and g.state == WAITING and g.parent is None
                and needed(g.u) == values
                for g in groups
            )  # fmt: skip
            if whole and same and len(groups) > 1:
                convoy = self.convoy(warpgroup)
                convoy.u[:] = first.u
                convoy.pc, convoy.mask, convoy.token, convoy.state = first.pc, None, first.token, WAITING
                for group in groups:
                    group.state, group.waiting = DONE, None
                out.append(convoy)
            else:
                out += groups
        return out
