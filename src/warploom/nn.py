"""Layers for PyTorch models, and the swap of a model's own layers for them."""

from warploom.torch.gated_mlp import restore_gated_mlps, swap_gated_mlps
from warploom.torch.nn import Linear, restore_linears, swap_linears

__all__ = ["Linear", "restore_gated_mlps", "restore_linears", "swap_gated_mlps", "swap_linears"]
