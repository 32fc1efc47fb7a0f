"""Blackwell GEMMs with scale factors: per block in TMEM, or per 128 × 128 applied by the epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import ClassVar

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.synchronisation import REGISTERS_PER_THREAD
from warploom.hardware.tmem import LANE_ALIGNMENT, QUADRANT, SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.structured.config.base import DERIVED, Derivation, ProblemRule, Rule
from warploom.structured.config.fields import BLOCKWISE_INPUT_TYPES, SCALED_INPUT_TYPES
from warploom.structured.config.shared_memory import SharedArray, align_up, ceil_div, tiles
from warploom.structured.config.sm100 import ACCUMULATOR_BYTES, EPILOGUE_WARPS, MatmulConfig
from warploom.structured.config.sm100_rules import (
    BLOCK_SCALE_PROBLEM_RULES,
    BLOCK_SCALE_RULES,
    BLOCKWISE_RULES,
    CONFIG_RULES,
    PROBLEM_RULES,
)

_ATOM_BYTES = SCALE_CHUNK_ROWS * SCALE_CHUNK_FACTORS
_ATOM_COLUMNS = SCALE_CHUNK_ROWS // QUADRANT
_MANY_ACCUMULATORS, _NARROW_PIECE, _WIDE_PIECE = 128, 8, 32
_OTHER_REGISTERS = 31
"""Other registers of a blockwise epilogue thread: addresses, scales, ring positions (ptxas 13.4, plain epilogue)."""
_EXCHANGE_REGISTERS = 32
"""More of them if values are exchanged through shared memory: with 192 accumulators up to 38 spilled (ptxas 13.4)."""
_PRECISE_REGISTERS = 17
"""More of them for a result of 32 bits, whose activations are longer; thrice if it is transposed (ptxas 13.4)."""


@dataclass(frozen=True, slots=True)
class BlockScaledTmem:
    """TMEM columns: accumulators, then the scale factors of A and of B for every input stage."""

    accum_stages: int
    accum_cols: int
    sf_stages: int
    sfa_cols: int
    sfb_cols: int

    def accum(self, stage: int) -> int:
        """Return the first column of an accumulator stage."""
        return stage * self.accum_cols

    def sfa(self, stage: int) -> int:
        """Return the first column of A's scale factors of a stage."""
        return self.accum(self.accum_stages) + stage * self.sfa_cols

    def sfb(self, stage: int) -> int:
        """Return the first column of B's scale factors of a stage."""
        return self.sfa(self.sf_stages) + stage * self.sfb_cols

    @property
    def columns(self) -> int:
        return self.sfb(self.sf_stages)


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockScaledMatmulConfig(MatmulConfig):
    """MXFP8, MXFP4 or NVFP4: each `vec_sf_size` elements of a row share a scale that the tensor core applies."""

    a_type: str = "e4m3"
    scaling_kind: str = DERIVED
    scale_type: str = DERIVED
    vec_sf_size: int = DERIVED

    input_types: ClassVar[tuple[str, ...]] = SCALED_INPUT_TYPES
    max_stages: ClassVar[int] = 1 << 10
    rules: ClassVar[tuple[Rule, ...]] = (*CONFIG_RULES, *BLOCK_SCALE_RULES)
    problem_rules: ClassVar[tuple[ProblemRule, ...]] = (*PROBLEM_RULES, *BLOCK_SCALE_PROBLEM_RULES)
    derivations: ClassVar[Mapping[str, Derivation]] = {
        "scaling_kind": lambda c: "mxf4nvf4" if c.a_type == "e2m1" == (c.b_type or c.a_type) else "mxf8f6f4",
        "scale_type": lambda c: "ue4m3" if c.scaling_kind == "mxf4nvf4" else "ue8m0",
        "vec_sf_size": lambda c: c.mma.k // max((c.mma.scale_vectors or {}).get(c.scale_type, (1,))),
        **MatmulConfig.derivations,
        "num_accum_pipeline_stages": lambda c: 2 if c.MMA_N <= 128 else 1,
    }

    @property
    def family(self) -> str:
        return "grouped_block_scaled" if self.is_gmm else "block_scaled"

    @property
    def mma_kind(self) -> str:
        return self.scaling_kind

    @property
    def is_gmm(self) -> bool:
        return self.is_grouped

    @property
    def is_narrow(self) -> bool:
        """True if a tile may begin inside a group of 32 rows of B's scales: their copy to TMEM begins there too."""
        return self.MMA_N < QUADRANT

    @property
    def is_askew(self) -> bool:
        """True if only the first tile along N has its scales in whole groups of 32 rows, or inside one."""
        return bool(self.MMA_N % QUADRANT and QUADRANT % self.MMA_N)

    @property
    def num_sf_k_tiles(self) -> int:
        """Scale atoms along K of one tile."""
        return ceil_div(self.BK, SCALE_CHUNK_FACTORS * self.vec_sf_size)

    @property
    def sfa_rows(self) -> int:
        """Rows of the scale atoms of an A tile."""
        return align_up(self.BM, SCALE_CHUNK_ROWS)

    @property
    def sfb_rows(self) -> int:
        """Rows of the scale atoms of a B tile, which may begin inside one: each CTA of a pair holds all of them."""
        begins_at = 0 if self.is_askew else SCALE_CHUNK_ROWS - gcd(self.MMA_N, SCALE_CHUNK_ROWS)
        return align_up(begins_at + self.MMA_N, SCALE_CHUNK_ROWS)

    @property
    def stage_stride_cols(self) -> int:
        return self.MMA_N

    def tmem_with(self, stages: int) -> BlockScaledTmem:
        """Return the TMEM layout with this many stages of scale factors."""
        atoms_a, atoms_b = self._atoms
        return BlockScaledTmem(
            self.num_accum_pipeline_stages, self.MMA_N, stages, atoms_a * _ATOM_COLUMNS, atoms_b * _ATOM_COLUMNS
        )

    @cached_property
    def tmem(self) -> BlockScaledTmem:
        return self.tmem_with(self.num_pipeline_stages)

    @property
    def _atoms(self) -> tuple[int, int]:
        """Scale atoms of one stage, of A and of B."""
        return (
            self.num_sf_k_tiles * self.sfa_rows // SCALE_CHUNK_ROWS,
            self.num_sf_k_tiles * self.sfb_rows // SCALE_CHUNK_ROWS,
        )

    def columns_used(self, stages: int) -> int:
        """Return the TMEM columns of a layout that are in use."""
        return self.tmem_with(stages).columns

    def scale_arrays(self, stages: int) -> tuple[SharedArray, ...]:
        """Return the shared arrays of the scale factors."""
        atoms_a, atoms_b = self._atoms
        return (
            tiles("sfa_tiles", stages, atoms_a * _ATOM_BYTES),
            tiles("sfb_tiles", stages, atoms_b * _ATOM_BYTES),
        )


