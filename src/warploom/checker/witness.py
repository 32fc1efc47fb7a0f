"""Witnesses: schedules that turn a finding into a wrong number, a fault or a hang.

A finding says that the second party does not wait for the first. So the first is held back: its operation, or its warp,
moves only when nothing else can. The run is recorded, and replays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from warploom.checker.codes import CODES
from warploom.checker.report import Finding, Party, Witness
from warploom.checker.rules import RELAXATIONS
from warploom.diagnostics import Loc, Stuck, WarploomError
from warploom.host.arrays import is_array, numpy_of
from warploom.host.launch import Launch
from warploom.host.tensor_map import TensorMap
from warploom.launcher import prepare
from warploom.machine.core.grid import Grid
from warploom.machine.core.options import family_of
from warploom.machine.core.schedule import (
    HELD,
    Eager,
    Lazy,
    Random,
    Recorded,
    Reverse,
    Schedule,
    Weak,
    default,
)

TRIES = 5
"""Schedules that are tried for one finding."""
_FAULTING = frozenset({"FAULT", "MBAR_LIFETIME", "REMOTE_AFTER_EXIT", "TMEM_DEALLOC_EARLY"})
"""Findings that show as a fault at their own instruction. Such a fault is no witness of another finding."""
_UNSEEN = "no schedule shows it: no wgmma of this launch reads a register that was written since the last wgmma.fence"


@dataclass
class HoldBack:
    """A warp, or its operations of some families, move only when nothing else can; one warp goes first."""

    held: str
    """The warp, as it begins the description of a step: `CTA (0,0) warp 3`."""
    families: frozenset[str] = frozenset()
    first: str = ""
    """The warp that runs whenever it can."""
    late: bool = False
    """Other operations complete late, too."""
    name: str = "hold back"
    convoys: bool = field(default=False, init=False)
    two_views: bool = field(default=True, init=False)
    preempts: bool = True
    starves: bool = field(default=True, init=False)
    buffers: bool = field(default=False, init=False)

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind != "step":
            return default(kind, options, groups)
        launch = bool(options[-1] == "launch")
        operations, warps = range(groups, len(options) - launch), range(groups)
        order = chain(warps, operations) if self.late else chain(operations, warps)
        free = [at for at in order if self._free(options[at])]
        if free:
            return next((at for at in free if self.first and _is_of(options[at], self.first)), free[0])
        if launch:
            return len(options) - 1
        return groups if operations else 0

    def _free(self, option: str) -> bool:
        if not _is_of(option, self.held):
            return True
        return bool(self.families) and family_of(option) not in self.families


def _is_of(option: str, warp: str) -> bool:
    """True for a step of a warp, of some of its lanes, or of its operations."""
    return option.startswith(warp) and not option[len(warp) : len(warp) + 1].isdigit()


def _warp(party: Party) -> str:
    x, y, z = party.cta
    return f"CTA ({x},{y}{f',{z}' if z else ''}) warp {party.warp}"


def schedules(finding: Finding) -> Iterator[tuple[str, Schedule]]:
    """Schedules that may show a finding, the most promising first, with their descriptions."""
    first = list(_first(finding))
    yield from first
    if len(finding.parties) > 1 and not finding.code.startswith("WGMMA"):
        yield from _delays(*finding.parties[:2])
    elif finding.parties:
        party = finding.parties[0]
        yield f"{party.who} late", HoldBack(_warp(party))
        yield f"{party.who} first", HoldBack("none", first=_warp(party))
    others: list[Schedule] = [Lazy(), Reverse(), *(Random(seed) for seed in range(TRIES))]
    for schedule in others:
        if schedule.name not in {name for name, _ in first}:
            yield _named(schedule), schedule


def _first(finding: Finding) -> Iterator[tuple[str, Schedule]]:
    """Schedules that show most findings of a code."""
    tried: tuple[Schedule, ...] = ()
    match finding.code:
        case "FENCE_PROXY":
            tried = (Lazy(),)
        case "VISIBILITY":
            tried = (Weak(), Weak(1), Weak(2))
        case "LOST_UPDATE":
            tried = (Random(0), Random(1), Random(2))
    for schedule in tried:
        yield _named(schedule), schedule


def _named(schedule: Schedule) -> str:
    seed = getattr(schedule, "seed", None)
    return schedule.name if seed is None else f"{schedule.name}, seed {seed}"


def _delays(new: Party, old: Party) -> Iterator[tuple[str, Schedule]]:
    """Schedules in which the second party does not meet the first."""
    opcode = ".".join(next((w for w in old.instruction.split() if not w.startswith("@")), "").split(".")[:2])
    if old.is_asynchronous:
        for preempts in (False, True):
            families = frozenset(_families(opcode))
            yield f"{opcode} of {old.who} late", HoldBack(_warp(old), families, _warp(new), preempts=preempts)
    else:
        yield f"{old.who} late", HoldBack(_warp(old), first=_warp(new))
        if not new.is_asynchronous:
            yield "weak, seed 0", Weak()
        yield f"{old.who} late, operations too", HoldBack(_warp(old), first=_warp(new), late=True)
    yield f"{new.who} late", HoldBack(_warp(new), first=_warp(old))


def _families(opcode: str) -> Iterator[str]:
    """The instruction families whose operations an opcode may be; they are spelled from its first words on."""
    for families in HELD.values():
        yield from (family for family in families if family.startswith(opcode))
    yield opcode


class Confirmation:
    """Runs a launch under schedules, on copies of its arrays, and compares with the eager run."""

    def __init__(self, launch_: Launch, limit: int | None, budget: int) -> None:
        self._launch, self._limit, self._left = launch_, limit, budget
        self._expected: list[Any] | None = None
        self._faults: set[tuple[Loc | None, str]] = set()
        """The instructions of other findings that fault, and of the fault or hang of the eager run."""
        self._unordered = 0
        """The values of registers in the last run that a wgmma did not see, because no fence came after their write."""
        self.runs = 0

    def witnesses(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings with their witnesses, as far as the budget reaches."""
        faulting = (party for each in findings if each.code in _FAULTING for party in each.parties)
        self._faults.update((party.loc, _opcode(party.instruction)) for party in faulting)
        return tuple(replace(finding, witness=self._witness(finding)) for finding in findings)

    def _witness(self, finding: Finding) -> Witness | None:
        if finding.code in ("DEADLOCK", "FAULT"):
            recorded = Recorded(Eager())
            kind, text = self._outcome(recorded, finding)
            return Witness(kind, text, recorded, "eager", 1) if kind else None
        if not CODES[finding.code].replayable:
            return Witness(
                "", "no schedule shows this class of defect: the emulator has one order of visibility for it"
            )
        excuse = RELAXATIONS.get(finding.excused_by)
        if excuse is not None and excuse.unseen:
            return Witness("", f"no schedule shows it: {excuse.unseen}")
        tried = 0
        for name, schedule in schedules(finding):
            if tried == TRIES or self._left <= 0:
                break
            tried += 1
            recorded = Recorded(schedule)
            kind, text = self._outcome(recorded, finding)
            if kind:
                return Witness(kind, text, recorded, name, tried)
            if finding.code == "WGMMA_FENCE" and not schedule.convoys and not self._unordered:
                return Witness("", _UNSEEN)
        return Witness("", f"not shown by {tried} schedules", tried=tried) if tried else None

    def _outcome(self, schedule: Schedule, finding: Finding) -> tuple[str, str]:
        """The kind of failure under a schedule, and a description; empty if there is none.

        A fault at the instruction of a finding that faults counts as that one's, if the finding in question is another.
        A hang of the eager run counts for a finding only if warps wait for its barrier.
        """
        if self._expected is None:
            expected, failed = self._run(Eager())
            self._expected = [] if failed is not None else expected
            if failed is not None:
                self._faults.add(_place(failed))
        self._left -= 1
        found, error = self._run(schedule)
        if error is not None:
            own = finding.code in _FAULTING or finding.code == "DEADLOCK" or _waits_there(error, finding)
            return ("", "") if not own and _place(error) in self._faults else (error.code, error.what.rstrip("."))
        different = _difference(self._expected, found)
        return ("disagreement", different) if different else ("", "")

    def _run(self, schedule: Schedule) -> tuple[list[tuple[str, Any, Any]], WarploomError | None]:
        setup = prepare(self._launch, schedule, None, self._limit, (), None)
        for region, _ in setup.memory.arrays:
            region.data = region.data.copy()
        arrays = [(region.name, self._dtype(region.name), region.data) for region, _ in setup.memory.arrays]
        grid = Grid(setup)
        self.runs += 1
        try:
            with np.errstate(all="ignore"):
                grid.run()
        except WarploomError as error:
            return arrays, error
        finally:
            self._unordered = grid.unordered
            grid.discard()
        return arrays, None

    def _dtype(self, name: str) -> Any:
        """The element type of an argument, by the name of its region: `argument 2, c`."""
        number = name.removeprefix("argument ").partition(",")[0]
        argument = self._launch.args[int(number)] if number.isdigit() else None
        array = argument.array if isinstance(argument, TensorMap) else argument
        return numpy_of(array).dtype if is_array(array) else np.dtype(np.uint8)


