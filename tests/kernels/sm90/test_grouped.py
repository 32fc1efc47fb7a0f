"""Grouped matmul for Hopper: groups of any sizes, none of which touches another's rows, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok, sass_of
from tests.kernels.hopper_problems import SCHEDULES, grouped_product

from warploom.structured.epilogue.epilogue import Epilogue, Operand

SHAPES = [
    {"tile": (128, 64)},
    {"tile": (128, 128), "pingpong": True},
    {"tile": (64, 160), "pingpong": True, "cluster_shape": (2, 1, 1), "num_output_stages": 1},
    {"tile": (128, 64), "cluster_shape": (2, 2, 1)},
    {"tile": (64, 16), "consumers": 1, "AB_swapped": True},
    {"tile": (128, 24), "pingpong": True, "AB_swapped": True, "cluster_shape": (2, 2, 1)},
]
ROWS = (100, 0, 129, 3, 64, 0, 0, 200)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("fields", SHAPES)
def test_every_work_decomposition_under_every_schedule(fields, schedule, seed):
    rows = (10, 0, 33, 3, 16) if fields.get("AB_swapped") else ROWS
    grouped_product(rows, 200, 200, **fields).check(schedule, seed)


@pytest.mark.parametrize("rows", [(1,), (0, 0, 7), (127, 1, 129), (64, 0, 64), (1,) * 9])
@pytest.mark.parametrize("fields", [SHAPES[1], SHAPES[4]])
def test_awkward_groups(rows, fields):
    grouped_product(rows, 72, 130, **fields).check("random", 1)


def test_no_rows_at_all():
    """No role finds a tile, and every role exits."""
    problem = grouped_product((5, 0), 64, 64, experts=(-1, 0))
    problem.check()
    assert np.isnan(problem.run()).all()


@pytest.mark.parametrize(("n", "k"), [(1, 1), (63, 65), (65, 64), (131, 200)])
def test_awkward_sizes(n, k):
    """C's rows end where a tile does not: threads store the rows where TMA would store too many."""
    for fields in (SHAPES[1], SHAPES[4]):
        grouped_product((70, 1, 130), n, k, **fields).check("lazy")


@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("store", [True, False])
def test_experts_and_their_scales(pingpong, store):
    """Groups share experts; one that is switched off keeps what its rows held."""
    experts, scales = (2, -1, 0, 2), (0.5, 1.0, 4.0)
    fields = {"tile": (128, 64), "pingpong": pingpong, "use_tma_store": store}
    grouped_product((130, 70, 5, 60), 90, 100, experts=experts, scales=scales, **fields).check("random", 2)


@pytest.mark.parametrize("a_type", ["f16", "e4m3", "f32"])
def test_types(a_type):
    grouped_product((130, 7), 72, 150, a_type=a_type, tile=(128, 64), pingpong=True).check()


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k")])
def test_transposes(majors):
    grouped_product((136, 8), 72, 150, a_major=majors[0], b_major=majors[1], pingpong=True).check()


@pytest.mark.parametrize("swizzle_size", [1, 2])
def test_tile_swizzle(swizzle_size):
    grouped_product((400, 300), 150, 64, swizzle_size=swizzle_size, tile=(64, 40), pingpong=True).check("reverse")


def test_epilogue():
    bias = np.arange(72, dtype=np.float32)
    epilogue = Epilogue(bias=Operand("row"), activation="relu")
    problem = grouped_product((70, 60), 72, 90, epilogue=epilogue, operands={"bias": bias}, c_type="f32")
    problem.check(then=lambda exact: np.maximum(exact + bias, 0))


@settings(max_examples=5)
@given(
    rows=st.lists(st.integers(0, 200), min_size=1, max_size=7).filter(any),
    n=st.integers(1, 150),
    fields=st.sampled_from(SHAPES),
)
def test_any_groups(rows, n, fields):
    grouped_product(tuple(rows), n, 70, **fields).check("random", n)


@pytest.mark.parametrize("fields", [SHAPES[1], SHAPES[4], {"tile": (128, 256)}, {"tile": (128, 160), "pingpong": True}])
def test_assembles_without_loss(fields):
    problem = grouped_product(ROWS, 200, 200, **fields)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(problem.launch).kernels)


def test_whole_tiles_are_stored_by_tma():
    sass = sass_of(grouped_product(ROWS, 200, 200, **SHAPES[1]).launch)
    assert sass.count("UTMASTG") == 4  # subtiles of a tile
    assert not sass.count("MEMBAR", "GPU")
