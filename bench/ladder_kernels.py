"""The steps of bench/ladder.py: one GEMM with one optimisation added at a time.

All but the first two are the library's own kernel with a configuration and a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warploom.heuristics import EMULATED, choose, key_of
from warploom.host.launch import Launch
from warploom.host.tensor_map import TensorMap
from warploom.kernels.call import Call
from warploom.kernels.sm90.binding import bind, tile_counts
from warploom.structured import ConsumerWriter, input_pipeline, operand_layouts, operand_tiles
from warploom.structured.cluster import Cluster
from warploom.structured.config import Problem
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.pipelines.input_pipeline import StandardTilePayload
from warploom.structured.schedulers.static import StaticScheduler
from warploom.structured.tensor_cores.wgmma import Warpgroup, WgmmaOp
from warploom.trace import Tensor, kernel, loop, s32, warp_roles, when
from warploom.trace.language.operations import min_

STAGES = 4
Shape = tuple[int, int, int]


@kernel(target="sm_90a")
def unspecialised(
    a: TensorMap, b: TensorMap, d: Tensor, m: s32, n: s32, m_tiles: s32, n_tiles: s32, k_tiles: s32,
    *, config: HopperConfig,
) -> None:  # fmt: skip
    """D = A·Bᵀ without roles: the consumer warps issue their own loads ahead, and store from registers."""
    roles = warp_roles(consume=config.roles["consume"])
    cluster = Cluster(config.cluster_shape)
    tiles = StaticScheduler((m_tiles, n_tiles, 1), cluster=cluster, k_tiles=k_tiles, swizzle_size=config.swizzle_size)
    payload = StandardTilePayload(*operand_tiles(a, b, config, cluster))
    inputs = input_pipeline(payload, config, _BothRoles(roles.consume), cluster)
    group = Warpgroup(roles.consume)
    writer = ConsumerWriter(d, config, group, Epilogue())
    ahead = config.num_pipeline_stages - 1 - config.mmas_in_flight
    """Stages that can be loading while one is consumed and `mmas_in_flight` are in flight."""

    with roles.consume:
        core = WgmmaOp(config, inputs, group)
        for tile in tiles:
            with when(roles.consume.warp == 0):
                for k in loop(min_(tile.k_tiles, ahead)):
                    with inputs.produce() as stage:
                        stage.load(tile, k)
            for k in loop(tile.k_tiles):
                with when((roles.consume.warp == 0) & (k + ahead < tile.k_tiles)), inputs.produce() as stage:
                    stage.load(tile, k + ahead)
                with core.consume(k) as stage:
                    core.mma(stage, accumulate=k > 0)
            core.finish(tile.k_tiles)
            writer.write(core.tiles, tile, (m, n))
        with when(roles.consume.warp == 0):
            inputs.drain_producer()


@dataclass(frozen=True)
class _BothRoles:
    """A role whose warps are producer and consumer of a pipeline."""

    consume: Any

    @property
    def load(self) -> Any:
        return self.consume


@dataclass(frozen=True)
class Rung:
    """A step: what it adds, and how its kernel is launched."""

    adds: str
    fields: Mapping[str, Any]
    is_persistent: bool = True
    is_specialised: bool = True

    def config(self, shape: Shape) -> HopperConfig:
        return HopperConfig(**self.fields).validated()

    def launch(self, a: Any, b: Any, d: Any, sms: int) -> Launch:
        """Launch A (m × k) and B (n × k) to D; without persistence, the grid has one cluster per tile."""
        (m, k), n = a.shape, b.shape[0]
        config = self.config((m, n, k))
        call: Call[HopperConfig] = Call(config=config, problem=Problem(m, n, k, 1), a=a, b=b, d=d)
        down, along = tile_counts(config, m, n)
        if self.is_specialised:
            return bind(call, sms if self.is_persistent else (down + 1) * (along + 1) * 4)
        return unspecialised.bind(
            *call.operand_maps(*operand_layouts(config)),
            d,
            *(m, n, down, along, -(-k // config.BK)),
            grid=(down * along, 1, 1),
            block=(32 * config.roles["consume"], 1, 1),
            config=config,
        )


class Chosen(Rung):
    """The library's own choice for the shape."""

    def config(self, shape: Shape) -> HopperConfig:
        return choose(key_of("dense", *shape, a_type="bf16", c_type="bf16"), EMULATED["sm_90a"])


_ONE: dict[str, Any] = {
    "tile": (64, 128),
    "consumers": 1,
    "num_pipeline_stages": STAGES,
    "registers": (0, 0),
    "use_tma_store": False,
    "swizzle_size": 0,
}
_TWO = {**_ONE, "tile": (128, 128), "consumers": 2}
_WIDE = {**_TWO, "tile": (128, 256), "registers": (24, 240)}
_SHARED = {**_WIDE, "cluster_shape": (2, 1, 1)}
_STORED = {**_SHARED, "use_tma_store": True}
_SWIZZLED = {**_STORED, "swizzle_size": 8}
_PINGPONG = {**_SWIZZLED, "tile": (128, 128), "pingpong": True, "num_pipeline_stages": 6}
RUNGS: tuple[Rung, ...] = (
    Rung("one warpgroup issues its own TMA loads, 64×128 tiles", {**_ONE, "mmas_in_flight": 0}, False, False),
    Rung("asynchronous wgmma: issue the next group before waiting for the last", _ONE, False, False),
    Rung("warp specialisation: a producer warp and a consumer warpgroup", _ONE, False),
    Rung("larger tile: two consumer warpgroups, 128×128", _TWO, False),
    Rung("larger tile: 128×256, setmaxnreg moves registers to the accumulators", _WIDE, False),
    Rung("persistent kernel: one CTA per SM loops over tiles", _WIDE),
    Rung("multicast: clusters of two CTAs share B", _SHARED),
    Rung("overlapped epilogue: stmatrix and TMA stores", _STORED),
    Rung("tile swizzle: supergroups of 8 rows of clusters", _SWIZZLED),
    Rung("ping-pong consumers, 128×128 tiles", _PINGPONG),
    Chosen("the library's own choice of tile", {}),
)
