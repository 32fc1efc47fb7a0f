"""wgmma, the MMAs of Hopper: accumulators are in the registers of a warpgroup, with several groups in flight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from warploom.hardware.fragments import tensor_move
from warploom.hardware.mma_shapes import WGMMA, WGMMA_M
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.pipelines.input_pipeline import InputConsumerStage, InputTilePipeline
from warploom.structured.pipelines.operand_tiles import OperandTiles
from warploom.structured.tensor_cores.tmem import MOVE, TmemFragments
from warploom.trace import isa
from warploom.trace.language.control import when
from warploom.trace.language.fragments import Accumulator, Fragment, wgmma_accumulator
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, literal
from warploom.trace.language.variables import Variable

_WARPS = 4


class Warpgroup:
    """One warpgroup of a role, as a tile writer needs it: its warps and threads are counted from its own first."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self.name, self.count, self.threads, self.first = role.name, _WARPS, _WARPS * 32, role.first

    @property
    def number(self) -> Value:
        """The index of the warpgroup in its role."""
        return self._role.warp // _WARPS

    @property
    def warp(self) -> Value:
        return self._role.warp % _WARPS

    @property
    def thread(self) -> Value:
        return self._role.thread % self.threads

    @property
    def elected(self) -> Value:
        return self._role.elected

    @property
    def first_thread(self) -> Value:
        return (self.warp == 0) & self.elected


class RegisterTile:
    """64 rows of accumulators in registers, which a tile writer reads instead of TMEM."""

    def __init__(self, registers: Sequence[Value], columns: int) -> None:
        """Subtiles are `columns` wide."""
        self._registers, self._columns = registers, columns

    def subtile(self, index: int) -> TmemFragments:
        """Return the registers of a subtile: four per thread for every eight columns, as a TMEM load gives them."""
        each = self._columns // 2
        values = tuple(value.get() for value in self._registers[index * each : (index + 1) * each])
        return TmemFragments(Fragment(values, tensor_move(MOVE.name, len(values) // MOVE.registers)))


class WgmmaOp:
    """Issues the MMAs of an input pipeline's stages into 64-row accumulators, one wgmma group per stage.

    `config.mmas_in_flight` groups stay in flight: a stage is released when the MMAs that many stages later have been
    issued, so that the tensor core never idles.
    """

    def __init__(
        self, config: HopperConfig, inputs: InputTilePipeline, group: Warpgroup, accumulators: int | None = None
    ) -> None:
        """`accumulators` is their number, by default one for every 64 rows of the warpgroup."""
        self._config, self._inputs = config, inputs
        self._operands: tuple[OperandTiles, OperandTiles] = (inputs.payload.a, inputs.payload.b)
        a, b = self._operands
        row_block = literal(0, "u32") if config.pingpong else group.number
        self._first = (
            a.descriptor(literal(0, "u32")) + row_block.to("u64") * a.layout.down(config.written_rows),
            b.descriptor(literal(0, "u32")),
        )
        count = config.subtiles if accumulators is None else accumulators
        self.accumulators = [wgmma_accumulator(config.BN) for _ in range(count)]
        self._side = inputs.pipeline.consumer_side
        self._words = {
            "shape": f"m{WGMMA_M}n{config.BN}k{config.mma_k}",
            "d_type": "f32",
            "a_type": config.multiplied,
            "b_type": "tf32" if config.b_type == "f32" else config.b_type,
        }
        majors = (int(config.a_major == "mn"), int(config.b_major == "mn"))
        self._majors = majors if WGMMA[config.multiplied].transposable else ()

    @property
    def blocks(self) -> list[list[Sequence[Variable]]]:
        """The registers of each 64 rows that are written: of the accumulator, or of gate and up."""
        config, held = self._config, [each.registers for each in self.accumulators]
        if config.gates_rows:
            return [[held[at], held[config.blocks + at]] for at in range(config.blocks)]
        half = len(held[0]) // 2
        return [[each[:half], each[half:]] if config.gated else [each] for each in held]

    @property
    def tiles(self) -> list[RegisterTile]:
        return [RegisterTile([*chain(*block)], self._config.stageN) for block in self.blocks]

    @contextmanager
    def consume(self, k: Value) -> Iterator[InputConsumerStage]:
        """Acquire the k-th loaded stage of a tile; leaving releases the stage `mmas_in_flight` stages before."""
        mmas_in_flight = self._config.mmas_in_flight
        self._descriptors(self._side.position)  # computed before the wait, which the MMAs follow immediately
        stage = self._inputs.acquire_consumer()
        yield stage
        isa.wgmma.wait_group(mmas_in_flight)
        with when(k >= mmas_in_flight if mmas_in_flight else True):
            self._side.signal(self._side.state.earlier(mmas_in_flight) if mmas_in_flight else stage.index())
        stage.release_without_signal()

    def next_stage(self) -> Value:
        """Wait for a stage and return its index; the warpgroup holds it until `release_earlier`."""
        index = self._side.position
        self._descriptors(index)
        self._inputs.acquire_consumer().release_without_signal()
        return index

    def earlier(self, by: int) -> Value:
        """Return the index of the stage `by` stages ago; 1 is the last one."""
        return self._side.state.earlier(by)

    def release_earlier(self, by: int) -> None:
        """Release the stage `by` stages ago, whose MMAs are complete."""
        self._side.signal(self.earlier(by))

    def mma(self, stage: InputConsumerStage, *, accumulate: Value | bool) -> None:
        """Issue the MMAs of a stage as one group; without `accumulate` they overwrite the accumulators."""
        self.issue(stage.index(), dict(enumerate(self.accumulators)), accumulate=accumulate)

    def issue(self, stage: Value, into: Mapping[int, Accumulator], *, accumulate: Value | bool) -> None:
        """Issue the MMAs of some blocks of 64 rows of a stage, by their index, as one group."""
        config, (a, b) = self._config, self._operands
        left, right = self._descriptors(stage)
        mma: Any = isa.wgmma.mma_async
        isa.wgmma.fence()
        for k in range(0, a.layout.k_extent, config.mma_k):
            for number, accumulator in into.items():
                away = a.layout.step(k) + a.layout.down(config.block_row(number))
                operands = (left + away, right + b.layout.step(k), accumulate if k == 0 else True)
                mma(accumulator.registers, *operands, 1, 1, *self._majors, **self._words)
        isa.wgmma.commit_group()

    def _descriptors(self, stage: Value) -> tuple[Value, Value]:
        """Return the descriptors of this warpgroup's rows of A and of B in a stage; stages are consecutive."""
        return self._at_stage(stage, self._first)

    def _at_stage(self, stage: Value, first: tuple[Value, Value]) -> tuple[Value, Value]:
        """Return the descriptors of a stage from those of the first one."""
        left, right = (
            start + stage.to("u64") * each.layout.down(each.layout.rows)
            for start, each in zip(first, self._operands, strict=True)
        )
        return left, right

    def finish(self, k_tiles: Value) -> None:
        """Wait for the last groups of a tile and release their stages; the tile has at least one K tile."""
        isa.wgmma.wait_group(0)
        for by in range(self._config.mmas_in_flight, 0, -1):
            with when(k_tiles >= by if by > 1 else True):
                self._side.signal(self._side.state.earlier(by))

    def skip(self, count: Value) -> None:
        """Skip the stages of a tile that another warpgroup computes."""
        self._side.state.skip(count)
