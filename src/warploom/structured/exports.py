"""The public names of `warploom.structured`, in one place; `from warploom.structured import …` loads this module."""

from __future__ import annotations

from warploom.structured.cluster import SELF, Cluster, Mask
from warploom.structured.composition.groups import GroupPlacement, group_tile_shape
from warploom.structured.composition.operands import (
    input_pipeline,
    operand_layouts,
    operand_tiles,
    paired,
    standard_inputs,
)
from warploom.structured.composition.uncovered_rows import clear_uncovered_rows
from warploom.structured.composition.writers import ConsumerWriter, epilogue_writer, write_tile
from warploom.structured.config import (
    BlockScaledMatmulConfig,
    BlockScaledTmem,
    BlockwiseFP8MatmulConfig,
    EpilogueConfig,
    HopperBlockwiseConfig,
    HopperConfig,
    MatmulConfig,
    OutputPipelineConfig,
    Problem,
    validate,
    violations,
)
from warploom.structured.dependent_launch import begin_role, end_loads, launch_dependents, wait_for_dependencies
from warploom.structured.epilogue.auxiliary import AuxiliaryLayout, AuxiliaryTiles, Bias
from warploom.structured.epilogue.epilogue import Epilogue, Operand
from warploom.structured.epilogue.epilogue_loads import EpilogueLoad, epilogue_load, matrix_box
from warploom.structured.epilogue.subtiles import Position
from warploom.structured.epilogue.writer_geometry import StagedOutput, c_box
from warploom.structured.named_barriers import WarpGroupBarrier
from warploom.structured.pages.output_pipeline import OutputTilePipeline
from warploom.structured.pages.tile_writer import TileWriter
from warploom.structured.pages.warp_contexts import EpilogueWarp, EpilogueWarpContext, MmaWarp, MmaWarpContext
from warploom.structured.pipelines.epilogue_load_pipeline import EpiLoadPipeline, LoadOrderBarrier
from warploom.structured.pipelines.group_maps import GroupMaps
from warploom.structured.pipelines.input_pipeline import (
    BlockScaledTilePayload,
    BlockwiseFP8TilePayload,
    InputConsumer,
    InputConsumerStage,
    InputProducer,
    InputProducerStage,
    InputTilePipeline,
    StandardTilePayload,
    TilePayload,
)
from warploom.structured.pipelines.operand_tiles import OperandLayout, OperandTiles
from warploom.structured.pipelines.output_pipeline import (
    EpilogueKContext,
    EpilogueKStage,
    EpilogueStage,
    MmaKStage,
    MmaStage,
    OutputConsumer,
    OutputKPipeline,
    OutputProducer,
    OutputStage,
)
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.shared_types import (
    SharedMemBarrier,
    SMemArray,
    SMemTileArray2DRowMajor,
    TMATensorTile,
)
from warploom.structured.pipelines.signals import (
    Bytes,
    CopyAsync,
    EachPeer,
    EveryReader,
    EveryThread,
    FirstLanes,
    OncePerWarp,
    Signal,
    TensorCoreCommit,
)
from warploom.structured.pipelines.stages import (
    ConsumeContext,
    ConsumerStage,
    ExplicitConsumeContext,
    ProduceContext,
    ProducerStage,
)
from warploom.structured.pipelines.tile_loads import load_tile
from warploom.structured.pipelines.weight_prefetch import load_weights_first
from warploom.structured.schedulers.base import Tile, WorkInfo
from warploom.structured.schedulers.clc import ClcScheduler
from warploom.structured.schedulers.grouped import GroupedScheduler, GroupedTile
from warploom.structured.schedulers.raster import RasterOrder, ceil_divide
from warploom.structured.schedulers.static import StaticScheduler, persistent_grid
from warploom.structured.schedulers.stream_k import StreamScheduler, StreamTile, stream_grid
from warploom.structured.schedulers.tile_scheduler import TileScheduler, launch_grid
from warploom.structured.split_k.exchange import ClusterExchange, GlobalExchange
from warploom.structured.split_k.partial_tiles import PartialTiles
from warploom.structured.split_k.split_tile import SplitTile
from warploom.structured.split_k.workspace import split_k_workspace
from warploom.structured.tensor_cores.block_scaled import BlockScaledMmaOp, ScaleFactors, scale_factors
from warploom.structured.tensor_cores.blockwise import ColumnScales, PromotedAccumulator, RowScales
from warploom.structured.tensor_cores.promotion import PromotedAccumulators
from warploom.structured.tensor_cores.tcgen05 import MmaOp
from warploom.structured.tensor_cores.tf32x3 import TensorFloatParts, TripleMmaOp, TripleWgmmaOp
from warploom.structured.tensor_cores.tmem import (
    TmemAddress,
    TmemAllocation,
    TmemArrayType,
    TmemFragments,
    TmemStage,
    TmemTensor,
)
from warploom.structured.tensor_cores.tmem_dealloc import TmemDeallocBarrier
from warploom.structured.tensor_cores.warpgroup_order import warpgroup_order
from warploom.structured.tensor_cores.wgmma import RegisterTile, Warpgroup, WgmmaOp
from warploom.structured.time_stamps import Span, TimeStamps, chrome_trace, spans

