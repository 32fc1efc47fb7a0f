"""The matrix shapes and element types of each tensor-core instruction.

Sources: PTX ISA 9.7.15.2-3 (wgmma), Table 39 (tcgen05 shapes), Tables 42-44 (type codes), Tables 51-54 (transpose,
negate, N of a transposed 8-bit B), Table 57 (scale vectors). Table 39 allows N in steps of 8 for M = 128; CUTLASS and
DeepGEMM require steps of 16 there. This module follows the table: a stricter library does not show that the
hardware rejects the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WGMMA_M = 64

_STEP_8 = tuple(range(8, 257, 8))
_STEP_16 = tuple(range(16, 257, 16))
_STEP_32 = tuple(range(32, 257, 32))
_INTEGER = (8, 16, 24, 32, *range(48, 257, 16))


@dataclass(frozen=True, slots=True)
class WgmmaType:
    """The shapes of one multiplicand type: D types, N, K, and whether an MN-major operand is allowed."""

    d_types: tuple[str, ...]
    n: tuple[int, ...]
    k: int
    transposable: bool = False
    b_types: tuple[str, ...] = ()
    """The B types that go with this A type; empty means the same type only."""


WGMMA: Mapping[str, WgmmaType] = {
    "f16": WgmmaType(("f16", "f32"), _STEP_8, 16, transposable=True),
    "bf16": WgmmaType(("f32",), _STEP_8, 16, transposable=True),
    "tf32": WgmmaType(("f32",), _STEP_8, 8),
    "e4m3": WgmmaType(("f16", "f32"), _STEP_8, 32, b_types=("e4m3", "e5m2")),
    "e5m2": WgmmaType(("f16", "f32"), _STEP_8, 32, b_types=("e4m3", "e5m2")),
    "s8": WgmmaType(("s32",), _INTEGER, 32, b_types=("s8", "u8")),
    "u8": WgmmaType(("s32",), _INTEGER, 32, b_types=("s8", "u8")),
}
"""wgmma by the type of A (dense)."""


@dataclass(frozen=True, slots=True)
class TensorKind:
    """One `.kind` of tcgen05.mma (dense): types and their codes, K, M and N by cta_group, and which operand
    modifiers it has.
    """

    name: str
    codes: Mapping[str, int]
    """The code of each multiplicand type in the instruction descriptor."""
    d_codes: Mapping[str, int]
    """The code of each accumulator type; empty where D is always f32 and has no field."""
    k: int
    element_bits: int
    """Bits that one element of A or B takes in shared memory, padding included."""
    m: Mapping[int, tuple[int, ...]]
    n: Mapping[int, tuple[int, ...]]
    transpose: bool = True
    negate: bool = True
    scales: Mapping[str, int] | None = None
    """The code of each scale type, for the block-scaled kinds."""
    scale_vectors: Mapping[str, tuple[int, ...]] | None = None
    """The possible numbers of scale factors per row of one MMA, by scale type."""

    def stored(self, element: str) -> str:
        """An element type and how this kind packs it: 4-bit kinds put two to a byte, byte kinds pad (Table 54 ff.)."""
        return f"{element}_packed" if self.element_bits == 4 else element


_DENSE_M = {1: (64, 128), 2: (128, 256)}
_SCALED_M = {1: (128,), 2: (128, 256)}
_FLOAT_N = {1: _STEP_8, 2: _STEP_16}
_NARROW = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}

TENSOR_KINDS: Mapping[str, TensorKind] = {
    kind.name: kind
    for kind in (
        TensorKind("f16", {"f16": 0, "bf16": 1}, {"f16": 0, "f32": 1}, 16, 16, _DENSE_M, _FLOAT_N),
        TensorKind("tf32", {"tf32": 2}, {"f32": 1}, 8, 32, _DENSE_M, _FLOAT_N),
        TensorKind("f8f6f4", _NARROW, {"f16": 0, "f32": 1}, 32, 8, _DENSE_M, _FLOAT_N),
        TensorKind("i8", {"u8": 0, "s8": 1}, {"s32": 2}, 32, 8, _DENSE_M, {1: _INTEGER, 2: _STEP_32}, negate=False),
        TensorKind(
            "mxf8f6f4", _NARROW, {}, 32, 8, _SCALED_M, _FLOAT_N, scales={"ue8m0": 1}, scale_vectors={"ue8m0": (1,)}
        ),
        TensorKind(
            "mxf4",
            {"e2m1": 1},
            {},
            64,
            4,
            _SCALED_M,
            _FLOAT_N,
            transpose=False,
            scales={"ue8m0": 1},
            scale_vectors={"ue8m0": (2,)},
        ),
        TensorKind(
            "mxf4nvf4",
            {"e2m1": 1},
            {},
            64,
            4,
            _SCALED_M,
            _FLOAT_N,
            transpose=False,
            scales={"ue8m0": 1, "ue4m3": 0},
            scale_vectors={"ue8m0": (2, 4), "ue4m3": (4,)},
        ),
    )
}

SCALE_VECTORS: Mapping[tuple[str, str], int] = {
    ("mxf8f6f4", ""): 1,
    ("mxf8f6f4", "scale_vec::1X"): 1,
    ("mxf8f6f4", "block32"): 1,
    ("mxf4", ""): 2,
    ("mxf4", "scale_vec::2X"): 2,
    ("mxf4", "block32"): 2,
    ("mxf4nvf4", "scale_vec::2X"): 2,
    ("mxf4nvf4", "block32"): 2,
    ("mxf4nvf4", "scale_vec::4X"): 4,
    ("mxf4nvf4", "block16"): 4,
}
"""Scale factors per row by (kind, modifier): Table 56, and 9.7.16.10.9.1 for an omitted modifier."""

SCALED_INPUT_KINDS = ("f16", "tf32")
SCALED_INPUT_LIMIT = 15
"""scale-input-d: which kinds have it, and its largest value (9.7.16.10.9.1)."""

WEIGHT_STATIONARY_M = (32, 64, 128)
WEIGHT_STATIONARY_N = (64, 128, 256)
"""tcgen05.mma.ws: the same kinds without block scaling, cta_group 1 only."""

TRANSPOSED_BYTE_N: Mapping[int, tuple[int, ...]] = {1: _STEP_16, 2: _STEP_32}
"""N where an 8-bit B is N-major, by cta_group (Table 52)."""


@dataclass(frozen=True, slots=True)
class WarpShape:
    """One mma.sync shape: registers of A, B and C per thread for elements of `bits`."""

    m: int
    n: int
    k: int
    bits: int
    types: tuple[str, ...]

    @property
    def a_registers(self) -> int:
        return self.m * self.k // 32 // max(32 // self.bits, 1)

    @property
    def b_registers(self) -> int:
        return self.n * self.k // 32 // max(32 // self.bits, 1)


WARP_SHAPES: tuple[WarpShape, ...] = (
    WarpShape(16, 8, 16, 16, ("f16", "bf16")),
    WarpShape(16, 8, 8, 16, ("f16", "bf16")),
    WarpShape(16, 8, 8, 32, ("tf32",)),
    WarpShape(16, 8, 4, 32, ("tf32",)),
    WarpShape(16, 8, 32, 8, ("e4m3", "e5m2", "s8", "u8")),
    WarpShape(16, 8, 16, 8, ("e4m3", "e5m2", "s8", "u8")),
    WarpShape(8, 8, 16, 8, ("s8", "u8")),
    WarpShape(16, 8, 64, 4, ("s4", "u4")),
    WarpShape(16, 8, 32, 4, ("s4", "u4")),
    WarpShape(8, 8, 32, 4, ("s4", "u4")),
    WarpShape(16, 8, 256, 1, ("b1",)),
    WarpShape(16, 8, 128, 1, ("b1",)),
    WarpShape(8, 8, 128, 1, ("b1",)),
    WarpShape(8, 8, 4, 64, ("f64",)),
    WarpShape(16, 8, 4, 64, ("f64",)),
    WarpShape(16, 8, 8, 64, ("f64",)),
    WarpShape(16, 8, 16, 64, ("f64",)),
)
"""mma.sync on these targets (PTX ISA 9.7.14.5.2-10); one 64-bit register holds one f64."""

WARP_D_TYPES: Mapping[str, tuple[str, ...]] = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
    "s8": ("s32",),
    "u8": ("s32",),
    "s4": ("s32",),
    "u4": ("s32",),
    "b1": ("s32",),
    "f64": ("f64",),
}
"""The types that C and D of mma.sync share, by the type of A."""

WARP_MIXES: tuple[frozenset[str], ...] = (
    frozenset({"e4m3", "e5m2"}),
    frozenset({"s8", "u8"}),
    frozenset({"s4", "u4"}),
)
"""Types that A and B of mma.sync may combine; every other type must be the same for both."""

_TILES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
WMMA_SHAPES: tuple[WarpShape, ...] = (
    *(WarpShape(m, n, k, 16, ("f16", "bf16")) for m, n, k in _TILES),
    *(WarpShape(m, n, k, 8, ("s8", "u8")) for m, n, k in _TILES),
    WarpShape(16, 16, 8, 32, ("tf32",)),
    WarpShape(8, 8, 32, 4, ("s4", "u4")),
    WarpShape(8, 8, 128, 1, ("b1",)),
    WarpShape(8, 8, 4, 64, ("f64",)),
)
"""wmma on these targets (PTX ISA 9.7.14.4.1)."""

WMMA_HALF_REGISTERS = 8
"""Registers of A and B of f16 in every shape (PTX ISA 9.7.14.4.1, Table 33): smaller shapes repeat elements."""
