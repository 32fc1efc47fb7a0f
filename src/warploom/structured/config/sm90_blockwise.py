"""`HopperBlockwiseConfig`: FP8 with block scales; the consumers accumulate scaled partial results in registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

from warploom.structured.config.base import Rule, element_bytes
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_rules import HOPPER_BLOCKWISE_RULES, HOPPER_RULES


@dataclass(frozen=True, kw_only=True, repr=False)
class HopperBlockwiseConfig(HopperConfig):
    """A scale for each row of A and 128 of K, and for each 128 × 128 of B.

    The tensor core computes a *partial*: 64 rows of one K tile. When it is complete it is promoted, that is scaled and
    added to the accumulators. A consumer of 64 rows has two partials and `mmas_in_flight=1`: one is computed while the
    other is promoted. A consumer of 128 rows has two sets of accumulators and one partial: while it promotes, the other
    consumer issues its MMAs.
    """

    a_type: str = "e4m3"
    scale_type: str = "f32"
    scale_granularity: int = 128
    """Columns of C that share a scale of B."""

    rules: ClassVar[tuple[Rule, ...]] = (*HOPPER_RULES, *HOPPER_BLOCKWISE_RULES)

    @property
    def default_mmas_in_flight(self) -> int:
        return 1 if self.subtiles == 1 else 0

    @property
    def partials(self) -> int:
        """Partials that a thread's registers hold at a time."""
        return self.mmas_in_flight + 1

    @property
    def accumulators(self) -> int:
        return (self.subtiles + self.partials) * self.BN // 2

    @property
    def accumulators_held(self) -> int:
        """Accumulators, and the first partial of the next tile."""
        return (self.subtiles + 1) * self.BN // 2

    @property
    def scaled_rows(self) -> int:
        """Rows of A that a CTA has scales of."""
        return self.BM

    @property
    def warp_extent(self) -> int:
        """Columns of C that a warp holds."""
        return self.BN

    @property
    def scale_registers(self) -> int:
        """Scales that a thread's registers hold: one for each row, block of columns and partial."""
        granularity = self.scale_granularity
        blocks = (granularity - gcd(self.BN, granularity) + self.BN - 1) // granularity + 1
        return 2 * self.subtiles * blocks * self.partials

    @property
    def stage_bytes(self) -> int:
        return super().stage_bytes + self.BM * element_bytes(self.scale_type)
