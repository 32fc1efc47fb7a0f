"""Partial tiles of stream-K: accumulators in global memory, until the CTA that writes the tile adds them.

Accumulators are stored thread by thread and added by the same thread of the other CTA, the nearest CTA's first: the
result is deterministic. A CTA stores at most one partial tile in a launch. Flags are zero before and after a launch,
because the CTA that has waited for a flag resets it.
"""

from __future__ import annotations

from warploom.structured.cluster import Cluster
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.named_barriers import OwnBarrier, WarpgroupBarriers
from warploom.structured.schedulers.static import linear_cluster
from warploom.structured.schedulers.stream_k import StreamTile
from warploom.structured.tensor_cores.wgmma import Warpgroup, WgmmaOp
from warploom.trace import isa
from warploom.trace.isa.emit import At
from warploom.trace.language.control import While, loop, when
from warploom.trace.language.values import Value, literal
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import View

_UNIT = 4
"""Accumulators that a thread moves with one instruction."""


class PartialTiles:
    """The partial tiles of all CTAs, contiguous per warpgroup, with a flag for each that it has been stored."""

    def __init__(self, workspace: View, flags: View, config: HopperConfig, group: Warpgroup, cluster: Cluster) -> None:
        self._workspace, self._flags, self._group, self._cluster = workspace, flags, group, cluster
        self._shares = 1 if config.pingpong else config.consumers
        self._size = config.accumulators * group.threads
        self._row = _UNIT * group.threads
        barriers = WarpgroupBarriers(group.threads, config.consumers)
        self._barrier = OwnBarrier(barriers, lambda: group.number)

    def store(self, core: WgmmaOp) -> None:
        """Store this warpgroup's accumulators and set its flag."""
        share = self._share(literal(0, "u32"))
        place = self._place(share)
        held = _registers(core)
        for at in range(0, len(held), _UNIT):
            place.store([register.get() for register in held[at : at + _UNIT]], at // _UNIT * self._row)
        self._barrier.sync()
        with when(self._group.first_thread):
            isa.st(self._flags.at(share), 1, order="release", scope="gpu", space="global", type="u32")

    def add(self, core: WgmmaOp, tile: StreamTile) -> None:
        """Add the partial tiles that other CTAs have stored for a tile."""
        held = _registers(core)
        for number in loop(tile.partial_ctas):
            share = self._share(number.to("u32") + 1)
            self._wait(self._flags.at(share))
            place = self._place(share)
            for at in range(0, len(held), _UNIT):
                partial = isa.ld.v4(place.at(at // _UNIT * self._row), space="global", cache="cg", type="f32")
                for register, value in zip(held[at : at + _UNIT], partial, strict=True):
                    register.set(register + value)

    def _wait(self, flag: At) -> None:
        with when(self._group.first_thread):
            seen = Variable("u32", 0)
            for _ in While(lambda: seen == 0):
                seen.set(isa.ld(flag, order="acquire", scope="gpu", space="global", type="u32"))
            isa.st(flag, 0, space="global", type="u32")
        self._barrier.sync()

    def _share(self, back: Value) -> Value:
        """Return the index of this warpgroup's partial tile, or of the same warpgroup `back` clusters before."""
        number, _ = linear_cluster(self._cluster)
        cta = (number - back) * self._cluster.size + self._cluster.rank
        return cta if self._shares == 1 else cta * self._shares + self._group.number

    def _place(self, share: Value) -> View:
        """Return this thread's part of a partial tile."""
        first = share * self._size + self._group.thread * _UNIT
        return self._workspace.window((first.to("s32"),), (1 << 30,))


def _registers(core: WgmmaOp) -> list[Variable]:
    return [register for accumulator in core.accumulators for register in accumulator.registers]
