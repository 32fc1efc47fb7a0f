"""Warp-specialised GPU kernels on any CPU: write, run and prove them."""

from warploom.diagnostics import Fault, LaunchError, PtxError, Stuck, TraceError, WarploomError
from warploom.launcher import Run, launch
from warploom.ops import (
    block_scaled_matmul,
    blockwise_matmul,
    grouped_matmul,
    linear,
    matmul,
    ptx_of,
    quantise_mxfp8,
    quantise_nvfp4,
)
from warploom.ptx.launch import Launch
from warploom.ptx.tensor_map import TensorMap
from warploom.structured.config import MatmulConfig
from warploom.trace import exp, sigmoid, tanh

__all__ = [
    "Fault",
    "Launch",
    "LaunchError",
    "MatmulConfig",
    "PtxError",
    "Run",
    "Stuck",
    "TensorMap",
    "TraceError",
    "WarploomError",
    "block_scaled_matmul",
    "blockwise_matmul",
    "exp",
    "grouped_matmul",
    "launch",
    "linear",
    "matmul",
    "ptx_of",
    "quantise_mxfp8",
    "quantise_nvfp4",
    "sigmoid",
    "tanh",
]
