"""`device="cuda"` on the host: functions of PyTorch get the CPU, and tensors answer that they are on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from warploom.diagnostics import Diag
from warploom.triton.patches import Patches
from warploom.triton.storages import Addresses

CUDA = torch.device("cuda", 0)
_CUDA_NAME = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")


def is_device(value: Any) -> bool:
    """Return True if a value names the CPU or a CUDA device."""
    if isinstance(value, torch.device):
        return value.type in ("cpu", "cuda")
    return isinstance(value, str) and (value == "cpu" or _CUDA_NAME.fullmatch(value) is not None)


def is_index(value: Any) -> bool:
    """Return True for the number of a device."""
    return isinstance(value, int) and not isinstance(value, bool)


def on_host(value: Any) -> Any:
    """The CPU for the CUDA device; other values are unchanged."""
    return host_of(value) if is_device(value) else value


def host_of(device: Any) -> torch.device:
    """The CPU for a device; a second GPU is an error."""
    index = device if is_index(device) else torch.device(device).index
    if index:
        raise Diag.NOT_MODELLED.error(what=f"A second GPU (`cuda:{index}`)")
    return _CPU


def keep_in_backward(patches: Patches, mode: TorchFunctionMode) -> None:
    """Keep a mode active while autograd calls the backward passes of the user's functions.

    PyTorch switches a mode off inside the functions that it handles, of which `Tensor.backward` is one.
    """
    run = torch.autograd._engine_run_backward

    def with_mode(*args: Any, **kwargs: Any) -> Any:
        traced = torch._C._len_torch_dispatch_stack() > 0  # by PyTorch's compiler, on tensors without memory
        with nullcontext() if traced else mode:
            return run(*args, **kwargs)

    patches.set(torch.autograd, "_engine_run_backward", with_mode)


class HostTensors(TorchFunctionMode):
    """Sends calls for CUDA devices to the CPU while it is active.

    A copy between devices (`cuda()`, `cpu()`, `to(device)`) gives a new tensor, as on a GPU; what a kernel writes to
    one is not seen through the other.
    """

    def __init__(self, addresses: Addresses) -> None:
        super().__init__()
        self._is_active = True
        self._special: dict[Any, Callable[..., Any]] = {
            torch.device: torch.device,
            torch.Tensor.device.__get__: lambda tensor: CUDA if tensor.device == _CPU else tensor.device,
            torch.Tensor.is_cuda.__get__: lambda tensor: tensor.device.type in ("cpu", "cuda"),
            torch.Tensor.is_cpu.__get__: lambda tensor: False,
            torch.Tensor.get_device: lambda tensor: 0,
            torch.Tensor.cpu: lambda tensor, *_, **__: tensor.clone(),
            torch.Tensor.cuda: lambda tensor, device=None, *_, **__: _to(tensor, "cuda" if device is None else device),
            torch.Tensor.to: _to,
            torch.Tensor.pin_memory: lambda tensor, *_, **__: tensor,
            torch.Tensor.is_pinned: lambda tensor, *_, **__: False,
            torch.Tensor.record_stream: lambda tensor, *_: None,
            torch.Tensor.data_ptr: addresses.note,
            torch.nn.functional.layer_norm: _layer_norm,
        }

    def retire(self) -> None:
        """Map nothing any more: a thread of the program may go on after the block."""
        self._is_active = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._is_active:
            return func(*args, **(kwargs or {}))
        kwargs = dict(kwargs or {})
        special = self._special.get(func)
        if special is not None:
            return special(*args, **kwargs)
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = host_of(device) if is_index(device) else on_host(device)
        kwargs.pop("pin_memory", None)
        if any(is_device(each) for each in args):
            args = tuple(on_host(each) for each in args)
        return func(*args, **kwargs)


def _layer_norm(values: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Layer norm that sums in f32, as on a GPU: the CPU sums the gradients of 16-bit weights in their own type."""
    widened = [each if each is None or each.itemsize > 2 else each.float() for each in (values, weight, bias)]
    return torch.nn.functional.layer_norm(widened[0], normalized_shape, *widened[1:], eps).to(values.dtype)


def _to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.to`; where it names a device, the result has memory of its own."""
    device = kwargs.get("device", args[0] if args else None)
    if not (is_device(device) or is_index(device)):
        return tensor.to(*args, **kwargs)
    if "device" in kwargs:
        kwargs["device"] = host_of(device)
    else:
        args = (host_of(device), *args[1:])
    moved = tensor.to(*args, **kwargs)
    return moved.clone() if moved is tensor else moved
