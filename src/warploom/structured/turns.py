"""Two warpgroups that take turns at the tensor core: one stores its tile while the other multiplies."""

from __future__ import annotations

from warploom.structured.warp_group_barrier import WarpgroupBarriers
from warploom.structured.wgmma import Warpgroup, WgmmaOp
from warploom.trace.control import when
from warploom.trace.values import Value


class Turns:
    """Ping-pong: a named barrier for each of two warpgroups, at which the other one lets it go ahead."""

    def __init__(self, group: Warpgroup) -> None:
        self._group = group
        self._barriers = WarpgroupBarriers(2 * group.threads, count=2)

    def begin(self, core: WgmmaOp, k_tiles: Value | None = None) -> None:
        """The first warpgroup goes first; the second one's stages begin behind the first one's tile, if they differ."""
        with when(self._group.number == 1):
            self._barriers.arrive(1 - self._group.number)
            if k_tiles is not None:
                core.skip(k_tiles)

    def take(self) -> None:
        """Wait for the turn."""
        self._barriers.wait(self._group.number)

    def give(self) -> None:
        """Let the other one go ahead."""
        self._barriers.arrive(1 - self._group.number)
