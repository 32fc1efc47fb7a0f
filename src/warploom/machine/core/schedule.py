"""Schedules: a schedule decides every choice that hardware leaves open.

The emulator asks `choose(kind, options, groups)` and gets an index; `options` are short descriptions, in an order that
is the same on every computer. The kinds:

    step     the groups that are ready (the first `groups` options), then the asynchronous operations that may complete,
             then the buffered stores that may reach memory, then the launch of the next cluster
    cancel   refuse or grant a request of cluster launch control
    turn     the blocks that the chosen group executes before the next step, where it does not wait or end before:
             option i is i + 1 blocks. Only schedules with `turns` are asked; others get one block
    lockstep whether the warps of a CTA that is launched run one by one or, warpgroup by warpgroup, together. Only
             schedules with `turns` are asked. In kernels with asynchronous operations it is asked for each cluster of a
             grid of more than a few, and the options say when its operations complete too
    lanes    the lane that an atomic serves first
    giveup   whether a try_wait that must wait returns early

The same schedule and seed give the same run on any computer. A choice with one option is not asked for.
"""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from warploom.diagnostics import Diag, WarploomError
from warploom.machine.core.options import family_of
from warploom.machine.engine.addresses import address_of
from warploom.machine.memory.store_buffers import FAMILIES as STORES
from warploom.machine.routines.turn_loop import BIAS_BITS, TURN_BITS


@runtime_checkable
class Schedule(Protocol):
    """Answers every choice. A subclass needs `choose` only.

    `convoys` lets the warps of a warpgroup run in lockstep where the program cannot tell, `two_views` keeps the generic
    and the async proxy of shared memory apart until a fence joins them, `preempts` asks for a step before every
    access to memory that other warps reach, and after every basic block, rather than when a group waits or has had a
    long turn. `starves` offers a group again right after its turn; otherwise all others come first. `buffers` keeps
    ordinary stores in buffers (`memory/store_buffers.py`). Where a schedule has an attribute `barrier`, arrivals at the
    barrier of that name are operations that it completes; where it has `interrupts`, only the warps that this names, as
    in `starve:WHO`, are preempted; where it has `turns`, it chooses the length of each turn. `late` lets warps run in
    lockstep where the program cannot tell, although operations are late: they complete when all warps of their CTA
    wait, the oldest first (0) or the newest (-1).
    """

    name: str = "custom"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = True
    starves: bool = False
    buffers: bool = False

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
    starves: bool = False
    buffers: bool = False

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "step":
            launches = options[-1] == "launch"
            completions = len(options) - groups - launches
            return groups if completions else 0
        return 1 if kind == "cancel" else 0


_NEWEST = 64
"""Operations among which `lazy` looks for loads of TMEM: warps issue them right before they wait."""


@dataclass
class Lazy:
    """Nothing asynchronous completes until every warp waits; then the oldest does, loads of TMEM first."""

    late: ClassVar[int] = 0
    name: str = "lazy"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = False
    starves: bool = False
    buffers: bool = False

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "step" and not groups:
            if options[-1] == "launch" and not _asks_for_work(options, groups):
                return len(options) - 1
            # A warp soon waits for its loads of TMEM: older MMAs must not complete because of that.
            if not _may_hold(options, "tcgen05.ld"):
                return 0
            first = max(len(options) - _NEWEST, 0)
            for at, option in enumerate(options[first:], first):
                if "tcgen05.ld" in option and family_of(option) == "tcgen05.ld":
                    return at
            return 0
        return 1 if kind == "cancel" else 0


@dataclass
class Reverse:
    """The last warp first, the newest operation first, and only when every warp waits."""

    late: ClassVar[int] = -1
    name: str = "reverse"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = False
    starves: bool = False
    buffers: bool = False

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "step":
            # A launch would take the work that a resident CTA has asked for.
            last = len(options) - 1
            return groups - 1 if groups else last - (options[last] == "launch" and _asks_for_work(options, groups))
        return 1 if kind == "cancel" else len(options) - 1 if kind == "lanes" else 0


