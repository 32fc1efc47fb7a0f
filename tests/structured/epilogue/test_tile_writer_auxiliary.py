"""Epilogue inputs that a separate role loads: residual subtiles, whole tiles and rows, added before the rounding."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tests.structured.writing import (
    NUMPY,
    ONE_OF_EACH,
    PAIRS,
    SCHEDULES,
    Written,
    accumulator,
    accumulators,
    aligned,
    allocate,
    assemble,
    c_map,
    config_of,
    deallocate,
    tiles_of,
    user,
)

from warploom import TensorMap, launch
from warploom.diagnostics import TraceError
from warploom.structured import (
    AuxiliaryLayout,
    AuxiliaryTiles,
    Bytes,
    Epilogue,
    EveryThread,
    ProducerConsumerPipeline,
    TileWriter,
)
from warploom.trace import Array, kernel, lane, loop, s32, shared, u32, warp_roles, when

THREADS = 160
KINDS = ("residual", "subtiles", "tile", "bias")
BETA = -2.0


def swizzle_of(config, kind):
    return config.c_swizzle if kind == "residual" else config.epi_load_swizzle


def load_row(source, target, start, n):
    """A tile's part of a row, element by element."""
    for first in range(0, target.shape[0], 32):
        at = lane().to(s32) + first
        with when((at < target.shape[0]) & (start + at < n)):
            target[at] = source[start + at]


