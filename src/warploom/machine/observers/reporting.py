"""The reporter of a run: makes events and passes them to observers, one by one or in batches.

Events come through three doors. A run with observers binds every meaning in a wrapper (`observers/observation.py`) that
names the agent and reports the accesses and fences that the instruction's row declares. Things with a state (barriers,
groups, TMEM) report their own changes, because they know the phase or the group. The grid reports when an
asynchronous operation is issued and when it completes. Without observers there is no `Reporter`, and no event is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Loc
from warploom.machine.engine.access_log import CHANGES, LANES, MOST_LANES, NEXT, OPERATIONS, WORDS, AccessLog
from warploom.machine.observers.deferred import Again, Agents, Commit, Committed, Deferred, Operations, engine_in
from warploom.machine.observers.events import (
    WORD,
    Agent,
    AnyObserver,
    BarrierName,
    Batch,
    BatchObserver,
    Clash,
    CommitGroup,
    Declared,
    Observer,
    Others,
    Several,
    Site,
    Sites,
    Source,
    Started,
    Touch,
    Touches,
    Triple,
    WarpEvents,
    Warps,
    agent_of,
    warps_of,
)
from warploom.machine.observers.native_events import NativeEvents
from warploom.ptx.syntax.model import Instruction

if TYPE_CHECKING:
    from warploom.machine.core.async_operations import Operation

Array = npt.NDArray[Any]

_new = tuple.__new__  # the constructor of a named tuple takes twice as long
_UNDECLARED = Declared()
_ISSUED, _ISSUED_AT_ONCE = ("issue",), ("issue", "complete")
_NO_ENTRIES = np.zeros((0, WORDS), np.uint64), np.zeros((0, MOST_LANES), np.uint64)
_MOST_OTHERS = 1 << 10
"""Events that wait for their batch."""


class Actor:
    """The agent of the events that are reported next: set by an instruction's wrapper and by an operation's completion.

    A convoy acts as its first warp: bit 32·i + lane of `lanes` is a lane of the i-th warp after it.
    """

    __slots__ = ("agent", "declared", "lanes", "reported", "source")

    def __init__(self, agent: Agent, lanes: int, source: Source, declared: dict[str, Declared]) -> None:
        self.agent, self.lanes, self.source, self.declared = agent, lanes, source, declared
        self.reported: set[str] = set()


class Issued(NamedTuple):
    """An operation as it was reported to observers: the warps that take part, each with its own number from the first
    on.
    """

    number: int
    agents: Sequence[tuple[Agent, int]]
    source: Source
    declared: dict[str, Declared]
    touches: tuple[Touch, ...]
    group: CommitGroup | None


_EXIT: tuple[Any, ...] = (
    Source(Loc("<machine>", 0), Instruction("")), (), _UNDECLARED, None, None, 0, None, 0, True, 0, True,
)  # fmt: skip
"""The other fields of an exit."""
_NOBODY = Actor(Agent((0, 0, 0), -1), 0, _EXIT[0], {})


class Reporter:
    """Makes events and passes them to the observers of a run.

    An event has one warp as its agent. What the warps of a convoy do together becomes one event for each warp, in their
    order, so that observers need not know of convoys.
    """

    def __init__(
        self,
        observers: Iterable[AnyObserver],
        shape: Triple = (1, 1, 1),
        site: Callable[[int], Site] | None = None,
        native: NativeEvents | None = None,
    ) -> None:
        self.observers = tuple(observers)
        self.log: AccessLog | None = None
        """Instructions of native code that were not reported yet."""
        self._shape, self.native = shape, native
        self._sites = Sites(site)
        self._in_batches = [each.on_events for each in self.observers if isinstance(each, BatchObserver)]
        self._single: list[Observer] = [each for each in self.observers if not isinstance(each, BatchObserver)]
        self.completions = any(getattr(each, "needs_completions", True) for each in self.observers)
        """True if the completion of every operation is reported."""
        self._others: list[WarpEvents | Deferred] = []
        self._ends: list[int] = []
        """Events for those that get batches, and the end of the log before each."""
        self._waiting = 0
        """The number of these events, each warp's counted."""
        self.actor = _NOBODY
        self.lanes = 0
        self._operations = 0
        self.meetings = 0
        self._latest_agents: Agents = ()
        self._latest, self._latest_lanes = _NOBODY.agent, 0
        """The agent that acted last, with its lanes, and the same as warps: the events of an instruction share them."""

    def _number(self, count: int) -> int:
        """The number of the first of so many operations that are issued; native code numbers its own in the log."""
        log = self.log
        if log is None:
            first = self._operations + 1
            self._operations += count
        else:
            first = log.words[OPERATIONS] + 1
            log.words[OPERATIONS] = first + count - 1
        return first

    @property
    def takes_rows(self) -> bool:
        """True if accesses may be entries of the log: all observers get batches."""
        return not self._single

    def start(self, started: Started) -> None:
        """Let the observers that ask for it know the launch."""
        for observer in self.observers:
            if (on_start := getattr(observer, "on_start", None)) is not None:
                on_start(started)

    def exits(self, cta: Triple, warp: int, lanes: int) -> None:
        """Tell that lanes of a warp, or of a convoy from it on, have exited."""
        if not self._single:
            agents = Warps(cta, warp, lanes)
            self._keep(WarpEvents("exit", "exits", agents, *_EXIT), len(agents))
            return
        before, narrowed = self.actor, self.lanes
        self.acts(Actor(agent_of(cta, warp), lanes, _NOBODY.source, {}))
        self.tell("exit", "exits")
        self.actor, self.lanes = before, narrowed

    def acts(self, actor: Actor) -> None:
        """Make an actor, with all its lanes, the agent of the next events."""
        self.actor, self.lanes = actor, actor.lanes

    def narrow(self, lanes: int) -> None:
        """Restrict the next events to some of the actor's lanes."""
        self.lanes = lanes

    @property
    def has_full_log(self) -> bool:
        """True if native code cannot enter anything more in its log."""
        return self.log is not None and self.log.is_full

    def flush(self) -> None:
        """Report the accesses of native code since the last event."""
        if not self._others and (self.log is None or self.log.is_empty):
            return
        log, others, ends, number = self.log, self._others, self._ends, self._waiting
        self._others, self._ends, self._waiting = [], [], 0
        begin = 0 if log is None else log.start
        entries, addresses = _NO_ENTRIES if log is None else log.take()
        lanes = np.ascontiguousarray(entries[:, LANES:CHANGES]).view("<u4")
        places, made = np.zeros(0, np.intp), 0
        if self.native is not None:
            places, made = self.native.places(entries)
        if len(places):
            lanes = lanes.copy()
            lanes[places] = 0  # entries without a row

        def batch(given: list[WarpEvents | Deferred], total: int) -> Batch:
            def placed() -> Iterator[tuple[int, WarpEvents | Several]]:
                native = [] if self.native is None else self.native.of(entries, addresses, places, deferred=many)
                # An event after so many entries comes before the entry of that number.
                after = [((end - begin) // (8 * WORDS), each) for end, each in zip(ends, given, strict=False)]
                every = sorted([*after, *native], key=itemgetter(0))
                rows = np.searchsorted(lanes.nonzero()[0], [place for place, _ in every]).tolist()
                return zip(rows, (each for _, each in every), strict=True)

            return Batch(self._sites, Others(total + made, placed), self._shape, entries, addresses, lanes)

        many = bool(self._in_batches)
        if self._in_batches:
            whole = batch(others, number)
            for on_events in self._in_batches:
                on_events(whole)
        if self._single:  # they have had the others
            for event in batch([], 0).events():
                for observer in self._single:
                    observer.on_event(event)

    @property
    def agents(self) -> Agents:
        """The warps that act, each with its lanes."""
        agent, lanes = self.actor.agent, self.lanes
        if self._latest is not agent or self._latest_lanes != lanes:
            self._latest, self._latest_lanes = agent, lanes
            self._latest_agents = ((agent, lanes),) if lanes <= WORD else warps_of(agent, lanes)
        return self._latest_agents

    def tell(
        self,
        kind: str,
        verb: str,
        touches: tuple[Touch, ...] = (),
        *,
        barrier: BarrierName | None = None,
        phase: int | None = None,
        count: int = 0,
        group: CommitGroup | None = None,
        operation: int | None = None,
        passed: bool = True,
        declared: Declared | None = None,
        leave: int = 0,
        changes: bool = True,
        clash: Clash | None = None,
    ) -> None:
        """Make an event of what the actor does; space, scope and semantics are those that its row declares."""
        actor = self.actor
        actor.reported.add(verb)
        if declared is None:
            declared = actor.declared.get(verb, _UNDECLARED)
        number = actor.agent.operation if operation is None else operation
        agents = self.agents
        if verb == "phase":
            agents = agents[-1:]  # the last arrival completes it
        self._report(
            _new(
                WarpEvents,
                (
                    kind, verb, agents, actor.source, touches, declared, barrier, phase, count, group, number, passed,
                    leave, changes, clash,
                ),
            )
        )  # fmt: skip

    def at_barrier(
        self, kind: str, verb: str, barrier: BarrierName, phase: int, count: int, operation: int | None, passed: bool
    ) -> None:
        """The same for an event at an mbarrier."""
        actor, agents = self.actor, self.agents
        actor.reported.add(verb)
        number = actor.agent.operation if operation is None else operation
        if verb == "phase":
            agents = agents[-1:]  # the last arrival completes it
        declared = actor.declared.get(verb, _UNDECLARED)
        self._report(
            _new(
                WarpEvents,
                (
                    kind, verb, agents, actor.source, (), declared, barrier, phase, count, None, number, passed, 0,
                    True, None,
                ),
            )
        )  # fmt: skip

    def _report(self, warp_events: WarpEvents) -> None:
        """Pass events to those that see each of them, and keep them for those that get batches."""
        if not self._single:
            self._keep(warp_events, len(warp_events.agents))
            return
        if self.log is not None and not self.log.is_empty:
            self.flush()
        for event in warp_events.events():
            for observer in self._single:
                observer.on_event(event)
        if self._in_batches:
            self._keep(warp_events, len(warp_events.agents))

    def _keep(self, events: WarpEvents | Deferred, count: int) -> None:
        """Keep so many events for those that get batches, after the present entries of the log."""
        log, others = self.log, self._others
        end = 0 if log is None else log.words[NEXT]
        self._ends.append(end)
        others.append(events)
        self._waiting += count
        # Half of the log is left for the accesses until the next event.
        if len(others) >= _MOST_OTHERS or (log is not None and end >= log.half):
            self.flush()

    def issue(
        self, touches: Touches | Sequence[Touches] | None, group: CommitGroup | None = None
    ) -> tuple[Issued, ...]:
        """Tell that the actor issues an operation; each of several warps has its own part of it.

        `touches` is a list where the warps touch different bytes, with one function for each of them.
        """
        if touches is None or callable(touches):
            return (self._issue(self.agents, () if touches is None else tuple(touches()), group),)
        each = zip(self.agents, touches, strict=False)
        return tuple([self._issue((agent,), tuple(work_out()), group) for agent, work_out in each])

    def issue_one(self, touches: tuple[Touch, ...], group: CommitGroup | None) -> Issued | None:
        """The same for one operation of all warps that act; None if its completion is not reported."""
        issued = self._issue(self.agents, touches, group)
        return issued if self._tells_completion(touches) else None

    def done(self, touches: tuple[Touch, ...], group: CommitGroup | None) -> None:
        """Tell that the actor issues an operation that completes here and now."""
        issued = self.issue_one(touches, group)
        if issued is not None:
            self.effect((issued,), None)

    def again(self, operations: Operations, group: CommitGroup, *, step: int, at_once: bool) -> Again:
        """Tell that agents issue operations, as before, which only read and write; `at_once` if each completes here and
        now. `group` is the first one's; those of the others follow at a distance of `step`.
        """
        number = self._number(operations.count * len(operations.agents))
        made = Again(_ISSUED_AT_ONCE if at_once and self.completions else _ISSUED, operations, group, step, number)
        self._defer(made)
        return made

    def again_committed(self, operations: Operations, group: CommitGroup, source: Source, declared: Declared) -> None:
        """Tell that warps issue operations, as before, and commit them, and that all complete."""
        number = self._number(operations.count * len(operations.agents))
        issued = Again(_ISSUED, operations, group, 0, number)
        self._defer(Committed(issued, (source, declared), completes=self.completions))

    def committed(
        self,
        who: tuple[Agent, int, Source],
        touch: Touch,
        declared: Mapping[str, Declared],
        group: CommitGroup,
        barrier: BarrierName,
        phase: int,
        *,
        ends: bool,
        before: Operations | None = None,
    ) -> None:
        """Tell that a warp commits operations that are complete: it arrives in a phase of a barrier, and may end it.

        It issues those `before`, as before, with the groups just below its own.
        """
        of_events = declared.get("arrives", _UNDECLARED), declared.get("phase", _UNDECLARED)
        if before is None:
            self._defer(Commit(who, touch, of_events, group, barrier, phase, self._number(1), ends=ends))
            return
        parts = before.count * len(before.agents)
        number = self._number(parts + 1)
        first = _new(CommitGroup, (group.kind, group.number - before.count))
        issued = Again(_ISSUED_AT_ONCE if self.completions else _ISSUED, before, first, 1, number)
        self._defer(Commit(who, touch, of_events, group, barrier, phase, number + parts, ends=ends, before=issued))

    def _defer(self, events: Deferred) -> None:
        """Report events that follow each other."""
        if not self._single:
            self._keep(events, events.total)
            return
        for each in events.events():
            self._report(each)

    def _tells_completion(self, touches: tuple[Touch, ...]) -> bool:
        """True if the completion of an operation is reported."""
        if self.completions or not touches:
            return True
        for touch in touches:  # noqa: SIM110  (it is executed for every operation)
            if touch.verb not in ("reads", "writes"):
                return True
        return False

    def _issue(
        self, agents: Sequence[tuple[Agent, int]], touches: tuple[Touch, ...], group: CommitGroup | None
    ) -> Issued:
        actor, number = self.actor, self._number(len(agents))
        for touch in touches:
            actor.reported.add(touch.verb)
        self._report(
            _new(
                WarpEvents,
                (
                    "issue", "operation", agents, actor.source, touches, engine_in(touches), None, None, 0, group,
                    number, True, 0, True, None,
                ),
            )
        )  # fmt: skip
        return _new(Issued, (number, agents, actor.source, actor.declared, touches, group))

    def complete(self, operation: Operation) -> None:
        """An operation takes effect: its engine acts."""
        self.effect(operation.issues, operation.run)

    def at_once(
        self,
        touches: Touches | Sequence[Touches] | None,
        group: CommitGroup | None,
        run: Callable[[], None] | None = None,
    ) -> None:
        """Tell that the actor issues an operation that completes here and now; `run` is its effect."""
        self.effect(self.issue(touches, group), run)

    def performed(self, lane: int, touches: tuple[Touch, ...], count: Callable[[int], None], size: int) -> None:
        """Tell of a copy of one lane that has completed as it was issued; its engine then counts its bytes."""
        before, lanes = self.actor, self.lanes
        self.lanes = 1 << lane
        agent, bits = warps_of(before.agent, 1 << lane)[0]
        self._complete(self._issue(((agent, bits),), touches, None))
        count(size)
        self.actor, self.lanes = before, lanes

    def effect(self, issues: tuple[Issued | Again, ...], run: Callable[[], None] | None) -> None:
        """Tell that operations complete; `run` is their effect, and what it reports is done by their engine."""
        before, lanes = self.actor, self.lanes
        for issued in issues:
            if isinstance(issued, Again):
                if self.completions:
                    self._defer(issued.completed())
            elif self._tells_completion(issued.touches):
                self._complete(issued)
        if run is not None:
            run()
        self.actor, self.lanes = before, lanes

    def _complete(self, issued: Issued) -> None:
        number, agents, source, declared, touches, group = issued
        if len(agents) == 1:
            ((agent, lanes),) = agents
            engines: tuple[tuple[Agent, int], ...] = ((_new(Agent, (agent.cta, agent.warp, number)), lanes),)
        else:
            engines = tuple(
                [(_new(Agent, (agent.cta, agent.warp, number + at)), lanes) for at, (agent, lanes) in enumerate(agents)]
            )
        # What the operations do next counts as the last one's.
        last, lanes = engines[-1]
        self.acts(Actor(last, lanes, source, declared))
        self.actor.reported.add("operation")
        self._report(
            _new(
                WarpEvents,
                (
                    "complete", "operation", engines, source, touches, engine_in(touches), None, None, 0, group, number,
                    True, 0, True, None,
                ),
            )
        )  # fmt: skip
