"""How long a Hopper configuration takes, by a model of some thirty constants.

`warploom tune --fit` fits the constants to measurements. These are fitted to bench/results/hopper_configurations.json,
those of single 16-bit products by themselves.
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
from warploom.heuristics.problem_key import Sought
from warploom.structured.config.sm90 import MACHINE, ROW_BYTES, USUAL_STAGES, HopperConfig
from warploom.structured.config.sm90_subtiles import LINE, SQUARE, wide_subtile

Fields = Mapping[str, Any]
Numbers = np.ndarray[Any, np.dtype[np.float64]]
Work = Mapping[str, Numbers]
"""What some configurations have to do for a problem: numbers that no constant changes, by name."""

_DEFAULTS: Fields = {each.name: each.default for each in fields(HopperConfig) if each.compare}
_HALF = 0.5
"""Of a tile that a group of rows leaves empty, on average."""
_BAND: int = _DEFAULTS["band"]
_NARROW_COLUMNS = LINE // 4
"""Columns of a strip that is stored slowly."""
_READS = (("reads", 1), ("squares", 2))
"""Of which power of what a read takes these are sums."""
_SHARPNESS = 8
"""Of two things that overlap the longer one counts, and the other more, the nearer it comes."""


@dataclass(frozen=True)
class Outlines:
    """What the model reads of configurations, one in a place: thousands are weighed without making any."""

    rows: Numbers
    columns: Numbers
    down: Numbers
    """CTAs of a cluster along the rows of tiles."""
    along: Numbers
    consumers: Numbers
    pingpong: Numbers
    swapped: Numbers
    splits: Numbers
    in_memory: Numbers
    """Whether splits meet in global memory."""
    streamed: Numbers
    strip: Numbers
    """Columns of a strip of 16-bit elements."""
    stages: Numbers
    """Input stages, where they are more than usual, else the most that are usual."""

    @classmethod
    def of(cls, rows: Sequence[Fields]) -> Outlines:
        """The outlines of rows of fields."""

        def column(name: str, part: int | None = None) -> Numbers:
            values = [row.get(name, _DEFAULTS[name]) for row in rows]
            return np.array(values if part is None else [value[part] for value in values], np.float64)

        splits, columns = column("num_split_k"), column("tile", 1)
        strips = [
            row.get("stage_columns") or _strip(int(width), bool(row.get("AB_swapped")), bool(row.get("pingpong")))
            for row, width in zip(rows, columns, strict=True)
        ]
        return cls(
            rows=column("tile", 0),
            columns=columns,
            down=column("cluster_shape", 0),
            along=column("cluster_shape", 1),
            consumers=column("consumers"),
            pingpong=column("pingpong"),
            swapped=column("AB_swapped"),
            splits=splits,
            in_memory=(splits > 1) * (1 - column("split_in_cluster")),
            streamed=column("stream_k"),
            strip=np.array(strips, np.float64),
            stages=np.array([max(row.get("num_pipeline_stages") or 0, USUAL_STAGES) for row in rows], np.float64),
        )

    def only(self, places: np.ndarray[Any, np.dtype[np.intp]]) -> Outlines:
        """Those in some places."""
        return Outlines(**{each.name: getattr(self, each.name)[places] for each in fields(self)})

    @property
    def accumulators(self) -> Numbers:
        """Registers of a thread that hold sums, of products without scales."""
        each: Numbers = self.rows * self.columns / np.where(self.pingpong > 0, 1, self.consumers) / 128
        return each

    @property
    def swizzled(self) -> Numbers:
        """Columns of a strip where a residual comes into its buffer: rows that a swizzle spans."""
        widths = (LINE, LINE // 2, _NARROW_COLUMNS)
        return np.select([self.columns % each == 0 for each in widths], widths, SQUARE).astype(np.float64)

    @property
    def meeting(self) -> Numbers:
        """CTAs of a cluster."""
        in_cluster = np.where(self.in_memory > 0, 1, self.splits)
        return np.where(self.splits > 1, in_cluster, self.down * self.along)

    def slots(self, sms: int) -> Numbers:
        """CTAs that run at once."""
        sizes, places = np.unique(self.meeting, return_inverse=True)
        return np.array([ctas_at_once(sms, int(size)) for size in sizes], np.float64)[places]

    def sides(self, sought: Sought) -> tuple[Numbers, Numbers]:
        """Tiles of one product along M and along N of C; of groups, whose rows only the GPU knows, the average."""
        down, along = self.rows * self.down, self.columns * self.along
        of_rows, of_columns = np.where(self.swapped > 0, along, down), np.where(self.swapped > 0, down, along)
        if sought.kind == "grouped":
            tall = np.maximum(sought.m / self._groups(sought) / of_rows + _HALF, 1)
        else:
            tall = np.ceil(sought.m / of_rows)
        across, up = (
            np.where(self.swapped > 0, self.down, self.along),
            np.where(self.swapped > 0, self.along, self.down),
        )
        return tall * up, np.ceil(sought.n / of_columns) * across

    def tiles(self, sought: Sought) -> Numbers:
        """Tiles of all CTAs."""
        tall, wide = self.sides(sought)
        found: Numbers = tall * wide * (self._groups(sought) if sought.kind == "grouped" else sought.count)
        return found

    def reads(self, sought: Sought, sms: int) -> tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]]:
        """Reads of rows of the kernel's A, and of its B, from L2 in one step of all CTAs, and the squares of one row's.

        A row that the copy engine gives to a cluster is read once for it.
        """
        tall, wide = self.sides(sought)
        tall, wide = np.where(self.swapped > 0, wide, tall), np.where(self.swapped > 0, tall, wide)
        at_once = np.minimum(self.tiles(sought) * self.splits, self.slots(sms)) / self.splits
        products = np.maximum(at_once / (tall * wide), 1)
        of_one = at_once / products
        high = np.minimum(np.minimum(tall, np.maximum(np.minimum(_BAND, tall), np.ceil(of_one / wide))), of_one)
        broad = np.minimum(wide, np.ceil(of_one / high))
        each = products * self.splits
        of_a, of_b = np.maximum(of_one / high / self.along, 1), np.maximum(of_one / broad / self.down, 1)
        a, b = each * high * self.rows * of_a, each * broad * self.columns * of_b
        return (a, a * of_a), (b, b * of_b)

    def mn_major(self, sought: Sought) -> tuple[Numbers, Numbers]:
        """Whether K is not what is contiguous in the kernel's A, and in its B."""
        a, b = (float(major == "mn") for major in sought.majors)
        return np.where(self.swapped > 0, b, a), np.where(self.swapped > 0, a, b)

    def pitches(self, sought: Sought) -> tuple[Numbers, Numbers]:
        """Bytes from a row of the kernel's A in memory to the next, and of its B; a row is what is contiguous."""
        element = ELEMENT_TYPES[sought.a_type].storage_bits // 8
        a, b = (
            (sought.k if major == "k" else other) * element
            for major, other in zip(sought.majors, (sought.m, sought.n), strict=True)
        )
        return np.where(self.swapped > 0, b, a), np.where(self.swapped > 0, a, b)

    def outside(self, sought: Sought, sms: int) -> Numbers:
        """Rows of A and B outside the matrices that a CTA loads for a K tile: the last of a wave, or one on average."""
        if sought.kind == "grouped":
            return np.zeros_like(self.rows)
        tall, wide = self.sides(sought)
        is_last = self.tiles(sought) * self.splits <= self.slots(sms)
        found = np.zeros_like(self.rows)
        for tiles, size, of_rows in ((tall, sought.m, self.swapped == 0), (wide, sought.n, self.swapped > 0)):
            each, shared = np.where(of_rows, self.rows, self.columns), np.where(of_rows, self.along, self.down)
            missing = np.minimum(tiles * each - size, each) / np.where(self.splits > 1, 1, shared)
            found += np.where(is_last, missing, missing / tiles)
        return found

    @staticmethod
    def _groups(sought: Sought) -> int:
        return max(min(sought.count, sought.m), 1)


