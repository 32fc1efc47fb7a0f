"""The cost model of Hopper configurations: expected times from about thirty constants.

The constants are in the data file of a device (`heuristics/data/`); `warploom tune --fit` fits them to measurements.
Dense 16-bit GEMMs have constants of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.mma_shapes import WGMMA_M
from warploom.hardware.targets import L2_LINE, L2_SECTOR, ctas_at_once
from warploom.heuristics.problem_key import ProblemKey
from warploom.structured.config.sm90 import ROW_BYTES, USUAL_STAGES, HopperConfig
from warploom.structured.config.sm90_subtiles import LINE, SQUARE, wide_subtile

Fields = Mapping[str, Any]
Numbers = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.intp]]
Work = Mapping[str, Numbers]
"""The work of some candidates for a problem, by name: numbers that do not depend on the constants."""

_DEFAULTS: Fields = {each.name: each.default for each in fields(HopperConfig) if each.compare}
_HALF = 0.5
"""The part of a tile that a group of rows leaves empty, on average."""
_SWIZZLE_SIZE: int = _DEFAULTS["swizzle_size"]
_NARROW_COLUMNS = LINE // 4
"""Columns of a subtile that is stored slowly."""
_READ_POWERS = (("reads", 1), ("squares", 2))
"""The power of the slowdown of a read by which these sums grow."""
_SHARPNESS = 8
"""Of two things that overlap, the longer one counts, and the other the more, the closer it is."""


@dataclass(frozen=True)
class CandidateArrays:
    """The fields of candidates that the model reads, as arrays: thousands are ranked without constructing any."""

    rows: Numbers
    columns: Numbers
    cluster_x: Numbers
    """CTAs of a cluster along the rows of tiles."""
    cluster_y: Numbers
    consumers: Numbers
    pingpong: Numbers
    swapped: Numbers
    splits: Numbers
    split_in_memory: Numbers
    """1 if splits reduce through global memory."""
    stream_k: Numbers
    subtile: Numbers
    """Columns of a subtile of 16-bit elements."""
    stages: Numbers
    """Input stages if there are more than usual, else the largest usual number."""

    @classmethod
    def of(cls, rows: Sequence[Fields]) -> CandidateArrays:
        """Return the arrays of rows of fields."""

        def column(name: str, part: int | None = None) -> Numbers:
            values = [row.get(name, _DEFAULTS[name]) for row in rows]
            return np.array(values if part is None else [value[part] for value in values], np.float64)

        splits, columns = column("num_split_k"), column("tile", 1)
        subtiles = [
            row.get("stage_columns") or _subtile(int(width), bool(row.get("AB_swapped")), bool(row.get("pingpong")))
            for row, width in zip(rows, columns, strict=True)
        ]
        return cls(
            rows=column("tile", 0),
            columns=columns,
            cluster_x=column("cluster_shape", 0),
            cluster_y=column("cluster_shape", 1),
            consumers=column("consumers"),
            pingpong=column("pingpong"),
            swapped=column("AB_swapped"),
            splits=splits,
            split_in_memory=(splits > 1) * (1 - column("split_in_cluster")),
            stream_k=column("stream_k"),
            subtile=np.array(subtiles, np.float64),
            stages=np.array([max(row.get("num_pipeline_stages") or 0, USUAL_STAGES) for row in rows], np.float64),
        )

    @classmethod
    def of_configs(cls, configs: Sequence[HopperConfig]) -> CandidateArrays:
        """Return the arrays of configurations."""
        return cls.of([{name: getattr(config, name) for name in _DEFAULTS} for config in configs])

    def take(self, indices: Indices) -> CandidateArrays:
        """Return the candidates at some indices."""
        return CandidateArrays(**{each.name: getattr(self, each.name)[indices] for each in fields(self)})

    @property
    def accumulators(self) -> Numbers:
        """Accumulator registers per thread, without block scales."""
        each: Numbers = self.rows * self.columns / np.where(self.pingpong > 0, 1, self.consumers) / 128
        return each

    @property
    def swizzled_subtile(self) -> Numbers:
        """Columns of a subtile if a residual is loaded into its buffer: a swizzle must span its rows."""
        widths = (LINE, LINE // 2, _NARROW_COLUMNS)
        return np.select([self.columns % each == 0 for each in widths], widths, SQUARE).astype(np.float64)

    @property
    def cluster_size(self) -> Numbers:
        """CTAs of a cluster."""
        in_cluster = np.where(self.split_in_memory > 0, 1, self.splits)
        return np.where(self.splits > 1, in_cluster, self.cluster_x * self.cluster_y)

    def slots(self, sms: int) -> Numbers:
        """Return the CTAs that are resident at once."""
        sizes, places = np.unique(self.cluster_size, return_inverse=True)
        return np.array([ctas_at_once(sms, int(size)) for size in sizes], np.float64)[places]

    def sides(self, problem: ProblemKey) -> tuple[Numbers, Numbers]:
        """Return the tiles of one GEMM along M and N of C; for groups, whose rows only the GPU knows, the average."""
        tall_tile, wide_tile = self.rows * self.cluster_x, self.columns * self.cluster_y
        of_rows = np.where(self.swapped > 0, wide_tile, tall_tile)
        of_columns = np.where(self.swapped > 0, tall_tile, wide_tile)
        if problem.kind == "grouped":
            tall = np.maximum(problem.m / self._groups(problem) / of_rows + _HALF, 1)
        else:
            tall = np.ceil(problem.m / of_rows)
        across, up = (
            np.where(self.swapped > 0, self.cluster_x, self.cluster_y),
            np.where(self.swapped > 0, self.cluster_y, self.cluster_x),
        )
        return tall * up, np.ceil(problem.n / of_columns) * across

    def tiles(self, problem: ProblemKey) -> Numbers:
        """Return the tiles of all CTAs."""
        tall, wide = self.sides(problem)
        found: Numbers = tall * wide * (self._groups(problem) if problem.kind == "grouped" else problem.count)
        return found

    def reads(self, problem: ProblemKey, sms: int) -> tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
        """Return reads of rows of the kernel's A and B from L2 in one K step of all CTAs, and the sums of squares.

        A row that TMA multicasts to a cluster is read once for it.
        """
        tall, wide = self.sides(problem)
        tall, wide = np.where(self.swapped > 0, wide, tall), np.where(self.swapped > 0, tall, wide)
        at_once = np.minimum(self.tiles(problem) * self.splits, self.slots(sms)) / self.splits
        gemms = np.maximum(at_once / (tall * wide), 1)
        of_one = at_once / gemms
        high = np.minimum(np.minimum(tall, np.maximum(np.minimum(_SWIZZLE_SIZE, tall), np.ceil(of_one / wide))), of_one)
        broad = np.minimum(wide, np.ceil(of_one / high))
        each = gemms * self.splits
        of_a, of_b = np.maximum(of_one / high / self.cluster_y, 1), np.maximum(of_one / broad / self.cluster_x, 1)
        a, b = each * high * self.rows * of_a, each * broad * self.columns * of_b
        return (a, a * of_a), (b, b * of_b)

    def mn_major(self, problem: ProblemKey) -> tuple[Numbers, Numbers]:
        """Return 1 where the kernel's A is MN-major, and the same for its B."""
        a, b = (float(major == "mn") for major in problem.majors)
        return np.where(self.swapped > 0, b, a), np.where(self.swapped > 0, a, b)

    def pitches(self, problem: ProblemKey) -> tuple[Numbers, Numbers]:
        """Return the bytes from one contiguous row of the kernel's A to the next, and the same for its B."""
        element = ELEMENT_TYPES[problem.a_type].storage_bits // 8
        a, b = (
            (problem.k if major == "k" else other) * element
            for major, other in zip(problem.majors, (problem.m, problem.n), strict=True)
        )
        return np.where(self.swapped > 0, b, a), np.where(self.swapped > 0, a, b)

    def outside(self, problem: ProblemKey, sms: int) -> Numbers:
        """Return the rows outside A and B that a CTA loads per K tile: in the last wave, or on average."""
        if problem.kind == "grouped":
            return np.zeros_like(self.rows)
        tall, wide = self.sides(problem)
        is_last = self.tiles(problem) * self.splits <= self.slots(sms)
        found = np.zeros_like(self.rows)
        for tiles, size, of_rows in ((tall, problem.m, self.swapped == 0), (wide, problem.n, self.swapped > 0)):
            each = np.where(of_rows, self.rows, self.columns)
            shared = np.where(of_rows, self.cluster_y, self.cluster_x)
            missing = np.minimum(tiles * each - size, each) / np.where(self.splits > 1, 1, shared)
            found += np.where(is_last, missing, missing / tiles)
        return found

    @staticmethod
    def _groups(problem: ProblemKey) -> int:
        return max(min(problem.count, problem.m), 1)


