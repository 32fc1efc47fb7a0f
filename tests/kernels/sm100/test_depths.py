"""Batches that share A and B along K, each with K tiles of its own: what the weights of a grouped product need."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from tests.ops.references import plan_on

from warploom import launch
from warploom.ops.grouped import padded_weights
from warploom.ops.planning.planner import plan
from warploom.ops.planning.request import Request
from warploom.structured.config.sm90 import HopperConfig

RNG = np.random.default_rng()
TILE = {ml_dtypes.bfloat16: 64, np.float32: 32}


def integers(*shape, dtype):
    return RNG.integers(-2, 3, shape).astype(dtype)


def sums(a, d, ends):
    """For each batch the product of its rows of a, transposed, and of d."""
    return np.stack([a[first:last].astype(float).T @ d[first:last].astype(float) for first, last in pairwise(ends)])


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("k", "n", "dtype"), [(136, 72, ml_dtypes.bfloat16), (33, 129, ml_dtypes.bfloat16), (40, 24, np.float32)]
)
@pytest.mark.parametrize("tiles", [[1], [1, 3, 1, 2], [0, 5, 0, 0, 1, 0]], ids=str)
@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_every_batch_has_its_own_k_extent(target, k, n, dtype, tiles, schedule):
    tile = TILE[dtype]
    starts = np.cumsum([0, *tiles]).astype(np.int32)
    rows = (starts[-1] + 1) * tile  # more than any batch has
    a, d = integers(rows, k, dtype=dtype), integers(rows, n, dtype=dtype)
    out = np.full((len(tiles), k, n), np.nan, dtype)
    gpu = SimpleNamespace(name="", sms=2)
    planned = plan_on(gpu, padded_weights, a, d, starts, alpha=2.0, out=out, target=target)
    launch(planned.launch, schedule=schedule)
    np.testing.assert_array_equal(out.astype(float), (2 * sums(a, d, starts * tile)).astype(dtype).astype(float))


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_a_residual_in_place_with_an_empty_batch(schedule):
    starts = np.array([0, 0, 2, 2], np.int32)
    a, d = integers(128, 70, dtype=ml_dtypes.bfloat16), integers(128, 72, dtype=ml_dtypes.bfloat16)
    residual = integers(3, 70, 72, dtype=ml_dtypes.bfloat16)
    config = HopperConfig(tile=(64, 64), consumers=1, mmas_in_flight=2, residual_in_place=True)
    operands = {"a": a.mT, "b": d.mT, "shape": (3, 70, 72), "batches": 1, "extra": {"starts": starts}}
    planned = plan(Request(function="matmul", **operands, residual=residual, config=config, target="sm_90a"))
    planned.result[...] = np.nan
    launch(planned.launch, schedule=schedule, sms=2)
    want = sums(a, d, starts * 64) + residual.astype(float)
    np.testing.assert_array_equal(planned.result.astype(float), want.astype(ml_dtypes.bfloat16).astype(float))
