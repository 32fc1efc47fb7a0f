"""Triton's binding of cuBLAS on the host: the reference that its tutorials compare with, in float32."""

from __future__ import annotations

from typing import Any

from warploom.diagnostics import Diag
from warploom.triton.patches import Patches


class CublasLt:
    """The methods of `triton._C.libtriton.nvidia.cublas.CublasLt`; B is transposed, as there."""

    def __init__(self, workspace: Any) -> None:
        pass

    def matmul(self, a: Any, b: Any, c: Any) -> None:
        c.copy_(a.float() @ b.float().T)

    def gemm(self, a: Any, b: Any, c: Any, d: Any, alpha: float, beta: float) -> None:
        d.copy_(alpha * (a.float() @ b.float().T) + beta * c.float())

    def block_scaled_matmul_mxfp8(self, *_: Any) -> None:
        raise Diag.NOT_MODELLED.error(what="cuBLAS for block-scaled operands")

    block_scaled_matmul_nvfp4 = block_scaled_matmul_mxfp8


def answer_blas(patches: Patches) -> None:
    """Replace the class, which would load libcublas."""
    from triton._C.libtriton import nvidia

    if hasattr(nvidia, "cublas"):
        patches.set(nvidia.cublas, "CublasLt", CublasLt)
