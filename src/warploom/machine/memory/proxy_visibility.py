"""The stores to shared memory and proxy fences that each warp knows of, where the two proxies have views of their own.

A `fence.proxy.async` publishes what its warp has stored and the stores of others that its warp knows of by
synchronising with them; it does not publish what others have stored since. Knowledge travels with barriers, like vector
clocks. An asynchronous operation sees a store made before its issue only if a fence that its issuer knew of at issue
has published it: a later fence by another role does not repair the view of an operation in flight.
Where warps synchronise by memory alone, a strong load, an atomic or a fence counts as learning everything: the emulator
does not track which store such a load has seen, and a correct kernel must never read stale bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.ptx.isa.table import Effect, Op

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

_STRONG = frozenset({"volatile", "relaxed", "acquire", "mmio", "mmio.relaxed", "atomic"})


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """The knowledge of the warps that issue an operation: for each of them a row of `Knowledge.of`, and the latest
    number.
    """

    rows: tuple[list[int], ...]
    latest: int

    @classmethod
    def joined(cls, sights: Iterable[Sight]) -> Sight:
        """The joint knowledge of warps that issue operations together."""
        known = list(dict.fromkeys(sights))
        if len(known) == 1:
            return known[0]
        return cls(tuple([row for each in known for row in each.rows]), max([each.latest for each in known]))


class Knowledge:
    """For every warp of a cluster: the latest store or fence of each warp that it knows of. They count from 1.

    The last column is for stores of other clusters to global memory: the number of the latest that it has acquired.
    """

    __slots__ = ("_sights", "latest", "of", "versions")

    def __init__(self, warps: int) -> None:
        self.latest = 0
        self.of: npt.NDArray[np.int64] = np.zeros((warps, warps + 1), np.int64)
        self.versions = [0] * warps
        """The number of times that the knowledge of each warp may have changed."""
        self._sights: list[tuple[int, Sight] | None] = [None] * warps
        """The latest knowledge of each warp that an operation keeps, with its version."""

    def learn(self, warp: int) -> None:
        """Let a warp know all stores and fences of its cluster, and what the other warps have acquired."""
        self.versions[warp] += 1
        self.of[warp, :-1] = self.latest
        self.of[warp, -1] = self.of[:, -1].max()

    def acquire(self, warp: int, number: int) -> None:
        """Let a warp see the stores of other clusters up to a number."""
        self.versions[warp] += 1
        self.of[warp, -1] = number

    def acquired(self, warp: int) -> int:
        """The latest store of other clusters that a warp sees."""
        return int(self.of[warp, -1])

    def stored(self, warp: int) -> int:
        """The number of a new store or fence by a warp, which knows it."""
        self.latest += 1
        self.of[warp, warp] = self.latest
        self.versions[warp] += 1
        return self.latest

    def take_over(self, warp: int, brought: npt.NDArray[np.int64]) -> None:
        """Let a warp know what others have brought to a barrier."""
        mine = self.of[warp]
        known = np.maximum(mine, brought)
        if known.tobytes() != mine.tobytes():
            self.of[warp] = known
            self.versions[warp] += 1

    def sight(self, warp: int) -> Sight:
        """The present knowledge of a warp."""
        before, version = self._sights[warp], self.versions[warp]
        if before is not None and before[0] == version and before[1].latest == self.latest:
            return before[1]
        found = Sight((self.of[warp].tolist(),), self.latest)
        self._sights[warp] = version, found
        return found


class Exchange:
    """The knowledge of the warps that arrive at a barrier, handed to those that pass it.

    Warps that arrive and pass without having stored or learnt anything since the last time change nothing.
    """

    __slots__ = ("_brought", "_came", "_changed", "_knowledge", "_left", "_taken", "_turned")

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._brought = np.zeros(knowledge.of.shape[1], np.int64)
        self._taken = self._brought
        self._changed = self._turned = 0
        """The changes of what is brought, and those that are part of what is taken."""
        self._came: dict[int, int] = {}
        self._left: dict[int, tuple[int, int]] = {}
        """The version of the knowledge of each warp when it arrived, and when it passed with which changes."""

    def arrive(self, group: Group | None) -> None:
        """A warp arrives in the present phase."""
        if group is None:
            return
        warp, knowledge = group.number, self._knowledge
        version = knowledge.versions[warp]
        if self._came.get(warp) != version:
            self._came[warp] = version
            np.maximum(self._brought, knowledge.of[warp], out=self._brought)
            self._changed += 1

    def turn(self) -> None:
        """The phase is over: who passes it takes what was brought up to now, and not what comes behind."""
        if self._turned != self._changed:
            self._taken, self._turned = self._brought.copy(), self._changed

    def leave(self, group: Group) -> None:
        """A warp has passed the latest phase that is over."""
        warp, knowledge = group.number, self._knowledge
        found = self._turned, knowledge.versions[warp]
        if self._left.get(warp) != found:
            knowledge.take_over(warp, self._taken)
            self._left[warp] = self._turned, knowledge.versions[warp]


def synchronises(op: Op) -> bool:
    """Return whether an instruction may synchronise by memory alone."""
    return any(_is_strong(op, effect) for effect in op.form.effects)


def learning(run: Any) -> Any:
    """A meaning after which its warp knows everything, of an instruction that may synchronise by memory alone."""

    def wrapped(group: Group, mask: Any, *operands: Any) -> Any:
        result = run(group, mask, *operands)
        knowledge = group.cta.cluster.knowledge
        if knowledge is not None:
            knowledge.learn(group.number)
        return result

    return wrapped


def _is_strong(op: Op, effect: Effect) -> bool:
    detail, proxy = (op[text[1:-1]] if text.startswith("{") else text for text in (effect.detail, effect.proxy))
    if effect.verb == "fences":
        return proxy == "generic" and detail != "mbarrier_init"
    return effect.verb == "reads" and not effect.later and detail in _STRONG
