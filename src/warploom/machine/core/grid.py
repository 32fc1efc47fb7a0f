"""The grid: launches clusters, schedules groups and asynchronous operations, and detects deadlocks."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from warploom.diagnostics import Diag, Loc, WarploomError
from warploom.machine.core.async_operations import InFlight, Operation
from warploom.machine.core.cta import Cluster, Cta
from warploom.machine.core.deadlock_report import deadlock, located, placed, standing, waiters
from warploom.machine.core.events import BarrierSite, Placed, Site, Source, Started
from warploom.machine.core.group import DONE, EXPIRED, READY, WAITING, WARP, Group, Storage, unfold
from warploom.machine.core.names import role_of
from warploom.machine.core.observation import barrier_site, observed, site
from warploom.machine.core.options import Options
from warploom.machine.core.reporting import Reporter
from warploom.machine.core.schedule import ARRIVAL, CANCEL, TURNS, WARPS, Eager, Random, Replay, Starve
from warploom.machine.core.setup import MOST_RESIDENT_BYTES, Setup, Triple, WarpState, resident_bytes
from warploom.machine.engine import selection
from warploom.machine.engine.access_log import AccessLog
from warploom.machine.engine.context import Regions
from warploom.machine.engine.native import Routines
from warploom.machine.engine.vectors import EngineError
from warploom.machine.instructions.control import Printed
from warploom.machine.memory.byte_memory import padded
from warploom.machine.memory.polling import polling
from warploom.machine.memory.proxy_visibility import Sight, learning
from warploom.machine.memory.store_buffers import Store, StoreBuffers, ordering
from warploom.machine.translate.segments import Memory
from warploom.machine.translate.translator import REFERENCE, Flavour
from warploom.ptx.isa.table import Op

_TURN = 512
_SHORT_TURN = 1
_IDLE_LIMIT = 50_000_000
_RETRIES = 3
_BREAKS = 10_000
_LOOK_AFTER = 8_000
"""Instructions without a memory effect after which groups are examined: do they only spin?"""
_FAIR_STEPS = 20_000
"""Steps for which a schedule may prefer others to a group that has had its turn, or to a cluster that could be
launched: warps that poll and meet at barriers could go on among themselves for ever."""
_FAIR_INSTRUCTIONS, _LEAST_INSTRUCTIONS = 16_384, 16
"""Instructions of each warp for which a schedule may keep every operation back while warps run, for the same reason;
fewer after each time, until all warps wait."""
_LOOP_BLOCKS = 256
_LAUNCH_COST = 16
"""The cost of launching a warp, in instructions of the limit: about as long as so many take."""
_LAUNCH_BYTES = 8192
"""So many bytes of a CTA's memory count as one instruction more."""
_MOST_WARP_STATES = 1 << 16
_MOST_IN_FLIGHT = 1 << 12
"""Asynchronous operations under way at once; when one more is issued the oldest takes effect."""
_TRIPLES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_RESERVED = ("%reserved_smem_offset_0", "%reserved_smem_offset_1")
_WORKSPACE = frozenset({"%envreg1", "%envreg2"})
_WORKSPACE_BYTES = 64


