"""The same bits every time and, if batch-invariant, in batches of any size: on data where the order of summation matters."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from tests.ops.references import plan_on

import warploom as wl
from warploom.heuristics import EMULATED, choose, key_of
from warploom.ops.determinism import SETTINGS
from warploom.structured.config.sm90 import HopperConfig

K = 512
SPLIT = HopperConfig(tile=(64, 32), consumers=1, num_split_k=4)
CONFIGS = {
    "cooperative": HopperConfig(tile=(128, 64)),
    "ping-pong": HopperConfig(tile=(64, 64), pingpong=True),
    "splits in a cluster": SPLIT,
    "splits in memory": HopperConfig(tile=(64, 32), consumers=1, num_split_k=4, split_in_cluster=False),
    "stream-K": HopperConfig(tile=(64, 16), consumers=1, stream_k=True),
    "Blackwell": wl.MatmulConfig(),
    "Blackwell's splits": wl.MatmulConfig(num_split_k=4, cta_group=1, mma_shape=(64, 32, 16)),
}
SHARING = ("splits in a cluster", "splits in memory", "stream-K", "Blackwell's splits")


def integers(*shape):
    return np.random.default_rng().integers(-3, 4, shape).astype(ml_dtypes.bfloat16)


def normal(*shape, dtype=ml_dtypes.bfloat16):
    return np.random.default_rng().standard_normal(shape).astype(dtype)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint32)


@pytest.mark.parametrize("name", SHARING)
def test_partial_accumulators_are_added_in_one_order(name):
    steps = np.repeat(
        [1.0, 2.0**13, 2.0**26, -(2.0**26)], 64
    )  # each split is exact, and the sum of the splits is rounded
    a, b, found = (integers(40, 256) * steps).astype(ml_dtypes.bfloat16), integers(256, 24), []
    parts = [a[:, at : at + 64].astype(np.float32) @ b[at : at + 64].astype(np.float32) for at in range(0, 256, 64)]
    assert ((parts[0] + parts[1] + parts[2] + parts[3]) != (parts[3] + parts[2] + parts[1] + parts[0])).any()
    gpu = SimpleNamespace(name="", sms=3 if name == "stream-K" else 132)
    for schedule in ("eager", "reverse", "random", "random"):
        out = np.full((40, 24), np.nan, np.float32)
        wl.launch(plan_on(gpu, wl.matmul, a, b, out=out, config=CONFIGS[name]).launch, schedule=schedule)
        found.append(bits(out))
    assert all((each == found[0]).all() for each in found)


@pytest.mark.parametrize("name", CONFIGS)
def test_only_counters_are_updated_atomically(name):
    text = wl.ptx_of(wl.matmul, normal(100, K), normal(K, 64), config=CONFIGS[name])
    assert all(each.endswith(".u32") for each in re.findall(r"\b(?:atom|red)\.\S+", text))
    assert "reduce.async" not in text


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_row_is_the_same_in_every_batch(target):
    a, b, bias = normal(200, K), normal(K, 32), normal(32)
    residual = normal(200, 32, dtype=np.float32)
    follows = {"bias": bias, "activation": "silu", "out_dtype": np.float32, "target": target}
    whole = None
    with wl.determinism(batch_invariant=True):
        for m in (200, 129, 65, 64, 33, 9, 8, 1):
            plain = wl.matmul(a[:m], b, out_dtype=np.float32, target=target)
            fused = wl.matmul(a[:m], b, residual=residual[:m], **follows)
            whole = whole or (plain, fused)
            for found, want in zip((plain, fused), whole, strict=True):
                assert (bits(found) == bits(want[:m])).all(), m
        assert whole is not None
        turned = wl.matmul(a[::-1], b, out_dtype=np.float32, target=target)
        assert (bits(turned[::-1]) == bits(whole[0])).all(), "a row's place shows"
    split = wl.matmul(a, b, out_dtype=np.float32, config=SPLIT)
    assert (bits(split) != bits(whole[0])).any(), "the inputs are such that the order of a sum does not show"


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_row_is_the_same_in_every_group_and_block(target):
    a, b = normal(140, 256), normal(3, 256, 32)
    narrow = normal(140, 256, dtype=ml_dtypes.float8_e4m3fn), normal(40, 256, dtype=ml_dtypes.float8_e4m3fn)
    factors = np.abs(normal(140, 2, dtype=np.float32)), np.abs(normal(1, 2, dtype=np.float32))
    options = {"out_dtype": np.float32, "target": target}
    with wl.determinism(batch_invariant=True):
        want = wl.matmul(a, b[1], **options)
        for ends in ([0, 140, 140], [100, 101, 140], [3, 75, 90]):
            found = wl.grouped_matmul(a, b, np.array(ends), **options)
            assert (bits(found[ends[0] : ends[1]]) == bits(want[ends[0] : ends[1]])).all()
        whole = wl.blockwise_matmul(*narrow, *factors, **options)
        for m in (1, 9, 65, 130):
            found = wl.blockwise_matmul(narrow[0][:m], narrow[1], factors[0][:m], factors[1], **options)
            assert (bits(found) == bits(whole[:m])).all()


def test_no_split_is_chosen():
    shapes = [(m, n, k) for m in (1, 16, 100, 256, 3000) for n in (64, 256, 4096) for k in (64, 4096, 65536)]
    assert any(choose(key_of("dense", *shape), EMULATED["sm_90a"]).is_split for shape in shapes)
    for shape in shapes:
        for marks in ({}, {"fused": True}, {"fused": True, "residual": True}):
            assert not choose(key_of("dense", *shape, unsplit=True, **marks), EMULATED["sm_90a"]).is_split


def test_determinism_is_restored_and_holds_for_all_threads():
    seen = []
    with wl.determinism(batch_invariant=True):
        with wl.determinism(batch_invariant=False):
            assert not SETTINGS.batch_invariant
        other = threading.Thread(target=lambda: seen.append(SETTINGS.batch_invariant))
        other.start()
        other.join()
    assert seen == [True]
    assert not SETTINGS.batch_invariant
    wl.determinism(batch_invariant=True)
    assert SETTINGS.batch_invariant
    wl.determinism(batch_invariant=False)
    assert not SETTINGS.batch_invariant


@pytest.mark.parametrize("name", SHARING)
def test_a_configuration_that_is_not_batch_invariant_is_refused(name):
    a, b = normal(100, K), normal(K, 64)
    with (
        wl.determinism(batch_invariant=True),
        pytest.raises(wl.LaunchError, match="not allowed with batch_invariant=True"),
    ):
        wl.matmul.bind(a, b, config=CONFIGS[name])


def test_batch_invariant_must_be_a_bool():
    with pytest.raises(wl.WarploomError, match="`batch_invariant` must be True or False, got 3"):
        wl.determinism(batch_invariant=3)
