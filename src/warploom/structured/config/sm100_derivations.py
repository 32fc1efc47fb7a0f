"""Derivations of the fields of a `MatmulConfig` that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from warploom.hardware.swizzles import BY_SPAN, NONE, widest_swizzle
from warploom.structured.config.base import COMMON_DERIVATIONS, Derivation, element_bytes
from warploom.structured.config.output import MACHINE

if TYPE_CHECKING:
    from warploom.structured.config.sm100 import MatmulConfig


def _mma_shape(config: MatmulConfig) -> tuple[int, int, int]:
    return (128 * config.cta_group, 128 * config.cta_group, config.mma.k)


def _accumulators(config: MatmulConfig) -> int:
    """Choose two, unless the gate and up pairs of one tile take more than half of TMEM."""
    return 2 if 2 * config.accumulator_columns <= config.tensor_memory_columns else 1


def _output_tile_shape(config: MatmulConfig) -> tuple[int, int]:
    """Choose subtiles as wide as the widest swizzle; fragments of 8-bit types have at most 16 columns."""
    rows = MACHINE.tensor_lanes if config.cta_group == 2 else config.MMA_M
    widest = {1: 16, 2: 64, 4: 32}[config.c_bytes]
    if config.AB_swapped and config.c_bytes > 1:
        widest //= 2
    whole = config.accumulator_columns // (2 if config.gated else 1)
    columns = next((n for n in (64, 32, 16) if n <= widest and whole % n == 0), 8)
    return (columns, rows) if config.AB_swapped else (rows, columns)


def _input_swizzle(operand_type: str, major: str, rows: int) -> str:
    if major == "k":
        return "128B"
    if operand_type in ("tf32", "f32"):
        return "128B_32B_atom"
    return widest_swizzle(rows * element_bytes(operand_type))


def _c_swizzle(config: MatmulConfig) -> str:
    if config.c_bytes == 1:
        return "none"
    if config.AB_swapped:
        return "32B" if config.gemm_kind == "gmm" else "128B"
    row = config.stageN * config.c_bytes
    return next((swizzle.name for swizzle in BY_SPAN if row == swizzle.span), NONE.name)


def _epilogue_stages(config: MatmulConfig) -> int:
    """Choose as many tiles or vectors as accumulators; of subtiles, as many as the input stages leave room for."""
    if config.AB_swapped or config.epilogue_is_1d:
        return config.num_accum_pipeline_stages
    if config.mma_shape[:2] == (256, 256):
        return 1
    return 4 if config.fits(8, epilogue_load=False) else 2


def _pipeline_stages(config: MatmulConfig) -> int:
    most = config.max_stages
    return min(config.most_stages(), most - most % config.k_group_size)


DERIVATIONS: Mapping[str, Derivation] = {
    **COMMON_DERIVATIONS,
    "mma_shape": _mma_shape,
    "output_tile_shape": _output_tile_shape,
    "num_accum_pipeline_stages": _accumulators,
    "cluster_shape": lambda c: (c.cta_group, 1, 1),
    "scheduler": lambda c: "static" if c.is_grouped or c.stream_k else "clc",
    "num_clc_pipeline_stages": lambda c: 2 if c.scheduler == "clc" else 0,
    "a_swizzle": lambda c: _input_swizzle(c.a_type, c.a_major, c.BM),
    "b_swizzle": lambda c: _input_swizzle(c.b_type, c.b_major, c.b_rows),
    "c_swizzle": _c_swizzle,
    "epi_load_swizzle": lambda c: widest_swizzle((c.BM if c.AB_swapped else c.stageN) * c.c_bytes),
    "num_tma_epilogue_pipeline_stages": _epilogue_stages,
    "num_pipeline_stages": _pipeline_stages,
}
"""By field, in the order in which they depend on each other."""
