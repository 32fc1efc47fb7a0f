"""Layers for PyTorch models, and the swap of those that a model has."""

from warploom.torch.nn import Linear, restore_linears, swap_linears

__all__ = ["Linear", "restore_linears", "swap_linears"]
