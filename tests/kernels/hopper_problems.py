"""Problems for the Hopper families: small integers, so that every sum is exact in every type, and what NumPy says."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from tests.kernels.scaled_problems import DTYPES, padded

from warploom import TensorMap, launch
from warploom.kernels.sm90.blockwise_fp8 import blockwise_fp8
from warploom.kernels.sm90.grouped import grouped
from warploom.kernels.sm90.matmul import matmul
from warploom.kernels.sm90.stream_k import matmul_stream_k
from warploom.structured.composition.operands import operand_layouts
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.staging import block_width
from warploom.structured.schedulers.static import persistent_grid
from warploom.structured.schedulers.stream_k import stream_grid

SCHEDULES = [("eager", 0), ("lazy", 0), ("reverse", 0), ("random", 1)]
SMS = 8


def ceil(value: int, by: int) -> int:
    return -(-value // by)


@dataclass(eq=False)
class Product:
    """The common part of all families: A (…, m, k), B (…, n, k) and C (…, m, n), poisoned, and the comparison."""

    m: int
    n: int
    k: int
    config: Any
    batch: tuple[int, ...] = ()
    epilogue: Epilogue = field(default_factory=Epilogue)
    operands: dict[str, Any] = field(default_factory=dict)
    sms: int = SMS
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __post_init__(self):
        self.config.validated()

    @cached_property
    def a(self):
        return self.rng.integers(-2, 3, (*self.batch, self.m, self.k))

    @cached_property
    def b(self):
        return self.rng.integers(-2, 3, (*self.batch, self.n, self.k))

    @cached_property
    def d(self):
        return padded(np.full((*self.batch, self.m, self.n), np.nan, DTYPES[self.config.c_type]), np.nan)

    @property
    def exact(self):
        return self.a.astype(float) @ np.swapaxes(self.b, -1, -2).astype(float)

    @property
    def tiles(self):
        rows, columns = (self.n, self.m) if self.config.AB_swapped else (self.m, self.n)
        return ceil(rows, self.config.BM), ceil(columns, self.config.BN), prod(self.batch)

    @property
    def k_tiles(self):
        return ceil(self.k, self.config.BK)

    def boxed(self, array, box, **options):
        return TensorMap(array, box=(*(1,) * (array.ndim - len(box)), *box), **options)

    @property
    def maps(self):
        """A and B as the kernel takes them: exchanged where it computes the transpose."""
        config = self.config
        given = (self.b, self.a) if config.AB_swapped else (self.a, self.b)
        rows = zip(given, (config.a_type, config.b_type), operand_layouts(config), strict=True)
        return tuple(
            self.boxed(
                padded((np.swapaxes(array, -1, -2) if layout.major == "mn" else array).astype(DTYPES[dtype])),
                layout.box,
                swizzle=layout.swizzle,
            )
            for array, dtype, layout in rows
        )

    @property
    def target(self):
        config = self.config
        if not config.use_tma_store:
            return self.d
        rows, columns = config.output_tile_shape
        box = (rows, block_width(config.c_type, config.c_swizzle, columns))
        return self.boxed(self.d, box, swizzle=config.c_swizzle)

    @property
    def options(self):
        config = self.config
        return {
            "grid": persistent_grid(self.tiles, config.cluster_shape[:2], self.sms),
            "block": (config.threads, 1, 1),
            "cluster": config.cluster_shape,
            "config": config,
            "epilogue": self.epilogue,
        }

    @cached_property
    def launch(self):
        given = (*self.maps, self.target, self.m, self.n, *self.tiles, self.k_tiles, {}, self.operands)
        return matmul.bind(*given, **self.options)

    def run(self, schedule="eager", seed=0):
        launch(self.launch, schedule=schedule, seed=seed, sms=self.sms)
        return self.d.astype(np.float64)

    def check(self, schedule="eager", seed=0, then=lambda exact: exact):
        """Every element of C to the bit, after a function of the exact sums."""
        found = self.run(schedule, seed)
        np.testing.assert_array_equal(found, then(self.exact).astype(DTYPES[self.config.c_type]).astype(np.float64))


@dataclass(eq=False)
class Streamed(Product):
    """A GEMM whose last tiles are divided by K tiles; partial tiles are stored in poisoned memory."""

    @cached_property
    def flags(self):
        return np.zeros(prod(self.options["grid"]) * self.config.consumers, np.uint32)

    @property
    def options(self):
        config = self.config
        return {**super().options, "grid": stream_grid(self.tiles, config.cluster_shape[:2], self.k_tiles, self.sms)}

    @cached_property
    def launch(self):
        sums = prod(self.options["grid"]) * self.config.BM * self.config.BN
        held = {"workspace": np.full(sums, np.nan, np.float32), "flags": self.flags}
        given = (*self.maps, self.target, self.m, self.n, *self.tiles, self.k_tiles, {}, held, self.operands)
        return matmul_stream_k.bind(*given, **self.options)

    def run(self, schedule="eager", seed=0):
        found = super().run(schedule, seed)
        assert not self.flags.any()  # as the next launch must find them
        return found


@dataclass(eq=False)
class Grouped(Product):
    """Rows of several consecutive groups, each with the weights of its expert."""

    rows: tuple[int, ...] = ()
    experts: tuple[int, ...] | None = None
    scales: tuple[float, ...] | None = None

    @property
    def matrices(self):
        return len(self.rows) if self.experts is None else max(self.experts) + 1

    @cached_property
    def b(self):
        return self.rng.integers(-2, 3, (self.matrices, self.n, self.k))

    @cached_property
    def d(self):
        """Rows of groups that are switched off, and what lies between rows, stay poison."""
        return padded(np.full((self.m, self.n), np.nan, DTYPES[self.config.c_type]), np.nan)

    @property
    def ends(self):
        return np.cumsum(self.rows, dtype=np.int32)

    @property
    def exact(self):
        found, start = np.full((self.m, self.n), np.nan), 0
        for group, end in enumerate(self.ends):
            expert = group if self.experts is None else self.experts[group]
            if expert >= 0:
                scale = 1 if self.scales is None else self.scales[expert]
                found[start:end] = scale * (self.a[start:end].astype(float) @ self.b[expert].T.astype(float))
            start = end
        return found

    @cached_property
    def launch(self):
        experts = None if self.experts is None else np.array(self.experts, np.int32)
        scales = None if self.scales is None else np.array(self.scales, np.float32)
        arrays = (*self.maps, self.target, self.d, self.ends, experts, scales)
        return grouped.bind(*arrays, self.n, self.k_tiles, self.operands, **self.options)

    @property
    def options(self):
        x, y = self.config.cluster_shape[:2]
        return {**super().options, "grid": (x * (self.sms // (x * y)), y, 1)}


@dataclass(eq=False)
class Blockwise(Product):
    """Factors per row and K tile of A, per block and K tile of B: powers of two."""

    order: str = "C"

    def factors(self, *shape):
        return 2.0 ** self.rng.integers(-2, 3, (*self.batch, *shape))

    @cached_property
    def a_scales(self):
        return self.factors(self.k_tiles, self.m)

    @cached_property
    def b_scales(self):
        return self.factors(ceil(self.n, self.config.scale_granularity), self.k_tiles)

    @property
    def parts(self):
        """The scaled product of each K tile."""
        for tile in range(self.k_tiles):
            part = np.s_[..., 128 * tile : 128 * tile + 128]
            product = self.a[part].astype(float) @ np.swapaxes(self.b[part], -1, -2).astype(float)
            columns = np.repeat(self.b_scales[..., tile], self.config.scale_granularity, -1)[..., None, : self.n]
            yield product, self.a_scales[..., tile, :, None] * columns

    @property
    def exact(self):
        return sum(product * factors for product, factors in self.parts)

    @cached_property
    def launch(self):
        dtype = DTYPES[self.config.scale_type]
        of_rows = self.boxed(padded(self.a_scales.astype(dtype), np.nan), (1, self.config.BM))
        of_columns = np.asarray(self.b_scales.astype(dtype), order=self.order)
        given = (*self.maps, of_rows, of_columns, self.target, self.m, self.n, *self.tiles, self.k_tiles)
        return blockwise_fp8.bind(*given, self.operands, **self.options)


def product(m, n, k, *, batch=(), epilogue=None, operands=None, sms=SMS, **fields):
    return Product(m, n, k, HopperConfig(**fields), batch, epilogue or Epilogue(), operands or {}, sms)


def streamed(m, n, k, *, batch=(), epilogue=None, operands=None, sms=SMS, **fields):
    config = HopperConfig(stream_k=True, **fields)
    return Streamed(m, n, k, config, batch, epilogue or Epilogue(), operands or {}, sms)


def grouped_product(rows, n, k, *, experts=None, scales=None, epilogue=None, operands=None, **fields):
    config = HopperConfig(**fields)
    return Grouped(
        sum(rows), n, k, config, (), epilogue or Epilogue(), operands or {}, rows=rows, experts=experts, scales=scales
    )


def blockwise(m, n, k, *, batch=(), epilogue=None, operands=None, order="C", sms=SMS, **fields):
    config = HopperBlockwiseConfig(**fields)
    return Blockwise(m, n, k, config, batch, epilogue or Epilogue(), operands or {}, sms, order=order)
