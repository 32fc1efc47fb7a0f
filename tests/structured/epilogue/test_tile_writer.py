"""The tile writer: every layout, type and orientation, with TMA and without, and its derived members."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.structured.writing import LAYOUTS, NUMPY, ONE_OF_EACH, PAIRS, SCHEDULES, assemble, config_of, opcodes, run

from warploom.diagnostics import TraceError
from warploom.hardware.swizzles import SWIZZLES
from warploom.structured import (
    EpilogueConfig,
    OutputPipelineConfig,
    OutputStage,
    SMemTileArray2DRowMajor,
    TileWriter,
    TMATensorTile,
    c_box,
)
from warploom.structured.epilogue.staging import SharedLayout, block_width
from warploom.structured.epilogue.tile_store import boxes_of
from warploom.trace import shared, warp_index

WIDE = [(256, 256, 2), (128, 248, 1), (128, 256, 2)]


def sizes(config):
    """Two tiles each way, the last ones cut, in C's rows and columns."""
    rows, columns = config.BM + 41, config.MMA_N + 5
    return (columns, rows) if config.AB_swapped else (rows, columns)


@pytest.mark.parametrize(
    ("layout", "c_type"),
    [*((each, "bf16") for each in LAYOUTS), *itertools.product(ONE_OF_EACH, ["f32", "e4m3"])],
    ids=str,
)
@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
def test_tma_stores_every_element_at_its_position(layout, swapped, c_type):
    config = config_of(layout, swapped=swapped, c_type=c_type)
    if c_type == "e4m3" and config.stageN < 16 and not swapped:
        pytest.skip("rows of eight bytes are too short for TMA")
    run(config, *sizes(config)).check()


@pytest.mark.parametrize("c_type", ["f16", "e5m2"])
@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
def test_the_other_types(swapped, c_type):
    config = config_of((128, 32, 1), swapped=swapped, c_type=c_type)
    written = run(config, *sizes(config))
    written.check()
    assemble(written.launch)


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("layout", WIDE, ids=str)
def test_wide_tiles(layout, swapped):
    config = config_of(layout, swapped=swapped)
    written = run(config, *((config.MMA_N, config.BM) if swapped else (config.BM, config.MMA_N)))
    written.check()
    assemble(written.launch)


@pytest.mark.parametrize("c_type", list(NUMPY))
@pytest.mark.parametrize(("layout", "swapped"), PAIRS)
def test_registers_store_every_type(layout, swapped, c_type):
    run(config_of(layout, swapped=swapped, c_type=c_type), 37, 53, tma=False).check()


@pytest.mark.parametrize("size", [(1, 1), (1, 63), (129, 1), (67, 65)], ids=str)
@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
def test_registers_store_rows_of_any_length(swapped, size):
    run(config_of((64, 24, 1), swapped=swapped), *size, tma=False).check()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_buffers_are_not_written_before_they_are_read(buffers, schedule):
    config = config_of((64, 40, 1), num_output_stages=buffers)  # five subtiles: not a multiple of two or three buffers
    run(config, 70, 120, schedule=schedule).check()


@pytest.mark.parametrize(("shape", "swizzle"), [((128, 64), "64B"), ((128, 32), "32B"), ((128, 16), "32B")], ids=str)
def test_subtiles_may_be_wider_than_a_swizzle(shape, swizzle):
    config = config_of((128, 64, 1), output_tile_shape=shape, c_swizzle=swizzle)
    run(config, 131, 70).check()


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("tma", [True, False])
def test_one_of_several_matrices_scaled(tma, swapped):
    config = config_of((64, 16, 1), swapped=swapped)
    m, n = sizes(config)

    def body(writer, stage, tile, shape, operands):
        writer.write_batched(stage, (*tile, 2), shape, alpha=operands["alpha"])

    written = run(config, m, n, body=body, operands={"alpha": 0.5}, tma=tma, shape=(4, m, n))
    expected = np.full((4, m, n), np.nan, np.float32)
    expected[2] = written.sums * 0.5
    written.check(expected)


@settings(max_examples=15, deadline=None)
@given(
    shape=st.sampled_from([(64, 1), (128, 1), (128, 2), (256, 2)]),
    columns=st.integers(1, 12),
    swapped=st.booleans(),
    c_type=st.sampled_from(list(NUMPY)),
    register=st.booleans(),
    buffers=st.integers(1, 3),
    size=st.tuples(st.integers(1, 140), st.integers(1, 140)),
    schedule=st.sampled_from(SCHEDULES),
)
def test_any_configuration_writes_any_shape(shape, columns, swapped, c_type, register, buffers, size, schedule):
    m, group = shape
    fields = {"register_based_epilogue": register, "num_output_stages": buffers}
    config = config_of((m, 8 * group * columns, group), swapped=swapped, c_type=c_type, **fields)
    short = not swapped and config.stageN * config.c_bytes < 16
    run(config, *size, tma=not short, schedule=schedule).check()


