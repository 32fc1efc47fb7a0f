"""Renamings of places: bijections of the bytes of shared memory and the columns of TMEM that move blocks as wholes.

The checker compares places only with each other: which bytes two accesses have in common, and which barrier an event is
at. So it commutes with every bijection of the bytes of a CTA's shared memory, and of the columns of its TMEM, that
takes barriers to barriers and leaves allocations of TMEM as they are. Two passes of a loop that use the stages of a
pipeline in turn are equal up to such a renaming, which takes each stage to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.hardware.tmem import COLUMNS

Array = npt.NDArray[Any]
Space = tuple[str, int]
"""`shared` or `tensor`, and the rank of the CTA."""
OFFSET = 0xFFFFFF
"""The bits of an address of shared memory without the CTA's rank."""
_COLUMN = 0xFFFF
_WORD = 4
_MOST_BOUNDS = 1 << 10
BARRIER_BYTES = 8


class Unmovable(Exception):
    """Bytes of one access that a renaming tears apart."""


class Span(NamedTuple):
    """A place that an event names: the bytes or columns from its lowest to its highest, and its first address."""

    space: Space
    low: int
    high: int
    first: int


class _Map(NamedTuple):
    """A bijection of whole numbers: from each bound to the next one, a distance; nothing moves outside."""

    bounds: Array
    distances: Array

    def at(self, values: Array) -> Array:
        """The part that each value is in; -1 before the first bound."""
        found: Array = np.searchsorted(self.bounds, values, side="right") - 1
        return found

    def apply(self, values: Array) -> Array:
        part = self.at(values)
        moved: Array = values + np.where(part >= 0, self.distances[part], 0)
        return moved

    def inverse(self) -> _Map:
        inside = self.distances != 0
        lows, highs = self.bounds[:-1][inside[:-1]], self.bounds[1:][inside[:-1]]
        distances = self.distances[:-1][inside[:-1]]
        return _made(lows + distances, highs + distances, -distances)

    def after(self, inner: _Map) -> _Map:
        """First the other one, then this one."""
        bounds = np.unique(np.concatenate((inner.bounds, inner.inverse().apply(self.bounds))))
        return _merged(bounds, self.apply(inner.apply(bounds)) - bounds)


def _merged(bounds: Array, distances: Array) -> _Map:
    """A map without bounds between parts that move together, and without parts at the ends that do not move."""
    before = np.concatenate((np.zeros(1, np.int64), distances[:-1]))
    kept = distances != before
    return _Map(bounds[kept], distances[kept])


def _made(lows: Array, highs: Array, distances: Array) -> _Map:
    """The map of disjoint parts."""
    order = np.argsort(lows)
    lows, highs, distances = lows[order], highs[order], distances[order]
    gaps = np.ones(len(lows), np.bool_)
    gaps[:-1] = highs[:-1] != lows[1:]
    bounds = np.concatenate((lows, highs[gaps]))
    moves = np.concatenate((distances, np.zeros(int(gaps.sum()), np.int64)))
    order = np.argsort(bounds)
    return _merged(bounds[order], moves[order])


def _of_parts(lows: Array, highs: Array, distances: Array) -> _Map | None:
    """The bijection that moves each part, of which several may overlap, by its distance; None if there is none."""
    order = np.lexsort((highs, lows))
    parts: list[list[int]] = []
    for low, high, distance in zip(lows[order].tolist(), highs[order].tolist(), distances[order].tolist(), strict=True):
        if parts and low < parts[-1][1]:
            if distance != parts[-1][2]:
                return None
            parts[-1][1] = max(parts[-1][1], high)
        else:
            parts.append([low, high, distance])
    table = np.array([each for each in parts if each[2]], np.int64).reshape(-1, 3)
    images = _joined(table[:, :2] + table[:, 2:])
    if images is None or images != _joined(table[:, :2]):  # parts that stay are then outside of all images
        return None
    return _made(table[:, 0], table[:, 1], table[:, 2])


