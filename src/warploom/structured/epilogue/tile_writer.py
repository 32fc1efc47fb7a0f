"""`TileWriter`: accumulators from tensor memory to C.

One loop: a strip is loaded, an epilogue computes with it, auxiliary tiles are added, a sink takes it. Every `write…`
method is a door to that loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from warploom.diagnostics import Diag
from warploom.structured.config.output import AUXILIARY_BUFFERS
from warploom.structured.epilogue.auxiliary import AuxiliaryLayout, Bias, EpilogueInput, StreamedTiles, WholeTile
from warploom.structured.epilogue.epilogue import Epilogue, Function
from warploom.structured.epilogue.sinks import AuthorStore, DirectStore, Sink, SubtileRing, TmaStore
from warploom.structured.epilogue.staging import SharedLayout, SubtileStore, Values
from warploom.structured.epilogue.subtile_work import EpilogueInputs, SubtileWork
from warploom.structured.epilogue.subtiles import Subtile, TileSpot, WarpPart
from warploom.structured.epilogue.warp_exchange import WarpExchange
from warploom.structured.epilogue.writer_geometry import StagedOutput, WriterGeometry
from warploom.structured.epilogue.writer_protocols import (
    AccumulatorStage,
    GroupBarrier,
    RegisterAccumulator,
    WriterConfig,
    WriterRole,
)
from warploom.structured.named_barriers import WarpGroupBarrier
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.shared_types import SMemTileArray2DRowMajor
from warploom.structured.pipelines.start_up import start_up
from warploom.structured.split_k.reduction import SplitReduction
from warploom.structured.tensor_cores.tmem import TmemAddress, TmemFragments
from warploom.trace.builder import here
from warploom.trace.language.control import when
from warploom.trace.language.types import Number
from warploom.trace.language.values import Value
from warploom.trace.language.views import Index, View
from warploom.trace.parameters import TensorMapArgument

TileCoord = Any
"""A scheduler's tile, or (m, n) or (m, n, batch), counted in tiles."""
Shape = tuple[Index, Index]
Tiles = View | SMemTileArray2DRowMajor
Output = StagedOutput | View
"""Where a further output goes: by the copy engine, or a view for threads to store to."""
_EVERYTHING = (1 << 31) - 1
SUBTILE_COLUMNS = (8, 16, 32, 64)
"""Columns of a strip from tensor memory: a load repeats a power of two times."""
LOW_PRECISION_TYPES = ("bf16", "e4m3", "e5m2")
"""Types of C with eight bits of a number or fewer."""


