"""The state of a checked run in a normal form, so that two points of a run can be recognised as the same state.

Clocks only grow, so that a state never comes back literally. But the checker only takes maxima, compares values of one
component, and counts a component on: it commutes with every renaming of a component's values that keeps their order.
The normal form replaces each value by its rank among all values of its component that anything holds, and, for
components that count groups or phases, adds the distance to the count where that is small. Two points with equal forms
have equal futures under equal events.

Where only the events that follow are compared (`equal_passes.py`), two actions may have one rank: the values of actions
that are compared with clocks and are never a clock's value themselves have the same rank if no clock is between them.
An access is known by its opcode there, and places may have other names (`renaming.py`).

The emulator's part of the state (the next block and the steering registers of every warp, the counts of barriers) is
compared exactly. Left out are data, counters of loops (`loops.py`) and accesses to global memory.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.checker.model.clocks import ROWS, Clock, Components, Known, Triple, X, fitted
from warploom.checker.model.shadow import Access, Shadow
from warploom.checker.observer import Checker
from warploom.checker.renaming import Renaming, Unmovable
from warploom.machine.core.cta import Cluster, Cta, Generation
from warploom.machine.core.group import DONE, EXPIRED, Group
from warploom.machine.core.lane_masks import lane_bits
from warploom.ptx.analysis.control_flow import Flow
from warploom.ptx.syntax.model import Address, Immediate

_PHASES = 3
"""Phases and rounds whose distance to the present one is part of a state: it and the two before are compared with."""
_NONE = -1
_ALL_GROUPS = 9
"""Groups that waits may refer to where their number is not an immediate: the issuers of so many are remembered."""


class Unfit(Exception):
    """The state has parts that the normal form does not include."""


class Names:
    """The names of places in a normal form: those of a renaming, with the CTAs' ranks, or the places themselves."""

    def __init__(self, renaming: Renaming | None = None, ranks: dict[Triple, int] | None = None) -> None:
        self.are_own = renaming is None
        self._renaming = Renaming() if renaming is None else renaming
        self._ranks = {} if ranks is None else ranks
        self._components: dict[int, int] = {}

    def take(self, checker: Checker) -> None:
        """Give the components of barriers the numbers of the barriers that they are renamed to."""
        if self._renaming.moves_nothing:
            return
        ledgers = checker.barriers.ledgers
        for place, ledger in ledgers.items():
            other = ledgers.get(self.place(place))
            if other is None:
                raise Unfit("a barrier that would be elsewhere")
            self._components[ledger.component] = other.component
        for cta, low, size in checker.lifetimes.allocations():
            if not self._renaming.keeps(("tensor", self._ranks[cta]), low, low + size):
                raise Unfit("allocations of TMEM that would be elsewhere")

    def component(self, number: int) -> int:
        return self._components.get(number, number)

    def place(self, place: tuple[Triple, int]) -> tuple[Triple, int]:
        """The place of a barrier."""
        if self._renaming.moves_nothing:
            return place
        try:
            return place[0], self._renaming.barrier(self._ranks[place[0]], place[1])
        except Unmovable:
            raise Unfit("a barrier that would be torn apart") from None

    def cells(self, key: Any, cells: npt.NDArray[Any], shift: int) -> npt.NDArray[Any]:
        """The cells of a CTA's memory."""
        if self._renaming.moves_nothing:
            return cells
        found = self._renaming.cells((key[0], self._ranks[key[1]]), cells, shift)
        if found is None:
            raise Unfit("bytes that would be torn apart")
        return found


