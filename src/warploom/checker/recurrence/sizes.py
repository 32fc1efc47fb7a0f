"""All sizes: from one checked run to every number of K steps and of tiles, by recurrence.

A run with many steps shows two points of equal state (`state.py`). The part between them may be repeated any
number of times, if nothing that steers the kernel depends on the counters that it moves (`loops.py`, `pumping.py`).
There remain the runs with few steps and one run for each remainder of the period, which are checked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from warploom.checker.collecting import Findings
from warploom.checker.determinism import influences, polls
from warploom.checker.observer import Checker
from warploom.checker.recurrence.cases import cases_of
from warploom.checker.recurrence.cuts import Cuts, Repeat
from warploom.checker.recurrence.loops import owners, params_of
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

_SCOUTS = (40, 80, 160)
"""K steps of the run in which a recurrence is looked for; more if there is none."""
_TILE_SCOUTS = (12, 24, 48)
_ENUMERATED = 18
"""K steps that are run where no recurrence is looked for: two laps of eight stages, and two more."""


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
    findings: list[Finding] = field(default_factory=list)
    error: WarploomError | None = None
    runs: int = 0
    events: int = 0
    used: int = 0


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
        try:
            recurrence = self._steps(k, tiles)
        except Refused as why:
            self.sizes.left.append(f"K steps ({why})")
            return self.sizes
        if tiles is None:
            self.sizes.covered.append("number of clusters")
            self.rules.assumed["fresh-tiles"] += 1
            return self.sizes
        try:
            if pairs:
                self._pairs(k, tiles, recurrence)
            else:
                self._tiles(k, tiles, recurrence.period)
        except Refused as why:
            self.sizes.left.append(f"tiles of a cluster ({why})")
        return self.sizes

    def check_cases(self, cases: Mapping[str, Launch]) -> Sizes:
        """Check further launches, each by its name."""
        try:
            for name, launch in cases.items():
                self._judge(launch, name, None, larger=False)
                self.sizes.cases.append(name)
        except Refused:
            self.sizes.left.append("other cases (there is a finding)")
        return self.sizes

    def _enumerate(self, why: str) -> None:
        """Run some sizes one by one, where other things than parameters steer the kernel too."""
        variants, sizes = self.variants, self.sizes
        x, y, z = self.launch.grid
        variants.values |= {"%nctaid.x": x, "%nctaid.y": y, "%nctaid.z": z, "%cluster_ctarank": 0}
        variants.values |= {f"%ctaid.{axis}": 0 for axis in "xyz"}
        try:
            k = variants.k_dimension()
            launched = variants.launched(k)
            for steps in range(1, _ENUMERATED + 1):
                args = list(self.launch.args)
                args[variants.params[k.name]] = variants.value_for(k, steps)
                launch = replace(self.launch, args=tuple(args))
                self._judge(launch, f"{steps} K steps", None, larger=steps > launched)
            sizes.cases.append(f"{k.name} of 1 to {_ENUMERATED} K steps")
            left = f"other sizes ({why})"
        except Refused as more:
            left = f"sizes ({why}; {more})"
        cases = {} if sizes.findings or sizes.error is not None else cases_of(variants)
        self.check_cases(cases)
        sizes.left.append(left)

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

    def run(
        self,
        k: Dimension,
        tiles: Tiles | None,
        steps: int,
        count: int = 1,
        *,
        cuts: bool = False,
        passes: frozenset[int] | None = None,
    ) -> Checked:
        """Check one size; a finding or an error ends the search. `cuts` takes states, of all steps or of `passes`."""
        what = f"{steps} K steps" if count == 1 else f"{count} tiles of {steps} K steps"
        watch = self._watch(passes) if cuts else None
        launch, larger = self.variants.variant(k, steps, tiles, count), steps > self.variants.launched(k)
        return self._judge(launch, what, 1, larger=larger, watch=watch)

    def _judge(
        self,
        launch: Launch,
        what: str,
        sms: int | None,
        *,
        larger: bool,
        watch: Callable[[Checker], Cuts] | None = None,
    ) -> Checked:
        found, sizes = Findings(), self.sizes
        roomy = self.variants.roomy(launch)
        checked = checked_run(roomy, self.rules, found, sms=sms, limit=self.limit, watch=watch)
        sizes.runs += 1
        sizes.events += checked.checker.events
        sizes.used += checked.used
        if larger and isinstance(checked.error, Fault) and _is_outside_arrays(checked.error):
            if not self.variants.grow():
                raise Refused(f"the arrays of the launch are too small for {what}; launch it with a larger K")
            return self._judge(launch, what, sms, larger=larger, watch=watch)
        sizes.findings += [replace(each, notes=(*each.notes, f"found with {what}")) for each in found.all()]
        if checked.error is not None:
            sizes.error = checked.error
            sizes.error.notes = (*sizes.error.notes, f"found with {what}")
        if sizes.findings or sizes.error is not None:
            raise Refused(f"there is a finding with {what}")
        return checked

    def _watch(self, passes: frozenset[int] | None) -> Callable[[Checker], Cuts]:
        return lambda checker: Cuts(checker, self.variants.loops, self.steering, passes)

    def _steps(self, k: Dimension, tiles: Tiles | None) -> Recurrence:
        """Prove all numbers of K steps for one tile of a cluster."""
        reason = "no state recurs"
        for scout in _SCOUTS:
            checked = self.run(k, tiles, scout, cuts=True)
            assert checked.cuts is not None
            candidates = list(k_parts(self.variants, k, checked.cuts))
            reason = checked.cuts.reason or reason
            for parts in candidates:
                try:
                    period = k_period(self.variants, k, parts)
                    check_k(self.variants, k, checked.cuts, parts, scout)
                    found = self._from_parts(k, tiles, checked.cuts, parts, scout)
                    check_between(self.variants, k, found.least)
                except Refused as why:
                    reason = str(why)
                    if self.sizes.findings or self.sizes.error is not None:
                        raise
                    continue
                unit = self.variants.value_for(k, 2) - self.variants.value_for(k, 1)
                one = "" if tiles is None else " with one tile of a cluster"
                ran = f"1 to {found.least + period - 1} K steps of {unit} run"
                self.sizes.covered.append(f"{k.name} >= 1{one} ({ran}; more by recurrence with {found.text})")
                return found
        raise Refused(reason)

    def _from_parts(
        self, k: Dimension, tiles: Tiles | None, cuts: Cuts, parts: tuple[Repeat, ...], scout: int
    ) -> Recurrence:
        """Run the sizes from which all others follow."""
        period = k_period(self.variants, k, parts)
        ends = cuts.found[parts[0].first].counter, cuts.found[parts[0].second].counter
        if len(parts) == 1:
            least = least_steps(self.variants, k, cuts, parts[0])
            residues = range(least, least + period)
            if is_like(self.variants, k, scout, residues):
                for steps in residues:
                    check_k(self.variants, k, cuts, parts, steps)
                for steps in range(1, least + period):
                    if steps != scout:
                        self.run(k, tiles, steps)
                text = f"a period of {period} steps from step {self._begin(cuts, parts[0])}"
                return Recurrence(period, least, *ends, text)
        for steps in range(scout + 1, scout + period):
            self._recur(k, tiles, steps, period)
        for steps in range(1, scout):
            self.run(k, tiles, steps)
        begin = ", ".join(str(self._begin(cuts, part)) for part in parts)
        text = f"a period of {period} steps, which each of the last {period} shows from step {begin}"
        return Recurrence(period, scout, *ends, text)

    def _recur(self, k: Dimension, tiles: Tiles | None, steps: int, period: int) -> None:
        """Check a size whose own run must show a recurrence."""
        checked = self.run(k, tiles, steps, cuts=True)
        assert checked.cuts is not None
        reason = checked.cuts.reason or f"no state recurs with {steps} K steps"
        for parts in k_parts(self.variants, k, checked.cuts):
            try:
                if k_period(self.variants, k, parts) == period:
                    check_k(self.variants, k, checked.cuts, parts, steps)
                    return
            except Refused as why:
                reason = str(why)
        raise Refused(reason)

    def _begin(self, cuts: Cuts, part: Repeat) -> int:
        return max(cuts.found[part.first].comparisons[key].counter for key in part.moved)

    def _tiles(self, k: Dimension, tiles: Tiles, period: int) -> None:
        """Prove all numbers of tiles, with as many K steps as stages: the ring is where it was after every tile."""
        steps = max(period // 2, 1)
        text = self._tiles_with(k, tiles, steps)
        self.sizes.covered.append(f"tiles of a cluster >= 1 with {steps} K steps ({text})")
        self.sizes.left.append("tiles of a cluster with other numbers of K steps")
        self.rules.assumed["fresh-tiles"] += 1

    def _pairs(self, k: Dimension, tiles: Tiles, found: Recurrence) -> None:
        """Prove all numbers of tiles with all numbers of K steps.

        From the least number of steps whose runs show the recurrence of K steps in every tile, the others follow: one
        for each remainder of the period, of which both less and more repetitions of the part are runs of the kernel.
        """
        period, step = found.period, (found.end - found.begin) // found.period
        # A turn of a warp may be two passes long, so that one of two neighbouring passes is seen.
        ends = tuple((found.begin + late, found.end + late) for late in (0, step))
        least = found.least + 1
        largest = range(least + period, least + 2 * period)
        for steps in (*range(1, least), *largest):
            self._tiles_with(k, tiles, steps, ends if steps in largest else ())
        ran = f"1 to {least - 1} and {largest[0]} to {largest[-1]} K steps run, each by recurrence of tiles"
        self.sizes.covered[-1] = f"{k.name} >= 1 with any number of tiles of a cluster >= 1 ({ran}; {found.text})"
        self.rules.assumed["fresh-tiles"] += 1

    def _check_inner(self, k: Dimension, cuts: Cuts, ends: tuple[tuple[int, int], ...], steps: int) -> None:
        """Every tile of a run must show the recurrence of K steps."""
        counted = self.steering.counted.values()
        heads = {each.head for each in counted if each.leaves and k.name in params_of(each.bound)}
        for loop, part in cuts.inner(ends).items():
            if loop[0] in heads:
                if part is None:
                    raise Refused(f"tile {loop[1]} of {steps} K steps does not show the recurrence of K steps")
                check_k(self.variants, k, cuts, (part,), steps)

    def _tiles_with(self, k: Dimension, tiles: Tiles, steps: int, ends: tuple[tuple[int, int], ...] = ()) -> str:
        """Prove all numbers of tiles with one number of K steps; with `ends`, each tile shows the recurrence of K."""
        reason = "no state recurs"
        most = self.variants.most_tiles(tiles)
        passes = frozenset(each for pair in ends for each in pair)

        def checked_cuts(count: int) -> Cuts:
            checked = self.run(k, tiles, steps, count, cuts=True, passes=passes)
            assert checked.cuts is not None
            if ends:
                self._check_inner(k, checked.cuts, ends, steps)
            return checked.cuts

        for scout in sorted({min(each, most) for each in _TILE_SCOUTS}):
            cuts = checked_cuts(scout)
            repeats = cuts.repeats()
            reason = cuts.reason or reason
            for repeat in repeats:
                try:
                    period = check_tiles(self.variants, tiles, cuts, repeat, scout)
                except Refused as why:
                    reason = str(why)
                    continue
                begin = cuts.found[repeat.first]
                begun = [begin.comparisons[key].compared + 2 for key in repeat.moved]
                least = max(0 if tiles.names else begin.taken, begin.loop[1] + 2, *begun) + 1
                if least + period - 1 > most:
                    raise Refused(f"{least + period - 1} tiles must be run, and the launch has {most}")
                for count in range(1, least + period):
                    if count != scout:
                        if ends:
                            checked_cuts(count)
                        else:
                            self.run(k, tiles, steps, count)
                start = f"a period of {period} tiles from tile {begin.loop[1]}"
                return f"1 to {least + period - 1} run; more by recurrence with {start}"
        raise Refused(f"{reason} with {steps} K steps and at most {min(most, _TILE_SCOUTS[-1])} tiles")


def _is_outside_arrays(fault: Fault) -> bool:
    return fault.diag is Diag.OUT_OF_BOUNDS and "global memory" in fault.what