def _joined(parts: Array) -> list[tuple[int, int]] | None:
    """Disjoint parts as the fewest ranges, or None if they overlap."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(map(tuple, parts.tolist())):
        if found and low < found[-1][1]:
            return None
        if found and low == found[-1][1]:
            found[-1] = found[-1][0], high
        else:
            found.append((low, high))
    return found


class Renaming:
    """A bijection for each memory of the CTAs of a cluster; memories without one stay as they are."""

    def __init__(self, maps: dict[Space, _Map] | None = None) -> None:
        self._maps = {space: each for space, each in (maps or {}).items() if len(each.bounds)}
        self._barriers: dict[tuple[int, int], int] = {}

    @staticmethod
    def of(moves: Iterable[tuple[Span, Span]]) -> Renaming | None:
        """The renaming that takes each span to its partner; None if there is none that moves blocks as wholes."""
        found: dict[Space, set[tuple[int, int, int]]] = {}
        for old, new in moves:
            found.setdefault(old.space, set()).add((old.low, old.high, new.first - old.first))
        maps = {}
        for space, parts in found.items():
            table = np.array(sorted(parts), np.int64)
            made = _of_parts(table[:, 0], table[:, 1], table[:, 2])
            if made is None or len(made.bounds) > _MOST_BOUNDS:
                return None
            maps[space] = made
        return Renaming(maps)

    @property
    def moves_nothing(self) -> bool:
        return not self._maps

    def inverse(self) -> Renaming:
        return Renaming({space: each.inverse() for space, each in self._maps.items()})

    def after(self, inner: Renaming) -> Renaming:
        """First the other one, then this one."""
        maps = dict(inner._maps)
        for space, outer in self._maps.items():
            maps[space] = outer.after(maps[space]) if space in maps else outer
        return Renaming(maps)

    def is_complex(self) -> bool:
        """True if it has more parts than are worth their while."""
        return any(len(each.bounds) > _MOST_BOUNDS for each in self._maps.values())

    def addresses(self, space: Space, addresses: Array, width: int) -> Array:
        """The places of an access, with so many bytes at each address."""
        found = self._maps.get(space)
        if found is None:
            return addresses
        is_tensor = space[0] == "tensor"
        mask, last = (_COLUMN, (width + _WORD - 1) // _WORD - 1) if is_tensor else (OFFSET, width - 1)
        places = (addresses & addresses.dtype.type(mask)).astype(np.int64)
        part = found.at(places)
        if last > 0 and not np.array_equal(part, found.at(places + last)):
            if all(self.keeps(space, place, place + last + 1) for place in np.unique(places).tolist()):
                return addresses  # the same bytes in another order
            raise Unmovable
        distances = np.where(part >= 0, found.distances[part], 0)
        moved: Array = (addresses.astype(np.int64) + distances).astype(addresses.dtype)
        return moved

    def barrier(self, rank: int, address: int) -> int:
        """The place of an mbarrier."""
        found = self._maps.get(("shared", rank))
        if found is None:
            return address
        known = self._barriers.get((rank, address))
        if known is None:
            known = int(self.addresses(("shared", rank), np.array([address], np.int64), BARRIER_BYTES)[0])
            self._barriers[rank, address] = known
        return known

    def power(self, times: int) -> Renaming:
        """Itself so many times."""
        found, square = Renaming(), self
        while times:
            if times & 1:
                found = square.after(found)
            times >>= 1
            square = square.after(square) if times else square
        return found

    def keeps(self, space: Space, low: int, high: int) -> bool:
        """True if what is in a range stays in it."""
        found = self._maps.get(space)
        if found is None:
            return True
        bounds = np.unique(np.concatenate(([low, high], found.bounds)))
        lows, highs = bounds[:-1], bounds[1:]
        inside = (lows >= low) & (highs <= high)
        moved = found.apply(lows) - lows
        return bool(((lows + moved >= low) & (highs + moved <= high))[inside].all())

    def cells(self, space: Space, cells: Array, shift: int) -> Array | None:
        """The cells of a memory, of 1 << shift bytes each, at their new places; None if it tears one apart."""
        found = self._maps.get(space)
        if found is None:
            return cells
        table, unit = cells, 1 << shift
        if space[0] == "tensor":
            if unit % _WORD:
                return None
            table, unit = cells.reshape(-1, COLUMNS * _WORD >> shift), unit // _WORD
        out = table.copy()
        if (found.bounds % unit).any() or (found.distances % unit).any():
            return None
        parts = zip(found.bounds[:-1] // unit, found.bounds[1:] // unit, found.distances // unit, strict=False)
        for low, high, distance in parts:
            out[..., low + distance : high + distance] = table[..., low:high]
        return out.reshape(cells.shape)
