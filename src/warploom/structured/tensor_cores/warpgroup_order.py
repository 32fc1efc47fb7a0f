"""Whose turn it is at the tensor core: of ping-pong warpgroups one stores its tile while the other multiplies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.named_barriers import WarpgroupBarriers
from warploom.structured.tensor_cores.wgmma import Warpgroup, WgmmaOp
from warploom.trace.language.control import when
from warploom.trace.language.values import Value

Work = TypeVar("Work")
Work_co = TypeVar("Work_co", covariant=True)


class DivisibleScheduler(Protocol[Work_co]):
    """A scheduler whose tiles warpgroups can have in turn."""

    def __iter__(self) -> Iterator[Work_co]: ...

    def every(self, number: Value, of: int) -> Iterator[Work_co]: ...


class WarpgroupOrder(ABC):
    """Which tiles of a CTA the executing warpgroup multiplies, and when."""

    @abstractmethod
    def tiles_of(self, tiles: DivisibleScheduler[Work]) -> Iterator[Work]:
        """The tiles of this warpgroup."""

    @abstractmethod
    def mainloop(self, tile: Any) -> AbstractContextManager[None]:
        """Have the tensor core for a tile; leaving waits for the tile's sums."""


class Cooperative(WarpgroupOrder):
    """Every warpgroup has its rows of all tiles, and none waits for another."""

    def __init__(self, core: WgmmaOp) -> None:
        self._core = core

    def tiles_of(self, tiles: DivisibleScheduler[Work]) -> Iterator[Work]:
        return iter(tiles)

    @contextmanager
    def mainloop(self, tile: Any) -> Iterator[None]:
        yield
        self._core.finish(tile.k_tiles)


class PingPong(WarpgroupOrder):
    """Each of two warpgroups has every other tile; at a named barrier of its own the other one lets it go ahead.

    It passes over the stages of the other one's tiles: of `k_tiles` each, or, if that is None, of as many as a tile
    says were before it.
    """

    def __init__(self, core: WgmmaOp, group: Warpgroup, k_tiles: Value | None) -> None:
        self._core, self._group, self._k_tiles = core, group, k_tiles
        self._barriers = WarpgroupBarriers(2 * group.threads, count=2)

    def tiles_of(self, tiles: DivisibleScheduler[Work]) -> Iterator[Work]:
        with when(self._group.number == 1):
            self._pass_on()
            if self._k_tiles is not None:
                self._core.skip(self._k_tiles)
        return tiles.every(self._group.number, 2)

    @contextmanager
    def mainloop(self, tile: Any) -> Iterator[None]:
        if self._k_tiles is None:
            self._core.skip(tile.k_before)
        self._barriers.wait(self._group.number)
        yield
        self._pass_on()
        self._core.finish(tile.k_tiles)
        if self._k_tiles is not None:
            self._core.skip(tile.k_tiles)

    def _pass_on(self) -> None:
        self._barriers.arrive(1 - self._group.number)


def warpgroup_order(
    config: HopperConfig, core: WgmmaOp, group: Warpgroup, k_tiles: Value | None = None
) -> WarpgroupOrder:
    """As the configuration says; `k_tiles` are those of every tile, where all have as many."""
    return PingPong(core, group, k_tiles) if config.pingpong else Cooperative(core)
