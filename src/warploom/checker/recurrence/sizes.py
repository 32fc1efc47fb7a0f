"""All sizes: from one checked run to every number of K steps and of tiles, by recurrence.

A run with many steps shows two points of equal state (`state.py`). The part between them may be repeated any
number of times, if nothing that steers the kernel depends on the counters that it moves (`loops.py`, `pumping.py`).
There remain the runs with few steps and one run for each remainder of the period, which are checked one by one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, NamedTuple, NoReturn, TypeVar

from warploom.checker.collecting import Findings
from warploom.checker.determinism import influences, polls
from warploom.checker.observer import Checker
from warploom.checker.recurrence.branches import Branches, can_branch, in_copies
from warploom.checker.recurrence.cases import cases_of
from warploom.checker.recurrence.cuts import Cuts, Repeat, Warp, Watch
from warploom.checker.recurrence.loops import evaluate, owners
from warploom.checker.recurrence.pairs import LongTiles, Pairs
from warploom.checker.recurrence.pumping import (
    check_between,
    check_k,
    check_tiles,
    is_like,
    k_parts,
    k_period,
    least_steps,
)
from warploom.checker.recurrence.variants import Dimension, Refused, Tiles, Variants
from warploom.checker.report import Finding
from warploom.checker.rules import Rules
from warploom.checker.runs import Checked, checked_run
from warploom.diagnostics import Diag, Fault, WarploomError
from warploom.host.launch import Launch

T = TypeVar("T")
_SCOUTS = (40, 80, 160)
"""K steps of the run in which a recurrence is looked for; more if there is none."""
_MOST_TILES = 96
"""Tiles of the run in which a recurrence is looked for."""
_NONE = "no state recurs"
_ENUMERATED = 18
"""K steps that are run where no recurrence is looked for: two laps of eight stages, and two more."""
_WORTH = 1.0
"""Seconds that runs must take to be spread over copies of the process: a copy takes some hundredths of one."""
_COPIES = 8
"""Copies among which runs are divided: more than there are cores, because runs differ."""


class Recurrence(NamedTuple):
    """A recurrence of K steps: its period, the least number that has it, and the counters at the ends of the part."""

    period: int
    least: int
    begin: int
    end: int
    text: str


@dataclass(slots=True)
class Sizes:
    """The result of a check of all sizes: the sizes that are covered, and why others are not."""

    covered: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    """Sizes and data that were run one by one."""
    left: list[str] = field(default_factory=list)
    """Parameters for which the verdict holds as run only, each with the reason."""
    unproved: list[str] = field(default_factory=list)
    """Those of them that a proof was asked for and not found."""
    findings: list[Finding] = field(default_factory=list)
    error: WarploomError | None = None
    runs: int = 0
    events: int = 0
    used: int = 0

    def add(self, other: Sizes) -> None:
        """Count the runs of another part of the check, with what they found."""
        self.findings += other.findings
        self.cases += other.cases
        self.error = self.error or other.error
        self.runs, self.events, self.used = self.runs + other.runs, self.events + other.events, self.used + other.used


class TooSmallError(Exception):
    """The arrays of the launch are too small for a run in a copy of the process."""


class Part(NamedTuple, Generic[T]):
    """A part of a check, which may have been made in a copy of the process."""

    sizes: Sizes
    assumed: Counter[str]
    relaxed: Counter[str]
    room: int
    """The factor by which the arrays of the launch had to be made longer."""
    found: T | None
    refused: str = ""


class Branch(NamedTuple):
    """The rest of a run, which was made in a copy of the process."""

    sizes: Sizes
    ended: dict[tuple[Warp, int], int]
    """The numbers of times that warps have entered the loop of a comparison."""
    is_long: bool
    assumed: Counter[str]
    relaxed: Counter[str]


class Family:
    """The check of the launches that differ from a given one in its sizes only."""

    def __init__(self, launch: Launch, rules: Rules, limit: int | None) -> None:
        self.launch, self.rules, self.limit = launch, rules, limit
        self.variants = Variants(launch, limit)
        self.steering = self.variants.steering
        self.sizes = Sizes()

    def check(self, *, pairs: bool = False) -> Sizes:
        """Check all sizes, as far as it is possible; with `pairs`, all numbers of tiles with each number of K steps."""
        try:
            self._refuse()
            k = self.variants.k_dimension()
            tiles = self.variants.tile_dimension(k)
        except Refused as why:
            self._enumerate(str(why))
            return self.sizes
        if pairs and tiles is not None and self._pairs(k, tiles):
            return self.sizes
        try:
            recurrence = self._steps(k, tiles)
        except Refused as why:
            self._leave(f"K steps ({why})")
            return self.sizes
        if tiles is None:
            self.sizes.covered.append("number of clusters")
            self.rules.assumed["fresh-tiles"] += 1
            return self.sizes
        try:
            self._tiles(k, tiles, recurrence.period, is_other_left=not pairs)
        except Refused as why:
            self._leave(f"tiles of a cluster ({why})")
        return self.sizes

    def _leave(self, what: str) -> None:
        """Note sizes for which there is no proof."""
        self.sizes.left.append(what)
        self.sizes.unproved.append(what)

    def check_cases(self, cases: Mapping[str, Launch]) -> Sizes:
        """Check further launches, each by its name."""
        try:
            self._each(partial(self._case, name, launch) for name, launch in cases.items())
        except Refused:
            self.sizes.left.append("other cases (there is a finding)")
        return self.sizes

    def _case(self, name: str, launch: Launch) -> None:
        self._judge(launch, name, None, larger=False)
        self.sizes.cases.append(name)

    def _enumerate(self, why: str) -> None:
        """Run some sizes one by one, where other things than parameters steer the kernel too."""
        variants, sizes = self.variants, self.sizes
        x, y, z = self.launch.grid
        variants.values |= {"%nctaid.x": x, "%nctaid.y": y, "%nctaid.z": z, "%cluster_ctarank": 0}
        variants.values |= {f"%ctaid.{axis}": 0 for axis in "xyz"}
        try:
            k = variants.k_dimension()
            launched = variants.launched(k)
            runs = []
            for steps in range(1, _ENUMERATED + 1):
                args = list(self.launch.args)
                args[variants.params[k.name]] = variants.value_for(k, steps)
                launch = replace(self.launch, args=tuple(args))
                runs.append(partial(self._judge, launch, f"{steps} K steps", None, larger=steps > launched))
            self._each(runs)
            sizes.cases.append(f"{k.name} of 1 to {_ENUMERATED} K steps")
            left = f"other sizes ({why})"
        except Refused as more:
            left = f"sizes ({why}; {more})"
        cases = {} if sizes.findings or sizes.error is not None else cases_of(variants)
        self.check_cases(cases)
        sizes.left.append(left)
        if not sizes.cases:
            sizes.unproved.append(left)

    def _refuse(self) -> None:
        """Leave kernels alone that are steered by more than their parameters."""
        others = sorted({each.kind for each in influences(self.variants.flow)} - {"clc"})
        if others or polls(self.variants.flow):
            raise Refused("control depends on memory that other clusters change")
        if self.steering.data_loads:
            text = " ".join(self.steering.data_loads[0].instruction.text.split())
            raise Refused(f"control depends on data: `{text}`")
        if names := owners(self.steering.specials):
            raise Refused(f"control depends on {', '.join(names)}")
        if (op := self.variants.loops.release_of_maps()) is not None:
            raise Refused(f"a loop changes tensor maps: `{' '.join(op.instruction.text.split())}`")

    def run(self, k: Dimension, tiles: Tiles | None, steps: int, count: int = 1, watch: Watch | None = None) -> Checked:
        """Check one size; a finding or an error ends the search. `watch` says where its state is taken."""
        launch, larger = self.variants.variant(k, steps, tiles, count), steps > self.variants.launched(k)
        return self._judge(launch, _named(steps, count), 1, larger=larger, watch=watch)

    def _judge(
        self, launch: Launch, what: str, sms: int | None, *, larger: bool, watch: Watch | None = None
    ) -> Checked:
        found, sizes = Findings(), self.sizes
        roomy = self.variants.roomy(launch)
        make = None if watch is None else self._watch(watch)
        branches = None if watch is None else watch.branches
        try:
            checked = checked_run(roomy, self.rules, found, sms=sms, limit=self.limit, watch=make)
        except TooSmallError:  # in a copy
            checked = None
        if checked is None or (larger and isinstance(checked.error, Fault) and _is_outside_arrays(checked.error)):
            if branches is not None and branches.is_copy:
                raise TooSmallError(what)
            if not self.variants.grow():
                raise Refused(f"the arrays of the launch are too small for {what}; launch it with a larger K")
            if branches is not None:
                branches.results.clear()
            return self._judge(launch, what, sms, larger=larger, watch=watch)
        sizes.runs += 1
        sizes.events += checked.checker.events - (0 if branches is None else branches.events)
        sizes.used += checked.used
        sizes.findings += [replace(each, notes=(*each.notes, f"found with {what}")) for each in found.all()]
        if checked.error is not None:
            sizes.error = checked.error
            sizes.error.notes = (*sizes.error.notes, f"found with {what}")
        if sizes.findings or sizes.error is not None:
            raise Refused(f"there is a finding with {what}")
        if checked.checker.registers.has_too_many_orders:
            raise Refused(f"the orders of setmaxnreg are too many to be searched with {what}")
        return checked

    def apart(self, make: Callable[[], T]) -> Part[T]:
        """Make a part of the check with counts of its own; where there are cores, this is done in a copy."""
        rules, variants = self.rules, self.variants
        before = self.sizes, rules.assumed, rules.relaxed
        self.sizes, rules.assumed, rules.relaxed = Sizes(), Counter(), Counter()
        found, refused = None, ""
        try:
            found = make()
        except Refused as why:
            refused = str(why)
        part = Part(self.sizes, rules.assumed, rules.relaxed, variants.room, found, refused)
        self.sizes, rules.assumed, rules.relaxed = before
        return part

    def taken(self, part: Part[T]) -> T:
        """Count the runs of a part; what it has found."""
        self.sizes.add(part.sizes)
        self.rules.assumed.update(part.assumed)
        self.rules.relaxed.update(part.relaxed)
        self.variants.room = max(self.variants.room, part.room)
        if part.found is None:
            raise Refused(part.refused)
        return part.found

    def _each(self, runs: Iterable[Callable[[], object]]) -> None:
        """Make runs that do not depend on each other; the first that is refused, in their order, ends the check.

        Copies of the process make several of them one after the other, and none is made where runs are short.
        """
        left, made, start = [*runs], 0, time.process_time()
        while left:
            left.pop(0)()
            made += 1
            if (time.process_time() - start) / made * len(left) > _WORTH:
                break
        at_once = -(-len(left) // _COPIES) or 1
        parts = (left[at : at + at_once] for at in range(0, len(left), at_once))
        for part in in_copies((partial(self.apart, partial(_all_of, part)) for part in parts), independent=True):
            self.taken(part)

    def _watch(self, watch: Watch) -> Callable[[Checker], Cuts]:
        return lambda checker: Cuts(checker, self.variants.loops, self.steering, watch)

    def _steps(self, k: Dimension, tiles: Tiles | None) -> Recurrence:
        """Prove all numbers of K steps for one tile of a cluster."""

        def proved(cuts: Cuts, parts: tuple[Repeat, ...], scout: int) -> Recurrence:
            return self._from_parts(k, tiles, cuts, parts, scout)

        found = self._recurrence(k, tiles, proved)
        unit = self.variants.value_for(k, 2) - self.variants.value_for(k, 1)
        one = "" if tiles is None else " with one tile of a cluster"
        ran = f"1 to {found.least + found.period - 1} K steps of {unit} run"
        self.sizes.covered.append(f"{k.name} >= 1{one} ({ran}; more by recurrence with {found.text})")
        return found

    def _recurrence(
        self, k: Dimension, tiles: Tiles | None, proved: Callable[[Cuts, tuple[Repeat, ...], int], Recurrence]
    ) -> Recurrence:
        """The first recurrence of K steps, in runs of one tile, from which others can be `proved`."""
        reason = _NONE
        check_between(self.variants, k, _SCOUTS[-1])
        for scout in _SCOUTS:
            cuts = self.run(k, tiles, scout, watch=Watch()).cuts
            assert cuts is not None
            candidates = list(k_parts(self.variants, k, cuts))
            reason = cuts.reason or reason
            for parts in candidates:
                try:
                    check_k(self.variants, k, cuts.users, parts, scout)
                    return proved(cuts, parts, scout)
                except Refused as why:
                    reason = str(why)
                    if self.sizes.findings or self.sizes.error is not None:
                        raise
        raise Refused(reason)

    def _pairs(self, k: Dimension, tiles: Tiles) -> bool:
        """Prove all numbers of tiles with all numbers of K steps; False if that is impossible and nothing is wrong."""

        def seen(cuts: Cuts, parts: tuple[Repeat, ...], _: int) -> Recurrence:
            if len(parts) > 1:
                raise Refused("K steps recur in several parts")
            return self._made(k, cuts, parts[0])

        try:
            proof = Pairs(self, k, tiles, self._recurrence(k, tiles, seen)).prove()
        except Refused as why:
            self._leave(f"tiles of a cluster with other numbers of K steps ({why})")
            return bool(self.sizes.findings) or self.sizes.error is not None
        self.sizes.covered.append(proof)
        self.rules.assumed["fresh-tiles"] += 1
        return True

    def _made(self, k: Dimension, cuts: Cuts, part: Repeat) -> Recurrence:
        """The recurrence that a part between two equal states is."""
        ends = cuts.found[part.first].counter, cuts.found[part.second].counter
        period, least = k_period(self.variants, k, (part,)), least_steps(self.variants, k, cuts, part)
        return Recurrence(period, least, *ends, f"a period of {period} steps from step {self._begin(cuts, part)}")

    def _from_parts(
        self, k: Dimension, tiles: Tiles | None, cuts: Cuts, parts: tuple[Repeat, ...], scout: int
    ) -> Recurrence:
        """Run the sizes from which all others follow."""
        period = k_period(self.variants, k, parts)
        ends = cuts.found[parts[0].first].counter, cuts.found[parts[0].second].counter
        if len(parts) == 1:
            made = self._made(k, cuts, parts[0])
            residues = range(made.least, made.least + period)
            if is_like(self.variants, k, scout, residues):
                for steps in residues:
                    check_k(self.variants, k, cuts.users, parts, steps)
                few = range(1, made.least + period)
                self._each(partial(self.run, k, tiles, steps) for steps in few if steps != scout)
                return made
        self._each(partial(self._recur, k, tiles, steps, period) for steps in range(scout + 1, scout + period))
        self._each(partial(self.run, k, tiles, steps) for steps in range(1, scout))
        begin = ", ".join(str(self._begin(cuts, part)) for part in parts)
        text = f"a period of {period} steps, which each of the last {period} shows from step {begin}"
        return Recurrence(period, scout, *ends, text)

    def _recur(self, k: Dimension, tiles: Tiles | None, steps: int, period: int) -> None:
        """Check a size whose own run must show a recurrence."""
        checked = self.run(k, tiles, steps, watch=Watch())
        assert checked.cuts is not None
        reason = checked.cuts.reason or f"no state recurs with {steps} K steps"
        for parts in k_parts(self.variants, k, checked.cuts):
            try:
                if k_period(self.variants, k, parts) == period:
                    check_k(self.variants, k, checked.cuts.users, parts, steps)
                    return
            except Refused as why:
                reason = str(why)
        raise Refused(reason)

    def _begin(self, cuts: Cuts, part: Repeat) -> int:
        """The step at which a part begins, of the loop that is furthest."""
        begin = cuts.found[part.first].comparisons
        steps = {key: evaluate(self.steering.counted[key[1]].step, self.variants.values) or 1 for key in part.moved}
        return max(begin[key].counter // step for key, step in steps.items())

    def _tiles(self, k: Dimension, tiles: Tiles, period: int, *, is_other_left: bool) -> None:
        """Prove all numbers of tiles, with as many K steps as stages: the ring is where it was after every tile."""
        steps = max(period // 2, 1)
        text, _ = self.tiles_with(k, tiles, steps)
        self.sizes.covered.append(f"tiles of a cluster >= 1 with {steps} K steps ({text})")
        self.sizes.left += ["tiles of a cluster with other numbers of K steps"] if is_other_left else []
        self.rules.assumed["fresh-tiles"] += 1

    def tiles_with(
        self, k: Dimension, tiles: Tiles, steps: int, long_tiles: LongTiles | None = None
    ) -> tuple[str, bool]:
        """Prove all numbers of tiles with one number of K steps; also true if the tiles of all runs pass cycles."""
        most = min(self.variants.most_tiles(tiles), _MOST_TILES)
        branches = Branches() if not tiles.names and can_branch() else None
        accepted: list[tuple[Repeat, int]] = []
        is_known, reason = False, _NONE

        def is_done(cuts: Cuts) -> bool:
            nonlocal is_known, reason
            if not tiles.names and (cuts.found[-1].taken == most or (branches is not None and branches.is_copy)):
                return False  # a request may have been refused, which the state does not show
            is_known = branches is not None and long_tiles is not None and long_tiles.is_known(cuts)
            for repeat in cuts.returns():
                try:
                    accepted.append((repeat, check_tiles(self.variants, tiles, cuts, repeat, most)))
                except Refused as why:
                    reason = str(why)
                else:
                    break
            return is_known or bool(accepted)

        if long_tiles is not None:
            watch = long_tiles.watch(is_done, branches)
        else:
            watch = Watch(passes=lambda _, __: False, is_done=is_done, branches=branches)
        cuts, is_long = self._branched(k, tiles, steps, most, watch, long_tiles)
        if branches is not None and long_tiles is not None and (is_known or accepted):
            long_tiles.learn(cuts, [each.ended for each in branches.results])
        if is_known:
            return f"1 to {cuts.found[-1].taken - 1} run; more as with other numbers of K steps", is_long
        if not accepted:
            more = "" if most == _MOST_TILES or cuts.reason or reason != _NONE else "; launch it with more tiles"
            raise Refused(f"{cuts.reason or reason} with {steps} K steps and at most {most} tiles{more}")
        repeat, period = accepted[0]
        begin = cuts.found[repeat.first]
        begun = [begin.comparisons[key].compared + 3 for key in repeat.moved]
        least = max(begin.loop[1] + 3, *begun) if tiles.names else begin.taken
        if least + period - 1 > most:
            raise Refused(f"{least + period - 1} tiles must be run, and the launch has {most}; launch it with more")
        counts = range(1, least + period) if branches is None else range(0)
        if long_tiles is None:
            self._each(partial(self.run, k, tiles, steps, count) for count in counts)
        else:
            is_long = self._are_long(k, tiles, steps, counts, long_tiles, is_long=is_long)
        start = f"a period of {period} tiles from tile {begin.loop[1]}"
        return f"1 to {least + period - 1} run; more by recurrence with {start}", is_long

    def _are_long(
        self, k: Dimension, tiles: Tiles, steps: int, counts: Iterable[int], long_tiles: LongTiles, *, is_long: bool
    ) -> bool:
        """Check some numbers of tiles; still true if the tiles of all of them pass cycles."""
        for count in counts:
            made = self.run(k, tiles, steps, count, long_tiles.watch(lambda _: False, None)).cuts
            assert made is not None
            if is_long and not long_tiles.are_long(made):
                long_tiles.show(count)
                is_long = long_tiles.are_long(made)
        return is_long

    def _branched(
        self, k: Dimension, tiles: Tiles, steps: int, count: int, watch: Watch, long_tiles: LongTiles | None
    ) -> tuple[Cuts, bool]:
        """Check a run, and those that part from it: of one tile, of two and so on. True if all of them pass cycles."""
        branches, whole = watch.branches, self.sizes
        self.sizes, cuts, is_long = Sizes(), None, False
        try:
            cuts = self.run(k, tiles, steps, count, watch).cuts
            assert cuts is not None
            is_long = long_tiles is not None and long_tiles.are_long(cuts)
        except BaseException as error:
            if branches is None or not branches.is_copy:
                whole.add(self.sizes)
                self.sizes = whole
                raise
            if not self.sizes.findings and self.sizes.error is None:
                branches.end(error, is_result=False)
        if branches is not None and branches.is_copy:
            ended = {} if cuts is None else cuts.ended
            self._end(branches, _named(steps, len(branches.results) + 1), ended, is_long=is_long)
        whole.add(self.sizes)
        self.sizes = whole
        for each in branches.results if branches is not None else ():
            whole.add(each.sizes)
            self.rules.assumed |= each.assumed
            self.rules.relaxed |= each.relaxed
            is_long &= each.is_long
        if whole.findings or whole.error is not None:
            raise Refused(f"there is a finding with {steps} K steps")
        assert cuts is not None
        return cuts, is_long

    def _end(self, branches: Branches, name: str, ended: dict[tuple[Warp, int], int], *, is_long: bool) -> NoReturn:
        """End a copy of the process that has made the rest of a run; its name is that of the size."""
        sizes, note = self.sizes, (f"found with {name}",)
        sizes.findings = [replace(each, notes=(*each.notes[:-1], *note)) for each in sizes.findings]
        if sizes.error is not None:
            sizes.error.notes = (*sizes.error.notes[:-1], *note)
        branches.end(Branch(sizes, ended, is_long, self.rules.assumed, self.rules.relaxed))


def _all_of(runs: Iterable[Callable[[], object]]) -> bool:
    """Make runs one after the other."""
    for run in runs:
        run()
    return True


def _named(steps: int, count: int) -> str:
    return f"{steps} K steps" if count == 1 else f"{count} tiles of {steps} K steps"


def _is_outside_arrays(fault: Fault) -> bool:
    return fault.diag is Diag.OUT_OF_BOUNDS and "global memory" in fault.what
