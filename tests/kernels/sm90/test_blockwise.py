"""Blockwise FP8 for Hopper: each K tile added with its own factors, against NumPy, to the bit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.assembly import assemble_ok, sass_of
from tests.kernels.hopper_problems import SCHEDULES, blockwise

from warploom.diagnostics import Diag, WarploomError
from warploom.runtime.toolchain.sass import SassInstruction
from warploom.runtime.toolchain.sass import read as read_sass
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue.epilogue import Epilogue, Operand

SHAPES = [
    {"tile": (128, 128)},
    {"tile": (128, 96), "cluster_shape": (2, 1, 1)},
    {"tile": (128, 72), "cluster_shape": (1, 2, 1)},
    {"tile": (256, 64), "cluster_shape": (1, 2, 1)},
    {"tile": (64, 72), "consumers": 1},
    {"tile": (256, 128), "num_output_stages": 1},
]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("fields", SHAPES)
def test_every_work_decomposition_under_every_schedule(fields, schedule, seed):
    blockwise(140, 200, 300, **fields).check(schedule, seed)


@pytest.mark.parametrize("columns", [8, 40, 80, 104, 120])
def test_a_tile_may_span_two_blocks_of_scales(columns):
    blockwise(17, 450, 130, tile=(64, columns), consumers=1).check()


@pytest.mark.parametrize(("granularity", "columns"), [(32, 128), (64, 80), (40, 96), (256, 96), (8, 64)])
def test_blocks_of_other_widths(granularity, columns):
    blockwise(65, 300, 130, tile=(128, columns), scale_granularity=granularity).check()


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 257, 127), (128, 128, 128), (129, 129, 129), (127, 63, 600), (257, 8, 16)]
)
@pytest.mark.parametrize("fields", [SHAPES[0], SHAPES[1], SHAPES[3]])
def test_awkward_sizes(m, n, k, fields):
    blockwise(m, n, k, **fields).check("lazy")


@pytest.mark.parametrize(("stages", "rows"), [(1, 256), (2, 256), (2, 128), (3, 128), (5, 128)])
def test_stages(stages, rows):
    blockwise(100, 72, 800, tile=(rows, 64), num_pipeline_stages=stages).check("random", stages)


@pytest.mark.parametrize("schedule", ["lazy", "random"])
@pytest.mark.parametrize("k_tiles", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "fields",
    [
        {"tile": (64, 40), "consumers": 1, "num_pipeline_stages": 2},
        {"tile": (128, 24), "cluster_shape": (2, 1, 1)},
        {"tile": (256, 16), "num_pipeline_stages": 1},
    ],
)
def test_consecutive_tiles_with_few_k_tiles(fields, k_tiles, schedule):
    """The MMAs of a tile's first K tile are issued before the previous tile is written; two CTAs have five tiles each."""
    tall = fields["tile"][0] * fields.get("cluster_shape", (1,))[0]
    wide = 5 * fields["tile"][1] * (1 if tall > fields["tile"][0] else 2)
    blockwise(tall - 3, wide - 5, 128 * k_tiles - 16, sms=2, **fields).check(schedule, k_tiles)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("store", [True, False])
def test_types_and_layouts_of_operands_and_scales(order, store):
    fields = {"a_type": "e5m2", "b_type": "e4m3", "scale_type": "bf16", "use_tma_store": store}
    blockwise(100, 275, 260, order=order, c_type="f32", **fields).check()


def test_batches():
    blockwise(70, 190, 300, batch=(3,), tile=(128, 96)).check("lazy")


def test_epilogue():
    bias = np.arange(130, dtype=np.float32)
    epilogue = Epilogue(alpha=0.5, bias=Operand("row"), activation="relu")
    problem = blockwise(90, 130, 200, epilogue=epilogue, operands={"bias": bias}, c_type="f32")
    problem.check(then=lambda exact: np.maximum(0.5 * exact + bias, 0))


def test_scales_are_applied_with_full_precision():
    """Scales that are not powers of two, against the same roundings step by step: one for each fused addition."""
    problem = blockwise(64, 192, 384, tile=(64, 96), consumers=1, c_type="f32")
    problem.a_scales = problem.rng.random(problem.a_scales.shape).astype(np.float32)
    problem.b_scales = problem.rng.random(problem.b_scales.shape).astype(np.float32)
    total = np.zeros((64, 192), np.float32)
    for product, factors in problem.parts:
        assert factors.dtype == np.float32
        total = (total.astype(float) + product * factors.astype(float)).astype(np.float32)
    np.testing.assert_array_equal(problem.run("random", 5), total)


