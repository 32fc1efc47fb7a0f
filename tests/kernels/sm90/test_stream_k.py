"""Stream-K on Hopper: tiles that several CTAs share, however the work falls, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok, sass_of
from tests.kernels.hopper_problems import product, streamed

from warploom.diagnostics import WarploomError
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.epilogue.epilogue import Epilogue, Operand

SHAPES = [
    {"tile": (128, 64)},
    {"tile": (128, 64), "pingpong": True},
    {"tile": (64, 32), "consumers": 1, "AB_swapped": True},
    {"tile": (128, 64), "cluster_shape": (2, 1, 1)},
    {"tile": (64, 64), "pingpong": True, "cluster_shape": (1, 2, 1)},
]


@pytest.mark.parametrize(("schedule", "seed"), [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)])
@pytest.mark.parametrize("fields", SHAPES)
def test_every_work_decomposition_under_every_schedule(fields, schedule, seed):
    streamed(330, 200, 200, sms=7, **fields).check(schedule, seed)


@pytest.mark.parametrize("fields", SHAPES[:3])
def test_waiting_ctas_run_first(fields):
    """The emulator spends many polling iterations on each effect of the other CTAs, so this is small."""
    streamed(140, 40, 130, sms=3, **fields).check("reverse")


@pytest.mark.parametrize("sms", [1, 2, 4, 5, 8, 11])
@pytest.mark.parametrize("fields", SHAPES[:2])
def test_any_number_of_ctas(fields, sms):
    """8 tiles of 5 K tiles: in full waves, with a rest, and fewer tiles than CTAs."""
    streamed(200, 200, 300, sms=sms, **fields).check("random", sms)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (129, 65), (300, 129)])
@pytest.mark.parametrize("k", [1, 64, 65, 1000])
@pytest.mark.parametrize("fields", SHAPES[:2])
def test_awkward_sizes(m, n, k, fields):
    streamed(m, n, k, sms=5, **fields).check("lazy")


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("pingpong", [False, True])
def test_stages(stages, pingpong):
    """Parts of all lengths, so that the ring stands anywhere when a warpgroup's part begins."""
    for k_tiles in (1, stages, 2 * stages + 1):
        fields = {"num_pipeline_stages": stages, "pingpong": pingpong, "num_output_stages": 1}
        streamed(300, 110, 64 * k_tiles, tile=(128, 40), sms=4, **fields).check("random", stages)


def test_batches():
    streamed(140, 72, 200, batch=(3,), sms=5, **SHAPES[1]).check("random", 6)


def test_the_epilogue_is_applied_once_to_the_complete_accumulator():
    bias, ramp = np.arange(100, dtype=np.float32), lambda value, at: value + at.row.to("f32")
    epilogue = Epilogue(alpha=0.5, bias=Operand("row"), activation="relu", function=ramp)
    for fields in SHAPES[:2]:
        problem = streamed(150, 100, 300, epilogue=epilogue, operands={"bias": bias}, c_type="f32", sms=3, **fields)
        problem.check(then=lambda exact: np.maximum(0.5 * exact + bias, 0) + np.arange(150)[:, None])


@pytest.mark.parametrize("fields", SHAPES[:2])
def test_consecutive_launches_reuse_the_workspace(fields):
    problem = streamed(200, 140, 200, sms=4, **fields)
    for seed in range(3):
        problem.d[...] = np.nan
        problem.check("random", seed)


def test_the_same_bits_in_any_order_of_arrival():
    """Reals: the order of sums does not depend on who is ready."""
    problem = streamed(200, 100, 300, tile=(128, 64), c_type="f32", a_type="f32", sms=7)
    problem.a, problem.b = (problem.rng.standard_normal(shape) for shape in ((200, 300), (100, 300)))
    found = []
    for schedule, seed in (("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)):
        problem.d[...] = np.nan
        found.append(problem.run(schedule, seed))
    assert all(np.array_equal(each, found[0]) for each in found)
    assert np.isfinite(found[0]).all()


@settings(max_examples=6, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 500)),
    tile=st.tuples(st.sampled_from([64, 128]), st.integers(1, 12).map(lambda n: 8 * n)),
    pingpong=st.booleans(),
    swapped=st.booleans(),
    sms=st.integers(1, 9),
)
def test_any_shape(sizes, tile, pingpong, swapped, sms):
    consumers = 2 if pingpong or tile[0] == 128 else 1
    fields = {"pingpong": pingpong, "AB_swapped": swapped, "consumers": consumers}
    streamed(*sizes, tile=tile, sms=sms, **fields).check("random", sizes[0])


ASSEMBLED = [
    {"tile": (128, 128)},
    {"tile": (128, 256)},
    {"tile": (256, 128), "cluster_shape": (2, 1, 1)},
    {"tile": (128, 128), "pingpong": True},
    {"tile": (128, 192), "pingpong": True},
    {"tile": (128, 192)},
]


@pytest.mark.parametrize("fields", ASSEMBLED)
def test_assembles_without_loss(fields):
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(streamed(300, 500, 300, **fields).launch).kernels)


@pytest.mark.parametrize("fields", [ASSEMBLED[0], ASSEMBLED[3]])
def test_gpu_scope_fences_are_only_around_partial_tiles(fields):
    sass = sass_of(streamed(300, 500, 300, **fields).launch)
    assert sass.count("MEMBAR", "GPU") == 1
    assert sass.count("HGMMA") == sass_of(product(300, 500, 300, **fields).launch).count("HGMMA")


def test_splits_are_refused():
    with pytest.raises(WarploomError, match="stream_k=True"):
        HopperConfig(stream_k=True, num_split_k=2).validated()
