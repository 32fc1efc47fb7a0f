"""PyTorch modules on warploom's kernels, and the change of a model's layers into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from warploom.ops.faults import Faults
from warploom.ops.torch import linear
from warploom.structured.epilogue import ACTIVATIONS

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
        if activation is not None and activation not in ACTIVATIONS:
            faults = Faults("Linear")
            faults.add("activation", activation, f"there are {', '.join(ACTIVATIONS)}")
            faults.check()
        self.activation = activation

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """`activation(x @ weight.T + bias) + residual`."""
        if has_kernel(x, self.weight):
            return linear(x, self.weight, bias=self.bias, activation=self.activation, residual=residual)
        made = nn.functional.linear(x, self.weight, self.bias)
        if self.activation is not None:
            made = _FUNCTIONS[self.activation](made)
        return made if residual is None else made + residual

    def extra_repr(self) -> str:
        told: str = super().extra_repr()
        return told if self.activation is None else f"{told}, activation={self.activation}"


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "squared_relu": lambda x: torch.relu(x).square(),
}


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether our kernels compute such a layer as well as PyTorch does: the same types, no bits less."""
    if not x.is_cuda or torch.cuda.get_device_capability(x.device) not in ((9, 0), (10, 0), (10, 3)):
        return False
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda") in _HALVES
    if x.dtype != weight.dtype:
        return False
    return x.dtype in _HALVES or (x.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest")


def swap_linears(model: nn.Module, *, only: Callable[[str, nn.Linear], bool] | None = None) -> nn.Module:
    """Make every `nn.Linear` of a model, or those that `only(name, layer)` chooses, a warploom `Linear`, in place.

    Layers stay the same objects with the same parameters, so that optimisers, hooks and `state_dict` do not notice.
    Subclasses of `nn.Linear` are left alone: they may mean something else.
    """
    for name, layer in model.named_modules():
        if type(layer) is nn.Linear and (only is None or only(name, layer)):
            layer.__class__ = Linear
    return model
