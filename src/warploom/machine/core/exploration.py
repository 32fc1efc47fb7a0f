"""Exploration: a portfolio of schedules for one launch, and the first failure shrunk to few decisions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from warploom.diagnostics import Diag
from warploom.machine.core.options import family_of
from warploom.machine.core.schedule import (
    HELD,
    Delay,
    Eager,
    Hold,
    Lazy,
    Random,
    Recorded,
    Reverse,
    Schedule,
    Starve,
    Switch,
    Weak,
    switches,
)

if TYPE_CHECKING:
    from warploom.machine.observers.events import Event

T = TypeVar("T")
DEFAULT_BUDGET = 64
_SHRINKING_RUNS = 48
_MOST_TEXT = 160
_FLOAT_ADD = re.compile(r"\.add(?:\.\w+)*\.(?:b?f16(?:x2)?|f32|f64)\b")
_MOST_WARPS = 16
_MOST_BARRIERS = 12


@dataclass(frozen=True)
class Failure:
    """A schedule under which a launch went wrong.

    `kind` is "mismatch" (`compare` refused the results), "disagreement" (they differ from those of the eager schedule)
    or the code of an error. `schedule` replays the run and can be saved; `delayed` are the operations and warps that it
    keeps back until nothing else can move, as few as show the failure (none: delays alone do not show it), and
    `switched` the places where it interrupts a warp, where that shows it. `event` is the first event that a passing run
    does not have there: what went ahead of the delayed or interrupted, or the first store that reaches others late.
    `array` and `index` name the first element that differs (its byte, where the array is not contiguous), and
    `written_by` is the event that wrote it last.
    """

    kind: str
    schedule: Recorded
    found_by: str
    delayed: tuple[str, ...] = ()
    array: str = ""
    index: tuple[int, ...] = ()
    expected: Any = None
    found: Any = None
    event: Event | None = None
    written_by: Event | None = None
    switched: tuple[str, ...] = ()

    def __str__(self) -> str:
        delayed = "; ".join(self.delayed[:4]) + (f" and {len(self.delayed) - 4} more" if len(self.delayed) > 4 else "")
        text = f"{self.kind} under `{self.found_by}`" + (f", shown by delaying {delayed}" if delayed else "")
        if self.switched:
            text += f", shown by interrupting {'; '.join(self.switched[:4])}"
        if self.event is not None:
            text += f"; parts from a passing run where {_place(self.event)}"
        if self.array:
            place = self.index[0] if len(self.index) == 1 else self.index
            text += f": element {place} of {self.array} is {self.found}, under `eager` {self.expected}"
        if self.written_by is not None:
            text += f"; written by {_place(self.written_by)}"
        return text


def _cta(event: Event) -> str:
    x, y, z = event.agent.cta
    return f"CTA ({x},{y},{z})" if z else f"CTA ({x},{y})"


def _place(event: Event) -> str:
    """The agent and the instruction of an event: `CTA (0,0), warp 3 at FILE:12: `st.global…``."""
    cta = _cta(event)
    done = " completes" if event.kind == "complete" and event.operation else ""
    text = event.source.text
    short = text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"
    return f"{cta}, warp {event.agent.warp} at {event.source.loc}: `{short}`{done}"


class Parting:
    """An observer of two runs that finds the first event of the second that the first does not have there."""

    def __init__(self) -> None:
        self._passing: list[int] = []
        self._at = -1
        self.event: Event | None = None

    def on_event(self, event: Event) -> None:
        what = (event.kind, event.verb, event.agent, event.lanes, event.source.line, event.source.text)
        found = hash((*what, event.barrier, event.phase, event.count, event.operation))
        if self._at < 0:
            self._passing.append(found)
        elif self.event is None:
            if self._at >= len(self._passing) or self._passing[self._at] != found:
                self.event = event
            self._at += 1

    def turn(self) -> None:
        """The first run is over."""
        self._at = 0


class DelayedStores:
    """An observer that finds the first of some stores that are named as store buffers name them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self._counts: dict[str, int] = {}
        self.event: Event | None = None

    def on_event(self, event: Event) -> None:
        if self.event is not None or event.kind != "access" or not event.source.instruction.opcode.startswith("st."):
            return
        of = f"{_cta(event)} warp {event.agent.warp}: store.{event.space}"
        number = self._counts[of] = self._counts.get(of, -1) + 1
        if f"{of} {number}" in self._names:
            self.event = event


class Writes:
    """Collects writes to global memory, to find the latest of an address."""

    def __init__(self) -> None:
        self._events: list[tuple[Event, Any, int]] = []

    def on_event(self, event: Event) -> None:
        if event.kind in ("access", "complete"):
            for touch in event.touches:
                if touch.verb == "writes" and touch.space == "global":
                    self._events.append((event, touch.addresses, touch.width))

    def last(self, address: int) -> Event | None:
        """The event that wrote an address last."""
        event: Event
        for event, addresses, width in reversed(self._events):
            if bool(((addresses <= address) & (address < addresses + width)).any()):
                return event
        return None


def adds_floats(opcode: str) -> bool:
    """True for an addition to memory that may be one of floating-point numbers; a tensor's type is in its map."""
    words = opcode.split(".")
    if words[0] not in ("atom", "red", "cp") or "add" not in words:
        return False
    return "tensor" in words or bool(_FLOAT_ADD.search(opcode))


def parting_event(run: Callable[[Schedule, tuple[Any, ...]], object], shown: Shrunk, observer: Any) -> Event | None:
    """The first event of a failing run that a passing one does not have there, or the first store that it delays.

    `run` runs the launch under a schedule with observers; the last run is the failing one, and `observer` sees it.
    """
    late, parting = DelayedStores(shown.delayed), Parting()
    run(passing(shown.schedule), (parting,))
    parting.turn()
    run(shown.schedule.replayed(), (observer, parting, late))
    return late.event or parting.event