class TileWriter(WriterGeometry):
    """Writes accumulators to C, which is a tensor map, or a view where the copy engine cannot reach it.

    Shapes and modes come from a configuration or from keywords under the names of the members. Give either; what is
    given beside a configuration is checked against it.
    """

    def __init__(
        self,
        c_tma_op: TensorMapArgument | View,
        config: WriterConfig | None = None,
        *,
        role: WriterRole,
        epilogue: Epilogue | None = None,
        elementwise_lambda_fn: Function | None = None,
        elementwise_compute_lambda_fn: Function | None = None,
        epilogue_dtype: str | None = None,
        c_tiles: Tiles | None = None,
        barrier: GroupBarrier | None = None,
        shape: Shape | None = None,
        outputs: Mapping[str, Output] | None = None,
        **geometry: Any,
    ) -> None:
        """`outputs` are where the epilogue's further outputs go, by their names."""
        super().__init__(config, warps=role.count, role_first=role.first, c=c_tma_op, **geometry)
        self.c_tma_op, self.role, self.shape = c_tma_op, role, shape
        self.epilogue = self._completed(
            epilogue or Epilogue(dtype=self.default_dtype),
            function=elementwise_compute_lambda_fn,
            store=elementwise_lambda_fn,
            dtype=epilogue_dtype,
            fast=self.c_type in LOW_PRECISION_TYPES or None,
        )
        self.barrier = barrier or WarpGroupBarrier(role.threads)
        self.part = WarpPart(self.epc, role.warp)
        self._exchange: WarpExchange | None = None
        auxiliary = self._ordered(outputs or {})
        self._direct = [DirectStore(each) for each in auxiliary.values() if isinstance(each, View)]
        self._arrays = [each.array for each in auxiliary.values() if isinstance(each, StagedOutput)]
        self.sink = self._sink_of(c_tiles, auxiliary)
        if isinstance(c_tma_op, TensorMapArgument):
            start_up().maps.append(c_tma_op)

    @staticmethod
    def _completed(epilogue: Epilogue, **given: Any) -> Epilogue:
        return replace(epilogue, **{name: value for name, value in given.items() if value is not None})

    def _ordered(self, outputs: Mapping[str, Output]) -> dict[str, Output]:
        """The further outputs as the epilogue gives them: all staged as C is, or all stored by threads."""
        problems = [f"output `{name}` has nowhere to go" for name in self.epilogue.outputs if name not in outputs]
        problems += [f"the epilogue gives no output `{name}`" for name in outputs if name not in self.epilogue.outputs]
        direct = {isinstance(each, View) for each in outputs.values()}
        if len(direct) > 1 or (False in direct and isinstance(self.c_tma_op, View)):
            problems.append("some outputs are staged, and others or C are not")
        if problems:
            raise Diag.BAD_WRITER.error(here(), count=len(problems), what="; ".join(problems))
        return {name: outputs[name] for name in self.epilogue.outputs}

    def _sink_of(self, c_tiles: Tiles | None, outputs: Mapping[str, Output]) -> Sink:
        if self.epilogue.store is not None:
            return AuthorStore(self.epilogue, self.c_type)
        if isinstance(self.c_tma_op, View):
            return DirectStore(self.c_tma_op)
        if not self.register_based_epilogue:
            self._exchange = WarpExchange(self.part, self.num_output_warps)
        tiles = None if c_tiles is None else self._checked(c_tiles)
        ring = SubtileRing(self.c_tma_op, self._subtile_store(self.staged), self.part, self.num_output_stages, tiles)
        auxiliary = [self._ring(name, each) for name, each in outputs.items() if isinstance(each, StagedOutput)]
        return TmaStore(ring, self.role, self.barrier, auxiliary)

    def _subtile_store(self, layout: SharedLayout) -> SubtileStore:
        return SubtileStore(layout, self.stageN, self.is_lower_frag_required)

    def _ring(self, name: str, output: StagedOutput) -> SubtileRing:
        """Buffers for a further output: fewer than C may have, since nothing comes into them early."""
        start_up().maps.append(output.tensor)
        count = min(self.num_output_stages, AUXILIARY_BUFFERS)
        subtiles = self._subtile_store(self.staged_as(output))
        return SubtileRing(output.tensor, subtiles, self.part, count, output.tiles, f"{name}_tiles")

    def _checked(self, given: Tiles) -> View:
        """Buffers of the author's, which must be what C is staged in."""
        tiles, shape = _view(given), (self.num_output_stages, *self.c_smem_layout)
        if (tiles.dtype, tiles.shape) != (self.c_type, shape):
            what = f"c_tiles are {tiles.shape} of .{tiles.dtype}; C is staged in {shape} of .{self.c_type}"
            raise Diag.BAD_WRITER.error(here(), count=1, what=what)
        return tiles

    def write(
        self,
        stage: AccumulatorStage | RegisterAccumulator,
        tile_coord: TileCoord,
        shape: Shape | None = None,
        *,
        c_tiles: Tiles | None = None,
        bias: EpilogueInput | None = None,
        up_bias: EpilogueInput | None = None,
        residual: EpilogueInput | None = None,
    ) -> None:
        """Write an accumulator, or a pair, to a tile of C; `shape` is C's, in elements."""
        inputs = EpilogueInputs(bias, up_bias, residual)
        self._run(stage, self._spot(tile_coord, shape), sink=self._sink_for(c_tiles), inputs=inputs)

    def write_batched(
        self,
        stage: AccumulatorStage,
        tile_coord: TileCoord,
        shape: Shape | None = None,
        alpha: Value | Number = 1.0,
        *,
        c_tiles: Tiles | None = None,
    ) -> None:
        """As `write`, to one of several matrices, scaled."""
        self._run(stage, self._spot(tile_coord, shape), sink=self._sink_for(c_tiles), scale=alpha)

    def write_splitk(
        self,
        stage: AccumulatorStage,
        scheduler: Any,
        reduction_tensor: View,
        work_info: Any,
        shape: Shape | None = None,
        *,
        locks: View | None = None,
        c_tiles: Tiles | None = None,
    ) -> None:
        """Add an accumulator to those of the splits before it; the final split writes C."""
        held = getattr(scheduler, "locks", None) if locks is None else locks
        if held is None:
            what = "split-K needs `locks`, one s32 per tile; give them to the scheduler or to this call"
            raise Diag.BAD_WRITER.error(here(), count=1, what=what)
        partial = SplitReduction(reduction_tensor, held, work_info, self.role, self.barrier)
        self._run(stage, self._spot(work_info, shape), sink=self._sink_for(c_tiles), partial=partial)

    def write_absolute_with_bounds_check(
        self,
        output_stage: AccumulatorStage | RegisterAccumulator,
        m_abs: Index,
        n_abs: Index,
        m_end: Index,
        expert_scale: Value | Number,
        c_tensor: View,
        *,
        c_tiles: Tiles | None = None,
        n_end: Index | None = None,
    ) -> None:
        """Write from row `m_abs` and column `n_abs` of C on, but no row from `m_end` on: it belongs to another group.

        `n_end` are C's columns, if not those that the writer or the view knows of.
        """
        if n_end is None:
            n_end = self.problem_n or (self.shape[1] if self.shape is not None else c_tensor.shape[-1])
        spot = self._spot_at((m_abs, n_abs), 0, (m_end, n_end))
        sink = self._sink_for(c_tiles)
        if isinstance(sink, TmaStore):
            sink = sink.bounded(c_tensor, *self._output_arrays())
        self._run(output_stage, spot, sink=sink, scale=expert_scale)

    def _output_arrays(self) -> list[View]:
        """The arrays of the staged outputs, for threads to write to."""
        found = [each for each in self._arrays if each is not None]
        if len(found) < len(self._arrays):
            raise Diag.BAD_WRITER.error(here(), count=1, what="an output is staged, and comes without its array")
        return found

    def write_with_residual(
        self,
        stage: AccumulatorStage,
        src_tile: Tiles,
        src_pipeline: ProducerConsumerPipeline,
        beta: Value | Number,
        tile_coord: TileCoord,
        shape: Shape | None = None,
        *,
        out_tiles: Tiles | None = None,
    ) -> None:
        """Write D = epilogue(accumulator) + beta·C, with a strip of C in each stage of a pipeline, as D is staged."""
        layout = AuxiliaryLayout(self.epc, self.c_type, "residual", self.c_swizzle)
        source = StreamedTiles(layout, _view(src_tile), src_pipeline, self.part)
        spot, sink = self._spot(tile_coord, shape), self._sink_for(out_tiles)
        self._run(stage, spot, sink=sink, inputs=EpilogueInputs(residual=source), beta=beta)

    def write_batched_with_tma_epilogue_load(
        self,
        output_stage: AccumulatorStage,
        epilogue_tile: View,
        tile_coord: TileCoord,
        c_shape: Shape | None = None,
        *,
        epi_load_swizzle: str | None = None,
        c_tiles: Tiles | None = None,
    ) -> None:
        """Write with a tile added that lies in shared memory; the caller waits for it and gives it back."""
        layout = AuxiliaryLayout(self.epc, self.c_type, "tile", epi_load_swizzle or self.epi_load_swizzle)
        source = WholeTile(layout, epilogue_tile.place, self.part)
        spot, sink = self._spot(tile_coord, c_shape), self._sink_for(c_tiles)
        self._run(output_stage, spot, sink=sink, inputs=EpilogueInputs(residual=source))

    def write_batched_with_1d_bias(
        self,
        output_stage: AccumulatorStage,
        epilogue_tile: View,
        tile_coord: TileCoord,
        c_shape: Shape | None = None,
        *,
        c_tiles: Tiles | None = None,
    ) -> None:
        """Write with a bias added that has a value for each column of C, the tile's part of it in shared memory."""
        spot, sink = self._spot(tile_coord, c_shape), self._sink_for(c_tiles)
        self._run(output_stage, spot, sink=sink, inputs=EpilogueInputs(bias=Bias(epilogue_tile, self.part)))

    def write_batched_with_tma_epilogue_load_strips(
        self,
        output_stage: AccumulatorStage,
        epilogue_pipeline: ProducerConsumerPipeline,
        epilogue_tiles_base: Tiles,
        epilogue_tile_elems: int | None,
        tile_coord: TileCoord,
        c_shape: Shape | None = None,
        *,
        epi_load_swizzle: str | None = None,
        c_tiles: Tiles | None = None,
    ) -> None:
        """Write with strips added that come through a pipeline: strip by strip, of a folded tile left half first."""
        layout = AuxiliaryLayout(self.epc, self.c_type, "subtiles", epi_load_swizzle or self.epi_load_swizzle)
        elements = layout.layout.rows * layout.layout.columns
        if epilogue_tile_elems is not None and epilogue_tile_elems != elements:
            what = f"epilogue_tile_elems is {epilogue_tile_elems}; a strip has {elements}"
            raise Diag.BAD_WRITER.error(here(), count=1, what=what)
        source = StreamedTiles(layout, _view(epilogue_tiles_base), epilogue_pipeline, self.part)
        spot, sink = self._spot(tile_coord, c_shape), self._sink_for(c_tiles)
        self._run(output_stage, spot, sink=sink, inputs=EpilogueInputs(residual=source))

    def drain(self) -> None:
        """Wait until the copy engine has read every buffer; the end of the role does so by itself."""
        if isinstance(self.sink, TmaStore):
            self.sink.drain()

    def spot(self, tile_coord: TileCoord, shape: Shape | None = None) -> TileSpot:
        """Where a tile lies in C; bounds are needed only where an epilogue asks for them."""
        return self._spot(tile_coord, shape or (_EVERYTHING, _EVERYTHING))

    def read_early(self, places: Sequence[tuple[int, int]], spot: TileSpot) -> None:
        """Read what the epilogue adds to some values, from the thread's first at a spot on: later it is known."""
        subtile = Subtile(0, 0, spot)
        for where in places:
            self.epilogue.read_early(subtile.at(*where))

    def write_values(self, values: Values, spot: TileSpot) -> None:
        """Write some values that lie so many rows and columns from the thread's first at a spot."""
        SubtileWork(self.epilogue, self.sink, direct=self._direct).finish(Subtile(0, 0, spot), values)

    def _sink_for(self, c_tiles: Tiles | None) -> Sink:
        """The writer's sink; its buffers are one ring, whichever call brings them."""
        if c_tiles is not None and isinstance(self.sink, TmaStore):
            tiles, ring = self._checked(c_tiles), self.sink.ring
            if ring.tiles is not None and ring.tiles.base.operand != tiles.base.operand:
                raise Diag.BAD_WRITER.error(here(), count=1, what="its c_tiles are others than before")
            ring.tiles = tiles
        return self.sink

    def _spot(self, tile_coord: TileCoord, shape: Shape | None) -> TileSpot:
        coord = tile_coord.coord if hasattr(tile_coord, "coord") else tile_coord
        m, n = coord[0] * self.BM, coord[1] * self.MMA_N
        batch = coord[2] if len(coord) > 2 else 0
        rows, columns = self._ends(shape)
        if self.transpose_c:
            rows, columns = columns, rows
        return TileSpot.of(self.part, (m, n), batch, (rows, columns), transposed=self.transpose_c)

    def _spot_at(self, start: tuple[Index, Index], batch: Index, ends: Shape) -> TileSpot:
        """A tile at a row and column of C, which ends before others."""
        if self.transpose_c:
            start, ends = (start[1], start[0]), (ends[1], ends[0])
        return TileSpot.of(self.part, start, batch, ends, transposed=self.transpose_c)

    def _ends(self, given: Shape | None) -> Shape:
        """C's rows and columns; where the copy engine alone must know them, none are needed."""
        shape = given or self.shape
        if shape is not None:
            return shape
        if self.epilogue.needs_bounds or not isinstance(self.sink, TmaStore):
            what = "C's shape is not known here; give `shape` to the call or to the writer"
            raise Diag.BAD_WRITER.error(here(), count=1, what=what)
        return (_EVERYTHING, _EVERYTHING)

    def _run(
        self,
        stage: AccumulatorStage | RegisterAccumulator,
        spot: TileSpot,
        *,
        sink: Sink,
        scale: Value | Number = 1.0,
        beta: Value | Number | None = None,
        inputs: EpilogueInputs | None = None,
        partial: SplitReduction | None = None,
    ) -> None:
        """The loop: strip by strip."""
        epilogue = self.epilogue if beta is None else replace(self.epilogue, beta=beta)
        work = SubtileWork(epilogue, sink, scale, inputs or EpilogueInputs(), self._direct, self._exchange)
        if partial is not None:
            partial.begin()
        for index, fragments in enumerate(self._subtiles(stage)):
            subtile = Subtile(index, index * self.stageN, spot)
            if partial is None:
                work.finish(subtile, *(each.by_place for each in fragments))
                continue
            values = partial.add(subtile, fragments[0].by_place)
            with when(partial.is_final):
                work.finish(subtile, values)
            with when(~partial.is_final):
                partial.store(subtile, values)
        if partial is not None:
            partial.end()

    def _subtiles(self, stage: AccumulatorStage | RegisterAccumulator) -> Iterator[list[TmemFragments]]:
        """An accumulator's strips, of a pair both; from tensor memory, each one's load behind the work on that before.

        The second accumulator of a pair follows the first.
        """
        starts = (0,) if self.epilogue.pair is None else (0, self.num_stages)
        if isinstance(stage, RegisterAccumulator):
            yield from ([stage.subtile(start + index) for start in starts] for index in range(self.num_stages))
            return
        if self.stageN not in SUBTILE_COLUMNS:
            what = f"stageN is {self.stageN}; a subtile that is loaded from TMEM has one of {SUBTILE_COLUMNS} columns"
            raise Diag.BAD_WRITER.error(here(), count=1, what=what)
        both = replace(self.AccumTmemArray, count=len(starts) * self.num_stages)
        tensors = both.at(TmemAddress(stage.tmem.offset).of_warp(self.role.warp))

        def load(index: int) -> list[TmemFragments]:
            return [tensors[start + index].load_fragments(self.rep) for start in starts]

        upcoming = load(0)
        for index in range(self.num_stages):
            TmemAddress.wait_load()
            fragments = upcoming
            if index + 1 < self.num_stages:
                upcoming = load(index + 1)
            else:
                stage.release()
            yield fragments


def _view(tiles: Tiles) -> View:
    return tiles if isinstance(tiles, View) else tiles.storage
