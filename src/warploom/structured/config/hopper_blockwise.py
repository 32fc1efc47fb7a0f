"""`HopperBlockwiseConfig`: 8-bit floats with factors per block; the consumers sum up in registers of their own."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.facts.dtypes import ELEMENT_TYPES
from warploom.structured.config.hopper import HopperConfig


@dataclass(frozen=True, kw_only=True)
class HopperBlockwiseConfig(HopperConfig):
    """A factor for each row of A and 128 of K, and for each 128 × 128 of B.

    The tensor core's sums are those of one K tile, to be added to the rest when they are complete: no group of
    multiplications stays in flight. While one warpgroup adds up, the other one multiplies.
    """

    a_type: str = "e4m3"
    depth: int = 0
    scale_type: str = "f32"
    scale_granularity: int = 128
    """Columns of C that share a factor of B."""
    in_turn: bool = False
    """Whether the two warpgroups issue their multiplications one after the other, so that they never add up at once."""

    @property
    def accumulators(self) -> int:
        return 2 * super().accumulators

    @property
    def accumulator_columns(self) -> int:
        """Columns of C that a warp has."""
        return self.BN

    @property
    def stage_bytes(self) -> int:
        return super().stage_bytes + self.BM * ELEMENT_TYPES[self.scale_type].storage_bits // 8

    def violations(self) -> list[str]:
        """Everything that is wrong with it."""
        checks = (
            (self.a_bytes == 1, f"a_type={self.a_type}: factors are for 8-bit floats"),
            (self.depth == 0, f"depth={self.depth}: sums must be complete before they are scaled"),
            (not self.AB_swapped, "AB_swapped: factors of rows stay with A"),
            (not self.pingpong, "pingpong: one warpgroup alone leaves the tensor core idle while it adds up"),
            (self.num_split_k == 1, f"num_split_k={self.num_split_k}: K is not split"),
            (not self.in_turn or self.consumers == 2, f"in_turn: there are {self.consumers} consumers, not two"),
            (self.scale_granularity % 8 == 0, f"scale_granularity={self.scale_granularity}: not in steps of 8"),
        )
        return [*super().violations(), *(what for right, what in checks if not right)]
