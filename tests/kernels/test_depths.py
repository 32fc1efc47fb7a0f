"""Batches that share A and B along K, each with K tiles of its own: what the weights of a grouped product need."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from warploom import launch
from warploom.ops.grouped import padded_weights
from warploom.ops.request import GPU

RNG = np.random.default_rng()
TILE = {ml_dtypes.bfloat16: 64, np.float32: 32}


def integers(*shape, dtype):
    return RNG.integers(-2, 3, shape).astype(dtype)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    ("k", "n", "dtype"), [(136, 72, ml_dtypes.bfloat16), (33, 129, ml_dtypes.bfloat16), (40, 24, np.float32)]
)
@pytest.mark.parametrize("tiles", [[1], [1, 3, 1, 2], [5, 1]], ids=str)
@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_every_batch_has_its_own_depth(target, k, n, dtype, tiles, schedule):
    tile = TILE[dtype]
    starts = np.cumsum([0, *tiles]).astype(np.int32)
    rows = (starts[-1] + 1) * tile  # more than any batch has
    a, d = integers(rows, k, dtype=dtype), integers(rows, n, dtype=dtype)
    out = np.full((len(tiles), k, n), np.nan, dtype)
    token = GPU.set(SimpleNamespace(name="", sms=2))
    try:
        launch(padded_weights.bind(a, d, starts, alpha=2.0, out=out, target=target), schedule=schedule)
    finally:
        GPU.reset(token)
    for batch, (first, last) in enumerate(zip(starts * tile, starts[1:] * tile, strict=False)):
        want = 2 * a[first:last].astype(float).T @ d[first:last].astype(float)
        np.testing.assert_array_equal(out[batch].astype(float), want.astype(dtype).astype(float))
