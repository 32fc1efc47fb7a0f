"""Block-scaled GEMMs with several K tiles in a stage, and with weights that are loaded before the rest."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import warploom as wl
from warploom.structured.config import BlockScaledMatmulConfig

E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
CONFIGS = {
    "k-groups": ({"cta_group": 1, "mma_shape": (128, 64, 32), "k_group_size": 2}, "lazy"),
    "k-groups of a pair": ({"cta_group": 2, "mma_shape": (256, 64, 32), "k_group_size": 2}, "reverse"),
    "swapped k-groups of four": ({"cta_group": 1, "mma_shape": (128, 8, 32), "AB_swapped": True, "k_group_size": 4}, "random"),
    "k-groups, split": ({"cta_group": 1, "mma_shape": (128, 64, 32), "k_group_size": 2, "num_split_k": 2}, "eager"),
    "prefetch": ({"cta_group": 1, "mma_shape": (128, 64, 32), "prefetch_tiles_n": 3}, "random"),
    "prefetch, swapped": ({"cta_group": 1, "mma_shape": (128, 16, 32), "AB_swapped": True, "prefetch_tiles_n": 2}, "lazy"),
    "prefetch, residual": (
        {"cta_group": 1, "mma_shape": (128, 64, 32), "prefetch_tiles_n": 2, "use_tma_epilogue_load": True},
        "reverse",
    ),
    "both": ({"cta_group": 2, "mma_shape": (256, 64, 32), "k_group_size": 2, "prefetch_tiles_n": 2}, "eager"),
}  # fmt: skip


def operand(rows, k):
    """Small integers and scales that are powers of two: products are exact."""
    rng = np.random.default_rng()
    values = rng.integers(-3, 4, (rows, k)).astype(E4M3)
    scales = np.exp2(rng.integers(-1, 2, (rows, -(-k // 32)))).astype(E8M0)
    wide = np.repeat(scales.astype(np.float32), 32, axis=1)[:, :k]
    return values, scales, values.astype(np.float32) * wide


def bound(config, m, n, k):
    (a, of_a, wide_a), (b, of_b, wide_b) = operand(m, k), operand(n, k)
    out, more = np.full((m, n), np.nan, ml_dtypes.bfloat16), {}
    exact = wide_a @ wide_b.T
    if config.get("use_tma_epilogue_load"):
        more["residual"] = np.random.default_rng().integers(-3, 4, (m, n)).astype(ml_dtypes.bfloat16)
        exact = exact + more["residual"].astype(np.float32)
    call = wl.block_scaled_matmul.bind(a, b, of_a, of_b, out=out, config=BlockScaledMatmulConfig(**config), **more)
    return call, out, exact.astype(out.dtype)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("k", [160, 416])
def test_results_are_exact(name, k):
    config, schedule = CONFIGS[name]
    k = max(k, 416 if config.get("num_split_k") else 0)  # as many groups as splits
    call, out, exact = bound(config, 131, 72, k)
    wl.launch(call, schedule=schedule)
    np.testing.assert_array_equal(out.astype(np.float32), exact.astype(np.float32))


def test_groups_of_rows_with_k_groups():
    a, of_a, wide_a = operand(70, 416)
    parts = [operand(40, 416) for _ in range(3)]
    b, of_b = (np.stack([part[at] for part in parts]) for at in (0, 1))
    ends, out = np.array([9, 9, 65]), np.full((70, 40), np.nan, np.float32)
    config = BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, 64, 32), k_group_size=2)
    wl.launch(wl.grouped_block_scaled_matmul.bind(a, b, of_a, of_b, ends, out=out, config=config), schedule="reverse")
    exact = np.concatenate([wide_a[:9] @ parts[0][2].T, wide_a[9:65] @ parts[2][2].T])
    np.testing.assert_array_equal(out[:65], exact)
    assert np.isnan(out[65:]).all()


@pytest.mark.parametrize("name", ["k-groups of a pair", "prefetch"])
def test_they_are_proved(name):
    assert wl.check(bound(CONFIGS[name][0], 40, 40, 416)[0]).verdict == "PROVED"


def test_weights_and_their_scales_are_loaded_before_the_wait():
    text = str(bound(CONFIGS["prefetch"][0], 131, 72, 416)[0].program)
    load = text[text.index("role load") : text.index("role mma")]
    before, after = load.split("griddepcontrol.wait", 1)
    assert before.count("cp.async.bulk.tensor") == 2
    assert after.count("cp.async.bulk.tensor") == 2 + 4
