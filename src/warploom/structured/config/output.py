"""The accumulator ring in TMEM, and the subtiles in which the epilogue reads an accumulator."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.fragments import TENSOR_MOVES
from warploom.hardware.targets import MACHINES
from warploom.hardware.tmem import PLACEMENTS

MACHINE = MACHINES["sm_100a"]
_MOVE = TENSOR_MOVES["16x256b"]
_WORD_BITS = 32
AUXILIARY_BUFFERS = 2
"""Buffers of an auxiliary output at most: one is read while the other is written."""


def is_folded(cta_group: int, mma_m: int) -> bool:
    """Return True if an accumulator takes half of its columns in TMEM, with the other half in the upper lanes."""
    placement = PLACEMENTS.get((cta_group, mma_m, False))
    return placement is not None and placement.folded


@dataclass(frozen=True)
class OutputPipelineConfig:
    """A ring of accumulators: their number, the columns from one to the next, and the CTAs of an MMA."""

    num_stages: int
    stage_stride_cols: int
    cta_group: int


@dataclass(frozen=True, kw_only=True)
class EpilogueConfig:
    """The loop of an epilogue warp over an accumulator: subtiles of `stageN` columns, loaded by `16x256b` fragments."""

    MMA_M: int
    MMA_N: int
    stageN: int
    cta_group: int
    transpose_c: bool
    BM: int
    BN: int

    @classmethod
    def create(
        cls, *, MMA_M: int, MMA_N: int, stageN: int, cta_group: int, transpose_c: bool, BM: int, BN: int
    ) -> EpilogueConfig:
        """Create the configuration from keyword arguments."""
        return cls(MMA_M=MMA_M, MMA_N=MMA_N, stageN=stageN, cta_group=cta_group, transpose_c=transpose_c, BM=BM, BN=BN)

    @property
    def is_folded(self) -> bool:
        """True if warps 2 and 3 hold the right half of the columns (Layout B) instead of more rows."""
        return is_folded(self.cta_group, self.MMA_M)

    @property
    def is_lower_frag_required(self) -> bool:
        """True if a warp's quadrant holds 32 rows, so that a second load reads lanes 16 to 31."""
        return not (self.cta_group == 1 and self.BM == 64)

    @property
    def accumulator_columns(self) -> int:
        """TMEM columns of one accumulator."""
        return self.MMA_N // 2 if self.is_folded else self.MMA_N

    @property
    def num_stages(self) -> int:
        """Subtiles of one accumulator."""
        return self.accumulator_columns // self.stageN

    @property
    def num_col_warp_groups(self) -> int:
        """Subtiles next to each other in the lanes: two if the accumulator is folded."""
        return 2 if self.is_folded else 1

    @property
    def data_paths(self) -> int:
        """TMEM lanes that one load reads."""
        return _MOVE.lanes

    @property
    def bits(self) -> int:
        """Bits of a lane that one repeat of a load reads."""
        return _MOVE.columns * _WORD_BITS

    @property
    def rep(self) -> int:
        """Repeats of a load for one subtile."""
        return self.stageN // _MOVE.columns

    @property
    def fragment_size(self) -> int:
        """Registers per thread and repeat."""
        return _MOVE.registers

    @property
    def rep_frag_size(self) -> int:
        """Registers per thread and subtile; twice as many if a lower fragment is required."""
        return self.fragment_size * self.rep

    @property
    def N_dim(self) -> int:
        """The dimension of the shared C tile along the accumulator's columns."""
        return 0 if self.transpose_c else 1
