"""Operations that complete later: copies, tensor-core work, requests to the launcher.

An operation may complete once those it must follow have; when it does is the schedule's choice. Under the eager
schedule it happens at issue.
"""

from __future__ import annotations

from collections.abc import Callable

from warploom.machine.group import Waitable


class Operation:
    """One asynchronous operation: `run` is its effect, `after` the operation that must complete before it."""

    __slots__ = ("after", "done", "name", "run", "then")

    def __init__(self, name: str, run: Callable[[], None], after: Operation | None = None) -> None:
        self.name, self.run = name, run
        self.after = after if after is not None and not after.done else None
        self.done = False
        self.then: list[Waitable] = []

    @property
    def possible(self) -> bool:
        """Whether nothing that must come first is still under way."""
        if self.after is not None and self.after.done:
            self.after = None
        return self.after is None


class Groups(Waitable):
    """Operations committed in groups: bulk copies of a thread, cp.async, wgmma of a warpgroup.

    `reads` counts an operation as done when its source may be reused, which `wait_group.read` asks for.
    """

    __slots__ = ("closed", "name", "open")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.open: list[Operation] = []
        self.closed: list[list[Operation]] = []

    def add(self, operation: Operation) -> None:
        operation.then.append(self)
        self.open.append(operation)

    def commit(self) -> None:
        """Close the open group; an empty one counts too."""
        self.closed.append(self.open)
        self.open = []

    def pending(self) -> int:
        """How many closed groups are not complete."""
        self.closed = [group for group in self.closed if not all(operation.done for operation in group)]
        return len(self.closed)

    def drained(self, leave: int) -> bool:
        """Whether at most the `leave` most recent groups are incomplete."""
        for group in self.closed[: max(len(self.closed) - leave, 0)]:
            if not all(operation.done for operation in group):
                return False
        del self.closed[: max(len(self.closed) - leave, 0)]
        return True

    def describe(self) -> str:
        waiting = sum(not operation.done for group in self.closed for operation in group)
        return f"{self.name}: {len(self.closed)} groups committed, {waiting} operations incomplete"
