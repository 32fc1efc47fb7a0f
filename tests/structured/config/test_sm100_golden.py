"""Derived values of known configurations: tables of the reference system, and numbers computed by hand."""

from __future__ import annotations

import pytest

from warploom.heuristics.sm100 import choose_config
from warploom.structured.config import BlockwiseFP8MatmulConfig, MatmulConfig, violations

# a, c | mma shape | cta_group | swapped | tile | output tile | C swizzle | stages (as many as fit) | subtiles | epilogue stages | its swizzle
DEFAULTS = """
bf16 bf16 64x8x16    1 N 64,8,64     64x8   none 16 24 1  4 none
bf16 bf16 64x8x16    1 Y 64,8,64     8x64   128B 16 24 1  2 128B
bf16 bf16 64x88x16   1 N 64,88,64    64x8   none 11 11 11 4 none
bf16 bf16 64x88x16   1 Y 64,88,64    8x64   128B 11 11 11 2 128B
bf16 bf16 128x128x16 1 N 128,128,64  128x64 128B 6  6  2  2 128B
bf16 bf16 128x128x16 1 Y 128,128,64  32x128 128B 6  6  4  2 128B
bf16 bf16 128x256x16 1 N 128,256,64  128x64 128B 4  4  4  2 128B
bf16 bf16 128x256x16 1 Y 128,256,64  32x128 128B 4  4  8  2 128B
bf16 bf16 128x16x16  2 N 64,8,64     128x8  none 16 24 1  4 none
bf16 bf16 128x16x16  2 Y 64,8,64     8x128  128B 16 24 1  2 128B
bf16 bf16 128x256x16 2 N 64,128,64   128x64 128B 8  8  2  4 128B
bf16 bf16 128x256x16 2 Y 64,128,64   32x128 128B 8  8  4  2 128B
bf16 bf16 256x128x16 2 N 128,64,64   128x64 128B 8  8  2  4 128B
bf16 bf16 256x256x16 2 N 128,128,64  128x64 128B 6  6  4  1 128B
bf16 bf16 256x256x16 2 Y 128,128,64  32x128 128B 6  6  8  2 128B
e4m3 bf16 256x256x32 2 N 128,128,128 128x64 128B 6  6  4  1 128B
e4m3 bf16 128x144x32 2 N 64,72,128   128x8  none 13 13 9  4 none
f32  f32  256x256x8  2 N 128,128,32  128x32 128B 6  6  8  1 128B
f32  f32  256x256x8  2 Y 128,128,32  16x128 128B 6  6  16 2 128B
f32  f32  64x80x8    1 N 64,80,32    64x16  64B  12 12 5  4 64B
bf16 e4m3 256x256x16 2 N 128,128,64  128x16 none 6  6  16 1 none
bf16 e4m3 128x64x16  2 N 64,32,64    128x16 none 16 18 2  4 none
"""
TWINS = {"bf16": "f16", "e4m3": "e5m2", "f32": "tf32"}
"""Types of equal size have equal derived values."""


def numbers(text, separator):
    return tuple(int(part) for part in text.split(separator))


def rows(table):
    lines = [line.split() for line in table.strip().splitlines()]
    return pytest.mark.parametrize("row", lines, ids=["-".join(line[:5]) for line in lines])


@rows(DEFAULTS)
@pytest.mark.parametrize("twin", [False, True])
def test_defaults(row, twin):
    a, c, shape, group, swapped, tile, output, c_swizzle, stages, fitting, subtiles, epilogue, epilogue_swizzle = row
    config = MatmulConfig(
        a_type=TWINS[a] if twin else a,
        c_type={"bf16": "f16", "e4m3": "e5m2"}.get(c, c) if twin else c,
        mma_shape=numbers(shape, "x"),
        cta_group=int(group),
        AB_swapped=swapped == "Y",
    )
    assert config.block_tile_shape == numbers(tile, ",")
    assert config.output_tile_shape == numbers(output, "x")
    assert (config.c_swizzle, config.epi_load_swizzle) == (c_swizzle, epilogue_swizzle)
    assert (config.num_pipeline_stages, config.most_stages()) == (int(stages), int(fitting))
    assert config.epilogue.num_stages == int(subtiles)
    assert config.num_tma_epilogue_pipeline_stages == int(epilogue)
    assert (config.a_swizzle, config.b_swizzle) == ("128B", "128B")
    assert config.output.stage_stride_cols == 256
    assert config.threads == 224
    assert violations(config) == []


