"""`HopperBlockwiseConfig`: 8-bit floats with scales per block; the consumers sum up in registers of their own."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.structured.config.sm90 import MOST_ACCUMULATORS, HopperConfig


@dataclass(frozen=True, kw_only=True)
class HopperBlockwiseConfig(HopperConfig):
    """A scale for each row of A and 128 of K, and for each 128 × 128 of B.

    The tensor core sums up 64 rows of one K tile, a *product*, which is promoted when it is complete. A consumer of 64
    rows has two products, a `depth` of 1: the next is multiplied while the last is promoted. One of 128 rows has two
    sums instead and one product: while it promotes, the other consumer multiplies.
    """

    a_type: str = "e4m3"
    scale_type: str = "f32"
    scale_granularity: int = 128
    """Columns of C that share a scale of B."""

    @property
    def usual_depth(self) -> int:
        return 1 if self.subtiles == 1 else 0

    @property
    def products(self) -> int:
        """Products that the registers of a thread hold at a time."""
        return self.depth + 1

    @property
    def accumulators(self) -> int:
        return (self.subtiles + self.products) * self.BN // 2

    @property
    def accumulators_held(self) -> int:
        """Sums, and the first product of the tile behind."""
        return (self.subtiles + 1) * self.BN // 2

    @property
    def accumulator_columns(self) -> int:
        """Columns of C that a warp has."""
        return self.BN

    @property
    def factors(self) -> int:
        """Registers of a thread that hold scales of products: one for each of its rows and blocks of columns."""
        granularity = self.scale_granularity
        blocks = (granularity - gcd(self.BN, granularity) + self.BN - 1) // granularity + 1
        return 2 * self.subtiles * blocks * self.products

    @property
    def stage_bytes(self) -> int:
        return super().stage_bytes + self.BM * ELEMENT_TYPES[self.scale_type].storage_bits // 8

    def violations(self) -> list[str]:
        """Everything that is wrong with it."""
        sums, scales = self.accumulators, self.factors
        checks = (
            (self.a_bytes == 1, f"a_type={self.a_type}: scales are for 8-bit floats"),
            (
                self.depth == self.usual_depth,
                f"depth={self.depth}: a consumer of {self.consumer_rows} rows has {self.usual_depth}",
            ),
            (
                not sums <= MOST_ACCUMULATORS < sums + scales,
                f"tile={self.tile}, scale_granularity={self.scale_granularity}: {scales} scales beside {sums} sums",
            ),
            (not self.AB_swapped, "AB_swapped: scales of rows stay with A"),
            (not self.pingpong, "pingpong: warpgroups share a tile, so that one multiplies while the other promotes"),
            (self.num_split_k == 1, f"num_split_k={self.num_split_k}: K is not split"),
            (self.scale_granularity % 8 == 0, f"scale_granularity={self.scale_granularity}: not in steps of 8"),
        )
        return [*super().violations(), *(what for right, what in checks if not right)]
