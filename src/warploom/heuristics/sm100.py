"""Which configuration suits a problem: fewest waves over the machine's SMs, then the smallest tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from warploom.hardware.swizzles import SWIZZLES
from warploom.hardware.tensor_maps import STRIDE_ALIGNMENT
from warploom.structured.config.output import MACHINE, is_folded
from warploom.structured.config.problem import Problem
from warploom.structured.config.shared_memory import align_up, ceil_div
from warploom.structured.config.sm100 import MatmulConfig
from warploom.structured.config.sm100_rules import fixed_modes
from warploom.structured.config.sm100_scaled import BlockScaledMatmulConfig

_FEW_ROWS = 32
"""Fewer rows than this go along N of the MMA, where steps are small."""
_PREFETCHED_ROWS, _MOST_PREFETCHED = 128, 4
_NARROWEST_PAIR, _WIDEST = 32, 256
_MANY_WAVES = 4
_BLOCK_SWIZZLES = (1, 2, 4, 8)
_K_GROUPS = ((1024, 4), (6144, 2))
"""Tiles (BM times MMA_N) up to which so many K tiles share a stage: the MMAs of a small tile are over too soon."""

_ROWS_ACROSS = {32: 32, 16: 8, 8: 16, 4: 8}
"""What the rows of an MN-major operand are a multiple of, in each CTA, by the bits of an element."""

_LINE_BITS = SWIZZLES["128B"].span * 8
"""What they are a multiple of where there are so many: narrower pieces are more copies, which on Hopper, whose copy
engine is the same, take up to three times as long."""

Config = TypeVar("Config", bound=MatmulConfig)


@dataclass(frozen=True, slots=True)
class _Cut:
    """One way to cut a problem into tiles; `rows` and `columns` are those of the kernel, after a swap."""

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
        """How many tiles side by side make the rows and columns that one wave reads fewest."""
        tall = ceil_div(self.rows, self.bm)

        def read(width: int) -> int:
            high = ceil_div(sms, width)
            return min(high, tall) * self.bm + width * ceil_div(high, tall) * self.mma_n

        return min(_BLOCK_SWIZZLES, key=read)


def _cuts(m: int, n: int, batch: int, config: MatmulConfig, cta_group: int, *, few: bool) -> Iterator[_Cut]:
    scaled = isinstance(config, BlockScaledMatmulConfig)
    for rows, columns, swapped in ((n, m, True),) if few else ((m, n, False), (n, m, True)):
        for bm in (128,) if scaled else (64, 128):
            step = 8 * cta_group
            if config.c_bytes == 1:
                step = 32 if is_folded(cta_group, bm * cta_group) else 16
            if (config.a_major if swapped else config.b_major) == "mn":
                line = _LINE_BITS // config.mma.element_bits * cta_group
                across = _ROWS_ACROSS[config.mma.element_bits] * cta_group
                step = max(step, line if columns >= line else across)
            step = 64 if scaled else step
            widest = min(align_up(columns, step), _WIDEST)
            narrowest = step if few else min(widest, max(step, _NARROWEST_PAIR))
            for mma_n in range(widest, narrowest - 1, -step):
                yield _Cut(cta_group, bm, mma_n, swapped, rows, columns, batch)


def _configured(config: Config, cut: _Cut, n: int, k: int, sms: int, given: dict[str, Any]) -> Config:
    waves = cut.waves(sms)
    if cut.swapped:
        config = config.swap_AB_type()
    one_tile_each = waves == 1 or config.scheduler != "clc"
    wanted: dict[str, Any] = {
        "cta_group": cut.cta_group,
        "mma_shape": (cut.bm * cut.cta_group, cut.mma_n, config.mma.k),
        "AB_swapped": cut.swapped,
        "num_clc_pipeline_stages": 0 if one_tile_each else 2,
        "block_swizzle_size": cut.block_swizzle(sms) if waves >= _MANY_WAVES else 0,
        "use_tma_store": n * config.c_bytes % STRIDE_ALIGNMENT == 0,
    }
    if "k_group_size" not in fixed_modes(config):
        tiles, area = config.k_tiles(k), cut.bm * cut.mma_n
        wanted["k_group_size"] = next((size for most, size in _K_GROUPS if area <= most and tiles % size == 0), 1)
        wanted["num_accum_pipeline_stages"] = min(2, waves)
    return config.replace(**{name: value for name, value in wanted.items() if name not in given})


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
    """The configuration for C (m × n); `fields` are to be as they say, with A and B as the caller sees them."""
    config = family(**fields)
    plans = [_cuts(m, n, batch, config, 1, few=True)] if m < _FEW_ROWS else []
    plans += [_cuts(m, n, batch, config, cta_group, few=False) for cta_group in (2, 1)]
    cuts = [
        cut
        for plan in plans
        for cut in sorted(plan, key=lambda cut: (cut.waves(sms), cut.area))
        if fields.get("cta_group", cut.cta_group) == cut.cta_group
        and fields.get("AB_swapped", cut.swapped) == cut.swapped
    ]
    tried = (_configured(config, cut, n, k, sms, fields) for cut in cuts)
    chosen = next((config for config in tried if not config.violations()), None)
    if chosen is None:  # the violations of the likeliest cut say why
        return _configured(config, cuts[0], n, k, sms, fields)
    if m < _PREFETCHED_ROWS and "prefetch_tiles_n" not in fixed_modes(chosen).keys() | fields.keys():
        chosen = chosen.replace(prefetch_tiles_n=min(_MOST_PREFETCHED, chosen.num_group_stages))
    blocks = zip(chosen.grid(Problem(m, n, k, batch)), MACHINE.largest_grid, strict=True)
    if "scheduler" not in fields and any(count > most for count, most in blocks):
        chosen = chosen.replace(scheduler="static", num_clc_pipeline_stages=0)
    return chosen
