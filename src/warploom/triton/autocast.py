"""Autocast for CUDA while the emulator is the GPU: PyTorch's autocast for the CPU, where the tensors are."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp import autocast_mode

from warploom.triton.patches import Patches

_DEFAULT = torch.float16
"""Of CUDA; that of the CPU is bfloat16."""


def map_autocast(patches: Patches) -> None:
    """Let blocks and queries for `cuda` be those for `cpu`."""
    init = autocast_mode.autocast.__init__
    is_enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype

    def init_on_host(block: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or _DEFAULT
        init(block, device_type, dtype, *args, **kwargs)

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return bool(is_enabled("cpu" if device_type == "cuda" else device_type))

    def get_autocast_dtype(device_type: str) -> Any:
        if device_type != "cuda":
            return dtype_of(device_type)
        return dtype_of("cpu") if is_enabled("cpu") else _DEFAULT

    patches.set(autocast_mode.autocast, "__init__", init_on_host)
    patches.set(torch, "is_autocast_enabled", is_autocast_enabled)
    patches.set(torch, "get_autocast_dtype", get_autocast_dtype)
    patches.set(torch, "get_autocast_gpu_dtype", lambda: get_autocast_dtype("cuda"))
