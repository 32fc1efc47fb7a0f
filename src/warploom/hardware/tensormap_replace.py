"""The values that `tensormap.replace` gives to the fields of a tensor map, which are not those of the driver's encoder.

Source: PTX ISA 9.7.9.28, Table 33.
"""

from __future__ import annotations

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
