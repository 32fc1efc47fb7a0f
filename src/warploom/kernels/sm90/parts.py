"""What the Hopper families have in common: a configuration as an input pipeline and a writer."""

from __future__ import annotations

from typing import Any

from warploom.facts.mma_shapes import WGMMA_M
from warploom.structured.cluster import Cluster
from warploom.structured.config.hopper import HopperConfig
from warploom.structured.epilogue import Epilogue
from warploom.structured.input_pipeline import InputTilePipeline, StandardTilePayload
from warploom.structured.operand import OperandLayout, OperandTiles
from warploom.structured.signals import EachPeer
from warploom.structured.tile_writer import TileWriter
from warploom.structured.warp_group_barrier import OwnBarrier, WarpgroupBarriers
from warploom.structured.wgmma import Warpgroup, WgmmaOp
from warploom.trace.memory import Index, shared
from warploom.trace.parameters import TensorMapArgument
from warploom.trace.roles import Roles


def layouts(config: HopperConfig) -> tuple[OperandLayout, OperandLayout]:
    """How a tile of A and of B lies in shared memory, and how it is cut among the CTAs that share it."""
    x, y = config.cluster_shape[:2]
    return (
        OperandLayout(config.BM, config.BK, config.element_bits, config.a_major, "128B", y),
        OperandLayout(config.BN, config.BK, config.element_bits, config.b_major, "128B", x),
    )


def operand_inputs(
    a: TensorMapArgument, b: TensorMapArgument, config: HopperConfig, roles: Roles, cluster: Cluster
) -> InputTilePipeline:
    """A and B from the load role to the consumers; every warp of theirs answers every CTA that fills its stages."""
    (a_layout, b_layout), count = layouts(config), config.num_pipeline_stages
    payload = StandardTilePayload(
        OperandTiles(
            "a_tiles", a, a_layout, count, lambda tile: tile.m * config.BM, share=cluster.rank_n, peers=cluster.sharing_a
        ),
        OperandTiles(
            "b_tiles", b, b_layout, count, lambda tile: tile.n * config.BN, share=cluster.rank_m, peers=cluster.sharing_b
        ),
    )
    answer = EachPeer(roles.consume, turns=config.consumers if config.pingpong else 1, peers=cluster.sharing)
    return InputTilePipeline(payload, count, producer=roles.load, consumer=answer, cluster=cluster)


class ConsumerWriter:
    """Writes a consumer's tile, 64 rows at a time; each warpgroup has its own buffers and its own barrier."""

    def __init__(self, d: Any, config: HopperConfig, group: Warpgroup, epilogue: Epilogue) -> None:
        self._config, self._group = config, group
        barriers = WarpgroupBarriers(group.threads, config.consumers)
        tiles = None
        if isinstance(d, TensorMapArgument):
            shape = (config.consumers, config.num_output_stages, *config.output_tile_shape)
            tiles = shared(config.c_type, shape, name="c_tiles", align=1024)[group.number]
        self._writer = TileWriter(
            d,
            config,  # type: ignore[arg-type] # it has what a writer reads
            role=group,  # type: ignore[arg-type]
            epilogue=epilogue,
            c_tiles=tiles,
            barrier=OwnBarrier(barriers, lambda: group.number),  # type: ignore[arg-type]
        )

    def write(self, core: WgmmaOp, tile: Any, shape: tuple[Index, Index]) -> None:
        """Write the sums of a tile; `shape` is C's."""
        config = self._config
        own = tile.m * (config.BM // WGMMA_M)
        if not config.pingpong:
            own = own + self._group.number.to("s32") * config.subtiles
        for number, part in enumerate(core.tiles):
            self._writer.write(part, (own + number, tile.n, tile.batch), shape)

