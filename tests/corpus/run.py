"""Run a prepared case on the emulator."""

from __future__ import annotations

import copy
from typing import Any

import warploom
from warploom.host import arrays as arrays_of

from .case import Argument, Arrays, Map, Pointers, Prepared


def bound(argument: Argument, arrays: Arrays) -> Any:
    """An argument as `launch` takes it, over these arrays."""
    match argument:
        case Map(buffer, box, swizzle):
            return warploom.TensorMap(arrays[buffer], box=box, swizzle=swizzle)
        case Pointers(buffers):
            return arrays_of.Pointers(None if name is None else arrays[name] for name in buffers)
        case str():
            return arrays[argument]
        case _:
            return argument


def run(prepared: Prepared, *, schedule: str = "eager", seed: int = 0) -> Arrays:
    """Launch on copies of the arrays and return them as the kernel left them."""
    return launched(prepared, schedule=schedule, seed=seed)[0]


def launched(prepared: Prepared, **options: Any) -> tuple[Arrays, warploom.Run]:
    """Launch on copies of the arrays; return the copies as the kernel left them, and the run."""
    arrays = copy.deepcopy(prepared.arrays)
    compiled = prepared.compiled
    ran = warploom.launch(
        compiled.ptx,
        entry=compiled.entry,
        grid=prepared.grid,
        block=compiled.block,
        cluster=compiled.cluster,
        shared_bytes=compiled.shared_bytes,
        args=[bound(argument, arrays) for argument in prepared.args],
        **options,
    )
    return arrays, ran
