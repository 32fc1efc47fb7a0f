"""The operands of a GEMM from its configuration: tiles in shared memory, and the pipeline that brings them.

Everything here takes a `MatmulConfig` (Blackwell) or a `HopperConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from warploom.hardware.swizzles import widest_swizzle
from warploom.structured.cluster import Cluster
from warploom.structured.config import HopperConfig, MatmulConfig
from warploom.structured.config.sm90 import ROW_BYTES
from warploom.structured.pipelines.convolution_tiles import Window, convolution_tiles
from warploom.structured.pipelines.input_pipeline import InputTilePipeline, StandardTilePayload, TilePayload
from warploom.structured.pipelines.operand_tiles import OperandLayout, OperandTiles, Source, tiles_of
from warploom.structured.pipelines.signals import EachPeer, Signal
from warploom.trace.language.roles import Role, Roles
from warploom.trace.language.values import Value, literal
from warploom.trace.parameters import TensorMapArgument

Config = MatmulConfig | HopperConfig
Row = Callable[[Any], Value]
"""The first row of an operand that a scheduler's tile needs."""


def operand_layouts(config: Config) -> tuple[OperandLayout, OperandLayout]:
    """Layouts of a tile of A and of B in shared memory, sliced among the CTAs of the cluster that share the tile."""
    x, y = config.cluster_shape[:2]
    if isinstance(config, HopperConfig):
        if config.num_split_k > 1:  # the CTAs of a split-K cluster have different K tiles and share no operand
            x, y = 1, 1
        # B's widest swizzle is limited by its contiguous extent; along K a tile is one 128-byte span.
        contiguous = config.tile_columns * config.element_bits // 8 if config.b_major == "mn" else ROW_BYTES
        return (
            OperandLayout(config.BM, config.BK, config.element_bits, config.a_major, "128B", y),
            OperandLayout(config.BN, config.BK, config.element_bits, config.b_major, widest_swizzle(contiguous), x),
        )
    bits = config.mma.element_bits
    return (
        OperandLayout(config.a_tile_rows, config.BK, bits, config.a_major, config.a_swizzle, y),
        OperandLayout(config.BN, config.BK, bits, config.b_major, config.b_swizzle, x // config.cta_group),
    )


def operand_tiles(
    a: Source,
    b: Source,
    config: Config,
    cluster: Cluster,
    a_row: Row | None = None,
    b_row: Row | None = None,
    window: Window | None = None,
    *,
    local: bool = False,
) -> tuple[OperandTiles, OperandTiles]:
    """Create the shared-memory tiles of A and B; with `window` those of a convolution.

    `a_row` and `b_row` map a scheduler's tile to the operand's first row; by default they follow from `tile.m` and
    `tile.n`. With `cta_group` 2 each CTA holds its own rows of A and half of the rows of B. In a gated GEMM one of the
    two is (gate, up), as `paired` returns it. If `local`, each CTA of a pair waits for its own copies.
    """
    a_layout, b_layout = operand_layouts(config)
    count = config.num_pipeline_stages
    tile_rows = config.tile_rows if isinstance(config, HopperConfig) else config.BM
    rows = a_row or (lambda tile: tile.m * tile_rows)
    columns = b_row or (lambda tile: tile.n * config.tile_columns)
    # The CTAs of a pair split the rows of B, or of both in (gate, up), unless one MMA computes both: then each has the
    # same rows of one of the two.
    half, is_split = literal(0, "s32"), False
    if isinstance(config, MatmulConfig) and cluster.cta_group > 1:
        is_split = not config.gated or config.gated_mmas == 2
        half = cluster.pair_rank.to("s32") * config.b_rows if is_split else half
    tiles: Callable[..., OperandTiles] = partial(tiles_of, of_cta=cluster.cta_group > 1 and not is_split)
    if window is not None:
        tiles = partial(convolution_tiles, window=window)
    made = (
        tiles("a_tiles", a, a_layout, count, rows, share=cluster.rank_n, peers=cluster.sharing_a),
        tiles(
            "b_tiles",
            b,
            b_layout,
            count,
            lambda tile: columns(tile) + half,
            share=cluster.rank_m // cluster.cta_group,
            peers=cluster.sharing_b,
        ),
    )
    for each in made:
        each.local = local
    return made


def paired(
    a: TensorMapArgument, b: TensorMapArgument, up: TensorMapArgument | None, config: Config
) -> tuple[Source, Source]:
    """Return A and B; in a gated GEMM the weights, B or a swapped A, are a (gate, up) pair."""
    if up is None:
        return a, b
    return ((a, up), b) if config.AB_swapped else (a, (b, up))


def input_pipeline(
    payload: TilePayload, config: Config, roles: Roles, cluster: Cluster, *, also: tuple[Signal, ...] = ()
) -> InputTilePipeline:
    """Create the pipeline from the load role to the role that issues the MMAs; `also` are additional consumers.

    On Blackwell the tensor core's commit releases a stage. On Hopper every consumer warp signals every CTA that fills
    its stages.
    """
    if isinstance(config, HopperConfig):
        peers = cluster.sharing if config.num_split_k == 1 else cluster.alone
        alternating = config.consumers if config.pingpong else 1
        consumer: Role | Signal = EachPeer(roles.consume, alternating=alternating, peers=peers)
        stages, k_group_size = config.num_pipeline_stages, 1
    else:
        consumer, stages, k_group_size = roles.mma, config.num_group_stages, config.k_group_size
    return InputTilePipeline(
        payload, stages, k_group_size, producer=roles.load, consumer=consumer, cluster=cluster, also=also
    )


def standard_inputs(
    a: Source,
    b: Source,
    config: Config,
    roles: Roles,
    cluster: Cluster,
    window: Window | None = None,
    **rows: Any,
) -> InputTilePipeline:
    """Create the input pipeline of A and B; `rows` are `a_row` and `b_row` of `operand_tiles`."""
    payload = StandardTilePayload(*operand_tiles(a, b, config, cluster, window=window, **rows))
    return input_pipeline(payload, config, roles, cluster)
