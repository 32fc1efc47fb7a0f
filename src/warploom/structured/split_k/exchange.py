"""Split-K with all splits running concurrently: each split reduces one slice of the tile over all splits and writes it.

A thread's partial accumulators go to the same thread of another CTA. They are added in a fixed order, so that the
result is deterministic. All CTAs of a tile must be resident on the GPU at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from warploom.hardware.mma_shapes import WGMMA_M
from warploom.structured.cluster import Cluster
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.epilogue.staging import Values
from warploom.structured.named_barriers import WarpGroupBarrier
from warploom.structured.pipelines.input_pipeline import InputTilePipeline
from warploom.structured.pipelines.signals import EachPeer
from warploom.structured.pipelines.start_up import start_up
from warploom.structured.split_k.split_tile import SplitTile
from warploom.structured.tensor_cores.wgmma import RegisterTile, WgmmaOp
from warploom.trace import isa
from warploom.trace.isa.emit import At
from warploom.trace.language.barriers import Barriers, barriers
from warploom.trace.language.control import While, when
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, literal, select
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import View, shared

_COLUMNS, _ROWS = 8, 8
_PAIR, _SQUARE = 2, 4
"""Registers of a thread in eight columns: two in a row, and two in the row eight below."""
_WORD = 4
_FLIP = 1 << 31
"""The sum of all arrivals of a launch at a counter of `GlobalExchange`: it flips the top bit."""


class ClusterExchange:
    """Each CTA sends every other CTA its partial accumulators of that CTA's slice, into distributed shared memory.

    A barrier counts the received bytes. A CTA waits only for its own data; once it has received everything, no other
    CTA accesses it any more, so that no barrier is needed at the end.

    With large tiles the data are received where the input stages were: each consumer warp arrives at a barrier of every
    CTA when its MMAs have read their last stage, and a CTA sends when all have.
    """

    def __init__(
        self, role: Role, cluster: Cluster, tile: SplitTile, config: HopperConfig, inputs: InputTilePipeline
    ) -> None:
        self._role, self._cluster, self._split, self._config = role, cluster, tile.split.to("u32"), config
        self._units = config.accumulators // _SQUARE // config.num_split_k
        self._row = _SQUARE * _WORD * role.threads
        self._slice = self._units * self._row
        setup = start_up()
        self._were_read: Barriers | None = None
        if config.receives_in_stages:
            operands = (inputs.payload.a.storage, inputs.payload.b.storage)
            self._inbox: View = max(operands, key=lambda each: each.bytes)
            self._were_read, self._signal = barriers("stages_read"), EachPeer(role, peers=cluster.sharing)
            setup.barriers.append((self._were_read, lambda: self._signal.arrivals(cluster)))
        else:
            self._inbox = shared("u8", (config.num_split_k - 1, self._slice), name="partials", align=_SQUARE * _WORD)
        self._barriers = barriers("partials")
        setup.barriers.append((self._barriers, lambda: 1))
        setup.syncs_later = True

    def begin(self) -> None:
        """Expect the bytes that the other splits will send."""
        with when(self._role.first_thread):
            self._barriers[0].arrive_and_expect((self._config.num_split_k - 1) * self._slice)

    def reduced(self, core: WgmmaOp) -> list[RegisterTile]:
        """Return this split's slice of the columns, reduced over all splits: its own first, then the following ones."""
        splits, mine = self._config.num_split_k, self._split
        slices = [self._slice_of(core, split) for split in range(splits)]
        place = self._inbox.place.address + self._role.thread * (_SQUARE * _WORD)
        self._cluster.wait()
        if self._were_read is not None:
            self._signal.arrive(self._were_read, literal(0, "u32"), self._cluster)
            self._were_read[0].wait(0)
        for other in range(splits):
            with when(mine != other):
                self._send(slices[other], place, literal(other, "u32"))
        total = slices[0]
        for split in range(1, splits):
            total = [select(mine == split, one, two) for one, two in zip(slices[split], total, strict=True)]
        self._barriers[0].wait(0)
        for number in range(splits - 1):
            places = [At(place, number * self._slice + unit * self._row) for unit in range(self._units)]
            received = [value for each in places for value in isa.ld.v4(each, space="shared", type="f32")]
            total = [held + more for held, more in zip(total, received, strict=True)]
        return _tiles(total, self._config)

    def _slice_of(self, core: WgmmaOp, split: int) -> list[Value]:
        """Return this thread's accumulators in the columns of a split; of a gated GEMM those of gate and of up."""
        each = self._config.tile_columns // _PAIR // self._config.num_split_k
        parts = (part[split * each : (split + 1) * each] for block in core.blocks for part in block)
        return [register.get() for part in parts for register in part]

    def _send(self, values: Sequence[Value], place: Value, other: Value) -> None:
        """Send values to the same thread of another CTA, into the slot of this split: the next split has slot 0."""
        splits = self._config.num_split_k
        number = (self._split + (splits - 1) - other) % splits
        there = self._cluster.remote(At(place), other).address + number * self._slice
        barrier = self._cluster.remote(self._barriers[0].at, other)
        for unit in range(self._units):
            square = list(values[_SQUARE * unit : _SQUARE * (unit + 1)])
            isa.st.async_(At(there, unit * self._row), square, barrier, sem="weak", type="f32")


