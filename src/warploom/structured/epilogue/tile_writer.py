"""`TileWriter`: the epilogue loop, from accumulators to C.

For each subtile: load the accumulators, apply the epilogue with its inputs, pass the result to a sink. Every `write…`
method runs this loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from warploom.diagnostics import Diag
from warploom.structured.config.output import AUXILIARY_BUFFERS
from warploom.structured.epilogue.auxiliary import AuxiliaryLayout, Bias, EpilogueInput, StreamedTiles, WholeTile
from warploom.structured.epilogue.epilogue import FORMATS, Epilogue, Function
from warploom.structured.epilogue.quantised_store import QuantisedStore
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
"""The destination of an auxiliary output: staged and stored by TMA, or an array that threads store to."""
_EVERYTHING = (1 << 31) - 1
SUBTILE_COLUMNS = (8, 16, 32, 64)
"""Columns of a subtile that is loaded from TMEM: a load has a power of two repeats."""
LOW_PRECISION_TYPES = ("bf16", "e4m3", "e5m2")
"""Types of C with a significand of eight bits or fewer."""


class TileWriter(WriterGeometry):
    """Writes accumulators to C, which is a tensor map, or a view where TMA cannot reach it.

    Shapes and modes come from a configuration, or from keywords that have the names of the members. What is given in
    addition to a configuration is checked against it.
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
        """`outputs` are the destinations of the epilogue's auxiliary outputs, by name."""
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
        """Return the auxiliary outputs in the epilogue's order: all staged like C, or all stored by threads."""
        problems = [f"output `{name}` has no destination" for name in self.epilogue.outputs if name not in outputs]
        problems += [f"the epilogue has no output `{name}`" for name in outputs if name not in self.epilogue.outputs]
        direct = {isinstance(each, View) for each in outputs.values()}
        if len(direct) > 1 or (False in direct and isinstance(self.c_tma_op, View)):
            problems.append("outputs must be all staged, with C, or all stored by threads")
        if problems:
            raise Diag.BAD_WRITER.error(here(), count=len(problems), what="; ".join(problems))
        return {name: outputs[name] for name in self.epilogue.outputs}

    def _sink_of(self, c_tiles: Tiles | None, outputs: Mapping[str, Output]) -> Sink:
        if self.epilogue.store is not None:
            return AuthorStore(self.epilogue, self.c_type)
        if self.epilogue.quantise_to is not None:
            return self._quantised()
        if isinstance(self.c_tma_op, View):
            return DirectStore(self.c_tma_op)
        if not self.register_based_epilogue:
            self._exchange = WarpExchange(self.part, self.num_output_warps)
        tiles = None if c_tiles is None else self._checked(c_tiles)
        ring = SubtileRing(self.c_tma_op, self._subtile_store(self.staged), self.part, self.num_output_stages, tiles)
        auxiliary = [self._ring(name, each) for name, each in outputs.items() if isinstance(each, StagedOutput)]
        return TmaStore(ring, self.role, self.barrier, auxiliary)

    def _quantised(self) -> QuantisedStore:
        """Create the sink of a block format: threads store the values and the scale factors."""
        epilogue, columns = self.epilogue, self.stageN
        scales = None if epilogue.scales is None else epilogue.scales.source
        run = FORMATS[str(epilogue.quantise_to)]
        if not isinstance(self.c_tma_op, View) or not isinstance(scales, View):
            raise Diag.BAD_WRITER.error(here(), count=1, what="a block format is stored to views of values and scales")
        if self.transpose_c or self.epc.is_folded or columns % run:
            what = f"a block format needs rows along M, and subtiles of a multiple of {run} columns, not {columns}"
            raise Diag.BAD_WRITER.error(here(), count=1, what=what)
        return QuantisedStore(self.c_tma_op, scales, str(epilogue.quantise_to), epilogue.quantise_scale)

    def _subtile_store(self, layout: SharedLayout) -> SubtileStore:
        return SubtileStore(layout, self.stageN, self.is_lower_frag_required)

    def _ring(self, name: str, output: StagedOutput) -> SubtileRing:
        """Create the ring of an auxiliary output: shorter than C's may be, because no residual is loaded into it."""
        start_up().maps.append(output.tensor)
        count = min(self.num_output_stages, AUXILIARY_BUFFERS)
        subtiles = self._subtile_store(self.staged_as(output))
        return SubtileRing(output.tensor, subtiles, self.part, count, output.tiles, f"{name}_tiles")

    def _checked(self, given: Tiles) -> View:
        """Check the author's buffers: their type and shape must be those in which C is staged."""
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
        """Write an accumulator, or a gate and up pair, to a tile of C; `shape` is that of C, in elements."""
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
        """Write an accumulator times `alpha` to a tile of one of several matrices."""
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
        bias: EpilogueInput | None = None,
        residual: EpilogueInput | None = None,
    ) -> None:
        """Add an accumulator to those of the previous splits; the final one adds `bias` and `residual` and writes C."""
        held = getattr(scheduler, "locks", None) if locks is None else locks
        if held is None:
            what = "split-K needs `locks`, one s32 per tile; give them to the scheduler or to this call"
            raise Diag.BAD_WRITER.error(here(), count=1, what=what)
        partial = SplitReduction(reduction_tensor, held, work_info, self.role, self.barrier)
        inputs = EpilogueInputs(bias, residual=residual)
        self._run(stage, self._spot(work_info, shape), sink=self._sink_for(c_tiles), inputs=inputs, partial=partial)

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
        batch: Index = 0,
    ) -> None:
        """Write a tile that starts at row `m_abs` and column `n_abs` of C; rows from `m_end` belong to another group.

        `n_end` is the number of columns of C, by default that of the writer or of the view. `batch` is the index of the
        group's expert in operands of the epilogue that have a row for each.
        """
        if n_end is None:
            n_end = self.problem_n or (self.shape[1] if self.shape is not None else c_tensor.shape[-1])
        spot = self._spot_at((m_abs, n_abs), batch, (m_end, n_end))
        sink = self._sink_for(c_tiles)
        if isinstance(sink, TmaStore):
            sink = sink.bounded(c_tensor, *self._output_arrays())
        self._run(output_stage, spot, sink=sink, scale=expert_scale)

    def _output_arrays(self) -> list[View]:
        """Return the arrays of the staged auxiliary outputs, which threads write where a tile ends inside a box."""
        found = [each for each in self._arrays if each is not None]
        if len(found) < len(self._arrays):
            raise Diag.BAD_WRITER.error(here(), count=1, what="a staged output of a grouped GEMM needs its array too")
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
        """Write D = epilogue(accumulator) + beta·C; each stage of the pipeline holds a subtile of C, staged like D."""
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
        """Write with a tile added that is in shared memory; the caller waits for it and releases it."""
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
        """Write with a bias added: one value per column of C, the tile's part of which is in shared memory."""
        spot, sink = self._spot(tile_coord, c_shape), self._sink_for(c_tiles)
        self._run(output_stage, spot, sink=sink, inputs=EpilogueInputs(bias=Bias(epilogue_tile, self.part)))

    def write_batched_with_tma_epilogue_load_subtiles(
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
        """Write with subtiles added that come through a pipeline: in order, of a folded tile the left half first."""
        layout = AuxiliaryLayout(self.epc, self.c_type, "subtiles", epi_load_swizzle or self.epi_load_swizzle)
        elements = layout.layout.rows * layout.layout.columns
        if epilogue_tile_elems is not None and epilogue_tile_elems != elements:
            what = f"epilogue_tile_elems is {epilogue_tile_elems}; a subtile has {elements}"
            raise Diag.BAD_WRITER.error(here(), count=1, what=what)
        source = StreamedTiles(layout, _view(epilogue_tiles_base), epilogue_pipeline, self.part)
        spot, sink = self._spot(tile_coord, c_shape), self._sink_for(c_tiles)
        self._run(output_stage, spot, sink=sink, inputs=EpilogueInputs(residual=source))

    def drain(self) -> None:
        """Wait until TMA has read every buffer; done automatically at the end of the role."""
        if isinstance(self.sink, TmaStore):
            self.sink.drain()

    def spot(self, tile_coord: TileCoord, shape: Shape | None = None) -> TileSpot:
        """Return the position of a tile in C; `shape` is needed only if the epilogue uses bounds."""
        return self._spot(tile_coord, shape or (_EVERYTHING, _EVERYTHING))

    def read_early(self, places: Sequence[tuple[int, int]], spot: TileSpot) -> None:
        """Load bias and residual of some elements early, by row and column from the thread's first at a spot."""
        subtile = Subtile(0, 0, spot)
        for where in places:
            self.epilogue.read_early(subtile.at(*where))

    def write_values(self, values: Values, spot: TileSpot) -> None:
        """Write values by row and column relative to the thread's first element at a spot."""
        SubtileWork(self.epilogue, self.sink, direct=self._direct).finish(Subtile(0, 0, spot), values)

    def _sink_for(self, c_tiles: Tiles | None) -> Sink:
        """Return the writer's sink; buffers that are given to a call must be the same in every call."""
        if c_tiles is not None and isinstance(self.sink, TmaStore):
            tiles, ring = self._checked(c_tiles), self.sink.ring
            if ring.tiles is not None and ring.tiles.base.operand != tiles.base.operand:
                raise Diag.BAD_WRITER.error(here(), count=1, what="c_tiles differ from those of an earlier call")
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
        """Return the position of a tile that starts at a row and column of C, with bounds."""
        if self.transpose_c:
            start, ends = (start[1], start[0]), (ends[1], ends[0])
        return TileSpot.of(self.part, start, batch, ends, transposed=self.transpose_c)

    def _ends(self, given: Shape | None) -> Shape:
        """Return C's rows and columns; unbounded if only TMA, which knows them, needs them."""
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
        """Run the loop over the subtiles."""
        epilogue = self.epilogue if beta is None else replace(self.epilogue, beta=beta)
        work = SubtileWork(epilogue, sink, scale, inputs or EpilogueInputs(), self._direct, self._exchange)
        if partial is not None:
            partial.begin()
        for index, fragments in enumerate(self._subtiles(stage)):
            subtile = Subtile(index, index * self.stageN, spot)
            if partial is None:
                work.finish(subtile, *(each.by_place for each in fragments))
                continue
            numbers = [start + index for start in self._starts]
            pairs = zip(numbers, fragments, strict=True)
            sums = [partial.add(number, each.by_place) for number, each in pairs]
            with when(partial.is_final):
                work.finish(subtile, *sums)
            with when(~partial.is_final):
                for number, values in zip(numbers, sums, strict=True):
                    partial.store(number, values)
        if partial is not None:
            partial.end()

    @property
    def _starts(self) -> tuple[int, ...]:
        """The numbers of the first subtiles: of an accumulator, or of a gate and up pair."""
        return (0,) if self.epilogue.pair is None else (0, self.num_stages)

    def _subtiles(self, stage: AccumulatorStage | RegisterAccumulator) -> Iterator[list[TmemFragments]]:
        """Yield an accumulator's subtiles, of a gate and up pair both.

        From TMEM, the load of the next subtile is issued before this one is processed. The up accumulator follows the
        gate in TMEM.
        """
        starts = self._starts
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
