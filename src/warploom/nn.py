"""Layers for PyTorch models, and the swap of a model's own layers for them."""

from warploom.torch.nn import Linear, restore_linears, swap_linears

__all__ = ["Linear", "restore_linears", "swap_linears"]
