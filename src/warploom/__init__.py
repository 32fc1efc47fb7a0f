"""Warp-specialised GPU kernels in Python: matmuls of every kind, and what it takes to write, run and tune one's own."""

from importlib import import_module
from typing import Any

from warploom.diagnostics import Fault, LaunchError, PtxError, Stuck, TraceError, WarploomError
from warploom.host.launch import Launch
from warploom.host.tensor_map import TensorMap
from warploom.launcher import Run, launch
from warploom.ops import (
    block_scaled_matmul,
    blockwise_matmul,
    determinism,
    gated_grouped_matmul,
    gated_linear,
    grouped_matmul,
    linear,
    matmul,
    ptx_of,
    quantise_mxfp8,
    quantise_nvfp4,
)
from warploom.structured.config import HopperConfig, MatmulConfig
from warploom.trace import exp, sigmoid, tanh

__all__ = [
    "Fault",
    "HopperConfig",
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
    "determinism",
    "exp",
    "gated_grouped_matmul",
    "gated_linear",
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

_LATE = {
    "nn": ("warploom.nn", ""),
    "plan_matmul": ("warploom.ops.planning.prepare", "plan_matmul"),
    "tune": ("warploom.tuning", "tune"),
}
"""Names whose modules need PyTorch, or the way to a GPU: they are loaded when they are first used."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LATE[name]
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
