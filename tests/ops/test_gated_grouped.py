"""`gated_grouped_matmul`: rows in groups, each group with a gate and an up matrix, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.references import ACTIVATIONS, BF16, E4M3, exact, integers, poisoned, reals, rounded
from tests.ops.test_gated import CONFIGS, product
from tests.ops.test_grouped import by_groups

from warploom.diagnostics import LaunchError
from warploom.ops import gated_grouped_matmul, ptx_of
from warploom.structured.config import BlockwiseFP8MatmulConfig, MatmulConfig
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.epilogue.epilogue import PAIRS

TARGETS = ["sm_90a", "sm_100a"]
CLUSTERS = {
    "four of ping-pong": HopperConfig(tile=(64, 64), pingpong=True, cluster_shape=(2, 2, 1)),
    "tall": HopperConfig(tile=(256, 64), cluster_shape=(1, 2, 1)),
    "swapped": HopperConfig(tile=(128, 40), consumers=1, AB_swapped=True),
    "swapped, ping-pong": HopperConfig(tile=(128, 24), pingpong=True, AB_swapped=True),
    "swapped, two consumers": HopperConfig(tile=(256, 16), AB_swapped=True, cluster_shape=(2, 1, 1)),
    "Blackwell, a folded accumulator": MatmulConfig(cta_group=2, mma_shape=(128, 64, 16)),
    "Blackwell, swapped": MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), AB_swapped=True),
}
WAYS = {name: each for name, each in {**CONFIGS, **CLUSTERS}.items() if name != "Blackwell, a cluster"}
"""On Blackwell, groups do not share tiles."""
ENDS = np.array([0, 129, 129, 130, 161, 290])
"""Empty groups, a tile plus one row, one row, a prime number; some rows are after the last group."""


def weights(groups, k, n, **how):
    return integers(groups, k, n, **how), integers(groups, k, n, **how)


def check(a, gate, up, ends, **options):
    kept = {"gate": poisoned((len(a), gate.shape[2]), np.float32), "up": poisoned((len(a), gate.shape[2]), BF16)}
    got = gated_grouped_matmul(
        a, gate, up, np.asarray(ends), pair=product, outputs=kept, out_dtype=np.float32, **options
    )
    first, second = by_groups(a, gate, ends), by_groups(a, up, ends)
    rows = ends[-1]
    np.testing.assert_array_equal(exact(got), first * second)
    np.testing.assert_array_equal(exact(kept["gate"][:rows]), first[:rows])
    np.testing.assert_array_equal(exact(kept["up"][:rows]), rounded(second[:rows], BF16))
    assert all(np.isnan(exact(each[rows:])).all() for each in kept.values())


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("n", [104, 75])
def test_every_work_decomposition(name, n):
    check(integers(300, 72), *weights(len(ENDS), 72, n), ENDS, config=WAYS[name])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("ends", "n", "k"), [([1], 1, 1), ([1, 2, 3], 8, 64), ([64], 64, 63), ([0, 65, 65], 33, 65), ([7, 137], 131, 130)]
)
def test_awkward_sizes(target, ends, n, k):
    check(integers(ends[-1] + 3, k), *weights(len(ends), k, n), ends, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, E4M3], ids=lambda dtype: np.dtype(dtype).name)
def test_types(target, dtype):
    a = integers(50, 72, dtype=dtype, largest=2)
    check(a, *weights(2, 72, 40, dtype=dtype, largest=2), [20, 50], target=target)


HALVES = {
    "of one array": lambda g, k, n: np.split(integers(g, k, 2 * n), 2, axis=2),
    "columns in turn": lambda g, k, n: integers(g, k, n, 2).transpose(3, 0, 1, 2),
    "n by k": lambda g, k, n: np.split(integers(g, 2 * n, k).mT, 2, axis=2),
    "n by k in turn": lambda g, k, n: integers(g, n, 2, k).transpose(2, 0, 3, 1),
    "one of each": lambda g, k, n: (integers(g, k, n), integers(g, n, k).mT),
    "groups last": lambda g, k, n: (integers(k, n, g).transpose(2, 0, 1), integers(g, k, n)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", HALVES)
def test_weights_of_any_strides(target, how):
    check(integers(60, 64), *HALVES[how](3, 64, 48), [20, 21, 55], target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pair", PAIRS)
def test_gated_activations_by_name(target, pair):
    a, gate, up, ends = reals(40, 40), reals(2, 40, 56, scale=0.3), reals(2, 40, 56), np.array([13, 40])
    got = gated_grouped_matmul(a, gate, up, ends, pair=pair, target=target)
    wanted = ACTIVATIONS[PAIRS[pair]](by_groups(a, gate, ends)) * by_groups(a, up, ends)
    assert np.abs(exact(got) - wanted).max() <= 2**-7 * np.abs(wanted).max()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("n", "out_dtype"), [(72, BF16), (61, np.float32)])
def test_order_of_the_epilogue(target, n, out_dtype):
    """Scale and bias of gate and up, the gated activation, the user function, the residual; rows after the last group are not written."""
    a, (gate, up), ends = integers(50, 24), weights(2, 24, n), np.array([20, 44])
    gate_bias, up_bias, residual = integers(n), integers(2, n, dtype=np.float32), integers(50, n, dtype=out_dtype)
    out, halved = poisoned((50, n), out_dtype), poisoned((50, n), np.float32)
    got = gated_grouped_matmul(
        a, gate, up, ends, pair=product, gate_bias=gate_bias, up_bias=up_bias, alpha=2, residual=residual, beta=-0.5,
        epilogue=lambda value, at, shift: {"out": value + shift, "halved": value * 0.5}, operands={"shift": 3.0},
        outputs={"halved": halved}, out=out, target=target,
    )  # fmt: skip
    assert got is out
    up_rows = np.repeat(
        exact(up_bias), [20, 30], axis=0
    )  # a row for each expert; those after the last group are unused
    both = (2 * by_groups(a, gate, ends) + exact(gate_bias)) * (2 * by_groups(a, up, ends) + up_rows)
    np.testing.assert_array_equal(exact(halved[:44]), both[:44] / 2)
    np.testing.assert_array_equal(exact(out[:44]), rounded(both + 3 - 0.5 * exact(residual), out_dtype)[:44])
    assert np.isnan(exact(out[44:])).all()


@settings(max_examples=5)
@given(
    rows=st.lists(st.integers(0, 140), min_size=1, max_size=4),
    n=st.integers(1, 80),
    config=st.sampled_from([CONFIGS["ping-pong"], CONFIGS["one consumer"], CLUSTERS["four of ping-pong"]]),
)
def test_any_groups(rows, n, config):
    ends = np.cumsum(rows)
    check(integers(ends[-1] + 1, 70), *weights(len(rows), 70, n), ends, config=config)


def test_one_kernel_is_launched():
    text = ptx_of(gated_grouped_matmul, integers(64, 64), *weights(2, 64, 64), np.array([7, 64]), target="sm_90a")
    assert text.count(".entry") == 1


def test_empty_arrays():
    got = gated_grouped_matmul(integers(3, 8), *weights(0, 8, 5), np.zeros(0, np.int64))
    assert got.shape == (3, 5)
    assert not exact(got).any()
    assert gated_grouped_matmul(integers(0, 8), *weights(1, 8, 5), np.zeros(1, np.int64)).shape == (0, 5)
    empty = gated_grouped_matmul(
        integers(4, 0), *weights(1, 0, 5), np.array([4]), up_bias=2.0, gate_bias=3.0, pair=product
    )
    assert (exact(empty) == 6).all()


def test_all_invalid_arguments_are_reported():
    with pytest.raises(LaunchError) as found:
        gated_grouped_matmul(
            integers(20, 24), integers(3, 25, 48), integers(3, 24), np.array([5, 21]), pair="swish", gate_bias="three"
        )
    told = str(found.value)
    for part in (
        "`b_gate` must be (groups, k, n), where k is the last axis of `a`",
        "`b_up` must have 3 axes, not 2",
        "`ends` must have one end for each matrix of `b_gate`",
        "`pair` must be one of swiglu, geglu",
    ):
        assert part in told, part
    with pytest.raises(LaunchError, match=r"`b_up` must be like `b_gate`"):
        gated_grouped_matmul(integers(20, 24), integers(2, 24, 48), integers(2, 24, 47), np.array([5, 20]))
    with pytest.raises(LaunchError, match=r"`b_up` must be like `b_gate`") as both:
        gated_grouped_matmul(integers(20, 24), integers(2, 24, 48), integers(2, 24, 47), np.array([5, 21]))
    assert "must not exceed the 20 rows" in str(both.value)
    with pytest.raises(LaunchError, match="must be gate or up unless"):
        gated_grouped_matmul(
            integers(20, 24),
            *weights(2, 24, 48),
            np.array([5, 20]),
            outputs={"pre_activation": poisoned((20, 48), BF16)},
        )


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (HopperConfig(tile=(64, 24), consumers=1), "needs a tile width that is a multiple of 16"),
        (HopperConfig(tile=(64, 32), consumers=1, AB_swapped=True), "with AB_swapped they must be a multiple of 128"),
        (HopperConfig(tile=(64, 64), consumers=1, num_split_k=2), "split-K is for single GEMMs only"),
        (HopperConfig(tile=(128, 64), residual_in_place=True), "only a dense GEMM loads its residual"),
        (CONFIGS["Blackwell, a cluster"], "in gmm: tiles of groups share nothing"),
        (BlockwiseFP8MatmulConfig(), "must be a MatmulConfig"),
    ],
)
def test_configurations_without_gated_kernels(config, what):
    with pytest.raises(LaunchError, match=what):
        gated_grouped_matmul(integers(64, 128), *weights(1, 128, 64), np.array([64]), config=config)
