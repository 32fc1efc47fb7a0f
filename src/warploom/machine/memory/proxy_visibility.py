"""The stores to shared memory and proxy fences that each warp knows of, where the two proxies have views of their own.

A `fence.proxy.async` publishes what its warp has stored and the stores of others that its warp knows of by
synchronising with them; it does not publish what others have stored since. Knowledge travels with barriers, like vector
clocks. An asynchronous operation sees a store made before its issue only if a fence that its issuer knew of at issue
has published it: a later fence by another role does not repair the view of an operation in flight.
Where warps synchronise by memory alone, a strong load, an atomic or a fence counts as learning everything: the emulator
does not track which store such a load has seen, and a correct kernel must never read stale bytes.
"""

from __future__ import annotations

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

    def joined(self, other: Sight) -> Sight:
        """The joint knowledge of two warps that issue one operation together."""
        return Sight((*self.rows, *other.rows), max(self.latest, other.latest))


class Knowledge:
    """For every warp of a cluster: the latest store or fence of each warp that it knows of. They count from 1.

    The last column is for stores of other clusters to global memory: the number of the latest that it has acquired.
    """

    __slots__ = ("latest", "of")

    def __init__(self, warps: int) -> None:
        self.latest = 0
        self.of: npt.NDArray[np.int64] = np.zeros((warps, warps + 1), np.int64)

    def learn(self, warp: int) -> None:
        """Let a warp know all stores and fences of its cluster, and what the other warps have acquired."""
        self.of[warp, :-1] = self.latest
        self.of[warp, -1] = self.of[:, -1].max()

    def acquire(self, warp: int, number: int) -> None:
        """Let a warp see the stores of other clusters up to a number."""
        self.of[warp, -1] = number

    def acquired(self, warp: int) -> int:
        """The latest store of other clusters that a warp sees."""
        return int(self.of[warp, -1])

    def stored(self, warp: int) -> int:
        """The number of a new store or fence by a warp, which knows it."""
        self.latest += 1
        self.of[warp, warp] = self.latest
        return self.latest

    def sight(self, warp: int) -> Sight:
        """The present knowledge of a warp."""
        return Sight((self.of[warp].tolist(),), self.latest)


class Exchange:
    """The knowledge of the warps that arrive at a barrier, handed to those that pass it."""

    __slots__ = ("_brought", "_knowledge", "_taken")

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._brought = np.zeros(knowledge.of.shape[1], np.int64)
        self._taken = self._brought

    def arrive(self, group: Group | None) -> None:
        """A warp arrives in the present phase."""
        if group is not None:
            np.maximum(self._brought, self._knowledge.of[group.number], out=self._brought)

    def turn(self) -> None:
        """The phase is over: who passes it takes what was brought up to now, and not what comes behind."""
        self._taken = self._brought.copy()

    def leave(self, group: Group) -> None:
        """A warp has passed the latest phase that is over."""
        mine = self._knowledge.of[group.number]
        np.maximum(mine, self._taken, out=mine)


def learning(op: Op, run: Any) -> Any:
    """A meaning after which its warp knows everything, where the instruction may synchronise by memory alone."""
    if not any(_is_strong(op, effect) for effect in op.form.effects):
        return run

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
