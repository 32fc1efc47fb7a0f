"""PyTorch modules on warploom's kernels, and the swap of a model's layers for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from warploom.diagnostics import WarploomError, hide_library_frames, user_traceback
from warploom.hardware.targets import target_of
from warploom.ops.planning.arrays import Violations
from warploom.ops.planning.request import is_named
from warploom.ops.signatures import Activation
from warploom.structured.epilogue.epilogue import ACTIVATIONS
from warploom.torch.dispatch import linear
from warploom.torch.saved_values import ACTIVATED

_HALVES = (torch.bfloat16, torch.float16)


class Linear(nn.Linear):
    """`nn.Linear` in one kernel, with a fused activation, by name, and a residual that is passed to the call.

    Parameters, their names and `state_dict` are those of `nn.Linear`. Inputs without a kernel here are computed by
    PyTorch: float64, float32 unless PyTorch may use TF32 for it, and GPUs without kernels.
    """

    activation: Activation | None = None

    @user_traceback
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: Activation | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        if activation is not None and not is_named(activation, ACTIVATIONS):
            violations = Violations("Linear")
            violations.add("activation", activation, f"must be one of {', '.join(ACTIVATIONS)}")
            violations.check()
        self.activation = activation

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:  # noqa: A002  the name is that of `nn.Linear`
        """`activation(input @ weight.T + bias) + residual`."""
        weight, bias, activation = self.weight, self.bias, self.activation
        if has_kernel(input, weight):
            options: dict[str, Any] = {}  # without those that are None: a call without options has the shortest way
            if bias is not None:
                options["bias"] = bias
            if activation is not None:
                options["activation"] = activation
            if residual is not None:
                options["residual"] = residual
            try:
                return linear(input, weight, **options)
            except WarploomError as error:
                hide_library_frames(error)
                raise
        made = nn.functional.linear(input, weight, bias)
        if activation is not None:
            made = ACTIVATED[activation](made)
        return made if residual is None else (made + residual).to(made.dtype)

    def _get_name(self) -> str:
        """The name that PyTorch prints, so that a swapped model shows its new layers."""
        own: str = super()._get_name()
        return f"warploom.{own}" if type(self) is Linear else own

    def extra_repr(self) -> str:
        shown: str = super().extra_repr()
        return shown if self.activation is None else f"{shown}, activation={self.activation}"


_HAS_TARGET: dict[int, bool] = {}
"""By GPU, whether there are kernels for it: PyTorch takes microseconds to tell a GPU's compute capability."""


def _has_target(x: Tensor) -> bool:
    """Return whether there are kernels for the GPU of a tensor."""
    if torch.compiler.is_compiling():  # which would guard on the table
        return target_of(torch.cuda.get_device_capability(x.device)) is not None
    index = x.get_device()
    if index not in _HAS_TARGET:
        _HAS_TARGET[index] = target_of(torch.cuda.get_device_capability(index)) is not None
    return _HAS_TARGET[index]


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Return whether there is a kernel for such a layer that is as accurate as PyTorch's: the same types and
    precision.
    """
    if not x.is_cuda or not _has_target(x):
        return False
    if torch.is_autocast_enabled("cuda") and {x.dtype, weight.dtype} <= {torch.float32, *_HALVES}:
        return torch.get_autocast_dtype("cuda") in _HALVES
    if x.dtype != weight.dtype:
        return False
    return x.dtype in _HALVES or (x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest")


@user_traceback
def swap_linears(model: nn.Module, *, only: Callable[[str, nn.Linear], bool] | None = None) -> nn.Module:
    """Turn every `nn.Linear` of a model, or those that `only(name, layer)` selects, into a warploom `Linear`, in place.

    Layers stay the same objects with the same parameters: optimisers, hooks and `state_dict` keep working. Subclasses
    of `nn.Linear` are not touched (quantised, parametrised and lazy layers), nor are layers with a replaced `forward`.
    """
    return _swapped("swap_linears", model, (nn.Linear, Linear), only)


@user_traceback
def restore_linears(model: nn.Module, *, only: Callable[[str, nn.Linear], bool] | None = None) -> nn.Module:
    """Turn every warploom `Linear` without an activation, or those that `only` selects, back into an `nn.Linear`."""
    return _swapped("restore_linears", model, (Linear, nn.Linear), only)


def _swapped(
    function: str,
    model: nn.Module,
    kinds: tuple[type[nn.Linear], type[nn.Linear]],
    only: Callable[[str, nn.Linear], bool] | None,
) -> nn.Module:
    violations = Violations(function)
    if not isinstance(cast("object", model), nn.Module):
        violations.add("model", model, "must be a `torch.nn.Module`")
    if only is not None and not callable(cast("object", only)):
        violations.add("only", only, "must be a function of a layer's name and the layer")
    violations.check()
    before, after = kinds
    for name, layer in model.named_modules():
        is_plain = type(layer) is before and getattr(layer, "activation", None) is None and "forward" not in vars(layer)
        if is_plain and (only is None or only(name, layer)):
            layer.__class__ = after
    return model
