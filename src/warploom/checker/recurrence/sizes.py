"""All sizes: from one checked run to every number of K steps and of tiles, by recurrence.

A run with many steps shows two points of equal state (`state.py`). The part between them may be repeated any
number of times, if nothing that steers the kernel depends on the counters that it moves (`loops.py`). What is left are
the runs with few steps and one run for each remainder of the period, which are checked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from warploom.checker.collecting import Findings
from warploom.checker.determinism import influences, polls
from warploom.checker.observer import Checker
from warploom.checker.recurrence.cuts import Cuts, Repeat
from warploom.checker.recurrence.loops import Counted, Loops, evaluate, owners, params_of
from warploom.checker.report import Finding
from warploom.checker.rules import Rules
from warploom.checker.runs import Checked, checked_run
from warploom.diagnostics import Diag, Fault, WarploomError
from warploom.host.launch import Launch, Triple, entry_of
from warploom.launcher import prepare
from warploom.machine.core.schedule import Eager

_SCOUTS = (40, 80, 160)
"""K steps of the run in which a recurrence is looked for; more if there is none."""
_TILE_SCOUTS = (12, 24, 48)
_ENUMERATED = 18
"""K steps that are run where no recurrence is looked for: two laps of eight stages, and two more."""
_FAR = tuple(range(1, 9)) + tuple(1 << bit for bit in range(4, 18))
"""Multiples of the period at which bounds and steering values are evaluated: they must be linear and constant there."""
_LARGEST = 1 << 30


@dataclass(slots=True)
class Sizes:
    """The result of a check of all sizes: the sizes that are covered, and why others are not."""

    covered: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Parameters for which the verdict holds as run only, each with the reason."""
    findings: list[Finding] = field(default_factory=list)
    error: WarploomError | None = None
    runs: int = 0
    events: int = 0
    used: int = 0


class _Refused(Exception):
    """A generalisation that cannot be made, with the reason."""