def passing(recorded: Recorded) -> Schedule:
    """The schedule that delays and interrupts nothing, and is otherwise like a recorded one."""
    if recorded.preempts and not recorded.interrupts:
        return Recorded(Switch({}))
    return Delay(frozenset(), recorded.name, recorded.buffers, recorded.barrier, recorded.interrupts)


def portfolio(families: Iterable[str], warps: int, budget: int, barriers: Iterable[str] = ()) -> Iterator[Schedule]:
    """The schedules to try, the most revealing first: at most `budget`, and `eager` is the first."""
    present = set(families)
    held = [Hold(kind) for kind, names in HELD.items() if present.intersection(names)]
    starved = [Starve(f"warp {warp}") for warp in range(min(warps, _MOST_WARPS))]
    first: list[Schedule] = [Eager(), Lazy(), Weak()]
    names = dict.fromkeys(name.partition("[")[0] for name in barriers)
    arrivals = [Starve(f"barrier {name}") for name in names][:_MOST_BARRIERS]
    fixed = [*first, *held, Random(0), *starved, Reverse(), Starve("CTA (0,0)"), Random(1), Weak(1), *arrivals]
    yield from fixed[:budget]
    for number in range(budget - len(fixed)):
        seed = 2 + number // 4 if number % 4 == 3 else 2 + number - number // 4
        yield Weak(seed) if number % 4 == 3 else Random(seed)


@dataclass(frozen=True)
class Shrunk:
    """A recording of a failure, and the few decisions that show it: what it delays, or where it interrupts a warp."""

    schedule: Recorded
    delayed: tuple[str, ...] = ()
    switched: tuple[str, ...] = ()


def shrunk(recorded: Recorded, outcome: Callable[[Schedule], str | None], kind: str) -> Shrunk:
    """A recording with the same kind of outcome, and what it delays or interrupts.

    Most failures show if a few operations or warps are delayed until nothing else can move: delta debugging finds
    them, starting from those that the schedule kept back, else from all operations. Others need a warp to be
    interrupted between two accesses: the places where the schedule did that are tried next. Where neither shows the
    failure, the recording stays as it is.
    """
    taken = _taken(recorded)
    operations = [name for name in taken if ": " in name]
    inner, starts = recorded.inner, [operations]
    if isinstance(inner, Hold):
        starts.insert(0, [name for name in operations if family_of(name) in HELD[inner.kind]])
    elif isinstance(inner, Starve):
        starts.insert(0, [name for name in taken if inner.starved(name)])
    elif isinstance(inner, Weak):
        starts.insert(0, list(recorded.stores))

    def delayed(names: list[str]) -> Recorded | None:
        traits = recorded.buffers, recorded.barrier, recorded.interrupts
        trial = Recorded(Delay(frozenset(names), recorded.name, *traits))
        return trial if outcome(trial) == kind else None

    def switched(places: list[tuple[tuple[str, int], str]]) -> Recorded | None:
        trial = Recorded(Switch(dict(places), recorded.name))
        return trial if outcome(trial) == kind else None

    for first in starts:
        best, names = _fewest(first, delayed)
        if best is not None:
            return Shrunk(best, tuple(names))
    if recorded.preempts and not recorded.buffers and not recorded.interrupts:
        best, places = _fewest(list(switches(recorded.steps).items()), switched)
        if best is not None:
            return Shrunk(best, (), tuple(f"{one} after {blocks} blocks by {other}" for (one, blocks), other in places))
    # A late operation that was all that could move was not a choice; where operations complete at once, it is one.
    early = Recorded(Delay(frozenset(), recorded.name, recorded.buffers, recorded.barrier, recorded.interrupts))
    outcome(early)
    best, names = _fewest([name for name in _taken(early) if ": " in name and name not in operations], delayed)
    return Shrunk(recorded) if best is None else Shrunk(best, tuple(names))


def _taken(recorded: Recorded) -> dict[str, None]:
    """The warps and operations that a recording chose for a step."""
    return dict.fromkeys(choice[3].partition(" lanes ")[0] for choice in recorded.choices if choice[0] == "step")


def _fewest(given: list[T], fails: Callable[[list[T]], Recorded | None]) -> tuple[Recorded | None, list[T]]:
    """Delta debugging: few of the given decisions with which a run still fails, and that run; None if all do not."""
    names, best, runs = given, fails(given) if given else None, 1
    size = -(-len(names) // 2)
    while best is not None and len(names) > 1 and runs < _SHRINKING_RUNS:
        parts = [names[at : at + size] for at in range(0, len(names), size)]
        fewer = parts + [[name for name in names if name not in part] for part in parts if len(parts) > 2]
        for part in fewer:
            runs += 1
            found = fails(part) if runs < _SHRINKING_RUNS else None
            if found is not None:
                best, names = found, part
                break
        else:
            if size == 1:
                break
            size = -(-size // 2)
            continue
        size = max(-(-len(names) // 2), 1)
    return best, names


def check_budget(budget: object) -> int:
    """Verify the number of schedules to explore."""
    if not isinstance(budget, int) or budget < 1:
        raise Diag.BAD_LAUNCH.error(what=f"`budget` is {budget!r:.60}; it must be a positive number of schedules")
    return budget


__all__ = [
    "DEFAULT_BUDGET",
    "Failure",
    "Shrunk",
    "Writes",
    "adds_floats",
    "check_budget",
    "parting_event",
    "portfolio",
    "shrunk",
]
