"""`gated_linear`: two GEMMs combined element by element, against NumPy, bit-exact where possible."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.ops.references import ACTIVATIONS, BF16, E4M3, E5M2, exact, integers, poisoned, reals, rounded

from warploom import check as check_launch
from warploom import launch
from warploom.diagnostics import LaunchError
from warploom.ops import gated_linear, ptx_of
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.epilogue.epilogue import PAIRS

CONFIGS = {
    "ping-pong": HopperConfig(tile=(128, 96), pingpong=True),
    "cooperative": HopperConfig(tile=(128, 128)),
    "one consumer": HopperConfig(tile=(64, 80), consumers=1),
    "stacked": HopperConfig(tile=(128, 32), consumers=1),
    "a cluster": HopperConfig(tile=(128, 64), cluster_shape=(2, 1, 1)),
    "stores of threads": HopperConfig(tile=(128, 64), use_tma_store=False),
    "Blackwell": MatmulConfig(cta_group=1, mma_shape=(64, 64, 16)),
    "Blackwell, a cluster": MatmulConfig(cta_group=1, mma_shape=(128, 64, 16), cluster_shape=(2, 1, 1)),
    "Blackwell, two CTAs": MatmulConfig(cta_group=2, mma_shape=(256, 128, 16)),
    "Blackwell, by shared memory": MatmulConfig(cta_group=1, mma_shape=(128, 64, 16), register_based_epilogue=False),
}


VARIANTS = {
    "swapped": (HopperConfig(tile=(128, 40), consumers=1, AB_swapped=True), "lazy"),
    "swapped, two consumers": (HopperConfig(tile=(256, 24), AB_swapped=True), "reverse"),
    "swapped, ping-pong": (HopperConfig(tile=(128, 64), pingpong=True, AB_swapped=True), "random"),
    "swapped, stacked": (HopperConfig(tile=(256, 16), consumers=1, AB_swapped=True), "eager"),
    "swapped, weights multicast": (
        HopperConfig(tile=(128, 32), consumers=1, AB_swapped=True, cluster_shape=(1, 2, 1)),
        "reverse",
    ),
    "split": (HopperConfig(tile=(128, 96), num_split_k=3), "random"),
    "split, stacked": (HopperConfig(tile=(128, 64), consumers=1, num_split_k=4, split_in_cluster=False), "lazy"),
    "split by memory": (HopperConfig(tile=(128, 64), num_split_k=2, split_in_cluster=False), "reverse"),
    "split, swapped": (HopperConfig(tile=(256, 32), consumers=1, AB_swapped=True, num_split_k=2), "eager"),
    "split by memory, swapped": (
        HopperConfig(tile=(256, 32), AB_swapped=True, num_split_k=4, split_in_cluster=False),
        "random",
    ),
    "stream-K": (HopperConfig(tile=(128, 64), stream_k=True, cluster_shape=(2, 1, 1)), "lazy"),
    "stream-K, ping-pong": (HopperConfig(tile=(128, 64), stream_k=True, pingpong=True), "eager"),
    "stream-K, swapped": (HopperConfig(tile=(128, 32), stream_k=True, pingpong=True, AB_swapped=True), "reverse"),
}
"""Hopper configurations in which K is divided among CTAs or weights are along M, with a schedule for each."""


def product(gate, up):
    return gate * up


def both(x, gate, up, gate_bias=0, up_bias=0):
    return exact(x) @ exact(gate).T + exact(gate_bias), exact(x) @ exact(up).T + exact(up_bias)


def check(x, gate, up, **options):
    got = gated_linear(x, gate, up, pair=product, out_dtype=np.float32, **options)
    first, second = both(x, gate, up)
    np.testing.assert_array_equal(exact(got), first * second)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("n", [104, 75])
def test_every_work_decomposition(name, n):
    check(integers(130, 200), integers(n, 200), integers(n, 200), config=CONFIGS[name])


def scheduled(schedule, x, gate, up, **options):
    """Check a launch under a schedule; the result is not rounded."""
    out = poisoned((len(x), len(gate)), np.float32)
    launch(gated_linear.bind(x, gate, up, pair=product, out=out, **options), schedule=schedule)
    first, second = both(x, gate, up)
    np.testing.assert_array_equal(exact(out), first * second)


@pytest.mark.parametrize("name", VARIANTS)
def test_swapped_and_divided(name):
    (config, schedule), (m, n, k) = VARIANTS[name], random.choice([(130, 75, 260), (65, 129, 201), (1, 104, 301)])
    scheduled(schedule, integers(m, k), integers(n, k), integers(n, k), config=config)


@pytest.mark.parametrize("name", VARIANTS)
def test_swapped_and_divided_with_a_whole_epilogue(name):
    x, gate, up, gate_bias, up_bias = (
        integers(70, 320),
        *(integers(72, 320) for _ in range(2)),
        integers(72),
        integers(72),
    )
    residual, config = integers(70, 72), VARIANTS[name][0]
    kept = {"gate": poisoned((70, 72), BF16), "up": poisoned((70, 72), BF16)}
    options = {"pair": product, "gate_bias": gate_bias, "up_bias": up_bias, "residual": residual}
    got = gated_linear(x, gate, up, outputs=kept, config=config, **options)
    in_place = gated_linear(x, gate, up, config=config.replace(residual_in_place=True), **options)
    first, second = both(x, gate, up, gate_bias, up_bias)
    wanted = rounded(first * second + exact(residual), BF16)
    np.testing.assert_array_equal(exact(got), wanted)
    np.testing.assert_array_equal(exact(in_place), wanted)
    np.testing.assert_array_equal(exact(kept["gate"]), rounded(first, BF16))
    np.testing.assert_array_equal(exact(kept["up"]), rounded(second, BF16))


@pytest.mark.parametrize("name", ["swapped, ping-pong", "split, swapped", "split by memory", "stream-K, ping-pong"])
def test_swapped_and_divided_are_proved(name):
    bound = gated_linear.bind(integers(20, 200), *(integers(72, 200) for _ in range(2)), config=VARIANTS[name][0])
    assert check_launch(bound).verdict == "PROVED"


@settings(max_examples=6)
@given(
    sizes=st.tuples(st.integers(1, 200), st.integers(1, 150), st.integers(130, 400)),
    columns=st.integers(1, 8).map(lambda n: 16 * n),
    rows=st.sampled_from([(128, {"consumers": 1}), (256, {}), (128, {"pingpong": True})]),
    swapped=st.booleans(),
    divided=st.sampled_from(
        [{}, {"num_split_k": 2}, {"num_split_k": 2, "split_in_cluster": False}, {"stream_k": True}]
    ),
    schedule=st.sampled_from(["eager", "lazy", "reverse", "random"]),
)
def test_any_configuration(sizes, columns, rows, swapped, divided, schedule):
    m, n, k = sizes
    config = HopperConfig(tile=(rows[0], columns), AB_swapped=swapped, **rows[1], **divided)
    assume(not config.replace(gated=True).violations())
    scheduled(schedule, integers(m, k), integers(n, k), integers(n, k), config=config)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 129, 63), (64, 64, 64), (65, 8, 65), (131, 97, 70)])
def test_awkward_sizes(target, m, n, k):
    check(integers(m, k), integers(n, k), integers(n, k), target=target)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, E4M3, E5M2], ids=lambda dtype: np.dtype(dtype).name)
def test_types(target, dtype):
    check(*(integers(rows, 72, dtype=dtype, largest=2) for rows in (70, 40, 40)), target=target)


HALVES = {
    "of one matrix": lambda n, k: np.split(integers(2 * n, k), 2),
    "in turn": lambda n, k: integers(n, 2, k).transpose(1, 0, 2),
    "k by n": lambda n, k: np.split(integers(k, 2 * n).T, 2),
    "one of each": lambda n, k: (integers(n, k), integers(k, n).T),
    "backwards": lambda n, k: (integers(n, k)[::-1], integers(n, k)),
    "odd rows": lambda n, k: (integers(n, k + 1)[:, 1:], integers(n, k)),
}


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("how", HALVES)
def test_weights_of_any_strides(target, how):
    check(integers(3, 30, 64), *HALVES[how](48, 64), target=target)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("pair", PAIRS)
def test_gated_activations_by_name(target, pair):
    x, gate, up, gate_bias, up_bias = reals(60, 40), reals(56, 40, scale=0.3), reals(56, 40), reals(56), reals(56)
    for dtype in (BF16, np.float32):
        got = gated_linear(x, gate, up, pair=pair, gate_bias=gate_bias, up_bias=up_bias, out_dtype=dtype, target=target)
        first, second = both(x, gate, up, gate_bias, up_bias)
        wanted = ACTIVATIONS[PAIRS[pair]](first) * second
        step = 2**-7 if dtype is BF16 else 2**-18
        assert np.abs(exact(got) - wanted).max() <= step * np.abs(wanted).max()


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("n", "out_dtype"), [(72, BF16), (61, np.float32)])
def test_order_of_the_epilogue(target, n, out_dtype):
    """Scale and bias of gate and up, the gated activation, the user function, the residual; gate and up are also outputs."""
    x, gate, up, residual = integers(50, 24), integers(n, 24), integers(n, 24), integers(50, n, dtype=out_dtype)
    gate_bias, up_bias = integers(n), integers(50, 1, dtype=np.float32)
    kept = {
        "gate": poisoned((50, n), BF16),
        "up": poisoned((50, n), np.float32),
        "halved": poisoned((50, n), np.float32),
    }
    got = gated_linear(
        x, gate, up, pair=product, gate_bias=gate_bias, up_bias=up_bias, alpha=2, residual=residual, beta=-0.5,
        epilogue=lambda value, at, shift: {"out": value + shift, "halved": value * 0.5}, operands={"shift": 3.0},
        outputs=kept, out_dtype=out_dtype, target=target,
    )  # fmt: skip
    first, second = both(2 * exact(x), gate, up, gate_bias, up_bias)
    np.testing.assert_array_equal(exact(kept["gate"]), rounded(first, BF16))
    np.testing.assert_array_equal(exact(kept["up"]), second)
    np.testing.assert_array_equal(exact(kept["halved"]), first * second / 2)
    np.testing.assert_array_equal(exact(got), rounded(first * second + 3 - 0.5 * exact(residual), out_dtype))


def test_a_residual_in_the_buffers_of_d():
    x, gate, up, residual = integers(150, 64), integers(96, 64), integers(96, 64), integers(150, 96)
    config = HopperConfig(tile=(128, 64), pingpong=True, residual_in_place=True)
    got = gated_linear(x, gate, up, pair=product, residual=residual, config=config)
    first, second = both(x, gate, up)
    np.testing.assert_array_equal(exact(got), rounded(first * second + exact(residual), BF16))


@settings(max_examples=8)
@given(
    sizes=st.tuples(st.integers(1, 200), st.integers(1, 150), st.integers(1, 150)),
    columns=st.integers(1, 12).map(lambda n: 16 * n),
    pingpong=st.booleans(),
)
def test_any_shape(sizes, columns, pingpong):
    m, n, k = sizes
    check(integers(m, k), integers(n, k), integers(n, k), config=HopperConfig(tile=(128, columns), pingpong=pingpong))


def test_one_kernel_is_launched():
    text = ptx_of(gated_linear, *(integers(64, 64) for _ in range(3)), target="sm_90a")
    assert text.count(".entry") == 1


def test_all_invalid_arguments_are_reported():
    x = integers(20, 24)
    with pytest.raises(LaunchError) as found:
        gated_linear(x, integers(48, 24), integers(47, 24), pair="swish", up_bias=integers(20))
    told = str(found.value)
    assert "`w_up` must be like `w_gate`, bfloat16 (48, 24), got bfloat16 (47, 24)" in told
    assert "`pair` must be one of swiglu, geglu" in told
    with pytest.raises(LaunchError, match=r"`gate_bias` must broadcast to D"):
        gated_linear(x, integers(48, 24), integers(48, 24), gate_bias=integers(20))
    with pytest.raises(LaunchError, match=r"two values: pair\(gate, up\)"):
        gated_linear(x, integers(48, 24), integers(48, 24), pair=lambda gate: gate)
    with pytest.raises(LaunchError, match="must be gate or up unless"):
        gated_linear(x, integers(48, 24), integers(48, 24), outputs={"pre_activation": poisoned((20, 48), BF16)})


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (HopperConfig(tile=(64, 24), consumers=1), "needs a tile width that is a multiple of 16"),
        (HopperConfig(tile=(64, 32), consumers=1, AB_swapped=True), "gives a consumer 64 rows; with AB_swapped they"),
        (
            HopperConfig(tile=(64, 48), consumers=1, num_split_k=2),
            "needs a multiple of 16 columns of gate and of up, but a tile has 24",
        ),
        (MatmulConfig(cta_group=1, mma_shape=(64, 24, 16)), "does not divide the accumulator's 12 columns"),
    ],
)
def test_configurations_without_gated_kernels(config, what):
    with pytest.raises(LaunchError, match=what):
        gated_linear(integers(64, 128), integers(64, 128), integers(64, 128), config=config)
