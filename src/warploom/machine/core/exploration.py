"""Exploration: a portfolio of schedules for one launch, and the first failure shrunk to few decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warploom.diagnostics import Diag
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
    Weak,
    family_of,
)

if TYPE_CHECKING:
    from warploom.machine.core.events import Event

DEFAULT_BUDGET = 64
_SHRINKING_RUNS = 48
_MOST_WARPS = 16


@dataclass(frozen=True)
class Failure:
    """A schedule under which a launch went wrong.

    `kind` is "mismatch" (`compare` refused the results), "disagreement" (they differ from those of the eager schedule)
    or the code of an error. `schedule` replays the run and can be saved; `delayed` are the operations and warps that it
    keeps back until nothing else can move, as few as show the failure (none: delays alone do not show it). `array` and
    `index` name the first element that differs (its byte, where the array is not contiguous), and `event` is the event
    that wrote it last.
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

    def __str__(self) -> str:
        delayed = "; ".join(self.delayed[:4]) + (f" and {len(self.delayed) - 4} more" if len(self.delayed) > 4 else "")
        text = f"{self.kind} under `{self.found_by}`" + (f", shown by delaying {delayed}" if delayed else "")
        if self.array:
            place = ", ".join(map(str, self.index))
            text += f": {self.array}[{place}] is {self.found}, under `eager` {self.expected}"
        if self.event is not None:
            agent = self.event.agent
            x, y, z = agent.cta
            cta = f"CTA ({x},{y},{z})" if z else f"CTA ({x},{y})"
            text += f"; written by {cta}, warp {agent.warp} at {self.event.source.loc}: `{self.event.source.text}`"
        return text


def portfolio(families: Iterable[str], warps: int, budget: int) -> Iterator[Schedule]:
    """The schedules to try, the most revealing first: at most `budget`, and `eager` is the first."""
    present = set(families)
    held = [Hold(kind) for kind, names in HELD.items() if present.intersection(names)]
    starved = [Starve(f"warp {warp}") for warp in range(min(warps, _MOST_WARPS))]
    first: list[Schedule] = [Eager(), Lazy(), Reverse(), Random(0), Weak()]
    fixed = [*first, *held, Random(1), Weak(1), *starved, Starve("CTA (0,0)")]
    yield from fixed[:budget]
    for number in range(budget - len(fixed)):
        seed = 2 + number // 4 if number % 4 == 3 else 2 + number - number // 4
        yield Weak(seed) if number % 4 == 3 else Random(seed)


def shrunk(
    recorded: Recorded, outcome: Callable[[Schedule], str | None], kind: str
) -> tuple[Recorded, tuple[str, ...]]:
    """A recording with the same kind of outcome, and what it delays.

    Most failures show if a few operations or warps are delayed until nothing else can move: delta debugging finds
    them, starting from those that the schedule kept back, else from all operations. Where delays alone do not show the
    failure, the recording stays as it is.
    """
    taken = dict.fromkeys(choice[3].partition(" lanes ")[0] for choice in recorded.choices if choice[0] == "step")
    operations = [name for name in taken if ": " in name]
    inner, starts = recorded.inner, [operations]
    if isinstance(inner, Hold):
        starts.insert(0, [name for name in operations if family_of(name) in HELD[inner.kind]])
    elif isinstance(inner, Starve):
        starts.insert(0, [name for name in taken if inner.starved(name)])
    elif isinstance(inner, Weak):
        starts.insert(0, list(recorded.stores))
    runs = 0

    def fails(names: list[str]) -> Recorded | None:
        nonlocal runs
        runs += 1
        trial = Recorded(Delay(frozenset(names), recorded.name, recorded.buffers))
        return trial if outcome(trial) == kind else None

    for first in starts:
        names, best = first, fails(first) if first else None
        if best is None:
            continue
        size = -(-len(names) // 2)
        while len(names) > 1 and runs < _SHRINKING_RUNS:
            parts = [names[at : at + size] for at in range(0, len(names), size)]
            fewer = parts + [[name for name in names if name not in part] for part in parts if len(parts) > 2]
            for part in fewer:
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
        return best, tuple(names)
    return recorded, ()


def check_budget(budget: object) -> int:
    """Verify the number of schedules to explore."""
    if not isinstance(budget, int) or budget < 1:
        raise Diag.BAD_LAUNCH.error(what=f"`budget` is {budget!r:.60}; it must be a positive number of schedules")
    return budget


__all__ = ["DEFAULT_BUDGET", "Failure", "check_budget", "portfolio", "shrunk"]
