"""Groups of rows, each with its own matrix, against a loop over groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.ops.references import BF16, E4M3, exact, integers, poisoned, rounded

from warploom.ops import grouped_matmul
from warploom.ops.planning.arrays import Violations
from warploom.ops.planning.planner import plan
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig

ENDS = {
    "one group": (40, [40]),
    "empty groups at both ends": (90, [0, 0, 33, 90, 90]),
    "rows after the last group": (100, [10, 10, 90]),
    "one row each": (5, [1, 2, 3, 4, 5]),
    "large and small": (300, [0, 256, 257, 300]),
    "only empty groups": (20, [0, 0]),
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


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("k", [1, 64])
def test_column_major_rows(target, k):
    """Groups begin at any row, and TMA needs 16-byte aligned row starts."""
    a, b, ends = integers(k, 24).T, integers(3, k, 40), np.array([3, 4, 24])
    np.testing.assert_array_equal(
        exact(grouped_matmul(a, b, ends, target=target)), rounded(by_groups(a, b, ends), BF16)
    )


def test_rows_after_the_last_group_are_not_written():
    a, b, ends = integers(60, 24), integers(2, 24, 64), np.array([7, 50])
    out = poisoned((60, 64), BF16)
    assert grouped_matmul(a, b, ends, out=out) is out
    np.testing.assert_array_equal(exact(out[:50]), by_groups(a[:50], b, ends))
    assert np.isnan(exact(out[50:])).all()


def test_epilogue():
    a, b, ends = integers(60, 24), integers(2, 24, 61), np.array([7, 60])
    bias, residual, row = integers(61), integers(60, 61), integers(60, 1)
    got = grouped_matmul(
        a, b, ends, bias=bias, activation="relu", residual=residual, beta=2, out_dtype=np.float32,
        operands={"row": row}, epilogue=lambda acc, at, row: acc * row,
    )  # fmt: skip
    wanted = np.maximum(by_groups(a, b, ends) + exact(bias), 0) * exact(row) + 2 * exact(residual)
    np.testing.assert_array_equal(exact(got), wanted)


def test_a_user_configuration():
    a, b, ends = integers(200, 72), integers(3, 72, 61), np.array([130, 131, 200])
    config = MatmulConfig(cta_group=2, mma_shape=(256, 64, 16))
    np.testing.assert_array_equal(
        exact(grouped_matmul(a, b, ends, config=config, out_dtype=np.float32)), by_groups(a, b, ends)
    )


def test_no_groups():
    got = grouped_matmul(integers(3, 8), integers(0, 8, 5), np.zeros(0, np.int64))
    assert got.shape == (3, 5)
    assert not exact(got).any()


CONFIGS = {
    "ping-pong": HopperConfig(tile=(128, 96), pingpong=True),
    "cooperative, one buffer": HopperConfig(tile=(128, 40), num_output_stages=1),
    "one consumer": HopperConfig(tile=(64, 48), consumers=1),
    "swapped": HopperConfig(tile=(64, 24), consumers=1, AB_swapped=True),
    "swapped ping-pong": HopperConfig(tile=(64, 16), pingpong=True, AB_swapped=True),
    "clusters": HopperConfig(tile=(64, 64), pingpong=True, cluster_shape=(2, 2, 1)),
    "stores of threads": HopperConfig(tile=(128, 64), use_tma_store=False),
    "Blackwell": MatmulConfig(cta_group=1, mma_shape=(64, 32, 16)),
    "Blackwell, two CTAs": MatmulConfig(cta_group=2, mma_shape=(256, 64, 16)),
    "Blackwell, swapped": MatmulConfig(cta_group=1, mma_shape=(128, 32, 16), AB_swapped=True),
    "Blackwell, by shared memory": MatmulConfig(cta_group=1, mma_shape=(128, 64, 16), register_based_epilogue=False),
}


ONLY_STORABLE = ("cooperative, one buffer", "stores of threads")
"""Options that do not matter if threads store."""


@pytest.mark.parametrize(
    ("name", "n"), [(name, n) for name in CONFIGS for n in (104, 61) if n == 104 or name not in ONLY_STORABLE]
)
def test_outputs_of_every_type(name, n):
    """Each ends where its group does, whether TMA or threads store it."""
    ends = np.array([0, 1, 130, 130, 167, 190])
    a, b, bias, factor = integers(193, 72, largest=1), integers(6, 72, n, largest=1), integers(n), integers(193, 1)
    kept = {
        "pre_activation": poisoned((193, n), np.float32),
        "double": poisoned((193, n), BF16),
        "scaled": poisoned((193, n), E4M3),
    }
    out = poisoned((193, n), BF16)
    grouped_matmul(
        a, b, ends, bias=bias, activation="relu", operands={"factor": factor}, outputs=kept, out=out,
        epilogue=lambda acc, at, factor: {"out": acc + 1, "double": acc * 2, "scaled": acc * factor},
        config=CONFIGS[name],
    )  # fmt: skip
    before = by_groups(a, b, ends) + exact(bias)
    after = np.maximum(before, 0)
    wanted = {"pre_activation": before, "double": 2 * after, "scaled": after * exact(factor), "out": after + 1}
    for each, array in {**kept, "out": out}.items():
        np.testing.assert_array_equal(exact(array[:190]), rounded(wanted[each], array.dtype)[:190], each)
        assert np.isnan(exact(array[190:])).all(), each


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", ENDS)
def test_outputs_of_chosen_configurations(name, target):
    rows, ends = ENDS[name]
    a, b = integers(rows, 64), integers(len(ends), 64, 72)
    whole = poisoned((rows, 144), np.float32)
    before = whole[:, 8:80]
    got = grouped_matmul(a, b, np.array(ends), activation="relu", outputs={"pre_activation": before}, target=target)
    wanted = by_groups(a, b, ends)
    np.testing.assert_array_equal(exact(before[: ends[-1]]), wanted[: ends[-1]])
    np.testing.assert_array_equal(exact(got), rounded(np.maximum(wanted, 0), BF16))
    assert np.isnan(whole).sum() == whole.size - 72 * ends[-1]


CLEARED = {
    "after the last group": (100, [10, 10, 90], None),
    "nowhere": (64, [32, 64], None),
    "everywhere": (20, [0, 0], None),
    "groups that are not computed": (70, [3, 20, 20, 61], [1, -1, 0, 1]),
    "all groups": (33, [16, 33], [-1, -1]),
}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        *((name, None) for name in CLEARED),
        ("after the last group", HopperConfig(tile=(128, 64), pingpong=True)),
        ("groups that are not computed", HopperConfig(AB_swapped=True)),
    ],
)
def test_the_kernel_clears_rows_of_no_group(name, config):
    """A new result needs no zeros before the launch: here it begins as NaN."""
    rows, ends, experts = CLEARED[name]
    a, b, out = integers(rows, 40), integers(len(ends), 40, 72), poisoned((rows, 72), BF16)
    arguments = {"a": a, "b": b, "ends": np.array(ends), "out": out, "config": config, "target": "sm_90a"}
    if experts is not None:
        arguments["expert_ids"] = np.array(experts)
    violations = Violations("grouped_matmul")
    request = grouped_matmul.request(arguments, violations)
    plan(replace(request, clears=True), violations).run()
    matrices = b if experts is None else np.stack([b[each] if each >= 0 else np.zeros_like(b[0]) for each in experts])
    np.testing.assert_array_equal(exact(out), rounded(by_groups(a, matrices, ends), BF16))
