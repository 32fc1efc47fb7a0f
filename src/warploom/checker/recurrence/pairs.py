"""Pairs: every number of tiles with every number of K steps.

The numbers of tiles are proved with 1 K step, with 2 and so on, until the runs have shown that all larger numbers of K
steps are like these: every tile then passes a state from which a period of K steps leads back to it (a *cycle*). As
many periods as one likes may be added at these states, in all tiles equally many. A cycle is a property of the state,
so that one run has to show it, which may be another one than that which passes the state.

In the same way, a run need not go on at such a state if another one has: the rest of the tile and the beginning of the
next one depend on the state alone, and the next state on the number of K steps by its remainder of the period.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from warploom.checker.recurrence.branches import Branches, in_copies
from warploom.checker.recurrence.cuts import Cut, Cuts, Repeat, Warp, Watch, has_room
from warploom.checker.recurrence.loops import Counted, evaluate, params_of
from warploom.checker.recurrence.pumping import check_k, is_like
from warploom.checker.recurrence.variants import Dimension, Refused, Tiles

if TYPE_CHECKING:
    from warploom.checker.recurrence.sizes import Family, Part, Recurrence


class Node(NamedTuple):
    """A point in a tile: equal ones have equal futures, if the same K steps and tiles are left."""

    state: bytes
    contents: tuple[bytes, ...]
    """The steering places in shared memory."""
    counters: tuple[tuple[tuple[Warp, int], int | None], ...]
    """The counters of the loops over K steps, relative to that of the chosen warp; None for a loop that begins."""


class Cycle(NamedTuple):
    """K steps of a tile between two equal points, in which no warp asks for work or looks at an answer."""

    nodes: tuple[Node, ...]
    """The points, from step to step."""
    part: Repeat
    fixed: dict[tuple[Warp, int], int]
    """The distance to its bound of each comparison that it makes without moving the counter."""


class Next(NamedTuple):
    """The next point after one with few K steps left: all numbers of further tiles were run in between, 0 included."""

    node: Node
    """The point of the cycle in the next tile at which it would be after no K steps."""
    steps: int
    """The K steps of the run, in which the next tile has come to its cycle."""


Cycles = dict[Node, Cycle]
Known = dict[Node, Next]


class Shown(NamedTuple):
    """All numbers of tiles with one number of K steps are proved."""

    is_long: bool
    """True if every tile passes a cycle."""
    known: Known


class Seen(NamedTuple):
    """The cycles of a run, and the distance of the counter to its bound at which long tiles are cut."""

    cycles: Cycles
    room: int


class Pairs:
    """The proof of all numbers of tiles with all numbers of K steps."""

    def __init__(self, family: Family, k: Dimension, tiles: Tiles, found: Recurrence) -> None:
        self.family, self.k, self.tiles, self.found = family, k, tiles, found
        self.variants, self.counted = family.variants, family.steering.counted
        self.width, rest = divmod(found.end - found.begin, found.period)
        """The amount by which a step increases the counter of the loop."""
        if rest or self.width < 1:
            raise Refused("K steps recur in several parts")
        self.sized = {
            key for key, each in self.counted.items() if k.name in params_of(each.bound) | params_of(each.first)
        }
        """The comparisons that depend on the number of K steps."""
        self.heads = {self.counted[key].head for key in self.sized if self.counted[key].leaves}
        self.room = 0
        """The distance of the counter to its bound at which long tiles are cut: all comparisons have room there."""
        self.known: Known = {}
        self.is_linear = all(self._is_linear(self.counted[key]) for key in self.sized)
        """True if each comparison is made once more for each further K step."""

    def prove(self) -> str:
        """Prove all pairs; the sentence says which were run."""
        found = self.found
        # Tiles of so many steps begin at all stages of a ring, one after the other.
        long_ = next(each for each in count(found.least + found.period) if gcd(each, found.period) == 1)
        # Tiles with fewer than the least number of steps pass no cycle, so that they do not need to be known.
        first: list[Callable[[], Part[Any]]] = [partial(self._seen, long_)]
        first += [partial(self._shown, steps, {}, long_) for steps in range(1, found.least)]
        seen, *_ = [self.family.taken(part) for part in in_copies(first, independent=True)]
        self.room, most, longs = seen.room, long_ + found.period, 0
        more = range(found.least, most + 1)
        parts = in_copies(partial(self._shown, steps, seen.cycles, long_) for steps in more)
        for steps, part in zip(more, parts, strict=False):
            shown = self.family.taken(part)
            self.known |= shown.known
            longs = longs + 1 if shown.is_long else 0
            if longs == found.period:
                parts.close()
                ran = f"1 to {steps} K steps run, each with all numbers of tiles by recurrence"
                return f"{self.k.name} >= 1 with any number of tiles of a cluster >= 1 ({ran}; {found.text})"
        raise Refused(f"tiles of up to {most} K steps do not show the recurrence of K steps")

    def _is_linear(self, counted: Counted) -> bool:
        found = set[int]()
        for steps in range(1, self.found.least + 3 * self.found.period):
            values = self.variants.at(self.k, steps)
            bound, first, step = (evaluate(each, values) for each in (counted.bound, counted.first, counted.step))
            if bound is None or first is None or step is None:
                return False
            found.add(bound - first - steps * step)
        return len(found) == 1

    def _seen(self, steps: int) -> Part[Seen]:
        """Look for the cycles of a run with so many K steps."""
        return self.family.apart(lambda: Seen(self.cycles(steps), self.room))

    def _shown(self, steps: int, cycles: Cycles, seen_with: int) -> Part[Shown]:
        """Prove all numbers of tiles with one number of K steps; the cycles were seen with another number."""

        def make() -> Shown:
            own, known = cycles, self.known if self.is_linear else None
            if cycles and not is_like(self.variants, self.k, seen_with, range(steps, steps + 1)):
                own, known = self.cycles(steps + self.found.period), None
            long_tiles = LongTiles(self, steps, own, known)
            _, is_long = self.family.tiles_with(self.k, self.tiles, steps, long_tiles)
            return Shown(is_long, long_tiles.learned)

        return self.family.apart(make)

    def cycles(self, steps: int, tiles: int | None = None) -> Cycles:
        """The cycles that a run with so many K steps shows, in so many tiles, or in those that differ."""
        first, last = self.found.begin, self.found.end
        found: Cycles = {}
        is_known = False

        def passes(counter: int, _: int) -> bool:
            return counter == first or (first < counter <= last and not is_known)

        def is_done(cuts: Cuts) -> bool:
            nonlocal is_known
            cut = cuts.found[-1]
            if cut.counter == first:
                is_known = self.node(cut) in found
                return tiles is None and any(cuts.found[each.first].counter == first for each in cuts.returns())
            if cut.counter == last and (cycle := self._cycle(cuts, steps)) is not None:
                found.update(dict.fromkeys(cycle.nodes, cycle))
            return False

        watch = Watch(frozenset(self.heads), begins=False, passes=passes, is_done=is_done)
        cuts = self.family.run(self.k, self.tiles, steps, tiles or self.variants.most_tiles(self.tiles), watch).cuts
        assert cuts is not None
        self.room = max([self.room, *(self._room(cut) for cut in cuts.found)])
        return found

    def _room(self, cut: Cut) -> int:
        """The distance of the counter to its bound with which all loops over K steps are two passes before theirs."""
        needed = [
            2 * (evaluate(self.counted[key[1]].step, self.variants.values) or self.width) + 1 + at.compared - at.bound
            for key, at in cut.comparisons.items()
            if key[1] in self.sized and at.compared < at.bound
        ]
        return -(-(max(needed, default=1) + cut.left) // self.width) * self.width

    def _cycle(self, cuts: Cuts, steps: int) -> Cycle | None:
        """The cycle that ends at the last cut, if that is equal to the one a period before."""
        first, last = len(cuts.found) - 1 - self.found.period, len(cuts.found) - 1
        if first < 0 or any(cut.loop != cuts.found[last].loop for cut in cuts.found[first:]):
            return None
        one, other = cuts.found[first], cuts.found[last]
        if other.counter - one.counter != self.found.period * self.width or self.node(one) != self.node(other):
            return None
        if (part := cuts.repeat(first, last)) is None:
            return None
        fixed = {}
        for key, times in other.evaluated.items():
            if times == one.evaluated[key] or key in part.moved:
                continue
            if key in one.comparisons:
                fixed[key] = one.comparisons[key].bound - one.comparisons[key].compared
            elif not self._is_same_in_all_tiles(key[1]):
                return None
        if not self._may_repeat(part, steps):
            return None
        return Cycle(tuple(self.node(cut) for cut in cuts.found[first:last]), part, fixed)

    def _is_same_in_all_tiles(self, key: int) -> bool:
        """True for a comparison in a loop that depends on neither number; what else it depends on is in the state."""
        counted = self.counted.get(key)
        sizes = {self.k.name, *self.tiles.names}
        if counted is None:  # a request for work, or a test of the answer
            return False
        return not any(sizes & params_of(each) for each in (counted.bound, counted.first, counted.step))

    def _may_repeat(self, part: Repeat, steps: int) -> bool:
        try:
            check_k(self.variants, self.k, part.moved, (part,), steps)
        except Refused:
            return False
        return True

    def node(self, cut: Cut) -> Node:
        """The point of a cut."""
        counters = []
        for key, at in sorted(cut.comparisons.items()):
            if key[1] in self.sized:
                begins = at.counter == self.counted[key[1]].first
                counters.append((key, None if begins else at.counter - cut.counter))
        return Node(cut.state, cut.contents, tuple(counters))

    def is_on(self, cycle: Cycle, cut: Cut, steps: int) -> bool:
        """True if the steps of a cycle may be added at a cut."""
        part, held = cycle.part, cut.comparisons
        if not held.keys() >= {*part.moved, *cycle.fixed}:
            return False
        moved = part.moved.items()
        if not all(has_room(self.counted[key[1]], held[key], by, before=part.before[key]) for key, by in moved):
            return False
        if any(held[key].bound - held[key].compared != far for key, far in cycle.fixed.items()):
            return False
        return self._may_repeat(part, steps)


class LongTiles:
    """The tiles of the runs with one number of K steps, and the cycles that they pass."""

    def __init__(self, pairs: Pairs, steps: int, cycles: Cycles, known: Known | None) -> None:
        self._pairs, self._steps, self._cycles, self._known = pairs, steps, cycles, known
        self.learned: Known = {}

    def watch(self, is_done: Callable[[Cuts], bool], branches: Branches | None) -> Watch:
        """Cuts of tiles: at the beginning of short ones, and in others when so many steps are left as are needed."""
        pairs = self._pairs
        room = pairs.room
        is_short = not self._cycles or self._steps * pairs.width <= room
        return Watch(
            frozenset(pairs.heads),
            begins=is_short,
            passes=lambda _, left: not is_short and left == room,
            is_done=is_done,
            branches=branches,
        )

    def are_long(self, cuts: Cuts) -> bool:
        """True if every tile of a run passes a cycle: each of its loops over K steps gets the steps of one."""
        given: dict[tuple[Warp, int], list[int]] = {}
        for cut in cuts.found:
            if (cycle := self._cycle_at(cut)) is None:
                return False
            for user in cycle.part.moved:
                if user[1] in self._pairs.sized:
                    given.setdefault(user, []).append(cut.entries[user])
        users = {user for user in cuts.users if user[1] in self._pairs.sized}
        last = {user: cuts.ended.get(user, 0) for user in users}
        if cuts.is_stopped:  # a loop that has begun since gets its steps in the runs that go on
            last = {user: len(given.get(user, ())) for user in users}
        return bool(users) and all(given.get(user) == [*range(1, last[user] + 1)] for user in users if last[user])

    def show(self, tiles: int) -> None:
        """Look for the cycles of so many tiles in a run that is a period longer: the last tiles may have their own."""
        pairs = self._pairs
        if self._steps * pairs.width >= pairs.found.begin + pairs.room:
            self._cycles = pairs.cycles(self._steps + pairs.found.period, tiles) | self._cycles

    def _cycle_at(self, cut: Cut) -> Cycle | None:
        """The cycle whose steps may be added at a cut."""
        cycle = self._cycles.get(self._pairs.node(cut))
        return cycle if cycle is not None and self._pairs.is_on(cycle, cut, self._steps) else None

    def is_known(self, cuts: Cuts) -> bool:
        """True if the rest of the run was made with other numbers of K steps."""
        if not self._known or self._tile_at(cuts, cuts.found[-1]) is None:
            return False
        node, seen = self._pairs.node(cuts.found[-1]), set[Node]()
        while node not in seen:
            seen.add(node)
            after = self._known.get(node)
            if after is None or after.steps > self._steps:
                return False
            node = self._moved(after.node, self._steps)
        return True

    def learn(self, cuts: Cuts, ends: list[dict[tuple[Warp, int], int]]) -> None:
        """Keep the next point of each point of a run from which all loops over K steps come to it in their next tile.

        `ends` has the numbers of tiles that the loops of each branch have had in the end. A branch that has further
        tiles after its request for work was refused would pass other points in them with other numbers of K steps: it
        says nothing of these.
        """
        if self._known is None:
            return
        for one, other in pairwise(cuts.found):
            before, after = self._tile_at(cuts, one), self._tile_at(cuts, other)
            if before is None or after != {user: tile + 1 for user, tile in before.items()}:
                continue
            refused = [ends[tiles - 1] for tiles in range(one.taken, other.taken)]
            if all(end.get(user) == tile for end in refused for user, tile in before.items()):
                point = self._moved(self._pairs.node(other), -self._steps)
                self.learned[self._pairs.node(one)] = Next(point, self._steps)

    def _tile_at(self, cuts: Cuts, cut: Cut) -> dict[tuple[Warp, int], int] | None:
        """The tile of each loop over K steps at a cut; None if a cycle does not move all of them there."""
        if cut.left != self._pairs.room or (cycle := self._cycle_at(cut)) is None:
            return None
        users = {user for user in cuts.users if user[1] in self._pairs.sized}
        return {user: cut.entries[user] for user in users} if users <= cycle.part.moved.keys() else None

    def _moved(self, node: Node, steps: int) -> Node:
        """The point that is some steps further in a cycle."""
        nodes = self._cycles[node].nodes
        return nodes[(nodes.index(node) + steps) % len(nodes)]