class GlobalExchange:
    """Partial accumulators go through a workspace that stays in L2; a counter per tile flips when all are stored.

    Every split polls the counter, so no split can reset it. Instead the arrivals of a launch add exactly H = 2³¹: the
    first split adds H - (splits - 1) and each other split 1. Between launches a counter is 0 or H:

    - It starts at 0, and adding H modulo 2³² leads from 0 to H and from H to 0. No number of launches changes that.
    - While any split is missing, the others have added less than H: at most splits - 1 without the first split, at
      most H - 1 with it. So the top bit flips at the last arrival, not before.
    - A split reads the counter in `begin`, before its own arrival: it sees the top bit of before this launch. The bit
      flips once in a launch, and the next launch reads and adds only when this one has ended (stream order, or
      `griddepcontrol.wait` before `begin`). So a split that polls late still sees the flip.

    Nothing here depends on how many splits earlier launches had.
    """

    def __init__(self, role: Role, workspace: View, counters: View, tile: SplitTile, config: HopperConfig) -> None:
        self._role, self._config, self._tile = role, config, tile
        self._barrier = WarpGroupBarrier(role.threads)
        self._row = config.split_unit * role.threads
        self._plane = config.accumulators * role.threads
        first = tile.number * (config.num_split_k * self._plane) + (role.thread * config.split_unit).to("s32")
        self._workspace = workspace.window((first,), (1 << 30,))
        self._mine = self._workspace.window((tile.split * self._plane,), (1 << 30,))
        self._counter = counters.at(tile.number)

    def begin(self) -> None:
        """Read the counter, before this split arrives."""
        self._before: Value = self._read("relaxed")

    def reduced(self, core: WgmmaOp) -> list[RegisterTile]:
        """Return this split's slice of the columns, reduced over all splits in order."""
        self._store(core)
        config = self._config
        each, splits = config.tile_columns // _COLUMNS, config.num_split_k
        run = each // splits
        first = self._tile.split.to("u32") * run
        pieces = range(sum(map(len, core.blocks)))
        units = [first + (piece * each + unit) for piece in pieces for unit in range(run)]
        parts = [[self._fetch(split, unit) for split in range(splits)] for unit in units]
        return _tiles([value for part in parts for value in _add(part)], config)

    def reduced_unit(self, core: WgmmaOp) -> Values:
        """Return this split's unit of the accumulators, reduced, by row and column from the unit's first element."""
        self._store(core)
        unit = self._tile.split.to("u32")
        held = _add([self._fetch(split, unit) for split in range(self._config.num_split_k)])
        return dict(zip(unit_places(self._config), held, strict=True))

    def _store(self, core: WgmmaOp) -> None:
        """Store all accumulators of this thread, and wait until all splits have done so."""
        held = [register.get() for block in core.blocks for part in block for register in part]
        size = self._config.split_unit
        for unit in range(len(held) // size):
            self._mine.store(held[size * unit : size * (unit + 1)], unit * self._row)
        self._barrier.sync()
        with when(self._role.first_thread):
            first, other = (literal(each, "u32") for each in (_FLIP - (self._config.num_split_k - 1), 1))
            arrival = select(self._tile.split == 0, first, other)
            isa.red.add(self._counter, arrival, sem="release", scope="gpu", space="global", type="u32")
            seen = Variable("u32", self._seen())
            for _ in While(lambda: (seen ^ self._before).bits("s32") >= 0):  # the top bits are the same
                seen.set(self._seen())
        self._barrier.sync()

    def _seen(self) -> Value:
        return self._read("acquire")

    def _read(self, order: Literal["relaxed", "acquire"]) -> Value:
        value: Value = isa.ld(self._counter, order=order, scope="gpu", space="global", type="u32")
        return value

    def _fetch(self, split: int, unit: Value) -> tuple[Value, ...]:
        """Load the same thread's unit of a split."""
        place = self._workspace.at(unit.to("s32") * self._row + split * self._plane)
        values: tuple[Value, ...] = isa.ld(place, space="global", cache="cg", vec=self._config.split_unit, type="f32")
        return values


def unit_places(config: HopperConfig) -> list[tuple[int, int]]:
    """Return the rows and columns of a unit's elements, from its first."""
    return [(at // _PAIR * _ROWS, at % _PAIR) for at in range(config.split_unit)]


def unit_start(config: HopperConfig, split: Value) -> tuple[Value, Value]:
    """Return the row and column offsets of a split's unit from the thread's first accumulator."""
    first = split.to("u32") * config.split_unit
    square, inside = first // _SQUARE, first // _PAIR % (_SQUARE // _PAIR)
    piece, column = square // (config.BN // _COLUMNS), square % (config.BN // _COLUMNS)
    return (piece * WGMMA_M + inside * _ROWS).to("s32"), (column * _COLUMNS).to("s32")


def _tiles(values: Sequence[Value], config: HopperConfig) -> list[RegisterTile]:
    """Split the values of a slice into tiles of 64 rows."""
    each = len(values) // config.blocks
    pieces = (values[piece * each : (piece + 1) * each] for piece in range(config.blocks))
    return [RegisterTile(piece, config.sliced.stageN) for piece in pieces]


def _add(parts: Sequence[Sequence[Value]]) -> list[Value]:
    """Add element by element, the first split first."""
    total = list(parts[0])
    for part in parts[1:]:
        total = [held + more for held, more in zip(total, part, strict=True)]
    return total
