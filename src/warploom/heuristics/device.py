"""`Device`: the GPU that a configuration is chosen for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from warploom.hardware.targets import MACHINES


class Gpu(Protocol):
    """A GPU as the driver describes it."""

    @property
    def name(self) -> str: ...

    @property
    def sms(self) -> int: ...

    @property
    def target(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's name, number of SMs and kernel target."""

    name: str
    sms: int
    target: str = "sm_90a"

    @classmethod
    def of(cls, gpu: Gpu) -> Device:
        """Return the device of a GPU for which there are kernels."""
        return cls(gpu.name, gpu.sms, gpu.target or "sm_90a")


_MODELLED = {"sm_90a": "NVIDIA H200", "sm_100a": "NVIDIA B200", "sm_103a": "NVIDIA B300"}
EMULATED: Mapping[str, Device] = {
    target: Device(name, MACHINES[target].sms, target) for target, name in _MODELLED.items() if target in MACHINES
}
"""The device whose configurations the emulator uses, by target."""
