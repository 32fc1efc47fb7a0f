"""The GPU that runs candidates, rotating through copies of their arrays that together exceed the L2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Self

from warploom.host.arrays import Buffer, Scratch, buffer_of, is_array
from warploom.host.launch import Launch
from warploom.host.tensor_map import TensorMap
from warploom.runtime.gpu.driver import Device
from warploom.runtime.gpu.prepared import Prepared
from warploom.tuning.contest import Result
from warploom.tuning.stopwatch import Call, Stopwatch

ROUNDS = 15
_WINDOW_US = 3000.0
"""Launches of one graph."""
_MOST_LAUNCHES, _MOST_SETS, _LEAST_SETS = 300, 512, 2
_L2_TIMES = 3
_ALIGNMENT = 256
_POISON = 0xFF
"""A byte that makes every floating-point number NaN."""


@dataclass(frozen=True)
class Region:
    """Memory of the caller that candidates read or write."""

    address: int
    size: int
    element: str
    """The NumPy name of the element type."""
    is_result: bool = False
    """True if it is written completely: it is poisoned before a result is compared."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The region as an array of bytes."""
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 3}


@dataclass(frozen=True)
class Made:
    """A launch, the arrays that are exchanged in its calls, and the regions that these belong to."""

    launch: Launch
    arrays: tuple[Any, ...]
    regions: tuple[int, ...]


@dataclass(frozen=True)
class Ready:
    """A candidate that can be launched."""

    launch_at: Callable[[tuple[int, ...], int], None]
    regions: tuple[int, ...]


class GpuRig:
    """Runs and times launches on copies of some regions."""

    def __init__(self, device: Device, regions: Sequence[Region], *, rounds: int = ROUNDS) -> None:
        self._device, self._regions, self._rounds = device, tuple(regions), rounds
        self._watch = Stopwatch(device)
        size = sum(region.size for region in regions)
        count = ceil(_L2_TIMES * self._watch.l2_bytes / max(size, 1))
        self._sets = [self._copied() for _ in range(max(_LEAST_SETS, min(count, _MOST_SETS)))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._watch.give_back()

    def prepared(self, made: Made) -> Ready:
        """Return a launch, assembled and loaded."""
        return Ready(Prepared(made.launch, made.arrays, device=self._device).launch_at, made.regions)

    def run(self, candidate: Ready) -> list[Result]:
        """Return what a candidate writes into the result regions; if none are marked, the contents of all regions."""
        place = self._sets[0]
        for region, copy in zip(self._regions, place, strict=True):
            self._watch.copy(copy, region.address, region.size)
            if region.is_result:
                self._watch.fill(copy, region.size, _POISON)
        self._call(candidate, place)()
        results = [at for at, region in enumerate(self._regions) if region.is_result]
        results = results or list(range(len(place)))
        return [
            Result(self._regions[at].element, self._watch.read(place[at], self._regions[at].size)) for at in results
        ]

    def times(self, candidates: Sequence[Ready], on_round: Callable[[int, int], None]) -> list[list[float]]:
        """Return the microseconds of a launch in a graph, by candidate and round; the candidates alternate."""
        calls = [[self._call(each, place) for place in self._sets] for each in candidates]
        for call in calls[0]:  # warm-up: clocks rise, and all code is loaded
            call()
        guess = max(min(self._watch.once(call) for call in calls[0][:3]), 1.0)
        launches = max(len(self._sets), min(_MOST_LAUNCHES, int(_WINDOW_US / guess)))
        graphs = [self._watch.graph(each, launches) for each in calls]
        found = self._watch.replayed(graphs, self._rounds, lambda done: on_round(done, self._rounds))
        for graph in graphs:
            self._watch.drop(graph)
        return [[us / launches for us in each] for each in found]

    def _call(self, candidate: Ready, place: tuple[int, ...]) -> Call:
        return partial(candidate.launch_at, tuple(place[at] for at in candidate.regions), self._watch.stream)

    def _copied(self) -> tuple[int, ...]:
        """Return a copy of each region with the same offset from a multiple of 256 bytes."""
        places = []
        for region in self._regions:
            skipped = region.address % _ALIGNMENT
            places.append(self._watch.room(skipped + region.size) + skipped)
            self._watch.copy(places[-1], region.address, region.size)
        return tuple(places)


def regions_of(launches: Sequence[Launch], results: Sequence[Any]) -> list[Region]:
    """Return the GPU memory that launches use: arrays that overlap are one region."""
    buffers = [buffer_of(array) for launch in launches for array in gpu_arrays(launch)]
    written = [buffer_of(array) for array in results]
    merged: list[Region] = []
    for buffer in sorted({*buffers, *written}, key=lambda buffer: (buffer.address, -buffer.span)):
        is_result = _is_among(buffer, written)
        if merged and buffer.address < merged[-1].address + merged[-1].size:
            last = merged.pop()
            size = max(last.size, buffer.address + buffer.span - last.address)
            merged.append(Region(last.address, size, last.element, last.is_result and is_result))
        else:
            merged.append(Region(buffer.address, max(buffer.span, 1), buffer.dtype, is_result))
    return merged


def _is_among(buffer: Buffer, written: Sequence[Buffer]) -> bool:
    """Return True if an array is inside one of some others."""
    start, end = buffer.address, buffer.address + buffer.span
    return any(each.address <= start and end <= each.address + each.span for each in written)


def gpu_arrays(launch: Launch) -> list[Any]:
    """Return the arrays that a launch is given, without its own memory."""
    held = [arg.array if isinstance(arg, TensorMap) else arg for arg in launch.args]
    return [array for array in held if is_array(array) and not isinstance(array, Scratch)]
