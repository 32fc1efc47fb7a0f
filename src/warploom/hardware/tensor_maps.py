"""Tensor maps: the limits of cuTensorMapEncodeTiled, …Im2col and …Im2colWide, and the codes of their enumerations.

Source: CUDA Driver API 13, Tensor Map Object Management; PTX ISA 5.5.1.1 for the packed types. 6000 random tiled
maps were compared with the encoder of driver 580 on an H200. It differs from its documentation in two points: it
requires inner boxes of a multiple of 16 bytes with interleave too, which is adopted here, and it accepts any swizzle
with interleave 32B, which is not. The rules of im2col maps are those of the documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

RANK_LIMIT = 5
INTERLEAVE_RANK = 3
"""The smallest rank of an interleaved tensor."""
DIMENSION_LIMIT = 1 << 32
STRIDE_LIMIT = 1 << 40
BOX_LIMIT = 256
ELEMENT_STRIDE_LIMIT = 8
BOX_BYTES_LIMIT = 232448
"""A box must fit into the shared memory of a block: undocumented, but the driver refuses larger ones (580, H200)."""
ADDRESS_ALIGNMENT = 16
STRIDE_ALIGNMENT = 16
WIDE_ALIGNMENT = 32
"""Address and strides of interleave-32B and of the padded packed types."""
BOX_ROW_ALIGNMENT = 16
PADDED_BOX = 128
"""The inner box, and the unit of the inner dimension, of the padded packed types."""
MAP_BYTES = 128
MAP_ALIGNMENT = 64
SHARED_ALIGNMENT = 128
"""Of a box in shared memory (CUDA C++ Programming Guide, TMA; the swizzles count lines of 128 bytes)."""

INTERLEAVES = {"none": 0, "16B": 1, "32B": 2}
SPATIAL_AXES = {3: 1, 4: 2, 5: 3}
"""Axes between the batch and the channels of an im2col tensor (NWC, NHWC, NDHWC), by its rank."""
PIXELS_LIMIT = 1024
"""Pixels of one im2col copy."""
CORNER_LIMIT = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}
"""The corners of a pixel box are -limit to limit - 1, by the rank; those of the wide modes have the limit of rank 3."""
OFFSET_LIMIT = {3: 1 << 16, 4: 1 << 8, 5: 1 << 5}
"""The offsets of an im2col copy are below this, by the rank (PTX ISA 9.7.9.27.1.2)."""
WIDE_OFFSET_LIMIT = 32
"""The offset of an im2col::w copy along W is below this (PTX ISA 9.7.9.27.1.2)."""
HALO_LIMIT = {"im2col::w": 512, "im2col::w::128": 32}
"""The halo of a wide copy is below this, in pixels (PTX ISA 9.7.9.27.1.2)."""
WIDE_PIXELS = 128
"""Pixels of every im2col::w::128 copy, without halos."""
HALO_PIXELS = 32
"""An im2col::w::128 copy has a halo for each so many of them (PTX ISA 5.5.5.3)."""
WIDE_MODES = {"im2col::w": 0, "im2col::w::128": 1}
"""By name, the codes of CUtensorMapIm2ColWideMode."""
MODES = ("tile", "im2col", *WIDE_MODES)

L2_PROMOTIONS = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
FILLS = {"zero": 0, "nan": 1}
NAN_FILL = 0x7FF7
"""The NaN fill writes this to every 16 bits of any type: seen on an H200 for f16, bf16, f32, tf32 and f64."""


@dataclass(frozen=True, slots=True)
class MapType:
    """One CUtensorMapDataType: the size of its elements in global and in shared memory.

    Elements move in groups: `group` elements take `global_bytes` in global and `shared_bytes` in shared memory.
    """

    name: str
    code: int
    group: int
    global_bytes: int
    shared_bytes: int
    floating: bool = False
    rounds_to_tf32: bool = False
    """True if a load rounds each element to tf32 (to nearest even; a NaN becomes 0x7fffe000): seen on an H200."""
    dtypes: tuple[str, ...] = ()
    """NumPy and ml_dtypes names of arrays that get this type by default."""
    swizzles: tuple[str, ...] = ()
    """The only swizzles allowed; empty means all."""

    @property
    def inner_unit(self) -> int:
        """The number that the innermost dimension of the tensor must be a multiple of."""
        if self.padded:
            return PADDED_BOX
        return 2 if self.packed else 1

    @property
    def coordinate_unit(self) -> int:
        """The number that the innermost coordinate of a copy must be a multiple of.

        The box begins on 16 bytes of global memory (PTX ISA 5.5.3.1): an H200 reports an illegal instruction
        otherwise. The padded types require 128 values (PTX ISA 9.7.9.27.1.1).
        """
        return PADDED_BOX if self.padded else ADDRESS_ALIGNMENT * self.group // self.global_bytes

    @property
    def packed(self) -> bool:
        return self.group > 1

    @property
    def padded(self) -> bool:
        return self.shared_bytes != self.global_bytes

    def row_bytes(self, elements: int) -> int:
        """Bytes in shared memory of a number of elements."""
        return elements * self.shared_bytes // self.group

    def global_row_bytes(self, elements: int) -> int:
        """Bytes in global memory of a number of elements."""
        return elements * self.global_bytes // self.group


_BYTES = (
    "uint8",
    "int8",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
_PADDED_SWIZZLES = ("none", "128B", "128B_32B_atom")

MAP_TYPES: dict[str, MapType] = {
    row.name: row
    for row in (
        MapType("u8", 0, 1, 1, 1, dtypes=_BYTES),
        MapType("u16", 1, 1, 2, 2, dtypes=("uint16", "int16")),
        MapType("u32", 2, 1, 4, 4, dtypes=("uint32",)),
        MapType("i32", 3, 1, 4, 4, dtypes=("int32",)),
        MapType("u64", 4, 1, 8, 8, dtypes=("uint64",)),
        MapType("i64", 5, 1, 8, 8, dtypes=("int64",)),
        MapType("f16", 6, 1, 2, 2, floating=True, dtypes=("float16",)),
        MapType("f32", 7, 1, 4, 4, floating=True, dtypes=("float32",)),
        MapType("f64", 8, 1, 8, 8, floating=True, dtypes=("float64",)),
        MapType("bf16", 9, 1, 2, 2, floating=True, dtypes=("bfloat16",)),
        MapType("f32_ftz", 10, 1, 4, 4, floating=True),
        MapType("tf32", 11, 1, 4, 4, floating=True, rounds_to_tf32=True),
        MapType("tf32_ftz", 12, 1, 4, 4, floating=True, rounds_to_tf32=True),
        MapType("16u4_align8b", 13, 16, 8, 8),
        MapType("16u4_align16b", 14, 16, 8, 16, swizzles=_PADDED_SWIZZLES),
        MapType("16u6_align16b", 15, 16, 12, 16, swizzles=(*_PADDED_SWIZZLES, "128B_64B_atom")),
    )
}
"""Every type by name; the padded types leave the bytes after each packed group unwritten by definition, undefined by
content.
"""

DTYPE_DEFAULTS: dict[str, MapType] = {dtype: row for row in MAP_TYPES.values() for dtype in row.dtypes}
"""The type an array gets when the map names none."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """One operation of cp.reduce.async.bulk.tensor and the element types it has."""

    name: str
    types: tuple[str, ...]


REDUCTIONS: dict[str, Reduction] = {
    row.name: row
    for row in (
        Reduction("add", ("u32", "i32", "u64", "f32", "f32_ftz", "f16", "bf16")),
        Reduction("min", ("u32", "i32", "u64", "i64", "f16", "bf16")),
        Reduction("max", ("u32", "i32", "u64", "i64", "f16", "bf16")),
        Reduction("inc", ("u32",)),
        Reduction("dec", ("u32",)),
        Reduction("and", ("u32", "i32", "u64", "i64")),
        Reduction("or", ("u32", "i32", "u64", "i64")),
        Reduction("xor", ("u32", "i32", "u64", "i64")),
    )
}
"""PTX ISA 9.7.9.25.5.3; the type comes from the map. Bitwise operations act on 32- and 64-bit integers."""
