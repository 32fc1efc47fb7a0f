"""Vector clocks: what a warp, an engine or a barrier knows of the others, with one row for each order.

A component counts the actions of one agent (lanes of a warp that act together) or the completed parts of one engine or
barrier. To know (component, value) is to come after everything that the component did up to that value. The rows:

    X    executed before: program order, issue and completion, every synchronisation, relaxed ones too
    G    visible to generic accesses
    P    visible to operations of the async proxy on shared memory that are issued here
    PG   the same on global memory
    PM   released to the tensormap proxy: a thread that acquires a tensor map now finds it
    PT   received by synchronisation from threads that executed tcgen05.fence::before_thread_sync
    TB   published by tcgen05.fence::before_thread_sync
    T    visible to tcgen05 operations that are issued here
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]
Triple = tuple[int, int, int]
Known = tuple[tuple[int, int], ...]
"""Actions, as components and values: to know them is to come after them."""

X, G, P, PG, PM, PT, TB, T = range(8)
ROWS = 8
_EXECUTED, _RELEASED, _ACQUIRED = slice(X, X + 1), slice(X, PM + 1), slice(X, PT + 1)
"""The rows that a relaxed synchronisation, a release and an acquire hand over."""
_FIRST = 96
"""Components that a new cluster has room for: one CTA of a GEMM has about 80."""


class Components:
    """The components of the clocks of one cluster, numbered in the order of their first use."""

    __slots__ = ("capacity", "keys", "numbers", "place")

    def __init__(self, place: Triple) -> None:
        self.place = place
        self.numbers: dict[Hashable, int] = {}
        self.keys: list[Any] = []
        self.capacity = _FIRST

    def of(self, key: Hashable) -> int:
        """The number of a component."""
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.keys)
            self.keys.append(key)
            while number >= self.capacity:
                self.capacity *= 2
        return number

    def clock(self) -> Clock:
        """A clock that knows nothing."""
        return Clock(np.zeros((ROWS, self.capacity), np.int32))


class Clock:
    """Knowledge of the components of its own cluster, and of others where memory has carried it across."""

    __slots__ = ("others", "rows")

    def __init__(self, rows: Rows, others: dict[Triple, Rows] | None = None) -> None:
        self.rows, self.others = rows, others

    def copy(self) -> Clock:
        others = None if self.others is None else {place: rows.copy() for place, rows in self.others.items()}
        return Clock(self.rows.copy(), others)

    def fit(self, components: Components) -> None:
        """Make room for all components of the cluster."""
        self.rows = fitted(self.rows, components.capacity)

    def knows(self, row: int, component: int, value: int) -> bool:
        """True if an action of the own cluster is known in a row."""
        rows = self.rows
        return rows.shape[1] > component and rows.item(row, component) >= value

    def value(self, row: int, component: int) -> int:
        """The latest action of a component that is known in a row."""
        rows = self.rows
        return rows.item(row, component) if rows.shape[1] > component else 0

    def knows_of(self, place: Triple, row: int, component: int, value: int) -> bool:
        """True if an action of another cluster is known in a row."""
        rows = None if self.others is None else self.others.get(place)
        return rows is not None and rows.shape[1] > component and bool(rows[row, component] >= value)

    def set(self, component: int, value: int, rows: tuple[int, ...]) -> None:
        """Know at least so much of a component."""
        mine = self.rows
        for row in rows:
            mine[row, component] = max(mine[row, component], value)

    def join(self, other: Clock) -> None:
        """Learn everything."""
        self.rows = _joined(self.rows, other.rows, slice(None))
        self._meet(other, slice(None))

    def release(self, source: Clock, *, relaxed: bool = False) -> None:
        """Take over what a thread gives away when it arrives; what it has fenced of tcgen05 becomes receivable."""
        part = _EXECUTED if relaxed else _RELEASED
        self.rows = _joined(self.rows, source.rows, part)
        width = source.rows.shape[1]
        mine = self.rows[PT, :width]
        np.maximum(mine, source.rows[TB], out=mine)
        if source.others is not None:
            self._meet(source, part)

    def acquire(self, source: Clock, *, relaxed: bool = False) -> None:
        """Take over what a wait hands out."""
        if not relaxed:
            self.rows = _joined(self.rows, source.rows, _ACQUIRED)
            if source.others is not None:
                self._meet(source, _ACQUIRED)
            return
        self.rows = _joined(self.rows, source.rows, _EXECUTED)
        width = source.rows.shape[1]
        np.maximum(self.rows[PT, :width], source.rows[PT], out=self.rows[PT, :width])

    def follow(self, source: Clock) -> None:
        """Come after it in execution, without seeing its memory."""
        mine, other = self.rows, source.rows
        if mine.shape == other.shape:
            np.maximum(mine[X], other[X], out=mine[X])
        else:
            self.rows = _joined(mine, other, _EXECUTED)

    def fence(self, row: int) -> None:
        """Make what is visible to generic accesses visible in another row."""
        np.maximum(self.rows[row], self.rows[G], out=self.rows[row])
        if self.others is not None:
            for rows in self.others.values():
                np.maximum(rows[row], rows[G], out=rows[row])

    def publish(self) -> None:
        """`tcgen05.fence::before_thread_sync`."""
        np.maximum(self.rows[TB], self.rows[T], out=self.rows[TB])

    def receive(self) -> None:
        """`tcgen05.fence::after_thread_sync`."""
        np.maximum(self.rows[T], self.rows[PT], out=self.rows[T])

    def learn_of(self, place: Triple, rows: Rows, part: slice = slice(None)) -> None:
        """Learn of the components of another cluster."""
        if self.others is None:
            self.others = {}
        mine = self.others.get(place)
        self.others[place] = _joined(np.zeros_like(rows) if mine is None else mine, rows, part)

    def _meet(self, other: Clock, part: slice) -> None:
        if other.others is not None:
            for place, rows in other.others.items():
                self.learn_of(place, rows, part)


def fitted(rows: Rows, capacity: int) -> Rows:
    """Rows with room for so many components."""
    if rows.shape[1] >= capacity:
        return rows
    wider = np.zeros((ROWS, capacity), np.int32)
    wider[:, : rows.shape[1]] = rows
    return wider


def _joined(mine: Rows, other: Rows, part: slice) -> Rows:
    if mine.shape == other.shape:
        inside = mine[part]
    else:
        width = other.shape[1]
        mine = fitted(mine, width)
        inside = mine[part, :width]
    np.maximum(inside, other[part], out=inside)
    return mine
