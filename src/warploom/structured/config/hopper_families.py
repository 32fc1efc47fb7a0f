"""Which configurations suit Hopper's further families: grouped products, and blockwise FP8."""

from __future__ import annotations

from typing import Any

from warploom.structured.config.hopper import HopperConfig
from warploom.structured.config.hopper_blockwise import HopperBlockwiseConfig

_FEW_ROWS = 64
"""Groups of no more rows than this go along N of the multiplication, where tiles can be narrow."""


def in_kernel_terms(fields: dict[str, Any]) -> dict[str, Any]:
    """Types and majors of the caller's A and B as those of a kernel that has them swapped."""
    other = {"a": "b", "b": "a"}
    pairs = {f"{one}_{what}": f"{two}_{what}" for one, two in other.items() for what in ("type", "major")}
    return {pairs.get(name, name): value for name, value in fields.items()}


def choose_grouped(rows: int, n: int, k: int, groups: int, **fields: Any) -> HopperConfig:
    """The configuration for groups of so many rows each, on average; `fields` are as the caller sees A and B."""
    if rows <= _FEW_ROWS:
        tile = (64, -(-rows // 8) * 8)
        return HopperConfig(tile=tile, consumers=1, AB_swapped=True, **in_kernel_terms(fields))
    return HopperConfig(tile=(128, 128), pingpong=True, **fields)


def choose_blockwise(m: int, n: int, k: int, **fields: Any) -> HopperBlockwiseConfig:
    """The configuration for 8-bit factors with scales per block."""
    if m <= _FEW_ROWS:
        return HopperBlockwiseConfig(tile=(64, 64), consumers=1, **fields)
    return HopperBlockwiseConfig(tile=(128, 128), **fields)