@pytest.mark.parametrize(
    ("shape", "cta_group", "swapped", "vector", "without", "stages", "epilogue_stages"),
    [
        ((256, 256, 16), 2, False, False, 6, 5, 1),
        ((128, 128, 16), 1, False, False, 6, 5, 2),
        ((64, 64, 16), 1, False, False, 13, 11, 4),
        ((256, 128, 16), 2, True, False, 8, 6, 2),
        ((256, 256, 16), 2, False, True, 6, 6, 2),
        ((128, 128, 16), 1, True, True, 6, 6, 2),
    ],
)
def test_an_epilogue_load_takes_stages(shape, cta_group, swapped, vector, without, stages, epilogue_stages):
    plain = MatmulConfig(mma_shape=shape, cta_group=cta_group, AB_swapped=swapped)
    loading = MatmulConfig(
        mma_shape=shape,
        cta_group=cta_group,
        AB_swapped=swapped,
        use_tma_epilogue_load=True,
        epilogue_is_1d=vector,
    )
    assert plain.num_pipeline_stages == without
    assert loading.num_pipeline_stages == stages
    assert loading.num_tma_epilogue_pipeline_stages == epilogue_stages
    assert loading.threads == 256
    assert violations(loading) == []


@pytest.mark.parametrize(
    ("shape", "cta_group", "stages"), [((64, 16, 32), 1, 16), ((128, 128, 32), 1, 5), ((256, 256, 32), 2, 5)]
)
def test_scale_factors_of_blockwise_fp8_take_stages(shape, cta_group, stages):
    config = BlockwiseFP8MatmulConfig(mma_shape=shape, cta_group=cta_group)
    assert config.num_pipeline_stages == stages
    assert config.threads == 224


# a, c | M, N, K | mma | cta_group | swapped | k group | block swizzle | waves | clc | accumulators | stages | prefetched
CHOICES = """
bf16 bf16 8,4096,4096    64x8    1 Y 4 0 1  0 1 16 4
bf16 bf16 16,7168,2048   64x16   1 Y 4 0 1  0 1 16 4
bf16 bf16 28,3136,5120   64x16   1 Y 4 0 1  0 1 16 4
bf16 bf16 64,4096,4096   128x32  2 Y 2 0 1  0 1 16 4
bf16 bf16 192,2048,2048  128x48  2 Y 2 0 1  0 1 16 0
bf16 bf16 512,4096,1024  256x112 2 N 1 0 1  0 1 9  0
bf16 bf16 1024,8192,7168 256x224 2 N 1 0 2  2 2 7  0
bf16 bf16 4096,4096,4096 256x240 2 N 1 8 4  2 2 7  0
bf16 bf16 8192,8192,8192 256x256 2 N 1 8 14 2 2 6  0
e4m3 bf16 4096,7168,2048 256x224 2 N 1 8 7  2 2 7  0
bf16 e4m3 8,4096,4096    64x16   1 Y 4 0 1  0 1 16 4
f32  f32  512,2048,2048  128x128 2 N 1 0 1  0 1 12 0
"""


@rows(CHOICES)
def test_choices(row):
    a, c, problem, shape, group, swapped, k_group, swizzle, waves, clc, accumulators, stages, prefetched = row
    m, n, k = numbers(problem, ",")
    config = choose_config(m, n, k, a_type=a, c_type=c, sms=148)
    assert config.mma_shape[:2] == numbers(shape, "x")
    assert (config.cta_group, config.AB_swapped) == (int(group), swapped == "Y")
    assert (config.k_group_size, config.block_swizzle_size) == (int(k_group), int(swizzle))
    assert (config.num_clc_pipeline_stages, config.num_accum_pipeline_stages) == (int(clc), int(accumulators))
    assert (config.num_pipeline_stages, config.prefetch_tiles_n) == (int(stages), int(prefetched))
    kernel_m, kernel_n = (n, m) if config.AB_swapped else (m, n)
    tiles = -(-kernel_m // config.MMA_M) * -(-kernel_n // config.MMA_N)
    assert -(-tiles // (148 // config.cta_group)) == int(waves)
    assert violations(config) == []
