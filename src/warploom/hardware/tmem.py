"""TMEM layouts: accumulators, the A operand and scale factors of an MMA, and the destinations of tcgen05.cp.

Sources: PTX ISA 9.7.16.10.5 (Layouts A-G, whose figures were read from CUTLASS mma_traits_sm100_frag.hpp and agree
with Triton's tensorMemoryToLinearLayout), 9.7.16.10.7 (scale factors), 9.7.16.9.2 (tcgen05.cp; CUTLASS
copy_traits_sm100.hpp).
"""

from __future__ import annotations

from dataclasses import dataclass

LANE_SHIFT = 16
LANE_MASK = 0x3FFF
COLUMN_MASK = 0xFFFF
"""An address is lane << 16 | column (PTX ISA 9.7.16.1.1). The two top bits are not part of the lane: CuTe DSL keeps
the index of a scale factor there.
"""

COLUMNS = 512
"""Columns of a CTA's TMEM (PTX ISA 9.7.16.1)."""

SMALLEST_ALLOCATION = 32
"""Columns; an allocation is a power of two of them (PTX ISA 9.7.16.7)."""

QUADRANT = 32
"""Lanes that one warp of a warpgroup can access."""

LANE_ALIGNMENT = 16
"""Alignment of the first lane of a tcgen05.ld or st: the datapaths of the layouts below begin at lane 0 or 16."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The layout of the rows and columns of one CTA's part of D in lanes and columns.

    `blocks` groups of lanes, `pitch` lanes apart, hold `height` rows each. With `folded`, block b holds column block
    b of *all* rows (lanes carry rows, blocks carry columns); otherwise block b holds rows b * height onwards and all
    columns.
    """

    name: str
    rows: int
    blocks: int
    height: int
    pitch: int
    folded: bool
    lane_bases: tuple[int, ...] = (0,)
    """Lanes at which the accumulator may begin."""


_FULL = Placement("full", 128, 1, 128, 128, folded=False)
_SCATTERED = Placement("scattered", 64, 4, 16, 32, folded=False, lane_bases=(0, 16))
_HALVES = Placement("halves", 64, 2, 64, 64, folded=True)
_QUARTERS = Placement("quarters", 32, 4, 32, 32, folded=True)

PLACEMENTS: dict[tuple[int, int, bool], Placement] = {
    (2, 256, False): _FULL,
    (2, 128, False): _HALVES,
    (1, 128, False): _FULL,
    (1, 64, False): _SCATTERED,
    (1, 128, True): _FULL,
    (1, 64, True): _HALVES,
    (1, 32, True): _QUARTERS,
}
"""By (cta_group, M, .ws), dense: Layouts A, B, D, F, D, E, G in that order. With cta_group::2 each CTA owns M / 2
rows.
"""


@dataclass(frozen=True, slots=True)
class CopyShape:
    """One tcgen05.cp shape: rows and bytes read through the descriptor, and the lane where each group of rows lands.

    `targets[i]` are the first lanes of the copies of rows i * height onwards.
    """

    name: str
    rows: int
    row_bytes: int
    height: int
    targets: tuple[tuple[int, ...], ...]


COPY_SHAPES: dict[str, CopyShape] = {
    shape.name: shape
    for shape in (
        CopyShape("128x256b", 128, 32, 128, ((0,),)),
        CopyShape("128x128b", 128, 16, 128, ((0,),)),
        CopyShape("64x128b.warpx2::02_13", 64, 16, 64, ((0, 64),)),
        CopyShape("64x128b.warpx2::01_23", 64, 16, 32, ((0, 32), (64, 96))),
        CopyShape("32x128b.warpx4", 32, 16, 32, ((0, 32, 64, 96),)),
        CopyShape("4x256b", 4, 32, 1, ((0,), (32,), (64,), (96,))),
    )
}
"""By shape and multicast.

`4x256b` writes one lane of each quadrant, the one that the address names: CUTLASS calls it a refresh of one row per
quadrant and gives the source rows a pitch of 32 lanes.
"""

DECOMPRESSED_SHIFT = {"b6x16_p32": 0, "b4x16_p64": 2}
"""Bit position in its byte of an element that tcgen05.cp decompresses: the position at which an MMA reads it.

PTX ISA 9.7.16.9.1 and 9.7.16.10.4.3 show both in figures only. That copies and MMAs agree is the point of the format.
"""

SCALE_CHUNK_ROWS = 128
SCALE_CHUNK_FACTORS = 4
"""Scale factors come in chunks of 128 rows times four factors: row r, factor k is byte k of lane r % 32, column r /
32.
"""
