"""How long a Hopper configuration takes, by a model of a dozen constants.

`warploom tune --fit` fits the constants to measurements. These are fitted to bench/results/hopper_configurations.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from warploom.structured.config.hopper import MACHINE, ROW_BYTES, HopperConfig
from warploom.structured.config.hopper_blockwise import HopperBlockwiseConfig
from warploom.structured.config.sought import Sought

Numbers = np.ndarray[Any, np.dtype[np.float64]]

TOGETHER = 120
"""CTAs that run at once in clusters of four or more."""
_SECTOR, _LINE = 32, 128
"""Bytes that L2 delivers at once, and of what it looks up at once."""
_HALF = 0.5
"""Of a tile that a group of rows leaves empty, on average."""


Work = Mapping[str, Numbers]
"""What some configurations have to do for a problem: numbers that no constant changes, by name."""


def work_of(configs: Sequence[HopperConfig], sought: Sought, sms: int = MACHINE.sms) -> Work:
    """What each configuration has to do."""
    rows = [_work(config, sought, sms) for config in configs]
    return {name: np.array([row[name] for row in rows], np.float64) for name in (rows[0] if rows else ())}


def _work(config: HopperConfig, sought: Sought, sms: int) -> dict[str, float]:
    (x, y), splits = config.cluster_shape[:2], config.num_split_k
    tiles = tiles_of(config, sought)
    slots = TOGETHER if splits * x * y >= 4 and config.split_in_cluster and splits > 1 else sms
    waves = tiles * splits / slots
    grouped = sought.kind == "grouped"
    weights, batch = (sought.count, 1) if grouped else (1, sought.count)
    m, n, k = sought.sizes[:3]
    memory = batch * (config.a_bytes * (m + weights * n) * k + config.c_bytes * m * n)
    shared, pitch = (1, 1) if splits > 1 else (x, y), k * config.a_bytes
    return {
        "waves": max(waves, 1) + _HALF if grouped else waves if config.stream_k else ceil(waves),
        "steps": ceil(ceil(k / config.BK) / splits),
        "rows": config.BM,
        "columns": config.BN,
        "depth": config.BK,
        "rate": 2 / config.a_bytes,
        "is_alone": config.consumers == 1,
        "loaded": (config.BM / shared[1] + config.BN / shared[0]) * ROW_BYTES,
        "odd_lines": pitch % _LINE != 0 and pitch % _SECTOR == 0,
        "half_sectors": pitch % _SECTOR != 0,
        "active": sms if config.stream_k else min(tiles * splits, sms),
        "elements": config.BM * config.BN / min(config.consumers, 2),
        "is_pingpong": config.pingpong,
        "memory": memory,
        "is_clustered": splits == 1 and config.cluster_shape != (1, 1, 1),
        "splits": splits if splits > 1 else 0,
        "meets_in_memory": splits > 1 and not config.split_in_cluster,
        "streamed": ceil(sms / tiles) if config.stream_k else 0,
        "promotes": isinstance(config, HopperBlockwiseConfig),
    }


def tiles_of(config: HopperConfig, sought: Sought) -> float:
    """Tiles of all CTAs; of groups, whose rows only the GPU knows, as many as there are on average."""
    down, along = (config.BM * config.cluster_shape[0], config.BN * config.cluster_shape[1])
    m, n = sought.m, sought.n
    of_rows, of_columns = (along, down) if config.AB_swapped else (down, along)
    if sought.kind == "grouped":
        groups = max(min(sought.count, m), 1)
        tall: float = groups * max(m / groups / of_rows + _HALF, 1)
    else:
        tall = ceil(m / of_rows) * sought.count
    return tall * ceil(n / of_columns) * config.cluster_shape[0] * config.cluster_shape[1]


@dataclass(frozen=True)
class Model:
    """Times in µs, rates per multiprocessor in flop or bytes per µs."""

    launch: float = 1.86
    flops: float = 5.61e6
    one_consumer: float = 0.843
    """The rate of one warpgroup alone, of that of two."""
    load: float = 8.73e4
    all_loads: float = 1.57e7
    """Of all multiprocessors together, from L2."""
    odd_lines: float = 1.63
    """How much longer loads from L2 take of rows that begin at 32 bytes, but not at 128."""
    half_sectors: float = 2.72
    """The same of rows that do not begin at 32 bytes."""
    memory: float = 9.53e6
    """Of the GPU's memory."""
    tile: float = 0.202
    element: float = 6.28e-5
    cluster_split: float = 0.637
    global_split: float = 1.81
    split_element: float = 6.88e-5
    stream: float = 3.0
    """What CTAs lose that share tiles by stream-K, beside the sums that they exchange."""
    least_step: float = 0.0274
    least_columns: float = 32.0
    cluster: float = 2.22
    promotion: float = 0.0968
    """Of a K tile with factors: what adding up costs that the other warpgroup does not hide."""

    def times(self, of: Work) -> Numbers:
        """How long each configuration takes."""
        multiplied, written = of["steps"] * self._step(of), self.tile + self.element * of["elements"]
        # Of ping-pong warpgroups one writes while the other multiplies, as far as that takes as long.
        in_turns = of["waves"] * np.maximum(multiplied, (multiplied + written) / 2) + written
        body = np.where(of["is_pingpong"] > 0, in_turns, of["waves"] * (multiplied + written))
        return self.launch + self._meeting(of) + np.maximum(body, of["memory"] / self.memory)

    def _step(self, of: Work) -> Numbers:
        """One K tile: what multiplying takes, or loading, whichever is longer."""
        rate = self.flops * of["rate"] * np.where(of["is_alone"] > 0, self.one_consumer, 1)
        multiply = 2 * of["rows"] * np.maximum(of["columns"], self.least_columns) * of["depth"] / rate
        multiply = multiply + self.promotion * of["promotes"]
        slower = 1 + (self.odd_lines - 1) * of["odd_lines"] + (self.half_sectors - 1) * of["half_sectors"]
        loading = of["loaded"] * np.maximum(1 / self.load, slower * of["active"] / self.all_loads)
        return np.maximum(np.maximum(multiply, loading), self.least_step)

    def _meeting(self, of: Work) -> Numbers:
        """What CTAs that work together spend on finding each other."""
        sums = self.split_element * of["rows"] * of["columns"]
        in_cluster, in_memory = self.cluster_split + sums, self.global_split + sums * of["splits"] / 8
        split = np.where(of["meets_in_memory"] > 0, in_memory, in_cluster)
        streamed = np.where(of["streamed"] > 0, self.stream + sums * of["streamed"], 0)
        return np.where(of["splits"] > 0, split, streamed + self.cluster * of["is_clustered"])


MODEL = Model()


def expected_times(configs: Sequence[HopperConfig], sought: Sought, *, sms: int = MACHINE.sms) -> list[float]:
    """How long configurations take by the model, in µs."""
    found: list[float] = MODEL.times(work_of(configs, sought, sms)).tolist()
    return found
