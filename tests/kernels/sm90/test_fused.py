"""Fused epilogues of Hopper's kernels: residuals in the buffers of C, with splits and without, and rows of bias."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.assembly import sass_of
from tests.kernels.hopper_problems import SCHEDULES

import warploom
from warploom import launch
from warploom.diagnostics import Diag, WarploomError
from warploom.structured.config.sm90 import HopperConfig

BF16 = ml_dtypes.bfloat16
TURNED = {"consumers": 1, "AB_swapped": True}
IN_PLACE: dict[str, dict[str, Any]] = {
    "two splits": {"tile": (64, 64), "consumers": 1, "num_split_k": 2},
    "two splits, turned": {"tile": (64, 128), **TURNED, "num_split_k": 2},
    "narrow splits, turned": {"tile": (64, 16), **TURNED, "num_split_k": 2},
    "four splits": {"tile": (128, 64), "num_split_k": 4},
    "splits that meet in memory": {"tile": (128, 64), "num_split_k": 2, "split_in_cluster": False},
    "64 rows at a time": {"tile": (128, 40), "pingpong": True, "num_output_stages": 5},
    "64 rows at a time, turned": {"tile": (128, 32), "consumers": 1, "AB_swapped": True, "num_output_stages": 1},
    "a wide tile": {"tile": (128, 192), "pingpong": True},
}


def bound(m: int, n: int, k: int, *, bias_type: Any = BF16, **fields: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """A launch with a bias, relu and a residual; where it writes, and what it should."""
    rng = np.random.default_rng()
    a, b, residual = (rng.integers(-2, 3, shape).astype(BF16) for shape in ((m, k), (n, k), (m, n)))
    bias = rng.integers(-9, 10, n).astype(bias_type)
    rows = np.full((m, -(-n // 8) * 8 + 8), np.nan, BF16)
    given: dict[str, Any] = {"bias": bias, "activation": "relu", "residual": residual, "out": rows[:, :n]}
    made = warploom.matmul.bind(a, b.T, **given, config=HopperConfig(**fields), target="sm_90a")
    a, b, bias, residual = (each.astype(np.float64) for each in (a, b, bias, residual))
    return made, rows, (np.maximum(a @ b.T + bias, 0) + residual).astype(BF16)


def check(*sizes: int, schedule: str = "eager", seed: int = 0, **options: Any) -> None:
    made, rows, want = bound(*sizes, **options)
    launch(made, schedule=schedule, seed=seed, sms=8)
    np.testing.assert_array_equal(rows[:, : want.shape[1]].astype(float), want.astype(float))
    assert np.isnan(rows[:, want.shape[1] :].astype(float)).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("how", ["two splits", "narrow splits, turned", "64 rows at a time"])
def test_residuals_in_place_under_every_schedule(how: str, schedule: str, seed: int) -> None:
    check(70, 72, 330, schedule=schedule, seed=seed, residual_in_place=True, **IN_PLACE[how])


@pytest.mark.parametrize("how", IN_PLACE)
def test_residuals_in_place(how: str) -> None:
    check(67, 80, 330, schedule="random", seed=1, residual_in_place=True, **IN_PLACE[how])


@pytest.mark.parametrize("k", [1, 129])
def test_residuals_in_place_with_any_number_of_k_tiles(k: int) -> None:
    check(65, 72, k, schedule="lazy", residual_in_place=True, tile=(64, 64), pingpong=True)


@pytest.mark.parametrize(("m", "bias_type"), [(2, np.float32), (300, BF16)])
def test_a_bias_is_in_shared_memory_where_accumulators_fill_the_registers(m: int, bias_type: Any) -> None:
    fields = {"tile": (128, 176), "pingpong": True, "residual_in_place": True}
    check(m, 200, 100, schedule="random", seed=2, bias_type=bias_type, **fields)
    made, _, _ = bound(m, 200, 100, bias_type=bias_type, **fields)
    assert sass_of(made).count("LDG") == 2  # by 128 threads for 176 columns


@pytest.mark.parametrize("n", [71, 72, 73])
def test_threads_store_neighbours_together_if_they_fill_a_word(n: int) -> None:
    """Rows of an even number of elements: a word may start inside C and end outside."""
    check(70, n, 70, tile=(64, 64), consumers=1, use_tma_store=False)
    made, _, _ = bound(70, n, 70, tile=(64, 64), consumers=1, use_tma_store=False)
    assert sass_of(made).count("STG") == sass_of(made).count("STG", "U16") * 2


WIDE: dict[str, dict[str, Any]] = {
    "192 sums": {"tile": (128, 192), "pingpong": True},
    "192 sums, cooperative": {"tile": (256, 192), "cluster_shape": (2, 1, 1)},
}


@pytest.mark.parametrize("how", WIDE)
def test_wide_tiles_keep_everything_in_registers(how: str) -> None:
    a, b, residual = (np.zeros(shape, BF16) for shape in ((256, 64), (64, 384), (256, 384)))
    given: dict[str, Any] = {"bias": np.zeros(384, BF16), "activation": "gelu_tanh", "residual": residual}
    config = HopperConfig(**WIDE[how], residual_in_place=True).validated()
    assert sass_of(warploom.matmul.bind(a, b, **given, config=config, target="sm_90a")).count("STL") == 0


def test_splits_of_a_cluster_wait_only_for_accumulators() -> None:
    """No fence at GPU scope, and no barrier except one at which all threads have already arrived."""
    made, _, _ = bound(130, 200, 520, residual_in_place=True, **IN_PLACE["two splits, turned"])
    sass = sass_of(made)
    assert sass.count("MEMBAR", "GPU") == 0
    assert sass.count("STAS") == 16  # eight for each of the two that this CTA may send to
    assert sass.count("UCGABAR_ARV") == sass.count("UCGABAR_WAIT") == 1


def test_split_k_through_memory_fences_once() -> None:
    made, _, _ = bound(130, 200, 520, **IN_PLACE["splits that meet in memory"])
    assert sass_of(made).count("MEMBAR", "GPU") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"use_tma_store": False},
        {"tile": (128, 64), "num_split_k": 16, "split_in_cluster": False, "use_tma_store": False},
        {"tile": (128, 128), "pingpong": True, "num_output_stages": 3},
    ],
)
def test_residual_buffers_hold_64_rows_or_a_tile(fields: dict[str, Any]) -> None:
    with pytest.raises(WarploomError) as found:
        HopperConfig(**fields, residual_in_place=True).validated()
    assert found.value.diag is Diag.BAD_CONFIG