def _blockwise_accumulators(config: BlockwiseFP8MatmulConfig) -> int:
    """Choose two accumulators, unless the sums of a tile in TMEM leave room for one only."""
    parts = 3 if config.accumulates_in_tmem else 2
    return 2 if parts * config.accumulator_columns <= config.tensor_memory_columns else 1


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockwiseFP8MatmulConfig(MatmulConfig):
    """FP8 with a scale per row of A and 128 of K, and per 128 × 128 of B: the epilogue applies both."""

    a_type: str = "e4m3"
    scale_type: str = "f32"
    scale_granularity: int = 128
    """Columns of C that share a scale of B."""

    input_types: ClassVar[tuple[str, ...]] = BLOCKWISE_INPUT_TYPES
    rules: ClassVar[tuple[Rule, ...]] = (*CONFIG_RULES, *BLOCKWISE_RULES)
    derivations: ClassVar[Mapping[str, Derivation]] = {
        **MatmulConfig.derivations,
        "mma_shape": lambda c: (128 * c.cta_group, 128, c.mma.k),
        "num_accum_pipeline_stages": _blockwise_accumulators,
    }

    @property
    def family(self) -> str:
        return "grouped_blockwise_fp8" if self.is_grouped else "blockwise_fp8"

    @property
    def roles(self) -> dict[str, int]:
        if self.is_grouped:
            return {"epilogue": EPILOGUE_WARPS, "load": 1, "mma": 1}
        return super().roles

    @property
    def accumulators_per_thread(self) -> int:
        """Registers in which an epilogue thread accumulates its part of the tile."""
        epilogue = self.epilogue
        return epilogue.num_stages * epilogue.rep_frag_size * (2 if epilogue.is_lower_frag_required else 1)

    @property
    def scaled_rows(self) -> int:
        """Rows of the caller's A that a CTA has scales of."""
        return self.MMA_N if self.AB_swapped else self.BM

    @property
    def warp_extent(self) -> int:
        """Columns of the caller's C that an epilogue warp holds."""
        rows = 2 * LANE_ALIGNMENT if self.epilogue.is_lower_frag_required else LANE_ALIGNMENT
        return rows if self.AB_swapped else self.accumulator_columns

    @property
    def accumulates_in_tmem(self) -> bool:
        """True if the registers of the epilogue cannot hold the sums of a tile: then TMEM does."""
        return self.promotion_registers > REGISTERS_PER_THREAD

    @property
    def promotion_registers(self) -> int:
        """Registers that a thread would need: accumulators of its part of a tile, two loaded pieces, and the rest."""
        halves = 2 if self.epilogue.is_lower_frag_required else 1
        others = _OTHER_REGISTERS + (0 if self.register_based_epilogue else _EXCHANGE_REGISTERS)
        if self.c_bytes == ACCUMULATOR_BYTES:
            is_transposed = self.AB_swapped and not self.register_based_epilogue
            others += 3 * _PRECISE_REGISTERS if is_transposed else _PRECISE_REGISTERS
        return self.accumulators_per_thread + halves * self.promoted_columns + others

    @property
    def sums_column(self) -> int:
        """The first TMEM column of the sums, which follow the accumulators."""
        return self.num_accum_pipeline_stages * self.stage_stride_cols

    @property
    def stage_stride_cols(self) -> int:
        if not self.accumulates_in_tmem:
            return super().stage_stride_cols
        return (self.tensor_memory_columns - self.accumulator_columns) // self.num_accum_pipeline_stages

    def columns_used(self, stages: int) -> int:
        sums = self.accumulator_columns if self.accumulates_in_tmem else 0
        return super().columns_used(stages) + sums

    @property
    def promoted_columns(self) -> int:
        """Accumulator columns that the epilogue promotes at a time, by one scale, while it loads the next ones.

        They are fewer if registers are scarce.
        """
        is_long = self.c_bytes == ACCUMULATOR_BYTES and not self.epilogue.is_lower_frag_required  # 64 × 256 spilled
        few = self.accumulators_per_thread + is_long > _MANY_ACCUMULATORS
        along = self.stageN if self.AB_swapped else self.scale_granularity
        return gcd(self.stageN, along, _NARROW_PIECE if few else _WIDE_PIECE)

    def scale_arrays(self, stages: int) -> tuple[SharedArray, ...]:
        return (tiles("a_scales", stages, self.scaled_rows * ELEMENT_TYPES[self.scale_type].bits // 8),)
