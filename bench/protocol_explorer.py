"""All executions of a small protocol, by an interpreter of its own: it shares no code with the checker or the emulator.

Memory is weak. Each location has the list of its writes in coherence order, and each warp a *view*: for each location
the oldest write that it may still see, once for generic accesses and once for the async proxy. A read returns any write
from there on, and a write takes any place after it; so a write that nothing publishes may reach another warp late, or
come before a write that was executed earlier. Plain loads are performed as late as possible, that is when the warp
releases, writes the same location, or ends. Releases hand over the view and acquires take it; `fence.proxy.async` makes
what generic accesses may see the view of the async proxy. An asynchronous operation acts at any time after its issue,
with the view of its issuer at that time, and its completion hands over that view with its own writes.

The search goes through every choice and every interleaving, and ends as soon as two executions differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from protocols import Act, Protocol, initial

View = tuple[int, ...]
"""The oldest write that may be read, for each location: first for generic accesses, then for the async proxy."""
Message = tuple[View | None, View | None]
"""The views that a write hands over: to readers of its own CTA, and to those of others."""
_NOTHING: Message = (None, None)


class Warp(NamedTuple):
    """The state of a warp."""

    at: int
    view: View
    late: tuple[tuple[int, int, int], ...] = ()
    """Plain loads that are not performed: (record, location, oldest write)."""
    fenced: Message = _NOTHING
    """Views that a fence has made ready for relaxed stores."""
    seen: Message = _NOTHING
    """Views that relaxed loads have found: of its own CTA, and of others."""
    waits: int = -1
    """The named barrier at which it waits."""
    bulk: int = 0
    copies: int = 0
    """Groups committed."""


class Mbarrier(NamedTuple):
    ready: bool
    pending: int
    bytes: int = 0
    phase: int = 0
    view: View | None = None
    """Contributions to the present phase."""
    last: View | None = None
    """Those to the one before."""


class Flight(NamedTuple):
    """An asynchronous operation that has not completed."""

    act: Act
    number: int
    warp: int
    group: int
    view: View
    value: int = -1
    """The value that a store to global memory has read; -1 before."""


class State(NamedTuple):
    warps: tuple[Warp, ...]
    writes: tuple[tuple[int, ...], ...]
    """The writes of each location, in coherence order."""
    values: tuple[tuple[int, int], ...]
    """The values of asynchronous writes and atomics, by write."""
    messages: tuple[tuple[int, Message], ...]
    barriers: tuple[Mbarrier, ...]
    meetings: tuple[tuple[int, int, int, View | None], ...]
    """Named barriers with arrivals: (CTA, name, warps that came, view)."""
    flights: tuple[Flight, ...]
    done: tuple[tuple[int, str, int, View], ...]
    """Views of completed operations: (warp, kind, group, view)."""
    records: tuple[tuple[int, int], ...]
    chained: frozenset[int]
    """Atomics, which nothing may be put in front of."""


class Result(NamedTuple):
    """The executions of a protocol.

    `failure` is how one of them fails: "hang", "fault: …" or "unbalanced"; `differs` says that locations without strong
    accesses have several outcomes, `differs_strongly` that any have.
    """

    failure: str
    differs: bool
    differs_strongly: bool
    states: int
    is_complete: bool

    @property
    def is_wrong(self) -> bool:
        return bool(self.failure) or self.differs


class _Fault(Exception):
    pass


class Explorer:
    """The search through the executions of one protocol."""

    def __init__(self, protocol: Protocol, most: int = 20_000) -> None:
        self.protocol, self.most = protocol, most
        self.count = protocol.locations
        self.numbers = []
        number = self.count
        self.stored = {at: initial(at) for at in range(self.count)}
        for acts in protocol.warps:
            first = number
            number += len(acts)
            self.numbers.append(first)
            self.stored.update({first + at: act.value for at, act in enumerate(acts) if act.verb in ("st", "atom")})
        self.strong = {
            act.at
            for acts in protocol.warps
            for act in acts
            if act.verb in ("atom", "poll") or (act.verb in ("st", "ld") and act.sem)
        }

    def start(self) -> State:
        view = tuple(range(self.count)) * 2
        barriers = tuple(Mbarrier(at not in self.protocol.late, count) for at, count in enumerate(self.protocol.counts))
        return State(
            tuple(Warp(0, view) for _ in self.protocol.warps), tuple((at,) for at in range(self.count)), (), (),
            barriers, (), (), (), (), frozenset(),
        )  # fmt: skip

    def explore(self) -> Result:
        """Search until two executions differ, one fails, or all are known."""
        seen, ahead = set[State](), [self.start()]
        plain: object = None
        whole: object = None
        strongly = False
        while ahead:
            state = ahead.pop()
            if state in seen:
                continue
            if len(seen) >= self.most:
                return Result("", False, strongly, len(seen), False)
            seen.add(state)
            try:
                after = list(self.steps(state))
            except _Fault as fault:
                return Result(f"fault: {fault}", False, strongly, len(seen), True)
            if after and not self.may_miss(state):
                ahead += after
                continue
            if not self.is_over(state):
                return Result("hang", False, strongly, len(seen), True)
            if any(barrier.bytes for barrier in state.barriers):
                return Result("unbalanced", False, strongly, len(seen), True)
            few, all_of_it = self.outcome(state)
            if plain is not None and few != plain:
                return Result("", True, True, len(seen), True)
            strongly |= whole is not None and all_of_it != whole
            plain, whole = few, all_of_it
        return Result("", False, strongly, len(seen), True)

    def may_miss(self, state: State) -> bool:
        """True if nothing moves but polls, and none of them finds what it polls for in the latest write."""
        if state.flights:
            return False
        polling = False
        for number, warp in enumerate(state.warps):
            acts = self.protocol.warps[number]
            if warp.waits >= 0 or (warp.at >= len(acts) and not warp.late):
                continue
            act = acts[warp.at] if warp.at < len(acts) else None
            if act is None or act.verb not in ("poll", "wait"):
                return False
            if act.verb == "wait":
                if self.passes(state, act):
                    return False
            elif self.value(state, state.writes[act.at][-1]) == act.value:
                return False
            else:
                polling = True
        return polling

    def is_over(self, state: State) -> bool:
        pairs = zip(state.warps, self.protocol.warps, strict=True)
        return all(warp.at >= len(acts) and warp.waits < 0 and not warp.late for warp, acts in pairs)

    def outcome(self, state: State) -> tuple[object, object]:
        """The values that were read, and those that memory holds: without the locations of strong accesses, and with them."""
        ends = [(at, self.value(state, state.writes[at][-1])) for at in range(self.count)]
        places = {
            first + at: act.at
            for first, acts in zip(self.numbers, self.protocol.warps, strict=True)
            for at, act in enumerate(acts)
        }
        plain = [pair for pair in ends if pair[0] not in self.strong]
        read = [pair for pair in sorted(state.records) if places[pair[0]] not in self.strong]
        return (tuple(plain), tuple(read)), (tuple(ends), tuple(sorted(state.records)))

    # Views.

    def value(self, state: State, write: int) -> int:
        found = self.stored.get(write)
        return found if found is not None else dict(state.values)[write]

    def join(self, state: State, one: View | None, other: View | None, *, generic_only: bool = False) -> View:
        if one is None or other is None or one == other:
            joined = one if other is None else other if one is None else one
            assert joined is not None
            return joined
        count, out = self.count, list(one)
        for at in range(count if generic_only else 2 * count):
            if out[at] != other[at]:
                order = state.writes[at % count]
                if order.index(other[at]) > order.index(out[at]):
                    out[at] = other[at]
        return tuple(out)

    def raised(self, state: State, view: View, at: int, write: int, *, proxy: bool) -> View:
        """A view that knows a write."""
        out = list(view)
        for place in (at, at + self.count) if proxy else (at,):
            order = state.writes[at]
            if order.index(write) > order.index(out[place]):
                out[place] = write
        return tuple(out)

    def readable(self, state: State, at: int, oldest: int) -> tuple[int, ...]:
        order = state.writes[at]
        return order[order.index(oldest) :]

    def written(self, state: State, at: int, oldest: int, write: int) -> Iterator[State]:
        """The location with a write at any place after the oldest that its author sees."""
        order = state.writes[at]
        for place in range(order.index(oldest) + 1, len(order) + 1):
            if place < len(order) and order[place] in state.chained:
                continue
            changed = (*order[:place], write, *order[place:])
            yield state._replace(writes=(*state.writes[:at], changed, *state.writes[at + 1 :]))

    # Steps.

    def steps(self, state: State) -> Iterator[State]:
        for number, warp in enumerate(state.warps):
            if warp.waits >= 0:
                continue
            acts = self.protocol.warps[number]
            if warp.at < len(acts):
                yield from self.act(state, number, acts[warp.at])
            elif warp.late:
                yield from self.performed(state, number, warp.late)
        for at, flight in enumerate(state.flights):
            yield from self.fly(state, at, flight)

    def performed(self, state: State, number: int, loads: tuple[tuple[int, int, int], ...]) -> Iterator[State]:
        """Late loads read, each any write that it may see."""
        warp = state.warps[number]
        choices = [self.readable(state, at, oldest) for _, at, oldest in loads]
        for writes in product(*choices):
            view, records = warp.view, list(state.records)
            for (record, at, _), write in zip(loads, writes, strict=True):
                view = self.raised(state, view, at, write, proxy=False)
                records.append((record, self.value(state, write)))
            left = tuple(load for load in warp.late if load not in loads)
            changed = warp._replace(view=view, late=left)
            yield self.with_warp(state, number, changed)._replace(records=tuple(sorted(records)))

    def with_warp(self, state: State, number: int, warp: Warp) -> State:
        return state._replace(warps=(*state.warps[:number], warp, *state.warps[number + 1 :]))

    def act(self, state: State, number: int, act: Act) -> Iterator[State]:
        """The next action of a warp."""
        warp = state.warps[number]
        if act.verb in _RELEASING or act.sem in ("release", "acq_rel"):
            forced = warp.late
        elif act.verb in ("st", "atom"):
            forced = tuple(load for load in warp.late if load[1] == act.at)
        else:
            forced = ()
        if act.verb == "wait" and not self.passes(state, act):
            return
        if forced:
            for each in self.performed(state, number, forced):
                yield from self.do(each, number, act)
        else:
            yield from self.do(state, number, act)

    def passes(self, state: State, act: Act) -> bool:
        barrier = state.barriers[act.barrier]
        if not barrier.ready:
            raise _Fault("a barrier is used before its initialisation")
        return (barrier.phase & 1) != act.value

    def do(self, state: State, number: int, act: Act) -> Iterator[State]:
        warp = state.warps[number]
        cta, write = self.protocol.ctas[number], self.numbers[number] + warp.at
        ahead = warp._replace(at=warp.at + 1)
        count = self.count
        match act.verb:
            case "ld" if not act.sem:
                late = (*warp.late, (write, act.at, warp.view[act.at]))
                yield self.with_warp(state, number, ahead._replace(late=late))
            case "ld" | "poll":
                for read in self.readable(state, act.at, warp.view[act.at]):
                    value = self.value(state, read)
                    if act.verb == "poll" and value != act.value:
                        continue
                    after = self.received(state, ahead, cta, act, read)
                    found = self.with_warp(state, number, after)
                    if act.verb == "ld":
                        found = found._replace(records=tuple(sorted((*state.records, (write, value)))))
                    yield found
            case "st":
                yield from self.store(state, number, ahead, act, write)
            case "atom":
                read = state.writes[act.at][-1]
                after = self.received(state, ahead, cta, act, read)
                for placed in self.written(state, act.at, read, write):
                    view = self.raised(placed, after.view, act.at, write, proxy=False)
                    message = self.message(placed, after._replace(view=view), act)
                    old = dict(state.messages).get(read, _NOTHING)
                    message = tuple(
                        a if b is None else b if a is None else self.join(placed, a, b)
                        for a, b in zip(message, old, strict=True)
                    )  # type: ignore[assignment]
                    yield self.with_warp(placed, number, after._replace(view=view))._replace(
                        messages=tuple(sorted((*placed.messages, (write, message)))),
                        records=tuple(sorted((*placed.records, (write, self.value(placed, read))))),
                        chained=placed.chained | {write},
                    )
            case "fence":
                near, far = warp.seen
                view = warp.view if near is None else self.join(state, warp.view, near)
                if act.scope != "cta" and far is not None:
                    view, far = self.join(state, view, far), None
                fenced = (view, warp.fenced[1] if act.scope == "cta" else view)
                yield self.with_warp(state, number, ahead._replace(view=view, seen=(None, far), fenced=fenced))
            case "proxy":
                out = list(warp.view)
                for at in range(count):
                    order = state.writes[at]
                    if order.index(out[at]) > order.index(out[at + count]):
                        out[at + count] = out[at]
                yield self.with_warp(state, number, ahead._replace(view=tuple(out)))
            case "bar" | "bar_arrive":
                yield self.meet(state, number, act)
            case "init":
                ready = state.barriers[act.barrier]._replace(ready=True)
                yield self.with_barrier(self.with_warp(state, number, ahead), act.barrier, ready)
            case "arrive" | "expect":
                view = None if act.sem == "relaxed" else warp.view
                moved = self.with_warp(state, number, ahead)
                more = act.value if act.verb == "expect" else 0
                yield self.contributed(moved, act.barrier, view, arrivals=1, expected=more)
            case "wait":
                last = state.barriers[act.barrier].last
                view = warp.view if act.sem == "relaxed" or last is None else self.join(state, warp.view, last)
                yield self.with_warp(state, number, ahead._replace(view=view))
            case "load" | "store" | "cp" | "cp_arrive":
                group = warp.copies if act.verb.startswith("cp") else warp.bulk
                flight = Flight(act, write, number, group, warp.view)
                moved = self.with_warp(state, number, ahead)
                yield moved._replace(flights=tuple(sorted((*state.flights, flight))))
            case "commit":
                yield self.with_warp(state, number, ahead._replace(bulk=warp.bulk + 1))
            case "cp_commit":
                yield self.with_warp(state, number, ahead._replace(copies=warp.copies + 1))
            case "bulk_wait" | "cp_wait":
                yield from self.drained(state, number, ahead, act)

    def received(self, state: State, warp: Warp, cta: int, act: Act, read: int) -> Warp:
        """A warp after a strong load of a write."""
        view = self.raised(state, warp.view, act.at, read, proxy=False)
        near, far = dict(state.messages).get(read, _NOTHING)
        author = self.author(read)
        if author is None:
            return warp._replace(view=view)
        is_near = self.protocol.ctas[author] == cta
        message = near if is_near else far if act.scope != "cta" else None
        if message is None:
            return warp._replace(view=view)
        if act.sem in ("acquire", "acq_rel"):
            return warp._replace(view=self.join(state, view, message))
        seen = list(warp.seen)
        place = 0 if is_near else 1
        old = seen[place]
        seen[place] = message if old is None else self.join(state, old, message)
        return warp._replace(view=view, seen=(seen[0], seen[1]))

    def author(self, write: int) -> int | None:
        """The warp of a write."""
        if write < self.count:
            return None
        return max(at for at, first in enumerate(self.numbers) if first <= write)

    def message(self, state: State, warp: Warp, act: Act) -> Message:
        """The views that a strong store hands over."""
        near, far = (warp.view, warp.view) if act.sem in ("release", "acq_rel") else warp.fenced
        return near, None if act.scope == "cta" else far

    def store(self, state: State, number: int, ahead: Warp, act: Act, write: int) -> Iterator[State]:
        for placed in self.written(state, act.at, ahead.view[act.at], write):
            view = self.raised(placed, ahead.view, act.at, write, proxy=False)
            after = ahead._replace(view=view)
            moved = self.with_warp(placed, number, after)
            if act.sem:
                pair = (write, self.message(placed, after, act))
                moved = moved._replace(messages=tuple(sorted((*placed.messages, pair), key=lambda each: each[0])))
            yield moved

    def meet(self, state: State, number: int, act: Act) -> State:
        """A warp comes to a named barrier."""
        warp, cta = state.warps[number], self.protocol.ctas[number]
        others = [each for each in state.meetings if each[:2] != (cta, act.barrier)]
        mine = next((each for each in state.meetings if each[:2] == (cta, act.barrier)), None)
        came, view = (1, warp.view) if mine is None else (mine[2] + 1, self.join(state, warp.view, mine[3]))
        warp = warp._replace(waits=act.barrier) if act.verb == "bar" else warp._replace(at=warp.at + 1)
        state = self.with_warp(state, number, warp)
        if came < act.value:
            return state._replace(meetings=tuple(sorted([*others, (cta, act.barrier, came, view)])))
        warps = []
        for at, each in enumerate(state.warps):
            if each.waits == act.barrier and self.protocol.ctas[at] == cta:
                warps.append(each._replace(at=each.at + 1, waits=-1, view=self.join(state, each.view, view)))
            else:
                warps.append(each)
        return state._replace(warps=tuple(warps), meetings=tuple(others))

    def with_barrier(self, state: State, at: int, barrier: Mbarrier) -> State:
        return state._replace(barriers=(*state.barriers[:at], barrier, *state.barriers[at + 1 :]))

    def contributed(
        self, state: State, at: int, view: View | None, *, arrivals: int = 0, expected: int = 0, completed: int = 0
    ) -> State:
        """A barrier after a contribution."""
        barrier = state.barriers[at]
        if not barrier.ready:
            raise _Fault("a barrier is used before its initialisation")
        if barrier.pending < arrivals:
            raise _Fault("more arrivals than a phase expects")
        if view is not None:
            view = view if barrier.view is None else self.join(state, barrier.view, view)
        else:
            view = barrier.view
        pending, left = barrier.pending - arrivals, barrier.bytes + expected - completed
        if pending or left:
            return self.with_barrier(state, at, barrier._replace(pending=pending, bytes=left, view=view))
        count = self.protocol.counts[at]
        return self.with_barrier(state, at, Mbarrier(True, count, 0, barrier.phase + 1, None, view))

    def drained(self, state: State, number: int, ahead: Warp, act: Act) -> Iterator[State]:
        """A wait for groups, if they are done."""
        copies = act.verb == "cp_wait"
        kind = "cp" if copies else "store"
        most = (ahead.copies if copies else ahead.bulk) - act.value
        for flight in state.flights:
            if flight.warp == number and flight.act.verb == kind and flight.group < most:
                if act.sem == "read" and flight.value >= 0:
                    continue
                return
        view = ahead.view
        if act.sem != "read":
            for warp, what, group, known in state.done:
                if warp == number and what == kind and group < most:
                    view = self.join(state, view, known, generic_only=copies)
        yield self.with_warp(state, number, ahead._replace(view=view))

    def fly(self, state: State, at: int, flight: Flight) -> Iterator[State]:
        """An asynchronous operation acts."""
        act, count = flight.act, self.count
        rest = (*state.flights[:at], *state.flights[at + 1 :])
        base = state._replace(flights=rest)
        match act.verb:
            case "cp_arrive":
                if any(
                    each.act.verb == "cp" and each.warp == flight.warp and each.number < flight.number for each in rest
                ):
                    return
                view = flight.view
                for warp, what, _, known in state.done:
                    if warp == flight.warp and what == "cp":
                        view = self.join(state, view, known, generic_only=True)
                yield self.contributed(base, act.barrier, view, arrivals=1)
            case "store" if flight.value < 0:
                for read in self.readable(state, act.source, flight.view[act.source + count]):
                    going = flight._replace(value=self.value(state, read))
                    yield base._replace(flights=tuple(sorted((*rest, going))))
            case "store":
                yield from self.landed(base, flight, act.at, flight.view[act.at + count], flight.value)
            case "load":
                for read in self.readable(state, act.source, flight.view[act.source + count]):
                    value = self.value(state, read)
                    for placed in self.landed(base, flight, act.at, flight.view[act.at + count], value):
                        view = self.raised(placed, flight.view, act.at, flight.number, proxy=True)
                        yield self.contributed(placed, act.barrier, view, completed=16)
            case _:
                for read in self.readable(state, act.source, flight.view[act.source]):
                    yield from self.landed(base, flight, act.at, flight.view[act.at], self.value(state, read))

    def landed(self, state: State, flight: Flight, at: int, oldest: int, value: int) -> Iterator[State]:
        """The memory after the write of an asynchronous operation."""
        proxy = flight.act.verb != "cp"
        for placed in self.written(state, at, oldest, flight.number):
            known = self.raised(placed, flight.view, at, flight.number, proxy=proxy)
            done = (flight.warp, flight.act.verb, flight.group, known)
            yield placed._replace(
                values=tuple(sorted((*placed.values, (flight.number, value)))),
                done=tuple(sorted((*placed.done, done))),
            )


_RELEASING = frozenset({"bar", "bar_arrive", "fence", "proxy", "load", "store", "cp", "cp_arrive"})
"""Actions before which earlier loads of the warp are performed; to issue an operation is one."""


def explored(protocol: Protocol, most: int = 20_000) -> Result:
    """The executions of a protocol."""
    return Explorer(protocol, most).explore()
