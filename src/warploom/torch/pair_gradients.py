"""The gradients of gate and up: by one kernel for tensors on a GPU, elsewhere by functions of PyTorch.

A compiled graph gets PyTorch's functions, which its compiler fuses; in eager mode they would be four kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.kernels.gated_gradient import ELEMENTS, THREADS, gated_gradient
from warploom.runtime.gpu.driver import current_stream, device
from warploom.runtime.gpu.prepared import Prepared
from warploom.torch.gradients import ACTIVATION_GRADIENTS
from warploom.torch.launch_cache import are_plain, is_graded, is_observed

_HALVES = (torch.bfloat16, torch.float16)
_MOST_ELEMENTS = 2**31 - THREADS * ELEMENTS
"""Elements that the kernel's 32-bit indices reach."""
_PREPARED: dict[tuple[Any, ...], tuple[Prepared, Callable[[], int]]] = {}
_MOST_PREPARED = 256


def pair_gradients(
    activation: str, function: Callable[[Tensor], Tensor], gradient: Tensor, gate: Tensor, up: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of gate and up from that of `activation(gate) * up`; `function` is the activation."""
    tensors = (gradient, gate, up)
    if torch.compiler.is_compiling() or is_graded() or is_observed() or not _has_kernel(tensors):
        return ACTIVATION_GRADIENTS[activation](gradient * up, gate), gradient * function(gate)
    results = torch.empty_like(gate), torch.empty_like(up)
    arrays = [each.view(-1) for each in (*tensors, *results)]
    key = (activation, gate.dtype, gate.numel(), gate.get_device())
    found = _PREPARED.get(key)
    if found is None:
        if len(_PREPARED) >= _MOST_PREPARED:
            _PREPARED.clear()
        found = _PREPARED[key] = _prepared(activation, arrays)
    prepared, stream = found
    prepared.launch_at(tuple(each.data_ptr() for each in arrays), stream())
    return results


def _has_kernel(tensors: tuple[Tensor, ...]) -> bool:
    """Return whether the kernel can read the tensors: in whole vectors, without gaps, on a GPU that has kernels."""
    first = tensors[0]
    return (
        first.is_cuda
        and first.dtype in _HALVES
        and 0 < first.numel() <= _MOST_ELEMENTS
        and first.numel() % ELEMENTS == 0
        and are_plain(tensors)
        and all(
            each.is_contiguous() and each.data_ptr() % ADDRESS_ALIGNMENT == 0 and each.dtype is first.dtype
            for each in tensors
        )
        and device(first.get_device()).target is not None
    )


def _prepared(activation: str, arrays: list[Tensor]) -> tuple[Prepared, Callable[[], int]]:
    gpu = device(arrays[0].get_device())
    assert gpu.target is not None
    vectors = arrays[0].numel() // ELEMENTS
    kernel = gated_gradient.for_target(gpu.target)
    launch = kernel.bind(*arrays, vectors, grid=-(-vectors // THREADS), activation=activation)
    return Prepared(launch, arrays, device=gpu), current_stream(gpu)
