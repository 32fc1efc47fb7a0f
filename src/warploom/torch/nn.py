"""PyTorch modules on warploom's kernels, and the change of a model's layers into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from warploom.hardware.targets import target_of
from warploom.ops.planning.epilogue import is_named
from warploom.ops.planning.violations import Faults
from warploom.structured.epilogue.epilogue import ACTIVATIONS
from warploom.torch.dispatch import linear
from warploom.torch.saved_values import ACTIVATED

_HALVES = (torch.bfloat16, torch.float16)


class Linear(nn.Linear):
    """`nn.Linear` in one kernel, with what may follow it: `activation` by name, and a residual given to the call.

    Parameters, their names and `state_dict` are those of `nn.Linear`. What has no kernel of ours goes to PyTorch's:
    float64, float32 unless PyTorch may use TF32 for it, and GPUs without kernels.
    """

    activation: str | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        if activation is not None and not is_named(activation, ACTIVATIONS):
            faults = Faults("Linear")
            faults.add("activation", activation, f"there are {', '.join(ACTIVATIONS)}")
            faults.check()
        self.activation = activation

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:  # noqa: A002  `nn.Linear` calls it so
        """`activation(input @ weight.T + bias) + residual`."""
        if has_kernel(input, self.weight):
            return linear(input, self.weight, bias=self.bias, activation=self.activation, residual=residual)
        made = nn.functional.linear(input, self.weight, self.bias)
        if self.activation is not None:
            made = ACTIVATED[self.activation](made)
        return made if residual is None else (made + residual).to(made.dtype)

    def _get_name(self) -> str:
        """What PyTorch prints of a layer before its sizes: else a model that was swapped looks as it did."""
        own: str = super()._get_name()
        return f"warploom.{own}" if type(self) is Linear else own

    def extra_repr(self) -> str:
        told: str = super().extra_repr()
        return told if self.activation is None else f"{told}, activation={self.activation}"


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether our kernels compute such a layer as well as PyTorch does: the same types, no bits less."""
    if not x.is_cuda or target_of(torch.cuda.get_device_capability(x.device)) is None:
        return False
    if torch.is_autocast_enabled("cuda") and {x.dtype, weight.dtype} <= {torch.float32, *_HALVES}:
        return torch.get_autocast_dtype("cuda") in _HALVES
    if x.dtype != weight.dtype:
        return False
    return x.dtype in _HALVES or (x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest")


def swap_linears(model: nn.Module, *, only: Callable[[str, nn.Linear], bool] | None = None) -> nn.Module:
    """Make every `nn.Linear` of a model, or those that `only(name, layer)` chooses, a warploom `Linear`, in place.

    Layers stay the same objects with the same parameters, so that optimisers, hooks and `state_dict` do not notice.
    Subclasses of `nn.Linear` are left alone, since they may mean something else: quantised and parametrised layers,
    lazy ones before they have seen data, and those whose `forward` somebody has replaced.
    """
    return _swapped("swap_linears", model, (nn.Linear, Linear), only)


def restore_linears(model: nn.Module, *, only: Callable[[str, nn.Linear], bool] | None = None) -> nn.Module:
    """The way back: every warploom `Linear` without an activation, or those that `only` chooses, is an `nn.Linear`."""
    return _swapped("restore_linears", model, (Linear, nn.Linear), only)


def _swapped(
    function: str,
    model: nn.Module,
    kinds: tuple[type[nn.Linear], type[nn.Linear]],
    only: Callable[[str, nn.Linear], bool] | None,
) -> nn.Module:
    faults = Faults(function)
    if not isinstance(cast("object", model), nn.Module):
        faults.add("model", model, "it is no module of PyTorch")
    if only is not None and not callable(cast("object", only)):
        faults.add("only", only, "it is no function of a layer's name and the layer")
    faults.check()
    before, after = kinds
    for name, layer in model.named_modules():
        is_plain = type(layer) is before and getattr(layer, "activation", None) is None and "forward" not in vars(layer)
        if is_plain and (only is None or only(name, layer)):
            layer.__class__ = after
    return model
