"""Groups of rows, each with its own matrix, against a loop over groups."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.references import BF16, E4M3, exact, integers, poisoned

from warploom.ops import grouped_matmul
from warploom.structured.config import MatmulConfig

ENDS = {
    "one group": (40, [40]),
    "empty groups at both ends": (90, [0, 0, 33, 90, 90]),
    "rows behind the last group": (100, [10, 10, 90]),
    "one row each": (5, [1, 2, 3, 4, 5]),
    "large and small": (300, [0, 256, 257, 300]),
    "nobody": (20, [0, 0]),
}


def by_groups(a, b, ends, rest=0.0):
    wanted, start = np.full((a.shape[0], b.shape[2]), rest), 0
    for matrix, end in zip(b, ends, strict=True):
        wanted[start:end] = exact(a[start:end]) @ exact(matrix)
        start = end
    return wanted


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("name", ENDS)
def test_groups(name, order):
    rows, ends = ENDS[name]
    a, b = integers(rows, 72), integers(len(ends), 72, 61)
    if order == "columns":
        b = np.ascontiguousarray(b.mT).mT
    got = grouped_matmul(a, b, np.array(ends), out_dtype=np.float32)
    np.testing.assert_array_equal(exact(got), by_groups(a, b, ends))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, E4M3], ids=lambda d: np.dtype(d).name)
def test_types(dtype):
    a, b, ends = integers(50, 48, dtype=dtype), integers(2, 48, 64, dtype=dtype), np.array([20, 50], np.int32)
    np.testing.assert_array_equal(exact(grouped_matmul(a, b, ends, out_dtype=np.float32)), by_groups(a, b, ends))


def test_rows_behind_the_last_group_are_left_alone():
    a, b, ends = integers(60, 24), integers(2, 24, 64), np.array([7, 50])
    out = poisoned((60, 64), BF16)
    assert grouped_matmul(a, b, ends, out=out) is out
    np.testing.assert_array_equal(exact(out[:50]), by_groups(a[:50], b, ends))
    assert np.isnan(exact(out[50:])).all()


def test_what_follows():
    a, b, ends = integers(60, 24), integers(2, 24, 61), np.array([7, 60])
    bias, residual, row = integers(61), integers(60, 61), integers(60, 1)
    got = grouped_matmul(
        a, b, ends, bias=bias, activation="relu", residual=residual, beta=2, out_dtype=np.float32,
        operands={"row": row}, epilogue=lambda acc, at, row: acc * row,
    )  # fmt: skip
    wanted = np.maximum(by_groups(a, b, ends) + exact(bias), 0) * exact(row) + 2 * exact(residual)
    np.testing.assert_array_equal(exact(got), wanted)


def test_a_configuration_of_the_callers():
    a, b, ends = integers(200, 72), integers(3, 72, 61), np.array([130, 131, 200])
    config = MatmulConfig(cta_group=2, mma_shape=(256, 64, 16))
    np.testing.assert_array_equal(
        exact(grouped_matmul(a, b, ends, config=config, out_dtype=np.float32)), by_groups(a, b, ends)
    )


def test_no_groups_at_all():
    got = grouped_matmul(integers(3, 8), integers(0, 8, 5), np.zeros(0, np.int64))
    assert got.shape == (3, 5)
    assert not exact(got).any()
