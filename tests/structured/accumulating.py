"""A complete GEMM on the emulator, whose MMA role and epilogue are supplied by the test."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.kernels.plain_problems import arrays, same
from tests.structured.scheduling import SCHEDULES

from warploom import TensorMap, launch
from warploom.diagnostics import TraceError
from warploom.structured import (
    Cluster,
    EpilogueWarpContext,
    InputTilePipeline,
    MatmulConfig,
    MmaOp,
    MmaWarpContext,
    OutputTilePipeline,
    StandardTilePayload,
    TmemAddress,
    TmemArrayType,
    operand_tiles,
)
from warploom.structured.epilogue.staging import first_place
from warploom.structured.epilogue.subtiles import WarpPart
from warploom.trace import Array, Roles, Value, View, kernel, literal, loop, s32, warp_roles, when

ONE = {"cta_group": 1, "mma_shape": (64, 16, 16)}
PAIR = {"cta_group": 2, "mma_shape": (256, 32, 16)}
THREADS = 192


@dataclass(frozen=True)
class Place:
    """A tile: in m of this CTA's, in n counted through."""

    m: Value
    n: Value
    batch: Any = None

    @property
    def coord(self) -> tuple[Value, Value, Value]:
        return (self.m, self.n, literal(0, s32))


@dataclass(frozen=True)
class Kit:
    """The parts that a role uses."""

    roles: Roles
    cluster: Cluster
    config: MatmulConfig
    inputs: InputTilePipeline
    outputs: OutputTilePipeline
    mma_op: MmaOp
    d: View
    tiles: Value
    k_tiles: Value

    @property
    def work(self):
        """The tiles of this CTA, one after another."""
        for n in loop(self.tiles):
            yield Place(self.cluster.rank_m.to(s32), self.cluster.rank_n.to(s32) * self.tiles + n)

    def store(self, fragments, first_column, tile, *, adds):
        """Store a thread's fragment of some columns of an accumulator to D, or add it."""
        part = WarpPart(self.config.epilogue, self.roles.epilogue.warp)
        down, along = first_place()
        row = tile.m * self.config.BM + (part.row + down).to(s32)
        column = tile.n * self.config.MMA_N + (part.column + along).to(s32) + first_column
        for (more_rows, more_columns), value in fragments.by_place.items():
            before = self.d[row + more_rows, column + more_columns] if adds else 0.0
            self.d[row + more_rows, column + more_columns] = value + before

    def process(self, tmem, tile, *, adds=False):
        """Read an accumulator and store it."""
        config = self.config
        strips = TmemArrayType("f32", (config.BM, config.stageN), config.epilogue.num_stages, config.cta_group)
        strips = strips.at(tmem.address(self.roles.epilogue.warp))
        for strip in range(len(strips)):
            fragments = strips[strip].load_fragments(config.epilogue.rep)
            TmemAddress.wait_load()
            self.store(fragments, strip * config.stageN, tile, adds=adds)


@kernel(target="sm_100a")
def accumulating(
    a: TensorMap, b: TensorMap, d: Array, tiles: s32, k_tiles: s32, *, config, options, also, prepare, load, mma, epilogue
):  # fmt: skip
    """D = A·Bᵀ in float32."""
    roles = warp_roles(epilogue=4, load=1, mma=1)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    inputs = InputTilePipeline(
        StandardTilePayload(*operand_tiles(a, b, config, cluster)),
        config.num_group_stages,
        config.k_group_size,
        producer=roles.load,
        consumer=roles.mma,
        cluster=cluster,
        also=also(roles),
    )
    sides = {"producer": roles.mma, "consumer": roles.epilogue, "cluster": cluster}
    outputs = OutputTilePipeline(config.output, **sides, **options(config))
    kit = Kit(roles, cluster, config, inputs, outputs, MmaOp(config, roles.mma, cluster), d, tiles, k_tiles)
    prepare(kit)
    load(kit)
    mma(kit)
    epilogue(kit)


def no_options(config):
    return {}


def no_other_consumers(roles):
    """No additional consumers of the input stages."""
    return ()


def nothing(kit):
    """Do nothing before the roles."""


def plain_load(kit):
    with kit.roles.load:
        for tile in kit.work:
            for k in loop(kit.k_tiles):
                with kit.inputs.produce() as stage:
                    stage.load(tile, k)


def bound(mma, epilogue, *, shape=None, tiles=3, k_tiles=3, **rest):
    """The launch of a product of some tiles, and its arrays."""
    others = {"options": no_options, "also": no_other_consumers, "prepare": nothing, "load": plain_load}
    bodies = {name: rest.pop(name, other) for name, other in others.items()}
    config = MatmulConfig(**{**(shape or ONE), "c_type": "f32", "use_tma_store": False, **rest})
    x, y, _ = config.cluster_shape
    made = arrays(config, config.BM * x, tiles * config.MMA_N * y, k_tiles * config.BK, seed=None)
    given = (*made.maps, made.d, tiles, k_tiles // config.k_group_size)
    grid = {"grid": config.cluster_shape, "cluster": config.cluster_shape, "block": (THREADS, 1, 1)}
    return accumulating.bind(*given, **grid, config=config, mma=mma, epilogue=epilogue, **bodies), made


def check(mma, epilogue, schedules=SCHEDULES, *, before=np.nan, **options):
    """D is the product, under each schedule, whatever it was before."""
    launched, made = bound(mma, epilogue, **options)
    for schedule, seed in schedules:
        made.d[...] = before
        launch(launched, schedule=schedule, seed=seed, limit=20_000_000)
        assert same(made.d, made.sums), schedule
    return launched


def multiply(kit, stage):
    """All K tiles of one accumulator."""
    for k in loop(kit.k_tiles):
        with kit.inputs.consume() as tiles:
            kit.mma_op.mma(tiles, stage.tmem_offset(), accumulate=k > 0)


def plain_mma(kit):
    with kit.roles.mma, MmaWarpContext(kit.outputs) as mma:
        for _ in kit.work:
            with when(kit.cluster.leader), mma.output_pipeline.producer() as stage:
                multiply(kit, stage)


def plain_epilogue(kit):
    with kit.roles.epilogue, EpilogueWarpContext(kit.outputs) as epi:
        for tile in kit.work:
            with epi.output_pipeline.consumer() as stage:
                kit.process(stage.tmem, tile)


def rejected(code, *words, mma=plain_mma, epilogue=plain_epilogue, **options):
    """Trace; the error must have the code and the words, and point at the line marked HERE, if one is."""
    with pytest.raises(TraceError) as caught:
        bound(mma, epilogue, **options)
    error = caught.value
    assert error.code == code, error
    for word in words:
        assert word in str(error)
    bodies = (mma, epilogue, *(each for each in options.values() if callable(each)))
    sources = [inspect.getsourcelines(each) for each in bodies]
    marked = [first + at for lines, first in sources for at, line in enumerate(lines) if "# HERE" in line]
    assert marked
    assert error.loc is not None
    assert [error.loc.line] == marked, error