LONGEST_TURN = 128
WARPS = ("one by one", "in lockstep")
"""The options of `lockstep`."""
CLUSTER_MODES = (
    "one by one, operations at any time", "one by one, operations at once", "in lockstep, operations at once",
    "in lockstep, operations late", "in lockstep, operations late, the newest first",
)  # fmt: skip
"""The options of `lockstep` in kernels with asynchronous operations; the last two where the program cannot tell."""
TURNS = ("1 block", *(f"{count} blocks" for count in range(2, LONGEST_TURN + 1)))
"""The options of a `turn`."""
_SHORT_TURNS = 256
"""Turns of one block at the start of a random run: a small kernel is interrupted before every access."""
_LOCKSTEP = 15 / 16
"""The probability that the warps of a CTA which is launched later run in lockstep."""
_WEIGHTS = {3: (1 / 64, 2 / 64), 5: (1 / 64, 2 / 64, 40 / 64, 60 / 64)}
"""The sums of the probabilities of `CLUSTER_MODES`, by their number. Operations at any time cost ten to thirty times as
much as operations at once."""
_DRAWS = 1024
"""Words that are drawn at once."""
_TURN_MASKS = (0, 7, 31, 127)
"""The bits of a later turn's blocks, less one: one block as often as few, some or many."""


class Bias(Enum):
    """The steps that a random schedule takes for a while, where groups are ready and operations are in flight."""

    ANY = "any of them"
    LATE = "a group: operations are late"
    STEADY = "the latest group, while it can go on"


_BIASES = Bias.ANY, Bias.ANY, Bias.LATE, Bias.STEADY
"""By the bits of a draw, as in `routines/turn_loop.py`."""
_BIAS_STEPS = (8, 32, 128, 512)
"""Steps that a bias lasts."""


class Draws:
    """The words of 32 bits of Python's generator, one after the other; native code takes them from memory."""

    def __init__(self, seed: int) -> None:
        self._generator = random.Random(seed)
        self._words = np.zeros(0, np.uint32)
        self._held = self._words.data
        self.address = self.end = 0
        """The host address of the words, and their number."""
        self.at = 0
        """The next of the words."""

    def refill(self) -> None:
        """Make more words."""
        made = np.frombuffer(self._generator.randbytes(4 * _DRAWS), "<u4")
        self._words, self.at = np.concatenate([self._words[self.at :], made]), 0
        self._held, self.address, self.end = self._words.data, address_of(self._words), len(self._words)

    def _next(self) -> int:
        if self.at >= self.end:
            self.refill()
        found: int = self._held[self.at]
        self.at += 1
        return found

    def bits(self, count: int) -> int:
        """A number of so many bits, up to 32."""
        return self._next() >> (32 - count)

    def fraction(self) -> float:
        """A number from 0 to 1: the draw of `random.random`."""
        high, low = self._next() >> 5, self._next() >> 6
        return float((high * 67108864 + low) * (1 / 9007199254740992))


