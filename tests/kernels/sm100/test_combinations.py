"""Split-K with batches, epilogue loads, gate and up pairs and scale factors, against NumPy, to the bit."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok
from tests.ops.references import BF16, E4M3, exact, integers, poisoned

import warploom as wl
from warploom.host.program import text_of
from warploom.structured.config import BlockScaledMatmulConfig, MatmulConfig

SCHEDULES = ["eager", "lazy", "reverse", "random"]
"""Each combination has one of them; tests/ops/test_variants.py runs every variant under all."""
DIVIDED = [(3, False, "lazy"), (1, True, "reverse"), (2, True, "random")]
E8M0 = ml_dtypes.float8_e8m0fnu


def plain(cta_group=1, m=64, n=32, **more):
    return MatmulConfig(cta_group=cta_group, mma_shape=(m, n, 16), **more)


def run(bound, out, expected, schedule="eager", seed=0):
    wl.launch(bound, schedule=schedule, seed=seed, sms=8)
    np.testing.assert_array_equal(exact(out), expected.astype(out.dtype).astype(np.float64))


def check_plain(config, m, n, k, *, batch=(), residual=True, bias=False, schedule="eager", seed=0):
    a, b = integers(*batch, m, k), integers(*batch, n, k)
    out, options = poisoned((*batch, m, n), BF16), dict[str, Any]()
    expected = exact(a) @ exact(b).swapaxes(-1, -2)
    if residual:
        options |= {"residual": integers(*batch, m, n), "beta": 2.0}
        expected = expected + 2 * exact(options["residual"])
    if bias:
        options["bias"] = integers(n)
        expected = expected + exact(options["bias"])
    bound = wl.matmul.bind(a, b.mT, out=out, config=config, **options)
    run(bound, out, expected, schedule, seed)
    return bound


LAYOUTS = [(1, 64, False), (1, 128, True), (2, 128, False), (2, 256, True), (2, 256, False)]


@pytest.mark.parametrize(("group", "rows", "swapped"), LAYOUTS)
@pytest.mark.parametrize("loads", [False, True])
def test_split_k_with_batches_and_a_residual(group, rows, swapped, loads):
    config = plain(group, rows, 32, AB_swapped=swapped, num_split_k=3, use_tma_epilogue_load=loads)
    m, n = (40, rows + 8) if swapped else (rows + 1, 40)
    bound = check_plain(config, m, n, 5 * 64 - 8, batch=(2,))
    assert ("epi_load.full" in text_of(bound.program)) is loads


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("swapped", [False, True])
def test_only_the_final_split_loads_the_residual(schedule, swapped):
    config = plain(1, 64, 32, AB_swapped=swapped, num_split_k=2, use_tma_epilogue_load=True)
    check_plain(config, 65, 72, 3 * 64, schedule=schedule, seed=3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_row_that_is_loaded_by_the_final_split(schedule):
    config = plain(1, 64, 64, num_split_k=3, use_tma_epilogue_load=True, epilogue_is_1d=True)
    check_plain(config, 65, 72, 4 * 64, residual=False, bias=True, schedule=schedule, seed=5)


def product(gate, up):
    return gate * up


def check_pair(config, m, n, k, *, residual=False, schedule="eager", seed=0):
    x, gate, up = integers(m, k, largest=1), integers(n, k, largest=1), integers(n, k, largest=1)
    out, options = poisoned((m, n), np.float32), dict[str, Any]()
    expected = (exact(x) @ exact(gate).T) * (exact(x) @ exact(up).T)
    if residual:
        options["residual"] = integers(m, n, dtype=np.float32)
        expected = expected + exact(options["residual"])
    bound = wl.gated_linear.bind(x, gate, up, pair=product, out=out, config=config, **options)
    run(bound, out, expected, schedule, seed)
    return bound


@pytest.mark.parametrize(("splits", "loads", "schedule"), DIVIDED)
def test_pairs_with_split_k_and_epilogue_loads(splits, loads, schedule):
    config = plain(1, 64, 64, num_split_k=splits, use_tma_epilogue_load=loads, c_type="f32")
    check_pair(config, 65, 40, 4 * 64 - 8, residual=loads, schedule=schedule, seed=7)


PAIRS = {
    "swapped": plain(1, 64, 32, AB_swapped=True, c_type="f32"),
    "swapped, 128 rows": plain(1, 128, 24, AB_swapped=True, c_type="f32", cluster_shape=(2, 2, 1)),
    "swapped, CTA pairs": plain(2, 256, 32, AB_swapped=True, c_type="f32"),
    "swapped, CTA pairs, folded": plain(2, 128, 32, AB_swapped=True, c_type="f32", cluster_shape=(2, 2, 1)),
    "swapped, split": plain(1, 64, 32, AB_swapped=True, c_type="f32", num_split_k=2, use_tma_epilogue_load=True),
    "folded": plain(2, 128, 64, c_type="f32"),
    "folded, K groups": plain(2, 128, 96, c_type="f32", k_group_size=2, num_accum_pipeline_stages=1),
    "folded, split": plain(2, 128, 128, c_type="f32", num_split_k=3),
    "folded, clusters": plain(2, 128, 64, c_type="f32", cluster_shape=(4, 2, 1), scheduler="static"),
}
"""Gate and up with one MMA each."""


@pytest.mark.parametrize(("name", "schedule"), list(zip(PAIRS, cycle(SCHEDULES), strict=False)))
def test_pairs_with_an_mma_for_each(name, schedule):
    config = PAIRS[name]
    bound = check_pair(config, 70, 136, 4 * 64 - 8, residual=config.use_tma_epilogue_load, schedule=schedule, seed=4)
    assert config.replace(gated=True).gated_mmas == 2
    assemble_ok(bound)


@pytest.mark.parametrize("name", ["swapped", "swapped, CTA pairs", "folded"])
def test_pairs_of_experts_with_an_mma_for_each(name):
    a, gate, up = (integers(*shape, largest=1) for shape in ((70, 128), (3, 128, 72), (3, 128, 72)))
    ends, out = np.array([20, 21, 70]), poisoned((70, 72), np.float32)
    bound = wl.gated_grouped_matmul.bind(a, gate, up, ends, pair=product, out=out, config=PAIRS[name])
    groups = [(slice(start, end), group) for group, (start, end) in enumerate(((0, 20), (20, 21), (21, 70)))]
    both = [(exact(a[rows]) @ exact(gate[g])) * (exact(a[rows]) @ exact(up[g])) for rows, g in groups]
    run(bound, out, np.concatenate(both), "random")


@pytest.mark.parametrize("swapped", [False, True])
def test_pairs_of_either_memory_order(swapped):
    config = plain(1, 128, 64, AB_swapped=swapped, c_type="f32") if swapped else plain(2, 128, 128, c_type="f32")
    x, gate, up = integers(72, 136, largest=1), integers(128, 136, largest=1).T, integers(128, 136, largest=1).T
    gate, up = (np.ascontiguousarray(each).T.copy(order="F") for each in (gate, up))
    out = poisoned((72, 128), np.float32)
    bound = wl.gated_linear.bind(x, gate, up, pair=product, out=out, config=config)
    run(bound, out, (exact(x) @ exact(gate).T) * (exact(x) @ exact(up).T))


def scales(rows, blocks):
    return np.exp2(np.random.default_rng().integers(-2, 3, (rows, blocks))).astype(E8M0)


def check_block_scaled(config, m, n, k, *, residual=True, batch=(), schedule="eager", seed=0):
    a, b = integers(*batch, m, k, dtype=E4M3, largest=2), integers(*batch, n, k, dtype=E4M3, largest=2)
    of_a, of_b = (scales(int(np.prod(batch, dtype=int)) * x, k // 32).reshape(*batch, x, k // 32) for x in (m, n))
    out, options = poisoned((*batch, m, n), np.float32), dict[str, Any]()
    wide = [exact(x) * np.repeat(exact(s), 32, -1) for x, s in ((a, of_a), (b, of_b))]
    expected = wide[0] @ wide[1].swapaxes(-1, -2)
    if residual:
        options["residual"] = integers(*batch, m, n, dtype=np.float32)
        expected = expected + exact(options["residual"])
    bound = wl.block_scaled_matmul.bind(a, b, of_a, of_b, out=out, config=config, **options)
    run(bound, out, expected, schedule, seed)
    return bound


@pytest.mark.parametrize(("splits", "loads", "schedule"), DIVIDED)
def test_block_scaled_with_split_k_and_epilogue_loads(splits, loads, schedule):
    config = BlockScaledMatmulConfig(
        cta_group=1, mma_shape=(128, 64, 32), num_split_k=splits, use_tma_epilogue_load=loads, c_type="f32"
    )
    bound = check_block_scaled(config, 130, 72, 3 * 128 + 32, residual=loads, schedule=schedule, seed=2)
    assert ("epi_load.full" in text_of(bound.program)) is loads


@pytest.mark.parametrize("swapped", [False, True])
def test_block_scaled_pairs_of_ctas_with_batches(swapped):
    config = BlockScaledMatmulConfig(
        cta_group=2,
        mma_shape=(256, 64, 32),
        num_split_k=2,
        use_tma_epilogue_load=True,
        AB_swapped=swapped,
        c_type="f32",
    )
    check_block_scaled(config, 72, 136, 5 * 128, batch=(2,))


@st.composite
def configurations(draw):
    group, rows = draw(st.sampled_from([(1, 64), (1, 128), (2, 128), (2, 256)]))
    return plain(
        group,
        rows,
        draw(st.sampled_from([32, 48, 64, 96])),
        AB_swapped=draw(st.booleans()),
        num_split_k=draw(st.integers(1, 4)),
        use_tma_epilogue_load=draw(st.booleans()),
        scheduler=draw(st.sampled_from(["clc", "static"])),
        num_accum_pipeline_stages=draw(st.integers(1, 2)),
        register_based_epilogue=draw(st.booleans()),
    )


@settings(max_examples=12, deadline=None)
@given(configurations(), st.integers(1, 130), st.integers(1, 16), st.integers(4, 6), st.sampled_from(SCHEDULES))
def test_any_combination(config, m, n, tiles, schedule):
    check_plain(config, m, 8 * n, tiles * 64 - 8, batch=(2,), schedule=schedule)


@pytest.mark.parametrize(("group", "rows", "swapped"), LAYOUTS)
def test_split_k_with_a_residual_assembles_without_a_spill(group, rows, swapped):
    config = plain(group, rows, 128, AB_swapped=swapped, num_split_k=2, use_tma_epilogue_load=True)
    a, b, c = integers(2, 64, 256), integers(2, 64, 256), integers(2, 64, 64)
    assemble_ok(wl.matmul.bind(a, b.mT, residual=c, bias=integers(64), activation="gelu", config=config))


def test_split_k_with_batches_and_a_residual_is_proved():
    config = plain(1, 64, 32, num_split_k=2, use_tma_epilogue_load=True)
    a, b, c = integers(2, 65, 128), integers(2, 40, 128), integers(2, 65, 40)
    report = wl.check(wl.matmul.bind(a, b.mT, residual=c, config=config), profile="strict")
    assert report.verdict == "PROVED", str(report)
