"""Triton's binding of cuBLAS on the host: the reference that its tutorials compare with, in float32."""

from __future__ import annotations

from typing import Any

import torch

from warploom.triton.patches import Patches

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SCALE_ROWS, _SCALE_COLUMNS = 128, 4
"""Scales of a tile that are next to each other in memory (cuBLAS documentation, 1D block scaling factors layout)."""


class CublasLt:
    """The methods of `triton._C.libtriton.nvidia.cublas.CublasLt`; B is transposed, as there."""

    def __init__(self, workspace: Any) -> None:
        pass

    def matmul(self, a: Any, b: Any, c: Any) -> None:
        c.copy_(a.float() @ b.float().T)

    def gemm(self, a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float) -> None:
        d.copy_(alpha * (a.float() @ b.float().T) + beta * c.float())

    def block_scaled_matmul_mxfp8(self, a: Any, b: Any, c: Any, a_scale: Any, b_scale: Any) -> None:
        left, right = (
            each.float() * _scales(scale, torch.float8_e8m0fnu, 32, each.shape)
            for each, scale in ((a, a_scale), (b, b_scale))
        )
        c.copy_(left @ right.T)

    def block_scaled_matmul_nvfp4(self, a: Any, b: Any, c: Any, a_scale: Any, b_scale: Any) -> None:
        left, right = (
            _unpacked(each) * _scales(scale, torch.float8_e4m3fn, 16, (each.shape[0], 2 * each.shape[1]))
            for each, scale in ((a, a_scale), (b, b_scale))
        )
        c.copy_(left @ right.T)


def _unpacked(packed: Any) -> Any:
    """Two e2m1 numbers of each byte, the low half first."""
    table = torch.tensor([*_E2M1, *(-each for each in _E2M1)])
    halves = torch.stack((packed & 15, packed >> 4), -1)
    return table[halves.long()].reshape(packed.shape[0], -1)


def _scales(stored: Any, dtype: Any, block: int, shape: Any) -> Any:
    """One scale for each element of an operand."""
    rows, columns = -(-shape[0] // _SCALE_ROWS), -(-(shape[1] // block) // _SCALE_COLUMNS)
    tiles = stored.contiguous().view(dtype).float().reshape(rows, columns, 32, _SCALE_ROWS // 32, _SCALE_COLUMNS)
    whole = tiles.permute(0, 3, 2, 1, 4).reshape(rows * _SCALE_ROWS, columns * _SCALE_COLUMNS)
    return whole.repeat_interleave(block, 1)[: shape[0], : shape[1]]


def answer_blas(patches: Patches) -> None:
    """Replace the class, which would load libcublas."""
    from triton._C.libtriton import nvidia

    if hasattr(nvidia, "cublas"):
        patches.set(nvidia.cublas, "CublasLt", CublasLt)
