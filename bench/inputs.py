"""Random tensors for benchmarks: small integers where results are compared, normal values where time is measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Maker:
    """Makes fresh tensors on a device; `exact` ones are small integers, whose dot products are exact in every type."""

    device: str
    exact: bool = False
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(torch.seed() % (1 << 31))

    def values(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        options = {"device": self.device, "generator": self.generator}
        if self.exact:
            return torch.randint(-2, 3, shape, **options).float().to(dtype)
        return torch.randn(shape, **options).to(dtype)

    def scales(self, *shape: int) -> torch.Tensor:
        if self.exact:
            return 2.0 ** torch.randint(-2, 3, shape, device=self.device, generator=self.generator)
        return torch.rand(shape, device=self.device, generator=self.generator) + 0.5

    def out(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"), device=self.device, dtype=torch.bfloat16)
