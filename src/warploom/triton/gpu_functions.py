"""Functions of PyTorch that a GPU has and the CPU has not, or not for all types, made of those that the CPU has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def _histogram(values: Any, *args: Any, **kwargs: Any) -> Any:
    """`histc` of integers, which the CPU has for floating-point numbers only."""
    if values.is_floating_point():
        return torch.histc(values, *args, **kwargs)
    return torch.histc(values.double(), *args, **kwargs).to(values.dtype)


def _equal(a: Any, b: Any) -> bool:
    """`equal` of numbers of 8 bits, which the CPU compares but has no such function for."""
    if a.dtype != b.dtype or not (a.is_floating_point() and a.itemsize == 1):
        return torch.equal(a, b)
    return bool(a.shape == b.shape and (a == b).all())


def _product(function: Callable[..., Any], operands: int) -> Callable[..., Any]:
    """A product with `out_dtype`, the type of its sums and of its result."""

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
        function: _product(function, operands)
        for function, operands in ((torch.mm, 2), (torch.bmm, 2), (torch.addmm, 3), (torch.baddbmm, 3))
    },
}
"""By the function of PyTorch, the one to call in its place."""
