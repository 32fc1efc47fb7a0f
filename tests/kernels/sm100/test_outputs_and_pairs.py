"""Kernels with several outputs and with pairs, at the sizes for which they are made: assembled without a spill."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.assembly import assemble_ok

from warploom.ops import blockwise_matmul, gated_grouped_matmul, gated_linear, grouped_matmul, linear
from warploom.structured.config.sm90 import HopperConfig

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}


def like(*shape, dtype="bf16"):
    """An array of which nothing is read."""
    return np.zeros(shape, TYPES[dtype])


def is_lossless(launch):
    return all(kernel.spill_stores == 0 for kernel in assemble_ok(launch).kernels)


@pytest.mark.parametrize(("m", "n", "k"), [(4096, 4096, 512), (2048, 14336, 512), (64, 4096, 512), (16, 512, 4096)])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_outputs_that_training_saves(m, n, k, target):
    kept = {"pre_activation": like(m, n)}
    options = {"activation": "gelu_tanh", "bias": like(n), "outputs": kept, "target": target}
    assert is_lossless(linear.bind(like(m, k), like(n, k), **options))


@pytest.mark.parametrize(("m", "n", "k"), [(4096, 4096, 512), (2048, 14336, 512), (64, 14336, 512), (16, 512, 4096)])
@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_swiglu(m, n, k, dtype, target):
    weights = like(2 * n, k, dtype=dtype)
    assert is_lossless(gated_linear.bind(like(m, k, dtype=dtype), weights[:n], weights[n:], target=target))


@pytest.mark.parametrize("columns", [128, 160])
def test_ping_pong_with_every_epilogue_option(columns):
    x, gate, up, bias = like(1024, 512), like(4096, 512), like(4096, 512), like(4096)
    kept = {"gate": like(1024, 4096), "up": like(1024, 4096)}
    config = HopperConfig(tile=(128, columns), pingpong=True)
    options = {"gate_bias": bias, "up_bias": bias, "outputs": kept, "config": config}
    assert is_lossless(gated_linear.bind(x, gate, up, **options))


def test_the_largest_tiles():
    x, gate, up = like(1024, 512), like(4096, 512), like(4096, 512)
    for config in (HopperConfig(tile=(128, 192), pingpong=True), HopperConfig(tile=(128, 256))):
        assert is_lossless(gated_linear.bind(x, gate, up, config=config))


@pytest.mark.parametrize("rows", [1024, 16])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_experts(rows, target):
    """Eight groups: a product that keeps what goes into its activation, pairs, and pairs that are kept."""
    (m, n, k), ends = (8 * rows, 1408, 512), np.arange(1, 9) * rows
    a, gate, up = like(m, k), like(8, k, n), like(8, k, n)
    kept = {"pre_activation": like(m, n)}
    options = {"activation": "gelu_tanh", "bias": like(n), "outputs": kept, "target": target}
    assert is_lossless(grouped_matmul.bind(a, gate, ends, **options))
    assert is_lossless(gated_grouped_matmul.bind(a, gate, up, ends, target=target))
    kept = {"gate": like(m, n), "up": like(m, n)}
    assert is_lossless(gated_grouped_matmul.bind(a, gate, up, ends, outputs=kept, target=target))


@pytest.mark.parametrize("m", [1024, 64])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_blocks(m, target):
    factors = like(m, 512, dtype="e4m3"), like(1408, 512, dtype="e4m3")
    scales = np.zeros((m, 4), np.float32), np.zeros((11, 4), np.float32)
    options = {"activation": "gelu_tanh", "outputs": {"pre_activation": like(m, 1408)}, "target": target}
    assert is_lossless(blockwise_matmul.bind(*factors, *scales, **options))
