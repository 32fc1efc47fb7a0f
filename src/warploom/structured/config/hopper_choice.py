"""Which Hopper configuration suits a problem: a table of what was measured, and a model for every other size.

The model's constants were fitted to the times of some 25 configurations of each of 110 problems on an H200 at its power
limit (bench/results/hopper_configurations.json). What its choices are worth, `bench/matmul.py --what random` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

from warploom.structured.config.hopper import MACHINE, ROW_BYTES, HopperConfig
from warploom.structured.config.hopper_families import in_kernel_terms

Fields = Mapping[str, Any]


def _tile(rows: int, columns: int, **more: Any) -> dict[str, Any]:
    return {"tile": (rows, columns), **more}


_PAIR: dict[str, Any] = {"cluster_shape": (2, 1, 1)}
_COLUMN: dict[str, Any] = {"cluster_shape": (1, 2, 1)}
_ALONE = {"consumers": 1}
_TURNED = {"consumers": 1, "AB_swapped": True}
_GLOBAL = {"split_in_cluster": False}
CANDIDATES: tuple[dict[str, Any], ...] = (
    *(_tile(128, n, pingpong=True) for n in (96, 112, 128, 144, 160, 176, 192)),
    *(_tile(128, n, pingpong=True, **_PAIR) for n in (128, 160, 192)),
    _tile(128, 128, pingpong=True, **_COLUMN),
    _tile(64, 128, pingpong=True),
    *(_tile(*size) for size in ((128, 256), (256, 128), (128, 128), (128, 192), (128, 64), (128, 32))),
    *(_tile(*size, **_PAIR) for size in ((128, 256), (256, 128), (256, 160), (256, 192), (128, 128), (128, 192))),
    *(_tile(*size, **_COLUMN) for size in ((256, 128), (128, 256))),
    *(_tile(64, n, **_ALONE) for n in (32, 64, 96, 128, 192, 256)),
    *(_tile(64, n, **_ALONE, **_PAIR) for n in (64, 128, 192, 256)),
    *(_tile(64, n, **_TURNED) for n in (8, 16, 24, 32, 48, 64, 96)),
    *(_tile(128, n, AB_swapped=True) for n in (16, 32, 64, 96, 128)),
    *(_tile(64, n, **_TURNED, num_split_k=s) for n, s in ((16, 2), (32, 2), (32, 4), (64, 2), (64, 4), (128, 2))),
    *(_tile(64, n, **_ALONE, num_split_k=s) for n, s in ((64, 2), (64, 4), (128, 2), (128, 4))),
    *(_tile(128, n, num_split_k=s) for n, s in ((64, 2), (64, 4), (128, 2), (128, 4))),
    *(_tile(128, n, num_split_k=s, **_GLOBAL) for n, s in ((64, 4), (64, 8), (128, 4), (128, 8))),
    _tile(128, 64, num_split_k=16, use_tma_store=False, **_GLOBAL),
    *(_tile(64, n, **_ALONE, num_split_k=s, **_GLOBAL) for n, s in ((64, 8), (128, 4), (128, 8), (32, 4))),
)
"""What the model chooses from."""

_NARROWEST, _WIDEST_TILE = 16, 256
_SHARES = (1, 2, 3, 4)


def _cut_to(m: int, n: int) -> Iterator[dict[str, Any]]:
    """Tiles that divide the smaller side of C without a rest: what a fixed list of widths would waste."""
    for extent, turned in ((n, False), (m, True)):
        for share in _SHARES:
            width = ceil(ceil(extent / share) / _NARROWEST) * _NARROWEST
            if _NARROWEST <= width <= _WIDEST_TILE:
                yield _tile(128, width, AB_swapped=turned)
                yield _tile(64, width, consumers=1, AB_swapped=turned)
                yield _tile(64, width, consumers=1, AB_swapped=turned, num_split_k=2)


TUNED: Mapping[tuple[int, int, int], dict[str, Any]] = {
    (8192, 8192, 8192): _tile(128, 192, pingpong=True, num_pipeline_stages=4),
    (4096, 4096, 4096): _tile(128, 128, pingpong=True),
    (4096, 14336, 4096): _tile(128, 160, pingpong=True, num_pipeline_stages=5),
    (4096, 4096, 14336): _tile(128, 128, pingpong=True),
    (2048, 2048, 2048): _tile(128, 128, pingpong=True),
    (1024, 1024, 1024): _tile(64, 128, **_ALONE, band=4),
    (512, 4096, 16384): _tile(128, 128),
    (128, 4096, 4096): _tile(64, 128, **_TURNED, num_split_k=2),
    (64, 14336, 4096): _tile(128, 64, AB_swapped=True),
    (16, 4096, 14336): _tile(64, 16, **_TURNED, num_split_k=2),
    (256, 256, 65536): _tile(128, 64, num_split_k=16, use_tma_store=False, **_GLOBAL),
}
"""By m, n, k: what was fastest when 16-bit operands were measured one by one."""

FUSED_ACCUMULATORS = 128
"""Sums of a thread beside which an epilogue's own values find registers."""


