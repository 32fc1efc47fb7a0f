"""Problems with scale factors: small integers times powers of two, so that every sum is exact, and what NumPy says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from warploom import TensorMap, launch
from warploom.kernels.sm100.block_scaled import block_scaled
from warploom.kernels.sm100.blockwise_fp8 import blockwise_fp8
from warploom.structured.composition.operands import operand_layouts
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, Problem, validate
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.schedulers.tile_scheduler import launch_grid
from warploom.structured.tensor_cores.block_scaled import scale_layouts

DTYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
    "ue4m3": ml_dtypes.float8_e4m3fn,
}
NAN_CODE = 0xFF
"""A NaN as ue8m0 and as ue4m3."""
CHUNK_ROWS, CHUNK_FACTORS = 128, 4


def padded(array: np.ndarray, poison: Any = 0) -> np.ndarray:
    """The same array with rows that begin on 16 bytes; what lies between them is poison."""
    unit = 16 // array.itemsize
    wide = np.full((*array.shape[:-1], -(-array.shape[-1] // unit) * unit), poison, array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def packed(array: np.ndarray) -> np.ndarray:
    """4-bit floats two to a byte, the first in the lower half."""
    codes = array.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    return padded(codes[..., ::2] | codes[..., 1::2] << 4)


def chunked(factors: np.ndarray, dtype: str) -> np.ndarray:
    """Factors [..., rows, blocks] in chunks of 128 rows × 4, each as 128 words; missing rows are NaN."""
    *batch, rows, blocks = factors.shape
    across, along = -(-rows // CHUNK_ROWS), -(-blocks // CHUNK_FACTORS)
    codes = np.full((*batch, across * CHUNK_ROWS, along * CHUNK_FACTORS), NAN_CODE, np.uint8)
    codes[..., :rows, :] = 0
    codes[..., :rows, :blocks] = factors.astype(DTYPES[dtype]).view(np.uint8)
    parts = codes.reshape(*batch, across, 4, 32, along, 4)
    ordered = np.moveaxis(parts, (-5, -2, -3, -4, -1), (-5, -4, -3, -2, -1))
    return np.ascontiguousarray(ordered).reshape(*batch, across, along, -1).view(np.uint32)


@dataclass(eq=False)
class Scaled:
    """The common part of both families: integers, C, the launch and the comparison."""

    m: int
    n: int
    k: int
    config: Any
    batch: tuple[int, ...] = ()
    alpha: float = 1.0
    epilogue: Epilogue = field(default_factory=Epilogue)
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __post_init__(self):
        stride = -(-self.k // 32) * 32
        c_stride = -(-self.n // 16) * 16 if self.config.use_tma_store else None
        asked = Problem(self.m, self.n, self.k, *self.batch, a_stride=stride, b_stride=stride, c_stride=c_stride)
        if "mn" in (self.config.a_major, self.config.b_major):
            asked = replace(asked, a_stride=-(-self.m // 16) * 16, b_stride=-(-self.n // 16) * 16)
        validate(self.config, asked)

    @cached_property
    def a(self):
        return self.rng.integers(-2, 3, (*self.batch, self.m, self.k))

    @cached_property
    def b(self):
        return self.rng.integers(-2, 3, (*self.batch, self.n, self.k))

    @cached_property
    def d(self):
        shape = (*self.batch, self.m, self.n)
        if not self.config.use_tma_store:
            return np.full(shape, np.nan, DTYPES[self.config.c_type])
        return padded(np.full(shape, np.nan, DTYPES[self.config.c_type]), np.nan)

    def boxed(self, array, box, **options):
        return TensorMap(array, box=(*(1 for _ in self.batch), *box), **options)

    def operand(self, array, dtype, layout, major="k"):
        given = np.swapaxes(array, -1, -2) if major == "mn" else array
        if dtype == "e2m1":
            unpacked = "16u4_align8b" if layout.element_bits == 4 else "16u4_align16b"
            return self.boxed(packed(given), layout.box, swizzle=layout.swizzle, dtype=unpacked)
        return self.boxed(padded(given.astype(DTYPES[dtype])), layout.box, swizzle=layout.swizzle)

    @property
    def operands(self):
        """A and B as the kernel takes them: exchanged where it computes the transpose."""
        config, given = self.config, (self.a, self.b)
        left, right = reversed(given) if config.AB_swapped else given
        of_a, of_b = operand_layouts(config)
        return (
            self.operand(left, config.a_type, of_a, config.a_major),
            self.operand(right, config.b_type, of_b, config.b_major),
        )

    @property
    def target(self):
        config = self.config
        if not config.use_tma_store:
            return self.d
        rows, columns = config.output_tile_shape
        box = (config.BM if config.epilogue.is_folded else rows, columns)
        if config.AB_swapped:
            box = (rows, min(columns, 128 // config.c_bytes))
        return self.boxed(self.d, box, swizzle=config.c_swizzle)

    @property
    def sizes(self):
        """m, n, k and batch, and what the epilogue reads."""
        scalars = {} if self.alpha == 1 else {"alpha": self.alpha}
        return (self.m, self.n, self.k, *(self.batch or (1,)), scalars)

    @property
    def options(self):
        config = self.config
        return {
            "grid": launch_grid(config, Problem(self.m, self.n, self.k, *self.batch), 8),
            "block": (config.threads, 1, 1),
            "cluster": config.cluster_shape,
            "config": config,
            "epilogue": self.epilogue,
        }

    def run(self, schedule="eager", seed=0, sms=8):
        launch(self.launch, schedule=schedule, seed=seed, sms=sms)
        return self.d.astype(np.float64)

    def check(self, schedule="eager", seed=0, then=lambda exact: exact):
        """Every element of C to the bit, after a function of the exact sums."""
        found = self.run(schedule, seed)
        np.testing.assert_array_equal(found, then(self.exact).astype(DTYPES[self.config.c_type]).astype(np.float64))


@dataclass(eq=False)
class Blockwise(Scaled):
    """Factors per row and K tile of A, per block and K tile of B."""

    exponents: tuple[int, int] = (-2, 3)

    def factors(self, *shape):
        return 2.0 ** self.rng.integers(*self.exponents, (*self.batch, *shape))

    @property
    def k_tiles(self):
        return -(-self.k // 128)

    @cached_property
    def a_scales(self):
        return self.factors(self.k_tiles, self.m)

    @cached_property
    def b_scales(self):
        return self.factors(-(-self.n // self.config.scale_granularity), self.k_tiles)

    @property
    def exact(self):
        total = np.zeros((*self.batch, self.m, self.n))
        for tile in range(self.k_tiles):
            part = np.s_[..., 128 * tile : 128 * tile + 128]
            product = self.a[part].astype(float) @ np.swapaxes(self.b[part], -1, -2).astype(float)
            columns = np.repeat(self.b_scales[..., tile], self.config.scale_granularity, -1)[..., None, : self.n]
            total += product * self.a_scales[..., tile, :, None] * columns
        return self.alpha * total

    @cached_property
    def launch(self):
        dtype = DTYPES[self.config.scale_type]
        rows = self.boxed(padded(self.a_scales.astype(dtype), np.nan), (1, self.config.scaled_rows))
        columns = np.asarray(self.b_scales.astype(dtype), order="F" if not self.batch else "C")
        given = (*self.operands, rows, columns, self.target)
        return blockwise_fp8.bind(*given, *self.sizes, **self.options)


@dataclass(eq=False)
class BlockScaled(Scaled):
    """A factor for each `vec_sf_size` neighbours of a row, of A and of B."""

    def factors(self, rows):
        shape = (*self.batch, rows, -(-self.k // self.config.vec_sf_size))
        if self.config.scale_type == "ue8m0":
            return 2.0 ** self.rng.integers(-2, 3, shape)
        return self.rng.choice([0.5, 0.75, 1, 1.5, 2, 3], shape)

    @cached_property
    def sfa(self):
        return self.factors(self.m)

    @cached_property
    def sfb(self):
        return self.factors(self.n)

    @property
    def exact(self):
        wide = self.config.vec_sf_size
        a = self.a * np.repeat(self.sfa, wide, -1)[..., : self.k]
        b = self.b * np.repeat(self.sfb, wide, -1)[..., : self.k]
        return self.alpha * (a @ np.swapaxes(b, -1, -2))

    @cached_property
    def launch(self):
        config, given = self.config, (self.sfa, self.sfb)
        left, right = reversed(given) if config.AB_swapped else given
        of_a, of_b = scale_layouts(config)
        maps = (
            self.boxed(chunked(factors, config.scale_type), layout.box)
            for factors, layout in ((left, of_a), (right, of_b))
        )
        return block_scaled.bind(*self.operands, *maps, self.target, *self.sizes, **self.options)


def blockwise(m, n, k, *, batch=(), epilogue=None, exponents=(-2, 3), **fields):
    config = BlockwiseFP8MatmulConfig(**{"cta_group": 1, "c_type": "f32", **fields})
    return Blockwise(m, n, k, config, batch, epilogue=epilogue or Epilogue(), exponents=exponents)


def scaled(m, n, k, *, batch=(), alpha=1.0, epilogue=None, **fields):
    config = BlockScaledMatmulConfig(**{"cta_group": 1, "c_type": "f32", **fields})
    return BlockScaled(m, n, k, config, batch, alpha, epilogue or Epilogue())
