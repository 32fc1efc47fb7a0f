"""The grid: launches clusters, schedules groups and asynchronous operations, and detects deadlocks."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from warploom.diagnostics import Diag, Loc, WarploomError
from warploom.machine.core.async_operations import InFlight, Operation
from warploom.machine.core.cluster_modes import ClusterMode, LateOperations, other_modes, usual_mode
from warploom.machine.core.cta import Cluster, Cta
from warploom.machine.core.deadlock_report import deadlock, located, placed, standing, waiters
from warploom.machine.core.group import DONE, EXPIRED, READY, WAITING, WARP, Group
from warploom.machine.core.names import role_of
from warploom.machine.core.options import Options
from warploom.machine.core.polling_rounds import Expiries, Rounds, deciding, is_expiring
from warploom.machine.core.schedule import CANCEL, CLUSTER_MODES, TURNS, WARPS, Eager, Random, Replay, Starve
from warploom.machine.core.setup import Setup, Triple, WarpState, resident_bytes, resident_clusters
from warploom.machine.core.special_registers import RESERVED, shared_specials
from warploom.machine.core.texts import Texts
from warploom.machine.core.turns import ReadyGroups, Turns
from warploom.machine.engine import selection
from warploom.machine.engine.context import Regions
from warploom.machine.engine.native import Routines
from warploom.machine.instructions.control import Printed
from warploom.machine.instructions.tma import LoadTouches, enter_maps
from warploom.machine.memory.polling import Polled, polling
from warploom.machine.memory.proxy_visibility import Sight
from warploom.machine.memory.store_buffers import Store, StoreBuffers
from warploom.machine.observers.events import Placed, Site, Source, Started
from warploom.machine.observers.native_events import NativeEvents, NativeSite
from warploom.machine.observers.observation import native_site, site
from warploom.machine.observers.reporting import Reporter
from warploom.machine.routines import turn_loop
from warploom.machine.routines.turn_loop import IDLE, PATIENCE
from warploom.machine.semantics.vectors import EngineError
from warploom.machine.translate.uniform_slots import Uniforms
from warploom.ptx.isa.table import Op

_TURN = 512
_SHORT_TURN = 1
_ENOUGH_CLUSTERS = 4
"""Clusters that a random schedule interleaves while one of their groups can run: each has memory of its own."""
_TURNS = 4096
"""Turns that native code takes before the time limit is looked at."""
_IDLE_LIMIT = 50_000_000
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
TO_SHARED = "global->shared"
"""The bytes that native code counts, among those that are moved."""


class Grid:
    """One running launch."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.program, self.machine = setup.program, setup.machine
        self.shape, self.block, self.cluster_shape = setup.shape, setup.block, setup.cluster
        self.memory, self.params = setup.memory, setup.params
        self.symbols, self.shared_symbols = setup.symbols, setup.shared_symbols
        self.shared_bytes, self.dynamic_bytes = setup.shared_bytes, setup.dynamic_bytes
        self.local_bytes, self.sums = setup.local_bytes, setup.sums
        self.unordered = 0
        """Operands in registers of which a wgmma saw older values, because no `wgmma.fence` came after their write."""
        self.sms, self.schedule, self.explicit_cluster = setup.sms, setup.schedule, setup.explicit_cluster
        self.tensor_maps = setup.tensor_maps
        self.maps_at: dict[int, Any] = {}
        """The tensor maps among the parameters, by generic address."""
        self.observers = setup.observers
        self.reporter: Reporter | None = None
        if setup.observers:
            native = NativeEvents(self.shape, self.cluster_shape, self._native_sites, LoadTouches(self.maps_at))
            self.reporter = Reporter(setup.observers, self.shape, self._site, native)
        self.eager = isinstance(self.schedule, Eager)
        self.late_barrier: str = getattr(self.schedule, "barrier", "")
        turns = bool(getattr(setup.schedule, "turns", False))
        self._clusters_x = [-(-self.shape[i] // self.cluster_shape[i]) for i in range(3)]
        self._total = math.prod(self._clusters_x)
        self._next = 0
        self.late: LateOperations = LateOperations(self)
        self.usual = usual_mode(self)
        """The mode in which clusters run, unless the schedule chooses."""
        self._locksteps = turns and not self.usual.two_views and math.prod(setup.block) > WARP
        self.usual.passes_alone |= self._locksteps and not self.late_barrier
        self.modes = [self.usual, *other_modes(self, self._total)] if turns else [self.usual]
        """The modes that the schedule chooses from, in the order of its options."""
        self.has_at_once = self.usual.immediate or any(mode.at_once for mode in self.modes)
        """True if native code may execute operations that complete when they are issued."""
        self.current: Group | None = None
        self.sight: Sight | None = None
        """The knowledge, at issue, of the issuer of the operation that completes; None where shared memory has one
        view."""
        self.ready: deque[Group] | ReadyGroups = deque()
        self.has_stale = False
        """True if groups among `ready` or `spent` may have merged with others since."""
        self.spent: deque[Group] = deque()
        self.parked: list[Group] = []
        self.rounds = Rounds(self)
        self.flight = self.usual.flight
        self.buffers = StoreBuffers(self) if getattr(setup.schedule, "buffers", False) else None
        self.clusters: list[Cluster] = []
        self._gone: list[Cluster] = []
        """Clusters that have ended, and may have operations in flight."""
        self._idle_clusters: list[Cluster] = []
        """Clusters that have ended, for those launched later."""
        self.executed = np.zeros(len(self.program.flow.blocks), np.int64)
        """The number of times that ended warps have executed each block."""
        self.warps: list[WarpState] = []
        self.uses_reserved = not self.program.specials.isdisjoint(RESERVED)
        self.specials = shared_specials(self)
        self.lane_specials: dict[int, dict[str, Any]] = {}
        self.special_tables: dict[int, Any] = {}
        self.budget = setup.limit if setup.limit is not None else 1 << 62
        self.effects = 0
        self.local_effects = 0
        """Those that are known to stay in a cluster, and to change no more than its shared memory; native code does not
        count them."""
        self.moved: dict[str, int] = {}
        self.printed = Printed()
        self.names: dict[int, str] | None = None  # those of bytes of shared memory, once one was asked for
        self.barriers: dict[str, None] = {}
        self.heap: dict[int, int] = {}
        self._uniforms: dict[int, Uniforms] = {}
        """The uniforms at the start of the first CTA of each rank."""
        self.texts = Texts(self)
        engine = self.usual.flavour.engine
        self.regions: Regions | None = None
        if engine is not None or self.texts.may_load:
            self.regions = Regions(self.memory, self.params)
            if self.usual.immediate:
                self.flight = self.usual.flight = InFlight(self.regions.in_flight.data)
            if self.has_at_once:
                enter_maps(self)
        self._ended = 0
        self.most_resident = 0
        """The largest number of clusters that were resident at once."""
        self.taken_over = 0
        """Clusters whose work a running one has taken over."""
        self._idle = 0
        self._steps = self._launched_at = self._all_ran_at = self.heap_bytes = 0
        self._last_effects = self._parked_at = self._expired_at = self._tried_at = -1
        self._expiries, self._breaks = Expiries(self), 0
        self._look_at = _LOOK_AFTER
        self._floor = self.rounds.floor(1)
        """The budget below which the limit and the clusters are looked at."""
        self._budget_at_effect = self._completed_at = self.budget
        self._patience = _FAIR_INSTRUCTIONS
        self._bytes_per_cta = resident_bytes(
            self.program, self.block, self.shared_bytes, self.local_bytes, two_views=self.schedule.two_views
        )
        self._capacity = resident_clusters(setup, self._bytes_per_cta)
        if (begin := getattr(self.schedule, "begin", None)) is not None:
            begin(self.program.digest)
        self._deadline = None if setup.timeout is None else time.monotonic() + setup.timeout
        self._starves = bool(getattr(self.schedule, "starves", False))
        self._turn = _SHORT_TURN if self.schedule.preempts else _TURN
        self._turns = self.schedule.preempts and turns
        who = getattr(self.schedule, "interrupts", "")
        self._interrupted = Starve(who) if who else None
        self._native_turns: Turns | None = None
        if type(self.schedule) is Random and self.buffers is None and engine is not None:
            # Its draws need no description of the options.
            try:
                self._native_turns, self.ready = Turns(engine, self.schedule, _LOOK_AFTER), ReadyGroups()
            except EngineError as error:
                self.texts.do_without(error)
        self._launches_last = not self.eager and self._keeps_work(who)
        self._on_step = getattr(self.schedule, "stepped", None) if self.schedule.preempts else None

    def mode_of_next(self) -> ClusterMode:
        """Ask the schedule for the mode of the cluster that is launched now."""
        if len(self.modes) == 1 or (self._next == 1 and not self.late.modes):
            return self.usual
        return self.modes[self.choose("lockstep", CLUSTER_MODES[: len(self.modes)])]

    def uniforms_of(self, cta: Cta) -> Uniforms | None:
        """The uniforms of the groups of a CTA at their start; None without native code."""
        if self.regions is None:
            return None
        slots = self.program.slots
        found = self._uniforms.get(cta.rank)
        if found is None:
            found = self._uniforms[cta.rank] = slots.template(cta, self.regions.parameter)
        found = found.copy()
        for number, name in slots.of_ctas:
            found[number] = cta.own_special(name)
        return found

    @cached_property
    def routines(self) -> Routines | None:
        """Native routines of matrix products and copies; None where NumPy does everything."""
        engine = self.usual.flavour.engine
        if engine is None:
            return None
        try:
            return engine.routines
        except EngineError as error:
            selection.disable(error)
            return None

    def _keeps_work(self, interrupted: str) -> bool:
        """True if resident CTAs ask for the work of others, and a launch should not take it while anything else can
        move: CTAs then compute many tiles. Random orders, store buffers and a starved CTA need the others.
        """
        if (self.schedule.preempts and not interrupted) or interrupted.lower().startswith("cta"):
            return False
        if self.buffers is not None:
            return False
        return any(op.family == CANCEL for block in self.program.flow.blocks for op in block.ops)

    def sm_of(self, cta: Cta) -> int:
        return cta.number % self.sms

    def time(self) -> int:
        """A clock that advances with the instructions executed, and where all warps wait for a time limit."""
        self.budget -= 1
        return self.used + self._expiries.skipped

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
                elif self._native_turns is not None and isinstance(self.ready, ReadyGroups):
                    self._drawn_steps(self._native_turns, self.ready)
                if not self._step():
                    break
        finally:
            if self.reporter is not None:
                self.reporter.flush()
            if self._native_turns is not None:
                self._native_turns.give_back()
        if self.regions is not None and (moved := int(self.regions.moved[0])):
            self.moved[TO_SHARED] = self.moved.get(TO_SHARED, 0) + moved
        if isinstance(self.schedule, Replay):
            self.schedule.finish()
        self.texts.end()

    def choose(self, kind: str, options: Sequence[str], groups: int = 0) -> int:
        """The schedule's choice, which must be one of the options."""
        if self._native_turns is not None:
            self._native_turns.give_back()
        answer = self.schedule.choose(kind, options, groups)
        if not 0 <= answer < len(options):
            what = f"its answer to `{kind}` is {answer!r}, and there are {len(options)} options"
            raise Diag.BAD_SCHEDULE.error(name=self.schedule.name, what=what)
        return answer

    def runs_in_lockstep(self) -> bool:
        """Ask the schedule whether the warps of a CTA that is launched now run in lockstep."""
        return self._locksteps and self.choose("lockstep", WARPS) == 1

    def _eager_steps(self) -> None:
        """The fast path of the eager schedule: run ready groups in turn, and launch clusters where there are none."""
        while self.ready:
            self._eager_turns(self.ready)
            self._check_limits()
            if self.flight.possible or self.parked or self.spent or not self.can_launch:
                return
            self._steps += 1
            self._completed_at = self.budget
            self.launch_next()

    def _eager_turns(self, ready: deque[Group] | ReadyGroups) -> None:
        while ready:
            group = ready.popleft()
            if group.state == READY:
                self._run(group, self._turn)
                if self._deadline is not None and time.monotonic() > self._deadline:
                    raise self._timed_out()
                if self.budget < self._floor:
                    self._check_limits()
                if self.parked:
                    self._unpark()
                if self._idle > len(ready):
                    self._idle = 0
                    self._check_limits()
                    if self.can_launch:
                        self.launch_next()

    def _drawn_steps(self, turns: Turns, ready: ReadyGroups) -> None:
        """The fast path of a random schedule: native code draws, as `_step` lets the schedule, and runs groups."""
        words, possible, counts, deadline = turns.words, self.flight.possible, self.flight.counts, self._deadline
        words[turn_loop.LAST], words[turn_loop.BUDGET_AT_EFFECT] = self._last_effects, self._budget_at_effect
        words[turn_loop.FLOOR], words[turn_loop.COMPLETED] = self._floor, self._completed_at
        while ready.size:
            if self.parked or self.spent or self.has_stale or self.budget < self._floor:
                break
            if deadline is not None and time.monotonic() > deadline:
                break
            completions, launch, most = len(possible), self.can_launch, _TURNS
            if launch:
                most = min(most, self._launched_at + _FAIR_STEPS - self._steps)
                if most <= 0:
                    break
                launch = len(self.clusters) < _ENOUGH_CLUSTERS
                if launch and completions and counts[CANCEL]:
                    break  # the schedule draws whether a launch takes work that a resident CTA asks for
            words[turn_loop.BUDGET], words[turn_loop.EFFECTS] = self.budget, self.effects
            if completions:
                patient = self._patience
                if self._completed_at - self.budget > patient:
                    patient = self._patient_for()
                words[turn_loop.PATIENT] = patient
            why = turns.take(ready, completions, launch, most)
            self._all_ran_at = self._steps = self._steps + most - words[turn_loop.LEFT]
            self.budget, self.effects = words[turn_loop.BUDGET], words[turn_loop.EFFECTS]
            self._completed_at = words[turn_loop.COMPLETED]
            if why == turn_loop.ESCAPE:
                number, second, before = words[turn_loop.NUMBER], words[turn_loop.PART], words[turn_loop.BEFORE]
                self._run(ready.at(words[turn_loop.GROUP]), words[turn_loop.TURN], number, second, before)
            elif why == turn_loop.COMPLETE:
                self._completed_at = words[turn_loop.COMPLETED] = self.budget
                self.complete(possible[words[turn_loop.GROUP]])
            elif why == turn_loop.PYTHON:
                self._run(ready.at(words[turn_loop.GROUP]), words[turn_loop.TURN])
            elif why == turn_loop.LAUNCH:
                self.launch_next()
            elif why == turn_loop.EXAMINE:
                self._examine(ready.at(words[turn_loop.GROUP]))
            elif why == turn_loop.OVERDUE:
                if self._patient_for() <= patient:
                    break
            elif why == turn_loop.LEAVES and words[turn_loop.LEFT]:
                break
        if words[turn_loop.LAST] != self._last_effects:
            self._look_at, self._last_effects = _LOOK_AFTER, words[turn_loop.LAST]
            self._budget_at_effect = words[turn_loop.BUDGET_AT_EFFECT]

    def _step(self) -> bool:
        """Ask the schedule for one step; False when the grid is done."""
        self._check_limits()
        self._unpark()
        self._steps += 1
        groups = self._runnable()
        completions: list[Operation] | list[Operation | Store] = self.flight.possible
        if self.buffers is not None and len(self.buffers):
            completions = [*completions, *self.buffers.listed]
        launch = self.can_launch and not (self._launches_last and self.clusters and (groups or completions))
        launch = launch and not (groups and self._has_enough())
        if self.can_launch and self._steps - self._launched_at > _FAIR_STEPS:
            self.launch_next()
            return True
        if not completions:
            self._completed_at = self.budget
        elif groups and self._is_overdue():
            self._take(completions[0])
            return True
        count = len(groups) + len(completions) + launch
        if count == 0:
            return self.late.complete_next() or self._stuck()
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

        A CTA whose warps poll together, with barriers between them, is suspended late. Each time that groups go on
        without waiting, the next operation has to wait less.
        """
        if self._completed_at - self.budget <= self._patient_for():
            return False
        self._completed_at = self.budget
        self._patience = max(self._patience // 4, _LEAST_INSTRUCTIONS)
        return True

    def _patient_for(self) -> int:
        """The instructions for which groups may go on until an operation must complete, or a part of them."""
        if self._completed_at - self.budget <= self._patience:
            return self._patience
        return self._patience * max(sum(len(each.live) for each in self.live_ctas()), 1)

    def _take(self, step: Operation | Store) -> None:
        """Let an operation complete, or a store reach memory."""
        if isinstance(step, Operation):
            self.complete(step)
        elif self.buffers is not None:
            self.buffers.commit(step)

    def _run(self, group: Group, turn: int, number: int = 0, second: int = 0, before: int = -1) -> int:
        """Give a group its turn; one whose turns have no effect may only be polling, and is then suspended. Returns the
        number of blocks that it began.

        Native code may have begun the turn: then the `number` of a record that it has left to Python, whether that is
        in the `second` part of the turn, and the effects `before` the turn.
        """
        if self._interrupted is not None and not self._interrupted.starved(f"{group.cta.name} {group.name}"):
            turn = _TURN
        effects, first = before if number else self.effects, min(turn, group.row[PATIENCE])
        begun = group.run(turn - first if second else first, number)
        if self.budget < self.texts.look_at:
            self.texts.look()
        if self.effects != effects and group.state == READY and first < turn and not second:
            # It does not only poll: it gets the rest of its turn.
            self._withdraw(group)
            self._idle -= 1
            begun += group.run(turn - first)
        if self.effects != effects or group.state != READY:
            group.row[IDLE] = 0
            return begun
        group.row[IDLE] += first
        if group.row[IDLE] >= group.row[PATIENCE]:
            self._examine(group)
        return begun

    def _examine(self, group: Group) -> None:
        """Suspend a group that only polls."""
        self._withdraw(group)
        if self._spins(group):
            self.parked.append(group)
            group.row[IDLE] = 0
        else:
            group.row[PATIENCE] *= 2

    def _runnable(self) -> deque[Group] | ReadyGroups:
        """The groups that can run; those that have had their turn follow after all others."""
        if self.has_stale:
            self.has_stale = False
            for queue in (self.ready, self.spent):
                kept = [group for group in queue if group.state == READY]
                queue.clear()
                queue.extend(kept)
        if not self.spent:
            self._all_ran_at = self._steps
        elif not self.ready or self._steps - self._all_ran_at > _FAIR_STEPS:
            # They come first now, and those that were ready after them.
            others = list(self.ready)
            self.ready.clear()
            self.ready.extend([*self.spent, *others])
            self.spent.clear()
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
        if self.budget < self._floor:
            self._floor = self.rounds.look()
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
        # Few groups that are examined poll: one that does not come back needs no text in which loads are seen.
        if not self._comes_back(group):
            return False
        self.texts.override = self.texts.with_calls  # the loads of native code are not seen
        try:
            return self._comes_back(group)
        finally:
            self.texts.override = None

    def _comes_back(self, group: Group) -> bool:
        before, effects, counts = group.snapshot(), self.effects, list(group.counts)
        with polling((self.memory, *(cta.shared for cta in group.cta.cluster.ctas)), Polled()) as polled:
            for _ in range(_LOOP_BLOCKS):
                budget = self.budget
                group.run(1)
                if group.state != READY or self.effects != effects or self.budget == budget:
                    return False
                self._withdraw(group)
                if group.pc == before[0] and group.snapshot() == before:
                    blocks = [index for index, count in enumerate(counts) if group.counts[index] != count]
                    if deciding(self.program, blocks) is None:
                        break
                    group.polled = polled.words()
                    return True
        self.ready.append(group)
        return False

    def count_local_effect(self) -> None:
        """Count an effect that stays in a cluster: an arrival at a barrier, or a store to shared memory."""
        self.effects += 1
        self.local_effects += 1

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
            woken = [group for group in self.rounds.others(self.parked) if group.sees_change]
            for group in woken:
                self.parked.remove(group)
            self.ready.extend(woken)
            self.rounds.wake()

    @property
    def can_launch(self) -> bool:
        """True if a cluster is left, and there is room for it."""
        return self._next < self._total and len(self.clusters) < self._capacity

    def _has_enough(self) -> bool:
        """True if a random schedule has enough clusters to interleave: others are launched when groups wait or end."""
        return self._turns and len(self.clusters) >= _ENOUGH_CLUSTERS

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
        cluster = self._idle_clusters.pop() if self._idle_clusters else Cluster(self)
        self.clusters.append(cluster)
        self.most_resident = max(self.most_resident, len(self.clusters))
        cluster.begin(index)
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
            self.late.drain(cluster)
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
            own = group.tally(self.executed)
            for warp in range(group.first_warp, group.first_warp + group.warps):
                executed[warp] += own
        if len(self.warps) < _MOST_WARP_STATES:
            self.warps += [WarpState(cta.index, warp, count) for warp, count in enumerate(executed)]

    def submit(self, operation: Operation) -> None:
        """An asynchronous operation was issued."""
        self.effects += 1
        operation.issuer = self.current
        knowledge = operation.cluster.knowledge
        if operation.sight is None and knowledge is not None and operation.issuer is not None:
            operation.sight = knowledge.sight(operation.issuer.number)
        if self.reporter is not None and not operation.issues:
            operation.issues = self.reporter.issue(operation.touches, operation.group)
        mode = operation.cluster.mode
        if (self.eager or mode.immediate) and operation.possible:
            self.complete(operation, listed=False)
            while self.eager and self.flight.possible:
                self.complete(self.flight.possible[0])
            return
        flight = mode.flight
        flight.add(operation)
        operation.cluster.in_flight += 1
        while flight.count > _MOST_IN_FLIGHT and flight.possible:
            self.complete(flight.possible[0])

    def complete(self, operation: Operation, *, listed: bool = True) -> None:
        """Let an operation take effect."""
        self.effects += 1
        cluster = operation.cluster
        flight = cluster.mode.flight
        if listed:
            flight.remove(operation)
        for each in self.rounds:
            each.touched |= each.cluster is cluster
        before, self.current, self.sight = self.current, operation.issuer, operation.sight
        if self.reporter is None:
            operation.run()
        else:
            self.reporter.complete(operation)
        self.current = before
        operation.done = True
        flight.follow(operation)
        for waitable in operation.then:
            waitable.notify()
        if listed:
            cluster.in_flight -= 1

    def discard(self) -> None:
        """Release everything, after a fault too: resident CTAs refer to the grid."""
        for cluster in (*self.clusters, *self._gone, *self._idle_clusters):
            cluster.discard()
        self.memory.watchers.clear()  # an engine's table of buffers refers to the memory, and the memory to it
        vars(self).clear()

    def _sweep(self) -> None:
        """Let the clusters that have ended and have no operation in flight serve later ones."""
        if not self._gone:
            return
        free = [cluster for cluster in self._gone if not cluster.in_flight]
        self._gone = [cluster for cluster in self._gone if cluster.in_flight]
        if self.buffers is None:
            self._idle_clusters += free
            return
        for cluster in free:  # its CTAs stand for the warps whose stores are still buffered
            cluster.discard()

    def _stuck(self) -> bool:
        """Nothing is ready and nothing is under way: the end, a time limit that expires, or a deadlock."""
        if not self.clusters:
            return False
        if self.effects != self._expired_at:
            self._expired_at, self._breaks = self.effects, 0
            self._expiries.begin()
        groups = [group for cta in self.live_ctas() for group in cta.all_groups]
        waiting = [(group, group.waiting) for group in groups if group.state == WAITING and group.waiting is not None]
        expired = [group for group in groups if is_expiring(group) and not self.rounds.has_expired(group)]
        if expired and not self._expiries.recur():
            for group in expired:
                group.token = EXPIRED
                group.wake()
            return True
        for group, what in waiting:
            if (fault := what.fault()) is not None:
                raise placed(self, fault, group, self.op_at(group))
        self._breaks += 1
        if self._breaks <= _BREAKS and any(group.break_join() for group in groups):
            self._expiries.begin()
            return True
        if self.parked and self.effects != self._tried_at:
            # A loop may look at more than one pass of it has read, or depend on the order of the warps.
            if not self.rounds.recur():
                return True
            alone, self._tried_at = self.rounds.others(self.parked), self.effects
            self.ready.extend(alone)
            self.parked = [group for group in self.parked if group not in alone]
            if alone:
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
        instruction, sources = op.instruction, self.program.sources
        found: Source | None = sources.get(id(instruction))
        if found is None or found.instruction is not instruction:
            where = instruction.loc or Loc(self.program.file, instruction.line)
            found = sources[id(instruction)] = Source(where, instruction, self.number_of(op))
        return found

    def number_of(self, op: Op) -> int:
        """The place of an instruction among those of the kernel; -1 for one that is none of them."""
        return self.program.numbers_of_instructions.get(id(op.instruction), -1)

    def _site(self, number: int) -> Site:
        """An instruction by its number, as observers know it."""
        return site(self.program.ops[number], self)

    def _native_sites(self) -> dict[int, NativeSite]:
        """The barriers and copies that native code may execute, by the numbers of their instructions."""
        whole = any(mode.of_whole_ctas is not None for mode in self.modes)
        known = self.program.native_sites
        found: dict[int, NativeSite] | None = known.get((whole, self.usual.immediate))
        if found is None:
            made = {at: native_site(op, self, whole=whole) for at, op in enumerate(self.program.ops)}
            found = {at: site for at, site in made.items() if site is not None}
            known[whole, self.usual.immediate] = found
        return found

    def loc_of(self, op: Op) -> Loc:
        return op.instruction.loc or Loc(self.program.file, op.instruction.line)

    def located(self, error: Exception, group: Group) -> Exception:
        """A fault with its place."""
        return located(self, error, group)


__all__ = ["DONE", "Grid"]