@dataclass(frozen=True)
class Model:
    """Times in µs, rates per multiprocessor in flop or bytes per µs."""

    launch: float = 2.12
    flops: float = 5.51e6
    one_consumer: float = 0.75
    load: float = 1.14e5
    all_loads: float = 8.87e6
    """Of all multiprocessors together, from L2."""
    memory: float = 4.53e6
    """Of the GPU's memory."""
    half_lines: float = 1.63
    """How much longer rows take that do not begin at 32 bytes."""
    tile: float = 0.27
    element: float = 3.4e-5
    cluster_split: float = 0.48
    global_split: float = 1.5
    split_element: float = 1.1e-4
    least_step: float = 0.031
    least_columns: float = 29.5
    cluster: float = 0.72
    together: int = 120
    """CTAs that run at once in clusters of four or more."""

    def time(self, config: HopperConfig, m: int, n: int, k: int, batch: int, sms: int) -> float:
        """How long a configuration takes."""
        (x, y), splits = config.cluster_shape[:2], config.num_split_k
        rows, columns = (n, m) if config.AB_swapped else (m, n)
        tiles = ceil(ceil(rows / config.BM) / x) * x * ceil(ceil(columns / config.BN) / y) * y * batch
        slots = self.together if splits * x * y >= 4 and config.split_in_cluster and splits > 1 else sms
        waves = ceil(tiles * splits / slots)
        steps = ceil(ceil(k / config.BK) / splits)
        body = waves * steps * self._step(config, k, min(tiles * splits, sms))
        each = self.tile + self.element * config.BM * config.BN / min(config.consumers, 2)
        body += each * (1 if config.pingpong else waves)
        memory = config.a_bytes * (m + n) * k * batch + config.c_bytes * m * n * batch
        return self.launch + self._meeting(config) + max(body, memory / self.memory)

    def _step(self, config: HopperConfig, k: int, active: int) -> float:
        """One K tile: what multiplying takes, or loading, whichever is longer."""
        x, y = (1, 1) if config.num_split_k > 1 else config.cluster_shape[:2]
        rate = self.flops * (2 / config.a_bytes) * (self.one_consumer if config.consumers == 1 else 1)
        multiply = 2 * config.BM * max(config.BN, self.least_columns) * config.BK / rate
        loaded = (config.BM / y + config.BN / x) * ROW_BYTES
        loaded *= 1 if k * config.a_bytes % 32 == 0 else self.half_lines
        return max(multiply, loaded / self.load, loaded * active / self.all_loads, self.least_step)

    def _meeting(self, config: HopperConfig) -> float:
        """What CTAs that work together spend on finding each other."""
        if config.num_split_k == 1:
            return self.cluster if config.cluster_shape != (1, 1, 1) else 0.0
        sums = self.split_element * config.BM * config.BN
        if config.split_in_cluster:
            return self.cluster_split + sums
        return self.global_split + sums * config.num_split_k / 8


MODEL = Model()


def expected_time(config: HopperConfig, m: int, n: int, k: int, batch: int = 1, *, sms: int = MACHINE.sms) -> float:
    """How long a configuration takes by the model, in µs."""
    return MODEL.time(config, m, n, k, batch, sms)


def choose_hopper(m: int, n: int, k: int, batch: int = 1, *, sms: int = MACHINE.sms, **fields: Any) -> HopperConfig:
    """The configuration for D (m × n); `fields` are to be as they say, with A and B as the caller sees them.

    `fused=True` keeps registers for an epilogue that computes.
    """
    return _chosen(m, n, k, batch, sms, tuple(sorted(fields.items())))


@lru_cache(maxsize=4096)
def _chosen(m: int, n: int, k: int, batch: int, sms: int, given: tuple[tuple[str, Any], ...]) -> HopperConfig:
    fields = dict(given)
    fused = fields.pop("fused", False) or fields.get("residual_in_place", False)
    tuned = TUNED.get((m, n, k)) if batch == 1 and fields.get("a_type", "bf16") in ("bf16", "f16") else None
    for rows in ((tuned,) if tuned else (), (*CANDIDATES, *_cut_to(m, n))):
        fitting = [each for each in _made(rows, fields, fused=fused) if _fits(each, m, n, k, batch, sms)]
        if fitting:
            return min(fitting, key=lambda config: MODEL.time(config, m, n, k, batch, sms))
    return HopperConfig(**fields)


def _made(rows: tuple[dict[str, Any], ...], fields: Fields, *, fused: bool) -> Iterator[HopperConfig]:
    """The configurations of some rows that the fields allow."""
    for row in rows:
        wanted = in_kernel_terms(dict(fields)) if row.get("AB_swapped") else dict(fields)
        if not row.get("use_tma_store", True):
            wanted["use_tma_store"] = False
        if wanted.get("residual_in_place") and (row.get("num_split_k", 1) > 1 or not wanted.get("use_tma_store", True)):
            continue
        config = HopperConfig(**{**row, **wanted})
        if fused and config.accumulators > FUSED_ACCUMULATORS:
            continue
        if not config.violations():
            yield config


def _fits(config: HopperConfig, m: int, n: int, k: int, batch: int, sms: int) -> bool:
    """Whether splits have work, and all of them find a place at once."""
    if config.num_split_k == 1:
        return True
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    ctas = ceil(rows / config.BM) * ceil(columns / config.BN) * config.num_split_k
    room = MODEL.together if config.split_in_cluster else sms
    return batch == 1 and ctas <= room and ceil(k / config.BK) >= 2 * config.num_split_k
