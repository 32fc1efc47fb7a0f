"""The scheduler that a configuration selects, in the kernel and at its launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warploom.structured.cluster import Cluster
from warploom.structured.config import MatmulConfig, Problem
from warploom.structured.schedulers.base import GridScheduler
from warploom.structured.schedulers.clc import ClcScheduler
from warploom.structured.schedulers.raster import ceil_divide
from warploom.structured.schedulers.static import StaticScheduler, persistent_grid
from warploom.structured.schedulers.stream_k import StreamedTiles, stream_grid
from warploom.trace.language.roles import Role, Roles
from warploom.trace.language.views import Index, View


def TileScheduler(
    config: MatmulConfig,
    roles: Roles,
    cluster: Cluster,
    *,
    m: Index,
    n: Index,
    k: Index,
    batch: Index = 1,
    workers: Sequence[Role] | None = None,
    locks: View | None = None,
) -> GridScheduler:
    """Create the scheduler that a configuration asks for: tiles of C (m × n, as the caller sees it), `batch` times.

    `workers` are the roles that iterate over the tiles, by default all; `locks` are those of split-K.
    """
    tiles = _scheduler(config, roles, cluster, m, n, k, batch, workers)
    tiles.locks = locks
    return tiles


def _scheduler(
    config: MatmulConfig,
    roles: Roles,
    cluster: Cluster,
    m: Index,
    n: Index,
    k: Index,
    batch: Index,
    workers: Sequence[Role] | None,
) -> GridScheduler:
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    k_tiles = ceil_divide(ceil_divide(k, config.BK), config.k_group_size)
    if config.scheduler == "clc":
        return ClcScheduler(
            roles,
            cluster=cluster,
            k_tiles=k_tiles,
            num_stages=config.num_clc_pipeline_stages,
            workers=workers,
            splits=config.num_split_k,
            order=config.raster_order,
            block_swizzle=config.block_swizzle_size,
        )
    grid = (ceil_divide(rows, config.BM), ceil_divide(columns, config.tile_columns), batch * config.num_split_k)
    order: dict[str, Any] = {"order": config.raster_order, "block_swizzle": config.block_swizzle_size}
    if config.stream_k:
        return StreamedTiles(grid, cluster=cluster, k_tiles=k_tiles, **order)
    return StaticScheduler(grid, cluster=cluster, k_tiles=k_tiles, splits=config.num_split_k, **order)


def launch_grid(config: MatmulConfig, problem: Problem, multiprocessors: int) -> tuple[int, int, int]:
    """Return the grid to launch: a CTA for every tile, or as many as fit on the GPU with the static scheduler."""
    tiles = config.grid(problem)
    if config.scheduler == "clc":
        return tiles
    if config.stream_k:
        groups = -(-config.k_tiles(problem.k) // config.k_group_size)
        return stream_grid(tiles, config.cluster_shape[:2], groups, multiprocessors)
    return persistent_grid(tiles, config.cluster_shape[:2], multiprocessors)
