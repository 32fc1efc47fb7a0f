"""Functions of PyTorch, and of cuBLAS as Triton binds it, that a GPU has and the CPU has not, or not for all types."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from warploom.triton.patches import Patches


def _histogram(values: Any, *args: Any, **kwargs: Any) -> Any:
    """`histc` of integers, which the CPU has for floating-point numbers only."""
    if values.is_floating_point():
        return torch.histc(values, *args, **kwargs)
    return torch.histc(values.double(), *args, **kwargs).to(values.dtype)


def _equal(a: Any, b: Any) -> bool:
    """`equal` of numbers of 8 bits, which the CPU compares but has no such function for."""
    if a.dtype != b.dtype or not (a.is_floating_point() and a.itemsize == 1):
        return bool(torch.equal(a, b))
    return bool(a.shape == b.shape and (a == b).all())


def _matmul(function: Callable[..., Any], operands: int) -> Callable[..., Any]:
    """A matmul with `out_dtype`, the type of its accumulators and of its result."""

    def called(*args: Any, out_dtype: Any = None, **kwargs: Any) -> Any:
        if len(args) > operands and isinstance(args[operands], torch.dtype):
            out_dtype, args = args[operands], args[:operands]
        if out_dtype is not None:
            args = tuple(each.to(out_dtype) if isinstance(each, torch.Tensor) else each for each in args)
            kwargs = {name: each.to(out_dtype) if name in _OPERANDS else each for name, each in kwargs.items()}
        return function(*args, **kwargs)

    return called


_OPERANDS = frozenset({"input", "mat1", "mat2", "batch1", "batch2"})


def _attention(*args: Any, **kwargs: Any) -> Any:
    """Attention where a program has chosen backends that only a GPU has."""
    cuda = torch.backends.cuda
    has_one = cuda.flash_sdp_enabled() or cuda.math_sdp_enabled()
    with nullcontext() if has_one else sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.histc: _histogram,
    torch.Tensor.histc: _histogram,
    torch.equal: _equal,
    torch.Tensor.equal: _equal,
    torch.nn.functional.scaled_dot_product_attention: _attention,
    **{
        function: _matmul(function, operands)
        for function, operands in ((torch.mm, 2), (torch.bmm, 2), (torch.addmm, 3), (torch.baddbmm, 3))
    },
}
"""By the function of PyTorch, the one to call in its place."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SCALE_ROWS, _SCALE_COLUMNS = 128, 4
"""Scales of a tile that are next to each other in memory (cuBLAS documentation, 1D block scaling factors layout)."""


class CublasLt:
    """The methods of `triton._C.libtriton.nvidia.cublas.CublasLt`, in float32; B is transposed, as there."""

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
