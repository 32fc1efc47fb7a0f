"""The accesses to memory that native code executes."""

from __future__ import annotations

from enum import Enum


class Memory(Enum):
    """The instructions with effects that native code executes: none, those on memory that has one view, or all.

    Shared memory may have two views (`shared_memory`): then stores that may reach it, and loads that synchronise, are
    the reference's. Where operations are late and warps run in lockstep (`ptx/analysis/lockstep.py`), only proxy fences
    and the barriers after which warps run one by one are.
    """

    NONE = "arithmetic"
    ONE_VIEW = "one view"
    LATE = "late"
    ALL = "all"

    @property
    def has_stores(self) -> bool:
        """True if native code stores to shared memory."""
        return self in (Memory.LATE, Memory.ALL)