class _Form:
    """A normal form in the making."""

    def __init__(self, components: Components, near: int, names: Names | None = None) -> None:
        self._components, self.near, self.names = components, near, Names() if names is None else names
        self._labels: list[object] = []
        self._rows: list[npt.NDArray[np.int32]] = []
        self._numbers: list[tuple[int, int]] = []
        self._compared: list[tuple[int, int]] = []
        """Those that no clock takes over."""
        self._places: dict[int, int] = {}
        self._accesses: list[Access] = []

    def plain(self, *values: object) -> None:
        """Add a value that is compared as it is."""
        self._labels.append(values)

    def clock(self, label: object, clock: Clock | None) -> None:
        if clock is None:
            self.plain(label, None)
            return
        if clock.others:
            raise Unfit("knowledge of other clusters")
        self._labels.append(label)
        self._rows.append(fitted(clock.rows, self._components.capacity))

    def value(self, component: int, value: int, *, compared: bool = False) -> int:
        """Add a value of a component; the number stands for it until all values are known.

        One that is only `compared` with clocks never becomes a clock's.
        """
        self._numbers.append((component, value))
        if compared:
            self._compared.append((component, value))
        return len(self._numbers) - 1

    def access(self, access: Access | None) -> int:
        if access is None:
            return _NONE
        number = self._places.get(id(access))
        if number is None:
            if access.components is not self._components:
                raise Unfit("accesses of other clusters")
            number = self._places[id(access)] = len(self._accesses)
            self._accesses.append(access)
        return number

    def outline(self) -> int:
        """A hash of what was added but for values and clocks."""
        return hash(repr(self._labels))

    def digest(self, counts: dict[int, int], shadows: Iterable[tuple[object, Shadow]]) -> bytes:
        """The digest of everything that was added, with the shadows of memories."""
        added = len(self._accesses)
        pages = [(label, number, page, shadow) for label, shadow in shadows for number, page in shadow.pages()]
        found = [_present(page.atoms, len(shadow.atoms)) for _, _, page, shadow in pages]
        for (_, _, _, shadow), present in zip(pages, found, strict=True):
            for at in present.tolist():
                atom = shadow.atoms[at]
                self.access(atom.write)
                for read in atom.reads:
                    self.access(read)
        accessed = [(each.component, each.value or 0) for each in self._accesses]
        ranks, rank_of = self._ranked([*self._numbers, *accessed], accessed, counts)
        total = hashlib.blake2b(digest_size=16)
        total.update(repr(self._labels).encode())
        total.update(ranks.tobytes())
        total.update(repr([rank_of[token] for token in self._numbers]).encode())
        renamed, own = self.names.component, self.names.are_own
        total.update(repr(sorted((renamed(each), rank_of.get((each, -1), 0)) for each in counts)).encode())
        named = [
            repr((
                each.source.number if own else each.source.instruction.opcode, renamed(each.component),
                each.value is None, rank_of[each.component, each.value or 0],
                each.writes, each.proxy, each.scope, each.changes, each.asynchronous, each.pipe, each.lanes, each.warp,
                each.cta, each.layout,
            ))
            for each in self._accesses
        ]  # fmt: skip
        total.update(repr(named[:added]).encode())
        for (label, number, page, shadow), present in zip(pages, found, strict=True):
            contents = [_content(shadow, at, self._places, named) for at in present.tolist()]
            order = {each: place for place, each in enumerate(sorted(set(contents)))}
            numbers = np.zeros(len(shadow.atoms), np.int32)
            numbers[present] = [order[each] for each in contents]
            cells = self.names.cells(label, numbers[page.atoms], page.shift)
            total.update(repr((label, number, page.shift, sorted(set(contents)))).encode())
            total.update(cells.tobytes())
        return total.digest()

    def _ranked(
        self, tokens: list[tuple[int, int]], accessed: list[tuple[int, int]], counts: dict[int, int]
    ) -> tuple[npt.NDArray[np.int32], dict[tuple[int, int], int]]:
        """The clocks and the values with ranks in place of values.

        Clocks are only compared with values of actions, so that their rank among these is all that matters.
        """
        capacity = self._components.capacity
        by_component: dict[int, set[int]] = {}
        for component, value in tokens:
            by_component.setdefault(component, {0}).add(value)
        near: dict[int, set[int]] = {}
        for component, count in counts.items():
            kind = self._components.keys[component][0]
            most = _PHASES if kind in ("barrier", "named") else self.near
            near[component] = {max(count + 1 - each, 0) for each in range(most)}
            by_component.setdefault(component, {0}).update(near[component])
        rows = [rows.reshape(ROWS, -1)[:, :capacity] for rows in self._rows]
        held = np.concatenate(rows) if rows else np.zeros((0, capacity), np.int32)
        columns = np.ascontiguousarray(held.T)
        taken_over = None if self.names.are_own else self._taken_over(near)
        ordered = columns if taken_over is None else np.sort(columns, axis=1)
        # The classes of a warp's lanes count its time together, and are compared with each other.
        of_warp: dict[object, list[int]] = {}
        for component, key in enumerate(self._components.keys):
            if key[0] == "warp":
                of_warp.setdefault(key[:3], []).append(component)
        if taken_over is not None:
            for kin in of_warp.values():
                if any(each in by_component for each in kin):
                    for each in kin:
                        by_component.setdefault(each, {0})
        ranks = np.zeros((capacity, len(held)), np.int32)
        rank_of: dict[tuple[int, int], int] = {}
        for component, own in by_component.items():
            values = sorted(own)
            if taken_over is None or component < 0:
                rank_of |= {(component, value): at for at, value in enumerate(values, 1)}
                firsts: Sequence[int] | npt.NDArray[Any] = values
            else:
                kin = of_warp.get(self._components.keys[component][:3], [component])
                among = values if len(kin) == 1 else sorted(set().union(*(by_component.get(each, ()) for each in kin)))
                # A value is the first of its rank if a clock, or what one may take over, is between it and the one
                # before.
                taken = sorted(value for each in kin for value in taken_over.get(each, ()))
                lower = [bisect_left(taken, value) for value in among]
                clocks = sum((ordered[each].searchsorted(among) for each in kin), start=np.array(lower)).tolist()
                firsts = [
                    value for value, one, other in zip(among, clocks, [0, *clocks[:-1]], strict=True) if one > other
                ]
                rank_of |= {(component, value): bisect_right(firsts, value) for value in values}
            if component >= 0:
                column = self.names.component(component)
                ranks[column] = np.searchsorted(firsts, columns[component], side="right")
                if component in counts:
                    rank_of[component, -1] = rank_of.get((component, counts[component]), 0)
        return ranks, rank_of

    def _taken_over(self, near: dict[int, set[int]]) -> dict[int, list[int]]:
        """By component, the values that clocks may take over later."""
        found = {component: list(values) for component, values in near.items()}
        left = Counter(self._compared)
        for component, value in self._numbers:
            if left[component, value] > 0:
                left[component, value] -= 1
            else:
                found.setdefault(component, []).append(value)
        return found


