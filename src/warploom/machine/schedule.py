"""Who goes next: a schedule answers every choice that hardware leaves open.

The machine asks `choose(kind, options)` and gets an index; `options` are short descriptions, in a deterministic order.
Kinds: `step` (the ready groups, then the asynchronous operations that may complete, then the launch of the next
cluster), `cancel` (refuse or grant a cluster-launch-control request), `lanes` (first lane served by an atomic),
`giveup` (may a try_wait return early). The same schedule and seed give the same run on any machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from warploom.diagnostics import Diag


@runtime_checkable
class Schedule(Protocol):
    """Answers every choice; `convoys` allows warps of a warpgroup to run as one vector, `two_views` keeps proxies apart."""

    name: str
    convoys: bool
    two_views: bool
    preempts: bool

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        """The index of the option taken; the first `groups` options of a `step` are ready groups."""
        ...


@dataclass
class Eager:
    """Everything asynchronous completes at once; warps run in turn as far as they can."""

    name: str = "eager"
    convoys: bool = True
    two_views: bool = False
    preempts: bool = False

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "step":
            launches = options[-1] == "launch"
            completions = len(options) - groups - launches
            return groups if completions else 0
        return 1 if kind == "cancel" else 0


@dataclass
class Lazy:
    """Nothing asynchronous completes until every warp waits; then the oldest does."""

    name: str = "lazy"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = False

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "step" and not groups and options[-1] == "launch":
            return len(options) - 1
        return 1 if kind == "cancel" else 0


@dataclass
class Reverse:
    """The last warp first, the newest operation first, and only when every warp waits."""

    name: str = "reverse"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = False

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "step":
            return groups - 1 if groups else len(options) - 1
        return 1 if kind == "cancel" else len(options) - 1 if kind == "lanes" else 0


@dataclass
class Random:
    """Every choice drawn from a seeded generator."""

    seed: int = 0
    name: str = "random"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = True
    _draw: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "giveup":
            return int(self._draw.random() < 0.02)
        return self._draw.randrange(len(options))


@dataclass
class Recorded:
    """Another schedule, with every answer written down."""

    inner: Schedule
    answers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name, self.convoys = self.inner.name, self.inner.convoys
        self.two_views, self.preempts = self.inner.two_views, self.inner.preempts

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        answer = self.inner.choose(kind, options, groups)
        self.answers.append(answer)
        return answer

    def save(self, path: str | Path) -> None:
        """Write the answers; `replay` reads them back."""
        flags = {"convoys": self.convoys, "two_views": self.two_views, "preempts": self.preempts}
        Path(path).write_text(json.dumps({"schedule": self.name, **flags, "answers": self.answers}) + "\n")


@dataclass
class Replay:
    """The answers of a recorded run; behind their end, always the first option."""

    name: str
    convoys: bool
    two_views: bool
    preempts: bool
    answers: list[int]
    _at: int = 0

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        answer = self.answers[self._at] if self._at < len(self.answers) else 0
        self._at += 1
        if not 0 <= answer < len(options):
            what = f"choice {self._at} ({kind}) takes option {answer} of {len(options)}: it was recorded from another program"
            raise Diag.BAD_SCHEDULE.error(name=self.name, what=what)
        return answer


def replay(path: str | Path) -> Replay:
    """The schedule in a recorded file."""
    try:
        data = json.loads(Path(path).read_text())
        answers = [int(answer) for answer in data["answers"]]
        flags = {key: bool(data[key]) for key in ("convoys", "two_views", "preempts")}
        return Replay(f"replay of {data['schedule']}", answers=answers, **flags)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Diag.BAD_SCHEDULE.error(name=str(path), what=f"it cannot be read as a recording ({error})") from None


def by_name(schedule: str | Schedule, seed: int) -> Schedule:
    """The schedule a caller named, passed, or recorded in a file."""
    if not isinstance(schedule, str):
        return schedule
    match schedule:
        case "eager":
            return Eager()
        case "lazy":
            return Lazy()
        case "reverse":
            return Reverse()
        case "random":
            return Random(seed)
    if schedule.endswith(".json"):
        return replay(schedule)
    raise Diag.BAD_SCHEDULE.error(name=schedule, what="no such name, and no file that ends in .json")
