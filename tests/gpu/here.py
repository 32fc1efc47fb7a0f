"""Whether there is a GPU for these tests, and what they share."""

from __future__ import annotations

import pytest

try:
    import torch
except ImportError:
    torch = None


def missing(*capabilities: tuple[int, int]) -> str:
    """Why tests for such GPUs cannot run here; nothing if they can."""
    if torch is None:
        return "PyTorch is not installed"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    found = torch.cuda.get_device_capability()
    return "" if found in capabilities else f"the GPU has compute capability {found[0]}.{found[1]}"


needs_hopper = [pytest.mark.gpu, pytest.mark.skipif(bool(missing((9, 0))), reason=missing((9, 0)) or "-")]