@pytest.mark.parametrize(
    "fields",
    [
        {"a_type": "bf16"},
        {"mmas_in_flight": 0},
        {"mmas_in_flight": 1, "tile": (256, 64)},
        {"tile": (128, 136)},
        {"tile": (256, 136)},
        {"num_pipeline_stages": 1},
        {"scale_granularity": 8},
        {"AB_swapped": True},
        {"pingpong": True},
        {"scale_granularity": 12},
        {"b_major": "mn"},
    ],
)
def test_impossible_configurations_are_rejected(fields):
    with pytest.raises(WarploomError) as found:
        HopperBlockwiseConfig(**fields).validated()
    assert found.value.diag is Diag.BAD_CONFIG


def test_the_rows_of_a_consumer_decide_its_number_of_partials():
    tall = HopperBlockwiseConfig(tile=(256, 64))
    assert (tall.mmas_in_flight, tall.partials) == (0, 1)
    assert (tall.replace(tile=(128, 64)).mmas_in_flight, HopperBlockwiseConfig().partials) == (1, 2)


WIDEST = [
    {"tile": (128, 120)},
    {"tile": (128, 128), "scale_granularity": 32},
    {"tile": (64, 128), "consumers": 1},
]


@pytest.mark.parametrize("fields", [*SHAPES, *WIDEST])
def test_assembles_without_loss(fields):
    problem = blockwise(300, 500, 300, **fields)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(problem.launch).kernels)


@pytest.mark.parametrize("fields", [SHAPES[0], SHAPES[2], WIDEST[2]])
def test_an_epilogue_does_not_spill_while_mmas_are_in_flight(fields):
    epilogue = Epilogue(alpha=0.5, bias=Operand("row"), activation="gelu", residual=Operand("tile"))
    operands = {"bias": np.zeros(500, np.float32), "residual": np.zeros((300, 500), np.float32)}
    assemble_ok(blockwise(300, 500, 300, epilogue=epilogue, operands=operands, **fields).launch)


def test_scales_are_loaded_while_the_tensor_core_works():
    """Instructions between the MMAs of one K tile and the next keep the tensor core waiting."""
    loop = k_loop(tile=(256, 128), num_output_stages=1)
    names = [each.mnemonic for each in loop]
    done = [at for at, each in enumerate(loop) if each.opcode.startswith("WARPGROUP.DEPBAR")]
    multiplied = [at for at, name in enumerate(names) if name == "QGMMA"]
    groups = (multiplied[:4], multiplied[4:8])
    assert len(multiplied) == 8
    for wait, (first, *_, last) in zip(done, groups, strict=True):
        assert names[wait:first].count("FFMA") == 64
        assert len(names[wait:first]) < 64 + 40
        assert "R2UR" not in names[first:last]
    assert names[multiplied[4] :].count("LDG") == 1


def test_a_partial_is_promoted_while_the_next_is_computed():
    """Between two K tiles the tensor core has one product under way; nothing but additions stands in between."""
    loop = k_loop(tile=(128, 128))
    names = [each.mnemonic for each in loop]
    waits = [each.text for each in loop if each.opcode.startswith("WARPGROUP.DEPBAR")]
    assert [wait.split(",")[-1].strip() for wait in waits] == ["0x1", "0x1"]
    assert names.count("QGMMA") == 8
    assert names.count("FFMA") == 128
    assert len(names) < 128 + 8 + 110
    assert not {"BAR", "WARPSYNC"} & set(names)
    first, last = names.index("QGMMA"), len(names) - 1 - names[::-1].index("QGMMA")
    assert "R2UR" not in names[first:last]


def k_loop(**fields):
    """The instructions of the loop over K tiles: the shortest stretch with FFMA from a label to a branch back to it."""
    listing = sass_of(blockwise(300, 500, 300, **fields).launch)
    found: list[tuple[SassInstruction, ...]] = []
    labels: dict[str, int] = {}
    lines = listing.text.splitlines()
    for at, line in enumerate(lines):
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[label[1]] = at
        elif (target := re.search(r"BRA.*`\((\.L_x_\d+)\)", line)) and target[1] in labels:
            found.append(read_sass("\t.section .text.k\n" + "\n".join(lines[labels[target[1]] : at])).instructions)
    return min((each for each in found if any(one.mnemonic == "FFMA" for one in each)), key=len)
