"""`HopperBlockwiseConfig`: 8-bit floats with factors per block; the consumers sum up in registers of their own."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from warploom.facts.dtypes import ELEMENT_TYPES
from warploom.structured.config.hopper import MOST_ACCUMULATORS, HopperConfig


@dataclass(frozen=True, kw_only=True)
class HopperBlockwiseConfig(HopperConfig):
    """A factor for each row of A and 128 of K, and for each 128 × 128 of B.

    The tensor core sums up 64 rows of one K tile, a *product*, which is promoted when it is complete. With a `depth` of
    0 registers hold one product: while one warpgroup promotes, the other one multiplies. With 1 they hold two: the next
    product of a warpgroup is multiplied while it promotes the last.
    """

    a_type: str = "e4m3"
    depth: int = 0
    scale_type: str = "f32"
    scale_granularity: int = 128
    """Columns of C that share a factor of B."""
    staggered: bool = False
    """Whether the second warpgroup begins when the first has its first product, so that they do not promote at once."""

    @property
    def products(self) -> int:
        """Products that the registers of a thread hold at a time."""
        return self.depth + 1

    @property
    def accumulators(self) -> int:
        return (self.subtiles + self.products) * self.BN // 2

    @property
    def accumulator_columns(self) -> int:
        """Columns of C that a warp has."""
        return self.BN

    @property
    def factors(self) -> int:
        """Registers of a thread that hold factors of products: one for each of its rows and blocks of columns."""
        granularity = self.scale_granularity
        blocks = (granularity - gcd(self.BN, granularity) + self.BN - 1) // granularity + 1
        return 2 * self.subtiles * blocks * self.products

    @property
    def stage_bytes(self) -> int:
        return super().stage_bytes + self.BM * ELEMENT_TYPES[self.scale_type].storage_bits // 8

    def violations(self) -> list[str]:
        """Everything that is wrong with it."""
        is_plain = self.subtiles == self.products == 1
        checks = (
            (self.a_bytes == 1, f"a_type={self.a_type}: factors are for 8-bit floats"),
            (
                self.depth == 0 or (self.depth == 1 and self.subtiles == 1),
                f"depth={self.depth}: with {self.consumer_rows} rows of a consumer, products are promoted one by one",
            ),
            (
                is_plain or self.accumulators + self.factors <= MOST_ACCUMULATORS,
                f"tile={self.tile}, depth={self.depth}: {self.factors} factors beside {self.accumulators} sums",
            ),
            (not self.AB_swapped, "AB_swapped: factors of rows stay with A"),
            (not self.pingpong, "pingpong: one warpgroup alone leaves the tensor core idle while it promotes"),
            (self.num_split_k == 1, f"num_split_k={self.num_split_k}: K is not split"),
            (not self.staggered or self.consumers == 2, f"staggered: there are {self.consumers} consumers, not two"),
            (self.scale_granularity % 8 == 0, f"scale_granularity={self.scale_granularity}: not in steps of 8"),
        )
        return [*super().violations(), *(what for right, what in checks if not right)]
