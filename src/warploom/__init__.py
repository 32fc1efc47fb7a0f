"""Warp-specialised GPU kernels on any CPU: write, run and prove them."""

from warploom.diagnostics import Fault, LaunchError, PtxError, Stuck, WarploomError
from warploom.launcher import Run, launch
from warploom.ptx.launch import Launch
from warploom.ptx.tensor_map import TensorMap

__all__ = ["Fault", "Launch", "LaunchError", "PtxError", "Run", "Stuck", "TensorMap", "WarploomError", "launch"]
