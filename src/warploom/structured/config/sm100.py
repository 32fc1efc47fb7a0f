"""`MatmulConfig`: the configuration of a Blackwell (sm_100a) GEMM kernel, and the sizes that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import prod
from typing import ClassVar, Self

from warploom.hardware.mma_shapes import TENSOR_KINDS, TensorKind
from warploom.hardware.swizzles import GRANULE, widest_swizzle
from warploom.hardware.synchronisation import WORK_RESPONSE_BYTES
from warploom.hardware.tmem import LANE_ALIGNMENT
from warploom.structured.config.base import DERIVED, Derivation, GemmConfig, ProblemRule, Rule, element_bytes
from warploom.structured.config.fields import INPUT_TYPES
from warploom.structured.config.output import (
    AUXILIARY_BUFFERS,
    MACHINE,
    EpilogueConfig,
    OutputPipelineConfig,
    is_folded,
)
from warploom.structured.config.problem import Problem
from warploom.structured.config.shared_memory import (
    SharedArray,
    align_up,
    barriers,
    ceil_div,
    tiles,
    total_bytes,
)
from warploom.structured.config.sm100_derivations import DERIVATIONS
from warploom.structured.config.sm100_rules import CONFIG_RULES, PROBLEM_RULES

ROW_BITS = 128 * 8
"""K of a tile: one row fills the widest swizzle."""
EPILOGUE_WARPS = 4
"""One for each quadrant of TMEM."""
SPLIT_WARPS = 4
"""Warps that split float32 into two TF32 parts."""
ACCUMULATOR_BYTES = 4

_KINDS = {"bf16": "f16", "f16": "f16", "tf32": "tf32", "f32": "tf32"}
_PACKED_BITS = {"e2m1": 4}
_WORK_SLOTS, _WORK_SLOT_BYTES = 2, 32


@dataclass(frozen=True, kw_only=True, repr=False)
class MatmulConfig(GemmConfig):
    """The shape and modes of a Blackwell GEMM kernel; a field that is left out is derived."""

    cta_group: int = 2
    mma_shape: tuple[int, int, int] = DERIVED
    gemm_kind: str = "gemm"
    scheduler: str = DERIVED
    stream_k: bool = False
    """Divide the partly filled last wave of tiles along K among all CTAs."""
    raster_order: str = "along_m"
    block_swizzle_size: int = 0
    k_group_size: int = 1
    prefetch_tiles_n: int = 0
    register_based_epilogue: bool = True
    use_tma_epilogue_load: bool = False
    epilogue_is_1d: bool = False
    num_clc_pipeline_stages: int = DERIVED
    """Zero means that no CTA asks for more work: one tile each."""
    num_accum_pipeline_stages: int = DERIVED
    num_output_stages: int = 2
    output_tile_shape: tuple[int, int] = DERIVED
    a_swizzle: str = DERIVED
    b_swizzle: str = DERIVED
    c_swizzle: str = DERIVED
    epi_load_swizzle: str = DERIVED
    tensor_memory_columns: int = MACHINE.tensor_columns
    reserved_shared_bytes: int = 0
    """Shared memory that the kernel uses in addition to the arrays listed in `shared_arrays`."""
    num_tma_epilogue_pipeline_stages: int = DERIVED

    input_types: ClassVar[tuple[str, ...]] = INPUT_TYPES
    """Operand types of this class's kernels."""
    max_stages: ClassVar[int] = 16
    """Input stages after which more do not hide more latency."""
    derivations: ClassVar[Mapping[str, Derivation]] = DERIVATIONS
    rules: ClassVar[tuple[Rule, ...]] = CONFIG_RULES
    problem_rules: ClassVar[tuple[ProblemRule, ...]] = PROBLEM_RULES

    @property
    def family(self) -> str:
        """The kernel family that this configures."""
        return "tf32x3" if self.precision == "tf32x3" else self.gemm_kind

    @property
    def is_grouped(self) -> bool:
        return self.gemm_kind in ("gmm", "block_scaled_1d2d_fp8")

    @property
    def splits_k(self) -> bool:
        """True if several CTAs may add to one tile, in a workspace."""
        return self.num_split_k > 1 or self.stream_k

    @property
    def roles(self) -> dict[str, int]:
        """The number of warps of each role, in order, as `warp_roles` takes them."""
        if self.is_grouped:
            return {"epilogue": EPILOGUE_WARPS, "load": 1, "mma": 1, "scheduler": 1}
        roles = {"epilogue": EPILOGUE_WARPS, "scheduler": 1, "load": 1, "mma": 1}
        roles |= {"epilogue_load": 1} if self.use_tma_epilogue_load else {}
        return roles | ({"split": SPLIT_WARPS} if self.precision == "tf32x3" else {})

    @property
    def mma_kind(self) -> str:
        return _KINDS.get(self.a_type, "f8f6f4")

    @property
    def mma(self) -> TensorKind:
        """The MMA shapes and types of this kind."""
        return TENSOR_KINDS[self.mma_kind]

    def stored_bits(self, operand: str) -> int:
        """Return the bits of an element of "a" or "b" in global memory; in shared memory 4 bits may be padded."""
        type_: str = getattr(self, f"{operand}_type")
        return _PACKED_BITS.get(type_, self.mma.element_bits)

    @property
    def MMA_M(self) -> int:
        return self.mma_shape[0]

    @property
    def MMA_N(self) -> int:
        return self.mma_shape[1]

    @property
    def MMA_K(self) -> int:
        return self.mma_shape[2]

    @property
    def BM(self) -> int:
        """Rows of A that a CTA loads."""
        return self.MMA_M // self.cta_group

    @property
    def BN(self) -> int:
        """Rows of B that a CTA loads: each CTA of a pair loads half of the tile that both use."""
        return self.MMA_N // self.cta_group

    @property
    def b_rows(self) -> int:
        """Rows that a CTA loads of one B matrix: half a tile of each of the two that one CTA needs with `gated`."""
        is_halved = self.gated and not self.AB_swapped and (self.cta_group == 1 or self.gated_mmas == 2)
        return self.BN // 2 if is_halved else self.BN

    @property
    def gated_mmas(self) -> int:
        """MMAs of a gate and up pair: one, whose N holds both; two if they are along M, or would be in other lanes."""
        return 2 if self.gated and (self.AB_swapped or is_folded(self.cta_group, self.MMA_M)) else 1

    @property
    def instruction_n(self) -> int:
        """N of one MMA instruction."""
        return self.tile_columns if self.gated_mmas == 2 else self.MMA_N

    @property
    def a_tile_rows(self) -> int:
        """Rows of A that a CTA holds: of gate and up, if they are along M."""
        return 2 * self.BM if self.gated and self.AB_swapped else self.BM

    @property
    def written(self) -> Self:
        """The configuration as the tile writer sees it: with `gated`, two accumulators become one column."""
        if not self.gated:
            return self
        return self.replace(
            mma_shape=(self.MMA_M, self.tile_columns, self.MMA_K),
            gated=False,
            output_tile_shape=self.output_tile_shape,
            num_accum_pipeline_stages=self.num_accum_pipeline_stages,  # not derived again for half of the columns
        )

    @property
    def BK(self) -> int:
        return ROW_BITS // self.mma.element_bits

    @property
    def block_tile_shape(self) -> tuple[int, int, int]:
        return (self.BM, self.BN, self.BK)

    @property
    def a_slice(self) -> tuple[int, int]:
        """Rows and K of an A tile that one CTA loads; the CTAs of its column multicast the rest."""
        return self._slice(self.BM, self.a_major, self.cluster_shape[1])

    @property
    def b_slice(self) -> tuple[int, int]:
        """Rows and K of a B tile that one CTA loads; the CTAs of its row multicast the rest."""
        return self._slice(self.BN, self.b_major, max(self.cluster_shape[0] // self.cta_group, 1))

    def _slice(self, rows: int, major: str, peers: int) -> tuple[int, int]:
        return (rows // peers, self.BK) if major == "k" else (rows, self.BK // peers)

    @property
    def stageN(self) -> int:
        """Accumulator columns of one epilogue subtile."""
        return self.output_tile_shape[0 if self.AB_swapped else 1]

    @cached_property
    def epilogue(self) -> EpilogueConfig:
        return EpilogueConfig.create(
            MMA_M=self.MMA_M,
            MMA_N=self.MMA_N,
            stageN=self.stageN,
            cta_group=self.cta_group,
            transpose_c=self.transpose_c,
            BM=self.BM,
            BN=self.BN,
        )

    @property
    def num_group_stages(self) -> int:
        """Stages of the input pipeline: each holds `k_group_size` tiles."""
        return self.num_pipeline_stages // self.k_group_size

    @property
    def accumulator_columns(self) -> int:
        """TMEM columns of one accumulator."""
        columns = self.accumulated_columns
        return columns // 2 if is_folded(self.cta_group, self.MMA_M) else columns

    @property
    def accumulated_columns(self) -> int:
        """Columns of a tile's accumulators, of a gate and up pair both."""
        return 2 * self.tile_columns if self.gated else self.MMA_N

    @property
    def stage_stride_cols(self) -> int:
        """Columns from one accumulator to the next."""
        return self.tensor_memory_columns // self.num_accum_pipeline_stages

    @property
    def output(self) -> OutputPipelineConfig:
        return OutputPipelineConfig(self.num_accum_pipeline_stages, self.stage_stride_cols, self.cta_group)

    def columns_used(self, stages: int) -> int:
        """Return the TMEM columns in use with so many input stages."""
        return (self.num_accum_pipeline_stages - 1) * self.stage_stride_cols + self.accumulator_columns

    def scale_arrays(self, stages: int) -> tuple[SharedArray, ...]:
        """Return the arrays of the input stages in addition to A and B: scale factors, or small parts of float32."""
        if self.precision != "tf32x3":
            return ()
        row_bytes = self.mma.element_bits * self.BK // 8
        return (
            tiles("a_small", stages, self.BM * row_bytes, "128B"),
            tiles("b_small", stages, self.BN * row_bytes, "128B"),
            barriers("small_barriers", 2 * stages),
        )

    def shared_arrays(self, stages: int, *, epilogue_load: bool) -> tuple[SharedArray, ...]:
        """Return the kernel's shared memory with so many input stages, with or without tiles for an epilogue load."""
        row_bytes = self.mma.element_bits * self.BK // 8
        groups = ceil_div(stages, self.k_group_size)
        loads = self.num_tma_epilogue_pipeline_stages if epilogue_load else 0
        swizzle = "none" if self.epilogue_is_1d or not loads else self.epi_load_swizzle
        grouped = _WORK_SLOTS if self.is_grouped else 0
        scratch = 0 if self.register_based_epilogue else EPILOGUE_WARPS
        return (
            tiles("a_tiles", stages, self.a_tile_rows * row_bytes, self.a_swizzle),
            tiles("b_tiles", stages, self.BN * row_bytes, self.b_swizzle),
            tiles("c_tiles", self.num_output_stages, prod(self.output_tile_shape) * self.c_bytes, self.c_swizzle),
            *(self._auxiliary_tiles(type_) for type_ in self.output_types),
            *self.scale_arrays(stages),
            tiles("epilogue_tiles", loads, self.epilogue_load_elements * self.c_bytes, swizzle),
            tiles("epilogue_scratch", scratch, LANE_ALIGNMENT * self.stageN * ACCUMULATOR_BYTES, "128B"),
            SharedArray("reserved", min(self.reserved_shared_bytes, 1), self.reserved_shared_bytes, GRANULE),
            SharedArray("clc_responses", self.num_clc_pipeline_stages, WORK_RESPONSE_BYTES, WORK_RESPONSE_BYTES),
            SharedArray("work_slots", grouped, _WORK_SLOT_BYTES, WORK_RESPONSE_BYTES),
            barriers("input_barriers", 2 * groups),
            barriers("accum_barriers", 2 * self.num_accum_pipeline_stages),
            barriers("clc_barriers", 4 * self.num_clc_pipeline_stages),
            barriers("work_barriers", 2 * grouped),
            barriers("epi_load_barriers", 2 * loads),
            barriers("load_order_barriers", 4 if loads else 0),
            barriers("tmem_dealloc", 1),
            SharedArray("tmem_addr", 1, 4, 4),
        )

    @property
    def stages_outputs(self) -> bool:
        """True if TMA can store the auxiliary outputs from subtiles as wide as C's."""
        columns = self.output_tile_shape[1]
        return all(columns * element_bytes(each) % GRANULE == 0 for each in self.output_types)

    def _auxiliary_tiles(self, type_: str) -> SharedArray:
        """Return the buffers of an auxiliary output."""
        count, element = min(self.num_output_stages, AUXILIARY_BUFFERS), element_bytes(type_)
        contiguous = self.BM if self.AB_swapped else self.stageN
        swizzle = widest_swizzle(contiguous * element)
        return tiles("output_tiles", count, prod(self.output_tile_shape) * element, swizzle)

    @property
    def epilogue_load_elements(self) -> int:
        """Elements of C's type in one stage of the epilogue-load pipeline: a vector, a whole tile or a subtile."""
        if self.epilogue_is_1d:
            return self.BM if self.AB_swapped else self.MMA_N
        return self.BM * (self.MMA_N if self.AB_swapped else self.stageN)

    @cached_property
    def shared_bytes(self) -> int:
        return total_bytes(self.shared_arrays(self.num_pipeline_stages, epilogue_load=self.use_tma_epilogue_load))

    def fits(self, stages: int, *, epilogue_load: bool) -> bool:
        """Return True if shared memory and TMEM have room for so many input stages."""
        return (
            total_bytes(self.shared_arrays(stages, epilogue_load=epilogue_load)) <= MACHINE.shared_per_block
            and self.columns_used(stages) <= self.tensor_memory_columns
        )

    def most_stages(self) -> int:
        """Return the largest number of input stages that fit, a multiple of `k_group_size`."""
        steps = count(self.k_group_size, self.k_group_size)
        return next(s for s in steps if not self.fits(s, epilogue_load=self.use_tma_epilogue_load)) - self.k_group_size

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Return a grid with a CTA for every tile: whole clusters in x and y, batches or K splits in z."""
        rows, columns = (problem.n, problem.m) if self.AB_swapped else (problem.m, problem.n)
        return (
            align_up(ceil_div(rows, self.BM), self.cluster_shape[0]),
            align_up(ceil_div(columns, self.tile_columns), self.cluster_shape[1]),
            problem.batch * self.num_split_k,
        )

    def swap_AB_type(self) -> Self:
        """Return the same kernel with the types and majors of A and B exchanged; their swizzles are derived again."""
        return self.replace(
            a_type=self.b_type,
            b_type=self.a_type,
            a_major=self.b_major,
            b_major=self.a_major,
            a_swizzle=DERIVED,
            b_swizzle=DERIVED,
        )
