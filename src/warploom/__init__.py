"""Warp-specialised GPU kernels in Python: GEMMs of every kind, and the parts to write, emulate and tune your own.

Names are imported when they are first used, so that `import warploom` and `warploom --help` start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warploom.version import __version__

if TYPE_CHECKING:
    from warploom import nn as nn
    from warploom.checker.check import check
    from warploom.checker.report import Finding, Report, Verdict
    from warploom.checker.sweep import sweep
    from warploom.diagnostics import CheckError, Fault, LaunchError, PtxError, Stuck, TraceError, WarploomError
    from warploom.host.launch import Launch
    from warploom.host.structs import Struct
    from warploom.host.tensor_map import TensorMap
    from warploom.launcher import Run, launch
    from warploom.ops import (
        block_scaled_matmul,
        blockwise_matmul,
        conv2d,
        gated_grouped_block_scaled_matmul,
        gated_grouped_matmul,
        gated_linear,
        grouped_block_scaled_matmul,
        grouped_blockwise_matmul,
        grouped_matmul,
        linear,
        matmul,
        ptx_of,
        quantise_mxfp8,
        quantise_nvfp4,
        timeline,
    )
    from warploom.ops.determinism import determinism
    from warploom.ops.planning.prepare import plan_matmul as plan_matmul
    from warploom.structured.config import HopperConfig, MatmulConfig
    from warploom.trace import exp, sigmoid, tanh
    from warploom.tuning import tune as tune

__all__ = [
    "CheckError",
    "Fault",
    "Finding",
    "HopperConfig",
    "Launch",
    "LaunchError",
    "MatmulConfig",
    "PtxError",
    "Report",
    "Run",
    "Struct",
    "Stuck",
    "TensorMap",
    "TraceError",
    "Verdict",
    "WarploomError",
    "__version__",
    "block_scaled_matmul",
    "blockwise_matmul",
    "check",
    "conv2d",
    "determinism",
    "exp",
    "gated_grouped_block_scaled_matmul",
    "gated_grouped_matmul",
    "gated_linear",
    "grouped_block_scaled_matmul",
    "grouped_blockwise_matmul",
    "grouped_matmul",
    "launch",
    "linear",
    "matmul",
    "ptx_of",
    "quantise_mxfp8",
    "quantise_nvfp4",
    "sigmoid",
    "sweep",
    "tanh",
    "timeline",
]

_NAMES = {
    "warploom.checker.check": ("check",),
    "warploom.checker.report": ("Finding", "Report", "Verdict"),
    "warploom.checker.sweep": ("sweep",),
    "warploom.diagnostics": ("CheckError", "Fault", "LaunchError", "PtxError", "Stuck", "TraceError", "WarploomError"),
    "warploom.host.launch": ("Launch",),
    "warploom.host.structs": ("Struct",),
    "warploom.host.tensor_map": ("TensorMap",),
    "warploom.launcher": ("Run", "launch"),
    "warploom.ops": (
        "block_scaled_matmul",
        "blockwise_matmul",
        "conv2d",
        "gated_grouped_block_scaled_matmul",
        "gated_grouped_matmul",
        "gated_linear",
        "grouped_block_scaled_matmul",
        "grouped_blockwise_matmul",
        "grouped_matmul",
        "linear",
        "matmul",
        "ptx_of",
        "quantise_mxfp8",
        "quantise_nvfp4",
        "timeline",
    ),
    "warploom.ops.determinism": ("determinism",),
    "warploom.ops.planning.prepare": ("plan_matmul",),
    "warploom.structured.config": ("HopperConfig", "MatmulConfig"),
    "warploom.trace": ("exp", "sigmoid", "tanh"),
    "warploom.tuning": ("tune",),
}
"""The names of this package by the module that defines them, as above; a test holds the two lists together."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_PACKAGES = frozenset((
    "checker", "compare", "cuda", "cutedsl", "diagnostics", "hardware", "heuristics", "host", "kernels", "launch_file",
    "machine", "nn", "ops", "programs", "ptx", "runtime", "structured", "torch", "trace", "triton", "tuning",
))  # fmt: skip
"""Subpackages that `warploom.NAME` finds without an import of its own."""

if not TYPE_CHECKING:  # a type checker sees the imports above, and reports names that are not there

    def __getattr__(name: str) -> Any:
        if name in _PACKAGES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_HOMES, *_PACKAGES})