@cache
def _subtile(columns: int, swapped: bool, pingpong: bool) -> int:
    return wide_subtile(columns, swapped=swapped, pingpong=pingpong)


def work_of(candidates: CandidateArrays, problem: ProblemKey, sms: int) -> Work:
    """Return the work of each candidate for a problem."""
    m, n, k, count = problem.sizes
    a_bytes, c_bytes = (ELEMENT_TYPES[name].storage_bits // 8 for name in (problem.a_type, problem.c_type))
    tiles, slots = candidates.tiles(problem), candidates.slots(sms)
    waves = tiles * candidates.splits / slots
    whole = np.maximum(waves, 1) + _HALF if problem.kind == "grouped" else np.ceil(waves)
    weights, batch = (count, 1) if problem.kind == "grouped" else (1, count)
    is_split, tile_k = candidates.splits > 1, ROW_BYTES // a_bytes
    is_swapped, is_pingpong, streams = candidates.swapped, candidates.pingpong, candidates.stream_k > 0
    rows, columns = candidates.rows, candidates.columns
    ones, stacked = np.ones_like(rows), rows / candidates.consumers / WGMMA_M
    writers = np.where(is_pingpong > 0, 1, candidates.consumers)
    (of_a, squares_of_a), (of_b, squares_of_b) = candidates.reads(problem, sms)
    pitch_of_a, pitch_of_b = candidates.pitches(problem)
    subtile = candidates.swizzled_subtile if problem.residual else candidates.subtile
    return {
        "reads_of_a": of_a,
        "reads_of_b": of_b,
        "squares_of_a": squares_of_a,
        "squares_of_b": squares_of_b,
        "waves": np.where(streams, waves, whole),
        "steps": np.ceil(np.ceil(k / tile_k) / candidates.splits),
        "rows": rows,
        "columns": columns,
        "tile_k": tile_k * ones,
        "rate": 2 / a_bytes * ones,
        "is_one_consumer": candidates.consumers == 1,
        "is_lone_pingpong": (is_pingpong > 0) & (waves <= 1),
        "received": (rows + columns) * ROW_BYTES,
        "outside": candidates.outside(problem, sms),
        "loaded_of_a": np.where(is_split, rows, rows / candidates.cluster_y) * ROW_BYTES,
        "loaded_of_b": np.where(is_split, columns, columns / candidates.cluster_x) * ROW_BYTES,
        "pitch_of_a": pitch_of_a,
        "pitch_of_b": pitch_of_b,
        "active": np.where(streams, slots, np.minimum(tiles * candidates.splits, slots)),
        "elements": rows * columns / writers,
        "stored": rows * columns,
        "is_swapped": is_swapped,
        "subtiles": rows / WGMMA_M / writers * columns / subtile,
        "is_narrow": (is_swapped == 0) & (subtile <= _NARROW_COLUMNS),
        "is_ragged": (is_swapped == 0) & (subtile > _NARROW_COLUMNS) & (subtile % (2 * SQUARE) != 0),
        "is_short": (is_swapped == 0) & (subtile > _NARROW_COLUMNS) & (subtile % LINE == LINE // 2),
        "is_pingpong": is_pingpong,
        "memory": batch * (a_bytes * (m + weights * n) * k + c_bytes * m * n) * ones,
        "is_clustered": ~is_split & (candidates.cluster_size > 1),
        "doublings": np.where(is_split, 0, np.log2(candidates.cluster_size)),
        "splits": np.where(is_split, candidates.splits, 0),
        "split_in_memory": candidates.split_in_memory,
        "stream_shares": np.where(streams, np.ceil(sms / tiles), 0),
        "promoted": np.where((stacked > 1) & (problem.kind == "blockwise"), stacked, 0),
    }


@dataclass(frozen=True)
class Model:
    """The constants: times in µs, rates per SM in FLOP or bytes per µs."""

    launch: float
    start: float
    """Per CTA of a wave, since all begin with loads at once."""
    latency: float
    """From the first load to the first MMA, and from the last MMA to the last store."""
    flops: float
    one_consumer: float
    """The rate of one consumer alone, relative to two."""
    lone_pingpong: float
    """The rate of a ping-pong consumer whose partner has no tile."""
    clustered: float
    """Slowdown of a K tile that a cluster has to finish together, for each doubling of the cluster."""
    received: float
    load: float
    """From L2, without the parts that other CTAs of a cluster multicast."""
    all_loads: float
    """From L2, of all SMs together."""
    read: float
    """One row of a K tile from L2, with all of L2 busy."""
    uneven: float
    """If many CTAs read few rows, some slices of L2 are busier than others, by the root of the sum of squares."""
    odd_lines: float
    """Slowdown of loads from L2 of rows that begin at 32 bytes, but not at 128."""
    half_sectors: float
    """The same for rows that do not begin at 32 bytes."""
    memory: float
    """DRAM, of the whole GPU."""
    overlap: float
    """Sharpness of the overlap of what CTAs do and what DRAM delivers."""
    outside: float
    """Per row outside the matrices, if a CTA only waits for memory."""
    element: float
    """Per element of a subtile that is not transposed, by the consumer that stores it."""
    store: float
    """Per element, whichever consumer stores it."""
    subtile: float
    """Per subtile, at which the threads of a consumer synchronise."""
    narrow: float
    """Slowdown of elements that are stored in rows of 32 bytes or less."""
    ragged: float
    """The same for rows that do not begin at 32 bytes."""
    short: float
    """The same for rows of 64 bytes."""
    cluster_split: float
    global_split: float
    split_element: float
    stream: float
    """Fixed cost of stream-K, in addition to the accumulators that CTAs exchange."""
    least_columns: float
    cluster: float
    promotion: float
    """Per partial that a consumer promotes before its next MMA: the part that the other consumer does not hide."""

    def times(self, work: Work) -> Numbers:
        """Return the expected time of each candidate."""
        multiplied, written = self.of_a_tile(work)
        # Ping-pong: one consumer writes while the other multiplies, as far as that takes as long.
        alternating = work["waves"] * np.maximum(multiplied, (multiplied + written) / 2) + written
        body = np.where(work["is_pingpong"] > 0, alternating, work["waves"] * (multiplied + written))
        streamed = work["memory"] / self.memory + self.outside * work["outside"] * work["steps"] * work["waves"]
        overlapped = _longest(body, streamed, sharpness=self.overlap)
        return self.launch + self.latency + self.start * work["active"] + self._reduction(work) + overlapped

    def of_a_tile(self, work: Work) -> tuple[Numbers, Numbers]:
        """Return the times of the main loop of a tile, and of its epilogue."""
        return work["steps"] * self._step(work), self._epilogue(work)

    def _step(self, work: Work) -> Numbers:
        """Return the time of one K tile: multiplying or loading, whichever is longer."""
        alone = np.where(work["is_one_consumer"] > 0, self.one_consumer, 1)
        alone = alone * np.where(work["is_lone_pingpong"] > 0, self.lone_pingpong, 1)
        rate = self.flops * work["rate"] * alone
        multiply = 2 * work["rows"] * np.maximum(work["columns"], self.least_columns) * work["tile_k"] / rate
        multiply = multiply + self.promotion * work["promoted"]
        a, b = (self._slowdown(work[f"pitch_of_{name}"]) for name in "ab")
        loaded = work["loaded_of_a"] * a + work["loaded_of_b"] * b
        loading = loaded * np.maximum(1 / self.load, work["active"] / self.all_loads)
        reads, squares = (
            work[f"{name}_of_a"] * a**power + work[f"{name}_of_b"] * b**power for name, power in _READ_POWERS
        )
        crowded = self.read * reads + self.uneven * np.sqrt(squares)
        received = work["received"] / self.received
        return _longest(multiply, loading, crowded, received) * self.clustered ** work["doublings"]

    def _slowdown(self, pitch: Numbers) -> Numbers:
        """Return the slowdown of loads from L2 of rows that do not begin at L2 lines."""
        in_sectors = np.where(pitch % L2_LINE == 0, 1, self.odd_lines)
        return np.where(pitch % L2_SECTOR == 0, in_sectors, self.half_sectors)

    def _epilogue(self, work: Work) -> Numbers:
        """Return the time of a tile after its last MMA."""
        element = np.where(work["is_swapped"] > 0, 0, self.element)
        for kind, slowdown in (("narrow", self.narrow), ("ragged", self.ragged), ("short", self.short)):
            element = element * np.where(work[f"is_{kind}"] > 0, slowdown, 1)
        return self.subtile * work["subtiles"] + element * work["elements"] + self.store * work["stored"]

    def _reduction(self, work: Work) -> Numbers:
        """Return the time of split-K and stream-K reductions, and of clusters."""
        exchanged = self.split_element * work["rows"] * work["columns"]
        in_cluster, in_memory = self.cluster_split + exchanged, self.global_split + exchanged * work["splits"] / 8
        split = np.where(work["split_in_memory"] > 0, in_memory, in_cluster)
        shares = work["stream_shares"]
        streamed = np.where(shares > 0, self.stream + exchanged * shares, 0)
        return np.where(work["splits"] > 0, split, streamed + self.cluster * work["is_clustered"])


def _longest(*times: Numbers, sharpness: float = _SHARPNESS) -> Numbers:
    """Return the time of things that overlap: that of the longest, and a little more."""
    most = np.maximum.reduce(times)
    found: Numbers = most * np.add.reduce([(each / most) ** sharpness for each in times]) ** (1 / sharpness)
    return found


Models = Mapping[str, Model]
"""Constants by the class of problem that `model_name` returns."""
DENSE_16BIT, OTHER = "dense_16bit", "other"


def is_dense_16bit(problem: ProblemKey) -> bool:
    """Return True for a single GEMM of 16-bit elements, of which many were measured."""
    return (problem.kind, problem.a_type, problem.count) == ("dense", "bf16", 1)


def model_name(problem: ProblemKey) -> str:
    """Return the class of problem whose constants apply."""
    return DENSE_16BIT if is_dense_16bit(problem) else OTHER


def expected_times(candidates: CandidateArrays, problem: ProblemKey, models: Models, *, sms: int) -> Numbers:
    """Return the times of candidates by the model, in µs."""
    return models[model_name(problem)].times(work_of(candidates, problem, sms))
