"""Split-K with all splits at work at once: each parks its partial sums, meets the others, and reduces a slice.

Sums are parked thread by thread, so that a thread finds at its own place what the same thread of another CTA holds.
They are added in the order of the splits, whoever comes first. All CTAs of a tile must be on the GPU together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from warploom.facts.mma_shapes import WGMMA_M
from warploom.structured.cluster import Cluster
from warploom.structured.config.hopper import HopperConfig
from warploom.structured.split_tile import SplitTile
from warploom.structured.staging import Values
from warploom.structured.warp_group_barrier import WarpGroupBarrier
from warploom.structured.wgmma import RegisterTile, WgmmaOp
from warploom.trace.control import While, when
from warploom.trace.instructions import At, emit
from warploom.trace.memory import View
from warploom.trace.roles import Role
from warploom.trace.values import Value, literal
from warploom.trace.variables import Variable

_COLUMNS, _ROWS = 8, 8
_PAIR, _SQUARE = 2, 4
"""Registers of a thread in eight columns: two in a row, and two in the row eight below."""
_WORD = 4


class SumExchange(Protocol):
    """Where the partial sums of a tile meet."""

    def begin(self) -> None:
        """Go on when the place to park is free."""
        ...

    def park(self, unit: int, values: Sequence[Value]) -> None:
        """Leave this thread's unit."""
        ...

    def meet(self) -> None:
        """Go on when all splits have parked."""
        ...

    def fetch(self, split: int, unit: Value) -> tuple[Value, ...]:
        """The same thread's unit of a split."""
        ...


class ClusterExchange:
    """Partial sums in each CTA's own shared memory, read over the cluster's network: input stages are idle by then."""

    def __init__(self, role: Role, cluster: Cluster, storage: View) -> None:
        self._role, self._cluster, self._barrier = role, cluster, WarpGroupBarrier(role.threads)
        self._row = _SQUARE * _WORD * role.threads
        self._mine = storage.place.address + role.thread * (_SQUARE * _WORD)
        self._peers = [cluster.remote(At(self._mine), literal(rank, "u32")).address for rank in range(cluster.size)]

    def begin(self) -> None:
        self._barrier.sync()  # every warpgroup has read its last stage

    def park(self, unit: int, values: Sequence[Value]) -> None:
        emit("st.shared.v4.f32", At(self._mine, unit * self._row), list(values))

    def meet(self) -> None:
        self._cluster.sync()

    def fetch(self, split: int, unit: Value) -> tuple[Value, ...]:
        return emit("ld.shared::cluster.v4.f32", At(self._peers[split] + unit * self._row))


class GlobalExchange:
    """Partial sums in a workspace that stays in L2; a counter for each tile says how many have parked.

    The counter is never reset: every launch adds as many as there are splits, so it belongs to one configuration.
    """

    def __init__(self, role: Role, workspace: View, counters: View, tile: SplitTile, config: HopperConfig) -> None:
        self._role, self._splits, self._barrier = role, config.num_split_k, WarpGroupBarrier(role.threads)
        self._unit = config.split_unit
        self._row = self._unit * role.threads
        self._plane = config.accumulators * role.threads
        first = tile.number * (self._splits * self._plane) + (role.thread * self._unit).to("s32")
        self._sums = workspace.window((first,), (1 << 30,))
        self._mine = self._sums.window((tile.split * self._plane,), (1 << 30,))
        self._counter = counters.at(tile.number)

    def begin(self) -> None:
        """The workspace is nobody else's."""

    def park(self, unit: int, values: Sequence[Value]) -> None:
        self._mine.store(values, unit * self._row)

    def meet(self) -> None:
        self._together()
        with when(self._role.first_thread):
            emit("fence.acq_rel.gpu")
            (ticket,) = emit("atom.add.acq_rel.gpu.global.u32", self._counter, 1)
            goal = (ticket // self._splits + 1) * self._splits
            seen = Variable("u32", self._seen())
            for _ in While(lambda: (seen - goal).bits("s32") < 0):
                seen.set(self._seen())
        self._together()

    def _together(self) -> None:
        self._barrier.sync()

    def _seen(self) -> Value:
        return emit("ld.acquire.gpu.global.u32", self._counter)[0]

    def fetch(self, split: int, unit: Value) -> tuple[Value, ...]:
        place = self._sums.at(unit.to("s32") * self._row + split * self._plane)
        return emit(f"ld.global.cg.v{self._unit}.f32", place)


def reduced(core: WgmmaOp, config: HopperConfig, exchange: SumExchange, tile: SplitTile) -> list[RegisterTile]:
    """This split's slice of the columns, summed over all splits."""
    _park(core, config, exchange)
    each, splits = config.BN // _COLUMNS, config.num_split_k
    run = each // splits
    first = tile.split.to("u32") * run
    tiles = []
    for number in range(config.subtiles):
        parts = [
            [exchange.fetch(other, first + (number * each + unit)) for other in range(splits)] for unit in range(run)
        ]
        tiles.append(RegisterTile([value for part in parts for value in _summed(part)], config.sliced.stageN))
    return tiles


def reduced_unit(
    core: WgmmaOp, config: HopperConfig, exchange: SumExchange, tile: SplitTile
) -> tuple[Values, Value, Value]:
    """This split's unit of the sums, and how many rows and columns it lies from the thread's first."""
    _park(core, config, exchange)
    unit = tile.split.to("u32")
    held = _summed([exchange.fetch(other, unit) for other in range(config.num_split_k)])
    first = unit * config.split_unit
    square, inside = first // _SQUARE, first // _PAIR % (_SQUARE // _PAIR)
    piece, column = square // (config.BN // _COLUMNS), square % (config.BN // _COLUMNS)
    values = {(at // _PAIR * _ROWS, at % _PAIR): value for at, value in enumerate(held)}
    return values, (piece * WGMMA_M + inside * _ROWS).to("s32"), (column * _COLUMNS).to("s32")


def _park(core: WgmmaOp, config: HopperConfig, exchange: SumExchange) -> None:
    exchange.begin()
    held = [register.get() for accumulator in core.accumulators for register in accumulator.registers]
    size = config.split_unit
    for unit in range(len(held) // size):
        exchange.park(unit, held[size * unit : size * (unit + 1)])
    exchange.meet()


def _summed(parts: Sequence[Sequence[Value]]) -> list[Value]:
    """Element by element, the first split first."""
    total = list(parts[0])
    for part in parts[1:]:
        total = [held + more for held, more in zip(total, part, strict=True)]
    return total
