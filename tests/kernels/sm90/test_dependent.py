"""Hopper kernels that may start before the previous grid has completed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import warploom
from warploom import launch
from warploom.heuristics import key_of
from warploom.heuristics.sm90.candidates import build, row_of
from warploom.host.program import text_of
from warploom.structured.config.sm90 import MACHINE, HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig

MEMORY = ("mbarrier", "cp.async", "wgmma", "ld.global", "st.global", "red.", "atom.")
"""Instructions that a role must not execute before the previous grid has completed; barriers are included strictly."""
M, N, K = 136, 72, 328


def dense(rng: np.random.Generator) -> tuple[Any, dict[str, Any], np.ndarray]:
    a, b = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((M, K), (K, N)))
    return warploom.matmul, {"a": a, "b": b}, a.astype(np.float32) @ b.astype(np.float32)


def fused(rng: np.random.Generator) -> tuple[Any, dict[str, Any], np.ndarray]:
    operation, given, want = dense(rng)
    bias, residual = (rng.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((N,), (M, N)))
    want = want + bias.astype(np.float32) + residual.astype(np.float32)
    return operation, {**given, "bias": bias, "residual": residual}, want


def grouped(rng: np.random.Generator) -> tuple[Any, dict[str, Any], np.ndarray]:
    a = rng.integers(-3, 4, (M, K)).astype(ml_dtypes.bfloat16)
    b = rng.integers(-3, 4, (3, K, N)).astype(ml_dtypes.bfloat16)
    ends = np.array([70, 70, M], np.int32)
    parts = ((a[:70], b[0]), (a[70:], b[2]))
    want = np.concatenate([rows.astype(np.float32) @ weights.astype(np.float32) for rows, weights in parts])
    return warploom.grouped_matmul, {"a": a, "b": b, "ends": ends}, want


def blockwise(rng: np.random.Generator) -> tuple[Any, dict[str, Any], np.ndarray]:
    a, b = (rng.integers(-3, 4, (rows, 256)).astype(ml_dtypes.float8_e4m3fn) for rows in (M, N))
    a_scale, b_scale = np.full((M, 2), 0.5, np.float32), np.full((1, 2), 4, np.float32)
    given = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale}
    return warploom.blockwise_matmul, given, 2 * (a.astype(np.float32) @ b.astype(np.float32).T)


CASES = {
    "ping-pong": (dense, HopperConfig, {"pingpong": True}),
    "cooperative": (dense, HopperConfig, {"tile": (128, 64), "use_tma_store": False}),
    "splits in a cluster": (dense, HopperConfig, {"tile": (128, 64), "num_split_k": 2}),
    "splits in memory": (dense, HopperConfig, {"tile": (128, 64), "num_split_k": 2, "split_in_cluster": False}),
    "bias and residual": (fused, HopperConfig, {"tile": (128, 64), "residual_in_place": True}),
    "grouped": (grouped, HopperConfig, {"tile": (64, 64), "consumers": 1}),
    "blockwise": (blockwise, HopperBlockwiseConfig, {"tile": (128, 64)}),
}


@pytest.mark.parametrize(("make", "kind", "fields"), CASES.values(), ids=CASES)
def test_every_role_waits_for_the_previous_kernel_and_launches_dependents(
    make: Any, kind: Any, fields: dict[str, Any]
) -> None:
    operation, given, want = make(np.random.default_rng())
    out = np.full((M, N), np.nan, ml_dtypes.bfloat16)
    calls = [
        operation.bind(**given, config=kind(**fields, dependent=dependent), out=out, target="sm_90a")
        for dependent in (False, True)
    ]
    assert [call.dependent for call in calls] == [False, True]
    launch(calls[1])
    assert (out == want.astype(out.dtype)).all()
    before, text = (text_of(call.program) for call in calls)
    assert "griddepcontrol" not in before
    common, *roles = text.split("//!wl role ")
    assert not any(word in common for word in ("cp.async", "ld.global", "st.global"))
    for role in roles:
        first = min(role.index(word) for word in MEMORY if word in role)
        assert role.index("griddepcontrol.wait") < first
    (loads,) = (role for role in roles if "griddepcontrol.launch_dependents" in role)  # one warp of a CTA is enough
    assert loads.startswith("load")
    assert loads.rindex("cp.async.bulk.tensor") < loads.index("griddepcontrol.launch_dependents")


@pytest.mark.parametrize("tile", [(64, 16), (128, 128)])
def test_a_dependent_launch_has_one_cta_per_sm_if_there_are_enough(tile: tuple[int, int]) -> None:
    operation, given, _ = dense(np.random.default_rng())
    config = HopperConfig(tile=tile, consumers=tile[0] // 64, dependent=True, num_pipeline_stages=2)
    shared = [
        operation.bind(**given, config=each, target="sm_90a").shared_bytes
        for each in (config, config.replace(dependent=False))
    ]
    assert 2 * (shared[0] + MACHINE.shared_reserved) > MACHINE.shared_per_sm > 2 * (shared[1] + MACHINE.shared_reserved)


@pytest.mark.parametrize(
    ("shape", "row", "is_dependent"),
    [
        ((512, 2048, 2048), {"tile": (64, 128), "consumers": 1, "AB_swapped": True}, True),
        ((512, 2048, 2048), {"tile": (64, 128), "consumers": 1, "num_split_k": 2}, True),
        ((512, 2048, 2048), {"tile": (128, 128), "num_split_k": 2, "split_in_cluster": False}, False),
        ((512, 2048, 2048), {"tile": (128, 128), "stream_k": True}, False),
        ((512, 2048, 2048), {"tile": (128, 128), "dependent": False}, False),
        ((1, 128256, 4096), {"tile": (128, 8), "AB_swapped": True}, True),
        ((2048, 2048, 2048), {"tile": (128, 256)}, True),
        ((2048, 2048, 2048), {"tile": (64, 128), "consumers": 1}, False),
        ((2048, 2048, 2048), {"tile": (64, 128), "consumers": 1, "cluster_shape": (4, 2, 1)}, True),
        ((16, 7168, 9216), {"tile": (128, 16), "AB_swapped": True, "num_split_k": 2}, False),  # 112 CTAs, 31 µs
        ((16, 7168, 9216), {"tile": (64, 16), "consumers": 1, "AB_swapped": True, "num_split_k": 2}, True),
        ((1, 3584, 4096), {"tile": (64, 16), "consumers": 1, "AB_swapped": True, "num_split_k": 2}, True),  # 112, 7 µs
        ((4096, 4096, 4096), {"tile": (128, 256)}, False),
        ((4096, 4096, 4096), {"tile": (128, 256), "dependent": True}, True),
    ],
)
def test_kernels_that_reread_little_and_fill_the_gpu_are_dependent_by_default(
    shape: tuple[int, int, int], row: dict[str, Any], is_dependent: bool
) -> None:
    config = build(row, key_of("dense", *shape, a_type="bf16"))
    assert config is not None
    assert config.dependent == is_dependent
    assert (
        build(row_of(config, key_of("dense", *shape, a_type="bf16")), key_of("dense", *shape, a_type="bf16")) == config
    )
