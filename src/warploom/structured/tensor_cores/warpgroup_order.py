"""The order of consumer warpgroups: cooperative on one tile, or ping-pong, one storing while the other computes."""

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
    """A scheduler whose tiles can be divided among alternating warpgroups."""

    def __iter__(self) -> Iterator[Work_co]: ...

    def every(self, number: Value, of: int) -> Iterator[Work_co]: ...


class WarpgroupOrder(ABC):
    """The tiles of a CTA that the executing warpgroup computes, and when it may use the tensor core."""

    turns: Warpgroup | None = None
    """The executing warpgroup, if it has every other tile."""

    @abstractmethod
    def tiles_of(self, tiles: DivisibleScheduler[Work]) -> Iterator[Work]:
        """Iterate over the tiles of this warpgroup."""

    @abstractmethod
    def mainloop(self, tile: Any) -> AbstractContextManager[None]:
        """Enter the main loop of a tile; leaving waits until the accumulators are complete."""


class Cooperative(WarpgroupOrder):
    """Cooperative warpgroups: each has its rows of every tile, and none waits for another."""

    def __init__(self, core: WgmmaOp) -> None:
        self._core = core

    def tiles_of(self, tiles: DivisibleScheduler[Work]) -> Iterator[Work]:
        return iter(tiles)

    @contextmanager
    def mainloop(self, tile: Any) -> Iterator[None]:
        yield
        self._core.finish(tile.k_tiles)


class PingPong(WarpgroupOrder):
    """Ping-pong: each of two warpgroups has every other tile; it enters its main loop when the other has left its own.

    Each warpgroup has a named barrier at which the other one arrives. A warpgroup skips the input stages of the other
    one's tiles: `k_tiles` each, or `tile.k_before` if `k_tiles` is None.
    """

    def __init__(self, core: WgmmaOp, group: Warpgroup, k_tiles: Value | None) -> None:
        self._core, self._group, self._k_tiles = core, group, k_tiles
        self.turns = group
        self._barriers = WarpgroupBarriers(2 * group.threads, count=2)

    def tiles_of(self, tiles: DivisibleScheduler[Work]) -> Iterator[Work]:
        with when(self._group.number == 1):  # warpgroup 0 goes first, and warpgroup 1 skips its stages
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
        self._pass_on()  # all MMAs are issued: the other warpgroup's follow while these complete
        self._core.finish(tile.k_tiles)
        if self._k_tiles is not None:
            self._core.skip(tile.k_tiles)

    def _pass_on(self) -> None:
        self._barriers.arrive(1 - self._group.number)


def warpgroup_order(
    config: HopperConfig, core: WgmmaOp, group: Warpgroup, k_tiles: Value | None = None
) -> WarpgroupOrder:
    """Return the order that the configuration selects; `k_tiles` is given if all tiles have the same number."""
    return PingPong(core, group, k_tiles) if config.pingpong else Cooperative(core)