__all__ = [
    "SELF",
    "AuxiliaryLayout",
    "AuxiliaryTiles",
    "Bias",
    "BlockScaledMatmulConfig",
    "BlockScaledMmaOp",
    "BlockScaledTilePayload",
    "BlockScaledTmem",
    "BlockwiseFP8MatmulConfig",
    "BlockwiseFP8TilePayload",
    "Bytes",
    "ClcScheduler",
    "Cluster",
    "ClusterExchange",
    "ColumnScales",
    "ConsumeContext",
    "ConsumerStage",
    "ConsumerWriter",
    "CopyAsync",
    "EachPeer",
    "EpiLoadPipeline",
    "Epilogue",
    "EpilogueConfig",
    "EpilogueKContext",
    "EpilogueKStage",
    "EpilogueLoad",
    "EpilogueStage",
    "EpilogueWarp",
    "EpilogueWarpContext",
    "EveryReader",
    "EveryThread",
    "ExplicitConsumeContext",
    "FirstLanes",
    "GlobalExchange",
    "GroupMaps",
    "GroupPlacement",
    "GroupedScheduler",
    "GroupedTile",
    "HopperBlockwiseConfig",
    "HopperConfig",
    "InputConsumer",
    "InputConsumerStage",
    "InputProducer",
    "InputProducerStage",
    "InputTilePipeline",
    "LoadOrderBarrier",
    "Mask",
    "MatmulConfig",
    "MmaKStage",
    "MmaOp",
    "MmaStage",
    "MmaWarp",
    "MmaWarpContext",
    "OncePerWarp",
    "Operand",
    "OperandLayout",
    "OperandTiles",
    "OutputConsumer",
    "OutputKPipeline",
    "OutputPipelineConfig",
    "OutputProducer",
    "OutputStage",
    "OutputTilePipeline",
    "PartialTiles",
    "Position",
    "Problem",
    "ProduceContext",
    "ProducerConsumerPipeline",
    "ProducerStage",
    "PromotedAccumulator",
    "PromotedAccumulators",
    "RasterOrder",
    "RegisterTile",
    "RowScales",
    "SMemArray",
    "SMemTileArray2DRowMajor",
    "ScaleFactors",
    "SharedMemBarrier",
    "Signal",
    "Span",
    "SplitTile",
    "StagedOutput",
    "StandardTilePayload",
    "StaticScheduler",
    "StreamScheduler",
    "StreamTile",
    "TMATensorTile",
    "TensorCoreCommit",
    "TensorFloatParts",
    "Tile",
    "TilePayload",
    "TileScheduler",
    "TileWriter",
    "TimeStamps",
    "TmemAddress",
    "TmemAllocation",
    "TmemArrayType",
    "TmemDeallocBarrier",
    "TmemFragments",
    "TmemStage",
    "TmemTensor",
    "TripleMmaOp",
    "TripleWgmmaOp",
    "WarpGroupBarrier",
    "Warpgroup",
    "WgmmaOp",
    "WorkInfo",
    "begin_role",
    "c_box",
    "ceil_divide",
    "chrome_trace",
    "clear_uncovered_rows",
    "end_loads",
    "epilogue_load",
    "epilogue_writer",
    "group_tile_shape",
    "input_pipeline",
    "launch_dependents",
    "launch_grid",
    "load_tile",
    "load_weights_first",
    "matrix_box",
    "operand_layouts",
    "operand_tiles",
    "paired",
    "persistent_grid",
    "scale_factors",
    "spans",
    "split_k_workspace",
    "standard_inputs",
    "stream_grid",
    "validate",
    "violations",
    "wait_for_dependencies",
    "warpgroup_order",
    "write_tile",
]
