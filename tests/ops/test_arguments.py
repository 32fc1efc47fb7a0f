"""Invalid calls: all invalid arguments in one error, with dtype and shape, and nothing is written."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.references import BF16, E4M3, E8M0

from warploom.diagnostics import Diag, LaunchError
from warploom.ops import block_scaled_matmul, blockwise_matmul, grouped_matmul, linear, matmul, quantise_mxfp8
from warploom.ops import quantise_nvfp4 as nvfp4
from warploom.structured.config import BlockwiseFP8MatmulConfig, MatmulConfig


def ones(*shape, dtype=BF16):
    return np.ones(shape, dtype)


def read_only(*shape, dtype=BF16):
    array = ones(*shape, dtype=dtype)
    array.flags.writeable = False
    return array


def odd_strides(*shape):
    """Elements at unaligned addresses."""
    return np.lib.stride_tricks.as_strided(ones(64), shape, (3, 3))


SCALE = ones(61)
LIST = [ones(61)]


def capturing(acc, at):
    return acc * SCALE


def through_a_helper(acc, at):
    return capturing(acc, at)


A, B = ones(45, 24), ones(24, 61)
CASES = {
    "everything_at_once": lambda: matmul(
        A, B[:5], activation="gel", out=np.zeros((3, 3)), operands={"x y": 1}, alpha="2", config=3, target="sm_80",
        bias=[1], residual="r", beta=None,
    ),
    "no_arrays": lambda: matmul([1, 2], None),
    "dtypes": lambda: matmul(ones(4, 4, dtype=np.float64), ones(4, 4, dtype=np.int8)),
    "two_dtypes": lambda: matmul(A, B.astype(np.float16)),
    "narrow_and_wide": lambda: matmul(A.astype(E4M3), B),
    "no_axes": lambda: matmul(np.array(1.0, BF16), B),
    "odd_memory": lambda: matmul(np.ones((4, 4), ">f4"), np.ma.masked_array(ones(4, 4, dtype=np.float32))),
    "odd_strides": lambda: matmul(odd_strides(4, 4), B),
    "depths": lambda: matmul(A, A),
    "batches": lambda: matmul(ones(2, 45, 24), ones(3, 24, 61)),
    "linear": lambda: linear(ones(3, 45, 24), ones(61, 25), bias=ones(60)),
    "linear_of_a_batch": lambda: linear(A, ones(2, 61, 24)),
    "epilogue_inputs": lambda: matmul(A, B, bias=ones(45), residual=ones(61, 45), operands={"s": ones(2, 45, 61)}, epilogue=lambda acc, at, s: acc),
    "dtypes_of_epilogue_inputs": lambda: matmul(A, B, bias=ones(61, dtype=np.bool_), residual=ones(45, 61, dtype=np.complex64)),
    "out": lambda: matmul(A, B, out=read_only(61, 45), out_dtype=np.float16),
    "out_in_one_place": lambda: matmul(A, B, out=np.lib.stride_tricks.as_strided(ones(61), (45, 61), (0, 2))),
    "out_type": lambda: matmul(A, B, out_dtype=np.int32),
    "out_no_type": lambda: matmul(A, B, out_dtype="float17"),
    "out_and_config": lambda: matmul(A, B, out_dtype=BF16, config=MatmulConfig(c_type="f32")),
    "functions": lambda: matmul(A, B, epilogue=3, store=lambda value: None),
    "function_wants_more": lambda: matmul(A, B, epilogue=lambda acc, at, scale: acc * scale),
    "unread_operands": lambda: matmul(A, B, operands={"scale": 2, "bias": 1}, epilogue=lambda acc, at: acc),
    "operands_without_function": lambda: matmul(A, B, operands={"scale": 2}),
    "operands_in_a_list": lambda: matmul(A, B, operands=[1], epilogue=lambda acc, at: acc),
    "captured": lambda: matmul(A, B, epilogue=capturing),
    "captured_by_a_helper": lambda: matmul(A, B, epilogue=through_a_helper),
    "captured_in_a_list": lambda: matmul(A, B, epilogue=lambda acc, at: acc * LIST[0]),
    "captured_by_default": lambda: matmul(A, B, epilogue=lambda acc, at, scale=SCALE: acc * scale),
    "config": lambda: matmul(A, B, config=MatmulConfig(mma_shape=(100, 30, 16), cta_group=1, cluster_shape=(3, 7, 1))),
    "config_for_the_sizes": lambda: matmul(A, B, config=MatmulConfig(num_split_k=9)),
    "config_without_residual": lambda: matmul(A, B, config=MatmulConfig(use_tma_epilogue_load=True)),
    "config_of_another_family": lambda: matmul(A, B, config=BlockwiseFP8MatmulConfig()),
    "config_of_a_group": lambda: matmul(A, B, config=MatmulConfig(gemm_kind="gmm")),
    "blockwise": lambda: blockwise_matmul(
        ones(45, 200, dtype=E4M3), ones(61, 200, dtype=E4M3), ones(45, 1, dtype=np.float32), ones(2, 2), config=3
    ),
    "blockwise_depths": lambda: blockwise_matmul(ones(45, 200, dtype=E4M3), ones(61, 201, dtype=E4M3), 1, 2),
    "block_scaled": lambda: block_scaled_matmul(A, B, A, B),
    "block_scaled_factors": lambda: block_scaled_matmul(
        ones(45, 64, dtype=E4M3), ones(61, 64, dtype=E4M3), ones(45, 4, dtype=E4M3), ones(61, 4, dtype=E4M3)
    ),
    "block_scaled_shapes": lambda: block_scaled_matmul(
        ones(45, 48, dtype=E4M3), ones(61, 48, dtype=E4M3),
        np.ones((45, 2), np.uint8).view(E8M0), np.ones((60, 2), np.uint8).view("float8_e8m0fnu"),
    ),
    "grouped": lambda: grouped_matmul(A, ones(3, 25, 61, dtype=np.float16), np.array([5, 4])),
    "grouped_behind_the_rows": lambda: grouped_matmul(A, ones(2, 24, 61), np.array([5, 46])),
    "grouped_of_floats": lambda: grouped_matmul(A, ones(2, 24, 61), np.array([5.0, 45.0])),
    "quantise": lambda: quantise_mxfp8(np.ones((3, 33)), dtype=np.float16),
    "quantise_integers": lambda: quantise_mxfp8(np.ones((3, 32), np.int32)),
    "quantise_infinity": lambda: nvfp4(np.array([[np.inf] * 16])),
}  # fmt: skip


def test_all_invalid_arguments_are_reported_at_once(golden):
    reported = []
    for name, call in CASES.items():
        with pytest.raises(LaunchError) as caught:
            call()
        assert caught.value.diag is Diag.BAD_ARGUMENTS, name
        reported.append(f"{name.replace('_', ' ')}\n{caught.value}\n")
    golden("faults.txt", "\n".join(reported))


def test_an_invalid_call_writes_nothing():
    out = np.full((45, 61), 7, BF16)
    with pytest.raises(LaunchError):
        matmul(A, B, out=out, activation="gel")
    with pytest.raises(LaunchError):
        matmul(A, B, out=out, config=MatmulConfig(num_split_k=9))
    assert (out == 7).all()


def test_empty_and_overlapping_arguments_cannot_be_bound():
    with pytest.raises(LaunchError, match="nothing to launch"):
        matmul.bind(A[:0], B)
    square = ones(24, 24)
    with pytest.raises(LaunchError, match="overlaps"):
        matmul.bind(square, square, out=square)