@kernel(target="sm_100a", maxnreg=232)
def streaming(sums: Array, c, source, m: s32, n: s32, *, config, tiles, kind, stages, options):
    """One warp loads what four others add."""
    roles = warp_roles(epilogue=4, load=1)
    role = roles.epilogue
    slot = shared(u32, 1, name="slot")
    writer = TileWriter(c, config, role=role, **options)
    signal = EveryThread(roles.load) if kind == "bias" else Bytes(roles.load)
    added = ProducerConsumerPipeline(stages, producer=signal, consumer=EveryThread(role), name="added")
    if kind == "bias":
        rows = shared(source.dtype, (stages, config.BM if config.AB_swapped else config.MMA_N), name="rows")
    else:
        given = {"dtype": config.c_type, "swizzle": swizzle_of(config, kind), "role": roles.load}
        held = AuxiliaryTiles(source, config.epilogue, kind, stages, **given)
    allocate(slot)
    with roles.load:
        for number in loop(tiles[0] * tiles[1]):
            tile = (number // tiles[1], number % tiles[1], 0)
            if kind == "bias":
                with added.produce() as stage:
                    start = tile[0] * config.BM if config.AB_swapped else tile[1] * config.MMA_N
                    load_row(source, rows[stage.index()], start, n)
            else:
                for strip, group in held.order:
                    with added.produce() as stage:
                        held.load(stage, SimpleNamespace(coord=tile), strip, group)
    with role:
        for tile, acc in accumulators(slot, sums, config, role, tiles):
            match kind:
                case "residual":
                    writer.write_with_residual(acc, held.tiles, added, BETA, tile, (m, n))
                case "subtiles":
                    elements = config.BM * config.stageN
                    writer.write_batched_with_tma_epilogue_load_strips(acc, added, held.tiles, elements, tile, (m, n))
                case "tile":
                    with added.consume() as stage:
                        writer.write_batched_with_tma_epilogue_load(acc, held.tiles[stage.index()], tile, (m, n))
                case "bias":
                    with added.consume() as stage:
                        writer.write_batched_with_1d_bias(acc, rows[stage.index()], tile, (m, n))
        deallocate(slot, writer.barrier)


def run(config, kind, m, n, *, stages=2, schedule="eager", epilogue=None):
    """Write all tiles; gives what was written, and what was to be added."""
    sums = accumulator(config, m, n)
    d, whole = aligned((m, n), config.c_type)
    source, _ = aligned((n,) if kind == "bias" else (m, n), config.c_type)
    source[...] = np.random.default_rng().integers(-3, 4, source.shape)
    given = source
    if kind != "bias":
        swizzle = swizzle_of(config, kind)
        box = AuxiliaryLayout(config.epilogue, config.c_type, kind, swizzle).box
        given = TensorMap(source, box=box, swizzle=swizzle)
    options = {} if epilogue is None else {"epilogue": epilogue}
    bound = streaming.bind(
        sums,
        c_map(config, d),
        given,
        m,
        n,
        grid=(1, 1, 1),
        block=(THREADS, 1, 1),
        config=config,
        tiles=tiles_of(config, m, n),
        kind=kind,
        stages=stages,
        options=options,
    )
    launch(bound, schedule=schedule)
    assert np.isnan(whole[..., n:].astype(np.float32)).all()
    return Written(d, user(config, sums, m, n), bound), source.astype(np.float32)


def sizes(config):
    rows, columns = config.BM + 9, config.MMA_N + 3
    return (columns, rows) if config.AB_swapped else (rows, columns)


def has_boxes(config, kind):
    """Return whether TMA can move the rows of C's subtiles, and of the source's."""
    long_enough = config.AB_swapped or config.stageN * config.c_bytes >= 16
    return long_enough and (kind != "tile" or config.AB_swapped or config.MMA_N * config.c_bytes % 16 == 0)


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("layout", ONE_OF_EACH, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_loaded_inputs_are_added(kind, layout, swapped):
    config = config_of(layout, swapped=swapped)
    written, source = run(config, kind, *sizes(config))
    written.check(written.sums + (BETA if kind == "residual" else 1) * source)


@pytest.mark.parametrize("c_type", ["f16", "f32", "e4m3"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_type(kind, c_type):
    for layout, swapped in [((128, 64, 2), False), ((64, 16, 1), True)]:
        config = config_of(layout, swapped=swapped, c_type=c_type)
        if not has_boxes(config, kind):
            continue
        written, source = run(config, kind, *sizes(config))
        written.check(written.sums + (BETA if kind == "residual" else 1) * source)
        assemble(written.launch)


@pytest.mark.parametrize(("stages", "schedule"), list(zip((1, 3, 1, 3), SCHEDULES, strict=True)))
@pytest.mark.parametrize("kind", ["residual", "subtiles"])
def test_any_number_of_stages_under_any_schedule(kind, stages, schedule):
    config = config_of((128, 96, 2))  # folded, three subtiles of sixteen columns in each half
    written, source = run(config, kind, 70, 200, stages=stages, schedule=schedule)
    written.check(written.sums + (BETA if kind == "residual" else 1) * source)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("register", [True, False], ids=["registers", "shared memory"])
def test_the_order_is_the_same_in_every_mode(register, kind):
    """function(activation(acc + bias)) + beta·residual: a row is a bias, everything else a residual."""

    def function(acc, at):
        return acc * 3.0 + at.row.to("f32")

    epilogue = Epilogue(activation="relu", function=function, beta=4.0)
    for layout, swapped in PAIRS:
        config = config_of(layout, swapped=swapped, c_type="f32", register_based_epilogue=register)
        written, source = run(config, kind, *sizes(config), epilogue=epilogue)
        bias, residual, beta = (source, 0, 4) if kind == "bias" else (0, source, BETA if kind == "residual" else 4)
        rows = np.arange(written.c.shape[0])[:, None]
        written.check(np.maximum(written.sums + bias, 0) * 3 + rows + beta * residual)


def test_results_are_rounded_once():
    """In bfloat16 257 + 3 would be 256 + 3, and the result 260 would be rounded from that."""
    config = config_of((64, 16, 1))
    written, source = run(config, "tile", 64, 16, epilogue=Epilogue(function=lambda acc, at: acc * 0.5 + 257.0))
    exact = written.sums * 0.5 + 257 + source
    written.check(exact)
    twice = (written.sums * 0.5 + 257).astype(NUMPY["bf16"]) + source.astype(NUMPY["bf16"])
    assert (twice.astype(np.float32) != written.c.astype(np.float32)).any()


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("layout", [(256, 256, 2), (128, 256, 2)], ids=str)
def test_subtiles_of_wide_tiles_assemble_without_spills(layout, swapped):
    config = config_of(layout, swapped=swapped)
    kind = "tile" if swapped else "subtiles"
    written, source = run(config, kind, 256, 256)
    written.check(written.sums + source)
    assemble(written.launch)


def test_a_wrong_number_of_elements_is_refused():
    config = config_of((64, 16, 1))

    def body(writer, stage, tile, shape, operands):
        writer.write_batched_with_tma_epilogue_load_strips(stage, None, writer.CTileArray(), 17, tile, shape)

    from tests.structured.writing import run as run_plain

    with pytest.raises(TraceError, match="epilogue_tile_elems is 17; a subtile has 1024"):
        run_plain(config, 16, 16, body=body)
