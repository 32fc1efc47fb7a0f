"""Operations that complete later: copies, tensor-core work, requests to the launcher.

An operation may complete once those it must follow have; when it does is the schedule's choice. Under the eager
schedule it happens at issue.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from warploom.machine.core.group import Waitable
from warploom.machine.core.options import family_of

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cluster
    from warploom.machine.core.group import Group
    from warploom.machine.memory.proxy_visibility import Sight
    from warploom.machine.observers.deferred import Again
    from warploom.machine.observers.events import CommitGroup, Touches
    from warploom.machine.observers.reporting import Issued


class Operation:
    """One asynchronous operation: `run` is its effect, `after` are the operations that must complete before it.

    `copies` is the number of late copies of its CTA that native code had noted before it. `touches` and `group` are for
    observers, to which `issues` were reported: one, or one for each warp that takes part.
    """

    __slots__ = (
        "after", "awaited", "copies", "done", "followers", "group", "issuer", "issues", "name", "number", "run",
        "sight", "then", "touches",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        run: Callable[[], None],
        after: Iterable[Operation] = (),
        touches: Touches | Sequence[Touches] | None = None,
        group: CommitGroup | None = None,
    ) -> None:
        self.name, self.run = name, run
        self.done = False
        self.after = tuple(dict.fromkeys([operation for operation in after if not operation.done])) if after else ()
        self.touches, self.group = touches, group
        self.then: list[Waitable] = []
        self.followers: list[Operation] = []
        self.awaited = self.number = self.copies = 0
        self.issues: tuple[Issued | Again, ...] = ()
        self.issuer: Group | None = None
        self.sight: Sight | None = None

    @property
    def cluster(self) -> Cluster:
        """The issuing cluster, which owns all memory that the operation touches except global memory."""
        assert self.issuer is not None
        return self.issuer.cta.cluster

    @property
    def possible(self) -> bool:
        """True if every operation that must complete first has completed."""
        return not self.after or all(operation.done for operation in self.after)


class InFlight:
    """The operations that were issued and have not taken effect; those that may are listed in the order of issue."""

    __slots__ = ("_issued", "_words", "counts", "possible")

    def __init__(self, words: Any) -> None:
        self.possible: list[Operation] = []
        self._words, self._issued = words, 0
        self.counts: Counter[str] = Counter()
        """The operations of each family: schedules look for some at every step."""

    @property
    def issued(self) -> int:
        """The number of the latest operation."""
        return self._issued

    @property
    def count(self) -> int:
        """The number of operations, in memory where native code sees it."""
        found: int = self._words[0]
        return found

    def add(self, operation: Operation) -> None:
        """An operation was issued and does not take effect at once."""
        self._issued += 1
        self._words[0] += 1
        self.counts[family_of(operation.name)] += 1
        operation.number = self._issued
        for earlier in operation.after:
            if not earlier.done:
                earlier.followers.append(operation)
                operation.awaited += 1
        operation.after = ()
        if not operation.awaited:
            self.possible.append(operation)

    def remove(self, operation: Operation) -> None:
        """An operation is about to take effect."""
        first = self.possible[0] is operation
        del self.possible[0 if first else bisect_left(self.possible, operation.number, key=_number)]
        self._words[0] -= 1
        self.counts[family_of(operation.name)] -= 1

    def follow(self, operation: Operation) -> None:
        """An operation is done: those that waited for it, and for no other, may take effect."""
        for follower in operation.followers:
            follower.awaited -= 1
            if not follower.awaited:
                insort(self.possible, follower, key=_number)
        operation.followers.clear()


def _number(operation: Operation) -> int:
    return operation.number