@dataclass
class Random:
    """Every choice drawn from a seeded generator.

    A turn is one block at first. Later ones are of one block, of up to 8, of up to 32 or of up to 128, all four as
    often, so that long kernels take few steps and can still be interrupted at every access. After the first turns most
    CTAs run their warps in lockstep: only the others, and those before, show how the warps of one CTA interleave. Most
    clusters of a large grid do not show how their operations and warps interleave either. There a bias lasts for many
    steps while operations are in flight: draws that are all alike seldom keep an operation or a warp back for long.
    """

    seed: int = 0
    name: str = "random"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = True
    starves: bool = False
    buffers: bool = False
    turns: bool = field(default=True, init=False)
    draws: Draws = field(init=False, repr=False)
    taken: int = field(default=0, init=False, repr=False)
    """Turns so far."""
    biased: bool = field(default=False, init=False, repr=False)
    """True if the mode of a cluster was chosen: then few clusters must show what all would show, and biases help."""
    bias: int = field(default=0, init=False, repr=False)
    """The number of the present bias."""
    bias_left: int = field(default=0, init=False, repr=False)
    """Steps with an operation in flight until the next bias."""

    def __post_init__(self) -> None:
        self.draws = Draws(self.seed)

    def is_rare(self) -> bool:
        """Draw True once in sixteen times."""
        return self.draws.fraction() < 1 / 16

    def below(self, count: int) -> int:
        """Draw a number below another: the draws of `randrange`, without its checks."""
        draw, bits = self.draws.bits, count.bit_length()
        found = draw(bits)
        while found >= count:
            found = draw(bits)
        return found

    def turn(self) -> int:
        """Draw the length of a turn, in blocks less one."""
        self.taken += 1
        if self.taken <= _SHORT_TURNS:
            return 0
        bits = self.draws.bits(TURN_BITS)
        return bits >> 2 & _TURN_MASKS[bits & 3]

    def limits(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The number of turns of one block, the masks of the lengths of later ones, and the steps that biases last, for
        native code.
        """
        return _SHORT_TURNS, _TURN_MASKS, _BIAS_STEPS

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind == "turn":
            return self.turn()
        if kind == "lockstep" and options[0] == CLUSTER_MODES[0]:
            weights = _WEIGHTS[len(options)]
            answer = bisect_right(weights, self.draws.fraction())
            if answer and not self.biased and len(options) == len(CLUSTER_MODES):
                self.taken = _SHORT_TURNS  # the first cluster shows none of its interleavings: no turn need be short
            self.biased = True
            return answer
        if kind == "lockstep":
            return int(self.taken >= _SHORT_TURNS and self.draws.fraction() < _LOCKSTEP)
        if kind == "giveup":
            return int(self.draws.fraction() < 0.02)
        if kind == "cancel":
            return int(self.draws.fraction() < 0.9)
        count = len(options)
        if kind != "step" or count == groups:
            return self.below(count)
        launch = bool(options[-1] == "launch")
        if self.biased and groups and count - launch > groups:
            bias = self._bias_now()
            if bias is Bias.LATE:
                return self.below(groups)
            if bias is Bias.STEADY:
                return groups - 1  # the group that had the latest turn, if it can go on
        if launch and count - 1 > groups and _asks_for_work(options, groups):
            # A launch takes the work that a resident CTA asks for: rarely, so that CTAs run many tiles.
            return self.below(count - (self.draws.fraction() < 0.9))
        return self.below(count)

    def _bias_now(self) -> Bias:
        """The bias of a step; a new one is drawn when the last is over."""
        if not self.bias_left:
            bits = self.draws.bits(BIAS_BITS)
            self.bias, self.bias_left = bits & 3, _BIAS_STEPS[bits >> 2]
        self.bias_left -= 1
        return _BIASES[self.bias]


@dataclass
class Weak:
    """Ordinary stores reach other warps only when nothing else can move, the newest first; operations complete at once.

    Ordinary loads of global memory miss what other clusters stored since the warp last acquired. Clusters are launched
    as soon as they can be. With a seed other than 0 all choices are drawn from a generator, and stores rarely while
    anything else can move.
    """

    seed: int = 0
    name: str = "weak"
    convoys: bool = False
    two_views: bool = True
    preempts: bool = field(init=False)
    starves: bool = False
    buffers: bool = True
    _draw: Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._draw, self.preempts = Random(self.seed), self.seed != 0

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if self.seed:
            return self._drawn(kind, options, groups)
        if kind != "step":
            return default(kind, options, groups)
        if options[-1] == "launch":  # the more CTAs, the more can miss each other's stores
            return len(options) - 1
        if groups < len(options) and family_of(options[groups]) not in STORES:
            return groups
        return 0 if groups else len(options) - 1

    def _drawn(self, kind: str, options: Sequence[str], groups: int) -> int:
        answer = self._draw.choose(kind, options, groups)
        if kind != "step" or family_of(options[answer]) not in STORES:
            return answer
        others = next(at for at in range(groups, answer + 1) if family_of(options[at]) in STORES)
        return answer if not others or self._draw.is_rare() else self._draw.below(others)


CANCEL = "clusterlaunchcontrol.try_cancel"


def _may_hold(options: Sequence[str], family: str) -> bool:
    """False if no operation of a family is in flight; the emulator's own options count them."""
    counts: Mapping[str, int] | None = getattr(options, "counts", None)
    return counts is None or counts[family] > 0


def _asks_for_work(options: Sequence[str], groups: int) -> bool:
    """True if a request of cluster launch control is in flight."""
    if not _may_hold(options, CANCEL):
        return False
    return any(family_of(options[at]) == CANCEL for at in range(groups, len(options) - 1))


HELD: dict[str, tuple[str, ...]] = {
    "tma-load": ("cp.async.bulk.load", "cp.async.bulk.tensor.load"),
    "bulk-store": (
        "cp.async.bulk.store", "cp.async.bulk.store.masked", "cp.async.bulk.tensor.store",
        "cp.reduce.async.bulk.tensor",
    ),
    "cp-async": ("cp.async", "cp.async.ignore"),
    "wgmma": ("wgmma.mma_async",),
    "tcgen05-mma": ("tcgen05.mma", "tcgen05.mma.ws", "tcgen05.mma.scaled"),
    "tcgen05-cp": ("tcgen05.cp",),
    "tcgen05-ld": ("tcgen05.ld",),
    "tcgen05-st": ("tcgen05.st",),
    "tcgen05-commit": ("tcgen05.commit",),
    "arrivals": ("tcgen05.commit", "cp.async.mbarrier.arrive"),
    "st-async": ("st.async", "red.async", "st.async.global", "red.async.global", "cp.async.bulk.send"),
    "clc": (CANCEL,),
}  # fmt: skip
"""The kinds of operations that `hold:KIND` keeps back, as instruction families."""


@dataclass
class Hold:
    """Operations of one kind complete only when nothing else can move; all others complete at once."""

    kind: str
    convoys: bool = field(default=False, init=False)
    two_views: bool = field(default=True, init=False)
    preempts: bool = field(default=False, init=False)
    starves: bool = field(default=False, init=False)
    buffers: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.name, self._families = f"hold:{self.kind}", frozenset(HELD[self.kind])

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind != "step":
            return 1 if kind == "cancel" else 0
        launch = bool(options[-1] == "launch")
        if self._may_let_one(options):
            for at, name in enumerate(options[groups : len(options) - launch], groups):
                if family_of(name) not in self._families:
                    return at
        return 0 if groups else len(options) - 1 if launch else 0

    def _may_let_one(self, options: Sequence[str]) -> bool:
        """False if only operations of the held kind are in flight, of which there may be thousands."""
        counts: Mapping[str, int] | None = getattr(options, "counts", None)
        return counts is None or any(count and family not in self._families for family, count in counts.items())


_WHO = re.compile(r"(?:cta ?\((?P<cta>\d+,\d+(?:,\d+)?)\))? ?(?:warp (?P<warp>\d+))?", re.IGNORECASE)
_OPTION = re.compile(r"CTA \((?P<cta>[\d,]+)\) warps? (?P<first>\d+)(?:-(?P<last>\d+))?")


ARRIVAL = "arrival"
"""The family of arrivals that a schedule keeps back, in the names of steps."""


@dataclass
class Starve:
    """A CTA, a warp of each CTA, or one warp moves, and its operations complete, only when nothing else can.

    Of a starved barrier it is the arrivals; `barrier` is its name, without an index for all of that name. Only the
    starved stop before every access; all others have long turns.
    """

    who: str
    convoys: bool = field(default=False, init=False)
    two_views: bool = field(default=True, init=False)
    preempts: bool = field(init=False)
    starves: bool = field(default=True, init=False)
    buffers: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.name = f"starve:{self.who}"
        word, _, named = self.who.strip().partition(" ")
        self.barrier = named.strip() if word.lower() == "barrier" else ""
        self.interrupts = "" if self.barrier else self.who
        self.preempts = not self.barrier
        found = _WHO.fullmatch("" if self.barrier else self.who.strip())
        if found is None or not self.who.strip():
            what = "it starves `warp N`, `CTA (x,y)`, `CTA (x,y) warp N` or `barrier NAME`"
            raise Diag.BAD_SCHEDULE.error(name=self.name, what=what)
        self._cta, self._warp = found["cta"], None if found["warp"] is None else int(found["warp"])

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind != "step":
            return 1 if kind == "cancel" else 0
        launch = bool(options[-1] == "launch")
        operations = range(groups, len(options) - launch)
        for at in chain(operations, range(groups)):
            if not self.starved(options[at]):
                return at
        if launch:
            return len(options) - 1
        return groups if operations else 0

    def starved(self, option: str) -> bool:
        """True for a step of the starved."""
        if self.barrier:
            return family_of(option) == ARRIVAL
        found = _OPTION.match(option)
        if found is None or self._cta not in (None, found["cta"]):
            return False
        return self._warp is None or int(found["first"]) <= self._warp <= int(found["last"] or found["first"])


def default(kind: str, options: Sequence[str], groups: int) -> int:
    """The usual choice: the oldest operation completes, else the first group runs, else a cluster is launched; a turn
    is one block.
    """
    if kind == "step":
        return groups if len(options) - (options[-1] == "launch") > groups else 0
    return 1 if kind == "cancel" else 0


@dataclass
class Delay:
    """Named operations complete, and named warps move, only when nothing else can; all others go ahead at once.

    The names are those of the options of a `step`; that of a warp is also that of its lanes.
    """

    names: frozenset[str]
    name: str = "delay"
    buffers: bool = False
    barrier: str = ""
    interrupts: str = ""
    convoys: bool = field(default=False, init=False)
    two_views: bool = field(default=True, init=False)
    preempts: bool = field(init=False)
    starves: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.preempts = bool(self.interrupts)

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind != "step":
            return default(kind, options, groups)
        launch = bool(options[-1] == "launch")
        operations = range(groups, len(options) - launch)
        for at in chain(operations, range(groups)):
            if options[at].partition(" lanes ")[0] not in self.names:
                return at
        if launch:
            return len(options) - 1
        if operations and family_of(options[-1]) in STORES:
            return len(options) - 1  # the newest, as under `weak`
        return groups if operations else 0


@dataclass
class Switch:
    """A group runs until it waits, and is interrupted in few places: after so many blocks of it another runs.

    `places` has the name of the other by the name of the group and the number of its blocks. Clusters are launched, and
    operations complete, at once.
    """

    places: Mapping[tuple[str, int], str]
    name: str = "switch"
    convoys: bool = field(default=False, init=False)
    two_views: bool = field(default=True, init=False)
    preempts: bool = field(default=True, init=False)
    starves: bool = field(default=False, init=False)
    buffers: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._left, self._current = dict(self.places), ""
        self._blocks = Counter[str]()

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        if kind != "step" or groups < len(options) - (options[-1] == "launch"):
            return default(kind, options, groups)
        if options[-1] == "launch":
            return len(options) - 1
        names = list(options[:groups])
        if self._current not in names:
            return 0
        other = self._left.pop((self._current, self._blocks[self._current]), self._current)
        return names.index(other if other in names else self._current)

    def stepped(self, name: str) -> None:
        """A step was taken, by a choice or because it was the only one."""
        if ": " not in name and name != "launch":
            self._current = name
            self._blocks[name] += 1


def switches(steps: Sequence[str]) -> dict[tuple[str, int], str]:
    """The places where a run went from one group to another, as `Switch` takes them."""
    places, blocks, current = dict[tuple[str, int], str](), Counter[str](), ""
    for name in steps:
        if ": " in name or name == "launch":
            continue
        if current and name != current:
            places[current, blocks[current]] = name
        current = name
        blocks[name] += 1
    return places


_MOST_SHOWN = 120
FORMAT = 2
"""The version of recorded files; 1 had no digest of the program."""
Choice = tuple[str, int, int, str]
"""A choice: its kind, the index taken, the number of options, and the description of the one taken."""


@dataclass
class Recorded:
    """Another schedule, with every answer written down; its warps never run in lockstep."""

    inner: Schedule
    choices: list[Choice] = field(default_factory=list)
    convoys: bool = field(default=False, init=False)
    program: str = field(default="", init=False)
    stores: dict[str, None] = field(default_factory=dict, init=False)
    """The buffered stores that were offered; one that is the only option left is not a choice."""
    steps: list[str] = field(default_factory=list, init=False)
    """All steps of a run that preempts."""

    def __post_init__(self) -> None:
        self.name, self.two_views, self.preempts = self.inner.name, self.inner.two_views, self.inner.preempts
        self.starves = bool(getattr(self.inner, "starves", False))
        self.buffers = bool(getattr(self.inner, "buffers", False))
        self.turns = bool(getattr(self.inner, "turns", False))
        self.barrier = str(getattr(self.inner, "barrier", ""))
        self.interrupts = str(getattr(self.inner, "interrupts", ""))

    def stepped(self, name: str) -> None:
        """Note a step of a run that preempts, also one without a choice."""
        self.steps.append(name)
        if isinstance(self.inner, Switch):
            self.inner.stepped(name)

    def begin(self, program: str) -> None:
        """Note the digest of the program that runs."""
        self.program = program

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        answer = self.inner.choose(kind, options, groups)
        self.choices.append((kind, answer, len(options), options[answer]))
        if self.buffers and kind == "step":
            self.stores |= dict.fromkeys(name for name in options[groups:] if family_of(name) in STORES)
        return answer

    def replayed(self) -> Replay:
        """The schedule that makes the same choices again."""
        flags: dict[str, Any] = {"starves": self.starves, "buffers": self.buffers, "turns": self.turns}
        texts: dict[str, Any] = {"barrier": self.barrier, "interrupts": self.interrupts}
        return Replay(self.name, self.two_views, self.preempts, self.choices, **flags, **texts)

    def save(self, path: str | Path) -> None:
        """Write the choices, one to a line; `replay` reads them back."""
        head = json.dumps(
            {
                "format": FORMAT,
                "program": self.program,
                "schedule": self.name,
                "two_views": self.two_views,
                "preempts": self.preempts,
                "starves": self.starves,
                "buffers": self.buffers,
                "turns": self.turns,
                "barrier": self.barrier,
                "interrupts": self.interrupts,
            }
        )
        lines = ",\n".join(json.dumps(choice) for choice in self.choices)
        Path(path).write_text(f'{head[:-1]}, "choices": [\n{lines}\n]}}\n', "utf-8")


@dataclass
class Replay:
    """The choices of a recorded run; after the last of them, the default ones."""

    name: str
    two_views: bool
    preempts: bool
    choices: list[Choice]
    starves: bool = False
    buffers: bool = False
    turns: bool = False
    barrier: str = ""
    interrupts: str = ""
    program: str = ""
    convoys: bool = field(default=False, init=False)
    _at: int = field(default=0, init=False)

    def begin(self, program: str) -> None:
        """Refuse another program than the recorded one."""
        if self.program and program != self.program:
            what = f"it was recorded from another program (digest {_shown(self.program)}; this one has {program})"
            raise Diag.BAD_SCHEDULE.error(name=self.name, what=what)

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        self._at += 1
        if self._at > len(self.choices):
            return default(kind, options, groups)
        then, answer, count, taken = self.choices[self._at - 1]
        if (then, count) != (kind, len(options)) or not 0 <= answer < count or options[answer] != taken:
            found = options[answer] if 0 <= answer < len(options) else "nothing"
            what = (
                f"choice {self._at} takes `{_shown(taken)}`, option {answer!s:.20} of {count!s:.20} ({_shown(then)}), "
                f"and this run has `{found}` there, of {len(options)} ({kind}): it was recorded from another launch"
            )
            raise Diag.BAD_SCHEDULE.error(name=self.name, what=what)
        return answer

    def finish(self) -> None:
        """The run is over: all choices must have been asked for."""
        if self._at < len(self.choices):
            what = f"the run made {self._at} of its {len(self.choices)} choices: it was recorded from another launch"
            raise Diag.BAD_SCHEDULE.error(name=self.name, what=what)


def _shown(text: str) -> str:
    """Text of a file as a message has it: short, and without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MOST_SHOWN])


def replay(path: str | Path) -> Replay:
    """The schedule in a recorded file."""
    try:
        data = json.loads(Path(path).read_text("utf-8"))
        if not isinstance(data, dict) or "choices" not in data:
            what = "it is not a recorded schedule; `warploom run --record` and `warploom check --witness` write one"
            raise Diag.BAD_SCHEDULE.error(name=str(path), what=what)
        if data.get("format") != FORMAT:
            what = (
                f"it has format {data.get('format', 1)!r:.20}, and this version reads format {FORMAT}: record it again"
            )
            raise Diag.BAD_SCHEDULE.error(name=str(path), what=what)
        choices = [(str(kind), int(answer), int(count), str(taken)) for kind, answer, count, taken in data["choices"]]
        flags: dict[str, Any] = {key: bool(data[key]) for key in ("two_views", "preempts", "starves")}
        flags |= {key: bool(data.get(key, False)) for key in ("buffers", "turns")}
        name = f"{Path(path).name} (recorded from {_shown(str(data['schedule']))})"
        texts: dict[str, Any] = {key: str(data.get(key, "")) for key in ("barrier", "interrupts", "program")}
        return Replay(name, choices=choices, **flags, **texts)
    except WarploomError:
        raise
    except KeyError as error:
        raise Diag.BAD_SCHEDULE.error(name=str(path), what=f"it has no {error}") from None
    except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Diag.BAD_SCHEDULE.error(name=str(path), what=f"it cannot be read as a recording ({error})") from None


_NAMED: dict[str, Callable[[], Schedule]] = {"eager": Eager, "lazy": Lazy, "reverse": Reverse}


def by_name(schedule: str | Schedule, seed: int) -> Schedule:
    """The schedule a caller named, passed, or recorded in a file."""
    if not isinstance(schedule, str):
        return schedule
    if schedule in _NAMED:
        return _NAMED[schedule]()
    if schedule in ("random", "weak"):
        return Random(seed) if schedule == "random" else Weak(seed)
    if schedule.endswith(".json"):
        return replay(schedule)
    name, colon, argument = schedule.partition(":")
    if name == "hold" and colon:
        if argument.strip() not in HELD:
            raise Diag.BAD_SCHEDULE.error(name=schedule, what=f"it holds one of {', '.join(HELD)}")
        return Hold(argument.strip())
    if name == "starve" and colon:
        return Starve(argument)
    raise Diag.BAD_SCHEDULE.error(name=schedule, what="no such name, and no file that ends in .json")
