"""`device="cuda"` on the host: functions of PyTorch get the CPU, and tensors answer that they are on a GPU."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from warploom.diagnostics import Diag
from warploom.triton.gpu_functions import FUNCTIONS
from warploom.triton.patches import Patches
from warploom.triton.storages import Addresses

CUDA = torch.device("cuda", 0)
_CUDA_NAME = re.compile(r"cuda(:\d+)?")
_CPU = torch.device("cpu")
_MARK, _PINNED = "_warploom_on_host", "_warploom_pinned"
"""The attribute of tensors that the program has put on the CPU itself: they answer that they are there."""


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
        raise Diag.NO_SUCH_GPU.error(device=f"cuda:{index}")
    return _CPU


def is_on_host(tensor: Any) -> bool:
    """Return True for a tensor that the program has put on the CPU: by `cpu()`, `to("cpu")` or `device="cpu"`."""
    return not torch.compiler.is_dynamo_compiling() and hasattr(tensor, _MARK)  # PyTorch's compiler traces this


def put_on_host(result: Any) -> Any:
    """Mark the tensors of a result as on the CPU, and return it."""
    if torch.compiler.is_dynamo_compiling():
        return result
    for each in result if isinstance(result, tuple | list) else (result,):
        if isinstance(each, torch.Tensor) and each.device == _CPU:
            setattr(each, _MARK, True)
    return result


def compare_values_only(patches: Patches) -> None:
    """Let `torch.testing.assert_close` compare any two devices: a reference may have been made without one."""
    pair = torch.testing._comparison.TensorLikePair
    init = pair.__init__

    def init_without_device(held: Any, *args: Any, **kwargs: Any) -> None:
        init(held, *args, **{**kwargs, "check_device": False})

    patches.set(pair, "__init__", init_without_device)


def map_subclasses(patches: Patches) -> None:
    """Make tensors of a program's own classes on the host: PyTorch's autograd ends the process for one on a GPU."""
    for name in ("_make_wrapper_subclass", "_make_dtensor"):
        if (make := getattr(torch.Tensor, name, None)) is not None:
            patches.set(torch.Tensor, name, staticmethod(_with_host_device(make)))


def _with_host_device(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = on_host(device)
        result = make(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return put_on_host(result) if _named_cpu(device) else result

    return made


def keep_in_callbacks(patches: Patches, mode: HostTensors) -> None:
    """Keep a mode active in the user's functions that PyTorch calls inside its own.

    PyTorch switches a mode off inside the functions that it handles. `Tensor.backward` is one, which calls backward
    passes; every function whose operands autograd saves calls the hooks of `saved_tensors_hooks`.
    """
    run = torch.autograd._engine_run_backward

    def with_mode(*args: Any, **kwargs: Any) -> Any:
        with mode.again():
            return run(*args, **kwargs)

    patches.set(torch.autograd, "_engine_run_backward", with_mode)
    hooks = torch.autograd.graph.saved_tensors_hooks
    init = hooks.__init__

    def init_with_mode(held: Any, pack_hook: Any, unpack_hook: Any) -> None:
        init(held, mode.inside(pack_hook), mode.inside(unpack_hook))

    patches.set(hooks, "__init__", init_with_mode)


_SUMS = (
    torch.nn.functional.layer_norm,
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
    torch.convolution,
    torch.ops.aten.convolution,
    torch.ops.aten.convolution_backward,
)
"""Functions that sum in f32 on a GPU. The CPU sums the gradients of layer norm's weights in their own type, and rounds
parts of the sums of convolutions to it."""


class _ThreadState(threading.local):
    """The part of the mode that each thread has for itself."""

    marks = True


class HostTensors(TorchFunctionMode):
    """Sends calls for CUDA devices to the CPU while it is active.

    A copy between devices (`cuda()`, `cpu()`, `to(device)`) gives a new tensor, as on a GPU; what a kernel writes to
    one is not seen through the other.
    """

    def __init__(self, addresses: Addresses) -> None:
        super().__init__()
        self._is_active = True
        self._thread = _ThreadState()
        self._special: dict[Any, Callable[..., Any]] = {
            torch.device: torch.device,
            torch._C._nn._parse_to: torch._C._nn._parse_to,  # of `Module.to`, which calls `Tensor.to`
            torch.Tensor.device.__get__: _device,
            torch.Tensor.is_cuda.__get__: lambda tensor: _device(tensor).type == "cuda",
            torch.Tensor.is_cpu.__get__: lambda tensor: _device(tensor).type == "cpu",
            torch.Tensor.get_device: lambda tensor: -1 if _device(tensor).type == "cpu" else 0,
            torch.Tensor.cpu: lambda tensor, *_, **__: _to(tensor, "cpu"),
            torch.Tensor.cuda: lambda tensor, device=None, *_, **__: _to(tensor, "cuda" if device is None else device),
            torch.Tensor.to: _to,
            torch.Tensor.pin_memory: lambda tensor, *_, **__: tensor if is_pinned(tensor) else _pin(tensor.clone()),
            torch.Tensor.is_pinned: lambda tensor, *_, **__: is_pinned(tensor),
            torch.Tensor.data_ptr: addresses.note,
            torch.Tensor.data.__set__: _set_data,
            torch.Tensor.__repr__: self._text,
            torch.Tensor.__format__: self._formatted,
            torch.Tensor.type: _type,
            **{function: _in_float32(function) for function in _SUMS},
        }

    def again(self) -> AbstractContextManager[Any]:
        """A block in which the mode is active, inside a function of PyTorch that has switched it off.

        Not while PyTorch's compiler traces, on tensors without memory, and not twice: what one makes of the GPU, the
        other would take for the program's own choice of the CPU.
        """
        traced = torch._C._len_torch_dispatch_stack() > 0
        depth = torch._C._len_torch_function_stack()
        held = any(torch._C._get_function_stack_at(at) is self for at in range(depth))
        return self if self._is_active and not traced and not held else nullcontext()

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function during which the mode is active."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self.again():
                return function(*args, **kwargs)

        return called

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A graph that PyTorch's compiler has made: the CPU is the GPU's place in it."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            before, self._thread.marks = self._thread.marks, False
            try:
                return function(*args, **kwargs)
            finally:
                self._thread.marks = before

        return called

    def _text(self, tensor: Any, **contents: Any) -> str:
        """`repr(tensor)`, which names the device."""
        with self:
            return str(torch._tensor_str._str(tensor, **contents))

    def _formatted(self, tensor: Any, specification: str) -> str:
        with self:
            value = tensor if tensor.dim() else tensor.item()
            return object.__format__(value, specification) if value is tensor else format(value, specification)

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
        pins = kwargs.pop("pin_memory", None)
        if any(is_device(each) for each in args):
            args = tuple(on_host(each) for each in args)
        result = FUNCTIONS.get(func, func)(*args, **kwargs)
        if self._thread.marks and (_named_cpu(device) or (device is None and all_on_host(args))):
            put_on_host(result)
        return _pin(result) if pins else result


def is_pinned(tensor: Any) -> bool:
    """Return True for a tensor that the program has put in pinned memory of the host."""
    return getattr(tensor, _PINNED, False) is True


def _pin(tensor: Any) -> Any:
    if not torch.compiler.is_dynamo_compiling():
        setattr(tensor, _PINNED, True)
    return put_on_host(tensor)


def _device(tensor: Any) -> torch.device:
    """The device that a tensor answers."""
    return CUDA if tensor.device == _CPU and not is_on_host(tensor) else tensor.device


def _named_cpu(device: Any) -> bool:
    return device == "cpu" or (isinstance(device, torch.device) and device.type == "cpu")


def all_on_host(values: tuple[Any, ...]) -> bool:
    """Return True if a call has tensors among its arguments, and the program has put all of them on the CPU."""
    nested = (each if isinstance(each, tuple | list) else (each,) for each in values)
    found = [is_on_host(each) for some in nested for each in some if isinstance(each, torch.Tensor)]
    return bool(found) and all(found)


def _set_data(tensor: Any, value: Any) -> None:
    """`tensor.data = value`, by which modules move their parameters."""
    tensor.data = value
    if is_on_host(value):
        put_on_host(tensor)
    elif is_on_host(tensor):
        delattr(tensor, _MARK)


def _type(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.type`: the name of the tensor's type, or a conversion."""
    found = tensor.type(*args, **kwargs)
    if isinstance(found, str):
        return found if _device(tensor).type == "cpu" else found.replace("torch.", "torch.cuda.", 1)
    return put_on_host(found) if is_on_host(tensor) else found


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch that computes in f32 what it is given in 16 or 8 bits, and rounds once."""

    def wide(value: Any) -> Any:
        narrow = isinstance(value, torch.Tensor) and value.is_floating_point() and value.itemsize <= 2
        return value.float() if narrow else value

    def called(*args: Any, **kwargs: Any) -> Any:
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        found = function(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()})
        results = found if isinstance(found, tuple) else (found,)
        rounded = tuple(each if each is None else each.to(given[0].dtype) for each in results)
        if all(map(is_on_host, given)):
            put_on_host(rounded)
        return rounded if isinstance(found, tuple) else rounded[0]

    return called


def _to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """`Tensor.to`; where it names a device, the result has memory of its own."""
    device = kwargs.get("device", args[0] if args else None)
    if not (is_device(device) or is_index(device)):
        model = kwargs.get("other", device)
        wanted = is_on_host(model if isinstance(model, torch.Tensor) else tensor)
        moved = tensor.to(*args, **kwargs)
        if moved is tensor and wanted != is_on_host(tensor):
            moved = moved.clone()
        return put_on_host(moved) if wanted else moved
    if "device" in kwargs:
        kwargs["device"] = host_of(device)
    else:
        args = (host_of(device), *args[1:])
    moved = tensor.to(*args, **kwargs)
    if moved is tensor and not (is_on_host(tensor) and _named_cpu(device)):
        moved = moved.clone()
    return put_on_host(moved) if _named_cpu(device) else moved
