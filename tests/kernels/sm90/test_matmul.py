"""The default Hopper matmul: every type, transpose and way to divide the work, against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok, sass_of
from tests.kernels.hopper_problems import SCHEDULES, product, streamed

import warploom
from warploom.diagnostics import Diag, WarploomError
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.epilogue.epilogue import Epilogue, Operand

SHAPES = [
    {"tile": (128, 64)},
    {"tile": (128, 128), "pingpong": True},
    {"tile": (64, 160), "pingpong": True, "cluster_shape": (2, 1, 1)},
    {"tile": (128, 64), "cluster_shape": (2, 2, 1)},
    {"tile": (64, 48), "consumers": 1, "AB_swapped": True},
]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("fields", SHAPES)
def test_every_work_decomposition_under_every_schedule(fields, schedule, seed):
    product(200, 140, 330, **fields).check(schedule, seed)


@pytest.mark.parametrize(
    ("a_type", "b_type"),
    [
        ("bf16", "bf16"), ("f16", "f16"), ("f32", "f32"),
        ("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2"), ("e5m2", "e4m3"),
    ],
)  # fmt: skip
def test_types(a_type, b_type):
    product(200, 136, 190, a_type=a_type, b_type=b_type, pingpong=True, tile=(128, 64)).check("random", 3)


@pytest.mark.parametrize("c_type", ["bf16", "f16", "f32", "e4m3"])
@pytest.mark.parametrize("fields", [{"tile": (128, 96)}, {"tile": (64, 32), "consumers": 1, "AB_swapped": True}])
def test_results(c_type, fields):
    product(130, 100, 9, c_type=c_type, **fields).check()


@pytest.mark.parametrize(("a_major", "b_major"), [("k", "mn"), ("mn", "k"), ("mn", "mn")])
@pytest.mark.parametrize("fields", [SHAPES[1], {**SHAPES[3], "a_type": "f16"}, SHAPES[4]])
def test_transposes(a_major, b_major, fields):
    product(200, 168, 150, a_major=a_major, b_major=b_major, **fields).check("random", 4)


@pytest.mark.parametrize("columns", [8, 16, 40, 96, 160, 256])
def test_contiguous_rows_of_b_in_tiles_of_any_width(columns):
    """A narrow tile fills no row of the widest swizzle."""
    product(70, 300, 100, tile=(64, columns), consumers=1, b_major="mn").check()


@pytest.mark.parametrize(("columns", "store"), [(8, True), (104, True), (104, False), (208, True), (256, True)])
def test_widths(columns, store):
    product(129, 211, 70, tile=(128, columns), use_tma_store=store).check("reverse")


IN_MEMORY = {"split_in_cluster": False}
TWELVE_OF_EIGHT = {"cluster_shape": (2, 4, 1), "num_pipeline_stages": 12}
STRIPS = {
    "half a tile, without a swizzle": {"tile": (128, 176), "pingpong": True},
    "a tile of an odd number of eights": {"tile": (64, 72), "consumers": 1, "num_output_stages": 1},
    "a tile in lines": {"tile": (128, 128)},
    "a tile in half lines": {"tile": (64, 96), "consumers": 1},
    "a transposed tile": {"tile": (128, 112), "AB_swapped": True},
    "a transposed tile, three buffers": {"tile": (64, 56), "consumers": 1, "AB_swapped": True, "num_output_stages": 3},
    "half a transposed tile": {"tile": (128, 208), "AB_swapped": True},
    "of a prime number of eights": {"tile": (64, 136), "consumers": 1, "AB_swapped": True},
    "three consumers": {"tile": (192, 112), "consumers": 3},
    "three consumers, turned": {"tile": (192, 80), "consumers": 3, "AB_swapped": True, "cluster_shape": (2, 1, 1)},
    "a share of a tile": {"tile": (64, 144), "consumers": 1, "num_split_k": 3},
    "an odd number of eights for two": {"tile": (128, 136), "cluster_shape": (2, 1, 1)},
    "an odd number of eights, 256 rows": {"tile": (256, 88), "AB_swapped": True},
    "an odd number of eights, three consumers": {"tile": (192, 136), "consumers": 3, "AB_swapped": True},
    "half of a large tile": {"tile": (128, 256), "num_split_k": 2},
    "a fifth of a tile": {"tile": (64, 80), "consumers": 1, "AB_swapped": True, "num_split_k": 5},
    "an eighth of a tile": {"tile": (64, 64), "consumers": 1, "num_split_k": 8},
    "a seventh of a tile, in memory": {"tile": (128, 168), "AB_swapped": True, "num_split_k": 7, **IN_MEMORY},
    "twelve stages, a cluster of eight": {"tile": (64, 72), "consumers": 1, "AB_swapped": True, **TWELVE_OF_EIGHT},
    "wider than one move": {"tile": (64, 192), "consumers": 1, "AB_swapped": True, "stage_columns": 192},
}


@pytest.mark.parametrize("fields", STRIPS.values(), ids=STRIPS)
@pytest.mark.parametrize(("m", "n"), [(1, 8), (193, 184), (260, 392)])
def test_subtiles_of_every_width(fields, m, n):
    config = HopperConfig(**fields).validated()
    rng = np.random.default_rng()
    k = 64 * 2 * config.num_split_k - 16 if config.num_split_k > 3 else 400
    a, b = (rng.integers(-2, 3, (rows, k)).astype(np.float16) for rows in (m, n))
    found = warploom.matmul(a, b.T, config=config, target="sm_90a")
    np.testing.assert_array_equal(found, a.astype(float) @ b.T.astype(float))


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 257, 63), (128, 64, 64), (129, 65, 65), (127, 63, 600), (257, 8, 16)]
)
@pytest.mark.parametrize("fields", [SHAPES[1], SHAPES[3]])
def test_awkward_sizes(m, n, k, fields):
    product(m, n, k, **fields).check("lazy")


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("pingpong", [False, True])
def test_stages(stages, pingpong):
    for k_tiles in (1, stages, 2 * stages + 1):
        fields = {"num_pipeline_stages": stages, "pingpong": pingpong, "num_output_stages": 1}
        product(300, 70, 64 * k_tiles, tile=(128, 40), sms=2, **fields).check("random", stages)


@pytest.mark.parametrize("mmas_in_flight", [0, 3])
@pytest.mark.parametrize("made", [product, streamed])
@pytest.mark.parametrize("fields", [{}, {"pingpong": True}, {"cluster_shape": (2, 1, 1)}])
def test_tiles_of_fewer_k_tiles_than_groups_stay_in_flight(made, mmas_in_flight, fields):
    for k_tiles in (1, 2, 5):
        problem = made(
            300, 72, 64 * k_tiles, tile=(128, 40), num_pipeline_stages=4, mmas_in_flight=mmas_in_flight, sms=4, **fields
        )
        problem.check("random", mmas_in_flight)


@pytest.mark.parametrize("mmas_in_flight", [2, 3])
@pytest.mark.parametrize("how", [{}, {"split_in_cluster": False}], ids=str)
def test_splits_of_fewer_k_tiles_than_groups_stay_in_flight(mmas_in_flight, how):
    config = HopperConfig(tile=(64, 64), consumers=1, num_split_k=2, mmas_in_flight=mmas_in_flight, **how)
    rng = np.random.default_rng()
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((100, 300), (300, 72)))
    for k in (65, 192, 300):
        found = warploom.matmul(a[:, :k], b[:k], config=config, target="sm_90a")
        np.testing.assert_array_equal(found, a[:, :k].astype(float) @ b[:k].astype(float))


@pytest.mark.parametrize("cluster", [(4, 1, 1), (1, 4, 1), (2, 4, 1)])
@pytest.mark.parametrize("pingpong", [False, True])
def test_larger_clusters(cluster, pingpong):
    product(300, 140, 70, tile=(128, 32), cluster_shape=cluster, pingpong=pingpong).check("random", 5)


@pytest.mark.parametrize("fields", [*SHAPES[1:], {**SHAPES[1], "a_major": "mn", "b_major": "mn"}])
def test_batches(fields):
    product(140, 72, 100, batch=(3,), **fields).check("random", 6)


def test_fp8_with_one_scale():
    problem = product(200, 150, 400, a_type="e4m3", pingpong=True, operands={"alpha": 0.125})
    problem.check("random", 7, then=lambda exact: 0.125 * exact)


def test_epilogue():
    bias, ramp = np.arange(100, dtype=np.float32), lambda value, at: value + at.row.to("f32")
    epilogue = Epilogue(alpha=0.5, bias=Operand("row"), activation="relu", function=ramp)
    problem = product(150, 100, 90, epilogue=epilogue, operands={"bias": bias}, tile=(128, 64), c_type="f32")
    problem.check(then=lambda exact: np.maximum(0.5 * exact + bias, 0) + np.arange(150)[:, None])


@settings(max_examples=6)
@given(
    sizes=st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 300)),
    tile=st.tuples(st.sampled_from([64, 128]), st.integers(1, 16).map(lambda n: 8 * n)),
    pingpong=st.booleans(),
    swapped=st.booleans(),
    cluster=st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1)]),
)
def test_any_shape(sizes, tile, pingpong, swapped, cluster):
    consumers = 2 if pingpong or tile[0] == 128 else 1
    fields = {"pingpong": pingpong, "AB_swapped": swapped, "cluster_shape": cluster, "consumers": consumers}
    if tile[1] * cluster[0] % 16:
        fields["cluster_shape"] = (1, 1, 1)
    product(*sizes, tile=tile, **fields).check("random", sizes[0])


@pytest.mark.parametrize(
    "fields",
    [
        {"a_type": "e4m3", "b_major": "mn"},
        {"a_type": "f32", "a_major": "mn"},
        {"tile": (96, 64)},
        {"tile": (128, 260)},
        {"pingpong": True, "tile": (192, 256)},
        {"num_pipeline_stages": 9},
        {"pingpong": True, "consumers": 1},
        {"tile": (192, 208), "consumers": 3},
        {"tile": (128, 88), "stage_columns": 16},
        {"tile": (128, 88), "stage_columns": 44},
        {"a_type": "bf16", "b_type": "f16"},
        {"a_type": "f32", "b_type": "bf16"},
    ],
)
def test_impossible_configurations_are_rejected(fields):
    with pytest.raises(WarploomError) as found:
        HopperConfig(**fields).validated()
    assert found.value.diag is Diag.BAD_CONFIG


def test_invalid_values_are_reported_together():
    wrong = {
        "a_type": "e2m1",
        "c_type": "int8",
        "a_major": "m",
        "pingpong": 1,
        "output_types": ("bf16", "half"),
        "tile": (128, 0),
        "consumers": 0,
        "cluster_shape": (1, -2, 1),
        "num_split_k": 0,
        "stage_columns": -8,
        "mmas_in_flight": -1,
    }
    with pytest.raises(WarploomError, match=r"11 rule\(s\) violated") as found:
        HopperConfig(**wrong)
    assert found.value.diag is Diag.BAD_CONFIG
    for name, value in wrong.items():
        subject = f"{name} {value}" if isinstance(value, tuple) else f"{name}={value!r}"
        assert f"{subject} must be" in str(found.value)


ASSEMBLED = [
    *SHAPES,
    {"tile": (128, 256)},
    {"tile": (128, 192), "pingpong": True, "num_output_stages": 1},
    {"tile": (64, 256), "consumers": 1},
    {"tile": (128, 128), "a_type": "e4m3", "pingpong": True},
    {"tile": (128, 160), "b_major": "mn", "pingpong": True},
    {"tile": (128, 208), "pingpong": True},
    {"tile": (256, 208), "AB_swapped": True},
    {"tile": (256, 200), "AB_swapped": True, "cluster_shape": (1, 2, 1)},
    {"tile": (128, 248)},
    {"tile": (192, 192), "consumers": 3},
    {"tile": (192, 192), "consumers": 3, "AB_swapped": True, "cluster_shape": (1, 2, 1)},
]


@pytest.mark.parametrize("fields", ASSEMBLED)
def test_assembles_without_loss(fields):
    """No spill and no remark."""
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(product(300, 500, 300, **fields).launch).kernels)


@pytest.mark.parametrize("fields", [SHAPES[1], SHAPES[3]])
def test_gpu_scope_fences_are_only_in_cluster_barriers(fields):
    sass = sass_of(product(300, 500, 300, **fields).launch)
    assert sass.count("UTMALDG")
    assert sass.count("UTMASTG")
    meetings = 2 if "cluster_shape" in fields else 0  # of the cluster: at the beginning and at the end
    assert sass.count("MEMBAR", "GPU") == sass.count("CCTL", "IVALL") == meetings