@cache
def _strip(columns: int, swapped: bool, pingpong: bool) -> int:
    return wide_subtile(columns, swapped=swapped, pingpong=pingpong)


def outlines_of(configs: Sequence[HopperConfig]) -> Outlines:
    """The outlines of configurations."""
    return Outlines.of([{name: getattr(config, name) for name in _DEFAULTS} for config in configs])


def work_of(of: Outlines, sought: Sought, sms: int = MACHINE.sms) -> Work:
    """What each configuration has to do."""
    m, n, k, count = sought.sizes
    a_bytes, c_bytes = (ELEMENT_TYPES[name].storage_bits // 8 for name in (sought.a_type, sought.c_type))
    tiles, slots = of.tiles(sought), of.slots(sms)
    waves = tiles * of.splits / slots
    whole = np.maximum(waves, 1) + _HALF if sought.kind == "grouped" else np.ceil(waves)
    weights, batch = (count, 1) if sought.kind == "grouped" else (1, count)
    is_split, depth = of.splits > 1, ROW_BYTES // a_bytes
    everywhere, stacked = np.ones_like(of.rows), of.rows / of.consumers / WGMMA_M
    (of_a, squares_of_a), (of_b, squares_of_b) = of.reads(sought, sms)
    pitch_of_a, pitch_of_b = of.pitches(sought)
    strip = of.swizzled if sought.residual else of.strip
    return {
        "reads_of_a": of_a,
        "reads_of_b": of_b,
        "squares_of_a": squares_of_a,
        "squares_of_b": squares_of_b,
        "waves": np.where(of.streamed > 0, waves, whole),
        "steps": np.ceil(np.ceil(k / depth) / of.splits),
        "rows": of.rows,
        "columns": of.columns,
        "depth": depth * everywhere,
        "rate": 2 / a_bytes * everywhere,
        "is_alone": of.consumers == 1,
        "is_lonely": (of.pingpong > 0) & (waves <= 1),
        "received": (of.rows + of.columns) * ROW_BYTES,
        "outside": of.outside(sought, sms),
        "loaded_of_a": np.where(is_split, of.rows, of.rows / of.along) * ROW_BYTES,
        "loaded_of_b": np.where(is_split, of.columns, of.columns / of.down) * ROW_BYTES,
        "pitch_of_a": pitch_of_a,
        "pitch_of_b": pitch_of_b,
        "active": np.where(of.streamed > 0, slots, np.minimum(tiles * of.splits, slots)),
        "elements": of.rows * of.columns / np.where(of.pingpong > 0, 1, of.consumers),
        "stored": of.rows * of.columns,
        "is_swapped": of.swapped,
        "strips": of.rows / WGMMA_M / np.where(of.pingpong > 0, 1, of.consumers) * of.columns / strip,
        "is_narrow": (of.swapped == 0) & (strip <= _NARROW_COLUMNS),
        "is_ragged": (of.swapped == 0) & (strip > _NARROW_COLUMNS) & (strip % (2 * SQUARE) != 0),
        "is_short": (of.swapped == 0) & (strip > _NARROW_COLUMNS) & (strip % LINE == LINE // 2),
        "is_pingpong": of.pingpong,
        "memory": batch * (a_bytes * (m + weights * n) * k + c_bytes * m * n) * everywhere,
        "is_clustered": ~is_split & (of.meeting > 1),
        "doublings": np.where(is_split, 0, np.log2(of.meeting)),
        "splits": np.where(is_split, of.splits, 0),
        "meets_in_memory": of.in_memory,
        "streamed": np.where(of.streamed > 0, np.ceil(sms / tiles), 0),
        "promoted": np.where((stacked > 1) & (sought.kind == "blockwise"), stacked, 0),
    }


@dataclass(frozen=True)
class Model:
    """Times in µs, rates per multiprocessor in flop or bytes per µs."""

    launch: float = 1.04
    start: float = 0.00349
    """Of each CTA of a wave, since all begin with loads at once."""
    latency: float = 1.08
    """From the first load to the first multiplication, and from the last one to the last store."""
    flops: float = 6.03e6
    one_consumer: float = 0.942
    """The rate of one warpgroup alone, of that of two."""
    lonely: float = 0.97
    """The rate of a ping-pong warpgroup whose partner has no tile."""
    clustered: float = 0.999
    """How much longer a K tile takes that a cluster has to finish together, for each doubling of the cluster."""
    received: float = 1.15e5
    load: float = 1.01e6
    """From L2, with what other CTAs of a cluster load for this one left out."""
    all_loads: float = 7.06e7
    """Of all multiprocessors together."""
    read: float = 6.82e-07
    """Of one row of a K tile from L2, with all of it at work."""
    uneven: float = 3.17e-05
    """Where few rows are read by many CTAs, some parts of L2 have more of them than others, by the root of squares."""
    odd_lines: float = 6.36
    """How much longer loads from L2 take of rows that begin at 32 bytes, but not at 128."""
    half_sectors: float = 10.6
    """The same of rows that do not begin at 32 bytes."""
    memory: float = 5.34e6
    """Of the GPU's memory."""
    overlap: float = 2.3
    """How sharply the longer one counts of what CTAs do and what memory delivers."""
    outside: float = 0.000431
    """Of a row outside the matrices, where all that a CTA does is to wait for memory."""
    element: float = 1.11e-05
    """Of an element of a strip that is not transposed, by the warpgroup that stores it."""
    store: float = 4.44e-05
    """Of an element, by whichever warpgroup it is stored."""
    strip: float = 0.0581
    """Of a strip, at which the threads of a warpgroup meet."""
    narrow: float = 3.6
    """How much longer elements take that are stored in rows of 32 bytes or less."""
    ragged: float = 3.7
    """The same of rows that do not begin at 32 bytes."""
    short: float = 2.34
    """The same of rows of 64 bytes."""
    cluster_split: float = 0.1
    global_split: float = 1.03
    split_element: float = 0.000112
    stream: float = 4.47
    """What CTAs lose that share tiles by stream-K, beside the sums that they exchange."""
    least_columns: float = 68.8
    cluster: float = 0.754
    promotion: float = 0.0335
    """Of a product that a warpgroup promotes before it multiplies the next: what the other one does not hide."""

    def times(self, of: Work) -> Numbers:
        """How long each configuration takes."""
        multiplied, written = self.of_a_tile(of)
        # Of ping-pong warpgroups one writes while the other multiplies, as far as that takes as long.
        in_turns = of["waves"] * np.maximum(multiplied, (multiplied + written) / 2) + written
        body = np.where(of["is_pingpong"] > 0, in_turns, of["waves"] * (multiplied + written))
        streamed = of["memory"] / self.memory + self.outside * of["outside"] * of["steps"] * of["waves"]
        overlapped = _longest(body, streamed, sharpness=self.overlap)
        return self.launch + self.latency + self.start * of["active"] + self._meeting(of) + overlapped

    def of_a_tile(self, of: Work) -> tuple[Numbers, Numbers]:
        """What multiplying a tile takes, and what writing it."""
        return of["steps"] * self._step(of), self._written(of)

    def _step(self, of: Work) -> Numbers:
        """One K tile: what multiplying takes, or loading, whichever is longer."""
        alone = np.where(of["is_alone"] > 0, self.one_consumer, 1) * np.where(of["is_lonely"] > 0, self.lonely, 1)
        rate = self.flops * of["rate"] * alone
        multiply = 2 * of["rows"] * np.maximum(of["columns"], self.least_columns) * of["depth"] / rate
        multiply = multiply + self.promotion * of["promoted"]
        a, b = (self._slower(of[f"pitch_of_{name}"]) for name in "ab")
        loaded = of["loaded_of_a"] * a + of["loaded_of_b"] * b
        loading = loaded * np.maximum(1 / self.load, of["active"] / self.all_loads)
        reads, squares = (of[f"{name}_of_a"] * a**power + of[f"{name}_of_b"] * b**power for name, power in _READS)
        crowded = self.read * reads + self.uneven * np.sqrt(squares)
        return _longest(multiply, loading, crowded, of["received"] / self.received) * self.clustered ** of["doublings"]

    def _slower(self, pitch: Numbers) -> Numbers:
        """How much longer loads from L2 take of rows that do not begin where lines do."""
        in_sectors = np.where(pitch % L2_LINE == 0, 1, self.odd_lines)
        return np.where(pitch % L2_SECTOR == 0, in_sectors, self.half_sectors)

    def _written(self, of: Work) -> Numbers:
        """What a tile takes after its last multiplication."""
        element = np.where(of["is_swapped"] > 0, 0, self.element)
        for kind, longer in (("narrow", self.narrow), ("ragged", self.ragged), ("short", self.short)):
            element = element * np.where(of[f"is_{kind}"] > 0, longer, 1)
        return self.strip * of["strips"] + element * of["elements"] + self.store * of["stored"]

    def _meeting(self, of: Work) -> Numbers:
        """What CTAs that work together spend on finding each other."""
        sums = self.split_element * of["rows"] * of["columns"]
        in_cluster, in_memory = self.cluster_split + sums, self.global_split + sums * of["splits"] / 8
        split = np.where(of["meets_in_memory"] > 0, in_memory, in_cluster)
        streamed = np.where(of["streamed"] > 0, self.stream + sums * of["streamed"], 0)
        return np.where(of["splits"] > 0, split, streamed + self.cluster * of["is_clustered"])


def _longest(*times: Numbers, sharpness: float = _SHARPNESS) -> Numbers:
    """What overlapping things take together: as long as the longest, and a little more."""
    most = np.maximum.reduce(times)
    found: Numbers = most * np.add.reduce([(each / most) ** sharpness for each in times]) ** (1 / sharpness)
    return found


MODEL = Model()
OTHERS = Model(
    launch=1.44,
    start=1e-9,
    latency=0.443,
    flops=5.99e6,
    one_consumer=0.886,
    lonely=0.732,
    clustered=1.09,
    received=1.05e5,
    load=1.77e5,
    all_loads=1.3e7,
    read=1e-9,
    uneven=1e-9,
    odd_lines=1.33,
    half_sectors=2.36,
    memory=5.2e6,
    overlap=8.0,
    outside=1e-9,
    element=2.55e-5,
    store=4.8e-5,
    strip=0.0661,
    narrow=2.07,
    ragged=1.93,
    short=1.43,
    cluster_split=0.763,
    global_split=2.05,
    split_element=9.77e-5,
    stream=3.0,
    least_columns=10.6,
    cluster=0.99,
    promotion=0.0335,
)
"""Of products of which little was measured: grouped, blockwise, batched, of 8-bit and of 32-bit elements."""


def is_single(sought: Sought) -> bool:
    """Whether it is one product of 16-bit elements: of such much was measured."""
    return (sought.kind, sought.a_type, sought.count) == ("dense", "bf16", 1)


def model_for(sought: Sought) -> Model:
    """The constants that were fitted to such products."""
    return MODEL if is_single(sought) else OTHERS


def expected_times(of: Outlines, sought: Sought, *, sms: int = MACHINE.sms) -> Numbers:
    """How long configurations take by the model, in µs."""
    return model_for(sought).times(work_of(of, sought, sms))
