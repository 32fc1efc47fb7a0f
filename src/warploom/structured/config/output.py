"""How accumulators pass from the MMA role to the epilogue: their ring in tensor memory, and the strips of a tile."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.fragments import TENSOR_MOVES
from warploom.hardware.targets import MACHINES
from warploom.hardware.tmem import PLACEMENTS

MACHINE = MACHINES["sm_100a"]
_MOVE = TENSOR_MOVES["16x256b"]
_WORD_BITS = 32
FURTHER_BUFFERS = 2
"""Buffers of an output beside C at most: one is read while the other is written."""


def is_folded(cta_group: int, mma_m: int) -> bool:
    """Whether an accumulator lies in half as many columns as it has, the other half in the upper lanes."""
    placement = PLACEMENTS.get((cta_group, mma_m, False))
    return placement is not None and placement.folded


@dataclass(frozen=True)
class OutputPipelineConfig:
    """A ring of accumulators: how many, how many columns apart, and for how many CTAs an MMA computes."""

    num_stages: int
    stage_stride_cols: int
    cta_group: int


@dataclass(frozen=True, kw_only=True)
class EpilogueConfig:
    """How a warp of the epilogue walks one accumulator: strips of `stageN` columns, in fragments of `16x256b` loads."""

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
        return cls(MMA_M=MMA_M, MMA_N=MMA_N, stageN=stageN, cta_group=cta_group, transpose_c=transpose_c, BM=BM, BN=BN)

    @property
    def is_folded(self) -> bool:
        """Whether warps 2 and 3 hold the right half of the columns (Layout B) rather than further rows."""
        return is_folded(self.cta_group, self.MMA_M)

    @property
    def is_lower_frag_required(self) -> bool:
        """Whether a warp's quadrant holds 32 rows, so that a second load reads lanes 16 onwards."""
        return not (self.cta_group == 1 and self.BM == 64)

    @property
    def accumulator_columns(self) -> int:
        """Tensor-memory columns that one accumulator takes."""
        return self.MMA_N // 2 if self.is_folded else self.MMA_N

    @property
    def num_stages(self) -> int:
        """Strips of one accumulator."""
        return self.accumulator_columns // self.stageN

    @property
    def num_col_warp_groups(self) -> int:
        """How many strips lie side by side in the lanes: two where the accumulator is folded."""
        return 2 if self.is_folded else 1

    @property
    def data_paths(self) -> int:
        """Lanes that one load reads."""
        return _MOVE.lanes

    @property
    def bits(self) -> int:
        """Bits of a lane that one repeat of a load reads."""
        return _MOVE.columns * _WORD_BITS

    @property
    def rep(self) -> int:
        """Repeats of a load that read a strip."""
        return self.stageN // _MOVE.columns

    @property
    def fragment_size(self) -> int:
        """Registers of a thread per repeat."""
        return _MOVE.registers

    @property
    def rep_frag_size(self) -> int:
        """Registers of a thread per strip; as many again where a lower fragment is required."""
        return self.fragment_size * self.rep

    @property
    def N_dim(self) -> int:
        """Which dimension of the shared C tile runs along the accumulator's columns."""
        return 0 if self.transpose_c else 1
