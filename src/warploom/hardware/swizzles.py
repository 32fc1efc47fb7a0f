"""Shared-memory swizzles: which address bits are exchanged, and the codes that name them in each encoding.

A swizzle permutes 16-byte granules (or larger atoms) by an exclusive or of address bits: with CuTe's parameters
`Swizzle<bits, base, shift>`, byte address x becomes x ^ (((x >> (base + shift)) & (2^bits - 1)) << base). The bits
are those of the *absolute* shared-memory address (CUDA C++ Programming Guide, TMA swizzle; PTX ISA 5.5.7), which is
why a start address may point into the middle of a pattern. wgmma with random starts, strides and base offsets, and
TMA to every 128-byte line, were compared with an H200 byte by byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Offset = TypeVar("_Offset", int, NDArray[np.intp])

GRANULE = 16
"""Bytes that no swizzle separates."""


@dataclass(frozen=True, slots=True)
class Swizzle:
    """One mode: its geometry and its codes. A code is None where that encoding lacks the mode."""

    name: str
    span: int
    """Bytes of a row that take part; also the largest inner box dimension that TMA accepts (0: no limit)."""
    bits: int
    base: int
    shift: int
    alignment: int
    """The alignment at which the pattern starts if no base offset is given (PTX ISA 5.5.7 and Table 41)."""
    sm90_code: int | None
    sm100_code: int | None
    tensor_map_code: int

    @property
    def period(self) -> int:
        """Bytes after which the permutation repeats."""
        return 1 << (self.base + self.shift + self.bits) if self.bits else GRANULE

    def apply(self, address: _Offset, base_offset: int = 0) -> _Offset:
        """The swizzled address of a byte.

        A base offset is the 128-byte line of a naturally aligned 1024 bytes in which the pattern begins; line
        numbers count from there.
        """
        line = (address >> (self.base + self.shift)) - base_offset
        return address ^ ((line & ((1 << self.bits) - 1)) << self.base)


NONE = Swizzle("none", 0, 0, 4, 3, 16, 0, 0, 0)
B32 = Swizzle("32B", 32, 1, 4, 3, 256, 3, 6, 1)
B64 = Swizzle("64B", 64, 2, 4, 3, 512, 2, 4, 2)
B128 = Swizzle("128B", 128, 3, 4, 3, 1024, 1, 2, 3)
B128_ATOM_32B = Swizzle("128B_32B_atom", 128, 2, 5, 2, 1024, None, 1, 4)
B128_ATOM_64B = Swizzle("128B_64B_atom", 128, 1, 6, 1, 1024, None, None, 6)

SWIZZLES: dict[str, Swizzle] = {s.name: s for s in (NONE, B32, B64, B128, B128_ATOM_32B, B128_ATOM_64B)}
"""Every mode by name.

Modes without an sm_90 code exist on Blackwell only: on an H200 the driver rejects a tensor map with them. The driver's
128B_ATOM_32B_FLIP_8B (code 5) is absent: no source says which lines it flips.
"""
LARGEST_PERIOD = max(s.period for s in SWIZZLES.values())
"""Tiles that are moved by multiples of these bytes keep every swizzle as it is."""
BY_SPAN = (B128, B64, B32)
"""The modes that permute granules, the widest first."""


def widest_swizzle(row_bytes: int) -> str:
    """The name of the widest pattern that divides a row."""
    return next((swizzle.name for swizzle in BY_SPAN if row_bytes % swizzle.span == 0), NONE.name)
