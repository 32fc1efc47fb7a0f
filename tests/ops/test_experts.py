"""Grouped GEMMs with expert ids, scales and biases against a loop over groups, and batches of scaled GEMMs."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.references import BF16, E2M1, E4M3, E8M0, exact, integers, poisoned, rounded

import warploom as wl
from warploom.diagnostics import WarploomError
from warploom.ops import block_scaled_matmul, blockwise_matmul, gated_grouped_matmul, grouped_matmul, interleave_scales
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig

RNG = np.random.default_rng()
SCHEDULES = ("eager", "lazy", "reverse", "random")
ENDS, IDS = np.array([7, 7, 60, 75, 90]), np.array([2, 0, -1, 2, 1])


def by_experts(a, b, ids, scales, bias, rest=0.0):
    """Group by group; other rows have the value `rest`."""
    found, start = np.full((a.shape[0], b.shape[2]), rest), 0
    for end, expert in zip(ENDS, ids, strict=True):
        if expert >= 0:
            found[start:end] = exact(a[start:end]) @ exact(b[expert]) * scales[expert] + exact(bias[expert])
        start = end
    return found


CONFIGS = {
    "sm_90a": {"target": "sm_90a"},
    "sm_90a swapped": {"config": HopperConfig(tile=(64, 24), consumers=1, AB_swapped=True)},
    "sm_100a": {"target": "sm_100a"},
    "sm_100a pairs": {"config": MatmulConfig(cta_group=2, mma_shape=(256, 64, 16))},
}


@pytest.mark.parametrize(("name", "schedule"), list(zip(CONFIGS, SCHEDULES, strict=True)))
def test_ids_scales_and_biases_of_experts(name, schedule):
    a, b, bias = integers(95, 40), integers(4, 40, 72), integers(4, 72)
    scales, out = RNG.choice(np.float32([0.5, 1, 2, 3]), 4), poisoned((95, 72), np.float32)
    options = {"expert_ids": IDS, "expert_scales": scales, "bias": bias, "out": out, **CONFIGS[name]}
    wl.launch(grouped_matmul.bind(a, b, ENDS, **options), schedule=schedule)
    np.testing.assert_array_equal(out, by_experts(a, b, IDS, scales, bias, np.nan))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_gates_of_experts(target):
    a, gate, up, bias = integers(95, 40), integers(3, 40, 64), integers(3, 40, 64), integers(3, 64)
    ones, none = np.ones(3), np.zeros((3, 64))
    got = gated_grouped_matmul(a, gate, up, ENDS, expert_ids=IDS, pair="reglu", up_bias=bias, target=target)
    wanted = np.maximum(by_experts(a, gate, IDS, ones, none), 0) * by_experts(a, up, IDS, ones, bias)
    np.testing.assert_array_equal(exact(got), rounded(wanted, BF16))


def test_experts_that_do_not_exist_are_errors():
    a, b = integers(95, 40), integers(4, 40, 72)
    given = {
        "expert_ids": np.array([0, 1, 2, 4, -2]),
        "expert_scales": np.ones(3, np.float32),
        "bias": integers(95, 72),
    }
    with pytest.raises(WarploomError) as error:
        grouped_matmul(a, b, ENDS, **given)
    message = str(error.value)
    assert "`expert_ids` must be indices of the 4 matrices of `b`, or -1, unlike 4 at 3" in message
    assert "`expert_scales` must have one scale for each matrix of `b`, (4, 40, 72)" in message
    with pytest.raises(WarploomError, match=r"a column \(95, 1\), or a row for each expert \(4, 72\)"):
        grouped_matmul(a, b, ENDS, expert_ids=IDS, bias=given["bias"])
    with pytest.raises(WarploomError, match="one id for each of the 5 groups"):
        grouped_matmul(a, b, ENDS, expert_ids=IDS[:3])


ONE_ROW = {
    "sm_100a": (MatmulConfig(cta_group=1, use_tma_epilogue_load=True), (1,)),
    "sm_100a swapped": (
        MatmulConfig(cta_group=1, mma_shape=(64, 16, 16), AB_swapped=True, use_tma_epilogue_load=True),
        (),
    ),
    "sm_90a": (HopperConfig(tile=(64, 64), consumers=1, residual_in_place=True), ()),
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_a_residual_of_one_row_is_loaded(name):
    config, batch = ONE_ROW[name]
    x, w, residual = integers(*batch, 1, 64), integers(*batch, 72, 64), integers(*batch, 1, 72)
    got = wl.matmul(x, w.mT, residual=residual, beta=2, config=config)
    np.testing.assert_array_equal(exact(got), rounded(exact(x) @ exact(w).mT + 2 * exact(residual), BF16))
    got = wl.matmul(x, w.mT, residual=poisoned(residual.shape, BF16), beta=0, config=config)
    np.testing.assert_array_equal(exact(got), rounded(exact(x) @ exact(w).mT, BF16))


def test_beta_without_a_residual_is_an_error():
    x, w = integers(3, 8), integers(5, 8)
    with pytest.raises(WarploomError, match="`beta` needs a `residual`"):
        wl.linear(x, w, beta=0)


def spread(scales, run, k):
    return np.repeat(exact(scales), run, -1)[..., :k]


def powers(*shape, dtype=np.float32):
    return (2.0 ** RNG.integers(-2, 3, shape)).astype(dtype)


@pytest.mark.parametrize(("of_a", "of_b"), [((), (2,)), ((2, 1), (1, 2))])
def test_batches_of_scaled_gemms(of_a, of_b):
    m, n, k = 10, 136, 160
    a, b = integers(*of_a, m, k, dtype=E4M3), integers(*of_b, n, k, dtype=E4M3)
    scales = powers(*of_a, m, 2), powers(*of_b, 2, 2)
    columns = np.repeat(exact(scales[1]), 128, -2)[..., :n, :]
    wanted = (exact(a) * spread(scales[0], 128, k)) @ (exact(b) * spread(columns, 128, k)).mT
    for target in ("sm_90a", "sm_100a"):
        got = blockwise_matmul(a, b, *scales, out_dtype=np.float32, target=target)
        np.testing.assert_array_equal(got, wanted)
    a, b = integers(*of_a, m, k, dtype=E2M1, largest=2), integers(*of_b, n, k, dtype=E2M1, largest=2)
    scales = powers(*of_a, m, k // 32).astype(E8M0), powers(*of_b, n, k // 32).astype(E8M0)
    wanted = (exact(a) * spread(scales[0], 32, k)) @ (exact(b) * spread(scales[1], 32, k)).mT
    for given in (scales, tuple(map(interleave_scales, scales))):
        np.testing.assert_array_equal(block_scaled_matmul(a, b, *given, out_dtype=np.float32), wanted)