def _present(atoms: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """The numbers that are in an array, in order; faster than to sort it."""
    marked = np.zeros(count, np.bool_)
    marked[atoms] = True
    return np.flatnonzero(marked)


def _content(shadow: Shadow, at: int, places: dict[int, int], named: list[str]) -> str:
    """The accesses that the bytes of an atom remember."""
    atom = shadow.atoms[at]
    write = "" if atom.write is None else named[places[id(atom.write)]]
    reads = [named[places[id(read)]] for read in atom.reads]
    return f"{at != 0} {write} {sorted(reads) if len(reads) > 1 else reads}"


def groups_left(flow: Flow) -> int:
    """Groups, the latest first, that a wait of a kernel may refer to: two more than the most that one leaves."""
    waits = [op for block in flow.blocks for op in block.ops if any(e.verb == "drains" for e in op.form.effects)]
    left = [operand for op in waits for operand in op.operands.values() if not isinstance(operand, Address)]
    counts = [int(each.value) if isinstance(each, Immediate) else _ALL_GROUPS for each in left]
    return max(counts, default=0) + 2


def state_of(
    checker: Checker, cluster: Cluster, live: dict[int, tuple[str, ...]], near: int, *, is_freed: bool
) -> bytes:
    """The normal form of a cluster's state; `live` has the steering registers that are live at each block.

    `near` is the number of groups whose distance to the latest is part of it: more than waits leave unfinished.
    `is_freed` is true if the kernel frees barriers.
    """
    form, counts = _knowledge(checker, cluster.ctas[0].index, near, Names(), is_freed=is_freed)
    for place, ledger in sorted(checker.barriers.ledgers.items()):
        form.plain(place, ledger.phase & 1)
    for cta in cluster.ctas:
        form.plain(*_machine(cta, live))
    form.plain(_cluster_barrier(cluster))
    return form.digest(counts, _shadows(checker, {cta.index for cta in cluster.ctas}))


class Reach(NamedTuple):
    """The distance to earlier events that those of a kernel may refer to."""

    near: int
    """Groups, the latest first, that waits may refer to."""
    frees_barriers: bool


def reach_of(flow: Flow) -> Reach:
    opcodes = (op.instruction.opcode for block in flow.blocks for op in block.ops)
    return Reach(groups_left(flow), any(each.startswith("mbarrier.inval") for each in opcodes))


class Knowledge:
    """The checker's part of a cluster's state, without the emulator's; it is looked at before the next event."""

    def __init__(self, checker: Checker, ctas: set[Triple], reach: Reach, names: Names) -> None:
        names.take(checker)
        self._form, self._counts = _knowledge(checker, min(ctas), reach.near, names, is_freed=reach.frees_barriers)
        self._shadows = _shadows(checker, ctas)

    def outline(self) -> int:
        """A part of the normal form that costs little: states with different outlines are different."""
        return self._form.outline()

    def digest(self) -> bytes:
        """The normal form."""
        return self._form.digest(self._counts, self._shadows)


def _shadows(checker: Checker, ctas: set[Triple]) -> list[tuple[object, Shadow]]:
    return [(key, shadow) for key, shadow in sorted(checker.memories.of_ctas.items(), key=repr) if key[1] in ctas]


def _knowledge(
    checker: Checker, first: Triple, near: int, names: Names, *, is_freed: bool
) -> tuple[_Form, dict[int, int]]:
    """The normal form of what the checker remembers of the one cluster that runs, but for the shadows of memories."""
    components = checker.agents.cluster(first)
    if checker.memories.publishes:
        raise Unfit("flags in memory")
    form = _Form(components, near, names)
    counts: dict[int, int] = {}
    for key in sorted(checker.agents.warps):
        warp = checker.agents.warps[key]
        for part in sorted(warp.parts, key=lambda each: each.mask):
            form.clock(("warp", key, part.mask, part.component), part.clock)
            for ready in sorted(part.fenced, key=lambda each: each[::2]):
                form.clock(("fenced", ready.lanes, ready.scope, ready.lent), ready.clock)
                form.plain(form.value(ready.component, ready.whole))
            for seen in sorted(part.seen, key=lambda each: each[:2]):
                form.clock(("seen", seen.lanes, seen.scope), seen.clock)
            # The next operation is issued at the present time, by lanes whose own last action may be older.
            own = warp.time, part.clock.value(X, part.component), part.whole, part.met
            form.plain([form.value(part.component, time) for time in own])
            form.plain([(each, form.value(each, time)) for each, time in sorted(part.partial.items())])
    checker.operations.describe(form, counts)
    ledgers = {names.place(place): ledger for place, ledger in checker.barriers.ledgers.items()}
    for place in sorted(ledgers):
        _add_ledger(form, counts, place, ledgers[place], is_freed=is_freed)
    form.plain(checker.barriers.arriving(names.place))
    checker.meetings.describe(form, counts)
    checker.lifetimes.describe(form)
    checker.registers.describe(form)
    return form, counts


def _add_ledger(form: _Form, counts: dict[int, int], place: object, ledger: Any, *, is_freed: bool) -> None:
    """Add a barrier; its last uses and signals matter where it may be freed."""
    now = ledger.phase
    counts[ledger.component] = now
    made = None if ledger.made_by is None else form.value(*ledger.made_by, compared=True)
    form.plain(place, ledger.asynchronous > 0, ledger.bytes, ledger.observed - now, made, ledger.is_fenced)
    form.clock("contributions", ledger.clock)
    form.clock("arrivals", ledger.arrived)
    for phase, ended in sorted(ledger.ended.items()):
        form.plain("ended", phase - now, ended.is_asynchronous)
        if not ended.is_asynchronous:
            form.plain(_compared(form, ended.contributed.items()))
    form.clock("handed", ledger.handed)
    form.plain(_compared(form, ledger.contributed.items()))
    for phase, waiters in sorted(ledger.waiters.items()):
        if phase >= now - 2:
            each = ((waiter.component, waiter.time) for waiter in waiters)
            form.plain("waiters", phase - now, _compared(form, each))
    form.plain("expects", [form.value(each.component, each.time, compared=True) for each in ledger.expects])
    if is_freed:
        form.plain("users", _compared(form, ((each, time) for each, (time, _) in ledger.users.items())))
        for number, (phase, known, _) in sorted(ledger.signals.items()):
            form.plain("signal", number, _known(form, ledger.component, phase, known))
    for key, (phase, is_asynchronous, known, _) in sorted(ledger.remote.items(), key=repr):
        form.plain("remote", key, is_asynchronous, _known(form, ledger.component, phase, known))


def _known(form: _Form, component: int, phase: int, known: Known) -> list[tuple[int, int]]:
    """A contribution to a phase: a later action must know the end of the phase, or all of `known`."""
    all_known = ((component, phase + 1), *known)
    return [(form.names.component(each), form.value(each, time, compared=True)) for each, time in all_known]


def _compared(form: _Form, actions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Actions that clocks are compared with, by their components."""
    return [(each, form.value(each, time, compared=True)) for each, time in sorted(actions)]


def _machine(cta: Cta, live: dict[int, tuple[str, ...]]) -> Iterator[object]:
    """The emulator's state of a CTA: where its groups are, their steering registers, and the counts of barriers."""
    for group in sorted(cta.all_groups, key=lambda each: (each.first_warp, each.warps, each.pc)):
        if group.state == DONE:
            continue
        joined = None if group.joined is None else lane_bits(group.joined)
        mask = None if group.mask is None else lane_bits(group.mask)
        yield group.first_warp, group.warps, mask, group.pc, group.state, group.join, joined, _token(group)
        yield [(name, register(group, name)) for name in live[group.pc]]
    for offset, barrier in sorted(cta.mbarriers.items()):
        yield offset, barrier.pending, barrier.expected, barrier.tx, barrier.phase & 1
    for number, named in sorted(cta.barriers.items()):
        yield number, named.generation.arrived, named.generation.needed
    yield tuple(cta.present)


def register(group: Group, name: str) -> object:
    """The value of a register in the lanes of a group."""
    place = group.cta.program.layout.places[name]
    if place.file == "u":
        return group.u[place.index]
    lanes = slice(group.first_lane, group.first_lane + group.lanes)
    return group.warpgroup.files[place.file][place.index, lanes][group.active].tobytes()


def _token(group: Group) -> object:
    token = group.token
    if token is None or token == EXPIRED:
        return token
    if isinstance(token, Generation):
        return token.arrived, token.needed, token.over
    raise Unfit("a warp that waits for its own lanes")


def _cluster_barrier(cluster: Cluster) -> object:
    barrier = cluster.state.get("barrier")
    return None if barrier is None else (sorted(barrier.arrived.items()), sorted(barrier.owing.items()))
