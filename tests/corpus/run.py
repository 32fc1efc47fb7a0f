"""Run a prepared case on the machine."""

from __future__ import annotations

import copy
from typing import Any

import warploom

from .case import Arrays, Map, Prepared


def run(prepared: Prepared, *, schedule: str = "eager", seed: int = 0) -> Arrays:
    """Launch on copies of the arrays and return them as the kernel left them."""
    arrays = copy.deepcopy(prepared.arrays)

    def bound(argument: Any) -> Any:
        match argument:
            case Map(buffer, box, swizzle):
                return warploom.TensorMap(arrays[buffer], box=box, swizzle=swizzle)
            case str():
                return arrays[argument]
            case _:
                return argument

    compiled = prepared.compiled
    warploom.launch(
        compiled.ptx,
        entry=compiled.entry,
        grid=prepared.grid,
        block=compiled.block,
        cluster=compiled.cluster,
        shared_bytes=compiled.shared_bytes,
        args=[bound(argument) for argument in prepared.args],
        schedule=schedule,
        seed=seed,
    )
    return arrays