def geometries():
    """Every accumulator layout with every legal width, in both orientations, for types of one, two and four bytes."""
    for (m, group), swapped, c_type in itertools.product(
        [(64, 1), (128, 1), (128, 2), (256, 2)], [False, True], ["e4m3", "bf16", "f32"]
    ):
        for n in range(8 * group, 257, 8 * group):
            config = config_of((m, n, group), swapped=swapped, c_type=c_type)
            if config.accumulator_columns % config.stageN == 0:
                yield config


def test_boxes_cover_every_tile_exactly_once():
    count = 0
    for config in geometries():
        epc, box = config.epilogue, c_box(config)
        rows, columns = config.output_tile_shape
        width = block_width(config.c_type, config.c_swizzle, config.BM if config.AB_swapped else columns)
        layout = SharedLayout(config.c_type, rows, columns, width, SWIZZLES[config.c_swizzle], config.AB_swapped)
        covered = np.zeros((config.BM, config.MMA_N), int)
        extent = box[::-1] if config.AB_swapped else box
        for strip in range(epc.num_stages):
            boxes = boxes_of(layout, box, epc, strip * epc.stageN)
            for part in boxes:
                covered[part.row : part.row + extent[0], part.column : part.column + extent[1]] += 1
            starts = sorted(part.offset for part in boxes)
            step = box[0] * box[1] * config.c_bytes
            assert starts == list(range(0, layout.bytes, step))
        assert (covered == 1).all(), config
        count += 1
    assert count > 300


