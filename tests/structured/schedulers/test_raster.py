"""Rasters are bijections of any grid, are what the specification lists, and are the same on the device."""

from __future__ import annotations

import numpy as np
import pytest
from tests.trace.harness import run

from warploom.structured import RasterOrder
from warploom.structured.schedulers.raster import linear_raster, raster
from warploom.trace import Array, kernel, s32, thread, u32, when

SIZES = range(1, 20)
SWIZZLES = (0, 1, 2, 4, 8)
GOLDEN = {
    (0, 0): (0, 0), (1, 0): (0, 1), (2, 0): (1, 0), (3, 0): (1, 1), (0, 1): (2, 0),
    (1, 1): (2, 1), (0, 2): (3, 2), (1, 2): (3, 3), (0, 3): (1, 2), (3, 3): (0, 3),
}  # fmt: skip
"""Along m, 4 × 4 clusters, block swizzle 2."""


def places(rows, columns):
    return [(m, n) for m in range(rows) for n in range(columns)]


def test_the_listed_places_of_a_block_swizzle():
    assert {at: raster(*at, (4, 4), "along_m", 2) for at in GOLDEN} == GOLDEN


@pytest.mark.parametrize("order", list(RasterOrder))
@pytest.mark.parametrize("size", SWIZZLES)
def test_every_place_is_reached_once(order, size):
    for rows in SIZES:
        for columns in SIZES:
            reached = {raster(m, n, (rows, columns), order, size) for m, n in places(rows, columns)}
            assert reached == set(places(rows, columns)), (rows, columns)


def test_along_n_turns_a_square_over():
    assert all(raster(m, n, (7, 7), "along_n") == (n, m) for m, n in places(7, 7))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_block_swizzle_keeps_clusters_that_run_together_in_few_columns(size):
    """The first `size` rows of blocks in the order of launching are in one block of columns."""
    launched = [(m, n) for n in range(16) for m in range(16)]
    for start in range(0, 256, 16 * size):
        columns = {raster(m, n, (16, 16), "along_m", size)[1] for m, n in launched[start : start + 16 * size]}
        assert max(columns) - min(columns) == size - 1


@pytest.mark.parametrize("swizzle_size", [0, 1, 2, 3, 5, 16, 40])
def test_a_linear_raster_reaches_every_place_once(swizzle_size):
    for rows in SIZES:
        for columns in SIZES:
            walked = [linear_raster(index, (rows, columns), swizzle_size) for index in range(rows * columns)]
            assert sorted(walked) == places(rows, columns)
            supergroups = [m // swizzle_size if swizzle_size else 0 for m, _ in walked]
            assert supergroups == sorted(supergroups)
            if not swizzle_size or swizzle_size >= rows:
                assert walked == [(m, n) for n in range(columns) for m in range(rows)]


@pytest.mark.parametrize("order", list(RasterOrder))
@pytest.mark.parametrize("size", SWIZZLES)
def test_the_device_computes_what_python_computes(order, size):
    rng = np.random.default_rng()
    rows, columns = (int(x) for x in rng.integers(1, 20, 2))
    out = np.full((rows * columns, 4), -1, np.int32)

    @kernel(target="sm_100a")
    def rasters(out: Array[s32], rows: s32, columns: s32, *, swizzle_size: int):
        index, grid = thread(), (rows.to(u32), columns.to(u32))
        with when(index < grid[0] * grid[1]):
            found = raster(index % grid[0], index // grid[0], grid, order, size) + linear_raster(
                index, grid, swizzle_size
            )
            for place, value in enumerate(found):
                out[index, place] = value.to(s32)

    run(rasters, out, rows, columns, block=(384, 1, 1), swizzle_size=size)
    for index, found in enumerate(out):
        at = raster(index % rows, index // rows, (rows, columns), order, size)
        assert tuple(found) == at + linear_raster(index, (rows, columns), size), (rows, columns)
