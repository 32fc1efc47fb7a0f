"""The choice of Blackwell configurations: fewest waves over the GPU's SMs, then the smallest tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from warploom.hardware.swizzles import SWIZZLES
from warploom.hardware.tensor_maps import STRIDE_ALIGNMENT
from warploom.heuristics.device import Device
from warploom.heuristics.problem_key import ProblemKey
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, MatmulConfig
from warploom.structured.config.output import MACHINE, is_folded
from warploom.structured.config.problem import Problem
from warploom.structured.config.shared_memory import align_up, ceil_div
from warploom.structured.config.sm100_rules import fixed_modes

_FEW_ROWS = 32
"""Fewer rows than this go along N of the MMA, which has smaller steps."""
_PREFETCHED_ROWS, _MOST_PREFETCHED = 128, 4
_TUNED_FAMILIES = ("gemm", "bmm", "gmm")
"""Families in which k-groups and weight prefetch are chosen; in block-scaled GEMMs they have to be given."""
_NARROWEST_PAIR, _WIDEST = 32, 256
_MANY_WAVES = 4
_BLOCK_SWIZZLES = (1, 2, 4, 8)
_K_GROUPS = ((1024, 4), (6144, 2))
"""Tile areas (BM times MMA_N) up to which so many K tiles share a stage: the MMAs of a small tile end too soon."""
_MN_MAJOR_STEPS = {32: 32, 16: 8, 8: 16, 4: 8}
"""Rows per CTA of an MN-major operand must be a multiple of this, by the bits of an element."""
_LINE_BITS = SWIZZLES["128B"].span * 8
"""They are a multiple of a line if there are that many: narrower pieces need more copies, which take up to three times
as long on Hopper, whose TMA is the same."""

CONFIGS: Mapping[str, type[MatmulConfig]] = {
    "dense": MatmulConfig,
    "grouped": MatmulConfig,
    "blockwise": BlockwiseFP8MatmulConfig,
    "block_scaled": BlockScaledMatmulConfig,
    "grouped_blockwise": BlockwiseFP8MatmulConfig,
    "grouped_block_scaled": BlockScaledMatmulConfig,
}
"""The configuration class of each kind of problem."""

Config = TypeVar("Config", bound=MatmulConfig)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """One way to divide a problem into tiles; `rows` and `columns` are the kernel's, after a swap."""

    cta_group: int
    bm: int
    mma_n: int
    swapped: bool
    rows: int
    columns: int
    batch: int

    @property
    def area(self) -> int:
        return self.bm * self.cta_group * self.mma_n

    def waves(self, sms: int) -> int:
        tiles = ceil_div(self.rows, self.bm * self.cta_group) * ceil_div(self.columns, self.mma_n) * self.batch
        return ceil_div(tiles, sms // self.cta_group)

    def block_swizzle(self, sms: int) -> int:
        """Return the width of the tile swizzle with which one wave reads the fewest rows and columns."""
        tall = ceil_div(self.rows, self.bm)

        def read(width: int) -> int:
            high = ceil_div(sms, width)
            return min(high, tall) * self.bm + width * ceil_div(high, tall) * self.mma_n

        return min(_BLOCK_SWIZZLES, key=read)


def _tilings(m: int, n: int, batch: int, config: MatmulConfig, cta_group: int, *, few: bool) -> Iterator[_Tiling]:
    scaled = isinstance(config, BlockScaledMatmulConfig)
    for rows, columns, swapped in ((n, m, True),) if few else ((m, n, False), (n, m, True)):
        for bm in (128,) if scaled else (64, 128):
            step = 8 * cta_group
            if config.c_bytes == 1:
                step = 32 if is_folded(cta_group, bm * cta_group) else 16
            if (config.a_major if swapped else config.b_major) == "mn":
                line = _LINE_BITS // config.mma.element_bits * cta_group
                least = _MN_MAJOR_STEPS[config.mma.element_bits] * cta_group
                step = max(step, line if columns >= line else least)
            if scaled and not few:  # of a gate and up pair each has whole chunks of scale factors
                step = 256 if config.gated else 64
            widest = min(align_up(columns, step), _WIDEST)
            narrowest = step if few else min(widest, max(step, _NARROWEST_PAIR))
            if scaled and few:  # one tile of all rows, whose scale factors begin with a chunk
                narrowest = widest
            for mma_n in range(widest, narrowest - 1, -step):
                yield _Tiling(cta_group, bm, mma_n, swapped, rows, columns, batch)


def _configured(config: Config, tiling: _Tiling, n: int, k: int, sms: int, given: Mapping[str, Any]) -> Config:
    waves = tiling.waves(sms)
    if tiling.swapped:
        config = config.swap_AB_type()
    one_tile_each = waves == 1 or config.scheduler != "clc"
    wanted: dict[str, Any] = {
        "cta_group": tiling.cta_group,
        "mma_shape": (tiling.bm * tiling.cta_group, tiling.mma_n, config.mma.k),
        "AB_swapped": tiling.swapped,
        "num_clc_pipeline_stages": 0 if one_tile_each else 2,
        "block_swizzle_size": tiling.block_swizzle(sms) if waves >= _MANY_WAVES else 0,
        "use_tma_store": n * config.c_bytes % STRIDE_ALIGNMENT == 0,
    }
    if config.family in _TUNED_FAMILIES:
        tiles, area = config.k_tiles(k), tiling.bm * tiling.mma_n
        wanted["k_group_size"] = next((size for most, size in _K_GROUPS if area <= most and tiles % size == 0), 1)
        wanted["num_accum_pipeline_stages"] = min(2, waves)
    return config.replace(**{name: value for name, value in wanted.items() if name not in given})


def _is_serial(config: MatmulConfig) -> bool:
    """Return whether the tensor core waits for the epilogue: TMEM holds the sums of a tile and one accumulator."""
    return isinstance(config, BlockwiseFP8MatmulConfig) and config.accumulates_in_tmem


@dataclass(frozen=True)
class _Choice:
    """A problem with the fields that its configuration must have."""

    m: int
    n: int
    k: int
    batch: int
    family: type[MatmulConfig]
    sms: int
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, problem: ProblemKey, device: Device) -> _Choice:
        m, n, k, count = problem.sizes
        rows = ceil_div(m, count) if problem.kind == "grouped" else m
        return cls(rows, n, k, count, CONFIGS[problem.kind], device.sms, dict(problem.fields))

    def tilings(self, config: MatmulConfig) -> list[_Tiling]:
        """Return all tilings: for few rows swapped ones first, then pairs, then single CTAs, each by waves and area."""
        m, n, batch, fields = self.m, self.n, self.batch, self.fields
        plans = [_tilings(m, n, batch, config, 1, few=True)] if m < _FEW_ROWS else []
        plans += [_tilings(m, n, batch, config, cta_group, few=False) for cta_group in (2, 1)]
        return [
            tiling
            for plan in plans
            for tiling in sorted(plan, key=lambda tiling: (tiling.waves(self.sms), tiling.area))
            if fields.get("cta_group", tiling.cta_group) == tiling.cta_group
            and fields.get("AB_swapped", tiling.swapped) == tiling.swapped
        ]

    def ranked(self) -> Iterator[MatmulConfig]:
        """Yield the configurations that break no rule."""
        config = self.family(**self.fields)
        for tiling in self.tilings(config):
            found = _configured(config, tiling, self.n, self.k, self.sms, self.fields)
            if not (found.violations() or _is_serial(found)):
                yield self._finished(found)

    def fallback(self) -> MatmulConfig:
        """Return the first configuration, whether or not it breaks a rule."""
        config = self.family(**self.fields)
        return _configured(config, self.tilings(config)[0], self.n, self.k, self.sms, self.fields)

    def _finished(self, config: MatmulConfig) -> MatmulConfig:
        """Add prefetching for few rows, and a static scheduler if the grid would be too large."""
        is_free = "prefetch_tiles_n" not in fixed_modes(config).keys() | self.fields.keys()
        if self.m < _PREFETCHED_ROWS and config.family in _TUNED_FAMILIES and is_free:
            config = config.replace(prefetch_tiles_n=min(_MOST_PREFETCHED, config.num_group_stages))
        blocks = zip(config.grid(Problem(self.m, self.n, self.k, self.batch)), MACHINE.largest_grid, strict=True)
        if "scheduler" not in self.fields and any(count > most for count, most in blocks):
            config = config.replace(scheduler="static", num_clc_pipeline_stages=0)
        return config


def rank(problem: ProblemKey, device: Device) -> Iterator[MatmulConfig]:
    """Yield the configurations for a problem that break no rule, those with the fewest waves first."""
    return _Choice.of(problem, device).ranked()


def fallback(problem: ProblemKey, device: Device) -> MatmulConfig:
    """Return a configuration whose violations say why none fits."""
    return _Choice.of(problem, device).fallback()


def choose_config(
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    *,
    family: type[Config] = MatmulConfig,  # type: ignore[assignment]
    sms: int = MACHINE.sms,
    **fields: Any,
) -> Config:
    """Return the configuration for C (m × n) with the given fields, with A and B as the caller sees them."""
    choice = _Choice(m, n, k, batch, family, sms, fields)
    found: Any = next(choice.ranked(), None) or choice.fallback()
    return found  # type: ignore[no-any-return]
