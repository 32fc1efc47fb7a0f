"""Blockwise FP8 for Hopper: each K tile added with its own factors, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.assembly import assemble_ok, sass_of
from tests.kernels.hopper_problems import SCHEDULES, blockwise

from warploom.diagnostics import Diag, WarploomError
from warploom.structured.config.hopper_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue import Epilogue, Operand

SHAPES = [
    {"tile": (128, 128)},
    {"tile": (128, 192), "in_turn": True},
    {"tile": (128, 160), "cluster_shape": (2, 1, 1)},
    {"tile": (256, 64), "cluster_shape": (1, 2, 1)},
    {"tile": (64, 72), "consumers": 1},
]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("fields", SHAPES)
def test_every_way_to_divide_the_work_under_every_schedule(fields, schedule, seed):
    blockwise(140, 200, 300, **fields).check(schedule, seed)


@pytest.mark.parametrize("columns", [8, 40, 104, 152, 168, 184, 200])
def test_a_tile_may_touch_three_blocks_of_factors(columns):
    blockwise(17, 450, 130, tile=(64, columns), consumers=1).check()


@pytest.mark.parametrize(("granularity", "columns"), [(32, 128), (64, 80), (96, 192), (256, 96), (8, 112)])
def test_blocks_of_other_widths(granularity, columns):
    blockwise(65, 300, 130, tile=(128, columns), scale_granularity=granularity).check()


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 257, 127), (128, 128, 128), (129, 129, 129), (127, 63, 600), (257, 8, 16)]
)
@pytest.mark.parametrize("fields", [SHAPES[0], SHAPES[2]])
def test_awkward_sizes(m, n, k, fields):
    blockwise(m, n, k, **fields).check("lazy")


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_stages(stages):
    blockwise(100, 72, 800, tile=(128, 64), num_pipeline_stages=stages).check("random", stages)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("store", [True, False])
def test_types_and_orders_of_operands_and_factors(order, store):
    fields = {"a_type": "e5m2", "b_type": "e4m3", "scale_type": "bf16", "use_tma_store": store}
    blockwise(100, 275, 260, order=order, c_type="f32", **fields).check()


def test_batches():
    blockwise(70, 190, 300, batch=(3,), tile=(128, 96)).check("lazy")


def test_the_epilogue_has_its_say():
    bias = np.arange(130, dtype=np.float32)
    epilogue = Epilogue(alpha=0.5, bias=Operand("row"), activation="relu")
    problem = blockwise(90, 130, 200, epilogue=epilogue, operands={"bias": bias}, c_type="f32")
    problem.check(then=lambda exact: np.maximum(0.5 * exact + bias, 0))


def test_factors_count_with_all_their_bits():
    """Factors that are no powers of two, against the same roundings step by step: one for each fused addition."""
    problem = blockwise(64, 192, 384, tile=(64, 192), consumers=1, c_type="f32")
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
        {"depth": 1},
        {"AB_swapped": True},
        {"pingpong": True},
        {"in_turn": True, "tile": (64, 64), "consumers": 1},
        {"tile": (128, 216)},
        {"scale_granularity": 12},
        {"b_major": "mn"},
    ],
)
def test_what_cannot_be_is_refused(fields):
    with pytest.raises(WarploomError) as found:
        HopperBlockwiseConfig(**fields).validated()
    assert found.value.diag is Diag.BAD_CONFIG


@pytest.mark.parametrize("fields", [*SHAPES, {"tile": (128, 208)}])
def test_assembles_without_loss(fields):
    problem = blockwise(300, 500, 300, **fields)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(problem.launch).kernels)


def test_factors_are_read_while_the_tensor_core_works():
    """What stands between the end of a K tile's products and the next ones keeps the tensor core waiting."""
    sass = sass_of(blockwise(300, 500, 300, tile=(128, 192), in_turn=True).launch)
    names = [each.mnemonic for each in sass.instructions]
    first = names.index("QGMMA")
    done = next(at for at, each in enumerate(sass.instructions) if each.opcode.startswith("WARPGROUP.DEPBAR"))
    last = max(at for at, name in enumerate(names) if name == "QGMMA")
    assert last < done
    assert names.count("QGMMA") == 4
    assert names[first:done].count("LDG") == 2
    assert "R2UR" not in names[first:done]
    between = names[done : max(at for at, name in enumerate(names) if name == "FFMA")]
    assert between.count("FFMA") == 95  # and the last one
    assert len(between) < 95 + 25
