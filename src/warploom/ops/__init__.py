"""Operations on arrays: each call is one fused kernel."""

from warploom.ops.convolution import conv2d
from warploom.ops.dense import linear, matmul
from warploom.ops.determinism import determinism
from warploom.ops.gated import gated_grouped_block_scaled_matmul, gated_grouped_matmul, gated_linear
from warploom.ops.grouped import grouped_matmul
from warploom.ops.operation import ptx_of
from warploom.ops.planning.quantised import Quantised
from warploom.ops.quantise import deinterleave_scales, interleave_scales, quantise_mxfp8, quantise_nvfp4
from warploom.ops.scaled import (
    block_scaled_matmul,
    blockwise_matmul,
    grouped_block_scaled_matmul,
    grouped_blockwise_matmul,
)
from warploom.ops.timelines import timeline

__all__ = [
    "Quantised",
    "block_scaled_matmul",
    "blockwise_matmul",
    "conv2d",
    "deinterleave_scales",
    "determinism",
    "gated_grouped_block_scaled_matmul",
    "gated_grouped_matmul",
    "gated_linear",
    "grouped_block_scaled_matmul",
    "grouped_blockwise_matmul",
    "grouped_matmul",
    "interleave_scales",
    "linear",
    "matmul",
    "ptx_of",
    "quantise_mxfp8",
    "quantise_nvfp4",
    "timeline",
]
