"""The groups that can run, and the calls of native code that takes their turns in a random schedule."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.machine.core.group import Group
from warploom.machine.core.schedule import Random
from warploom.machine.engine.addresses import address_of
from warploom.machine.routines import turn_loop as loop

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine


_LOOP = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


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
        size, address = self.size, group.row_address
        if size + 1 >= len(self._array):
            self._array = np.concatenate([self._array, np.zeros_like(self._array)])
            self._words, self.address = self._array.data, address_of(self._array)
        self._groups[address] = group
        group.show()
        self._words[size] = address
        self.size = size + 1

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


class Turns:
    """Calls the loop of an engine, with the draws of a schedule. After a call `words` has its results."""

    def __init__(self, engine: Engine, schedule: Random, look_after: int) -> None:
        self._schedule = schedule
        self._array = np.zeros(loop.ARGUMENTS, np.int64)
        self.words: Any = self._array.data
        """The arguments of the loop (`routines/turn_loop.py`). Its caller sets the progress of the grid (`BUDGET` to
        `BUDGET_AT_EFFECT`, `FLOOR` and `COMPLETED`) and `PATIENT` before each call."""
        self.words[loop.SHORT], masks, steps = schedule.limits()
        for at, word in (*enumerate(masks, loop.MASKS), *enumerate(steps, loop.BIAS_STEPS)):
            self.words[at] = word
        self.words[loop.LOOK_AFTER] = look_after
        self._run = _LOOP(engine.address(loop.TurnLoop()))
        self._enter, self._address, self._has_draws = engine.enter, address_of(self._array), False

    def give_back(self) -> None:
        """Let the schedule draw, where native code has drawn last."""
        if self._has_draws:
            words, schedule = self.words, self._schedule
            schedule.draws.at, schedule.taken = words[loop.AT], words[loop.TAKEN]
            schedule.bias, schedule.bias_left = words[loop.BIAS], words[loop.BIAS_LEFT]
            self._has_draws = False

    def _take_draws(self) -> None:
        """Let native code draw, where the schedule has drawn last."""
        words, schedule = self.words, self._schedule
        draws = schedule.draws
        words[loop.DRAWS], words[loop.END], words[loop.AT] = draws.address, draws.end, draws.at
        words[loop.TAKEN], words[loop.BIASED] = schedule.taken, schedule.biased
        words[loop.BIAS], words[loop.BIAS_LEFT] = schedule.bias, schedule.bias_left
        self._has_draws = True

    def take(self, ready: ReadyGroups, possible: int, launches: bool, most: int) -> int:
        """Take steps, as many as `most`: turns of ready groups, or completions of so many operations that are
        `possible`; `launches`: a cluster can be launched. Returns why it ends: `words` has the steps that are left.
        """
        words = self.words
        if not self._has_draws:
            self._take_draws()
        words[loop.READY], words[loop.COUNT], words[loop.WAITING] = ready.address, ready.size, 0
        words[loop.LAUNCHES], words[loop.LEFT], words[loop.POSSIBLE] = launches, most, possible
        why: int = self._run(self._address, self._enter)
        ready.size = words[loop.COUNT]
        if waiting := words[loop.WAITING]:
            for at in range(loop.WAITS, loop.WAITS + 2 * waiting, 2):
                ready.at(words[at]).wait_at(words[at + 1])
        if why == loop.DRAWN_OUT:
            self.give_back()
            self._schedule.draws.refill()
        return why
