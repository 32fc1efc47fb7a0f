"""The groups that can run, and the calls of native code that takes their turns in a random schedule."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from warploom.machine.core.group import Group
from warploom.machine.core.schedule import Random
from warploom.machine.engine.addresses import address_of
from warploom.machine.routines import turn_loop as loop

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine


class ReadyGroups(Sequence[Group]):
    """The groups that can run, in the order of a deque, where native code sees them."""

    def __init__(self) -> None:
        self._array = np.zeros(64, np.int64)
        self._words = self._array.data
        self.address = address_of(self._array)
        """The host address of the first, with room for one more than there are."""
        self.size = 0
        self._groups: dict[int, Group] = {}

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Group]:
        return (self._groups[word] for word in self._words[: self.size].tolist())

    def __getitem__(self, index: Any) -> Any:
        return self._groups[self._words[index if index >= 0 else self.size + index]]

    def __delitem__(self, index: int) -> None:
        count = self.size
        self._array[index : count - 1] = self._array[index + 1 : count].copy()
        self.size -= 1

    def append(self, group: Group) -> None:
        """Add a group after all others."""
        if self.size + 1 >= len(self._array):
            self._array = np.concatenate([self._array, np.zeros_like(self._array)])
            self._words, self.address = self._array.data, address_of(self._array)
        address = group.row_address
        self._groups[address] = group
        group.show()
        self._words[self.size] = address
        self.size += 1

    def extend(self, groups: list[Group]) -> None:
        for group in groups:
            self.append(group)

    def pop(self) -> Group:
        """Take the last group."""
        self.size -= 1
        return self._groups[self._words[self.size]]

    def popleft(self) -> Group:
        """Take the first group."""
        group: Group = self[0]
        del self[0]
        return group

    def remove(self, group: Group) -> None:
        del self[self._words[: self.size].tolist().index(group.row_address)]

    def clear(self) -> None:
        self.size = 0

    def at(self, address: int) -> Group:
        """The group of a host address."""
        return self._groups[address]


class Begun(NamedTuple):
    """A turn that native code has begun: the number of a record that it leaves to Python, whether that is in the second
    part of the turn, and the effects before the turn.
    """

    number: int
    second: bool
    effects: int


class Turns:
    """Calls the loop of an engine, with the draws of a schedule. After a call `words` has its results."""

    def __init__(self, engine: Engine, schedule: Random, look_after: int) -> None:
        self._schedule = schedule
        self._array = np.zeros(loop.ARGUMENTS, np.int64)
        self.words: Any = self._array.data
        """The arguments of the loop (`routines/turn_loop.py`). Its caller sets the progress of the grid (`BUDGET` to
        `BUDGET_AT_EFFECT`) and the `FLOOR` before each call."""
        self.words[loop.SHORT], masks = schedule.limits()
        for at, mask in enumerate(masks, loop.MASKS):
            self.words[at] = mask
        self.words[loop.LOOK_AFTER] = look_after
        prototype = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
        self._run = prototype(engine.address(loop.TurnLoop()))
        self._enter, self._address, self._drawn_from = engine.enter, address_of(self._array), 0

    def take(self, ready: ReadyGroups, launches: bool, most: int) -> int:
        """Execute turns of ready groups, as many as `most`; `launches`: a cluster can be launched. Returns why it ends:
        `words` has the turns that are left.
        """
        words, schedule = self.words, self._schedule
        draws = schedule.draws
        if self._drawn_from != draws.address:
            self._drawn_from = words[loop.DRAWS] = draws.address
            words[loop.END] = draws.end
        words[loop.READY], words[loop.COUNT] = ready.address, ready.size
        words[loop.AT], words[loop.TAKEN] = draws.at, schedule.taken
        words[loop.LAUNCHES], words[loop.LEFT] = launches, most
        why: int = self._run(self._address, self._enter)
        ready.size, draws.at, schedule.taken = words[loop.COUNT], words[loop.AT], words[loop.TAKEN]
        if why == loop.DRAWN_OUT:
            draws.refill()
        return why

    def begun(self) -> Begun:
        """The turn of which an instruction is left to Python."""
        words = self.words
        return Begun(words[loop.NUMBER], bool(words[loop.PART]), words[loop.BEFORE])
