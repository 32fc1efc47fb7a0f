"""The 128 bytes of a tiled tensor map, and the values that `tensormap.replace` gives to its fields, which are not those
of the driver's encoder.

Sources: PTX ISA 9.7.9.28, Table 33, for the values; for their places, the instructions that ptxas of CUDA 12.9 writes
for `tensormap.replace` on sm_90a and sm_100a, which are the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MapField:
    """One field of a map: `count` numbers of `width` bits, the first at bit `first`, the others `step` bits apart."""

    first: int
    width: int
    count: int = 1
    step: int = 0
    minus_one: bool = False
    """The bits hold the number minus one."""

    def read(self, record: int, ordinal: int = 0) -> int:
        return (record >> (self.first + ordinal * self.step) & ((1 << self.width) - 1)) + self.minus_one

    def write(self, record: int, value: int, ordinal: int = 0) -> int:
        """The record with another number; bits beyond the field are lost, as on hardware."""
        mask, at = (1 << self.width) - 1, self.first + ordinal * self.step
        return record & ~(mask << at) | ((value - self.minus_one) & mask) << at


FIELDS = {
    "global_address": MapField(0, 64),
    "rank": MapField(68, 3),
    "elemtype": MapField(71, 4),
    "interleave_layout": MapField(75, 2),
    "swizzle_mode": MapField(77, 2),
    "fill_mode": MapField(79, 1),
    "rounds_to_tf32": MapField(80, 1),
    "swizzle_atomicity": MapField(83, 2),
    "swizzle_96": MapField(86, 1),
    "stride_low": MapField(96, 32, 4, 32),
    "stride_high": MapField(224, 4, 4, 4),
    "global_dim": MapField(256, 32, 5, 32, minus_one=True),
    "element_stride": MapField(416, 3, 5, 3, minus_one=True),
    "box_dim": MapField(440, 8, 5, 8, minus_one=True),
}
"""Every field that `tensormap.replace` writes. A stride is divided by 16, its low and high bits are apart; `rank` holds
the rank minus one. The other bits are unknown, and nothing here depends on them."""
STRIDE_SHIFT = 4
ENCODED_TYPES = {
    **{number: (number, 0) for number in range(11)},
    11: (7, 1),
    12: (8, 1),
    13: (11, 0),
    14: (12, 0),
    15: (13, 0),
}
"""The fields `elemtype` and `rounds_to_tf32` by the number of `tensormap.replace.elemtype`. Only 11 and 12 write the
second one: a map that rounds to tf32 goes on rounding after a change to f32."""

ELEMENT_TYPES = (
    "u8",
    "u16",
    "u32",
    "i32",
    "u64",
    "i64",
    "f16",
    "f32",
    "f32_ftz",
    "f64",
    "bf16",
    "tf32",
    "tf32_ftz",
    "16u4_align8b",
    "16u4_align16b",
    "16u6_align16b",
)
"""Names of `hardware.tensor_maps.MAP_TYPES` by their number."""

INTERLEAVES = ("none", "16B", "32B")
FILLS = ("zero", "nan")

SWIZZLES = {
    (0, 0): "none",
    (1, 0): "32B",
    (2, 0): "64B",
    (3, 0): "128B",
    (3, 1): "128B_32B_atom",
    (3, 3): "128B_64B_atom",
}
"""Names of `hardware.swizzles.SWIZZLES` by (swizzle_mode, swizzle_atomicity); no 8-byte flip and no 96-byte mode."""