class Grid:
    """One running launch."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.program, self.machine = setup.program, setup.machine
        self.shape, self.block, self.cluster_shape = setup.shape, setup.block, setup.cluster
        self.memory, self.params = setup.memory, setup.params
        self.symbols, self.shared_symbols = setup.symbols, setup.shared_symbols
        self.shared_bytes, self.dynamic_bytes, self.local_bytes = (
            setup.shared_bytes,
            setup.dynamic_bytes,
            setup.local_bytes,
        )
        self.unordered = 0
        """Operands in registers of which a wgmma saw older values, because no `wgmma.fence` came after their write."""
        self.sms, self.schedule, self.explicit_cluster = setup.sms, setup.schedule, setup.explicit_cluster
        self.tensor_maps = setup.tensor_maps
        self.maps_at: dict[int, Any] = {}
        """The tensor maps among the parameters, by generic address."""
        self.observers = setup.observers
        self.reporter = (
            Reporter(setup.observers, self.shape, self._site, self._barrier_sites) if setup.observers else None
        )
        self.convoys = setup.schedule.convoys and not setup.schedule.two_views
        turns = bool(getattr(setup.schedule, "turns", False))
        self.two_views = setup.schedule.two_views and (
            self.program.has_async_proxy or bool(getattr(setup.schedule, "buffers", False))
        )
        """True if the generic and the async proxy have views of their own; without the latter nothing shows it."""
        self._locksteps = turns and not self.two_views and math.prod(setup.block) > WARP
        self.passes_alone = (self.convoys or self._locksteps) and not getattr(setup.schedule, "barrier", "")
        """True if a group with all threads of a named barrier passes it without a step of the schedule."""
        self.current: Group | None = None
        self.sight: Sight | None = None
        """The knowledge, at issue, of the issuer of the operation that completes; None where shared memory has one
        view."""
        self.ready: deque[Group] = deque()
        self.has_stale = False
        """True if groups among `ready` or `spent` may have merged with others since."""
        self.spent: deque[Group] = deque()
        self.parked: list[Group] = []
        self.flight = InFlight()
        self.buffers = StoreBuffers(self) if getattr(setup.schedule, "buffers", False) else None
        self.clusters: list[Cluster] = []
        self._gone: list[Cluster] = []
        self._executed = [0] * len(self.program.flow.blocks)
        self._spans: dict[tuple[int, int], int] = {}
        """Executions of blocks from a first up to an end, by warps, that `_executed` does not have yet."""
        self.warps: list[WarpState] = []
        self.uses_reserved = not self.program.specials.isdisjoint(_RESERVED)
        self.specials = self._specials()
        self.lane_specials: dict[int, dict[str, Any]] = {}
        self.special_tables: dict[int, Any] = {}
        self.pool: dict[tuple[int, int], list[Storage]] = {}
        """The storage of ended warpgroups, by their index and the rank of their CTA, for those launched later."""
        self.budget = setup.limit if setup.limit is not None else 1 << 62
        self.effects = 0
        self.moved: dict[str, int] = {}
        self.printed = Printed()
        self.barriers: dict[str, None] = {}
        self.heap: dict[int, int] = {}
        self._factories: dict[tuple[bool, Flavour], tuple[Callable[..., Any], tuple[int, ...]]] = {}
        self.flavour = self._usual = self._flavour()
        self._with_calls = Flavour(self.flavour.engine)
        self._threads = self.block[0] * self.block[1] * self.block[2]
        self._alone = self._alone_flavour()
        self.regions = Regions(self.memory, self.params) if self.flavour.engine is not None else None
        self._clusters_x = [-(-self.shape[i] // self.cluster_shape[i]) for i in range(3)]
        self._total = self._clusters_x[0] * self._clusters_x[1] * self._clusters_x[2]
        self._next = 0
        self._ended = 0
        self.most_resident = 0
        """The largest number of clusters that were resident at once."""
        self.taken_over = 0
        """Clusters whose work a running one has taken over."""
        self._idle = 0
        self._steps = self._launched_at = self._all_ran_at = 0
        self._last_effects = self._parked_at = self._expired_at = self._tried_at = -1
        self._expiries = self._breaks = 0
        self._look_at = _LOOK_AFTER
        self._budget_at_effect = self._completed_at = self.budget
        self._patience = _FAIR_INSTRUCTIONS
        self._bytes_per_cta = resident_bytes(
            self.program, self.block, self.shared_bytes, self.local_bytes, two_views=self.schedule.two_views
        )
        self._capacity = self._occupancy()
        self.eager = isinstance(self.schedule, Eager)
        if (begin := getattr(self.schedule, "begin", None)) is not None:
            begin(self.program.digest)
        self._deadline = None if setup.timeout is None else time.monotonic() + setup.timeout
        self._starves = bool(getattr(self.schedule, "starves", False))
        self._turn = _SHORT_TURN if self.schedule.preempts else _TURN
        self._turns = self.schedule.preempts and turns
        who = getattr(self.schedule, "interrupts", "")
        self._interrupted = Starve(who) if who else None
        self._draws = self.schedule if type(self.schedule) is Random and self.buffers is None else None
        """The schedule, where its draws need no description of the options."""
        self._launches_last = not self.eager and self._keeps_work(who)
        self._on_step = getattr(self.schedule, "stepped", None) if self.schedule.preempts else None
        self.late_barrier: str = getattr(self.schedule, "barrier", "")
        self.detours = self.eager and self.convoys
        """True if a warp that alone leaves its convoy at a branch executes its way up to the join first."""
        self.immediate = self.eager and self.convoys and not self.late_barrier
        """True if every operation completes when it is issued, unless one that it must follow is under way."""
        self.at_once = self.immediate and self.reporter is None
        """The same without observers: only the memory shows it."""

    def flavour_of(self, lanes: int) -> Flavour:
        """The flavour for whole warps of a group of so many lanes."""
        if lanes == self._threads and self._alone is not None and self.flavour is self._usual:
            return self._alone
        return self.flavour

    def factory(self, masked: bool, flavour: Flavour) -> tuple[Callable[..., Any], tuple[int, ...]]:
        """The factory of block functions in a flavour, and the entries of their chains."""
        key = (masked, flavour)
        if key not in self._factories:
            try:
                text = self.program.text(flavour, masked=masked)
            except EngineError as error:
                selection.disable(error)
                self.flavour = self._usual = self._with_calls = REFERENCE
                self._alone = None
                text = self.program.text(masked=masked)
            self._factories[key] = self.program.make(text, self._wrap), text.entries
        return self._factories[key]

    def rest(self, segment: int, record: int, masked: bool) -> Callable[..., Any]:
        """The factory of the rest of a block that native code has left to the reference."""
        return self.program.make(self.program.rest(segment, record, masked=masked), self._wrap)

    def _flavour(self) -> Flavour:
        """Native code where there is an engine; the accesses that store buffers must see are the reference's."""
        engine = selection.engine()
        if engine is None:
            return REFERENCE
        if self.buffers is not None:
            return Flavour(engine)
        if self.reporter is not None:
            self.reporter.log = AccessLog()
        memory = Memory.ONE_VIEW if self.two_views else Memory.ALL
        return Flavour(engine, memory, logged=self.reporter is not None)

    def _alone_flavour(self) -> Flavour | None:
        """The flavour of a group that has all threads of its CTA; None where that makes no difference."""
        usual = self._usual
        if usual.engine is None or usual.memory is Memory.NONE or not self.passes_alone:
            return None
        return replace(usual, alone=True) if self.program.meets_alone else None

    @cached_property
    def routines(self) -> Routines | None:
        """Native routines of matrix products and copies; None where NumPy does everything."""
        if self.flavour.engine is None:
            return None
        try:
            return self.flavour.engine.routines
        except EngineError as error:
            selection.disable(error)
            return None

    @property
    def _wrap(self) -> Callable[[Op, Any], Any] | None:
        return self._wrapped if self.observers or self.two_views or self.buffers is not None else None

    def _wrapped(self, op: Op, run: Any) -> Any:
        """A meaning as this run needs it."""
        if self.two_views:
            run = learning(op, run)
        if self.buffers is not None:
            run = ordering(op, run)
        return observed(op, run, self) if self.observers else run

    def _keeps_work(self, interrupted: str) -> bool:
        """True if resident CTAs ask for the work of others, and a launch should not take it while anything else can
        move: CTAs then compute many tiles. Random orders, store buffers and a starved CTA need the others.
        """
        if (self.schedule.preempts and not interrupted) or interrupted.lower().startswith("cta"):
            return False
        if self.buffers is not None:
            return False
        return any(op.family == CANCEL for block in self.program.flow.blocks for op in block.ops)

    def _occupancy(self) -> int:
        """The number of clusters that are resident at once."""
        ctas = self.cluster_shape[0] * self.cluster_shape[1] * self.cluster_shape[2]
        threads = self.block[0] * self.block[1] * self.block[2]
        per_sm = min(
            self.machine.blocks_per_sm,
            self.machine.threads_per_sm // max(threads, 1),
            self.machine.shared_per_sm // (self.shared_bytes + self.machine.shared_reserved),
        )
        held = MOST_RESIDENT_BYTES // max(self._bytes_per_cta * ctas, 1)
        return max(1, min(self.sms * max(per_sm, 1) // ctas, held))

    def _specials(self) -> dict[str, int]:
        """The special registers that all threads of the grid see alike."""
        out = dict[str, int]()
        for axis, letter in enumerate("xyz"):
            size = self.cluster_shape[axis]
            out[f"%ntid.{letter}"] = self.block[axis]
            out[f"%nctaid.{letter}"] = self.shape[axis]
            out[f"%cluster_nctaid.{letter}"] = size
            out[f"%nclusterid.{letter}"] = self.shape[axis] // size
        out |= {f"%{name}.w": 0 for name in _TRIPLES}
        reserved = self.machine.shared_reserved
        out["%cluster_nctarank"] = self.cluster_shape[0] * self.cluster_shape[1] * self.cluster_shape[2]
        out["%is_explicit_cluster"] = int(self.explicit_cluster)
        out["%nsmid"] = self.sms
        out["%gridid"] = 1
        out["%current_graph_exec"] = 0
        out["%nwarpid"] = -(-(self.block[0] * self.block[1] * self.block[2]) // WARP)
        out["%dynamic_smem_size"] = self.dynamic_bytes
        out["%total_smem_size"] = out["%aggr_smem_size"] = self.shared_bytes + reserved
        out["%reserved_smem_offset_begin"] = 0
        out["%reserved_smem_offset_end"] = out["%reserved_smem_offset_cap"] = reserved
        out |= zip(_RESERVED, self.machine.shared_reserved_parts, strict=True)
        if self.program.specials & _WORKSPACE:
            # Cooperative groups keep the arrivals at a barrier of the whole grid there; the driver clears it.
            workspace = self.memory.add(padded(_WORKSPACE_BYTES, zero=True), "the grid's workspace").base
            out |= {"%envreg1": workspace >> 32, "%envreg2": workspace & 0xFFFFFFFF}
        return out

    def sm_of(self, cta: Cta) -> int:
        return cta.number % self.sms

    def time(self) -> int:
        """A clock that advances with the instructions executed."""
        self.budget -= 1
        return self.used

    @property
    def used(self) -> int:
        """Warp instructions executed so far, as the limit counts them."""
        return (self.setup.limit if self.setup.limit is not None else 1 << 62) - self.budget

    def run(self) -> None:
        """Execute the whole grid."""
        if self.reporter is not None:
            arrays = tuple(Placed(region.name, region.base, region.size) for region, _ in self.memory.arrays)
            roles = {warp: role for warp in range(self.specials["%nwarpid"]) if (role := role_of(self, warp))}
            self.reporter.start(Started(self.shape, self.block, self.cluster_shape, arrays, roles))
        try:
            while True:
                if self.eager:
                    self._eager_steps()
                elif self._draws is not None:
                    self._drawn_steps(self._draws)
                if not self._step():
                    break
        finally:
            if self.reporter is not None:
                self.reporter.flush()
        if isinstance(self.schedule, Replay):
            self.schedule.finish()

    def choose(self, kind: str, options: Sequence[str], groups: int = 0) -> int:
        """The schedule's choice, which must be one of the options."""
        answer = self.schedule.choose(kind, options, groups)
        if not 0 <= answer < len(options):
            what = f"its answer to `{kind}` is {answer!r}, and there are {len(options)} options"
            raise Diag.BAD_SCHEDULE.error(name=self.schedule.name, what=what)
        return answer

    def runs_in_lockstep(self) -> bool:
        """Ask the schedule whether the warps of a CTA that is launched now run in lockstep."""
        return self._locksteps and self.choose("lockstep", WARPS) == 1

    def _eager_steps(self) -> None:
        """The fast path of the eager schedule: run ready groups in turn."""
        ready = self.ready
        while ready:
            group = ready.popleft()
            if group.state == READY:
                self._run(group, self._turn)
                if self._deadline is not None and time.monotonic() > self._deadline:
                    raise self._timed_out()
                if self.budget < 0:
                    self._check_limits()
                if self.parked:
                    self._unpark()
                if self._idle > len(ready):
                    self._idle = 0
                    self._check_limits()
                    if self._can_launch():
                        self.launch_next()
        self._check_limits()

    def _drawn_steps(self, schedule: Random) -> None:
        """The fast path of a random schedule, while nothing is in flight: it draws as `_step` lets it."""
        below, turn, flight = schedule.below, schedule.turn, self.flight
        while ready := self.ready:
            if flight.possible or self.parked or self.spent or self.has_stale or self.budget < 0:
                return
            if self._deadline is not None and time.monotonic() > self._deadline:
                return
            if self.effects != self._last_effects:
                self._last_effects, self._budget_at_effect = self.effects, self.budget
                self._look_at = _LOOK_AFTER
            elif self._budget_at_effect - self.budget > _LOOK_AFTER:
                return
            launch, steps = self._next < self._total and len(self.clusters) < self._capacity, self._steps + 1
            if launch and steps - self._launched_at > _FAIR_STEPS:
                return
            self._steps = self._all_ran_at = steps
            groups = len(ready)
            answer = below(groups + launch) if groups + launch > 1 else 0
            if answer == groups:
                self.launch_next()
                continue
            group, blocks = ready[answer], turn() + 1
            del ready[answer]
            self._run(group, blocks)

    def _step(self) -> bool:
        """Ask the schedule for one step; False when the grid is done."""
        self._check_limits()
        self._unpark()
        self._steps += 1
        groups = self._runnable()
        completions: list[Operation] | list[Operation | Store] = self.flight.possible
        if self.buffers is not None and len(self.buffers):
            completions = [*completions, *self.buffers.listed]
        launch = self._can_launch() and not (self._launches_last and self.clusters and (groups or completions))
        if self._can_launch() and self._steps - self._launched_at > _FAIR_STEPS:
            self.launch_next()
            return True
        if not completions:
            self._completed_at = self.budget
        elif groups and self._is_overdue():
            self._take(completions[0])
            return True
        count = len(groups) + len(completions) + launch
        if count == 0:
            return self._stuck()
        options = Options(groups, completions, launch, self.flight.counts)
        answer = 0 if count == 1 or (self.eager and not groups) else self.choose("step", options, len(groups))
        name = options[answer] if self._on_step is not None else ""
        if self._on_step is not None:
            self._on_step(name)
        if answer < len(groups):
            group = groups[answer]
            turn = self.choose("turn", TURNS) + 1 if self._turns else self._turn
            del self.ready[answer]
            begun = self._run(group, turn)
            if self._on_step is not None:
                for _ in range(begun - 1):
                    self._on_step(name)
        elif answer < len(groups) + len(completions):
            self._completed_at = self.budget
            if not groups:
                self._patience = _FAIR_INSTRUCTIONS
            self._take(completions[answer - len(groups)])
        else:
            self.launch_next()
        return True

    def _is_overdue(self) -> bool:
        """True if groups have run for so long that an operation must complete: they may poll for what depends on it.

        A CTA whose warps poll together, with barriers between them, is never suspended. Each time that groups go on
        without waiting, the next operation has to wait less.
        """
        since = self._completed_at - self.budget
        if since <= self._patience or since <= self._patience * sum(map(len, (each.live for each in self.live_ctas()))):
            return False
        self._completed_at = self.budget
        self._patience = max(self._patience // 4, _LEAST_INSTRUCTIONS)
        return True

    def _take(self, step: Operation | Store) -> None:
        """Let an operation complete, or a store reach memory."""
        if isinstance(step, Operation):
            self.complete(step)
        elif self.buffers is not None:
            self.buffers.commit(step)

    def _run(self, group: Group, turn: int) -> int:
        """Give a group its turn; one whose turns have no effect may only be polling, and is then suspended. Returns the
        number of blocks that it began.
        """
        if self._interrupted is not None and not self._interrupted.starved(f"{group.cta.name} {group.name}"):
            turn = _TURN
        effects, first = self.effects, min(turn, group.patient_for)
        begun = group.run(first)
        if self.effects != effects and group.state == READY and first < turn:
            # It does not only poll: it gets the rest of its turn.
            self._withdraw(group)
            self._idle -= 1
            begun += group.run(turn - first)
        if self.effects != effects or group.state != READY:
            group.idle = 0
            return begun
        group.idle += first
        if group.idle >= group.patient_for:
            self._withdraw(group)
            if self._spins(group):
                self.parked.append(group)
                group.idle = 0
            else:
                group.patient_for *= 2
        return begun

    def _runnable(self) -> Sequence[Group]:
        """The groups that can run; those that have had their turn follow after all others."""
        if self.has_stale:
            self.has_stale = False
            self.ready = deque(group for group in self.ready if group.state == READY)
            self.spent = deque(group for group in self.spent if group.state == READY)
        if not self.spent:
            self._all_ran_at = self._steps
        elif not self.ready:
            self.ready, self.spent = self.spent, self.ready
        elif self._steps - self._all_ran_at > _FAIR_STEPS:
            self.spent.extend(self.ready)
            self.ready, self.spent = self.spent, deque()
        return self.ready

    def _timed_out(self) -> WarploomError:
        """The error of a run that takes longer than its time limit."""
        what = f"The emulated kernel `{self.program.kernel.name}`"
        return Diag.TIMEOUT.error(notes=standing(self), what=what, seconds=self.setup.timeout, waiters=waiters(self))

    def _check_limits(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise self._timed_out()
        if self.budget < 0:
            limit = self.setup.limit
            counted = f"launching a warp counts as {_LAUNCH_COST} instructions, or more with its memory"
            used = (limit or 0) - self.budget
            raise Diag.LIMIT.error(notes=(*standing(self), counted), used=used, limit=limit, waiters=waiters(self))
        if self.effects != self._last_effects:
            self._last_effects, self._budget_at_effect = self.effects, self.budget
            self._look_at = _LOOK_AFTER
            return
        idle = self._budget_at_effect - self.budget
        if idle > _IDLE_LIMIT and idle > _IDLE_LIMIT * sum(count > 0 for cta in self.live_ctas() for count in cta.live):
            raise Diag.NO_PROGRESS.error(notes=standing(self), used=idle, waiters=waiters(self))
        if idle > self._look_at:
            self._look_at = 2 * idle
            self._park_spinners()

    def _park_spinners(self) -> None:
        """Suspend the groups that only poll, so that others and operations in flight make progress."""
        groups = [group for group in (*self.ready, *self.spent) if group.state == READY]
        self.ready.clear()
        self.spent.clear()
        for group in groups:
            if group.state == READY and self._spins(group):
                self.parked.append(group)
        self._parked_at = self.effects

    def _spins(self, group: Group) -> bool:
        """True if a group comes back to its instruction with the same registers and nothing written in between.

        What it reads meanwhile is what it polls.
        """
        flavour, self.flavour = self.flavour, self._with_calls  # the loads of native code are not seen
        try:
            return self._comes_back(group)
        finally:
            self.flavour = flavour

    def _comes_back(self, group: Group) -> bool:
        before, effects = group.snapshot(), self.effects
        with polling((self.memory, *(cta.shared for cta in group.cta.cluster.ctas))) as polled:
            for _ in range(_LOOP_BLOCKS):
                budget = self.budget
                group.run(1)
                if group.state != READY or self.effects != effects or self.budget == budget:
                    return False
                self._withdraw(group)
                if group.pc == before[0] and group.snapshot() == before:
                    group.polled = polled.words()
                    return True
        self.ready.append(group)
        return False

    def _withdraw(self, group: Group) -> None:
        for queue in (self.ready, self.spent):
            if queue and queue[-1] is group:
                queue.pop()
            elif group in queue:
                queue.remove(group)

    def _unpark(self) -> None:
        """Resume a suspended group once a word that it polls has changed."""
        if self.parked and self.effects != self._parked_at:
            self._parked_at = self.effects
            woken = [group for group in self.parked if not group.polled or any(word.changed for word in group.polled)]
            for group in woken:
                self.parked.remove(group)
            self.ready.extend(woken)

    def _can_launch(self) -> bool:
        return self._next < self._total and len(self.clusters) < self._capacity

    @property
    def not_started(self) -> int:
        """The number of clusters that have not been launched."""
        return self._total - self._next

    def launch_next(self) -> None:
        """Launch the next cluster."""
        self._launched_at = self._steps
        self._sweep()
        index = self.take_cluster()
        assert index is not None
        cluster = Cluster(self, index)
        self.clusters.append(cluster)
        self.most_resident = max(self.most_resident, len(self.clusters))
        shape = self.cluster_shape
        rank = 0
        for z in range(shape[2]):
            for y in range(shape[1]):
                for x in range(shape[0]):
                    at = (index[0] * shape[0] + x, index[1] * shape[1] + y, index[2] * shape[2] + z)
                    cluster.ctas.append(Cta(self, cluster, at, rank))
                    rank += 1
        for cta in cluster.ctas:
            self.budget -= _LAUNCH_COST * len(cta.live) + self._bytes_per_cta // _LAUNCH_BYTES
            cta.start()

    def take_cluster(self) -> Triple | None:
        """The next cluster that was not launched, taken off the list; None when all are."""
        if self._next >= self._total:
            return None
        x, y, _ = self._clusters_x
        linear = self._next
        self._next += 1
        return linear % x, linear // x % y, linear // (x * y)

    def cancelled(self) -> None:
        """A cluster's work was taken over by a running one: it counts as ended."""
        self._launched_at = self._steps
        self._ended += 1
        self.taken_over += 1

    def woken(self, group: Group) -> None:
        self.ready.append(group)

    def preempted(self, group: Group) -> None:
        """Requeue a group after its turn: all others run first, unless the schedule preempts or starves."""
        self._idle += 1
        if self.eager or self._starves or self.schedule.preempts:
            self.ready.append(group)
        else:
            self.spent.append(group)

    def blocked(self, group: Group) -> None:
        self._idle = 0

    def threads_ended(self, cta: Cta) -> None:
        self._idle = 0
        if cta.live_threads:
            return
        cluster = cta.cluster
        if cluster.ended:
            self.effects += 1
            self._launched_at = self._steps
            self.clusters.remove(cluster)
            self._ended += 1
            if self.buffers is not None:
                self.buffers.forget(cluster)
            for ended in cluster.ctas:
                self._count(ended)
                ended.release()
            self._gone.append(cluster)
            if self.setup.on_progress is not None:
                self.setup.on_progress(self._ended, self._total)

    def _count(self, cta: Cta) -> None:
        """Add what an ended CTA executed to the sums, and its warps to the list while that is short."""
        executed = [0] * len(cta.live)
        for group in cta.all_groups:
            own = group.tally(self._executed, self._spans)
            for warp in range(group.first_warp, group.first_warp + group.warps):
                executed[warp] += own
        room = _MOST_WARP_STATES - len(self.warps)
        self.warps += [WarpState(cta.index, warp, count) for warp, count in enumerate(executed[:room])]

    @property
    def executed(self) -> list[int]:
        """The number of times that ended warps have executed each block."""
        unfold(self._executed, self._spans)
        return self._executed

    def submit(self, operation: Operation) -> None:
        """An asynchronous operation was issued."""
        self.effects += 1
        operation.issuer = self.current
        knowledge = operation.cluster.knowledge
        if operation.sight is None and knowledge is not None and operation.issuer is not None:
            operation.sight = knowledge.sight(operation.issuer.number)
        if self.reporter is not None and not operation.issues:
            operation.issues = self.reporter.issue(operation.touches, operation.group)
        if self.eager and operation.possible:
            self.complete(operation, listed=False)
            while self.flight.possible:
                self.complete(self.flight.possible[0])
            return
        self.flight.add(operation)
        operation.cluster.in_flight += 1
        while self.flight.count > _MOST_IN_FLIGHT and self.flight.possible:
            self.complete(self.flight.possible[0])

    def complete(self, operation: Operation, *, listed: bool = True) -> None:
        """Let an operation take effect."""
        self.effects += 1
        if listed:
            self.flight.remove(operation)
        before, self.current, self.sight = self.current, operation.issuer, operation.sight
        if self.reporter is None:
            operation.run()
        else:
            self.reporter.complete(operation)
        self.current = before
        operation.done = True
        self.flight.follow(operation)
        for waitable in operation.then:
            waitable.notify()
        if listed:
            operation.cluster.in_flight -= 1

    def is_late(self, barrier: str) -> bool:
        """True if the schedule keeps the arrivals at a barrier back."""
        late = self.late_barrier
        return bool(late) and (barrier in (late, f"barrier {late}") or barrier.startswith(f"{late}["))

    def arrive_later(self, barrier: str, arrive: Callable[[], None]) -> None:
        """Make an arrival of the current group an operation, which the schedule completes."""
        group, reporter = self.current, self.reporter
        assert group is not None
        issued: dict[int, int] = group.cta.state.setdefault("arrivals issued", {})
        number = issued[group.first_warp] = issued.get(group.first_warp, -1) + 1
        actor, lanes = (None, 0) if reporter is None else (reporter.actor, reporter.lanes)

        def run() -> None:
            if reporter is not None and actor is not None:
                reporter.acts(actor)
                reporter.narrow(lanes)
            arrive()

        operation = Operation(f"{group.cta.name} warp {group.first_warp}: {ARRIVAL} {number} at {barrier}", run)
        operation.issuer = group
        self.effects += 1
        self.flight.add(operation)
        operation.cluster.in_flight += 1

    def discard(self) -> None:
        """Release everything, after a fault too: resident CTAs refer to the grid."""
        for cluster in (*self.clusters, *self._gone):
            cluster.discard()
        self.memory.watchers.clear()  # an engine's table of buffers refers to the memory, and the memory to it
        vars(self).clear()

    def _sweep(self) -> None:
        """Release the clusters that have ended and have no operation in flight."""
        kept = []
        for cluster in self._gone:
            if cluster.in_flight:
                kept.append(cluster)
            else:
                cluster.give_back()
                cluster.discard()
        self._gone = kept

    def _stuck(self) -> bool:
        """Nothing is ready and nothing is under way: the end, a time limit that expires, or a deadlock."""
        if not self.clusters:
            return False
        if self.effects != self._expired_at:
            self._expired_at = self.effects
            self._expiries = self._breaks = 0
        groups = [group for cta in self.live_ctas() for group in cta.all_groups]
        waiting = [(group, group.waiting) for group in groups if group.state == WAITING and group.waiting is not None]
        expired = [group for group, what in waiting if getattr(what, "expires", False)]
        self._expiries += 1
        if expired and self._expiries <= _RETRIES:
            for group in expired:
                group.token = EXPIRED
                group.wake()
            return True
        for group, what in waiting:
            if (fault := what.fault()) is not None:
                raise placed(self, fault, group, self.op_at(group))
        self._breaks += 1
        if self._breaks <= _BREAKS and any(group.break_join() for group in groups):
            self._expiries = 0
            return True
        if self.parked and self.effects != self._tried_at:
            # A loop may look at more than one pass of it has read.
            self._tried_at = self.effects
            self.ready.extend(self.parked)
            self.parked.clear()
            return True
        raise deadlock(self)

    def live_ctas(self) -> list[Cta]:
        return [cta for cluster in self.clusters for cta in cluster.ctas]

    def op_at(self, group: Group) -> Op | None:
        """The next instruction of a group."""
        ops = self.program.flow.blocks[group.pc].ops
        return ops[0] if ops else None

    def source_of(self, op: Op) -> Source:
        """The place of an instruction, for events."""
        instruction = op.instruction
        return Source(instruction.loc or Loc(self.program.file, instruction.line), instruction, self.number_of(op))

    def number_of(self, op: Op) -> int:
        """The place of an instruction among those of the kernel; -1 for one that is none of them."""
        return self.program.numbers_of_instructions.get(id(op.instruction), -1)

    def _site(self, number: int) -> Site:
        """An instruction by its number, as observers know it."""
        return site(self.program.ops[number], self)

    def _barrier_sites(self) -> dict[int, BarrierSite]:
        """The barriers that native code may pass, by the numbers of their instructions."""
        if self._alone is None:
            return {}
        return {at: barrier_site(op, self) for at, op in enumerate(self.program.ops) if op.family == "bar.sync"}

    def loc_of(self, op: Op) -> Loc:
        return op.instruction.loc or Loc(self.program.file, op.instruction.line)

    def located(self, error: Exception, group: Group) -> Exception:
        """A fault with its place."""
        return located(self, error, group)


__all__ = ["DONE", "Grid"]