class Family:
    """The launches that differ from a given one in its sizes only."""

    def __init__(self, launch: Launch, rules: Rules, limit: int | None) -> None:
        self.launch, self.rules, self.limit = launch, rules, limit
        program = prepare(launch, Eager(), None, limit, (), None).program
        self.flow, self.loops = program.flow, Loops(program.flow)
        self.steering = self.loops.steering()
        names = [param.name for param in entry_of(program.module, launch.entry).params]
        self.params = {name: at for at, name in enumerate(names)}
        self.scalars = {
            name: int(launch.args[at])
            for name, at in self.params.items()
            if at < len(launch.args) and isinstance(launch.args[at], (int, np.integer))
        }
        self.values: dict[str, int] = dict(self.scalars)
        """The values of parameters, and of special registers where one CTA stands for all."""
        self.sizes = Sizes()
        self.launched = 0

    def check(self) -> Sizes:
        """Check all sizes, as far as it is possible."""
        try:
            self._refuse()
            k = self._k_dimension()
            tiles = self._tile_dimension(k)
            self.launched = self._trips(k.primary, k.name, self.scalars[k.name]) or 0
        except _Refused as why:
            self._enumerate(str(why))
            return self.sizes
        try:
            period = self._steps(k, tiles)
        except _Refused as why:
            self.sizes.left.append(f"K steps ({why})")
            return self.sizes
        if tiles is None:
            self.sizes.covered.append("number of clusters")
            self.rules.assumed["fresh-tiles"] += 1
            return self.sizes
        try:
            self._tiles(k, tiles, period)
        except _Refused as why:
            self.sizes.left.append(f"tiles of a cluster ({why})")
        return self.sizes

    def _enumerate(self, why: str) -> None:
        """Run some numbers of K steps, where other things than parameters steer the kernel too."""
        x, y, z = self.launch.grid
        self.values |= {"%nctaid.x": x, "%nctaid.y": y, "%nctaid.z": z, "%cluster_ctarank": 0}
        self.values |= {f"%ctaid.{axis}": 0 for axis in "xyz"}
        try:
            k = self._k_dimension()
            for steps in range(1, _ENUMERATED + 1):
                args = list(self.launch.args)
                args[self.params[k.name]] = self.value_for(k, steps)
                self._judge(replace(self.launch, args=tuple(args)), f"{steps} K steps", None, steps > self.launched)
        except _Refused as more:
            self.sizes.left.append(f"sizes ({why}; {more})")
            return
        self.sizes.covered.append(f"{k.name} of 1 to {_ENUMERATED} K steps, each run")
        self.sizes.left.append(f"other sizes ({why})")

    def _refuse(self) -> None:
        """Leave kernels alone that are steered by more than their parameters."""
        others = sorted({each.kind for each in influences(self.flow)} - {"clc"})
        if others or polls(self.flow):
            raise _Refused("control depends on memory that other clusters change")
        if self.steering.data_loads:
            text = " ".join(self.steering.data_loads[0].instruction.text.split())
            raise _Refused(f"control depends on data: `{text}`")
        if told := owners(self.steering.specials):
            raise _Refused(f"control depends on {', '.join(told)}")

    def _k_dimension(self) -> _Dimension:
        """The parameter that decides how often the innermost loops run."""
        found: dict[str, list[Counted]] = {}
        for counted in self.steering.counted.values():
            for name in params_of(counted.bound) & self.scalars.keys() if counted.leaves else ():
                few, many = (self._trips(counted, name, value) for value in (1, 1 << 20))
                if few is not None and many is not None and few < many:
                    found.setdefault(name, []).append(counted)
        if not found:
            raise _Refused("no loop is bounded by a scalar parameter alone")
        if len(found) > 1:
            raise _Refused(f"loops are bounded by several parameters: {', '.join(sorted(found))}")
        ((name, loops),) = found.items()
        primary = max(loops, key=lambda each: self._trips(each, name, 1 << 20) or 0)
        return _Dimension(name, primary)

    def _trips(self, counted: Counted, name: str, value: int) -> int | None:
        values = {**self.values, name: value}
        bound, first, step = (evaluate(each, values) for each in (counted.bound, counted.first, counted.step))
        if bound is None or first is None or not step or step < 0:
            return None
        return max(-(-(bound - first) // step), 0)

    def value_for(self, dimension: _Dimension, steps: int) -> int:
        """The largest value of a parameter for which the loop has so many steps."""
        low, high = 0, 1
        while (self._trips(dimension.primary, dimension.name, high) or 0) <= steps:
            high *= 2
            if high > _LARGEST:
                raise _Refused(f"{dimension.name} cannot be found for {steps} steps")
        while high - low > 1:
            middle = (low + high) // 2
            if (self._trips(dimension.primary, dimension.name, middle) or 0) <= steps:
                low = middle
            else:
                high = middle
        if self._trips(dimension.primary, dimension.name, low) != steps:
            raise _Refused(f"no value of {dimension.name} gives {steps} steps")
        return low

    def _tile_dimension(self, k: _Dimension) -> _Tiles | None:
        """The way to give a cluster more tiles: parameters, or the answers of cluster launch control."""
        if self.steering.asks:
            return _Tiles(())
        outer = [
            each
            for each in self.steering.counted.values()
            if each.leaves and params_of(each.bound) and k.name not in params_of(each.bound)
        ]
        if not outer:
            return None
        names = sorted({name for each in outer for name in params_of(each.bound)})
        if any(name not in self.scalars for name in names):
            raise _Refused(f"loops are bounded by {', '.join(names)}")
        return _Tiles(tuple(names))

    def variant(self, k: _Dimension, steps: int, tiles: _Tiles | None, count: int) -> Launch:
        """The launch of one cluster with so many K steps and tiles."""
        args = list(self.launch.args)
        args[self.params[k.name]] = self.value_for(k, steps)
        shape: Triple = self.launch.cluster
        if tiles is not None:
            for at, name in enumerate(tiles.names):
                args[self.params[name]] = count if at == 0 else 1
            if not tiles.names:
                shape = (shape[0] * count, shape[1], shape[2])
        return replace(self.launch, args=tuple(args), grid=shape)

    def run(self, k: _Dimension, tiles: _Tiles | None, steps: int, count: int = 1, *, cuts: str = "") -> Checked:
        """Check one size; a finding or an error ends the search. `cuts` takes states: of all `steps`, or of `tiles`."""
        what = f"{steps} K steps" if count == 1 else f"{count} tiles of {steps} K steps"
        watch = self._watch(tiles=cuts == "tiles") if cuts else None
        return self._judge(self.variant(k, steps, tiles, count), what, 1, steps > self.launched, watch)

    def _judge(
        self,
        launch: Launch,
        what: str,
        sms: int | None,
        is_larger: bool,
        watch: Callable[[Checker], Cuts] | None = None,
    ) -> Checked:
        found, sizes = Findings(), self.sizes
        checked = checked_run(launch, self.rules, found, sms=sms, limit=self.limit, watch=watch)
        sizes.runs += 1
        sizes.events += checked.checker.events
        sizes.used += checked.used
        sizes.findings += [replace(each, notes=(*each.notes, f"found with {what}")) for each in found.all()]
        if is_larger and isinstance(checked.error, Fault) and _is_outside_arrays(checked.error):
            raise _Refused(f"the arrays of the launch are too small for {what}; launch it with a larger K")
        if checked.error is not None:
            sizes.error = checked.error
            sizes.error.notes = (*sizes.error.notes, f"found with {what}")
        if sizes.findings or sizes.error is not None:
            raise _Refused(f"there is a finding with {what}")
        return checked

    def _steps(self, k: _Dimension, tiles: _Tiles | None) -> int:
        """Prove all numbers of K steps for one tile of a cluster; the period of the recurrence."""
        reason = "no state recurs"
        done: set[int] = set()
        for scout in _SCOUTS:
            checked = self.run(k, tiles, scout, cuts="steps")
            done.add(scout)
            assert checked.cuts is not None
            reason = checked.cuts.reason or reason
            for repeat in checked.cuts.repeats():
                try:
                    period, least = self._pumps(k, checked.cuts, repeat, scout)
                except _Refused as why:
                    reason = str(why)
                    continue
                for steps in range(1, least + period):
                    if steps not in done:
                        self.run(k, tiles, steps)
                unit = self.value_for(k, 2) - self.value_for(k, 1)
                cut = max(checked.cuts.found[repeat.first].comparisons[key].counter for key in repeat.moved)
                one = "" if tiles is None else " with one tile of a cluster"
                ran = f"1 to {least + period - 1} K steps of {unit} run"
                start = f"a period of {period} steps from step {cut}"
                self.sizes.covered.append(f"{k.name} >= 1{one} ({ran}; more by recurrence with {start})")
                return period
        raise _Refused(reason)

    def _watch(self, *, tiles: bool) -> Callable[[Checker], Cuts]:
        return lambda checker: Cuts(checker, self.loops, self.steering, tiles=tiles)

    def _pumps(self, k: _Dimension, cuts: Cuts, repeat: Repeat, scout: int) -> tuple[int, int]:
        """The K steps that a repeat adds, and the least number of steps from which on it may be repeated."""
        primary = id(k.primary.op)
        moves = {delta for (_, key), delta in repeat.moved.items() if key == primary}
        if len(moves) != 1:
            raise _Refused("warps do not repeat the loop equally often")
        step = evaluate(k.primary.step, self.values) or 1
        period = moves.pop() // step
        if period < 1:
            raise _Refused("the part that recurs moves no counter")
        for key, counted in self.steering.counted.items():
            unsized = k.name not in params_of(counted.bound) | params_of(counted.first)
            if unsized and any(other == key and repeat.before[at, other] for at, other in repeat.moved):
                raise _Refused(f"`{_text(counted)}` is not passed where the state recurs")
        least = self._least(k, cuts, repeat)
        for user, key in cuts.users:
            counted = self.steering.counted[key]
            if k.name in params_of(counted.bound) | params_of(counted.first):
                moved = repeat.moved.get((user, key), 0) if repeat.before.get((user, key), True) else 0
                self._check_growth(k, period, least, scout, counted, moved)
        self._check_values(k, period, least, scout)
        self._check_between(k, least)
        return period, least

    def _check_between(self, k: _Dimension, least: int) -> None:
        """The values of the parameter that give equally many steps must not differ in anything that steers."""
        found = [each for each in self.steering.values if k.name in params_of(each)]
        for counted in self.steering.counted.values():
            found += [each for each in (counted.bound, counted.first) if k.name in params_of(each)]
        for steps in (*range(2, least + 1), *(least + multiple for multiple in _FAR)):
            first = {**self.values, k.name: self.value_for(k, steps - 1) + 1}
            for each in found:
                if evaluate(each, first) != evaluate(each, self._at(k, steps)):
                    raise _Refused(f"control depends on {k.name} by more than the number of steps")

    def _least(self, k: _Dimension, cuts: Cuts, repeat: Repeat) -> int:
        """The least number of steps with which a run begins like the one in which the state recurred."""
        needed = []
        for key in repeat.moved:
            counted = self.steering.counted[key[1]]
            if repeat.before[key]:
                width = evaluate(counted.step, self.values) or 1
                needed.append((counted, cuts.found[repeat.second].comparisons[key].counter + 2 * width))
        steps = 1
        while any((evaluate(counted.bound, self._at(k, steps)) or 0) <= at for counted, at in needed):
            steps += 1
        return steps

    def _at(self, k: _Dimension, steps: int) -> Mapping[str, int]:
        return {**self.values, k.name: self.value_for(k, steps)}

    def _check_growth(self, k: _Dimension, period: int, least: int, scout: int, counted: Counted, moved: int) -> None:
        """The bound of a loop must move by as much as the repeat moves its counter, for all larger sizes."""
        known = self._distance(counted, self._at(k, scout))
        for steps in range(least, least + period):
            start = self._distance(counted, self._at(k, steps))
            grown = [self._distance(counted, self._at(k, steps + period * multiple)) for multiple in _FAR]
            wanted = [None if start is None else start + moved * multiple for multiple in _FAR]
            if start is None or grown != wanted or (not moved and start != known):
                raise _Refused(f"`{_text(counted)}` does not move with {k.name}")

    def _distance(self, counted: Counted, values: Mapping[str, int]) -> int | None:
        bound, first = evaluate(counted.bound, values), evaluate(counted.first, values)
        return None if bound is None or first is None else bound - first

    def _check_values(self, k: _Dimension, period: int, least: int, scout: int) -> None:
        """Steering values that are functions of the parameter must be the same for all sizes."""
        for value, name in self.steering.values.items():
            if k.name not in params_of(value):
                continue
            known = evaluate(value, self._at(k, scout))
            for steps in range(least, least + period):
                for multiple in (0, *_FAR):
                    if known is None or evaluate(value, self._at(k, steps + period * multiple)) != known:
                        raise _Refused(f"{name} depends on {k.name}, and steers more than the number of steps")

    def _tiles(self, k: _Dimension, tiles: _Tiles, period: int) -> None:
        """Prove all numbers of tiles, with as many K steps as stages: the ring is where it was after every tile."""
        steps = max(period // 2, 1)
        text = self._tiles_with(k, tiles, steps)
        self.sizes.covered.append(f"tiles of a cluster >= 1 with {steps} K steps ({text})")
        self.sizes.left.append("tiles of a cluster with other numbers of K steps")
        self.rules.assumed["fresh-tiles"] += 1

    def _check_tiles(self, tiles: _Tiles, cuts: Cuts, repeat: Repeat, scout: int) -> None:
        """Nothing but the number of passes of tile loops may depend on the number of tiles."""
        if not tiles.names:
            if repeat.moved:
                raise _Refused("counters move with the tiles")
            return
        name, period = tiles.names[0], repeat.second - repeat.first
        start = dict.fromkeys(tiles.names, 1) | {name: scout}
        for value, register in self.steering.values.items():
            if params_of(value) & start.keys():
                counts = (1, 2, scout, scout + 1, *_FAR)
                if len({evaluate(value, {**self.values, **start, name: each}) for each in counts}) > 1:
                    raise _Refused(f"{register} depends on {name}, and steers more than the number of tiles")
        for user, key in cuts.users:
            counted = self.steering.counted[key]
            if not params_of(counted.bound) & start.keys():
                if (user, key) in repeat.moved:
                    raise _Refused(f"`{_text(counted)}` moves with the tiles")
                continue
            known = evaluate(counted.bound, {**self.values, **start})
            moved = repeat.moved.get((user, key), 0) if repeat.before.get((user, key)) else 0
            for multiple in _FAR:
                grown = evaluate(counted.bound, {**self.values, **start, name: scout + period * multiple})
                if not moved or known is None or grown is None or grown - known != moved * multiple:
                    raise _Refused(f"`{_text(counted)}` does not move with {name}")

    def _most_tiles(self, tiles: _Tiles) -> int:
        """The tiles that the arrays of the launch have room for: stores outside an array would touch less."""
        return self.scalars[tiles.names[0]] if tiles.names else self.launch.grid[0] // self.launch.cluster[0]

    def _tiles_with(self, k: _Dimension, tiles: _Tiles, steps: int) -> str:
        reason = "no state recurs"
        most = self._most_tiles(tiles)
        for scout in sorted({min(each, most) for each in _TILE_SCOUTS}):
            checked = self.run(k, tiles, steps, scout, cuts="tiles")
            assert checked.cuts is not None
            reason = checked.cuts.reason or reason
            for repeat in checked.cuts.repeats():
                period = repeat.second - repeat.first
                self._check_tiles(tiles, checked.cuts, repeat, scout)
                end = checked.cuts.found[repeat.second]
                begun = [end.comparisons[key].counter + 2 for key in repeat.moved]
                least = max(end.taken if not tiles.names else 0, repeat.second + 3, *begun) + 1
                if least + period - 1 > most:
                    raise _Refused(f"{least + period - 1} tiles must be run, and the launch has {most}")
                for count in range(1, least + period):
                    if count != scout:
                        self.run(k, tiles, steps, count)
                last = least + period - 1
                start = f"a period of {period} tiles from tile {repeat.first}"
                return f"1 to {last} run; more by recurrence with {start}"
        raise _Refused(f"{reason} with {steps} K steps and at most {min(most, _TILE_SCOUTS[-1])} tiles")


def _is_outside_arrays(fault: Fault) -> bool:
    return fault.diag is Diag.OUT_OF_BOUNDS and "global memory" in fault.what


def _text(counted: Counted) -> str:
    return " ".join(counted.op.instruction.text.split())


@dataclass(frozen=True, slots=True)
class _Dimension:
    """A parameter that bounds loops, and the loop whose passes are counted as steps."""

    name: str
    primary: Counted


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The parameters whose product is the number of tiles; none where the kernel asks for work."""

    names: tuple[str, ...]
