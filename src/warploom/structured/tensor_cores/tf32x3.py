"""float32 as three TF32 products: each operand is a large and a small part, and only small times small is left out.

The large part is the value rounded to TF32, the small part the rest, rounded too. TMA loads float32; a role of its own
replaces each tile by its large parts and stores the small parts in a second tile. Both are computed element by element
in memory order, so that the layout of a tile does not matter. An infinite operand gives NaN: infinity times a small
part of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warploom.hardware.mma_shapes import WGMMA_M
from warploom.hardware.swizzles import GRANULE
from warploom.structured.cluster import Cluster
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.pipelines.input_pipeline import InputConsumerStage, InputTilePipeline
from warploom.structured.pipelines.operand_tiles import OperandTiles
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.signals import EveryReader, Signal
from warploom.structured.tensor_cores.tcgen05 import MmaOp, check_accumulates
from warploom.structured.tensor_cores.tmem import TmemStage
from warploom.structured.tensor_cores.wgmma import Warpgroup, WgmmaOp
from warploom.trace import isa
from warploom.trace.isa.emit import At
from warploom.trace.language.control import loop, when
from warploom.trace.language.descriptors import matrix_descriptor
from warploom.trace.language.fragments import Accumulator
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, literal
from warploom.trace.language.views import View, shared

TERMS = (("small", "large"), ("large", "small"), ("large", "large"))
"""The products of A's and B's parts, the smallest first."""
_VECTOR = 4
_UNROLLED = 2


class TensorFloatParts:
    """The small parts of both operands, in a ring like that of the input stages, and the role that computes them."""

    def __init__(self, inputs: InputTilePipeline, role: Role, consumer: Signal, cluster: Cluster) -> None:
        """The role is a further consumer of `inputs`; `consumer` is how the MMAs release a stage of small parts."""
        self._inputs, self._role = inputs, role
        self._tiles: dict[str, OperandTiles] = {name: inputs.payload.parts[name] for name in ("a", "b")}  # type: ignore[misc]
        stages = inputs.num_group_stages
        self._small: dict[str, View] = {
            name: shared("u8", (stages, each.layout.tile_bytes), name=f"{name}_small", align=1024)
            for name, each in self._tiles.items()
        }
        self.pipeline = ProducerConsumerPipeline(
            stages, producer=EveryReader(role, "leader"), consumer=consumer, cluster=cluster, name="small_parts"
        )

    def fill(self, tile: Any) -> None:
        """Split the K tiles of a tile as they are loaded, in the splitting role."""
        for _ in loop(tile.k_tiles):
            with self._inputs.consume() as stage, self.pipeline.produce():
                index = stage.tile()
                for name, operand in self._tiles.items():
                    self._split(operand.storage[index].place, self._small[name][index].place, operand.layout.tile_bytes)

    def _split(self, tile: At, small: At, size: int) -> None:
        """Replace a tile's elements by their large parts, and store the small ones."""
        thread, row = self._role.thread.to("u32"), self._role.threads * GRANULE
        start = thread * GRANULE
        for step in loop(size // row, unroll=_UNROLLED):
            _split_vector(tile, small, start + step.to("u32") * row)
        if size % row:
            with when(thread < size % row // GRANULE):
                _split_vector(tile, small, start + size // row * row)

    def drain(self) -> None:
        """Wait, at the end of the splitting role, until the MMAs have released every stage."""
        self.pipeline.drain_producer()

    def descriptors(self, index: Value) -> dict[tuple[str, str], Value]:
        """Return the matrix descriptors of a stage, by operand and part."""
        found = {(name, "large"): each.descriptor(index) for name, each in self._tiles.items()}
        for name, each in self._tiles.items():
            layout, place = each.layout, self._small[name][index].place
            found[name, "small"] = matrix_descriptor(
                place, leading=layout.leading, stride=layout.stride, swizzle=layout.swizzle
            )
        return found


def _split_vector(tile: At, small: At, offset: Value) -> None:
    """Split four elements at an offset in bytes."""
    here, there = At(tile.address + offset, tile.offset), At(small.address + offset, small.offset)
    parts = [_parts(value) for value in isa.ld.v4(here, space="shared", type="f32")]
    isa.st.v4(here, [large for large, _ in parts], space="shared", type="f32")
    isa.st.v4(there, [rest for _, rest in parts], space="shared", type="f32")


def _parts(value: Value) -> tuple[Value, Value]:
    """Return the large and the small part of a value."""
    large = _rounded(value)
    return large, _rounded(value - large)


def _rounded(value: Value) -> Value:
    rounded: Value = isa.cvt(value, rnd="rna", dtype="tf32")
    return rounded.bits("f32")


class TripleMmaOp(MmaOp):
    """Issues three MMAs for each step along K."""

    def mma_parts(
        self, stage: InputConsumerStage, parts: TensorFloatParts, acc: TmemStage, *, accumulate: Value | bool
    ) -> None:
        """Issue the MMAs of a stage; `accumulate` applies to the first, which otherwise overwrites the accumulator."""
        payload, found = stage.payload(), parts.descriptors(stage.tile())
        a, b = payload.a.layout, payload.b.layout
        check_accumulates(acc, accumulate)
        with when(self._role.elected):
            for number, (left, right) in enumerate(TERMS):
                for k in range(0, a.k_extent, self._kind.k):
                    adds: Any = accumulate if number == 0 and k == 0 else True
                    operands = (found["a", left] + a.step(k), found["b", right] + b.step(k), self._shape, adds)
                    words: Any = {"cta_group": self._cluster.cta_group, "kind": self._kind.name}
                    isa.tcgen05.mma(At(acc.offset), *operands, **words)


class TripleWgmmaOp(WgmmaOp):
    """Issues three wgmmas for each step along K."""

    def __init__(
        self, config: HopperConfig, inputs: InputTilePipeline, group: Warpgroup, parts: TensorFloatParts
    ) -> None:
        super().__init__(config, inputs, group)
        down = group.number.to("u64") * self._operands[0].layout.down(config.consumer_rows)
        first = parts.descriptors(literal(0, "u32"))
        self._small_first = (first["a", "small"] + down, first["b", "small"])

    def issue(self, stage: Value, into: Mapping[int, Accumulator], *, accumulate: Value | bool) -> None:
        config, (a, b) = self._config, self._operands
        places = {"large": self._first, "small": self._small_first}
        found = {name: self._at_stage(stage, first) for name, first in places.items()}
        mma: Any = isa.wgmma.mma_async
        isa.wgmma.fence()
        for term, (left, right) in enumerate(TERMS):
            for k in range(0, a.layout.k_extent, config.mma_k):
                for number, accumulator in into.items():
                    away = a.layout.step(k) + a.layout.down(number * WGMMA_M)
                    operands = (found[left][0] + away, found[right][1] + b.layout.step(k))
                    adds = accumulate if term == 0 and k == 0 else True
                    mma(accumulator.registers, *operands, adds, 1, 1, *self._majors, **self._words)
        isa.wgmma.commit_group()
