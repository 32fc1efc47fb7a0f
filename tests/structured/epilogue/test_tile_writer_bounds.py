"""Absolute rows with a bound that the tensor map does not know: rows beyond it belong to another group."""

from __future__ import annotations

import numpy as np
import pytest
from tests.structured.writing import (
    LAYOUTS,
    SCHEDULES,
    THREADS,
    accumulator,
    aligned,
    assemble,
    c_map,
    config_of,
    no_options,
    tiles_of,
    user,
    writing,
)

from warploom import TraceError, launch
from warploom.structured import Epilogue, StagedOutput

SCALE = 2.0


def absolute(writer, stage, tile, shape, operands):
    m, n = tile[0] * writer.BM, tile[1] * writer.MMA_N
    m, n = (tile[1] * writer.MMA_N, tile[0] * writer.BM) if writer.transpose_c else (m, n)
    first, end = operands["bounds"][0], operands["bounds"][1]
    writer.write_absolute_with_bounds_check(stage, first + m, n, end, SCALE, operands["out"], n_end=shape[1])


def run(config, rows, n, *, start=5, tma=True, schedule="eager"):
    """Write `rows` rows from a start in the midst of others; gives all of C, and what must be there."""
    total = start + rows + 40
    sums = accumulator(config, rows, n, -3, 4)
    d, whole = aligned((total, n), config.c_type)
    bounds = np.array([start, start + rows], np.int32)
    bound = writing.bind(
        sums,
        c_map(config, d) if tma else None,
        d,
        {"out": d, "bounds": bounds},
        total,
        n,
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        config=config,
        tiles=tiles_of(config, rows, n),
        body=absolute,
        options=no_options,
    )
    launch(bound, schedule=schedule)
    expected = np.full(whole.shape, np.nan, np.float32)
    expected[start : start + rows, :n] = SCALE * user(config, sums, rows, n)
    np.testing.assert_array_equal(whole.astype(np.float32), expected)
    return bound


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rows_of_other_tiles_are_not_written(layout, swapped):
    config = config_of(layout, swapped=swapped)
    tokens = config.MMA_N if swapped else config.BM
    run(config, tokens + 3, 56)


@pytest.mark.parametrize("c_type", ["f16", "f32", "e4m3", "e5m2"])
@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
def test_every_type_is_put_back_in_order(swapped, c_type):
    assemble(run(config_of((64, 16, 1), swapped=swapped, c_type=c_type), 70, 41))


@pytest.mark.parametrize("rows", [1, 7, 63, 64, 65], ids=str)
@pytest.mark.parametrize("tma", [True, False])
def test_one_row_and_whole_tiles(rows, tma):
    run(config_of((64, 32, 1)), rows, 37, tma=tma)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_stores_by_threads_and_by_tma_share_the_buffers(buffers, schedule):
    swapped = buffers == 3
    run(config_of((64, 40, 1), num_output_stages=buffers, swapped=swapped), 70, 100, schedule=schedule)


def test_a_staged_output_needs_its_array():
    config = config_of(next(iter(LAYOUTS)))
    d, _ = aligned((128, 64), config.c_type)
    kept, _ = aligned((128, 64), config.c_type)
    epilogue = Epilogue(outputs=("pre_activation",))

    def options(operands):
        return {"outputs": {"pre_activation": StagedOutput(operands["kept"], config.c_type)}, "epilogue": epilogue}

    bounds = np.array([0, 128], np.int32)
    with pytest.raises(TraceError, match="a staged output of a grouped GEMM needs its array too"):
        writing.bind(
            accumulator(config, 128, 64),
            c_map(config, d),
            d,
            {"out": d, "bounds": bounds, "kept": c_map(config, kept)},
            128,
            64,
            grid=(1, 1, 1),
            block=(THREADS, 1, 1),
            config=config,
            tiles=tiles_of(config, 128, 64),
            body=absolute,
            options=options,
        )
