"""Detection of a GPU for these tests, and shared helpers."""

from __future__ import annotations

import warnings

import pytest

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns about the system it runs on
        import torch
except ImportError:
    torch = None


def missing(*capabilities: tuple[int, int]) -> str:
    """The reason why tests for such GPUs cannot run here; empty if they can."""
    if torch is None:
        return "PyTorch is not installed"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    found = torch.cuda.get_device_capability()
    return "" if found in capabilities else f"the GPU has compute capability {found[0]}.{found[1]}"


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _missing = missing((9, 0))
needs_hopper = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(_missing), reason=_missing or "-"),
    pytest.mark.filterwarnings("ignore"),
]