def _place(error: WarploomError) -> tuple[Loc | None, str]:
    """The line and the opcode of a fault; the notes of a fault begin with its instruction."""
    return error.loc, "" if isinstance(error, Stuck) or not error.notes else _opcode(error.notes[0])


def _opcode(instruction: str) -> str:
    """An instruction without its guard and operands."""
    return next((word for word in instruction.split() if not word.startswith("@")), "").rstrip(";")


def _waits_there(error: WarploomError, finding: Finding) -> bool:
    """True for a hang in which a warp waits for the barrier of a finding, or for another one of the same array."""
    names = {party.barrier.partition("[")[0] for party in finding.parties} - {""}
    return isinstance(error, Stuck) and any(f"waits for {name}" in note for name in names for note in error.notes)


def _difference(expected: list[tuple[str, Any, Any]], found: list[tuple[str, Any, Any]]) -> str:
    """The first element that differs, in words, and how many do."""
    for (name, dtype, old), (_, _, new) in zip(expected, found, strict=False):
        if np.array_equal(old, new):
            continue
        size = dtype.itemsize if len(old) % dtype.itemsize == 0 else 1
        wrong = np.flatnonzero((old != new).reshape(-1, size).any(axis=1))
        at = int(wrong[0])
        typed = dtype if size == dtype.itemsize else np.dtype(np.uint8)
        values = [each[at * size : (at + 1) * size].view(typed)[0] for each in (new, old)]
        text = f"element {at} of {name} is {values[0]} instead of {values[1]}"
        return f"{text}; {len(wrong):,} of {len(old) // size:,} differ from the eager run"
    return ""
