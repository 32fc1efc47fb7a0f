"""Accesses to memory: each is judged against the shadow of the bytes that it touches.

Strong accesses also synchronise through their location: what a releasing store or atomic published there is taken over
by an acquiring load that follows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.checker.codes import CODES
from warploom.checker.collecting import Findings
from warploom.checker.model.agents import Agents, Lanes, Seen, Sync, Warp
from warploom.checker.model.barriers import Mbarriers
from warploom.checker.model.clocks import PG, Clock, Components, G, P, Rows, T, Triple
from warploom.checker.model.layouts import Layouts
from warploom.checker.model.observations import Observations
from warploom.checker.model.releases import borrows, given_by, make_ready, publish, smaller, take
from warploom.checker.model.shadow import BLIND, PASSED_OVER, PASSED_READ, Access, Shadow, Sight, span_of
from warploom.checker.report import Finding
from warploom.checker.rules import Problem, Rules
from warploom.hardware.threads import WARP_LANES
from warploom.hardware.tmem import COLUMNS
from warploom.machine.observers.events import Clash, Event, Placed, Started, Touch

if TYPE_CHECKING:
    from warploom.checker.redundancy import Orders
    from warploom.checker.unused_reads import Uses

Array = npt.NDArray[Any]
STRONG = frozenset({"release", "acquire", "relaxed", "volatile", "mmio", "mmio.relaxed", "acq_rel"})
"""The semantics of strong accesses that are not atomic updates."""


def is_strong(semantics: str) -> bool:
    """True for the semantics of a strong access."""
    return semantics in STRONG or semantics.startswith("atomic")


GlobalTouch = tuple["Access", "Array", int]
"""An access to global memory: its addresses, and the bytes at each."""
_PRIVATE = frozenset({"param", "const", "local", "register"})
_OFFSET = 0xFFFFFF
_CTA_BITS, _GLOBAL_BITS = 18, 16
_WORD = 4
_MOST_DISORDERED = 1 << 12


class Unjudged(Exception):
    """An access to global memory meets one that was passed over: every event must be judged."""


class _Array:
    """The shadow of an array in global memory; while it is only read, the reads are just listed."""

    __slots__ = ("is_read", "passed_over", "reads", "shadow")

    def __init__(self) -> None:
        self.reads: list[GlobalTouch] | None = []
        self.shadow = Shadow(_GLOBAL_BITS, recurring=False)
        self.is_read = False
        self.passed_over = False
        """True if reads were not listed."""


class Memories:
    """The shadows of all memories of a launch."""

    def __init__(self, agents: Agents, rules: Rules, findings: Findings, layouts: Layouts, barriers: Mbarriers) -> None:
        self._agents, self._rules, self._findings, self._layouts = agents, rules, findings, layouts
        self._barriers = barriers
        self.of_ctas: dict[tuple[str, Triple | None], Shadow] = {}
        self._arrays: dict[int, _Array] = {}
        self._placed: tuple[Placed, ...] = ()
        self._bases: list[int] = []
        self._observations = Observations()
        self._published: dict[tuple[str, Triple | None, int], dict[tuple[str, Triple], dict[Triple, Rows]]] = {}
        """Knowledge released to a location, by the scope of the release and its CTA."""
        self.polled = 0
        self.orders: Orders | None = None
        """The paths that order accesses, where they are asked for."""
        self.steering: frozenset[int] = frozenset()
        """Instructions whose results decide what the kernel does next."""
        self.awaited: frozenset[int] = frozenset()
        """Strong loads whose results decide whether to wait, and nothing else."""
        self.readers: frozenset[int] = frozenset()
        """Atomics that leave what they find."""
        self.unordered: set[int] = set()
        """Strong accesses, by instruction, that are not ordered with another access to the same bytes."""
        self._awaited: set[tuple[str, Triple | None, int]] = set()
        """Locations whose value threads wait for."""
        self._disordered: list[tuple[str, Triple | None, Array, Access, Access]] = []
        """Strong stores that nothing orders after an earlier strong access to the same place."""
        self._polls: dict[Warp, list[tuple[Access, bytes]]] = {}
        """The latest strong read of each warp, with its addresses."""
        self.overlaps: dict[tuple[int, int], tuple[Access, Access, tuple[int, int]]] = {}
        """Stores of equal values to one address by two CTAs."""
        self.recorded: list[GlobalTouch] | None = None
        """The accesses to global memory, where they are asked for."""
        self._stored: set[tuple[int, Triple, int]] = set()
        """Stores by number, CTA and warp."""
        self._perhaps_unused: list[tuple[Problem, Access, Access, Lanes, tuple[int, int]]] = []
        """Writes after reads of global memory by other warps of the CTA, whose values may be used for nothing."""

    def start(self, started: Started) -> None:
        self._placed = tuple(sorted(started.arrays, key=lambda array: array.base))
        self._bases = [array.base for array in self._placed]

    def access(self, event: Event, warp: Warp) -> None:
        """A load, a store or an atomic of some lanes."""
        if event.space in _PRIVATE:
            return
        semantics, writes = event.semantics, event.verb == "writes"
        strong, incoherent = is_strong(semantics), not writes and ".nc" in event.source.instruction.opcode
        if strong and not writes and self._published and event.source.number in self.steering:
            self._part_readers(event, warp)
        parts = self._agents.act(warp, event.lanes)
        if writes:
            self._stored.add((event.source.number, warp.cta, warp.number))
        clash = event.clash
        if clash is not None and clash.one != clash.other:
            self._clash(event, event.touches[0], warp, clash)
        polls = list[tuple[Access, bytes]]()
        for part in parts:
            for touch in event.touches:
                own = touch if part.mask & event.lanes == event.lanes else _of_lanes(touch, event.lanes, part.mask)
                access = Access(
                    event.source, warp.cta, warp.number, part.mask & event.lanes, writes, touch.space,
                    touch.proxy or "generic", warp.components, part.component, warp.time,
                )  # fmt: skip
                access.changes, access.rounds = event.changes, clash is not None and clash.across
                access.incoherent = incoherent
                alone = not strong and ".sync" not in event.source.instruction.opcode  # not one access of the warp
                if touch.space == "shared" and alone and len(own.addresses) in (1, access.lanes.bit_count()):
                    access.addresses, access.width = own.addresses, own.width
                    if part.partial or access.lanes & access.lanes - 1:
                        access.limits, access.met = {**part.partial, part.component: part.whole}, part.met
                if strong:
                    access.scope = event.scope or "sys"
                    self._look_back(own, access, part)  # with what is known before this access acquires anything
                    self._synchronise(event, own, part, warp, writes=writes)
                    polls.append((access, own.addresses.tobytes()))
                self.touch(own, access, part, part.clock)
        if polls and not writes:
            self._repeat(warp, polls)

    def _clash(self, event: Event, touch: Touch, warp: Warp, clash: Clash) -> None:
        """Two lanes store different values to one address with one instruction: which one remains is undefined."""
        if is_strong(event.semantics):  # they do not race, but which value a thread finds is open
            self._rules.assumed["strong-order"] += 1
            access = Access(
                event.source, warp.cta, warp.number, event.lanes, writes=True, space=touch.space, proxy="generic",
                components=warp.components, component=0, value=warp.time,
            )  # fmt: skip
            self._disordered.append((touch.space, touch.cta, touch.addresses, access, access))
            return
        if clash.rounds:
            self._rules.relaxed["replica-rounding"] += 1
        if not (clash.rounds and self._rules.lenient):
            self.lane_race(event, touch, warp, clash)

    def lane_race(self, event: Event, touch: Touch, warp: Warp, clash: Clash) -> None:
        """Add the finding that two lanes write different values to one address with one instruction."""
        parties = []
        for lane in (clash.one, clash.other):
            access = Access(
                event.source, warp.cta, warp.number, 1 << lane, writes=True, space=touch.space, proxy=touch.proxy,
                components=warp.components, component=0, value=warp.time,
            )  # fmt: skip
            access.asynchronous = event.kind == "issue"
            at = min((event.lanes & (1 << lane) - 1).bit_count(), len(touch.addresses) - 1)
            own = touch._replace(addresses=touch.addresses[at : at + 1])
            parties.append(self._findings.access(access, span_of(own)))
        text = (
            f"Lanes {clash.one} and {clash.other} of a warp write different values to one address with one "
            "instruction, and it is undefined which of them remains."
        )
        missing, excuse = (
            "one lane that writes, or an address for each lane",
            "replica-rounding" if clash.rounds else "",
        )
        self._findings.add("LANE_RACE", text, tuple(parties), missing=missing, excused_by=excuse)

    def _look_back(self, touch: Touch, new: Access, part: Lanes) -> None:
        """Note strong accesses that earlier ones are not ordered with: what they find may differ. A load that comes
        after a strong store in execution, and need not see it, is a finding.
        """
        region, shadow = self._region(touch, new)
        if shadow is None:
            return
        number, updates = new.source.number, new.writes or _is_atomic(new)
        if updates and number not in self.readers and len(np.unique(touch.addresses)) < new.lanes.bit_count():
            self.unordered.add(number)  # nothing orders the lanes of one instruction
            self._rules.assumed["strong-order"] += new.source.instruction.opcode.startswith("atom")
        is_data = not new.writes and (not updates or number in self.readers) and number not in self.awaited
        latest = shadow.writers(region) if is_data else []
        for old in shadow.earlier(region):
            if not old.scope or not (old.writes or updates):
                continue
            is_stored = is_data and old in latest and old.changes
            if number in self.unordered and old.source.number in self.unordered and not is_stored:
                continue
            if self._rules.is_ordered(old, new, part.clock):
                continue
            self.unordered.update((old.source.number, number))
            if is_stored and not self._is_found(touch, old, new, part.clock):
                problem = self._rules.stale(old, new, part.clock, (each.clock for each in part.seen))
                if problem is not None:
                    self._findings.race(problem, old, new, part, span_of(touch))

    def _region(self, touch: Touch, access: Access) -> tuple[list[int], Shadow | None]:
        """The bytes of an access, and their shadow; none where they were never written."""
        if touch.space == "global":
            array = self._array_at(int(touch.addresses[0]))
            if array.reads is not None:
                if not access.writes:
                    return [], None
                self._begin_writes(array)
            return array.shadow.region(touch.addresses, touch.width), array.shadow
        shadow = self.of_ctas.get((touch.space, touch.cta))
        return ([], None) if shadow is None else (shadow.region(_linear(touch), touch.width), shadow)

    def _repeat(self, warp: Warp, polls: list[tuple[Access, bytes]]) -> None:
        """Note strong reads; those before are repeated if the warp's last action was the same instruction there."""
        again = {(new.source.number, addresses) for new, addresses in polls}
        for old, addresses in self._polls.get(warp, ()):
            old.repeated |= old.value == warp.time - 1 and (old.source.number, addresses) in again
        self._polls[warp] = polls

    def touch(self, touch: Touch, access: Access, part: Lanes, clock: Clock) -> None:
        """Judge an access to some bytes, and keep it."""
        if not len(touch.addresses):
            return
        if touch.space == "global":
            self._touch_array(touch, access, part, clock)
            return
        shadow = self.of_ctas.get((touch.space, touch.cta))
        if shadow is None:
            shadow = self.of_ctas[touch.space, touch.cta] = Shadow(_CTA_BITS, recurring=True)
        region = shadow.region_of(touch, _linear) if access.asynchronous else shadow.region(_linear(touch), touch.width)
        fresh, pairs = shadow.access(region, access, self._sight(access, clock))
        for old, own in pairs:
            self._judge(touch, part, clock, old, access, own)
        if fresh and not (touch.space == "shared" and "f8f6f4" in access.source.instruction.opcode):
            # Operands of 4 and 6 bits have gaps, which are not read.
            party = self._findings.access(access, span_of(touch))
            text = f"A read of {'TMEM' if touch.space == 'tensor' else 'shared memory'} that nothing has written."
            self._findings.add("UNINITIALISED", text, (party,), missing="a write of these bytes")
        if touch.layout is not None and not access.writes:
            self._layouts.compare(touch, access, shadow, region)

    def sees(self, touch: Touch, access: Access, clock: Clock) -> bool:
        """True if a read of shared memory that was kept is in order for another agent with this knowledge too."""
        if touch.space != "shared" or access.writes or self.orders is not None:
            return False
        shadow = self.of_ctas.get((touch.space, touch.cta))
        if shadow is None:
            return False
        return shadow.is_seen(shadow.region_of(touch, _linear), access, self._sight(access, clock))

    def _touch_array(self, touch: Touch, access: Access, part: Lanes, clock: Clock) -> None:
        if self.recorded is not None:
            self.recorded.append((access, touch.addresses, touch.width))
        array = self._array(touch.addresses, touch.width, access)
        if array is not None:
            region = array.shadow.region(touch.addresses, touch.width)
            for old, own in array.shadow.access(region, access, self._sight(access, clock))[1]:
                self._judge(touch, part, clock, old, access, own)

    def _array(self, addresses: Array, width: int, access: Access) -> _Array | None:
        """The array of an access that has to be judged; None for a read of one that was only read."""
        array = self._array_at(int(addresses[0]))
        array.is_read |= not access.writes
        if array.reads is not None and not access.writes:
            array.reads.append((access, addresses, width))
            return None
        self._begin_writes(array)
        return array

    def _array_at(self, address: int) -> _Array:
        at = bisect_right(self._bases, address) - 1
        inside = at >= 0 and address < self._placed[at].base + self._placed[at].size
        base = self._placed[at].base if inside else -1 - (address >> 24)
        array = self._arrays.get(base)
        if array is None:
            array = self._arrays[base] = _Array()
        return array

    def _begin_writes(self, array: _Array) -> None:
        """An array is no longer only read."""
        if array.reads is not None:
            if array.passed_over:
                raise Unjudged
            for old, before, size in array.reads:
                array.shadow.access(array.shadow.region(before, size), old)
            array.reads = None

    def pass_over(self, addresses: Array, width: int, *, writes: bool) -> None:
        """Take note of an access to global memory that is not judged, because it is equal to one that was.

        That is right as long as nothing else accesses these bytes, or no other access to the array is a write. Lanes of
        one warp that have parted are others to each other.
        """
        if not len(addresses):
            return
        array = self._array_at(int(addresses[0]))
        if not writes:
            array.is_read = array.passed_over = True
            if array.reads is None:
                raise Unjudged
            return
        self._begin_writes(array)
        if (np.diff(np.sort(addresses)) < width).any():
            raise Unjudged
        for number in array.shadow.region(addresses, width):
            atom = array.shadow.atoms[number]
            if atom.write is not None or atom.reads:
                raise Unjudged
            atom.write = PASSED_OVER
        if self.recorded is not None:
            self.recorded.append((PASSED_OVER, addresses, width))

    def pass_over_map(self, address: int, size: int) -> None:
        """Take note of a use of a tensor map that is not judged, because what it finds there has not changed."""
        array, addresses = self._array_at(address), np.array([address], np.int64)
        if array.reads is not None:
            self.pass_over(addresses, size, writes=False)
            return
        for number in array.shadow.region(addresses, size):
            atom = array.shadow.atoms[number]
            if PASSED_READ not in atom.reads:
                atom.reads = (*atom.reads, PASSED_READ)
        if self.recorded is not None:
            self.recorded.append((PASSED_READ, addresses, size))

    def repeat(self, access: Access, cta: Triple, components: Components, addresses: Array, width: int) -> None:
        """Judge an access to global memory of a cluster that is equal to another one, against all other clusters."""
        if access is PASSED_READ:
            raise Unjudged
        if access is PASSED_OVER:
            self.pass_over(addresses, width, writes=True)
            return
        new = access.of_cluster(cta, components)
        array = self._array(addresses, width, new)
        if array is None:
            return
        clock = components.clock()
        part = Lanes(new.lanes, clock, new.component)
        touch = Touch("writes" if new.writes else "reads", "global", None, new.proxy, addresses, width)
        for old, own in array.shadow.access(array.shadow.region(addresses, width), new)[1]:
            if old.components is not components:
                self._judge(touch, part, clock, old, new, own)

    def last_writes(self, address: int, size: int) -> list[Access | None]:
        """The last writes of some bytes of global memory; None for bytes that nothing has written."""
        array = self._array_at(address)
        if array.reads is not None:
            return [None]
        atoms = array.shadow.atoms
        found = [atoms[each].write for each in array.shadow.region(np.array([address], np.int64), size)]
        if PASSED_OVER in found:
            raise Unjudged
        return list({id(each): each for each in found}.values())

    def _sight(self, new: Access, clock: Clock) -> Sight:
        """The rows in which `row_of` looks for an earlier access."""
        if self.orders is not None or new.proxy == "tensormap" or new.incoherent:
            return BLIND
        if new.space == "tensor":
            return clock.rows, G, T
        if new.proxy != "async":
            return clock.rows, G, G
        return clock.rows, P if new.space == "shared" else PG, G

    def _judge(self, touch: Touch, part: Lanes, clock: Clock, old: Access, new: Access, own_read: bool) -> None:
        if old is PASSED_OVER or old is PASSED_READ:
            raise Unjudged
        if old.begins >= 0 and new.begins < 0 and not _is_of_barrier(new):
            self._barriers.touched(old, touch, new, clock)
        if old.value == new.value and old.source is new.source and old.components is new.components and (
            (old.cta, old.warp) == (new.cta, new.warp) and not old.asynchronous
        ):  # fmt: skip
            return  # lanes of one instruction, whose values were compared
        if _between_lanes(old, new):
            problem = self._rules.of_lanes(old, new)
            if problem is not None:
                self._findings.race(problem, old, new, part, span_of(touch))
            return
        equal = self._rules.assumed["equal-values"]
        problem = None if self._is_observed(touch, old, new, clock) else self._rules.judge(old, new, clock)
        if problem is None and own_read and self._may_swap(old, new) and not self._is_found(touch, old, new, clock):
            problem = self._rules.unordered(old, new, clock)  # between a strong load and a strong store
        if problem is None:
            if self.orders is not None:
                self.orders.add(old, new, part)
            if new.asynchronous and old.scope and new.scope and not self._rules.is_ordered(old, new, clock):
                self.unordered.update((old.source.number, new.source.number))
            if (
                self._may_swap(old, new)
                and not self._rules.is_ordered(old, new, clock)
                and not self._is_found(touch, old, new, clock)
            ):
                self._disordered.append((touch.space, touch.cta, touch.addresses, old, new))
            if touch.space == "global" and old.cta != new.cta and self._rules.assumed["equal-values"] > equal:
                self.overlaps.setdefault((old.source.number, new.source.number), (new, old, span_of(touch)))
            return
        if own_read and problem.code == "RACE_WAW" and old.source.instruction is new.source.instruction:
            problem = problem._replace(
                code="LOST_UPDATE", why="both threads read, change and write the value, and one update may be lost",
                missing="an atomic, or a lock around the read and the write",
            )  # fmt: skip
        race = problem, old, new, part, span_of(touch)
        if self._may_be_unused(problem, old, new):
            self._perhaps_unused.append(race)
        else:
            self._findings.race(*race)

    def _may_be_unused(self, problem: Problem, old: Access, new: Access) -> bool:
        """True for a write after a weak read of global memory by another warp of the same CTA."""
        if problem.code != "RACE_WAR" or problem.relaxation or new.space != "global" or old.cta != new.cta:
            return False
        weak = not (old.scope or new.scope or old.asynchronous or new.asynchronous)
        return weak and old.warp != new.warp and len(self._perhaps_unused) < _MOST_DISORDERED

    def settle(self, uses: Uses | None) -> None:
        """Judge, when a run is over, the writes after reads whose values may be used for nothing; without `uses`, where
        it has not come to its end, they all count as used.
        """
        for problem, old, new, part, span in self._perhaps_unused:
            stores = None if uses is None else uses.stores(old.source.number)
            if stores is None or any((each, old.cta, old.warp) in self._stored for each in stores):
                self._findings.race(problem, old, new, part, span)
                continue
            self._rules.relaxed["unused-read"] += 1
            if not self._rules.lenient:
                self._findings.race(problem._replace(relaxation="unused-read"), old, new, part, span)
        self._perhaps_unused.clear()

    def _is_observed(self, touch: Touch, old: Access, new: Access, clock: Clock) -> bool:
        """True if an ordinary access comes after a read that has found an earlier strong write."""
        return not new.scope and self._is_found(touch, old, new, clock)

    def _is_found(self, touch: Touch, old: Access, new: Access, clock: Clock) -> bool:
        """True if an access comes after a read that has found an earlier strong write."""
        if not old.scope or len(touch.addresses) > WARP_LANES:
            return False
        places = [(touch.space, touch.cta, address) for address in np.unique(touch.addresses).tolist()]
        return self._observations.is_ordered(places, old, clock, new.components)

    def _may_swap(self, old: Access, new: Access) -> bool:
        """True for a strong store that changes a value after a strong access; updates that commute do not count."""
        if not (old.scope and new.scope and new.writes and new.changes) or len(self._disordered) >= _MOST_DISORDERED:
            return False
        return not (_is_atomic(old) or _is_atomic(new))

    def missable(self) -> Access | None:
        """A store to a location that threads wait for, which another store may follow or precede in time: the value
        that they wait for may be gone before they see it.

        A read that the warp repeated did not find the value, so that it may come before any store.
        """
        for space, cta, addresses, old, new in self._disordered:
            if not old.repeated and any((space, cta, address) in self._awaited for address in addresses.tolist()):
                return new
        return None

    def remarks(self) -> list[Finding]:
        """Lints on the outputs: elements that two CTAs wrote with equal values, and elements that none wrote."""
        found = []
        for new, old, addresses in self.overlaps.values():
            parties = (self._findings.access(new, addresses), self._findings.access(old, addresses))
            text = f"Two CTAs write the same bytes of {parties[0].place or 'global memory'}, with equal values."
            found.append(Finding("OUTPUT_OVERLAP", text, parties, advice=CODES["OUTPUT_OVERLAP"].advice))
        for placed in self._placed:
            array = self._arrays.get(placed.base)
            if array is None or array.reads is not None or array.is_read:
                continue
            written = sum(atom.size for atom in array.shadow.atoms if atom.write is not None)
            if written < placed.size:
                text = f"{placed.size - written:,} of {placed.size:,} bytes of {placed.name} were not written."
                found.append(Finding("OUTPUT_GAP", text, advice=CODES["OUTPUT_GAP"].advice))
        return found

    def free(self, touch: Touch, access: Access, part: Lanes) -> None:
        """TMEM is given back: a write to all of it, after which it is as new."""
        shadow = self.of_ctas.get((touch.space, touch.cta))
        if shadow is None:
            return
        region = shadow.region(_linear(touch), touch.width)
        for old, _ in shadow.access(region, access)[1]:
            problem = self._rules.judge(old, access, part.clock)
            if problem is not None:
                if problem.code.startswith("RACE"):
                    problem = problem._replace(code="TMEM_DEALLOC_EARLY")
                self._findings.race(problem, old, access, part, span_of(touch))
        shadow.forget(region)

    @property
    def publishes(self) -> bool:
        """True if threads synchronise through locations in memory."""
        return bool(self._published)

    def forget(self, ctas: set[Triple]) -> None:
        """Drop the shadows of CTAs that have ended."""
        self.of_ctas = {key: shadow for key, shadow in self.of_ctas.items() if key[1] not in ctas}
        self._published = {key: rows for key, rows in self._published.items() if key[1] not in ctas}
        self._observations.forget(ctas)

    def _synchronise(self, event: Event, touch: Touch, part: Lanes, warp: Warp, *, writes: bool) -> None:
        """A strong access releases to its location, or acquires from it, within its scope."""
        semantics, scope = event.semantics, event.scope or "sys"
        is_atomic = semantics.startswith("atomic")
        for address in np.unique(touch.addresses).tolist():
            key = (touch.space, touch.cta, address)
            published = self._published.get(key)
            if writes:
                if event.source.number in self.readers or not (event.changes or is_atomic):
                    continue  # a load cannot tell it from the store before, and may have found that one
                self._observations.write(key, warp.components, part.component, warp.time, is_atomic=is_atomic)
                releases = "release" in semantics or "acq_rel" in semantics
                if published is None or not is_atomic:
                    published = self._published[key] = {}
                if not releases and borrows(part):
                    self._rules.relaxed["fence-before-barrier"] += 1
                source = part.given(part.mask, warp.components)
                for reach, clock in [(scope, source)] if releases else given_by(part, source, scope):
                    held = published.setdefault((reach, warp.cta), {})
                    publish(held, warp.components.place, clock)
                continue
            if not is_atomic:
                self.polled += 1
            steers = event.source.number in self.steering
            self._observations.read(key, warp.components, part.component, warp.time, is_atomic=is_atomic, steers=steers)
            if not steers:
                continue  # nothing depends on the value found, and another interleaving may find an older one
            if not is_atomic:
                self._awaited.add(key)
            for (reach, writer), given in (published or {}).items():
                if not (self._reaches(reach, writer, warp.cta) and self._reaches(scope, warp.cta, writer)):
                    continue
                if "acquire" in semantics or "acq_rel" in semantics or self._counts_as_acquire(semantics, given):
                    take(part.clock, warp.components.place, given)
                    continue
                self._see(part, warp, writer, given)
                if warp.components.place in given:
                    part.clock.follow(Clock(given[warp.components.place]))

    def _see(self, part: Lanes, warp: Warp, writer: Triple, given: dict[Triple, Rows]) -> None:
        """A relaxed load has found what was released to its location, for a fence of the same lanes to acquire."""
        scopes = ("cta", "cluster", "gpu")
        needed = next(scope for scope in scopes if self._reaches(scope, warp.cta, writer))
        found = warp.components.clock()
        for each in part.seen:
            if each.lanes == part.mask and each.scope == needed:
                found.join(each.clock)
        take(found, warp.components.place, given)
        others = (each for each in part.seen if each.lanes != part.mask or each.scope != needed)
        part.seen = (*others, Seen(part.mask, needed, found))

    def _part_readers(self, event: Event, warp: Warp) -> None:
        """Lanes that acquire from locations of their own know different things afterwards."""
        for touch in event.touches:
            addresses = touch.addresses
            if len(addresses) != event.lanes.bit_count() or (addresses == addresses[0]).all():
                continue
            lanes = [lane for lane in range(WARP_LANES) if event.lanes >> lane & 1]
            for address in np.unique(addresses).tolist():
                if (touch.space, touch.cta, address) in self._published:
                    self._agents.part(warp, sum(1 << lanes[at] for at in np.flatnonzero(addresses == address).tolist()))

    def _counts_as_acquire(self, semantics: str, given: dict[Triple, Rows]) -> bool:
        """True if a relaxed atomic takes part in what a fence has released, by the relaxation `atomic-acquire`."""
        if not (
            self._rules.lenient and semantics.startswith("atomic") and any(rows[G].any() for rows in given.values())
        ):
            return False
        self._rules.relaxed["atomic-acquire"] += 1
        return True

    def _reaches(self, scope: str, one: Triple, other: Triple) -> bool:
        """True if the scope of a thread of one CTA includes the threads of another."""
        if one == other or scope not in ("cta", "cluster"):
            return True
        return scope == "cluster" and self._agents.place(one) == self._agents.place(other)

    def fence(self, event: Event, warp: Warp) -> None:
        """A fence of memory, of a proxy or of tcgen05."""
        for lanes in {each.lanes for part in warp.parts for each in part.seen if part.mask & ~each.lanes}:
            self._agents.part(warp, lanes)  # a fence acquires what loads of its own thread have found
        for part in self._agents.act(warp, event.lanes):
            clock, space = part.clock, event.space
            if event.proxy == "async":
                if space in ("", "shared"):
                    clock.fence(P)
                if space in ("", "global"):
                    clock.fence(PG)
            elif space == "tensor":
                if "before" in event.semantics:
                    clock.publish()
                else:
                    clock.receive()
            elif event.proxy == "generic" and space != "register":
                scope = event.scope or "sys"
                for each in part.seen:
                    if not part.mask & ~each.lanes and smaller(each.scope, scope) == each.scope:
                        clock.join(each.clock)
                part.seen = tuple(each for each in part.seen if smaller(each.scope, scope) != each.scope)
                make_ready(part, warp, part.given(part.mask, warp.components).copy(), scope)
            if self.orders is not None:
                part.history.append(Sync(event.source, clock.copy()))


