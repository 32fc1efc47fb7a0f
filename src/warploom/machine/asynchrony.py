"""Operations that complete later: copies, tensor-core work, requests to the launcher.

An operation may complete once those it must follow have; when it does is the schedule's choice. Under the eager
schedule it happens at issue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warploom.machine.group import Waitable

if TYPE_CHECKING:
    from warploom.machine.events import CommitGroup, Issued, Touches
    from warploom.machine.group import Group


class Operation:
    """One asynchronous operation: `run` is its effect, `after` the operation that must complete before it.

    `touches` and `group` are for observers, who are told of `issues`: one, or one for each warp that takes part.
    """

    __slots__ = ("after", "done", "group", "issuer", "issues", "name", "run", "then", "touches")

    def __init__(
        self,
        name: str,
        run: Callable[[], None],
        after: Operation | None = None,
        touches: Touches | None = None,
        group: CommitGroup | None = None,
    ) -> None:
        self.name, self.run = name, run
        self.done = False
        self.after = after if after is not None and not after.done else None
        self.touches, self.group = touches, group
        self.then: list[Waitable] = []
        self.issues: tuple[Issued, ...] = ()
        self.issuer: Group | None = None

    @property
    def possible(self) -> bool:
        """Whether nothing that must come first is still under way."""
        if self.after is not None and self.after.done:
            self.after = None
        return self.after is None