def layouts_of(**fields):
    """A subtile's layout in shared memory as a set of byte addresses, by accumulator row and column."""
    layout = SharedLayout(**fields)
    shape = (layout.columns, layout.rows) if layout.transposed else (layout.rows, layout.columns)
    rows, columns = np.indices(shape)
    where = layout.of_accumulator(rows, columns)
    return layout.swizzle.apply(layout.offset(*where)), layout


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "width", "swizzle"), [("bf16", 64, "128B"), ("bf16", 16, "32B"), ("f32", 16, "64B"), ("e4m3", 16, "none")]
)
def test_steps_from_a_lanes_address_match_the_tma_layout(dtype, width, swizzle, transposed):
    shape = {"rows": 32, "columns": 128} if transposed else {"rows": 128, "columns": width}
    places, layout = layouts_of(dtype=dtype, **shape, width=width, swizzle=SWIZZLES[swizzle], transposed=transposed)
    assert len(np.unique(places)) == places.size
    for lane, warp in itertools.product(range(32), range(4)):
        first = places[32 * warp + lane // 4, 2 * (lane % 4)]
        for row, column in itertools.product((0, 8, 16, 24), range(0, places.shape[1] - 8, 8)):
            changed, added = layout.step(row, column)
            assert (first ^ changed) + added == places[32 * warp + lane // 4 + row, 2 * (lane % 4) + column]


MEMBERS = {
    (256, 256, 2, False, "bf16"): (64, 8, 32, 4, True),
    (128, 256, 2, False, "bf16"): (64, 8, 32, 2, True),
    (128, 256, 2, True, "bf16"): (32, 4, 16, 4, True),
    (64, 88, 1, False, "bf16"): (8, 1, 4, 11, False),
    (256, 256, 2, True, "f32"): (16, 2, 8, 16, True),
    (64, 80, 1, False, "f32"): (16, 2, 8, 5, False),
    (256, 256, 2, False, "e4m3"): (16, 2, 8, 16, True),
    (128, 64, 2, False, "e4m3"): (16, 2, 8, 2, True),
}
"""stageN, rep, rep_frag_size, num_stages and is_lower_frag_required (facts of the reference, its §4.1 and §12.1)."""


@pytest.mark.parametrize("case", MEMBERS, ids=str)
def test_members(case):
    m, n, group, swapped, c_type = case
    config = config_of((m, n, group), swapped=swapped, c_type=c_type)
    seen = []

    def body(writer, stage, tile, shape, operands):
        seen.append(writer)
        tiles = writer.CTileArray(name="others")
        assert isinstance(tiles, SMemTileArray2DRowMajor)
        assert (len(tiles), *tiles.shape) == (2, *config.output_tile_shape)
        writer.write(stage, tile, shape)

    run(config, 16, 16, body=body, tiles=(1, 1))
    (writer,) = seen
    names = ("stageN", "rep", "rep_frag_size", "num_stages", "is_lower_frag_required")
    assert tuple(getattr(writer, name) for name in names) == MEMBERS[case]
    assert (m // group, n // group, m, n) == (writer.BM, writer.BN, writer.MMA_M, writer.MMA_N)
    assert (writer.data_paths, writer.bits, writer.fragment_size) == (16, 256, 4)
    assert (writer.cta_group, writer.num_accum_pipeline_stages, writer.stage_stride_cols) == (group, 2, 256)
    assert writer.N_dim == (0 if swapped else 1)
    assert writer.stage_contiguous_size == config.output_tile_shape[1]
    assert writer.accum_tile_layout == (m // group, writer.stageN)
    assert writer.c_smem_layout == config.output_tile_shape
    array = writer.AccumTmemArray
    assert (array.dtype, array.shape, len(array), array.cta_group) == (
        "f32",
        (m // group, writer.stageN),
        writer.num_stages,
        group,
    )
    assert isinstance(writer.epc, EpilogueConfig)
    assert writer.opc == OutputPipelineConfig(2, 256, group)
    assert (writer.Stage, writer.TmaOp, writer.TmaOpPtr) == (OutputStage, TMATensorTile, TMATensorTile)
    assert (writer.c_rank, writer.c_desc_shape, writer.c_tile_shape) == (2, c_box(config), config.output_tile_shape)
    assert writer.get_epilogue_dtype() == writer.epilogue_dtype == "f32"
    assert (writer.num_output_stages, writer.num_output_warps) == (2, 4)
    assert (writer.a_type, writer.c_type, writer.accum_type) == ("bf16", c_type, "f32")
    assert (writer.batched, writer.problem_n, writer.register_based_epilogue) == (False, 0, True)


def test_fences_waits_and_barriers_are_in_order():
    config = config_of((128, 128, 1))
    names = opcodes(run(config, 128, 128, tiles=(1, 1)).launch)
    strips = config.epilogue.num_stages
    assert names.count("tcgen05.wait::ld.sync.aligned") == strips
    assert names.count("stmatrix.sync.aligned.m8n8.x4.shared.b16") == 128 * 128 // 128 // 8
    stores = [at for at, name in enumerate(names) if name.startswith("cp.async.bulk.tensor.2d.global")]
    assert len(stores) == strips
    for at in stores:
        before = names[:at]
        barrier = len(before) - 1 - before[::-1].index("bar.sync")
        fence = len(before) - 1 - before[::-1].index("fence.proxy.async.shared::cta")
        written = len(before) - 1 - before[::-1].index("stmatrix.sync.aligned.m8n8.x4.shared.b16")
        assert written < fence < barrier
    ids = [
        op.operands[0].value
        for op in run(config, 128, 128, tiles=(1, 1)).launch.program.kernels[0].instructions
        if op.opcode == "bar.sync"
    ]
    assert ids.count(0) == 2, "the CTA's own barrier is left to the CTA: start-up and the allocation"


def fails(config, *, tma=True, match, **options):
    def given(operands):
        return {name: value() if callable(value) else value for name, value in options.items()}

    with pytest.raises(TraceError, match=match) as found:
        run(config, 64, 64, options=given, tma=tma, tiles=(1, 1))
    return str(found.value)


def test_all_problems_of_a_writer_are_reported_together():
    text = fails(config_of((128, 64, 1)), match="BAD_WRITER", c_type="f32", mma_shape=(64, 64, 16), colour="red")
    assert "3 problem" in text
    assert "c_type is f32; the configuration says bf16" in text
    assert "unknown keyword `colour`" in text


def test_shapes_must_fit_each_other():
    config = config_of((128, 48, 1), output_tile_shape=(64, 32), c_swizzle="64B")
    text = fails(config, tma=False, match="BAD_WRITER")
    assert "subtiles of 32 columns do not divide an accumulator of 48" in text
    assert "an accumulator has 128 rows" in text


@pytest.mark.parametrize(("columns", "why"), [(24, "a subtile that is loaded from TMEM"), (12, "not a multiple of 8")])
def test_subtiles_without_a_matching_load_are_rejected(columns, why):
    config = config_of((128, 2 * columns, 1), output_tile_shape=(128, columns), c_swizzle="none")
    assert f"stageN is {columns}" in (text := fails(config, tma=False, match="BAD_WRITER"))
    assert why in text


def test_buffers_that_do_not_fit_are_refused():
    def tiles():
        return shared("bf16", (2, 64, 64), name="c_tiles", align=1024)

    assert "C is staged in (2, 128, 64)" in fails(config_of((128, 64, 1)), match="BAD_WRITER", c_tiles=tiles)


def test_buffers_of_the_author_are_used():
    config = config_of((128, 64, 1))

    def body(writer, stage, tile, shape, operands):
        writer.write(stage, tile, shape, c_tiles=tiles[0], elect_one_warp=writer.role.warp == 0)

    tiles = []

    def options(operands):
        tiles.append(shared("bf16", (2, 128, 64), name="mine", align=1024))
        return {"c_tiles": tiles[0]}

    written = run(config, 70, 96, body=body, options=options)
    written.check()
    assert written.launch.shared_bytes < 2 * 128 * 64 * 2 + 1024, "no others were made"


def test_the_electing_warp_is_checked():
    config = config_of((128, 64, 1))

    def by(elected):
        def body(writer, stage, tile, shape, operands):
            writer.write(stage, tile, shape, elect_one_warp=elected(writer))

        return body

    for right in (lambda writer: writer.role.warp == 0, lambda writer: warp_index() == 0):
        run(config, 64, 64, body=by(right), tiles=(1, 1)).check()
    for wrong in (lambda writer: "banana", lambda writer: writer.role.warp == 1, lambda writer: False):
        with pytest.raises(TraceError, match=r"elect_one_warp is .* the first warp of the role") as found:
            run(config, 64, 64, body=by(wrong), tiles=(1, 1))
        assert found.value.loc.file == __file__


def test_arguments_in_the_order_of_the_page():
    config = config_of((128, 64, 1))

    def write(writer, tiles, stage, tile, shape):
        writer.write(tiles, stage, tile, shape, writer.role.warp == 0)

    def write_batched(writer, tiles, stage, tile, shape):
        writer.write_batched(tiles, stage, (*tile, 0), shape, 1.0)

    def write_absolute(writer, tiles, stage, tile, shape):
        place = (tile[0] * config.BM, tile[1] * config.MMA_N, shape[0])
        writer.write_absolute_with_bounds_check(tiles, stage, *place, 1.0, targets[0])

    def options(operands):
        targets[:] = [operands["target"]]
        return {"shape": (128, 96)}

    targets = []
    for method in (write, write_batched, write_absolute):
        arrays = []

        def body(writer, stage, tile, shape, operands, method=method, arrays=arrays):
            if not arrays:
                arrays.append(writer.CTileArray(name="mine"))
            method(writer, arrays[0], stage, tile, shape)

        target = np.zeros((128, 96), NUMPY["bf16"])
        run(config, 128, 96, body=body, options=options, operands={"target": target}).check()


def test_an_argument_given_by_position_and_by_name():
    config = config_of((128, 64, 1))

    def body(writer, stage, tile, shape, operands):
        tiles = writer.CTileArray(name="mine")
        writer.write(tiles, stage, tile, shape, shape=shape)

    with pytest.raises(TraceError, match="shape given twice; the page's order is c_tiles, stage, tile_coord, shape"):
        run(config, 64, 64, body=body, tiles=(1, 1))


def test_a_writer_from_keywords_alone():
    config = config_of((128, 48, 2), swapped=True)
    seen = []

    def body(writer, stage, tile, shape, operands):
        names = ("a_type", "accum_type", "block_tile_shape", "mma_shape", "opc", "c_swizzle", "transpose_c", "c_type")
        names += ("c_smem_dim0", "c_smem_dim1", "num_output_stages", "register_based_epilogue", "batched", "problem_n")
        same = {name: getattr(writer, name) for name in names}
        other = TileWriter(writer.c_tma_op, role=writer.role, **same)
        seen.append(other)
        other.write(stage, tile, shape)

    run(config, 51, 70, body=body).check()
    assert seen


def test_derived_keywords_may_be_given_and_are_checked():
    config = config_of((128, 64, 1))
    same = {"num_output_warps": 4, "c_rank": 2, "c_tile_shape": (128, 64), "c_desc_shape": c_box(config)}
    run(config, 64, 64, options=lambda operands: same).check()
    text = fails(config, match="BAD_WRITER", c_rank=3, c_desc_shape=(64, 64), batched=True)
    assert "c_rank is 3; C's tensor map says 2" in text
    assert "c_desc_shape is (64, 64)" in text
    assert "C is batched, but its tensor map has 2 axes" in text
    assert "num_output_warps is 3" in fails(config, match="BAD_WRITER", num_output_warps=3)


def test_the_shape_is_needed_where_something_depends_on_it():
    def body(writer, stage, tile, shape, operands):
        writer.write(stage, tile)

    config = config_of((64, 16, 1))
    run(config, 50, 24, body=body).check()
    with pytest.raises(TraceError, match="C's shape is not known"):
        run(config, 50, 24, body=body, tma=False)
    run(config, 50, 24, body=body, tma=False, options=lambda operands: {"shape": (50, 24)}).check()