def _between_lanes(old: Access, new: Access) -> bool:
    """True if lanes of a warp access what other ones of them have accessed since the lanes were synchronised."""
    limits, one, other = new.limits, old.addresses, new.addresses
    if limits is None or one is None or other is None or old.components is not new.components or old.value is None:
        return False
    if old.value <= limits.get(old.component, old.value) or not (old.writes or new.writes):
        return False
    if old.lanes == new.lanes and old.width == new.width and (one is other or np.array_equal(one, other)):
        return False
    grain = min(old.width, new.width)
    others = ~new.lanes if old.value <= new.met else ~0
    owners: dict[int, int] = {}
    for lane, place in _places(old, one, grain):
        owners[place] = owners.get(place, 0) | 1 << lane
    for lane, place in _places(new, other, grain):
        owner = owners.get(place, 0)
        if owner & ~(1 << lane) & others and not (old.writes and owner >> lane & 1):
            return True
    return False


def _places(access: Access, addresses: Array, grain: int) -> Iterator[tuple[int, int]]:
    """The lanes of an access, each with the places that it touches."""
    lanes = [lane for lane in range(WARP_LANES) if access.lanes >> lane & 1]
    starts = addresses.tolist() if len(addresses) == len(lanes) else addresses.tolist() * len(lanes)
    for lane, start in zip(lanes, starts, strict=True):
        for place in range(start // grain, -(-(start + access.width) // grain)):
            yield lane, place


def _is_of_barrier(access: Access) -> bool:
    return access.source.instruction.opcode.startswith("mbarrier.")


def _is_atomic(access: Access) -> bool:
    return access.source.instruction.opcode.startswith(("atom", "red")) or access.asynchronous


def _linear(touch: Touch) -> Array:
    """Byte offsets in the memory of a CTA; the words of TMEM lie in rows of lanes."""
    if touch.space == "tensor":
        return ((touch.addresses >> 16) * COLUMNS + (touch.addresses & 0xFFFF)) * _WORD
    return touch.addresses & _OFFSET


def _of_lanes(touch: Touch, lanes: int, mask: int) -> Touch:
    """The part of a touch that some of its lanes make."""
    each = [lane for lane in range(32) if lanes >> lane & 1]
    if len(each) != len(touch.addresses) or len(each) == 1:
        return touch
    keep = np.array([bool(mask >> lane & 1) for lane in each])
    return Touch(touch.verb, touch.space, touch.cta, touch.proxy, touch.addresses[keep], touch.width)
