"""The tile of a CTA whose K range is one of several splits."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.structured.cluster import Cluster
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.schedulers.raster import linear_raster
from warploom.structured.split_k.workspace import split_range
from warploom.trace.language.values import Value, literal, special, valued


@dataclass(frozen=True)
class SplitTile:
    """The coordinates of a tile and this CTA's K range; `number` counts tiles, `split` the CTAs of one tile."""

    m: Value
    n: Value
    batch: Value
    number: Value
    split: Value
    k_start: Value
    k_tiles: Value

    @classmethod
    def of(cls, config: HopperConfig, cluster: Cluster, m_tiles: Value, n_tiles: Value, k_tiles: Value) -> SplitTile:
        """Compute this CTA's tile: the CTAs of a cluster split one tile.

        Without clusters, consecutive CTAs have the same K range of different tiles, because CTAs that read the same
        operands at the same time hit them in L2.
        """
        cta, splits = special("ctaid.x"), config.num_split_k
        if config.split_in_cluster:
            number, split = cta // splits, cluster.rank
        else:
            tiles = (m_tiles * n_tiles).to("u32")
            split = cta // tiles
            number = cta - split * tiles
        m, n = linear_raster(number, (m_tiles.to("u32"), n_tiles.to("u32")), config.swizzle_size)
        start, count = split_range(k_tiles.to("u32"), splits, split)
        values = (valued(each, "u32").to("s32") for each in (m, n, literal(0, "u32"), number, split, start, count))
        return cls(*values)
