"""`TileWriter` as its page has it: compile-time members, and the page's order of arguments with checked keywords."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

from warploom.diagnostics import Diag
from warploom.structured.epilogue import tile_writer
from warploom.structured.epilogue.tile_writer import Shape, TileCoord, Tiles
from warploom.structured.epilogue.writer_protocols import AccumulatorStage, RegisterAccumulator
from warploom.structured.pipelines.output_pipeline import OutputStage
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.shared_types import SMemTileArray2DRowMajor, TMATensorTile
from warploom.trace.builder import here
from warploom.trace.language.types import Number
from warploom.trace.language.values import Value
from warploom.trace.language.views import View
from warploom.trace.language.warps import warp_index

P = ParamSpec("P")
R = TypeVar("R")


def _page_order(*names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept a method's arguments in the page's order too, where the buffers of C come first."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def call(*args: P.args, **keywords: P.kwargs) -> R:
            self, *given = args
            if not given or not isinstance(given[0], View | SMemTileArray2DRowMajor):
                return method(*args, **keywords)
            twice = [name for name, _ in zip(names, given, strict=False) if name in keywords]
            if twice or len(given) > len(names):
                what = f"{', '.join(twice)} given twice" if twice else f"{len(given)} arguments by position"
                order = f"the page's order is {', '.join(names)}"
                raise Diag.BAD_WRITER.error(here(), count=1, what=f"{method.__name__}: {what}; {order}")
            in_order: Any = dict(zip(names, given, strict=False))
            return method(self, **in_order, **keywords)  # type: ignore[arg-type]

        return call

    return decorate


class TileWriter(tile_writer.TileWriter):
    """Writes accumulators to C, which is a tensor map, or a view where TMA cannot reach it.

    Shapes and modes come from a configuration, or from keywords that have the names of the members. What is given in
    addition to a configuration is checked against it. Every `write…` method also takes the page's order of arguments,
    in which the buffers of C come first.
    """

    Stage = OutputStage
    TmaOp = TMATensorTile
    TmaOpPtr = TMATensorTile

    map_keywords: ClassVar[tuple[str, ...]] = (*tile_writer.TileWriter.map_keywords, "c_tile_shape")

    @property
    def num_accum_pipeline_stages(self) -> int:
        return self.opc.num_stages

    @property
    def stage_stride_cols(self) -> int:
        return self.opc.stage_stride_cols

    @property
    def N_dim(self) -> int:
        """The dimension of a staged subtile that runs along the accumulator's columns."""
        return self.epc.N_dim

    @property
    def stage_contiguous_size(self) -> int:
        """Elements in a row of a staged subtile."""
        return self.c_smem_dim1

    @property
    def data_paths(self) -> int:
        """TMEM lanes that one load reads."""
        return self.epc.data_paths

    @property
    def bits(self) -> int:
        """Bits of a TMEM lane that one repeat of a load reads."""
        return self.epc.bits

    @property
    def fragment_size(self) -> int:
        """Registers of a thread per repeat of a load."""
        return self.epc.fragment_size

    @property
    def rep_frag_size(self) -> int:
        """Registers of a thread per load of a subtile."""
        return self.epc.rep_frag_size

    @property
    def CTileArray(self) -> Callable[..., SMemTileArray2DRowMajor]:
        """Allocates the buffers of staged subtiles."""
        made = partial(SMemTileArray2DRowMajor.make, self.c_type, *self.c_smem_layout, self.num_output_stages)
        return partial(made, swizzle=self.c_swizzle)

    @property
    def c_tile_shape(self) -> tuple[int, ...]:
        """A staged subtile with the rank of C's tensor map: leading ones for batches."""
        return (*(1,) * (self.c_rank - 2), *self.c_smem_layout)

    def get_epilogue_dtype(self) -> str:
        """The type in which the epilogue computes: float32 by default."""
        return self.epilogue.dtype

    @property
    def epilogue_dtype(self) -> str:
        return self.get_epilogue_dtype()

    @_page_order("c_tiles", "stage", "tile_coord", "shape", "elect_one_warp")
    def write(
        self,
        stage: AccumulatorStage | RegisterAccumulator,
        tile_coord: TileCoord,
        shape: Shape | None = None,
        *,
        elect_one_warp: Value | None = None,
        **options: Any,
    ) -> None:
        """Write an accumulator, or a gate and up pair, to a tile of C; `shape` is that of C, in elements."""
        self._check_elected(elect_one_warp)
        super().write(stage, tile_coord, shape, **options)

    @_page_order("c_tiles", "stage", "scheduler", "reduction_tensor", "work_info", "shape", "elect_one_warp")
    def write_splitk(
        self,
        stage: AccumulatorStage,
        scheduler: Any,
        reduction_tensor: View,
        work_info: Any,
        shape: Shape | None = None,
        *,
        elect_one_warp: Value | None = None,
        **options: Any,
    ) -> None:
        """Add an accumulator to those of the previous splits; the final split writes C."""
        self._check_elected(elect_one_warp)
        super().write_splitk(stage, scheduler, reduction_tensor, work_info, shape, **options)

    @_page_order("out_tiles", "stage", "src_tile", "src_pipeline", "beta", "tile_coord", "shape", "elect_one_warp")
    def write_with_residual(
        self,
        stage: AccumulatorStage,
        src_tile: Tiles,
        src_pipeline: ProducerConsumerPipeline,
        beta: Value | Number,
        tile_coord: TileCoord,
        shape: Shape | None = None,
        *,
        elect_one_warp: Value | None = None,
        **options: Any,
    ) -> None:
        """Write D = epilogue(accumulator) + beta·C; each stage of the pipeline holds a subtile of C, staged like D."""
        self._check_elected(elect_one_warp)
        super().write_with_residual(stage, src_tile, src_pipeline, beta, tile_coord, shape, **options)

    write_batched = _page_order("c_tiles", "stage", "tile_coord", "shape", "alpha")(
        tile_writer.TileWriter.write_batched
    )
    write_absolute_with_bounds_check = _page_order(
        "c_tiles", "output_stage", "m_abs", "n_abs", "m_end", "expert_scale", "c_tensor"
    )(tile_writer.TileWriter.write_absolute_with_bounds_check)
    write_batched_with_tma_epilogue_load = _page_order(
        "c_tiles", "output_stage", "epilogue_tile", "tile_coord", "c_shape"
    )(tile_writer.TileWriter.write_batched_with_tma_epilogue_load)
    write_batched_with_1d_bias = _page_order("c_tiles", "output_stage", "epilogue_tile", "tile_coord", "c_shape")(
        tile_writer.TileWriter.write_batched_with_1d_bias
    )
    write_batched_with_tma_epilogue_load_strips = _page_order(
        *("c_tiles", "output_stage", "epilogue_pipeline", "epilogue_tiles_base"),
        *("epilogue_tile_elems", "tile_coord", "c_shape"),
    )(tile_writer.TileWriter.write_batched_with_tma_epilogue_load_subtiles)

    def _check_elected(self, given: Value | None) -> None:
        """Check `elect_one_warp`: the first warp of the role issues the stores."""
        if given is None:
            return
        first = (self.role.warp == 0, warp_index() == self.role.first)
        if not isinstance(given, Value) or given.operand not in [each.operand for each in first]:
            what = f"elect_one_warp is {given!r:.60}; the first warp of the role issues the stores"
            raise Diag.BAD_WRITER.error(here(), count=1, what=f"{what}: leave it out, or give `role.warp == 0`")
